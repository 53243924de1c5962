//! Sandboxes as they are: a server with the provider that it has by itself, on this machine. Needs root.
//!
//! What a sandbox promises is held by the contract suite of crate sandbox. Here is what only the whole server can show: a
//! conversation over its life, and that nothing is left of it when the server is killed in the midst of anything.

mod killed;
mod life;
mod remains;
mod restore;

use anyhow::{Context, Result, ensure};
use reqwest::StatusCode;
use serde_json::{Value, json};
use support::{Api, Server};

use remains::Remains;

/// The only program that may be looked for by what is in its arguments.
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

    /// What a command that must succeed wrote.
    async fn text(&self, chat: &str, command: &str) -> Result<String> {
        let answer = self.shell(chat, command).await?;
        ensure!(answer["data"]["exitCode"] == 0, "{answer}");
        Ok(answer["data"]["stdout"].as_str().context("a text")?.to_owned())
    }

    /// The row of a conversation.
    async fn row(&self, chat: &str) -> Result<Option<Value>> {
        let (status, body) = self.api.get(&format!("/api/sandboxes?app_id=a&chat_id={chat}")).await?;
        ensure!(status == 200, "{body}");
        Ok(body["items"].as_array().context("a list")?.first().cloned())
    }

    async fn status(&self, chat: &str) -> Result<Option<String>> {
        Ok(self.row(chat).await?.and_then(|row| row["status"].as_str().map(str::to_owned)))
    }

    /// What a server of this folder must not leave behind.
    fn remains(&self) -> Remains {
        Remains::of(&self.server.data_dir())
    }
}

/// The same for a call that goes on while the server is killed.
async fn shell(api: &Api, bot: &str, chat: &str, command: &str) -> Result<Value> {
    let body = json!({
        "params": { "command": command },
        "chat": { "app_id": "a", "user_id": "u", "chat_id": chat },
    });
    let (status, answer) = api.post(&format!("/api/bots/{bot}/tools/sandbox_shell/call"), &body).await?;
    ensure!(status == StatusCode::OK, "{status} {answer}");
    Ok(answer)
}
