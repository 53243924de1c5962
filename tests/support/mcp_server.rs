//! A scripted MCP server over Streamable HTTP. It records all messages, serves both generations of the protocol, and can
//! give any answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Recorded;

/// The time after which a connection breaks that has sent its text.
const BREAK_AFTER: std::time::Duration = std::time::Duration::from_millis(200);
/// The maximum size of a recorded body, in bytes.
const BODY_BYTES_MAX: usize = 32 << 20;

/// The generation of the protocol that a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Revision 2026-07-28, without sessions.
    Stateless,
    /// A revision that begins with `initialize` and has sessions.
    Sessions(&'static str),
}

/// A running server. Dropping the value stops it.
pub struct FakeMcp {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// A prepared answer. `{id}` in its text is replaced with the id of the request.
#[derive(Clone, Debug)]
pub struct McpReply {
    status: u16,
    headers: Vec<(String, String)>,
    chunks: Vec<Bytes>,
    after: After,
}

/// What follows the chunks of an answer.
#[derive(Clone, Debug)]
enum After {
    /// The body ends.
    End,
    /// The body never ends.
    Silence,
    /// This chunk is repeated until the client closes the connection.
    Flood(Bytes),
    /// The connection breaks.
    Break,
}

struct Shared {
    world: Mutex<World>,
    is_held: watch::Sender<bool>,
    /// The number of changes of the list.
    changes: watch::Sender<u64>,
}

struct World {
    generation: Generation,
    token: Option<String>,
    /// The header `WWW-Authenticate` of answers to requests without the token.
    challenge: Option<String>,
    /// Documents at other paths, which need no token.
    documents: BTreeMap<String, McpReply>,
    tools: Vec<Value>,
    /// Results of tools, by the name of the tool.
    results: BTreeMap<String, Value>,
    /// Prepared answers, by the method.
    replies: BTreeMap<String, McpReply>,
    streams: bool,
    /// The number of calls that the server will reject as unauthenticated.
    rejections: usize,
    sessions: u32,
    /// The number of streams of notifications that are open.
    listeners: u32,
    requests: Vec<Recorded>,
    /// The id of the last call, which a resumed stream answers.
    last_call: Value,
}

impl McpReply {
    /// Creates an answer with a JSON body.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        McpReply::text(status, "application/json", &body.to_string().replace("\"{id}\"", "{id}"))
    }

    /// Creates an answer with any body.
    #[must_use]
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        McpReply { status, headers, chunks: vec![Bytes::from(body.to_owned())], after: After::End }
    }

    /// Creates a stream of events whose bytes arrive in these pieces.
    #[must_use]
    pub fn events(chunks: &[&str]) -> Self {
        let chunks = chunks.iter().map(|chunk| Bytes::from((*chunk).to_owned())).collect();
        McpReply { chunks, ..McpReply::text(200, "text/event-stream", "") }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Leaves the body open after its text.
    #[must_use]
    pub fn silent(self) -> Self {
        McpReply { after: After::Silence, ..self }
    }

    /// Repeats `chunk` after the text without an end.
    #[must_use]
    pub fn flooding(self, chunk: &str) -> Self {
        McpReply { after: After::Flood(Bytes::from(chunk.to_owned())), ..self }
    }

    /// Breaks the connection after the text.
    #[must_use]
    pub fn breaking(self) -> Self {
        McpReply { after: After::Break, ..self }
    }

    pub(crate) fn response(self, id: &Value) -> Response {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let with_id = |chunk: Bytes| match std::str::from_utf8(&chunk) {
            Ok(text) if text.contains("{id}") => Bytes::from(text.replace("{id}", &id.to_string())),
            _ => chunk,
        };
        let chunks: Vec<Result<Bytes, std::io::Error>> =
            self.chunks.into_iter().map(|chunk| Ok(with_id(chunk))).collect();
        let rest: BoxStream<'static, Result<Bytes, std::io::Error>> = match self.after {
            After::End => stream::empty().boxed(),
            After::Silence => stream::pending().boxed(),
            After::Flood(chunk) => stream::repeat_with(move || Ok(chunk.clone())).boxed(),
            After::Break => stream::once(async {
                // The text must have left before the connection breaks, because an error discards what is not sent yet.
                tokio::time::sleep(BREAK_AFTER).await;
                Err(std::io::ErrorKind::BrokenPipe.into())
            })
            .boxed(),
        };
        let body = Body::from_stream(stream::iter(chunks).chain(rest));
        response.body(body).expect("answers of the server are made of valid headers")
    }
}

impl FakeMcp {
    /// Starts a server with these tools.
    pub async fn start(generation: Generation, tools: &[Value]) -> Result<FakeMcp> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("the MCP server cannot listen on a port")?;
        let address = listener.local_addr().context("the MCP server has no address")?;
        let world = World {
            generation,
            token: None,
            challenge: None,
            documents: BTreeMap::new(),
            tools: tools.to_vec(),
            results: BTreeMap::new(),
            replies: BTreeMap::new(),
            streams: false,
            rejections: 0,
            sessions: 0,
            listeners: 0,
            requests: Vec::new(),
            last_call: Value::Null,
        };
        let (is_held, changes) = (watch::Sender::new(false), watch::Sender::new(0));
        let shared = Arc::new(Shared { world: Mutex::new(world), is_held, changes });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("the MCP server serves until it is dropped");
        });
        Ok(FakeMcp { address, shared, task })
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Requires this token.
    pub fn require_token(&self, token: &str) {
        self.shared.world().token = Some(token.to_owned());
    }

    /// Rejects the credential of the next `count` calls.
    pub fn reject_calls(&self, count: usize) {
        self.shared.world().rejections = count;
    }

    /// Sets the header `WWW-Authenticate` of answers to requests without the token.
    pub fn set_challenge(&self, challenge: &str) {
        self.shared.world().challenge = Some(challenge.to_owned());
    }

    /// Sets the document at a path other than that of the server. It needs no token.
    pub fn set_document(&self, path: &str, reply: McpReply) {
        self.shared.world().documents.insert(path.to_owned(), reply);
    }

    /// Replaces the tools without a notification.
    pub fn set_tools(&self, tools: &[Value]) {
        self.shared.world().tools = tools.to_vec();
    }

    /// Notifies all clients that the list of tools has changed.
    pub fn notify(&self) {
        self.shared.changes.send_modify(|changes| *changes += 1);
    }

    /// Sets the result of a tool.
    pub fn set_result(&self, tool: &str, result: &Value) {
        self.shared.world().results.insert(tool.to_owned(), result.clone());
    }

    /// Sets the answer to all requests with this method. `GET` stands for the stream of notifications, `RESUME` for a GET
    /// that continues the stream of the last call, and `DELETE` for the end of a session.
    pub fn reply(&self, method: &str, reply: McpReply) {
        self.shared.world().replies.insert(method.to_owned(), reply);
    }

    /// Removes the answer to requests with this method.
    pub fn forget_reply(&self, method: &str) {
        self.shared.world().replies.remove(method);
    }

    /// Answers calls with streams of events.
    pub fn stream_calls(&self) {
        self.shared.world().streams = true;
    }

    /// Ends all sessions.
    pub fn end_sessions(&self) {
        self.shared.world().sessions += 1;
    }

    /// Holds back every answer to a call until [`FakeMcp::release`].
    pub fn hold(&self) {
        self.shared.is_held.send_replace(true);
    }

    /// Releases all answers.
    pub fn release(&self) {
        self.shared.is_held.send_replace(false);
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.world().requests.clone()
    }

    /// Returns the parameters of all requests with this method.
    #[must_use]
    pub fn params_of(&self, method: &str) -> Vec<Value> {
        let of_method = |request: &Recorded| request.json()["method"] == method;
        let requests = self.requests();
        requests.iter().filter(|request| of_method(request)).map(|request| request.json()["params"].clone()).collect()
    }

    /// Returns the sessions that clients have ended.
    #[must_use]
    pub fn ended_sessions(&self) -> Vec<String> {
        let requests = self.requests();
        let ends = requests.iter().filter(|request| request.method == "DELETE");
        ends.map(|request| request.header("mcp-session-id").unwrap_or_default().to_owned()).collect()
    }

    /// Returns the number of streams of notifications that are open.
    #[must_use]
    pub fn listeners(&self) -> u32 {
        self.shared.world().listeners
    }
}

impl Drop for FakeMcp {
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
    let message = recorded.json();
    let method = match (message["method"].as_str(), recorded.method.as_str()) {
        (Some(method), _) => method,
        (None, "GET") if recorded.header("last-event-id").is_some() => "RESUME",
        (None, method) => method,
    };
    let mut id = message["id"].clone();
    let method = method.to_owned();
    let reply = {
        let mut world = shared.world();
        world.requests.push(recorded.clone());
        if recorded.path.starts_with("/.well-known/") {
            let absent = || McpReply::text(404, "text/plain", "there is no such document");
            return world.documents.get(&recorded.path).cloned().unwrap_or_else(absent).response(&id);
        }
        match method.as_str() {
            "tools/call" => world.last_call = id.clone(),
            "RESUME" => id = world.last_call.clone(),
            _ => {}
        }
        let is_known = world
            .token
            .as_ref()
            .is_none_or(|token| recorded.header("authorization") == Some(&format!("Bearer {token}")));
        let is_rejected = method == "tools/call" && world.rejections > 0;
        world.rejections -= usize::from(is_rejected);
        if !is_known || is_rejected {
            let refusal = McpReply::text(401, "text/plain", "who are you?");
            return match &world.challenge {
                Some(challenge) => refusal.header("www-authenticate", challenge),
                None => refusal,
            }
            .response(&id);
        }
        world.replies.get(&method).cloned()
    };
    if method == "tools/call" {
        // An error would mean that the sender was dropped, but `shared` owns it.
        let _ = shared.is_held.subscribe().wait_for(|is_held| !is_held).await;
    }
    match (reply, method.as_str()) {
        (Some(reply), _) => reply.response(&id),
        (None, "subscriptions/listen" | "GET") => listen(shared),
        (None, _) => shared.world().reply_to(&method, &message["params"], &recorded).response(&id),
    }
}

/// Answers with a stream of notifications.
fn listen(shared: Arc<Shared>) -> Response {
    let changes = shared.changes.subscribe();
    shared.world().listeners += 1;
    let open = Open(shared);
    let events = stream::unfold((changes, open), |(mut changes, open)| async move {
        changes.changed().await.ok()?;
        let event = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
        Some((Ok::<_, Infallible>(Bytes::from_static(event.as_bytes())), (changes, open)))
    });
    let begin = stream::once(async { Ok(Bytes::from_static(b":\n\n")) });
    let response = Response::builder().header("content-type", "text/event-stream");
    response.body(Body::from_stream(begin.chain(events))).expect("the header is valid")
}

/// An open stream of notifications.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.world().listeners -= 1;
    }
}

impl World {
    fn reply_to(&mut self, method: &str, params: &Value, request: &Recorded) -> McpReply {
        let result = |result: &Value| McpReply::json(200, &json!({"jsonrpc": "2.0", "id": "{id}", "result": result}));
        let error = |status: u16, code: i64, message: &str| {
            let error = json!({"code": code, "message": message});
            McpReply::json(status, &json!({"jsonrpc": "2.0", "id": "{id}", "error": error}))
        };
        let capabilities = json!({"tools": {"listChanged": true}});
        let info = json!({"name": "scripted", "version": "1"});
        match (self.generation, method) {
            (Generation::Stateless, "server/discover") => result(&json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                "ttlMs": 0, "cacheScope": "private", "_meta": {"io.modelcontextprotocol/serverInfo": info},
            })),
            (Generation::Stateless, _) if request.header("mcp-method") != Some(method) => {
                error(400, -32020, "the header Mcp-Method differs")
            }
            (Generation::Sessions(revision), "initialize") => {
                self.sessions += 1;
                let answer = json!({"protocolVersion": revision, "capabilities": capabilities, "serverInfo": info});
                result(&answer).header("mcp-session-id", &format!("s{}", self.sessions))
            }
            // The answers of clients have no method.
            (Generation::Sessions(_), _) if method.starts_with("notifications/") || method == "POST" => {
                McpReply { chunks: Vec::new(), ..McpReply::text(202, "text/plain", "") }
            }
            (Generation::Sessions(_), "tools/list" | "tools/call" | "DELETE")
                if request.header("mcp-session-id") != Some(&format!("s{}", self.sessions)) =>
            {
                error(404, -32001, "there is no such session")
            }
            (Generation::Sessions(_), "DELETE") => {
                self.sessions += 1;
                McpReply { chunks: Vec::new(), ..McpReply::text(200, "text/plain", "") }
            }
            (_, "tools/list") => result(&json!({
                "resultType": "complete", "tools": self.tools, "ttlMs": 0, "cacheScope": "private",
            })),
            (_, "tools/call") => self.call(params),
            _ => error(404, -32601, "there is no such method"),
        }
    }

    /// Returns the prepared result of a tool, or an echo of the call.
    fn call(&self, params: &Value) -> McpReply {
        let name = params["name"].as_str().unwrap_or_default();
        let echo = json!({"name": name, "arguments": params["arguments"]}).to_string();
        let echo = json!({"resultType": "complete", "content": [{"type": "text", "text": echo}], "isError": false});
        let result = self.results.get(name).unwrap_or(&echo);
        let answer = json!({"jsonrpc": "2.0", "id": "{id}", "result": result});
        if !self.streams {
            return McpReply::json(200, &answer);
        }
        let answer = answer.to_string().replace("\"{id}\"", "{id}");
        let progress = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{}}\n\n";
        McpReply::events(&[progress, &format!("event: message\ndata: {answer}\n\n")])
    }
}
