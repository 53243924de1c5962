//! The sessions of browsers in the console, and the tickets of links that begin a session. The database contains only
//! hashes of their tokens. The rows have a MAC, because otherwise a row that another program wrote would be a session
//! of any key. They are created and deleted during normal use, so no seal counts them.

use monstrum_types::{KeyId, UtcMillis};
use serde_json::Value;

use crate::db::{Session, args, retry};
use crate::rows::{Scope, authentic, insert, overwrite};
use crate::{Store, StoreError};

/// A row of `console_sessions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSessionRow {
    /// The hex-encoded SHA-256 of the token in the browser's cookie.
    pub id: String,
    pub key_id: KeyId,
    /// The hash of the key at the log-in, as in [`crate::KeyRow`].
    pub key_hash: String,
    pub last_used_at: UtcMillis,
    pub ends_at: UtcMillis,
    /// The messages that the next page shows.
    pub messages: Value,
}

authentic! {
    ConsoleSessionRow in ConsoleSessions("console_sessions"), select: select_sessions, scope: |_| Scope::Instance,
    covered: [id, key_id, key_hash, last_used_at, ends_at, messages],
    others: [],
    spec: { is_counted: false },
}

/// A row of `console_tickets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleTicketRow {
    /// The hex-encoded SHA-256 of the token in the link.
    pub id: String,
    pub key_id: KeyId,
    /// The hash of the key at the request for the ticket.
    pub key_hash: String,
    pub expires_at: UtcMillis,
}

authentic! {
    ConsoleTicketRow in ConsoleTickets("console_tickets"), select: select_tickets, scope: |_| Scope::Instance,
    covered: [id, key_id, key_hash, expires_at],
    others: [],
    spec: { is_counted: false },
}

const SESSION: &str = select_sessions!("where id = $1");
const SESSIONS_OF_KEY: &str = select_sessions!("where key_id = $1 order by ends_at desc, id desc");
const DELETE_SESSION: &str = "delete from console_sessions where id = $1";
const DELETE_ENDED: &str = "delete from console_sessions where ends_at <= $1 or last_used_at <= $2";
const TICKET: &str = select_tickets!("where id = $1");
const TICKETS_OF_KEY: &str = select_tickets!("where key_id = $1 order by expires_at desc, id desc");
const DELETE_TICKET: &str = "delete from console_tickets where id = $1";
const DELETE_EXPIRED: &str = "delete from console_tickets where expires_at <= $1";
// SQLite has no `select for update`.
const LOCK_SESSION: &str = "update console_sessions set ends_at = ends_at where id = $1";
const LOCK_KEY: &str = "update api_keys set hash = hash where id = $1 and hash = $2";

impl Store {
    /// Inserts a session. Deletes the oldest sessions of the key, so that at most `sessions_max` are left. Returns false
    /// and inserts nothing if the key was deleted or rotated.
    pub async fn insert_console_session(
        &self,
        row: &ConsoleSessionRow,
        sessions_max: usize,
    ) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            if session.run(LOCK_KEY, args![row.key_id, &row.key_hash]).await? == 0 {
                return Ok(false);
            }
            delete_oldest(&mut session, (SESSIONS_OF_KEY, DELETE_SESSION), row.key_id, sessions_max).await?;
            insert(&mut session, self.rows()?, row, Vec::new(), Vec::new()).await?;
            session.commit().await?;
            Ok(true)
        })
    }

    /// Returns the session with this id, even if it has ended.
    pub async fn console_session(&self, id: &str) -> Result<Option<ConsoleSessionRow>, StoreError> {
        self.authentic_one(SESSION, args![id]).await
    }

    /// Replaces the session with this id by the result of `next`. Changes nothing if `next` returns `None`. Returns the
    /// session before the change, or `None` if it is missing or not authentic.
    pub async fn update_console_session(
        &self,
        id: &str,
        next: impl Fn(&ConsoleSessionRow) -> Option<ConsoleSessionRow> + Send + Sync,
    ) -> Result<Option<ConsoleSessionRow>, StoreError> {
        let rows = self.rows()?;
        retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK_SESSION, args![id]).await?;
            let found = session.fetch(SESSION, args![id]).await?;
            let Some(before) = found.first().and_then(|row| rows.authentic::<ConsoleSessionRow>(row)) else {
                return Ok(None);
            };
            if let Some(next) = next(&before) {
                overwrite(&mut session, rows, &next).await?;
                session.commit().await?;
            }
            Ok(Some(before))
        })
    }

    /// Deletes a session. Returns whether it existed.
    pub async fn delete_console_session(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.db.run(DELETE_SESSION, args![id]).await? > 0)
    }

    /// Inserts a ticket. Deletes the tickets of the key that expire first, so that at most `tickets_max` are left.
    /// Returns false and inserts nothing if the key was deleted or rotated.
    pub async fn insert_console_ticket(&self, row: &ConsoleTicketRow, tickets_max: usize) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            if session.run(LOCK_KEY, args![row.key_id, &row.key_hash]).await? == 0 {
                return Ok(false);
            }
            delete_oldest(&mut session, (TICKETS_OF_KEY, DELETE_TICKET), row.key_id, tickets_max).await?;
            insert(&mut session, self.rows()?, row, Vec::new(), Vec::new()).await?;
            session.commit().await?;
            Ok(true)
        })
    }

    /// Returns the ticket with this id, unless it has expired.
    pub async fn console_ticket(&self, id: &str, now: UtcMillis) -> Result<Option<ConsoleTicketRow>, StoreError> {
        let ticket: Option<ConsoleTicketRow> = self.authentic_one(TICKET, args![id]).await?;
        Ok(ticket.filter(|ticket| now < ticket.expires_at))
    }

    /// Deletes the ticket with this id and returns it, unless it has expired. Of several concurrent calls, one gets the
    /// ticket.
    pub async fn take_console_ticket(&self, id: &str, now: UtcMillis) -> Result<Option<ConsoleTicketRow>, StoreError> {
        let ticket = self.console_ticket(id, now).await?;
        if ticket.is_none() {
            return Ok(None);
        }
        let is_taken = self.db.run(DELETE_TICKET, args![id]).await? > 0;
        Ok(ticket.filter(|_| is_taken))
    }

    /// Deletes the sessions and tickets that have ended at `now`, and the sessions that were last used at `idle_since`
    /// or earlier.
    pub async fn purge_console(&self, now: UtcMillis, idle_since: UtcMillis) -> Result<(), StoreError> {
        self.db.run(DELETE_ENDED, args![now, idle_since]).await?;
        self.db.run(DELETE_EXPIRED, args![now]).await.map(drop)
    }
}

/// Deletes rows of a key, so that there is room for one more row. `statements` select the rows of the key from the newest
/// to the oldest, and delete a row by its id.
async fn delete_oldest(
    session: &mut Session,
    (select, delete): (&'static str, &'static str),
    key: KeyId,
    rows_max: usize,
) -> Result<(), StoreError> {
    let found = session.fetch(select, args![key]).await?;
    for row in found.iter().skip(rows_max.saturating_sub(1)) {
        let id: String = row.get("id")?;
        session.run(delete, args![&id]).await?;
    }
    Ok(())
}
