//! Libraries that speak the OpenAI API, which `cargo xtask test` installs in `target/openai-clients`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use tokio::process::Command;

use crate::Build;
use crate::mcp::node;

/// The libraries of a language. A script of `tests/openai-clients` uses them one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAiClients {
    /// PyPI `openai`, `langchain-openai`, `openai-agents` and `litellm`.
    Python,
    /// npm `openai`, and `ai` with `@ai-sdk/openai` and `@ai-sdk/openai-compatible`.
    JavaScript,
}

impl OpenAiClients {
    /// Returns the command that uses all libraries. The command needs [`OpenAiClients::environment`].
    pub fn command(self) -> Result<Command> {
        let script = installed()?.join(match self {
            OpenAiClients::Python => "clients.py",
            OpenAiClients::JavaScript => "clients.mjs",
        });
        let mut command = self.interpreter()?;
        command.arg(script);
        Ok(command)
    }

    /// Returns the command that runs a text as a program.
    pub fn snippet(self, text: &str) -> Result<Command> {
        let mut command = self.interpreter()?;
        match self {
            OpenAiClients::Python => {
                command.arg("-c").arg(text);
            }
            // Node.js looks for packages beside the program.
            OpenAiClients::JavaScript => {
                let mut file = tempfile::Builder::new().suffix(".mjs").tempfile_in(installed()?)?;
                std::io::Write::write_all(&mut file, text.as_bytes())?;
                command.arg(file.into_temp_path().keep()?);
            }
        }
        Ok(command)
    }

    /// Returns the word that marks a snippet of this language in Markdown.
    #[must_use]
    pub fn fence(self) -> &'static str {
        match self {
            OpenAiClients::Python => "python\n",
            OpenAiClients::JavaScript => "js\n",
        }
    }

    /// Returns the variables that the commands need. The libraries must reach nothing but loopback.
    pub fn environment() -> Result<Vec<(&'static str, String)>> {
        let python = installed()?.join("python");
        Ok(vec![
            ("PYTHONPATH", python.display().to_string()),
            ("PYTHONNOUSERSITE", "1".to_owned()),
            ("LITELLM_LOCAL_MODEL_COST_MAP", "True".to_owned()),
            ("OPENAI_AGENTS_DISABLE_TRACING", "1".to_owned()),
            ("NO_PROXY", "127.0.0.1".to_owned()),
        ])
    }

    fn interpreter(self) -> Result<Command> {
        Ok(match self {
            OpenAiClients::Python => {
                let mut python = Command::new("python3");
                python.arg("-B");
                python
            }
            OpenAiClients::JavaScript => Command::new(node()?),
        })
    }
}

/// Returns the folder in which the libraries are installed.
fn installed() -> Result<PathBuf> {
    let folder = Build::current()?.target()?.join("openai-clients");
    let installed = folder.join("installed");
    ensure!(installed.is_file(), "{} is missing; `cargo xtask test` installs the libraries", installed.display());
    Ok(folder)
}
