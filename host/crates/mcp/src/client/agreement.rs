//! The agreement with a server about the revision of the protocol.
//!
//! The client asks for revision 2026-07-28 with `server/discover` first. A server that does not know this method gets
//! `initialize`, with which earlier revisions begin.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rmcp::model::{ErrorCode, ProtocolVersion};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};

use super::exchange::{Request, Terms, exchange, notify};
use super::wire::{Content, Message, Wire};
use super::{ClientError, ServerIdentity, shortened};

/// The revision without sessions.
const STATELESS: ProtocolVersion = ProtocolVersion::V_2026_07_28;
/// The revisions that begin with `initialize`, the newest first.
const WITH_INITIALIZE: [ProtocolVersion; 3] =
    [ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_03_26];

/// The time for which an agreement is used.
const AGREEMENT_KEPT: Duration = Duration::from_secs(24 * 3600);
/// The time without a request after which the host ends a session.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(5 * 60);
/// The time without a request after which a session is not used again, if the host has not ended it. Servers drop idle
/// sessions too.
const SESSION_USED_MAX: Duration = Duration::from_secs(SESSION_IDLE_MAX.as_secs() + 30);
/// The time that a server has for the answer to `server/discover`. Some earlier servers never answer an unknown method.
const DISCOVER_MAX: Duration = Duration::from_secs(5);
/// The maximum length of a session id, in bytes.
const SESSION_BYTES_MAX: usize = 1024;
/// The maximum length of a server's name and version, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The conditions for the messages with which a connection begins.
const TERMS: Terms<'static> = Terms { follow_up: None, bytes_max: 256 << 10 };

/// What was agreed with a server.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    revision: ProtocolVersion,
    /// The session, if the server has created one.
    pub(super) session: Option<String>,
    pub(super) identity: ServerIdentity,
    agreed_at: Instant,
    uses: Arc<Mutex<Uses>>,
}

/// The requests and streams that rely on an agreement.
#[derive(Debug)]
struct Uses {
    running: usize,
    last_at: Instant,
}

/// An agreement on which a request or a stream relies. Its session is not idle.
pub(super) struct UsedAgreement(Agreement);

impl UsedAgreement {
    fn new(agreement: Agreement) -> UsedAgreement {
        agreement.uses.lock().running += 1;
        UsedAgreement(agreement)
    }
}

impl Deref for UsedAgreement {
    type Target = Agreement;

    fn deref(&self) -> &Agreement {
        &self.0
    }
}

impl Drop for UsedAgreement {
    fn drop(&mut self) {
        let mut uses = self.0.uses.lock();
        uses.running -= 1;
        uses.last_at = Instant::now();
    }
}

/// A session on which no request relies any more.
#[must_use]
pub struct UnusedSession {
    headers: Vec<(String, String)>,
}

impl UnusedSession {
    /// Ends the session.
    ///
    /// # Errors
    /// Fails if the server was not reached, or refuses to end the session for a reason other than that clients cannot
    /// end its sessions.
    pub async fn end(self, wire: &dyn Wire) -> Result<(), ClientError> {
        let head = wire.send(Message { headers: self.headers, content: Content::End }).await?;
        match head.status {
            200..=299 | 404 | 405 => Ok(()),
            401 => Err(ClientError::Unauthenticated),
            status => Err(ClientError::Status(status)),
        }
    }
}

impl Agreement {
    fn new(revision: ProtocolVersion, session: Option<String>, identity: ServerIdentity) -> Agreement {
        let now = Instant::now();
        let uses = Arc::new(Mutex::new(Uses { running: 0, last_at: now }));
        Agreement { revision, session, identity, agreed_at: now, uses }
    }

    /// Returns the agreement for a request or a stream.
    pub(super) fn used(&self) -> UsedAgreement {
        UsedAgreement::new(self.clone())
    }

    /// Returns whether the revision has no sessions.
    pub(super) fn is_stateless(&self) -> bool {
        self.revision == STATELESS
    }

    /// Returns whether a request may still rely on the agreement.
    pub(super) fn is_usable(&self, now: Instant) -> bool {
        let is_idle = self.session.is_some() && self.is_idle_for(SESSION_USED_MAX, now);
        now.duration_since(self.agreed_at) < AGREEMENT_KEPT && !is_idle
    }

    /// Returns whether no request has relied on the agreement for this time.
    fn is_idle_for(&self, time: Duration, now: Instant) -> bool {
        let uses = self.uses.lock();
        uses.running == 0 && now.duration_since(uses.last_at) >= time
    }

    /// Returns whether the server has created a session that no request has used for this time.
    pub(super) fn has_unused_session(&self, time: Duration) -> bool {
        self.session.is_some() && self.is_idle_for(time, Instant::now())
    }

    /// Returns the session, on which the connection no longer relies.
    pub(super) fn into_unused_session(self) -> UnusedSession {
        UnusedSession { headers: self.headers() }
    }

    /// Returns the headers of every message.
    pub(super) fn headers(&self) -> Vec<(String, String)> {
        let mut headers = revision_header(&self.revision);
        headers.extend(self.session.iter().map(|session| ("mcp-session-id".to_owned(), session.clone())));
        headers
    }

    /// Creates a request. `params` is an object without a name.
    pub(super) fn request(&self, id: u64, method: &'static str, mut params: Value) -> Request {
        if !self.is_stateless() {
            return Request::new(id, method, &params, self.headers());
        }
        params["_meta"] = stateless_meta();
        Request::new(id, method, &params, self.headers()).with_standard_headers(None)
    }

    /// Creates the request of a call of a tool.
    pub(super) fn call(
        &self,
        id: u64,
        name: &str,
        arguments: &Map<String, Value>,
        request_state: Option<&str>,
    ) -> Request {
        let meta = self.is_stateless().then(stateless_meta);
        let params = CallParams { name, arguments, request_state, meta };
        let request = Request::new(id, "tools/call", &params, self.headers());
        if self.is_stateless() { request.with_standard_headers(Some(name)) } else { request }
    }
}

/// The parameters of `tools/call`.
#[derive(Serialize)]
struct CallParams<'a> {
    name: &'a str,
    arguments: &'a Map<String, Value>,
    #[serde(rename = "requestState", skip_serializing_if = "Option::is_none")]
    request_state: Option<&'a str>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<Value>,
}

fn revision_header(revision: &ProtocolVersion) -> Vec<(String, String)> {
    vec![("mcp-protocol-version".to_owned(), revision.as_str().to_owned())]
}

fn client_info() -> Value {
    json!({"name": "monstrum", "version": env!("CARGO_PKG_VERSION")})
}

/// Returns the metadata of a request of the revision without sessions.
fn stateless_meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS.as_str(),
        "io.modelcontextprotocol/clientInfo": client_info(),
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

/// Agrees with a server on a revision. `next_id` returns the id of the next request.
///
/// # Errors
/// Fails if the server supports none of the revisions of this client, or gives no usable answer.
pub(super) async fn agree(wire: &dyn Wire, next_id: &(dyn Fn() -> u64 + Sync)) -> Result<Agreement, ClientError> {
    let newest = &WITH_INITIALIZE[0];
    let mut discovered = timeout(DISCOVER_MAX, discover(wire, next_id())).await;
    // A server that rejects the revision and names it as supported is asked once more.
    if let Ok(Err(ClientError::UnsupportedRevision { supported })) = &discovered
        && is_named(&STATELESS, supported)
    {
        discovered = timeout(DISCOVER_MAX, discover(wire, next_id())).await;
    }
    match discovered {
        Ok(Ok(Discovered::Stateless(identity))) => Ok(Agreement::new(STATELESS, None, identity)),
        Ok(Ok(Discovered::WithInitialize(revision))) => initialize(wire, next_id(), &revision).await,
        Ok(Err(ClientError::UnsupportedRevision { supported })) if !supported.is_empty() => {
            let common = WITH_INITIALIZE.iter().find(|revision| is_named(revision, &supported));
            initialize(wire, next_id(), common.ok_or_else(no_common_revision)?).await
        }
        Ok(Err(error)) if is_of_earlier_revision(&error) => initialize(wire, next_id(), newest).await,
        Ok(Err(error)) => Err(error),
        Err(_) => initialize(wire, next_id(), newest).await,
    }
}

fn is_named(revision: &ProtocolVersion, supported: &[String]) -> bool {
    supported.iter().any(|one| one == revision.as_str())
}

enum Discovered {
    Stateless(ServerIdentity),
    /// The newest revision with `initialize` that the server supports.
    WithInitialize(ProtocolVersion),
}

async fn discover(wire: &dyn Wire, id: u64) -> Result<Discovered, ClientError> {
    let params = json!({ "_meta": stateless_meta() });
    let request = Request::new(id, "server/discover", &params, revision_header(&STATELESS)).with_standard_headers(None);
    let result = exchange(wire, &request, &TERMS).await?.result;
    let supported = result.get("supportedVersions").and_then(Value::as_array);
    let supported = supported.ok_or_else(|| ClientError::Invalid("`supportedVersions` is missing".to_owned()))?;
    let supports = |revision: &ProtocolVersion| supported.iter().any(|one| one.as_str() == Some(revision.as_str()));
    if supports(&STATELESS) {
        let info = result.get("_meta").and_then(|meta| meta.get("io.modelcontextprotocol/serverInfo"));
        return Ok(Discovered::Stateless(identity(info, result.get("capabilities"), &STATELESS)));
    }
    let revision = WITH_INITIALIZE.iter().find(|revision| supports(revision)).cloned();
    revision.map(Discovered::WithInitialize).ok_or_else(no_common_revision)
}

/// Returns whether an error of `server/discover` shows that the server may know only earlier revisions. Errors of the
/// network, of authentication and of a server that is down do not.
fn is_of_earlier_revision(error: &ClientError) -> bool {
    match error {
        ClientError::Rpc { code, .. } => [ErrorCode::HEADER_MISMATCH, ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY]
            .iter()
            .all(|modern| i64::from(modern.0) != *code),
        ClientError::Status(status) => !matches!(status, 403 | 429 | 502..=504),
        ClientError::Invalid(_) | ClientError::UnsupportedRevision { .. } => true,
        _ => false,
    }
}

async fn initialize(wire: &dyn Wire, id: u64, revision: &ProtocolVersion) -> Result<Agreement, ClientError> {
    let params = json!({"protocolVersion": revision.as_str(), "capabilities": {}, "clientInfo": client_info()});
    let request = Request::new(id, "initialize", &params, Vec::new());
    let answer = exchange(wire, &request, &TERMS).await?;
    let agreed = answer.result.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    let revision =
        WITH_INITIALIZE.iter().find(|revision| revision.as_str() == agreed).ok_or_else(no_common_revision)?;
    let session = answer.session.map(checked_session).transpose()?;
    let identity = identity(answer.result.get("serverInfo"), answer.result.get("capabilities"), revision);
    let agreement = Agreement::new(revision.clone(), session, identity);
    notify(wire, agreement.headers(), "notifications/initialized", &json!({})).await?;
    Ok(agreement)
}

fn no_common_revision() -> ClientError {
    let revisions = WITH_INITIALIZE.iter().map(ProtocolVersion::as_str).collect::<Vec<_>>().join(", ");
    ClientError::Unsupported(format!("it speaks none of the revisions {STATELESS}, {revisions}"))
}

/// Rejects session ids that the protocol does not permit.
fn checked_session(session: String) -> Result<String, ClientError> {
    let is_valid = !session.is_empty()
        && session.len() <= SESSION_BYTES_MAX
        && session.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    if is_valid { Ok(session) } else { Err(ClientError::Invalid("the session id is malformed".to_owned())) }
}

fn identity(info: Option<&Value>, capabilities: Option<&Value>, revision: &ProtocolVersion) -> ServerIdentity {
    let text = |name: &str| {
        let text = info.and_then(|info| info.get(name)).and_then(Value::as_str)?;
        Some(shortened(text, NAME_BYTES_MAX).to_owned())
    };
    let notifies = capabilities.and_then(|capabilities| capabilities.pointer("/tools/listChanged"));
    ServerIdentity {
        name: text("name"),
        version: text("version"),
        revision: revision.as_str().to_owned(),
        notifies: notifies == Some(&Value::Bool(true)),
    }
}
