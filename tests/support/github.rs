//! An upstream that implements the part of GitHub's REST API that the GitHub plugin needs. The upstream records all
//! requests, and can delay answers, hold them back, or return any answer.

mod routes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The default token. It looks like a GitHub token and contains characters that every encoding changes.
pub const TOKEN: &str = "ghp_canary+7/Zk3~Qd\"9&x=Vt8 LpW2";

/// The maximum size of a recorded body, in bytes.
const BODY_BYTES_MAX: usize = 32 << 20;

/// A running upstream. Dropping the value stops it.
pub struct FakeGithub {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub method: String,
    /// The path as it was received, percent-encoded.
    pub path: String,
    pub query: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A prepared answer.
#[derive(Clone, Debug)]
pub struct Canned {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

struct Shared {
    world: Mutex<World>,
    /// Whether answers are held back.
    is_held: watch::Sender<bool>,
}

struct World {
    token: String,
    requests: Vec<Recorded>,
    /// The issues of each repository, by `owner/name`.
    repositories: BTreeMap<String, Vec<Issue>>,
    canned: BTreeMap<String, Canned>,
    /// What becomes of the next requests for a path.
    next: BTreeMap<String, VecDeque<Next>>,
    delay: Duration,
    /// The method of the requests that get no answer.
    hangs_up_on: Option<&'static str>,
}

/// What becomes of one request.
#[derive(Clone, Debug)]
enum Next {
    Answered(Canned),
    /// The request is received, and its connection is closed.
    HungUp,
}

#[derive(Default)]
struct Issue {
    fields: serde_json::Map<String, Value>,
    comments: Vec<Value>,
}

impl Recorded {
    /// Returns the first header with this name, which must be in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body as JSON, or null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Canned {
    /// Creates a JSON answer.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        let headers = vec![("content-type".to_owned(), "application/json; charset=utf-8".to_owned())];
        Canned { status, headers, body: body.to_string().into_bytes() }
    }

    /// Creates an answer with any body.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Canned { status, headers: Vec::new(), body: body.into() }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl FakeGithub {
    /// Starts an upstream that accepts [`TOKEN`] and has the repositories `acme/site`, `acme/api` and `other/secret`.
    pub async fn start() -> Result<FakeGithub> {
        FakeGithub::start_with_token(TOKEN).await
    }

    /// Starts the same upstream with another token.
    pub async fn start_with_token(token: &str) -> Result<FakeGithub> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the upstream cannot listen on a port")?;
        let address = listener.local_addr().context("the upstream has no address")?;
        let world = World {
            token: token.to_owned(),
            requests: Vec::new(),
            repositories: routes::first_repositories(),
            canned: BTreeMap::new(),
            next: BTreeMap::new(),
            delay: Duration::ZERO,
            hangs_up_on: None,
        };
        let shared = Arc::new(Shared { world: Mutex::new(world), is_held: watch::Sender::new(false) });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the upstream serves until it is dropped");
        });
        Ok(FakeGithub { address, shared, task })
    }

    /// Returns the URL `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the token that the upstream accepts.
    #[must_use]
    pub fn token(&self) -> String {
        self.shared.world().token.clone()
    }

    /// Returns all requests so far, including those whose answers are held back.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.world().requests.clone()
    }

    /// Returns and removes all recorded requests.
    #[must_use]
    pub fn take_requests(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.shared.world().requests)
    }

    /// Sets the answer for `path`. The upstream gives this answer even to requests that have no valid token.
    pub fn answer(&self, path: &str, canned: Canned) {
        self.shared.world().canned.insert(path.to_owned(), canned);
    }

    /// Sets the answer for one request for `path`, after those for which this function was called before.
    pub fn answer_next(&self, path: &str, canned: Canned) {
        self.shared.world().next.entry(path.to_owned()).or_default().push_back(Next::Answered(canned));
    }

    /// Closes the connection of one request for `path` after the request was received, as [`FakeGithub::answer_next`].
    pub fn hang_up_next(&self, path: &str) {
        self.shared.world().next.entry(path.to_owned()).or_default().push_back(Next::HungUp);
    }

    /// Sets the delay of each answer.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.world().delay = delay;
    }

    /// Closes the connection of each request with this method, after the request was received.
    pub fn hang_up_on(&self, method: &'static str) {
        self.shared.world().hangs_up_on = Some(method);
    }

    /// Holds back every answer until [`FakeGithub::release`].
    pub fn hold(&self) {
        self.shared.is_held.send_replace(true);
    }

    /// Releases all answers.
    pub fn release(&self) {
        self.shared.is_held.send_replace(false);
    }

    /// Adds `count` comments of `body_bytes` bytes each to an issue.
    pub fn add_comments(&self, repository: &str, issue: usize, count: usize, body_bytes: usize) {
        let mut world = self.shared.world();
        let issues = world.repositories.entry(repository.to_owned()).or_default();
        if let Some(issue) = issues.get_mut(issue - 1) {
            for _ in 0..count {
                let number = issue.comments.len() + 1;
                issue.comments.push(routes::comment(number, &"x".repeat(body_bytes)));
            }
        }
    }
}

impl Drop for FakeGithub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.unwrap_or_default();
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let recorded = Recorded {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: body.to_vec(),
    };
    let (delay, hangs_up, next) = {
        let mut world = shared.world();
        world.requests.push(recorded.clone());
        let next = world.next.get_mut(&recorded.path).and_then(VecDeque::pop_front);
        (world.delay, world.hangs_up_on == Some(recorded.method.as_str()), next)
    };
    if hangs_up || matches!(next, Some(Next::HungUp)) {
        // A panic ends the task of the connection, which closes the connection.
        std::panic::resume_unwind(Box::new("the upstream hangs up"));
    }
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    // An error would mean that the sender was dropped, but `shared` owns it.
    let _ = shared.is_held.subscribe().wait_for(|is_held| !is_held).await;
    let canned = match next {
        Some(Next::Answered(canned)) => canned,
        _ => routes::answer(&mut shared.world(), &recorded),
    };
    let mut response = Response::builder().status(canned.status);
    for (name, value) in &canned.headers {
        response = response.header(name, value);
    }
    response.body(Body::from(canned.body)).expect("answers of the upstream are made of valid headers")
}
