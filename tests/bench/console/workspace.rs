//! A workspace with many bots and a long audit, and the router of its host. Pages and requests to the API go through the
//! router without a connection, so that only their own work is compared.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST};
use axum::http::{Method, Request, StatusCode};
use monstrum_core::app::App;
use monstrum_core::audit::{QueuedRow, Resolved};
use monstrum_core::call_types::call_secrets::CallSecrets;
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_host::gateway::{self, ConsoleOptions, McpOptions};
use monstrum_types::{BotId, CallOutcome, Code, JsonText, PluginName, RequestId, ResourceId, Status, WorkspaceId};
use serde_json::{Value, json};
use support::{Api, InProcess};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::scene::{OPERATION, PLUGIN, TOOL};

pub const BOTS: usize = 1_000;
pub const ROWS: usize = 100_000;
/// The number of resources. Every bot is bound to every resource.
const RESOURCES: usize = 10;
/// The number of calls whose rows are queued before any row is awaited, the capacity of the writer's queue.
const ROWS_QUEUED: usize = 4_096;
/// One of this number of calls is a call of the bot whose pages are measured.
const SHARE_OF_BOT: usize = 10;
const FORCE_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A host in this process with a filled workspace.
pub struct Workspace {
    pub host: InProcess,
    pub id: WorkspaceId,
    /// The bot whose pages are measured.
    pub bot: BotId,
    pub resource: ResourceId,
    /// The newest denied call of the bot.
    pub denied: RequestId,
    /// The root key, with which all requests are made.
    pub key: String,
    router: Router,
    /// The cookie of a session of the key.
    cookie: String,
    bots: Vec<BotId>,
}

/// A request to the API.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: Method,
    pub path: String,
    pub body: Option<Value>,
}

impl Workspace {
    /// Starts a host, and fills its default workspace.
    pub async fn fill() -> Result<Workspace> {
        let host = InProcess::start(&[PLUGIN]).await?;
        let began = Instant::now();
        let binding = host.fill(PLUGIN, BOTS, RESOURCES).await?;
        let (id, bot, resource) = (binding.workspace_id, binding.bot_id, binding.resource_id);
        let policy = &host.running.app.policy;
        while policy.load().bot(id, bot).is_none_or(|bot| bot.bindings.len() < RESOURCES) {
            ensure!(began.elapsed() < FORCE_MAX, "the bindings are not in force after {FORCE_MAX:?}");
            tokio::time::sleep(POLL).await;
        }
        let bots = bots(&host.api()?).await?;
        let app = &host.running.app;
        let key = host.running.admin_key.as_ref().context("the host created no root key")?.expose().to_owned();
        let session = app.console_sessions.open(RequestId::new(), &key).await?;
        let cookie = format!("monstrum={}", session.token.expose());
        let (router, denied) = (router(&host), RequestId::new());
        let mut workspace = Workspace { host, id, bot, resource, denied, key, router, cookie, bots };
        workspace.denied = workspace.append_rows().await?;
        println!("    {BOTS} bots and {ROWS} rows of the audit written in {:.0?}", began.elapsed());
        Ok(workspace)
    }

    fn app(&self) -> &Arc<App> {
        &self.host.running.app
    }

    /// Appends rows of calls through the writer of the audit. The calls themselves are not run. Returns the newest denied
    /// call of the measured bot.
    async fn append_rows(&self) -> Result<RequestId> {
        let (mut number, mut denied) = (0, None);
        while number < ROWS {
            let mut queued = Vec::with_capacity(ROWS_QUEUED);
            for _ in 0..ROWS_QUEUED.min(ROWS - number) {
                number += 1;
                let id = RequestId::new();
                if number.is_multiple_of(SHARE_OF_BOT) && is_outside(number) {
                    denied = Some(id);
                }
                queued.push(self.append(id, number).await?);
            }
            for row in queued {
                row.committed().await?;
            }
        }
        let rows = self.app().store.count_events().await?;
        ensure!(usize::try_from(rows)? >= ROWS, "the audit has only {rows} rows");
        denied.context("no call of the bot was denied")
    }

    /// Queues the row of a call.
    async fn append(&self, id: RequestId, number: usize) -> Result<QueuedRow> {
        let bot = if number.is_multiple_of(SHARE_OF_BOT) { self.bot } else { self.bots[number % self.bots.len()] };
        let repo = if is_outside(number) { format!("other/repo-{}", number % 3) } else { "acme/site".to_owned() };
        let call = IncomingCall::bot_tool(id, self.id, bot, TOOL.to_owned(), json!({ "repo": repo, "any": number }));
        let plugin: PluginName = PLUGIN.parse()?;
        let resource = Some(Some(self.resource));
        let entry = self.app().auditor.open(&call, Arc::new(CallSecrets::default()))?;
        entry.resolved(&Resolved { plugin: &plugin, plugin_digest: None, operation: OPERATION, resource });
        Ok(entry.close(&outcome(number, &repo), Vec::new()).await?)
    }

    /// Appends rows of calls at a fixed rate until the future is dropped.
    pub async fn append_steadily(&self, a_second: u32) -> Result<Infallible> {
        let mut tick = tokio::time::interval(Duration::from_secs(1) / a_second);
        let mut number = 0;
        loop {
            tick.tick().await;
            number += 1;
            // The page reads committed rows from the database, so the next call need not wait for this row.
            drop(self.append(RequestId::new(), number).await?);
        }
    }

    /// Reads a page of the console, as a browser does.
    pub async fn page(&self, path: &str) -> Result<()> {
        let request = Request::get(path).header(HOST, "localhost").header(COOKIE, &self.cookie);
        let request = request.header(ACCEPT_ENCODING, "gzip").body(Body::empty())?;
        let status = self.answered(request).await?;
        ensure!(status == StatusCode::OK, "the page {path} was answered with {status}");
        Ok(())
    }

    /// Sends a request to the API, and reads its answer, which may be a refusal.
    pub async fn ask(&self, Ask { method, path, body }: &Ask) -> Result<()> {
        let request = Request::builder().method(method).uri(path).header("Monstrum-Workspace", self.id.to_string());
        let request = request.header(AUTHORIZATION, format!("Bearer {}", self.key));
        let request = match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(Body::from(body.to_string()))?,
            None => request.body(Body::empty())?,
        };
        self.answered(request).await.map(drop)
    }

    async fn answered(&self, request: Request<Body>) -> Result<StatusCode> {
        let response = self.router.clone().oneshot(request).await?;
        let status = response.status();
        to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.context("the answer is too large")?;
        Ok(status)
    }
}

/// Returns a router like that of the running server, with the same state.
fn router(host: &InProcess) -> Router {
    let address = host.running.address;
    let mcp = McpOptions {
        address,
        public_url: None,
        hosts: Vec::new(),
        origins: Vec::new(),
        stop: CancellationToken::new(),
    };
    let console = ConsoleOptions { enabled: true, hosts: Vec::new(), public_url: None, address };
    let running = &host.running;
    let (app, work) = (Arc::clone(&running.app), (Arc::clone(&running.tasks), Arc::clone(&running.runs)));
    gateway::router(app, work, gateway::Options::default(), mcp, console)
}

/// Returns the ids of all bots.
async fn bots(api: &Api) -> Result<Vec<BotId>> {
    let (mut bots, mut cursor) = (Vec::with_capacity(BOTS), String::new());
    loop {
        let (status, page) = api.get(&format!("/api/bots?limit=200{cursor}")).await?;
        ensure!(status == 200, "the bots cannot be listed: {status} {page}");
        for bot in page["items"].as_array().context("the list of bots has no items")? {
            bots.push(bot["id"].as_str().context("a bot has no id")?.parse()?);
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    ensure!(bots.len() >= BOTS, "the workspace has only {} bots", bots.len());
    Ok(bots)
}

/// Returns whether a call names a repository outside the scope of its bot.
fn is_outside(number: usize) -> bool {
    matches!(number % 40, 13 | 20)
}

/// Returns how a call ended: one of twenty was outside the scope, one of forty was not permitted, and one of forty
/// failed.
fn outcome(number: usize, repo: &str) -> CallOutcome {
    if is_outside(number) {
        let message = format!("Scope violation: Repository {repo} is not authorized");
        return CallOutcome::failure(Status::ScopeViolation, Code::Scope, message).by_rule("scope.repos");
    }
    match number % 40 {
        0 => CallOutcome::failure(Status::PermissionDenied, Code::Denied, "the bot may not use this tool")
            .by_rule("role.allowed_operations"),
        7 => CallOutcome::error(Code::Upstream, "the upstream server could not be reached"),
        _ => CallOutcome::success(JsonText::from(&json!({ "ok": true }))),
    }
}
