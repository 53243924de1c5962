//! The sessions of people in the console. A person logs in with an API key, or with a link that a key has asked for. The
//! session then acts with that key, until the key is rotated or deleted.
//!
//! The database stores the SHA-256 of a session's token. Log-ins and misses are in the audit.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use monstrum_store::{ConsoleSessionRow, ConsoleTicketRow, KeyRow, Store, StoreError};
use monstrum_types::{Clock, Code, KeyId, KeyKind, Secret, UtcMillis, WorkspaceId};
use parking_lot::Mutex;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use crate::audit::{AuditUnavailable, Auditor, Change};
use crate::policy::{Key, Policy, api_key};

/// The time after which an unused session ends.
const IDLE_MS: i64 = 60 * 60 * 1000;
/// The time after which every session ends.
const LIFETIME_MS: i64 = 12 * 60 * 60 * 1000;
/// The last use of a session is written at most once in this time.
const USE_MS: i64 = 60 * 1000;
/// The maximum number of sessions of a key. The oldest one ends.
const SESSIONS_MAX: i64 = 16;
/// The maximum number of unused links of a key. The oldest one ends.
const TICKETS_MAX: i64 = 16;
/// The time that an attempt with an unknown key takes.
const MISS: Duration = Duration::from_millis(250);
/// The maximum number of attempts at one time.
const ATTEMPTS_MAX: usize = 20;
/// The maximum number of misses that the audit tells one by one in a minute. The next row tells how many others there
/// were.
const MISSES_MAX: u32 = 10;
const MINUTE_MS: i64 = 60 * 1000;
/// The maximum number of messages of a session, and the maximum length of each. Others are dropped.
const MESSAGES_MAX: usize = 8;
const MESSAGE_CHARS_MAX: usize = 2000;
/// The kind of the change in the audit.
const LOGIN: &str = "console.login";

/// A session that was opened. Only the browser knows its token.
pub struct NewSession {
    pub token: Secret,
    pub ends_at: UtcMillis,
}

/// A session of the console.
#[derive(Clone, Debug)]
pub struct Session {
    pub key: KeyId,
    pub key_hash: [u8; 32],
    pub kind: KeyKind,
    pub ends_at: UtcMillis,
}

/// A link that logs a browser in.
pub struct NewTicket {
    pub token: Secret,
    pub expires_at: UtcMillis,
}

/// The key with which a link logs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketKey {
    pub name: String,
    pub kind: KeyKind,
}

/// Why a person is not logged in.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error("the API key is unknown")]
    UnknownKey,
    #[error("keys of bots and agents cannot log in")]
    KindRefused,
    #[error("the link was used, or its time is over")]
    TicketUsed,
    #[error("too many people are logging in at once")]
    TooMany,
    #[error("the audit cannot be written")]
    Audit(#[from] AuditUnavailable),
    #[error("the API keys could not be read")]
    Stale,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the system has no random bytes: {0}")]
    Random(getrandom::Error),
}

impl LoginError {
    fn code(&self) -> Code {
        match self {
            LoginError::UnknownKey | LoginError::KindRefused | LoginError::TicketUsed => Code::Denied,
            LoginError::TooMany => Code::Busy,
            LoginError::Audit(_) | LoginError::Stale | LoginError::Store(_) | LoginError::Random(_) => {
                Code::Unavailable
            }
        }
    }
}

/// The misses of the current minute.
#[derive(Default)]
struct Misses {
    since: Option<UtcMillis>,
    told: u32,
    untold: u32,
}

/// The sessions of the console.
pub struct ConsoleSessions {
    store: Store,
    policy: Arc<Policy>,
    auditor: Auditor,
    clock: Arc<dyn Clock>,
    attempts: Semaphore,
    misses: Mutex<Misses>,
}

impl ConsoleSessions {
    pub fn new(store: Store, policy: Arc<Policy>, auditor: Auditor, clock: Arc<dyn Clock>) -> ConsoleSessions {
        let attempts = Semaphore::new(ATTEMPTS_MAX);
        ConsoleSessions { store, policy, auditor, clock, attempts, misses: Mutex::default() }
    }

    /// Logs in with an API key.
    pub async fn open(&self, key: &Secret) -> Result<NewSession, LoginError> {
        let _attempt = self.attempts.try_acquire().map_err(|_| LoginError::TooMany)?;
        let hash = api_key::hash(key.expose());
        let Some(key) = self.key(&hash)? else { return Err(self.missed(LoginError::UnknownKey).await) };
        if !may_log_in(key.kind) {
            return Err(self.missed(LoginError::KindRefused).await);
        }
        self.opened(&key, hash, "key").await
    }

    /// Logs in with a link, and uses it up.
    pub async fn enter(&self, ticket: &Secret) -> Result<NewSession, LoginError> {
        let _attempt = self.attempts.try_acquire().map_err(|_| LoginError::TooMany)?;
        let (id, key, hash) = match self.ticket(ticket).await {
            Err(error @ LoginError::TicketUsed) => return Err(self.missed(error).await),
            found => found?,
        };
        // Of two browsers that use the link at the same time, one is logged in.
        if !self.store.delete_console_ticket(&id).await? {
            return Err(LoginError::TicketUsed);
        }
        self.opened(&key, hash, "link").await
    }

    /// Returns the key of a link, and does not use the link up.
    pub async fn peek_ticket(&self, ticket: &Secret) -> Result<TicketKey, LoginError> {
        let (_, key, _) = self.ticket(ticket).await?;
        let row: Option<KeyRow> = self.store.key(key.workspace, key.id).await?;
        row.map(|row| TicketKey { name: row.name, kind: row.kind }).ok_or(LoginError::TicketUsed)
    }

    /// Makes a link for a key. `key_hash` is the hash with which the key has authenticated itself.
    pub async fn make_ticket(&self, key: KeyId, key_hash: [u8; 32], ttl: Duration) -> Result<NewTicket, LoginError> {
        let kind = self.key(&key_hash)?.ok_or(LoginError::UnknownKey)?.kind;
        if !may_log_in(kind) {
            return Err(LoginError::KindRefused);
        }
        let token = token()?;
        let expires_at = self.clock.now().plus_ms(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
        let row = ConsoleTicketRow { id: id_of(&token), key_id: key, key_hash: hex::encode(key_hash), expires_at };
        self.store.insert_console_ticket(&row, TICKETS_MAX).await?;
        Ok(NewTicket { token, expires_at })
    }

    /// Returns the session of a token, or `None` if there is none, it has ended, or its key was rotated or deleted. A
    /// quiet request, such as one of a page that follows events, does not count as a use.
    pub async fn find(&self, token: &Secret, is_quiet: bool) -> Result<Option<Session>, StoreError> {
        let Some(row) = self.store.console_session(&id_of(token)).await? else { return Ok(None) };
        let now = self.clock.now();
        if now >= row.ends_at || now.since_ms(row.last_used_at) >= IDLE_MS {
            return Ok(None);
        }
        let snapshot = self.policy.load();
        let hash = snapshot.key_hash(row.key_id).filter(|hash| hex::encode(*hash) == row.key_hash);
        let Some((key_hash, key)) = hash.and_then(|hash| Some((*hash, snapshot.key(hash)?))) else { return Ok(None) };
        if !may_log_in(key.kind) {
            return Ok(None);
        }
        if !is_quiet && now.since_ms(row.last_used_at) >= USE_MS {
            self.store.use_console_session(&ConsoleSessionRow { last_used_at: now, ..row.clone() }).await?;
        }
        Ok(Some(Session { key: row.key_id, key_hash, kind: key.kind, ends_at: row.ends_at }))
    }

    /// Ends a session.
    pub async fn close(&self, token: &Secret) -> Result<(), StoreError> {
        self.store.delete_console_session(&id_of(token)).await.map(drop)
    }

    /// Keeps a message for the next page of a session.
    pub async fn put_message(&self, token: &Secret, message: String) -> Result<(), StoreError> {
        let id = id_of(token);
        let Some(row) = self.store.console_session(&id).await? else { return Ok(()) };
        let mut messages = messages(&row);
        if messages.len() < MESSAGES_MAX && message.chars().count() <= MESSAGE_CHARS_MAX {
            messages.push(message);
        }
        self.store.set_console_messages(&id, &json!(messages).to_string()).await
    }

    /// Takes the messages of a session.
    pub async fn take_messages(&self, token: &Secret) -> Result<Vec<String>, StoreError> {
        let id = id_of(token);
        let Some(row) = self.store.console_session(&id).await? else { return Ok(Vec::new()) };
        let messages = messages(&row);
        if !messages.is_empty() {
            self.store.set_console_messages(&id, "[]").await?;
        }
        Ok(messages)
    }

    /// Deletes the sessions and the links that have ended.
    pub async fn purge(&self) -> Result<u64, StoreError> {
        let now = self.clock.now();
        self.store.purge_console(now, now.plus_ms(-IDLE_MS)).await
    }

    /// Returns the key with this hash.
    fn key(&self, hash: &[u8; 32]) -> Result<Option<Key>, LoginError> {
        // If the policy is stale, the key may already have been deleted.
        if self.policy.is_stale() {
            return Err(LoginError::Stale);
        }
        Ok(self.policy.load().key(hash).cloned())
    }

    async fn ticket(&self, ticket: &Secret) -> Result<(String, Key, [u8; 32]), LoginError> {
        let id = id_of(ticket);
        let row = self.store.console_ticket(&id).await?.filter(|row| self.clock.now() < row.expires_at);
        let row = row.ok_or(LoginError::TicketUsed)?;
        let mut hash = [0; 32];
        hex::decode_to_slice(&row.key_hash, &mut hash).map_err(|_| LoginError::TicketUsed)?;
        let key = self.key(&hash)?.filter(|key| key.id == row.key_id && may_log_in(key.kind));
        Ok((id, key.ok_or(LoginError::TicketUsed)?, hash))
    }

    async fn opened(&self, key: &Key, hash: [u8; 32], by: &str) -> Result<NewSession, LoginError> {
        let token = token()?;
        let now = self.clock.now();
        let row = ConsoleSessionRow {
            id: id_of(&token),
            key_id: key.id,
            key_hash: hex::encode(hash),
            created_at: now,
            last_used_at: now,
            ends_at: now.plus_ms(LIFETIME_MS),
            messages: "[]".to_owned(),
        };
        let insert = async { Ok(self.store.insert_console_session(&row, SESSIONS_MAX).await?) };
        let change = Change {
            key: Some(key.id),
            key_kind: Some(key.kind.as_str()),
            after: json!({ "by": by, "ends_at": row.ends_at }),
            ..Change::new(self.workspace(key.workspace), LOGIN, key.id.to_string())
        };
        let (done, closed) = self.auditor.record(change, insert, LoginError::code).await?;
        closed?;
        done.map(|()| NewSession { token, ends_at: row.ends_at })
    }

    /// Records a miss, and waits, so that attempts in a row take time.
    async fn missed(&self, error: LoginError) -> LoginError {
        let others = {
            let mut misses = self.misses.lock();
            let now = self.clock.now();
            if misses.since.is_none_or(|since| now.since_ms(since) >= MINUTE_MS) {
                *misses = Misses { since: Some(now), told: 0, untold: misses.untold };
            }
            if misses.told < MISSES_MAX {
                misses.told += 1;
                Some(std::mem::take(&mut misses.untold))
            } else {
                misses.untold = misses.untold.saturating_add(1);
                None
            }
        };
        if let Some(others) = others {
            let change = Change {
                after: json!({ "others": others }),
                ..Change::new(self.workspace(None), LOGIN, "miss".to_owned())
            };
            let told = error.to_string();
            let refused = async { Err::<(), _>(told) };
            if let Err(unwritten) = self.auditor.record(change, refused, |_| Code::Denied).await {
                tracing::error!(error = %unwritten, "a failed log-in to the console is not in the audit");
            }
        }
        tokio::time::sleep(MISS).await;
        error
    }

    /// Returns the workspace in whose audit a log-in is told: the one of the key, or the default one.
    fn workspace(&self, of_key: Option<WorkspaceId>) -> WorkspaceId {
        of_key.unwrap_or_else(|| self.policy.load().default_workspace())
    }
}

/// Returns whether keys of this kind may log in.
fn may_log_in(kind: KeyKind) -> bool {
    match kind {
        KeyKind::Root | KeyKind::Admin | KeyKind::Operator | KeyKind::Approver => true,
        KeyKind::Bot | KeyKind::Agent => false,
    }
}

/// Returns a token of 256 random bits.
fn token() -> Result<Secret, LoginError> {
    let mut bits = zeroize::Zeroizing::new([0_u8; 32]);
    getrandom::fill(bits.as_mut_slice()).map_err(LoginError::Random)?;
    Ok(Secret::new(BASE64_URL_SAFE_NO_PAD.encode(*bits)))
}

/// Returns the id under which a session or a link is stored.
fn id_of(token: &Secret) -> String {
    hex::encode(Sha256::digest(token.expose()))
}

fn messages(row: &ConsoleSessionRow) -> Vec<String> {
    serde_json::from_str(&row.messages).unwrap_or_default()
}
