//! Events: what happened, as far as other parts can react to it. The content of an event is a sealed record.
//!
//! An event is inserted together with its wake. The turn of the wake dispatches the event: it gets its position among the
//! events of the workspace, and a delivery for each of its targets.

use monstrum_types::{BotId, EventId, UtcMillis, WakeKey, WakeKind, WorkspaceId};

use crate::db::{Arg, FromRow, Row, Session, args, from_row, retry, values};
use crate::wakes::NewWake;
use crate::{Listed, Page, Store, StoreError};

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

/// An event with its position among the events of its workspace; `None` until it is dispatched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencedEvent {
    pub sequence: Option<i64>,
    pub row: EventRow,
}

impl FromRow for SequencedEvent {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(SequencedEvent { sequence: row.get("sequence")?, row: EventRow::from_row(row)? })
    }
}

/// A filter for a list of events.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    pub source_type: Option<String>,
    pub bot: Option<BotId>,
    /// The earliest time, which is included, and the latest, which is not.
    pub since: Option<UtcMillis>,
    pub until: Option<UtcMillis>,
}

const INSERT: &str = "\
    insert into events (id, workspace_id, event_type, source_type, source_id, bot_id, root_event_id, depth, links, \
    created_at, sealed) \
    select $1, id, $3, $4, $5, $6, $7, cast($8 as bigint), $9, cast($10 as bigint), $11 from workspaces where id = $2";
// The event is new, and so is the key of its wake.
const INSERT_WAKE: &str = "\
    insert into wakes (key, workspace_id, due_at, version) values ('event/' || $1, $2, $3, 1)";

macro_rules! select {
    ($rest:expr) => {
        concat!(
            "select id, workspace_id, event_type, source_type, source_id, bot_id, root_event_id, depth, links, \
             created_at, sealed, sequence from events ",
            $rest
        )
    };
}

const ONE: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or source_type = $2) and ($3 is null or bot_id = $3) \
     and ($4 is null or created_at >= $4) and ($5 is null or created_at < $5) and ($6 = '' or id < $6) \
     order by id desc limit $7"
);
const AFTER: &str = select!("where workspace_id = $1 and sequence > $2 order by sequence limit $3");
const LAST: &str = "select coalesce(max(sequence), 0) as value from event_counters where workspace_id = $1";
const FORGET: &str = "delete from events where created_at < $1";

/// Returns the wake of an event, which is written together with the event.
///
/// # Panics
///
/// Never, because an id has only characters of keys.
#[must_use]
pub fn wake_of(event: &EventRow) -> NewWake {
    let key = WakeKey::new(WakeKind::Event, event.id).expect("an id has only characters of keys");
    NewWake { key, workspace_id: event.workspace_id, due_at: event.created_at, claim: None }
}

impl EventRow {
    /// Returns the statements that insert the row and its wake. The second runs only if the first has inserted the row.
    pub(crate) fn statements(&self) -> [(&'static str, Vec<Arg<'_>>); 2] {
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
        [(INSERT, values), (INSERT_WAKE, values![self.id, self.workspace_id, self.created_at])]
    }

    /// Inserts the row and its wake in a transaction. Returns `false` if its workspace does not exist.
    pub(crate) async fn insert(&self, session: &mut Session) -> Result<bool, StoreError> {
        let [(insert, row), (insert_wake, wake)] = self.statements();
        if session.run(insert, &row).await? == 0 {
            return Ok(false);
        }
        session.run(insert_wake, &wake).await?;
        Ok(true)
    }
}

impl Store {
    /// Inserts an event with its wake. Returns `false` if its workspace does not exist.
    pub async fn insert_event(&self, row: &EventRow) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let is_inserted = row.insert(&mut session).await?;
            session.commit().await?;
            Ok(is_inserted)
        })
    }

    /// Returns an event.
    pub async fn event(&self, workspace: WorkspaceId, id: EventId) -> Result<Option<EventRow>, StoreError> {
        Ok(self.sequenced_event(workspace, id).await?.map(|event| event.row))
    }

    /// Returns an event with its position.
    pub async fn sequenced_event(
        &self,
        workspace: WorkspaceId,
        id: EventId,
    ) -> Result<Option<SequencedEvent>, StoreError> {
        self.db.one(ONE, args![workspace, id]).await
    }

    /// Returns a page of the events in a workspace that match the filter, newest first.
    pub async fn events_page(
        &self,
        workspace: WorkspaceId,
        filter: &EventFilter,
        page: &Page<EventId>,
    ) -> Result<Listed<SequencedEvent, EventId>, StoreError> {
        let EventFilter { source_type, bot, since, until } = filter;
        let after = page.after();
        let values = args![workspace, source_type, *bot, *since, *until, &after, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, |event: &SequencedEvent| event.row.id))
    }

    /// Returns the dispatched events of a workspace after a position, in the order of their positions.
    pub async fn events_after(
        &self,
        workspace: WorkspaceId,
        sequence: i64,
        limit: u32,
    ) -> Result<Vec<SequencedEvent>, StoreError> {
        self.db.all(AFTER, args![workspace, sequence, i64::from(limit)]).await
    }

    /// Returns the position of the last event of a workspace that was dispatched, or 0.
    pub async fn last_event_sequence(&self, workspace: WorkspaceId) -> Result<i64, StoreError> {
        Ok(self.db.one(LAST, args![workspace]).await?.unwrap_or(0))
    }

    /// Deletes the events that were created before a time, with their deliveries. Returns their number.
    pub async fn forget_events(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET, args![before]).await
    }
}
