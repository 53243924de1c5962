//! The connection to one server, with one credential.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::agreement::{Agreement, UnusedSession, UsedAgreement, agree};
use super::exchange::{Answer, Request, Terms, exchange, notify};
use super::param_headers::param_headers;
use super::wire::Wire;
use super::{ClientError, ServerIdentity};

/// The maximum number of times that a server may ask to continue a call.
const ROUNDS_MAX: usize = 10;
/// The maximum size of the state that a server returns to continue a call, in bytes.
const STATE_BYTES_MAX: usize = 256 << 10;
/// The code of JSON-RPC for an error of the server.
const SERVER_ERROR: i64 = -32000;
/// The maximum size of the messages of one answer to a call, in bytes. The host accepts a result of 1 MiB; escapes can
/// make the same text up to six times longer.
const CALL_BYTES_MAX: usize = 8 << 20;
/// The types of content blocks that the host passes on.
const BLOCK_TYPES: [&str; 5] = ["text", "image", "audio", "resource", "resource_link"];

/// What was agreed with one server for one credential. The agreement is made again when it is too old, and when the
/// server has ended the session.
#[derive(Default)]
pub struct Connection {
    agreement: Mutex<Option<Agreement>>,
    /// Held while an agreement is made, so that calls that arrive at the same time share one.
    agreeing: tokio::sync::Mutex<()>,
    ids: AtomicU64,
}

/// A call of a tool of the server.
pub struct RemoteCall<'a> {
    /// The name of the tool at the server.
    pub name: &'a str,
    pub arguments: &'a Map<String, Value>,
    /// The schema that was approved, whose annotations name the parameters that are copied into headers.
    pub input_schema: &'a Map<String, Value>,
    /// Whether the call may be sent again after its connection broke.
    pub is_repeatable: bool,
    pub in_flight: &'a InFlight,
}

/// The result of a call that the server has run.
#[derive(Clone, Debug, PartialEq)]
pub struct CalledTool {
    /// The content blocks of known types.
    pub content: Vec<Value>,
    pub structured: Option<Value>,
    /// Whether the tool reports a failure.
    pub is_error: bool,
    /// The number of content blocks of unknown types, which were dropped.
    pub dropped_blocks: usize,
    /// Whether the server has said that its list of tools has changed.
    pub is_list_changed: bool,
}

/// The request of a call that waits for its answer. See [`Connection::cancel`].
#[derive(Default)]
pub struct InFlight(Mutex<Option<SentRequest>>);

#[derive(Clone)]
struct SentRequest {
    id: u64,
    headers: Vec<(String, String)>,
}

impl InFlight {
    /// Returns whether the server must be told if the call is cancelled: a server of an earlier revision continues a
    /// call whose stream is closed.
    pub fn must_be_cancelled(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl Connection {
    /// Returns the identity of the server, if the server has stated it.
    pub fn identity(&self) -> Option<ServerIdentity> {
        self.agreement.lock().as_ref().map(|agreement| agreement.identity.clone())
    }

    pub(super) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the agreement with the server. The first use makes the agreement.
    pub(super) async fn agreed(&self, wire: &dyn Wire) -> Result<UsedAgreement, ClientError> {
        if let Some(agreement) = self.usable() {
            return Ok(agreement);
        }
        let _turn = self.agreeing.lock().await;
        if let Some(agreement) = self.usable() {
            return Ok(agreement);
        }
        let agreement = agree(wire, &|| self.next_id()).await?;
        let used = agreement.used();
        *self.agreement.lock() = Some(agreement);
        Ok(used)
    }

    fn usable(&self) -> Option<UsedAgreement> {
        // The use is counted while the lock is held, so that the session is not taken in between.
        let held = self.agreement.lock();
        held.as_ref().filter(|agreement| agreement.is_usable(Instant::now())).map(Agreement::used)
    }

    /// Returns whether there is a session with the server.
    pub fn has_session(&self) -> bool {
        self.agreement.lock().as_ref().is_some_and(|agreement| agreement.session.is_some())
    }

    /// Takes the session out of the connection if no request has used it for `idle`. The next request creates another
    /// session.
    pub fn take_unused_session(&self, idle: Duration) -> Option<UnusedSession> {
        let taken = self.agreement.lock().take_if(|agreement| agreement.has_unused_session(idle));
        taken.map(Agreement::into_unused_session)
    }

    /// Forgets this agreement, unless a newer one has replaced it.
    fn forget(&self, agreement: &Agreement) {
        self.agreement.lock().take_if(|held| held.session == agreement.session);
    }

    /// Sends the request that `make` creates, and waits for its answer. If the server has ended the session or no longer
    /// supports the revision, the request is sent once more with a new agreement: the server has not processed it.
    pub(super) async fn ask(
        &self,
        wire: &dyn Wire,
        bytes_max: usize,
        make: &(dyn Fn(&Agreement, u64) -> Request + Sync),
    ) -> Result<Answer, ClientError> {
        let mut is_second = false;
        loop {
            let agreement = self.agreed(wire).await?;
            let request = make(&agreement, self.next_id());
            let follow_up = (!agreement.is_stateless()).then(|| agreement.headers());
            let terms = Terms { follow_up: follow_up.as_deref(), bytes_max };
            let answered = exchange(wire, &request, &terms).await;
            let Err(error) = &answered else { return answered };
            let is_unprocessed = match error {
                ClientError::Status(404) => agreement.session.is_some(),
                ClientError::UnsupportedRevision { .. } => agreement.is_stateless(),
                _ => false,
            };
            // Servers of the official SDK also answer a session that they do not know with the status 400 and this code.
            // They may mean something else, so the request is not sent again, but the next one begins anew.
            let is_doubtful = match error {
                ClientError::Status(400) | ClientError::Unauthenticated => true,
                ClientError::Rpc { code, .. } => *code == SERVER_ERROR,
                _ => false,
            };
            if is_unprocessed || is_doubtful {
                self.forget(&agreement);
            }
            if !is_unprocessed || is_second {
                return answered;
            }
            is_second = true;
        }
    }

    /// Calls a tool. Dropping the future closes the stream of the answer, which cancels the call at a server of revision
    /// 2026-07-28; see [`Connection::cancel`] for earlier revisions.
    ///
    /// # Errors
    /// Fails if the server gives no usable result.
    pub async fn call_tool(&self, wire: &dyn Wire, call: &RemoteCall<'_>) -> Result<CalledTool, ClientError> {
        let mut state: Option<String> = None;
        let mut is_list_changed = false;
        for _ in 0..ROUNDS_MAX {
            let answer = self.call_once(wire, call, state.as_deref()).await?;
            is_list_changed |= answer.is_list_changed;
            match answer.result.get("resultType").map_or(Some("complete"), Value::as_str) {
                Some("complete") => return called(answer.result, is_list_changed),
                Some("input_required") => state = Some(state_of(&answer.result)?),
                Some(_) | None => {
                    return Err(ClientError::Unsupported("its result has an unknown `resultType`".to_owned()));
                }
            }
        }
        Err(ClientError::TooMuch(format!("the MCP server asked more than {ROUNDS_MAX} times to continue the call")))
    }

    /// Sends the call, and once more if its connection broke and that is safe.
    async fn call_once(
        &self,
        wire: &dyn Wire,
        call: &RemoteCall<'_>,
        state: Option<&str>,
    ) -> Result<Answer, ClientError> {
        let make = |agreement: &Agreement, id: u64| {
            let request = agreement.call(id, call.name, call.arguments, state);
            if agreement.is_stateless() {
                return request.with_headers(param_headers(call.input_schema, call.arguments));
            }
            *call.in_flight.0.lock() = Some(SentRequest { id, headers: agreement.headers() });
            request
        };
        let mut answered = self.ask(wire, CALL_BYTES_MAX, &make).await;
        if let Err(error) = &answered
            && error.is_broken_connection()
            && (error.is_unsent() || call.is_repeatable)
        {
            answered = self.ask(wire, CALL_BYTES_MAX, &make).await;
        }
        *call.in_flight.0.lock() = None;
        answered
    }

    /// Tells a server of an earlier revision that the call was cancelled. Does nothing if no answer is awaited.
    ///
    /// # Errors
    /// Fails if the server does not accept the notification.
    pub async fn cancel(&self, wire: &dyn Wire, in_flight: &InFlight) -> Result<(), ClientError> {
        let Some(SentRequest { id, headers }) = in_flight.0.lock().take() else { return Ok(()) };
        let params = json!({"requestId": id, "reason": "the caller cancelled the call"});
        notify(wire, headers, "notifications/cancelled", &params).await
    }
}

/// Returns the state with which the call continues. A server that asks for input gets none.
fn state_of(result: &Map<String, Value>) -> Result<String, ClientError> {
    let has_requests = match result.get("inputRequests") {
        None | Some(Value::Null) => false,
        Some(Value::Object(requests)) => !requests.is_empty(),
        Some(_) => true,
    };
    if has_requests {
        return Err(ClientError::Unsupported("it asks for input from a person or a model during the call".to_owned()));
    }
    match result.get("requestState") {
        Some(Value::String(state)) if state.len() <= STATE_BYTES_MAX => Ok(state.clone()),
        Some(Value::String(_)) => Err(ClientError::TooMuch(format!(
            "the MCP server sent a state of more than {} KiB to continue the call",
            STATE_BYTES_MAX >> 10
        ))),
        _ => Err(ClientError::Invalid("`input_required` has neither requests nor a state".to_owned())),
    }
}

fn called(mut result: Map<String, Value>, is_list_changed: bool) -> Result<CalledTool, ClientError> {
    let structured = result.shift_remove("structuredContent").filter(|structured| !structured.is_null());
    let blocks = match result.shift_remove("content") {
        Some(Value::Array(blocks)) => blocks,
        None if structured.is_some() => Vec::new(),
        _ => return Err(ClientError::Invalid("the result of the tool has no list `content`".to_owned())),
    };
    let is_error = match result.get("isError") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(is_error)) => *is_error,
        Some(_) => return Err(ClientError::Invalid("`isError` is not a boolean".to_owned())),
    };
    let count = blocks.len();
    // A block without a type is left to the check of the form.
    let is_known =
        |block: &Value| block.get("type").and_then(Value::as_str).is_none_or(|one| BLOCK_TYPES.contains(&one));
    let content: Vec<Value> = blocks.into_iter().filter(is_known).collect();
    Ok(CalledTool { dropped_blocks: count - content.len(), content, structured, is_error, is_list_changed })
}
