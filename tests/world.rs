//! The set-up of most tests: a server with plugins, an upstream, and one bot.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, Bound, FakeGithub, Server};

/// A time-out that is far longer than any step needs, unless the server hangs.
const WAIT_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A server, an upstream, and a bot that may not use anything yet.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) api: Api,
    pub(crate) github: FakeGithub,
    pub(crate) bot: String,
}

impl World {
    /// Starts a server with these plugins.
    pub(crate) async fn with(plugins: &[&str]) -> Result<World> {
        World::on(Server::prepare(plugins)?).await
    }

    /// Starts a prepared server.
    pub(crate) async fn on(mut server: Server) -> Result<World> {
        server.launch().await?;
        let github = FakeGithub::start().await?;
        let api = server.api()?;
        let bot = api.bot("tester").await?;
        Ok(World { server, api, github, bot })
    }

    /// Creates a resource of this type with the upstream's token, and lets the bot use it.
    pub(crate) async fn grant(&self, resource_type: &str, operations: &[&str], scopes: &Value) -> Result<Bound> {
        let (url, token) = (self.github.url(), self.github.token());
        self.api.grant(&self.bot, resource_type, (&url, &token), operations, scopes).await
    }

    /// Lets the bot use all operations of this type.
    pub(crate) async fn grant_all(&self, resource_type: &str) -> Result<Bound> {
        self.grant(resource_type, &["*"], &json!({})).await
    }

    /// Changes a binding of the bot.
    pub(crate) async fn rebind(&self, bound: &Bound, change: &Value) -> Result<()> {
        let path = format!("/api/bots/{}/resources/{}", self.bot, bound.binding);
        let (status, body) = self.api.patch(&path, change).await?;
        ensure!(status == 200, "PATCH {path}: {status} {body}");
        Ok(())
    }

    /// Calls a tool as the bot. Returns the answer with any status.
    pub(crate) async fn call(&self, tool: &str, params: &Value) -> Result<Value> {
        self.api.call(&self.bot, tool, params).await
    }

    /// Checks whether the bot may make the call.
    pub(crate) async fn check(&self, tool: &str, params: &Value) -> Result<Value> {
        self.api.check(&self.bot, tool, params).await
    }

    /// Returns the audit of the call with this answer.
    pub(crate) async fn audit_of(&self, answer: &Value) -> Result<Value> {
        self.api.audit(text(&answer["request_id"])).await
    }

    /// Returns the names of the tools that the bot may see.
    pub(crate) async fn tools(&self) -> Result<Vec<String>> {
        let (status, body) = self.api.get(&format!("/api/bots/{}/tools", self.bot)).await?;
        ensure!(status == 200, "the tools could not be listed: {status} {body}");
        let items = body["items"].as_array().context("the list has no items")?;
        Ok(items.iter().map(|tool| text(&tool["name"]).to_owned()).collect())
    }

    /// Returns the resident memory of the server.
    pub(crate) fn resident_kib(&self) -> Result<u64> {
        let pid = self.server.pid().context("the server is not running")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("the memory of the process is unknown")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Waits until the upstream has recorded `count` requests.
    pub(crate) async fn reached(&self, count: usize) -> Result<()> {
        eventually("the upstream has received the requests", async || {
            Ok((self.github.requests().len() >= count).then_some(()))
        })
        .await
    }
}

/// Returns the text of a JSON string, or an empty text for any other value.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Repeats `ask` until it returns a value.
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let until = Instant::now() + WAIT_MAX;
    loop {
        if let Some(found) = ask().await? {
            return Ok(found);
        }
        ensure!(Instant::now() < until, "timed out after {WAIT_MAX:?} waiting until {what}");
        tokio::time::sleep(POLL).await;
    }
}
