//! Libraries that speak the OpenAI API, which `cargo xtask test` installs in `target/openai-clients`, and litellm's proxy, which
//! `cargo xtask test --long` installs in `target/litellm-proxy`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::process::{Child, Command};

use crate::llm::give;
use crate::mcp::node;
use crate::{Api, Build, listening};

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
            OpenAiClients::JavaScript => {
                command.args(["--input-type=module", "--eval", text]);
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

    /// Returns the interpreter, in the folder of the libraries: Node.js looks there for the packages of a text.
    fn interpreter(self) -> Result<Command> {
        let mut command = match self {
            OpenAiClients::Python => {
                let mut python = Command::new("python3");
                python.arg("-B");
                python
            }
            OpenAiClients::JavaScript => Command::new(node()?),
        };
        command.current_dir(installed()?);
        Ok(command)
    }
}

/// A running proxy of litellm. Dropping the value stops it.
pub struct LitellmProxy {
    url: String,
    _process: Child,
}

impl LitellmProxy {
    /// The maximum start time. The proxy imports thousands of files.
    const START_MAX: Duration = Duration::from_secs(180);

    /// Starts the proxy on 127.0.0.1 and waits until it listens.
    pub async fn start() -> Result<LitellmProxy> {
        let folder = installed_in("litellm-proxy", "cargo xtask test --long")?;
        let packages = [folder.join("python"), installed()?.join("python")].map(|path| path.display().to_string());
        let mut command = Command::new("python3");
        command.arg("-B").arg(folder.join("proxy.py")).arg(folder.join("config.yaml"));
        command.envs(OpenAiClients::environment()?).env("PYTHONPATH", packages.join(":")).current_dir(&folder);
        let (url, process) = listening::start_within(command, LitellmProxy::START_MAX).await?;
        Ok(LitellmProxy { url: format!("{url}/v1"), _process: process })
    }

    /// Lets a bot use the model of the proxy.
    pub async fn give_to(&self, api: &Api, bot: &str) -> Result<()> {
        give(api, bot, "litellm", &self.url).await
    }
}

/// Returns the folder in which the libraries are installed.
fn installed() -> Result<PathBuf> {
    installed_in("openai-clients", "cargo xtask test")
}

fn installed_in(folder: &str, by: &str) -> Result<PathBuf> {
    let folder = Build::current()?.target()?.join(folder);
    let installed = folder.join("installed");
    ensure!(installed.is_file(), "{} is missing; `{by}` installs it", installed.display());
    Ok(folder)
}
