//! A scripted server with OpenAI's Chat Completions. It records all requests. It gives the prepared answers in order, or
//! decides by the conversation what it answers.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures::StreamExt as _;
use futures::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Api, Recorded};

/// The maximum size of a recorded body, in bytes.
const BODY_BYTES_MAX: usize = 32 << 20;

/// A running server. Dropping the value stops it.
pub struct FakeLlm {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

/// A prepared answer.
#[derive(Clone, Debug)]
pub struct LlmReply {
    status: u16,
    headers: Vec<(String, String)>,
    chunks: Vec<Bytes>,
    after: After,
}

/// What follows the chunks of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The body ends.
    End,
    /// The body stays open without another byte.
    Silence,
    /// The connection breaks.
    Break,
}

/// Decides what the server answers to the body of a request.
type Script = Box<dyn Fn(&Value) -> LlmReply + Send + Sync>;

struct Shared {
    replies: Mutex<VecDeque<LlmReply>>,
    /// What answers a request without a prepared answer.
    script: Mutex<Option<Script>>,
    requests: Mutex<Vec<Recorded>>,
    /// The number of bodies that are being sent.
    open: watch::Sender<usize>,
}

impl LlmReply {
    /// Creates an answer with any body.
    #[must_use]
    pub fn text(status: u16, content_type: &str, body: &str) -> Self {
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        LlmReply { status, headers, chunks: vec![Bytes::from(body.to_owned())], after: After::End }
    }

    /// Creates an answer with a JSON body.
    #[must_use]
    pub fn json(status: u16, body: &Value) -> Self {
        LlmReply::text(status, "application/json", &body.to_string())
    }

    /// Creates a stream of these chunks, each in a piece of its own, without an end of the stream.
    #[must_use]
    pub fn chunks(chunks: &[Value]) -> Self {
        let event = |chunk: &Value| Bytes::from(format!("data: {chunk}\n\n"));
        LlmReply { chunks: chunks.iter().map(event).collect(), ..LlmReply::text(200, "text/event-stream", "") }
    }

    /// Creates a stream of these chunks and of the end of the stream.
    #[must_use]
    pub fn stream(chunks: &[Value]) -> Self {
        let mut reply = LlmReply::chunks(chunks);
        reply.chunks.push(Bytes::from_static(b"data: [DONE]\n\n"));
        reply
    }

    /// Creates a stream that says these pieces of text, with the usage of the round.
    #[must_use]
    pub fn says(pieces: &[&str]) -> Self {
        let mut chunks: Vec<Value> = pieces.iter().map(|piece| LlmReply::piece(piece)).collect();
        chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}));
        chunks.push(json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}));
        LlmReply::stream(&chunks)
    }

    /// Creates a stream that asks for calls of these tools with these parameters, with the usage of the round.
    #[must_use]
    pub fn calls(calls: &[(&str, Value)]) -> Self {
        let call = |(index, (name, params)): (usize, &(&str, Value))| {
            let function = json!({ "name": name, "arguments": params.to_string() });
            json!({ "index": index, "id": format!("call_{index}"), "type": "function", "function": function })
        };
        let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
        LlmReply::stream(&[
            json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls }, "finish_reason": "tool_calls" }] }),
            json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12 } }),
        ])
    }

    /// Adds pieces of text before the answer.
    #[must_use]
    pub fn after_text(mut self, pieces: &[&str]) -> Self {
        let text = LlmReply::chunks(&pieces.iter().map(|piece| LlmReply::piece(piece)).collect::<Vec<_>>());
        self.chunks.splice(0..0, text.chunks);
        self
    }

    /// Returns the chunk with a piece of text.
    #[must_use]
    pub fn piece(text: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]})
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Leaves the body open after its chunks.
    #[must_use]
    pub fn silent(self) -> Self {
        LlmReply { after: After::Silence, ..self }
    }

    /// Breaks the connection after the chunks.
    #[must_use]
    pub fn breaking(self) -> Self {
        LlmReply { after: After::Break, ..self }
    }

    fn response(self, open: Open) -> Response {
        let mut response = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let after = self.after;
        let chunks = stream::iter(self.chunks).then(|chunk| async move {
            // The chunk before this one is sent alone.
            tokio::task::yield_now().await;
            Ok(chunk)
        });
        let end = stream::once(async move {
            match after {
                After::Silence => std::future::pending().await,
                After::End | After::Break => tokio::task::yield_now().await,
            }
            Err(std::io::Error::other("the connection breaks"))
        });
        let end = end.take(usize::from(after != After::End));
        let body = Box::pin(chunks.chain(end));
        let body = stream::unfold((body, open), |(mut body, open)| async move {
            let chunk: Result<Bytes, std::io::Error> = body.next().await?;
            Some((chunk, (body, open)))
        });
        response.body(Body::from_stream(body)).expect("the headers are valid")
    }
}

impl FakeLlm {
    /// Starts a server on a free port.
    pub async fn start() -> Result<FakeLlm> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            replies: Mutex::default(),
            script: Mutex::default(),
            requests: Mutex::default(),
            open: watch::Sender::new(0),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        // Without this server, the requests of a test fail.
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap_or_default() });
        Ok(FakeLlm { address, shared, task })
    }

    /// Returns the URL below which the server has `/chat/completions`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Adds answers, which are given in order. Without a script, a request without a prepared answer is answered with
    /// status 501.
    pub fn prepare(&self, replies: impl IntoIterator<Item = LlmReply>) {
        locked(&self.shared.replies).extend(replies);
    }

    /// Answers each request without a prepared answer as `script` decides by its body.
    pub fn follow(&self, script: impl Fn(&Value) -> LlmReply + Send + Sync + 'static) {
        *locked(&self.shared.script) = Some(Box::new(script));
    }

    /// Lets a bot use the model of this server, through a resource of this name.
    pub async fn give_to(&self, api: &Api, bot: &str, name: &str) -> Result<()> {
        give(api, bot, name, &self.url()).await
    }

    /// Returns all requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        locked(&self.shared.requests).clone()
    }

    /// Returns a function that returns whether a request has arrived.
    pub fn was_asked(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || !locked(&shared.requests).is_empty()
    }

    /// Waits until no answer is being sent.
    pub async fn is_idle(&self) {
        // An error would mean that the sender was dropped, but `shared` owns it.
        let _ = self.shared.open.subscribe().wait_for(|open| *open == 0).await;
    }

    /// Waits until an answer is being sent.
    pub async fn is_answering(&self) {
        // An error would mean that the sender was dropped, but `shared` owns it.
        let _ = self.shared.open.subscribe().wait_for(|open| *open > 0).await;
    }
}

/// Lets a bot use the model `small` of the server at this URL.
pub(crate) async fn give(api: &Api, bot: &str, name: &str, url: &str) -> Result<()> {
    let model = json!({ "id": "small", "context_tokens": 100_000, "output_tokens": 1000 });
    let network = json!({ "allow_addresses": ["127.0.0.0/8"], "allow_http": true });
    let config = json!({ "api_base": url, "models": [model] });
    let body = json!({ "resource_type": "llm", "name": name, "config": config, "network": network });
    let (status, resource) = api.post("/api/resources", &body).await?;
    ensure!(status == 201, "{status} {resource}");
    let resource = resource["id"].as_str().context("the resource has no id")?;
    let key = json!({ "auth_method": "api_key", "fields": { "api_key": "sk-of-the-scripted-model" } });
    let (status, body) = api.put(&format!("/api/resources/{resource}/credential"), &key).await?;
    ensure!(status == 200, "{status} {body}");
    let role = api.role(&format!("models of {bot}"), &["llm.complete"]).await?;
    api.bind(bot, resource, &role, &json!({})).await.map(drop)
}

impl Drop for FakeLlm {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer that is being sent.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.unwrap_or_default();
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    locked(&shared.requests).push(Recorded {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: body.to_vec(),
    });
    let prepared = locked(&shared.replies).pop_front();
    let reply = prepared.unwrap_or_else(|| match &*locked(&shared.script) {
        Some(script) => script(&serde_json::from_slice(&body).unwrap_or_default()),
        None => LlmReply::text(501, "text/plain", "no answer is prepared"),
    });
    shared.open.send_modify(|open| *open += 1);
    reply.response(Open(shared))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
