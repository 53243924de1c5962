//! Tests of a complete server with its default provider, on this machine. Needs root.
//!
//! The contract suite of the crate sandbox tests the provider. The tests here cover the properties that require the
//! whole server: the lifecycle of a conversation, and the clean-up after a server that is killed during an operation.

mod killed;
mod life;
mod remains;
mod restore;

use anyhow::{Context, Result, ensure};
use reqwest::StatusCode;
use serde_json::{Value, json};
use support::{Api, Server};

use remains::Remains;

/// The command whose processes the tests find by their arguments. Tests append a marker to it.
const MARKED: &str = "sleep 4321";

/// A server whose bot has a sandbox for each conversation.
struct Machine {
    server: Server,
    api: Api,
    bot: String,
}

impl Machine {
    async fn start(arguments: &[&str]) -> Result<Machine> {
        let server = Server::prepare(&[])?.argument("--sandbox-disk-mib=64");
        let mut server = arguments.iter().fold(server, |server, argument| server.argument(argument));
        server.launch().await?;
        let api = server.api()?;
        let bot = api.bot("coder").await?;
        let (status, body) = api.patch(&format!("/api/bots/{bot}"), &json!({ "use_agent_sandbox": true })).await?;
        ensure!(status == 200, "{body}");
        Ok(Machine { server, api, bot })
    }

    /// Starts the server again on the same folders.
    async fn restart(&mut self) -> Result<()> {
        self.server.restart().await?;
        self.api = self.server.api()?;
        Ok(())
    }

    /// Calls the shell in a conversation.
    async fn shell(&self, chat: &str, command: &str) -> Result<Value> {
        shell(&self.api, &self.bot, chat, command).await
    }

    /// Returns the output of a command that must succeed.
    async fn text(&self, chat: &str, command: &str) -> Result<String> {
        let answer = self.shell(chat, command).await?;
        ensure!(answer["data"]["exitCode"] == 0, "{answer}");
        Ok(answer["data"]["stdout"].as_str().context("a text")?.to_owned())
    }

    /// Returns the row of a conversation.
    async fn row(&self, chat: &str) -> Result<Option<Value>> {
        let (status, body) = self.api.get(&format!("/api/sandboxes?app_id=a&chat_id={chat}")).await?;
        ensure!(status == 200, "{body}");
        Ok(body["items"].as_array().context("a list")?.first().cloned())
    }

    async fn status(&self, chat: &str) -> Result<Option<String>> {
        Ok(self.row(chat).await?.and_then(|row| row["status"].as_str().map(str::to_owned)))
    }

    /// Returns a [`Remains`] that searches for the remains of this server.
    fn remains(&self) -> Remains {
        Remains::of(&self.server.data_dir())
    }
}

/// Calls the shell without borrowing the machine, so that the server can be killed during the call.
async fn shell(api: &Api, bot: &str, chat: &str, command: &str) -> Result<Value> {
    let body = json!({
        "params": { "command": command },
        "chat": { "app_id": "a", "user_id": "u", "chat_id": chat },
    });
    let (status, answer) = api.post(&format!("/api/bots/{bot}/tools/sandbox_shell/call"), &body).await?;
    ensure!(status == StatusCode::OK, "{status} {answer}");
    Ok(answer)
}
