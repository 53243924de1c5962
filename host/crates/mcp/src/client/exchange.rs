//! One request and its answer, as JSON or as a stream of events.

use monstrum_types::{Failure, FailureCode};
use rmcp::model::ErrorCode;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::param_headers::encoded;
use super::stream::ResumableStream;
use super::wire::{Content, Head, Message, Wire};
use super::{ClientError, QUOTED_BYTES_MAX, shortened};
use crate::values;

/// The maximum number of requests of a server that are answered while it answers one request. Each answer is a request
/// to the server, so a server could otherwise cause any number of requests.
const SERVER_REQUESTS_MAX: usize = 16;
/// The maximum number of revisions that are read from an error. The protocol has fewer.
const REVISIONS_MAX: usize = 16;
/// The maximum length of the name of a revision, in bytes.
const REVISION_BYTES_MAX: usize = 32;
/// The maximum size of the body of an HTTP error that is parsed, in bytes. Such a body is a short JSON-RPC error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// The code of JSON-RPC for an unknown method.
const METHOD_NOT_FOUND: i64 = -32601;

/// A request to a server.
pub(super) struct Request {
    id: u64,
    method: &'static str,
    /// The parameters, which are written once, because the arguments of a call may be large.
    params: Box<RawValue>,
    headers: Vec<(String, String)>,
}

/// The answer to a request.
pub(super) struct Answer {
    pub(super) result: Map<String, Value>,
    /// The session that the server has created with this answer.
    pub(super) session: Option<String>,
    /// Whether the server has said on the stream that its list of tools has changed.
    pub(super) is_list_changed: bool,
    /// The number of bytes of the messages that were received.
    pub(super) bytes: usize,
}

/// The conditions under which an answer is received.
pub(super) struct Terms<'a> {
    /// The headers of further messages about the request: the answers to requests of the server, and the resumption of
    /// the stream. `None` in revision 2026-07-28, which has no such messages.
    pub(super) follow_up: Option<&'a [(String, String)]>,
    /// The maximum number of bytes of the messages, which are counted before they are parsed.
    pub(super) bytes_max: usize,
}

#[derive(Serialize)]
struct JsonRpc<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: &'a RawValue,
}

impl Request {
    /// Creates a request. `params` is an object.
    pub(super) fn new(
        id: u64,
        method: &'static str,
        params: &impl Serialize,
        headers: Vec<(String, String)>,
    ) -> Request {
        let params = to_raw_value(params).expect("the parameters are JSON, which serializes to JSON");
        Request { id, method, params, headers }
    }

    /// Adds the headers that repeat parts of the body, which revision 2026-07-28 requires. `name` is the name in the
    /// parameters, if they have one.
    pub(super) fn with_standard_headers(mut self, name: Option<&str>) -> Request {
        self.headers.push(("mcp-method".to_owned(), self.method.to_owned()));
        self.headers.extend(name.map(|name| ("mcp-name".to_owned(), encoded(name))));
        self
    }

    pub(super) fn with_headers(mut self, headers: Vec<(String, String)>) -> Request {
        self.headers.extend(headers);
        self
    }

    pub(super) fn message(&self) -> Message {
        let body = JsonRpc { jsonrpc: "2.0", id: self.id, method: self.method, params: &self.params };
        post(self.headers.clone(), &body)
    }
}

/// Creates a POST of a JSON-RPC message.
fn post(mut headers: Vec<(String, String)>, body: &impl Serialize) -> Message {
    headers.push(("content-type".to_owned(), "application/json".to_owned()));
    headers.push(("accept".to_owned(), "application/json, text/event-stream".to_owned()));
    let body = serde_json::to_vec(body).expect("a message is JSON, which serializes to JSON");
    Message { headers, content: Content::Rpc(body) }
}

/// Sends a request and waits for its answer.
///
/// # Errors
/// Fails if the server answers with an error, or gives no usable answer.
pub(super) async fn exchange(wire: &dyn Wire, request: &Request, terms: &Terms<'_>) -> Result<Answer, ClientError> {
    let Head { status, content_type, session, missing_scopes, body } = wire.send(request.message()).await?;
    match status {
        200..=299 => {}
        401 => return Err(ClientError::Unauthenticated),
        403 if missing_scopes.is_some() => {
            return Err(ClientError::InsufficientScope(missing_scopes.unwrap_or_default()));
        }
        // In a session, this status means that the session has ended.
        404 if has_session(&request.headers) => return Err(ClientError::Status(status)),
        _ => return Err(error_of(status, &body.read().await?)),
    }
    if is_stream(content_type.as_deref()) {
        let stream = ResumableStream::new(wire, body.events(), terms.follow_up);
        return from_stream(stream, request.id, session, (wire, terms)).await;
    }
    let body = body.read().await?;
    let bytes = body.len();
    check_size(bytes, terms.bytes_max)?;
    check_values(&body)?;
    let parsed: Value = serde_json::from_slice(&body)
        .map_err(|error| ClientError::Invalid(format!("the body is not JSON: {error}")))?;
    let result = answer_to(request.id, parsed)?
        .ok_or_else(|| ClientError::Invalid("the body is not the answer to the request".to_owned()))?;
    Ok(Answer { result: result?, session, is_list_changed: false, bytes })
}

fn check_size(bytes: usize, bytes_max: usize) -> Result<(), ClientError> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(ClientError::TooMuch(format!("the answer of the MCP server is larger than {} KiB", bytes_max >> 10)))
}

/// Rejects a message whose parsed form would take much more memory than its text.
fn check_values(text: &[u8]) -> Result<(), ClientError> {
    if values::has_too_many(text) {
        let message = format!("a message of the MCP server has more than {} values", values::VALUES_MAX);
        return Err(ClientError::TooMuch(message));
    }
    Ok(())
}

fn has_session(headers: &[(String, String)]) -> bool {
    headers.iter().any(|(name, _)| name == "mcp-session-id")
}

/// Returns whether a content type is that of server-sent events.
pub(super) fn is_stream(content_type: Option<&str>) -> bool {
    let media_type = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("text/event-stream")
}

/// Returns the error that a response with this status reports.
fn error_of(status: u16, body: &[u8]) -> ClientError {
    let short = Some(body).filter(|body| body.len() <= ERROR_BYTES_MAX);
    let parsed = short.and_then(|body| serde_json::from_slice::<Value>(body).ok());
    let error = parsed.as_ref().and_then(|body| body.get("error")).and_then(rpc_error);
    error.unwrap_or(ClientError::Status(status))
}

/// Reads a JSON-RPC error. Returns `None` if the value is not one.
fn rpc_error(error: &Value) -> Option<ClientError> {
    let code = error.get("code")?.as_i64()?;
    if code == i64::from(ErrorCode::UNSUPPORTED_PROTOCOL_VERSION.0) {
        return Some(ClientError::UnsupportedRevision { supported: supported(error) });
    }
    let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
    Some(ClientError::Rpc { code, message: shortened(message, QUOTED_BYTES_MAX).to_owned() })
}

/// Returns the revisions that a server names in the error that it does not support a revision.
fn supported(error: &Value) -> Vec<String> {
    let named = error.pointer("/data/supported").and_then(Value::as_array).into_iter().flatten();
    let named = named.filter_map(Value::as_str).filter(|revision| revision.len() <= REVISION_BYTES_MAX);
    named.take(REVISIONS_MAX).map(str::to_owned).collect()
}

/// What a server answers to a request: its result, or the error that it reports.
type Answered = Result<Map<String, Value>, ClientError>;

/// Reads the answer to the request `id`. Returns `None` for another message.
fn answer_to(id: u64, message: Value) -> Result<Option<Answered>, ClientError> {
    let Value::Object(mut message) = message else {
        return Err(ClientError::Invalid("a message is not an object; batches are not supported".to_owned()));
    };
    if message.contains_key("method") || message.get("id").and_then(Value::as_u64) != Some(id) {
        return Ok(None);
    }
    match (message.shift_remove("result"), message.get("error")) {
        (Some(Value::Object(result)), None) => Ok(Some(Ok(result))),
        (None, Some(error)) => {
            let malformed = || ClientError::Invalid("an error has no code".to_owned());
            Ok(Some(Err(rpc_error(error).ok_or_else(malformed)?)))
        }
        _ => Err(ClientError::Invalid("an answer must have either an object `result` or `error`".to_owned())),
    }
}

/// Reads events until the answer arrives. The rest of the stream is not read.
async fn from_stream(
    mut stream: ResumableStream<'_>,
    id: u64,
    session: Option<String>,
    (wire, terms): (&dyn Wire, &Terms<'_>),
) -> Result<Answer, ClientError> {
    let mut replies = Replies::new(wire, terms.follow_up.map(<[_]>::to_vec));
    let (mut is_list_changed, mut bytes) = (false, 0);
    loop {
        let Some(data) = stream.next().await? else {
            let message = "the MCP server closed the stream before its answer";
            return Err(Failure::sent(FailureCode::Protocol, message).into());
        };
        bytes += data.len();
        check_size(bytes, terms.bytes_max)?;
        let Some(message) = parsed_event(&data)? else { continue };
        is_list_changed |= is_list_change(&message);
        if let Some(request) = ServerRequest::of(&message) {
            replies.reply(&request).await?;
            continue;
        }
        if let Some(result) = answer_to(id, message)? {
            return Ok(Answer { result: result?, session, is_list_changed, bytes });
        }
    }
}

/// Parses the data of an event. Returns `None` for an event without data, which servers send to keep a stream open.
pub(super) fn parsed_event(data: &str) -> Result<Option<Value>, ClientError> {
    if data.trim().is_empty() {
        return Ok(None);
    }
    check_values(data.as_bytes())?;
    let parsed = serde_json::from_str(data);
    parsed.map(Some).map_err(|error| ClientError::Invalid(format!("an event is not JSON: {error}")))
}

/// Returns whether a message says that the list of tools has changed.
pub(super) fn is_list_change(message: &Value) -> bool {
    message.get("method").and_then(Value::as_str) == Some("notifications/tools/list_changed")
}

/// A request of the server to this client.
pub(super) struct ServerRequest {
    id: Value,
    is_ping: bool,
}

impl ServerRequest {
    /// Returns the request, if the message is one.
    pub(super) fn of(message: &Value) -> Option<ServerRequest> {
        let method = message.get("method")?.as_str()?;
        let id = message.get("id").filter(|id| id.is_string() || id.is_number())?;
        Some(ServerRequest { id: id.clone(), is_ping: method == "ping" })
    }
}

/// The answers to requests of a server.
pub(super) struct Replies<'a> {
    pub(super) wire: &'a dyn Wire,
    /// The headers of an answer, or `None` if requests are ignored: servers of revision 2026-07-28 must not send any.
    headers: Option<Vec<(String, String)>>,
    sent: usize,
}

impl<'a> Replies<'a> {
    pub(super) fn new(wire: &'a dyn Wire, headers: Option<Vec<(String, String)>>) -> Self {
        Replies { wire, headers, sent: 0 }
    }

    /// Answers `ping`, and refuses every other request.
    pub(super) async fn reply(&mut self, request: &ServerRequest) -> Result<(), ClientError> {
        let Some(headers) = &self.headers else { return Ok(()) };
        self.sent += 1;
        if self.sent > SERVER_REQUESTS_MAX {
            let message = format!("the MCP server sent more than {SERVER_REQUESTS_MAX} requests");
            return Err(ClientError::TooMuch(message));
        }
        let answer = if request.is_ping {
            json!({"jsonrpc": "2.0", "id": request.id, "result": {}})
        } else {
            let error = json!({"code": METHOD_NOT_FOUND, "message": "the client supports no requests of servers"});
            json!({"jsonrpc": "2.0", "id": request.id, "error": error})
        };
        // A server that does not read the answer still has to answer the request.
        drop(self.wire.send(post(headers.clone(), &answer)).await?);
        Ok(())
    }
}

/// Sends a notification. The answer of the server is not read.
pub(super) async fn notify(
    wire: &dyn Wire,
    headers: Vec<(String, String)>,
    method: &'static str,
    params: &Value,
) -> Result<(), ClientError> {
    let notification = json!({"jsonrpc": "2.0", "method": method, "params": params});
    let head = wire.send(post(headers, &notification)).await?;
    match head.status {
        200..=299 => Ok(()),
        401 => Err(ClientError::Unauthenticated),
        status => Err(ClientError::Status(status)),
    }
}
