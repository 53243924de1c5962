//! The sessions of browsers in the console, and the links that log a browser in.
//!
//! The rows have a MAC, because a program with access to the database could otherwise insert a session of any key. They
//! are not counted by a seal: a session ends by itself, and a row that is restored has the times of its end under its MAC.

use monstrum_types::{KeyId, UtcMillis};

use crate::db::{args, retry, values};
use crate::rows::{Scope, authentic, insert};
use crate::{Store, StoreError};

/// A row of `console_sessions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleSessionRow {
    /// The SHA-256 of the session's cookie, as hexadecimal digits.
    pub id: String,
    pub key_id: KeyId,
    /// The hash of the key at the time of the log-in.
    pub key_hash: String,
    pub created_at: UtcMillis,
    pub last_used_at: UtcMillis,
    pub ends_at: UtcMillis,
    /// A JSON list of texts that the next page shows.
    pub messages: String,
}

authentic! {
    ConsoleSessionRow in ConsoleSessions("console_sessions"), select: select_sessions, scope: |_| Scope::Instance,
    covered: [id, key_id, key_hash, created_at, last_used_at, ends_at],
    // The console shows the texts and escapes them.
    others: [messages],
    spec: { is_counted: false },
}

/// A row of `console_tickets`: a link that logs a browser in, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleTicketRow {
    /// The SHA-256 of the text in the link, as hexadecimal digits.
    pub id: String,
    pub key_id: KeyId,
    /// The hash of the key at the time at which the link was made.
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
const TICKET: &str = select_tickets!("where id = $1");
const DELETE_SESSION: &str = "delete from console_sessions where id = $1";
const DELETE_TICKET: &str = "delete from console_tickets where id = $1";
const SET_MESSAGES: &str = "update console_sessions set messages = $2 where id = $1";
/// Keeps the newest sessions of a key.
const DELETE_OLDEST: &str = "delete from console_sessions where key_id = $1 and id not in \
                             (select id from console_sessions where key_id = $1 order by created_at desc, id limit $2)";
/// Keeps the newest links of a key.
const DELETE_OLDEST_TICKETS: &str = "delete from console_tickets where key_id = $1 and id not in \
                                     (select id from console_tickets where key_id = $1 order by expires_at desc, id limit $2)";

impl Store {
    /// Inserts a session, and deletes the oldest sessions of its key if it has more than `sessions_max`.
    pub async fn insert_console_session(&self, row: &ConsoleSessionRow, sessions_max: i64) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            insert(&mut session, self.rows()?, row, values![&row.messages], Vec::new()).await?;
            session.run(DELETE_OLDEST, args![row.key_id, sessions_max]).await?;
            session.commit().await
        })
    }

    /// Returns the session with this id.
    pub async fn console_session(&self, id: &str) -> Result<Option<ConsoleSessionRow>, StoreError> {
        self.authentic_one(SESSION, args![id]).await
    }

    /// Records the last use of a session. Does nothing if the session was deleted meanwhile.
    pub async fn use_console_session(&self, row: &ConsoleSessionRow) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            if session.run(DELETE_SESSION, args![&row.id]).await? > 0 {
                insert(&mut session, self.rows()?, row, values![&row.messages], Vec::new()).await?;
            }
            session.commit().await
        })
    }

    /// Replaces the texts that the next page of a session shows.
    pub async fn set_console_messages(&self, id: &str, messages: &str) -> Result<(), StoreError> {
        self.db.run(SET_MESSAGES, args![id, messages]).await.map(drop)
    }

    /// Ends a session. Returns whether it existed.
    pub async fn delete_console_session(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.db.run(DELETE_SESSION, args![id]).await? > 0)
    }

    /// Inserts a link, and deletes the oldest links of its key if it has more than `tickets_max`.
    pub async fn insert_console_ticket(&self, row: &ConsoleTicketRow, tickets_max: i64) -> Result<(), StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            insert(&mut session, self.rows()?, row, Vec::new(), Vec::new()).await?;
            session.run(DELETE_OLDEST_TICKETS, args![row.key_id, tickets_max]).await?;
            session.commit().await
        })
    }

    /// Returns the link with this id.
    pub async fn console_ticket(&self, id: &str) -> Result<Option<ConsoleTicketRow>, StoreError> {
        self.authentic_one(TICKET, args![id]).await
    }

    /// Uses up a link. Returns false if it does not exist any more. Of two concurrent uses, one gets true.
    pub async fn delete_console_ticket(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.db.run(DELETE_TICKET, args![id]).await? > 0)
    }

    /// Deletes the sessions and the links that ended before `now`, and the sessions that were last used before
    /// `unused_since`.
    pub async fn purge_console(&self, now: UtcMillis, unused_since: UtcMillis) -> Result<u64, StoreError> {
        let sessions = "delete from console_sessions where ends_at < $1 or last_used_at < $2";
        let deleted = self.db.run(sessions, args![now, unused_since]).await?;
        Ok(deleted + self.db.run("delete from console_tickets where expires_at < $1", args![now]).await?)
    }
}
