//! The sessions of people in the console: log-in with an API key or with the ticket of a link, and the key of a session.
//!
//! A token has 256 random bits. The database contains only its SHA-256, by which it is found, so that no comparison of
//! tokens depends on their content. A session has the rights of its key and nothing more. It ends with its key.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use monstrum_store::{ConsoleSessionRow, ConsoleTicketRow, Store, StoreError};
use monstrum_types::{Clock, Code, KeyId, KeyKind, RequestId, Secret, UtcMillis, WorkspaceId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::audit::{AuditUnavailable, Auditor, Change};
use crate::policy::{Key, Policy, Snapshot, api_key};

/// The time without a use after which a session ends.
pub const IDLE_MS: i64 = 3_600 * 1_000;
/// The maximum duration of a session: a working day.
pub const SESSION_MS: i64 = 12 * 3_600 * 1_000;
/// The maximum number of sessions of one key. The next log-in ends the oldest session.
pub const SESSIONS_OF_KEY_MAX: usize = 16;
/// The maximum lifetime of a ticket. The link is used at once, by the person who asked for it.
pub const TICKET_S_MAX: u32 = 600;
/// The lifetime of a ticket for which no lifetime is given.
pub const TICKET_S_DEFAULT: u32 = 60;
/// The maximum number of unused tickets of one key. The next ticket replaces the oldest.
const TICKETS_OF_KEY_MAX: usize = 16;
/// The maximum number of messages of a session. The next message replaces the oldest.
pub const MESSAGES_MAX: usize = 8;
/// The maximum size of the text of a message. Longer texts are cut.
pub const MESSAGE_BYTES_MAX: usize = 2 << 10;
/// The minimum time between two recorded uses of a session.
const RESOLUTION_MS: i64 = 60_000;
/// The maximum number of log-ins that are checked at once. One check takes some milliseconds.
const LOG_INS_AT_ONCE: usize = 20;
/// The time limit for waiting until other log-ins have been checked.
const ROOM_WAIT: Duration = Duration::from_secs(5);
/// The delay of the answer to a miss. Log-ins of others do not wait for it.
const MISS_DELAY: Duration = Duration::from_millis(250);
/// The maximum number of audit rows about misses in a minute. The next row counts the misses without a row.
const MISS_ROWS_PER_MINUTE: u32 = 10;
/// The kind of change that the audit records for a log-in.
const LOG_IN: &str = "console.login";

/// The reason why a log-in or an access to a session failed. The text may be shown to the person.
#[derive(Debug, thiserror::Error)]
pub enum ConsoleError {
    #[error("unknown API key")]
    UnknownKey,
    #[error("the link was already used or has expired; get another link with `monstrum console`")]
    UnknownTicket,
    #[error("{article} {kind} key cannot log in to the console; use a root, admin, operator or approver key",
        article = if *.0 == KeyKind::Agent { "an" } else { "a" }, kind = .0.as_str())]
    Kind(KeyKind),
    #[error("too many people log in at the same time; try again")]
    Busy,
    #[error("the API keys could not be read; try again")]
    StalePolicy,
    #[error(
        "the rows of the instance in the database do not match their seals; run `monstrum doctor` to list these rows"
    )]
    Unverified,
    #[error("the audit cannot be written, so the log-in was refused; try again")]
    Audit(#[from] AuditUnavailable),
    #[error("the database is not available; try again")]
    Store(#[from] StoreError),
    #[error("the system has no random numbers")]
    Random(#[source] getrandom::Error),
}

impl ConsoleError {
    /// Returns the code under which the audit records this error.
    fn code(&self) -> Code {
        match self {
            ConsoleError::UnknownKey | ConsoleError::UnknownTicket | ConsoleError::Kind(_) => Code::Denied,
            ConsoleError::Busy => Code::Busy,
            ConsoleError::StalePolicy
            | ConsoleError::Unverified
            | ConsoleError::Audit(_)
            | ConsoleError::Store(_)
            | ConsoleError::Random(_) => Code::Unavailable,
        }
    }
}

/// A session of the console, as it was found by its token.
#[derive(Clone, Debug)]
pub struct Session {
    pub key_id: KeyId,
    pub key_hash: [u8; 32],
    pub kind: KeyKind,
    /// The workspace of the key; `None` for a root key.
    pub workspace: Option<WorkspaceId>,
    /// The name of the key.
    pub key_name: Arc<str>,
    /// The time at which the session ends even if it is used.
    pub ends_at: UtcMillis,
}

/// A session that has just begun. The token is shown only here.
pub struct NewSession {
    /// The token, which becomes the value of the browser's cookie.
    pub token: Secret,
    pub session: Session,
}

/// A ticket that was just made. The token is shown only here.
pub struct NewTicket {
    /// The token, which becomes the last part of the link.
    pub token: Secret,
    pub expires_at: UtcMillis,
}

/// The key of a ticket that has not been used.
#[derive(Clone, Debug)]
pub struct TicketKey {
    pub key_id: KeyId,
    pub kind: KeyKind,
    pub key_name: Arc<str>,
    /// The workspace of the key; `None` for a root key.
    pub workspace: Option<WorkspaceId>,
    pub expires_at: UtcMillis,
}

/// How a request uses a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// A page or a form that a person has opened. It keeps the session alive.
    Page,
    /// A request that a page sends by itself, such as a live feed. It does not keep the session alive.
    Quiet,
}

/// A message that the next page shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Whether the message is about a failure.
    pub is_error: bool,
    pub text: String,
}

/// The sessions of the console.
pub struct ConsoleSessions {
    store: Store,
    policy: Arc<Policy>,
    auditor: Auditor,
    clock: Arc<dyn Clock>,
    log_ins: Semaphore,
    misses: Mutex<Misses>,
}

impl ConsoleSessions {
    /// Creates the service for the keys of `policy`.
    pub fn new(store: Store, policy: Arc<Policy>, auditor: Auditor, clock: Arc<dyn Clock>) -> ConsoleSessions {
        let (log_ins, misses) = (Semaphore::new(LOG_INS_AT_ONCE), Mutex::default());
        ConsoleSessions { store, policy, auditor, clock, log_ins, misses }
    }

    /// Begins a session with the text of a key. Fails with [`ConsoleError::UnknownKey`] after a delay, and with
    /// [`ConsoleError::Kind`] for a bot or agent key. `request` is the id of the request in the audit.
    pub async fn open(&self, request: RequestId, key: &str) -> Result<NewSession, ConsoleError> {
        let hash = api_key::hash(key);
        let began = {
            let _room = self.room().await?;
            self.begin(request, "key", &hash).await
        };
        self.settled(request, began).await
    }

    /// Begins a session with the token of a ticket, and uses the ticket up. Of several concurrent requests, one
    /// succeeds; the others fail with [`ConsoleError::UnknownTicket`] after a delay.
    pub async fn enter(&self, request: RequestId, token: &str) -> Result<NewSession, ConsoleError> {
        let began = {
            let _room = self.room().await?;
            self.begin_with_ticket(request, token).await
        };
        self.settled(request, began).await
    }

    /// Makes a ticket for a key. `ttl_s` is its lifetime, at most [`TICKET_S_MAX`]. Fails with
    /// [`ConsoleError::UnknownKey`] if the key was deleted or rotated.
    pub async fn new_ticket(&self, key_hash: &[u8; 32], ttl_s: u32) -> Result<NewTicket, ConsoleError> {
        let snapshot = self.current()?;
        let key = key_that_may_log_in(&snapshot, key_hash)?;
        let token = random()?;
        let expires_at = self.clock.now().plus_ms(i64::from(ttl_s.min(TICKET_S_MAX)) * 1_000);
        let (id, key_hash) = (id_of(token.expose()), hex::encode(key_hash));
        let row = ConsoleTicketRow { id, key_id: key.id, key_hash, expires_at };
        if self.store.insert_console_ticket(&row, TICKETS_OF_KEY_MAX).await? {
            Ok(NewTicket { token, expires_at })
        } else {
            Err(ConsoleError::UnknownKey)
        }
    }

    /// Returns the key of a ticket without using the ticket up. Returns `None` if the ticket was used or has expired, or
    /// if its key was deleted or rotated.
    pub async fn peek_ticket(&self, token: &str) -> Result<Option<TicketKey>, ConsoleError> {
        let ticket = self.store.console_ticket(&id_of(token), self.clock.now()).await?;
        let snapshot = self.current()?;
        let key = ticket.as_ref().and_then(|ticket| key_of(&snapshot, ticket.key_id, &ticket.key_hash));
        Ok(ticket.as_ref().zip(key).map(|(ticket, (_, key))| TicketKey {
            key_id: key.id,
            kind: key.kind,
            key_name: Arc::clone(&key.name),
            workspace: key.workspace,
            expires_at: ticket.expires_at,
        }))
    }

    /// Returns the session of a token. Returns `None` if the session has ended or never began, or if its key was deleted
    /// or rotated. A [`Visit::Page`] is recorded as a use of the session, at most once a minute.
    pub async fn find(&self, token: &str, visit: Visit) -> Result<Option<Session>, ConsoleError> {
        let (id, now) = (id_of(token), self.clock.now());
        let Some(row) = self.store.console_session(&id).await? else { return Ok(None) };
        let snapshot = self.current()?;
        let Some(session) = session_of(&snapshot, &row, now) else { return Ok(None) };
        if visit == Visit::Page && now.since_ms(row.last_used_at) >= RESOLUTION_MS {
            let next = |before: &ConsoleSessionRow| {
                (before.last_used_at < now).then(|| ConsoleSessionRow { last_used_at: now, ..before.clone() })
            };
            self.store.update_console_session(&id, next).await?;
        }
        Ok(Some(session))
    }

    /// Ends a session. Does nothing if it has ended.
    pub async fn close(&self, token: &str) -> Result<(), ConsoleError> {
        self.store.delete_console_session(&id_of(token)).await?;
        Ok(())
    }

    /// Keeps a message for the next page of a session. Cuts a text of more than [`MESSAGE_BYTES_MAX`], and drops the
    /// oldest message if the session has [`MESSAGES_MAX`]. Does nothing if the session has ended.
    pub async fn put_message(&self, token: &str, mut message: Message) -> Result<(), ConsoleError> {
        const CUT: &str = "…";
        if message.text.len() > MESSAGE_BYTES_MAX {
            message.text.truncate(message.text.floor_char_boundary(MESSAGE_BYTES_MAX - CUT.len()));
            message.text.push_str(CUT);
        }
        // PostgreSQL stores no NUL.
        message.text.retain(|c| c != '\0');
        let next = |before: &ConsoleSessionRow| {
            let mut messages = messages_of(&before.messages);
            messages.push(message.clone());
            let excess = messages.len().saturating_sub(MESSAGES_MAX);
            messages.drain(..excess);
            Some(ConsoleSessionRow { messages: json!(messages), ..before.clone() })
        };
        self.store.update_console_session(&id_of(token), next).await?;
        Ok(())
    }

    /// Returns the messages of a session and removes them. Concurrent requests never get the same message.
    pub async fn take_messages(&self, token: &str) -> Result<Vec<Message>, ConsoleError> {
        let id = id_of(token);
        // Most pages have no message, so they do not write.
        let known = self.store.console_session(&id).await?;
        if known.is_none_or(|row| messages_of(&row.messages).is_empty()) {
            return Ok(Vec::new());
        }
        let next = |before: &ConsoleSessionRow| Some(ConsoleSessionRow { messages: json!([]), ..before.clone() });
        let before = self.store.update_console_session(&id, next).await?;
        Ok(before.map(|row| messages_of(&row.messages)).unwrap_or_default())
    }

    /// Deletes sessions and tickets that have ended, and records the misses that the audit does not contain yet.
    pub async fn purge(&self) -> Result<(), ConsoleError> {
        let now = self.clock.now();
        let unrecorded = self.misses.lock().take();
        if unrecorded > 0 {
            self.record_misses(RequestId::new(), unrecorded, &ConsoleError::UnknownKey).await;
        }
        Ok(self.store.purge_console(now, now.plus_ms(-IDLE_MS)).await?)
    }

    /// Waits until fewer than [`LOG_INS_AT_ONCE`] log-ins are checked.
    async fn room(&self) -> Result<SemaphorePermit<'_>, ConsoleError> {
        match tokio::time::timeout(ROOM_WAIT, self.log_ins.acquire()).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) | Err(_) => Err(ConsoleError::Busy),
        }
    }

    /// Returns the policy in force. If it is stale, a key may already have been deleted.
    fn current(&self) -> Result<Arc<Snapshot>, ConsoleError> {
        if self.policy.is_stale() { Err(ConsoleError::StalePolicy) } else { Ok(self.policy.load()) }
    }

    async fn begin_with_ticket(&self, request: RequestId, token: &str) -> Result<NewSession, ConsoleError> {
        let ticket = self.store.take_console_ticket(&id_of(token), self.clock.now()).await?;
        let ticket = ticket.ok_or(ConsoleError::UnknownTicket)?;
        let snapshot = self.current()?;
        let (hash, _) = key_of(&snapshot, ticket.key_id, &ticket.key_hash).ok_or(ConsoleError::UnknownTicket)?;
        self.begin(request, "link", &hash).await
    }

    /// Begins a session of the key with this hash. `by` tells the audit how the person has logged in.
    async fn begin(&self, request: RequestId, by: &str, hash: &[u8; 32]) -> Result<NewSession, ConsoleError> {
        let snapshot = self.current()?;
        let key = key_that_may_log_in(&snapshot, hash)?;
        let workspace = key.workspace.or(snapshot.known_default_workspace()).ok_or(ConsoleError::Unverified)?;
        let (token, now) = (random()?, self.clock.now());
        let ends_at = now.plus_ms(SESSION_MS);
        let (id, key_hash) = (id_of(token.expose()), hex::encode(hash));
        let row = ConsoleSessionRow { id, key_id: key.id, key_hash, last_used_at: now, ends_at, messages: json!([]) };
        let change = Change {
            request_id: request,
            key: Some(key.id),
            key_kind: Some(key.kind.as_str()),
            after: json!({ "by": by, "ends_at": ends_at }),
            ..Change::new(workspace, LOG_IN, key.id.to_string())
        };
        let write = async {
            match self.store.insert_console_session(&row, SESSIONS_OF_KEY_MAX).await? {
                true => Ok(()),
                false => Err(ConsoleError::UnknownKey),
            }
        };
        let (begun, closed) = self.auditor.record(change, write, ConsoleError::code).await?;
        begun?;
        if closed.is_err() {
            tracing::error!(request.id = %request, "the outcome of a log-in has not been written to the audit yet");
        }
        let session = session_of(&snapshot, &row, now).ok_or(ConsoleError::UnknownKey)?;
        Ok(NewSession { token, session })
    }

    /// Returns the result of a log-in. Records a miss and delays its answer.
    async fn settled(
        &self,
        request: RequestId,
        began: Result<NewSession, ConsoleError>,
    ) -> Result<NewSession, ConsoleError> {
        if let Err(miss @ (ConsoleError::UnknownKey | ConsoleError::UnknownTicket | ConsoleError::Kind(_))) = &began {
            let counted = self.misses.lock().count(self.clock.now());
            if let Some(count) = counted {
                self.record_misses(request, count, miss).await;
            }
            tokio::time::sleep(MISS_DELAY).await;
        }
        began
    }

    /// Writes one audit row about `count` misses. `last` is the newest of them.
    async fn record_misses(&self, request: RequestId, count: u64, last: &ConsoleError) {
        let Some(workspace) = self.policy.load().known_default_workspace() else {
            tracing::warn!(request.id = %request, count, "log-ins to the console were refused");
            return;
        };
        let after = json!({ "misses": count });
        let change = Change { request_id: request, after, ..Change::new(workspace, LOG_IN, "console".to_owned()) };
        let refused = async { Err::<(), &ConsoleError>(last) };
        if self.auditor.record(change, refused, |miss| miss.code()).await.is_err() {
            tracing::warn!(request.id = %request, count, "refused log-ins to the console cannot be written to the audit");
        }
    }
}

/// The log-ins that have missed.
#[derive(Default)]
struct Misses {
    /// The time of the first row of this minute.
    since: Option<UtcMillis>,
    /// The number of rows in this minute.
    rows: u32,
    /// The number of misses that no row counts yet.
    unrecorded: u64,
}

impl Misses {
    /// Counts a miss. Returns the number of misses to record now, or `None` if this minute has enough rows.
    fn count(&mut self, now: UtcMillis) -> Option<u64> {
        self.unrecorded = self.unrecorded.saturating_add(1);
        if self.since.is_none_or(|since| !(0..RESOLUTION_MS).contains(&now.since_ms(since))) {
            (self.since, self.rows) = (Some(now), 0);
        }
        if self.rows == MISS_ROWS_PER_MINUTE {
            return None;
        }
        self.rows += 1;
        Some(self.take())
    }

    /// Returns the number of misses that no row counts yet, which the caller records.
    fn take(&mut self) -> u64 {
        std::mem::take(&mut self.unrecorded)
    }
}

/// Returns whether keys of this kind may log in. The other kinds belong to programs.
pub fn may_log_in(kind: KeyKind) -> bool {
    match kind {
        KeyKind::Root | KeyKind::Admin | KeyKind::Operator | KeyKind::Approver => true,
        KeyKind::Bot | KeyKind::Agent => false,
    }
}

/// Returns the key with this id and its hash, if the hash is still `hash`, and keys of its kind may log in.
fn key_of<'s>(snapshot: &'s Snapshot, id: KeyId, hash: &str) -> Option<([u8; 32], &'s Key)> {
    let current = snapshot.key_hash(id).filter(|current| hex::encode(current) == hash)?;
    let key = snapshot.key(current).filter(|key| may_log_in(key.kind))?;
    Some((*current, key))
}

/// Returns the key with this hash if keys of its kind may log in.
fn key_that_may_log_in<'s>(snapshot: &'s Snapshot, hash: &[u8; 32]) -> Result<&'s Key, ConsoleError> {
    let key = snapshot.key(hash).ok_or(ConsoleError::UnknownKey)?;
    if may_log_in(key.kind) { Ok(key) } else { Err(ConsoleError::Kind(key.kind)) }
}

/// Returns the session of a row, if it has not ended at `now` and its key is in force.
fn session_of(snapshot: &Snapshot, row: &ConsoleSessionRow, now: UtcMillis) -> Option<Session> {
    let is_over = row.ends_at <= now || now.since_ms(row.last_used_at) >= IDLE_MS;
    let (key_hash, key) = key_of(snapshot, row.key_id, &row.key_hash).filter(|_| !is_over)?;
    Some(Session {
        key_id: key.id,
        key_hash,
        kind: key.kind,
        workspace: key.workspace,
        key_name: Arc::clone(&key.name),
        ends_at: row.ends_at,
    })
}

/// Returns the messages in a row. A row of a later release may contain messages of another form.
fn messages_of(stored: &Value) -> Vec<Message> {
    let stored = stored.as_array().into_iter().flatten();
    stored.filter_map(|message| Message::deserialize(message).ok()).collect()
}

/// Returns a new token.
fn random() -> Result<Secret, ConsoleError> {
    let mut bits = zeroize::Zeroizing::new([0_u8; 32]);
    getrandom::fill(bits.as_mut_slice()).map_err(ConsoleError::Random)?;
    Ok(Secret::new(BASE64_URL_SAFE_NO_PAD.encode(*bits)))
}

/// Returns the id of the row of a token.
fn id_of(token: &str) -> String {
    hex::encode(api_key::hash(token))
}
