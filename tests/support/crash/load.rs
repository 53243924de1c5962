//! The load of a server until it ends: calls of bots on several connections, some of them with a cost, some with a
//! request to an upstream, and changes of the policy.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::extract::State;
use axum::http::Uri;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::Api;

/// The plugin whose tools are called.
pub(super) const PLUGIN: &str = "test-echo";
/// The tool with a cost, and the cost of a call in tokens and millionths of a credit.
pub(super) const CHARGED_TOOL: &str = "test_echo_write";
pub(super) const COST: (i64, i64) = (10, 500_000);
const PLAIN_TOOL: &str = "test_echo_run";
const REQUEST_TOOL: &str = "test_echo_fetch";

/// The number of connections with calls of one kind. Transactions contain rows of several calls.
const CONNECTIONS_PER_KIND: usize = 4;
/// The pause between changes. Each change is followed by a signed head.
const CHANGE_PAUSE: Duration = Duration::from_millis(60);
/// The time that the upstream takes. A power cut finds calls that wait for it.
const UPSTREAM_DELAY: Duration = Duration::from_millis(4);

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Plain,
    Charged,
    /// A call that sends a request to the upstream.
    Request,
    /// A new bot, whose name is the marker.
    Change,
}

/// One request to the server.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) kind: Kind,
    /// The text that identifies the request, within the whole test.
    pub(super) marker: String,
    /// The answer; `None` if the server ended first.
    pub(super) answer: Option<Answer>,
}

#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// The id of the call; empty for a change.
    pub(super) request_id: String,
    pub(super) status: String,
    /// The length of the journal when the answer was received. What the answer promises is durable at this point.
    pub(super) seen: u64,
}

/// The bots, and the upstream of their resources.
pub(super) struct Scene {
    bots: Vec<String>,
    upstream: Upstream,
}

/// An upstream that records the requests it receives.
struct Upstream {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    journal: PathBuf,
    /// The marker of each request, and the length of the journal when the request arrived.
    arrivals: Vec<(String, u64)>,
}

impl Scene {
    /// Creates the bots.
    pub(super) async fn create(api: &Api) -> Result<Scene> {
        let (upstream, address) = Upstream::start().await?;
        let mut bots = Vec::new();
        for name in ["first", "second"] {
            let bot = api.bot(name).await?;
            api.grant(&bot, PLUGIN, (&format!("http://{address}"), "a token of the test"), &["*"], &json!({})).await?;
            bots.push(bot);
        }
        Ok(Scene { bots, upstream })
    }

    /// Loads the server until it ends. `name` is part of every marker.
    pub(super) fn begin(&self, api: &Api, name: &str, journal: &Path) -> Load {
        *self.upstream.seen() = Seen { journal: journal.to_owned(), arrivals: Vec::new() };
        let mut connections = JoinSet::new();
        let kinds = [Kind::Plain, Kind::Charged, Kind::Request].repeat(CONNECTIONS_PER_KIND);
        for (number, kind) in kinds.into_iter().chain([Kind::Change]).enumerate() {
            let connection = Connection {
                kind,
                name: format!("{name}-{number}"),
                api: api.clone(),
                bot: self.bots[number % self.bots.len()].clone(),
                journal: journal.to_owned(),
            };
            connections.spawn(connection.work());
        }
        Load { connections, seen: Arc::clone(&self.upstream.seen) }
    }

    /// Makes one call with a cost, and returns it with its answer.
    pub(super) async fn call(&self, api: &Api, marker: &str) -> Result<Asked> {
        let (path, body) = request(Kind::Charged, marker, &self.bots[0]);
        let (status, answer) = api.post(&path, &body).await?;
        match status {
            200 if answer["status"] == "success" => Ok(asked(Kind::Charged, marker.to_owned(), &answer, 0)),
            _ => bail!("a call of the restarted server was answered with {status}: {answer}"),
        }
    }
}

/// The running load.
pub(super) struct Load {
    connections: JoinSet<Result<Vec<Asked>>>,
    seen: Arc<Mutex<Seen>>,
}

/// What happened until the server ended.
pub(super) struct Loaded {
    pub(super) asked: Vec<Asked>,
    /// The marker of each request that arrived at the upstream, and the length of the journal then.
    pub(super) arrivals: Vec<(String, u64)>,
}

impl Load {
    /// Waits until all connections have noticed the end of the server.
    pub(super) async fn ended(mut self) -> Result<Loaded> {
        let mut asked = Vec::new();
        while let Some(ended) = self.connections.join_next().await {
            asked.extend(ended.context("the task of a connection failed")??);
        }
        let arrivals = std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner).arrivals);
        Ok(Loaded { asked, arrivals })
    }
}

struct Connection {
    kind: Kind,
    name: String,
    api: Api,
    bot: String,
    journal: PathBuf,
}

impl Connection {
    /// Sends one request after another until the server ends.
    async fn work(self) -> Result<Vec<Asked>> {
        let mut all = Vec::new();
        for number in 0.. {
            let marker = format!("{}-{number}", self.name);
            let (path, body) = request(self.kind, &marker, &self.bot);
            match self.api.post(&path, &body).await {
                Ok((200 | 201, answer)) => all.push(asked(self.kind, marker, &answer, journal_bytes(&self.journal))),
                // The server has ended, or rejects requests because it ends.
                Err(_) | Ok((503, _)) => {
                    all.push(Asked { kind: self.kind, marker, answer: None });
                    break;
                }
                Ok((status, answer)) => bail!("`{marker}` was answered with {status}: {answer}"),
            }
            if self.kind == Kind::Change {
                tokio::time::sleep(CHANGE_PAUSE).await;
            }
        }
        Ok(all)
    }
}

/// Returns the path and the body of a request.
fn request(kind: Kind, marker: &str, bot: &str) -> (String, Value) {
    let path = |tool: &str| format!("/api/bots/{bot}/tools/{tool}/call");
    match kind {
        Kind::Plain => (path(PLAIN_TOOL), json!({ "params": { "repo": marker } })),
        Kind::Charged => (path(CHARGED_TOOL), json!({ "params": { "repo": marker }, "task_id": marker })),
        Kind::Request => (path(REQUEST_TOOL), json!({ "params": { "path": format!("/{marker}") }, "task_id": marker })),
        Kind::Change => ("/api/bots".to_owned(), json!({ "name": marker })),
    }
}

fn asked(kind: Kind, marker: String, answer: &Value, seen: u64) -> Asked {
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    Asked { kind, marker, answer: Some(Answer { request_id: text("request_id"), status: text("status"), seen }) }
}

/// Returns the length of the journal; 0 before its first record.
fn journal_bytes(journal: &Path) -> u64 {
    std::fs::metadata(journal).map_or(0, |journal| journal.len())
}

impl Upstream {
    async fn start() -> Result<(Upstream, SocketAddr)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the upstream cannot listen on a port")?;
        let address = listener.local_addr().context("the upstream has no address")?;
        let seen = Arc::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&seen));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the upstream serves until it is dropped");
        });
        Ok((Upstream { seen, task }, address))
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(seen): State<Arc<Mutex<Seen>>>, uri: Uri) -> Json<Value> {
    {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = journal_bytes(&seen.journal);
        seen.arrivals.push((uri.path().trim_start_matches('/').to_owned(), bytes));
    }
    tokio::time::sleep(UPSTREAM_DELAY).await;
    Json(json!({ "received": true }))
}
