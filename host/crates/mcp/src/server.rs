//! Answers one HTTP request.
//!
//! rmcp parses the request, checks its headers against its body and writes the answer as JSON. Most calls and lists are
//! answered without rmcp. This module adds the answer as a stream of events for calls that take long: many clients give
//! up after a minute without a byte.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use rmcp::transport::StreamableHttpServerConfig;
use rmcp::transport::streamable_http_server::StreamableHttpService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::direct;
use crate::handler::{Handler, REVISIONS};
use crate::message::{Message, Method};
use crate::offer::Offer;
use crate::stream::{self, KEEP_ALIVE};

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The header with the revision of a request.
pub(crate) const REVISION_HEADER: &str = "mcp-protocol-version";
/// The time after which the answer to a call becomes a stream of events. Most refusals arrive earlier, as JSON and with
/// their HTTP status.
const STREAM_AFTER: Duration = Duration::from_secs(1);
/// The number of messages about the progress of a call that are kept until the client receives them. At most one arrives
/// in a second.
const PROGRESS_KEPT: usize = 4;

/// An authenticated request whose body was read.
pub struct Request {
    pub parts: Parts,
    pub body: Bytes,
    pub message: Message,
    /// Whether the client said in `initialize` that it can open a URL for its user.
    pub opens_urls: bool,
}

/// The form of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A JSON document.
    Json,
    /// A stream of events if the answer takes longer than a second.
    Stream,
}

/// Answers a request.
///
/// # Errors
/// Returns the error of an operation of the offer that could not run, if the response has not begun.
pub async fn respond<O: Offer>(offer: O, request: Request, delivery: Delivery) -> Result<Response<Body>, O::Error> {
    let Request { parts, body, message, opens_urls } = request;
    if let Some(refusal) = unsupported(&parts, &message).or_else(|| removed(&message)) {
        return Ok(refusal);
    }
    let (failed, mut failures) = mpsc::unbounded_channel();
    let (progress, messages) = mpsc::channel(PROGRESS_KEPT);
    let progress = Some(progress).filter(|_| delivery == Delivery::Stream && message.progress_token.is_some());
    let handler = Handler::new(offer, failed, opens_urls, progress);
    let mut answer = match direct::Request::read(&parts, &body, &message) {
        Some(request) => {
            // The message may be large, and the call may take long.
            drop((parts, body));
            direct::answer(handler, request).boxed()
        }
        None => by_rmcp(handler, parts, body, message.id.clone()).boxed(),
    };
    let answered = match delivery {
        Delivery::Json => Some(answer.as_mut().await),
        Delivery::Stream => tokio::time::timeout(STREAM_AFTER, answer.as_mut()).await.ok(),
    };
    match (failures.try_recv(), answered) {
        (Ok(failure), _) => Err(failure),
        (Err(_), Some(response)) => Ok(response),
        (Err(_), None) => Ok(stream::awaited(answer, message, messages)),
    }
}

/// Lets rmcp answer a request.
pub(crate) async fn by_rmcp<O: Offer>(
    handler: Handler<O>,
    parts: Parts,
    body: Bytes,
    id: Option<Value>,
) -> Response<Body> {
    let service =
        StreamableHttpService::new(move || Ok(handler.clone()), Arc::<NeverSessionManager>::default(), config());
    let response = service.handle(http::Request::from_parts(parts, Full::new(body))).await;
    explained(response.map(|body| body.boxed_unsync()), id).await
}

/// Returns the settings of rmcp. The gateway has checked `Host`, `Origin` and the size of the body.
fn config() -> StreamableHttpServerConfig {
    StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_sse_retry(None)
        .with_max_request_body_bytes(usize::MAX)
        .disable_allowed_hosts()
        .disable_allowed_origins()
}

/// Rejects a revision that rmcp knows and this server does not support. rmcp itself rejects other revisions, and
/// revisions in the metadata of a request.
fn unsupported(parts: &Parts, message: &Message) -> Option<Response<Body>> {
    let revision = parts.headers.get(REVISION_HEADER)?.to_str().ok()?;
    if message.has_revision || REVISIONS.iter().any(|supported| supported.as_str() == revision) {
        return None;
    }
    let supported: Vec<&str> = REVISIONS.iter().map(rmcp::model::ProtocolVersion::as_str).collect();
    let message_text = format!("this server does not support the revision in the header {REVISION_HEADER}");
    let error =
        json!({"code": -32022, "message": message_text, "data": {"supported": supported, "requested": revision}});
    Some(json_response(StatusCode::BAD_REQUEST, &json!({"jsonrpc": "2.0", "id": message.id, "error": error})))
}

/// Rejects `initialize` in a request that carries its revision: revision 2026-07-28 has no such method, and rmcp would
/// answer it.
fn removed(message: &Message) -> Option<Response<Body>> {
    let is_removed = message.has_revision && matches!(message.method, Method::Initialize(_));
    let error = json!({"code": -32601, "message": "initialize"});
    is_removed
        .then(|| json_response(StatusCode::NOT_FOUND, &json!({"jsonrpc": "2.0", "id": message.id, "error": error})))
}

/// Replaces an error that rmcp has written as plain text with a JSON-RPC error.
async fn explained(response: Response<Body>, id: Option<Value>) -> Response<Body> {
    let status = response.status();
    let is_json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let error = if status.is_client_error() {
        let text = match response.into_body().collect().await {
            Ok(collected) => collected.to_bytes(),
            Err(never) => match never {},
        };
        json!({"code": -32600, "message": String::from_utf8_lossy(&text)})
    } else {
        unanswered()
    };
    json_response(status, &json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

/// Returns the error of a request that has no answer for a reason that the client need not know.
fn unanswered() -> Value {
    json!({"code": -32603, "message": "the request could not be answered"})
}

/// Returns a response to the request with this id, with `message` as its body.
pub(crate) fn message_response(message: &impl Serialize, id: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(message) {
        Ok(text) => text_response(StatusCode::OK, Bytes::from(text)),
        Err(_) => {
            let error = json!({"jsonrpc": "2.0", "id": id, "error": unanswered()});
            json_response(StatusCode::INTERNAL_SERVER_ERROR, &error)
        }
    }
}

/// Returns a response with a JSON body.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    text_response(status, Bytes::from(body.to_string()))
}

/// Returns a response with a JSON body that is already written.
fn text_response(status: StatusCode, text: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(text).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
