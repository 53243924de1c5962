//! Events: what happened, as far as other parts can react to it. The content of an event is a sealed record.

use monstrum_types::{BotId, EventId, UtcMillis, WorkspaceId};

use crate::db::{Arg, Session, args, from_row, values};
use crate::{Store, StoreError};

/// A row of `events`. Its column `sequence` is NULL until the event is dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    pub id: EventId,
    pub workspace_id: WorkspaceId,
    /// The type, such as `task.completed`.
    pub event_type: String,
    /// The kind and the id of the object that the event is about.
    pub source_type: String,
    pub source_id: String,
    /// The bot that the event belongs to; `None` for an event of the platform.
    pub bot_id: Option<BotId>,
    /// The event that the chain of causes began with: the event itself, if no other event caused it.
    pub root_event_id: EventId,
    /// The number of causes between the first event and this one.
    pub depth: u64,
    /// The objects that the event comes from, as the text of a JSON object.
    pub links: String,
    pub created_at: UtcMillis,
    /// The data of the event: a sealed record in its text form.
    pub sealed: String,
}

from_row! {
    EventRow {
        id, workspace_id, event_type, source_type, source_id, bot_id, root_event_id, depth, links, created_at, sealed,
    }
}

const INSERT: &str = "\
    insert into events (id, workspace_id, event_type, source_type, source_id, bot_id, root_event_id, depth, links, \
    created_at, sealed) \
    select $1, id, $3, $4, $5, $6, $7, cast($8 as bigint), $9, cast($10 as bigint), $11 from workspaces where id = $2";
const ONE: &str = "\
    select id, workspace_id, event_type, source_type, source_id, bot_id, root_event_id, depth, links, created_at, sealed \
    from events where workspace_id = $1 and id = $2";
const FORGET: &str = "delete from events where created_at < $1";

impl EventRow {
    /// Returns the statement that inserts the row.
    pub(crate) fn statement(&self) -> (&'static str, Vec<Arg<'_>>) {
        let depth = i64::try_from(self.depth).unwrap_or(i64::MAX);
        let values = values![
            self.id,
            self.workspace_id,
            &self.event_type,
            &self.source_type,
            &self.source_id,
            self.bot_id,
            self.root_event_id,
            depth,
            &self.links,
            self.created_at,
            &self.sealed,
        ];
        (INSERT, values)
    }

    /// Inserts the row in a transaction. Returns `false` if its workspace does not exist.
    pub(crate) async fn insert(&self, session: &mut Session) -> Result<bool, StoreError> {
        let (sql, values) = self.statement();
        Ok(session.run(sql, &values).await? > 0)
    }
}

impl Store {
    /// Inserts an event. Returns `false` if its workspace does not exist.
    pub async fn insert_event(&self, row: &EventRow) -> Result<bool, StoreError> {
        let (sql, values) = row.statement();
        Ok(self.db.run(sql, &values).await? > 0)
    }

    /// Returns an event.
    pub async fn event(&self, workspace: WorkspaceId, id: EventId) -> Result<Option<EventRow>, StoreError> {
        self.db.one(ONE, args![workspace, id]).await
    }

    /// Deletes the events that were created before a time. Returns their number.
    pub async fn forget_events(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET, args![before]).await
    }
}
