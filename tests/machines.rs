//! Tests with real sandboxes: a server with the embedded provider on this machine. The tests need root.
//!
//! The contract suite of the crate `monstrum-sandbox` tests what a provider must do. These tests cover behaviour that
//! needs the whole server: the life of a conversation, and the clean-up after a server that was killed at any moment.

mod killed;
mod life;
mod remains;
mod restore;

use anyhow::{Context, Result, ensure};
use reqwest::StatusCode;
use serde_json::{Value, json};
use support::{Api, Server};

use remains::Remains;

/// The only program that tests may find by its arguments.
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

    /// Restarts the server with the same folders.
    async fn restart(&mut self) -> Result<()> {
        self.server.restart().await?;
        self.api = self.server.api()?;
        Ok(())
    }

    /// Calls the shell in a conversation.
    async fn shell(&self, chat: &str, command: &str) -> Result<Value> {
        shell(&self.api, &self.bot, chat, command).await
    }

    /// Runs a command that must succeed, and returns its output.
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

    /// Returns the remains of this data folder's sandboxes. A stopped server must not leave any remains.
    fn remains(&self) -> Remains {
        Remains::of(&self.server.data_dir())
    }
}

/// Calls the shell in a conversation, also while the server is being killed.
async fn shell(api: &Api, bot: &str, chat: &str, command: &str) -> Result<Value> {
    let body = json!({
        "params": { "command": command },
        "chat": { "app_id": "a", "user_id": "u", "chat_id": chat },
    });
    let (status, answer) = api.post(&format!("/api/bots/{bot}/tools/sandbox_shell/call"), &body).await?;
    ensure!(status == StatusCode::OK, "{status} {answer}");
    Ok(answer)
}
