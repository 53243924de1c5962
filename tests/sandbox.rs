//! The interfaces of the sandbox: the tool, the prompt, the routes and the plugin import. They run on a simulated
//! provider, so that these tests need no Linux machine with sandboxes.

mod commands;
mod delegation;
mod exec;
mod files;
mod import;
mod kept;
mod prompt;
mod recorded;
mod rows;
mod shares;
mod tool;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use monstrum_core::policy::row_seals;
use monstrum_core::sandboxes::Conversation;
use monstrum_host::boot::{self, Outside, Running};
use monstrum_host::config::{ServeFlags, Settings};
use monstrum_store::{SandboxRow, SandboxStatus, StoreOptions};
use monstrum_types::{Clock, Labels, SandboxInstanceId, SystemClock};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, Machines, Server};

use crate::http::send;
use crate::world::{eventually, text};

/// The maximum number of running sandboxes, more than most tests need.
pub(crate) const RUNNING_MAX: u32 = 5;

/// A server in this process with simulated sandboxes, and a bot whose sandbox switch is on.
pub(crate) struct Doors {
    pub(crate) api: Api,
    pub(crate) machines: Arc<Machines>,
    pub(crate) bot: String,
    pub(crate) running: Running,
    /// The folders of the server. The process of this `Server` is never started.
    pub(crate) home: Server,
}

impl Doors {
    pub(crate) async fn open() -> Result<Doors> {
        Doors::with(&[]).await
    }

    /// Starts a server with these plugins.
    pub(crate) async fn with(plugins: &[&str]) -> Result<Doors> {
        // The limit for plugins is shorter than some commands of the tests.
        Doors::within(plugins, 2).await
    }

    /// Starts a server with these plugins, whose calls may take up to `max_timeout_s` seconds.
    pub(crate) async fn within(plugins: &[&str], max_timeout_s: u32) -> Result<Doors> {
        Doors::start(plugins, |flags| flags.max_timeout_s = max_timeout_s.try_into().ok()).await
    }

    /// Starts a server with other settings.
    pub(crate) async fn set(change: impl FnOnce(&mut ServeFlags)) -> Result<Doors> {
        Doors::start(&[], change).await
    }

    async fn start(plugins: &[&str], change: impl FnOnce(&mut ServeFlags)) -> Result<Doors> {
        let home = Server::prepare(plugins)?;
        let mut flags = ServeFlags {
            listen: Some(([127, 0, 0, 1], 0).into()),
            data_dir: Some(home.data_dir()),
            plugins_dir: Some(home.plugins_dir()),
            watch_plugins: Some(false),
            sandbox_max: RUNNING_MAX.try_into().ok(),
            ..ServeFlags::default()
        };
        change(&mut flags);
        let settings = Settings::resolve(flags, home.home())?;
        let machines = Arc::new(Machines::default());
        let outside = Outside { sandboxes: Some(Arc::clone(&machines) as _), ..Outside::default() };
        let running = boot::start_with(settings, outside).await?;
        let key = running.admin_key.as_ref().context("the first start created no key")?;
        let api = Api::new(&running.base_url, key.expose())?;
        let bot = api.bot("tester").await?;
        let doors = Doors { api, machines, bot, running, home };
        doors.switch(&doors.bot, true).await?;
        Ok(doors)
    }

    /// Turns the sandbox switch of a bot on or off.
    pub(crate) async fn switch(&self, bot: &str, on: bool) -> Result<()> {
        let (status, body) = self.api.patch(&format!("/api/bots/{bot}"), &json!({ "use_agent_sandbox": on })).await?;
        ensure!(status == 200, "{body}");
        Ok(())
    }

    /// Returns a conversation of the user `u` in the app `a`.
    pub(crate) fn chat(chat: &str) -> Value {
        json!({ "app_id": "a", "user_id": "u", "chat_id": chat })
    }

    /// Calls a tool of the bot in the conversation `c`.
    pub(crate) async fn call(&self, tool: &str, params: &Value) -> Result<Value> {
        self.call_as(&self.bot, tool, params, Some(Doors::chat("c")), "en").await
    }

    pub(crate) async fn call_as(
        &self,
        bot: &str,
        tool: &str,
        params: &Value,
        chat: Option<Value>,
        language: &str,
    ) -> Result<Value> {
        let mut body = json!({ "params": params });
        if let Some(chat) = chat {
            body["chat"] = chat;
        }
        let path = format!("/api/bots/{bot}/tools/{tool}/call");
        let request = self.api.request(Method::POST, &path).header("accept-language", language).json(&body);
        let (status, _, answer) = send(request).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(answer)
    }

    /// Runs a command in the conversation `c`.
    pub(crate) async fn shell(&self, command: &str) -> Result<Value> {
        self.call("sandbox_shell", &json!({ "command": command })).await
    }

    /// Calls the file API with the key of `api`, in the conversation `c`.
    pub(crate) async fn file(&self, api: &Api, body: &Value) -> Result<(u16, Value)> {
        let mut whole = json!({ "appId": "a", "chatId": "c" });
        let fields = body.as_object().context("the body is not an object")?;
        whole.as_object_mut().context("the body is not an object")?.extend(fields.clone());
        api.post("/api/core/ai/sandbox/file", &whole).await
    }

    /// Returns the only sandbox.
    pub(crate) async fn sandbox(&self) -> Result<Value> {
        let (status, list) = self.api.get("/api/sandboxes").await?;
        ensure!(status == 200 && list["items"].as_array().is_some_and(|items| items.len() == 1), "{list}");
        Ok(list["items"][0].clone())
    }

    /// Waits until `count` reaches `wanted`.
    pub(crate) async fn counted(&self, what: &str, count: &AtomicUsize, wanted: usize) -> Result<()> {
        eventually(what, async || Ok((count.load(Ordering::SeqCst) >= wanted).then_some(()))).await
    }

    /// Creates a key of a bot and returns the API with it.
    pub(crate) async fn key_of(&self, bot: &str) -> Result<Api> {
        let body = json!({ "name": format!("key of {bot}"), "kind": "bot", "bot_id": bot });
        let (_, key) = self.api.post("/api/keys", &body).await?;
        Ok(self.api.with_key(text(&key["key"])))
    }
}

/// Inserts the row of a stopped sandbox into a database, as if `bot` had used it in this conversation. Returns its id.
pub(crate) async fn plant(
    store: StoreOptions,
    data_dir: PathBuf,
    workspace: &str,
    bot: &str,
    app: &str,
    chat: &str,
) -> Result<String> {
    let store = row_seals::open_with_key_file(store, &data_dir.join("master.key")).await?;
    let of = Conversation::new(app, "u", chat)?;
    let now = SystemClock.now();
    let row = SandboxRow {
        id: SandboxInstanceId::new(),
        workspace_id: workspace.parse()?,
        bot_id: bot.parse()?,
        provider: "embedded".to_owned(),
        sandbox_id: of.sandbox_id(),
        app_id: Some(app.to_owned()),
        user_id: Some("u".to_owned()),
        chat_id: Some(chat.to_owned()),
        node: None,
        status: SandboxStatus::Stopped,
        operation: None,
        operation_until: None,
        last_active_at: now,
        created_at: now,
        limit: None,
        network: None,
        error: None,
        attempts: 0,
        next_attempt_at: None,
        labels: Some(Labels::none()),
    };
    ensure!(store.insert_sandbox(&row).await?, "the bot does not exist");
    store.close().await;
    Ok(row.id.to_string())
}

/// Returns an answer without its request id and its duration, which differ between runs.
pub(crate) fn shown(answer: &Value) -> Value {
    let mut answer = answer.clone();
    if let Some(fields) = answer.as_object_mut() {
        fields.remove("request_id");
        fields.remove("duration_ms");
    }
    answer
}
