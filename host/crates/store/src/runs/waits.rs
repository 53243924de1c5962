//! What steps of runs wait for outside of their runs: events, and the ends of tasks.

use monstrum_types::{TaskId, UtcMillis, WorkspaceId};

use crate::db::{Session, args};
use crate::{SequencedEvent, Store, StoreError};

const OPEN_WAITS: &str = "\
    select count(*) as value from run_steps where workspace_id = $1 and wait_event = $2 and ended_at is null";
const EVENTS_OF_TYPE: &str = "\
    select id, workspace_id, event_type, source_type, source_id, bot_id, root_event_id, depth, links, created_at, \
    sealed, sequence from events where workspace_id = $1 and event_type = $2 and sequence > $3 and created_at >= $4 \
    order by sequence limit $5";
const WAKE_OF_TASK: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'run/' || run_id, workspace_id, cast($2 as bigint), 1 from run_steps \
    where task_id = $1 and ended_at is null order by position limit 1 \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 where wakes.workspace_id = excluded.workspace_id returning key as value";

/// Requests a turn of the run whose step has started a task, in the transaction that ends the task. Returns its key.
pub(crate) async fn wake_of_task(
    session: &mut Session,
    task: TaskId,
    now: UtcMillis,
) -> Result<Option<String>, StoreError> {
    session.one(WAKE_OF_TASK, args![task, now]).await
}

impl Store {
    /// Returns the number of attempts in a workspace that wait for events of a type.
    pub async fn count_event_waits(&self, workspace: WorkspaceId, event_type: &str) -> Result<i64, StoreError> {
        Ok(self.db.one(OPEN_WAITS, args![workspace, event_type]).await?.unwrap_or(i64::MAX))
    }

    /// Returns the dispatched events of a type that were created at or after a time, after a position, in the order of their
    /// positions.
    pub async fn events_of_type(
        &self,
        workspace: WorkspaceId,
        event_type: &str,
        (sequence, since): (i64, UtcMillis),
        limit: u32,
    ) -> Result<Vec<SequencedEvent>, StoreError> {
        self.db.all(EVENTS_OF_TYPE, args![workspace, event_type, sequence, since, i64::from(limit)]).await
    }
}
