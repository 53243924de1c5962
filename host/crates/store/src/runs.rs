//! Runs of workflows and their journals.
//!
//! What a run and its steps contain is sealed. The other columns select rows. A run starts nothing by its row alone: its
//! sealed record is bound to the workflow, the version, the bot and the starter in the row.
//!
//! Each transaction of a turn names the claim of the wake of the run or of the step, so that a host whose claim was
//! replaced writes nothing. What people ask of a run is in its sealed record, because undoing has effects, and in a column for
//! lists. People and turns replace the record only if it is the one that they have read.

mod calls;
mod reads;
mod room;
mod steps;
mod turn;
mod waits;

use monstrum_types::{BotId, EventId, KeyId, Labels, RunId, UtcMillis, WorkflowId, WorkspaceId, words};

use crate::db::{Session, args, from_row, retry};
use crate::plugins::digest_of;
use crate::wakes::NewWake;
use crate::{Listed, Page, Store, StoreError};

pub use calls::ParkedRunStep;
pub use reads::{InvalidStepCursor, RunStepCursor, RunStepHead};
pub use room::RunRoom;
pub use steps::{EndedRunStep, ResolvedRunStep, RunStepKey, RunStepPhase, RunStepRow, RunStepStatus, RunStepStop};
pub use turn::{AdvancedRun, ChildOfStep, ChildRefusal, NewChild, RunProgress};
pub(crate) use waits::wake_of_task;

words! {
    /// The status of a run.
    pub enum RunStatus {
        /// The run waits for room.
        Queued = "queued",
        Running = "running",
        /// Nothing runs, and something is awaited.
        Waiting = "waiting",
        /// A person has paused the run, and nothing of it runs.
        Paused = "paused",
        /// The run undoes its steps.
        Undoing = "undoing",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

words! {
    /// The kind of what started a run.
    pub enum RunStarter {
        Key = "key",
        Trigger = "trigger",
        Schedule = "schedule",
        /// A step of another run.
        Run = "run",
    }
}

words! {
    /// What a person asks of a run.
    pub enum RunRequest {
        Pause = "pause",
        Cancel = "cancel",
        /// To cancel the run and to undo its steps.
        CancelAndUndo = "cancel_and_undo",
    }
}

/// A row of `runs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    pub id: RunId,
    pub workspace_id: WorkspaceId,
    pub workflow_id: WorkflowId,
    /// The name of the workflow.
    pub workflow: String,
    pub version: i64,
    pub bot_id: BotId,
    pub status: RunStatus,
    /// 1, and one more for each time that a person has retried the run.
    pub attempt: i64,
    pub started_by_kind: RunStarter,
    pub started_by_id: String,
    pub event_id: Option<EventId>,
    pub delivery_id: Option<String>,
    /// The run whose step started this one.
    pub parent_run_id: Option<RunId>,
    /// Runs of a workflow with the same key share its limit of concurrency: see [`RunRow::concurrency_column`].
    pub concurrency_key: Option<String>,
    pub asked: Option<RunRequest>,
    /// Why the run failed.
    pub code: Option<String>,
    pub labels: Labels,
    pub created_at: UtcMillis,
    pub started_at: Option<UtcMillis>,
    /// When the time-out of the run is over.
    pub deadline_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
    /// The input, the output and the error: a sealed record in its text form.
    pub sealed: String,
}

from_row! {
    RunRow {
        id, workspace_id, workflow_id, workflow, version, bot_id, status, attempt, started_by_kind, started_by_id,
        event_id, delivery_id, parent_run_id, concurrency_key, asked, code, labels, created_at, started_at, deadline_at,
        ended_at, sealed,
    }
}

struct Count {
    status: RunStatus,
    value: u64,
}

from_row! { Count { status, value } }

/// A filter for a list of runs.
#[derive(Clone, Debug, Default)]
pub struct RunFilter<'a> {
    pub workflow: Option<WorkflowId>,
    pub bot: Option<BotId>,
    pub status: Option<RunStatus>,
    /// The id of what started the runs.
    pub started_by: Option<&'a str>,
    /// The earliest time at which the runs were created.
    pub since: Option<UtcMillis>,
}

/// The maximum numbers of runs that have not ended, with a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunsMax {
    pub of_workspace: i64,
    /// The maximum number of runs of the workspace that wait for room.
    pub queued: i64,
    /// The maximum number of runs of the workflow with the same concurrency key, if it starts no run beyond its limit;
    /// `None` if such a run is queued.
    pub of_key: Option<i64>,
}

/// A run to insert, with the wake of its first turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    pub row: RunRow,
    pub wake: NewWake,
    pub max: RunsMax,
}

/// The result of retrying a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetriedRun {
    Retried,
    /// The workspace has too many runs that have not ended, or that wait for room.
    Full,
    /// The run has not failed and was not cancelled, or has changed since it was read.
    Changed,
}

/// The result of inserting a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedRun {
    Inserted,
    /// The workspace has too many runs that have not ended, or that wait for room.
    Full,
    /// The workflow has as many runs as its limit of concurrency allows, and starts none beyond it.
    Skipped,
    /// The workflow was disabled or deleted.
    Disabled,
}

macro_rules! run_columns {
    () => {
        "id, workspace_id, workflow_id, workflow, version, bot_id, status, attempt, started_by_kind, started_by_id, \
         event_id, delivery_id, parent_run_id, concurrency_key, asked, code, labels, created_at, started_at, \
         deadline_at, ended_at, sealed"
    };
}

macro_rules! select_runs {
    ($rest:expr) => {
        concat!("select ", run_columns!(), " from runs ", $rest)
    };
}
pub(crate) use {run_columns, select_runs};

const EXISTS: &str = "select count(*) as value from runs where id = $1";
const BY_ID: &str = select_runs!("where workspace_id = $1 and id = $2");
const PAGE: &str = select_runs!(
    "where workspace_id = $1 and ($2 is null or workflow_id = $2) and ($3 is null or bot_id = $3) \
     and ($4 is null or status = $4) and ($5 is null or started_by_id = $5) \
     and (cast($6 as bigint) is null or created_at >= cast($6 as bigint)) and ($7 = '' or id < $7) \
     order by id desc limit $8"
);
// The update locks the row of the workspace, so that two insertions do not exceed a limit together.
pub(crate) const LOCK_WORKSPACE: &str = "update workspaces set name = name where id = $1";
const UNENDED: &str = "select count(*) as value from runs where workspace_id = $1 and ended_at is null";
const QUEUED: &str =
    "select count(*) as value from runs where workspace_id = $1 and status = 'queued' and ended_at is null";
const OF_KEY: &str = "\
    select count(*) as value from runs where workflow_id = $1 and concurrency_key = $2 and ended_at is null";
const INSERT: &str = concat!(
    "insert into runs (",
    run_columns!(),
    ") select $1, workspace_id, id, name, cast($4 as bigint), bot_id, $5, cast($6 as bigint), $7, $8, cast($9 as text), \
     cast($10 as text), cast($11 as text), cast($12 as text), null, null, $13, cast($14 as bigint), null, null, null, $15 \
     from workflows where workspace_id = $2 and id = $3 and enabled"
);
// What a person may ask depends on what the sealed record says, which the caller has read. The column decides nothing:
// whoever can write to it must not block a cancellation.
const ASK: &str = "\
    update runs set asked = $3, sealed = $4 where workspace_id = $1 and id = $2 and ended_at is null and sealed = $5";
const RESUME: &str = "\
    update runs set asked = null, sealed = $3 where workspace_id = $1 and id = $2 and ended_at is null and sealed = $4";
const RETRY: &str = "\
    update runs set status = 'queued', attempt = attempt + 1, asked = null, code = null, started_at = null, \
    deadline_at = null, ended_at = null, awaits = null, sealed = $3 where workspace_id = $1 and id = $2 and sealed = $4 \
    and status in ('failed', 'cancelled')";
const FORGET: &str = "delete from runs where ended_at < $1";
const WAKE_OF_KEY: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'run/' || id, workspace_id, cast($3 as bigint), 1 from runs \
    where workspace_id = $1 and started_by_kind = 'key' and started_by_id = $2 and ended_at is null order by 1 \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 where wakes.workspace_id = excluded.workspace_id returning key as value";
const COUNT_UNENDED: &str = "select status, count(*) as value from runs where ended_at is null group by status";
const UNENDED_OF_WORKFLOW: &str = "select count(*) as value from runs where workflow_id = $1 and ended_at is null";

/// Returns whether a workflow has runs that have not ended.
pub(crate) async fn has_unended(session: &mut Session, workflow: WorkflowId) -> Result<bool, StoreError> {
    let unended: Option<i64> = session.one(UNENDED_OF_WORKFLOW, args![workflow]).await?;
    Ok(unended.is_none_or(|unended| unended > 0))
}

/// Returns whether a workspace has room for another run. No other transaction fills it before this one ends.
async fn has_room(session: &mut Session, workspace: WorkspaceId, max: RunsMax) -> Result<bool, StoreError> {
    session.run(LOCK_WORKSPACE, args![workspace]).await?;
    // A count that is missing must not let anything start.
    let unended: Option<i64> = session.one(UNENDED, args![workspace]).await?;
    let queued: Option<i64> = session.one(QUEUED, args![workspace]).await?;
    Ok(unended.is_some_and(|unended| unended < max.of_workspace) && queued.is_some_and(|queued| queued < max.queued))
}

/// Writes a run with its wake in a transaction. Without [`InsertedRun::Inserted`], nothing of the run was written.
pub(crate) async fn write_run(
    session: &mut Session,
    row: &RunRow,
    wake: &NewWake,
    max: RunsMax,
) -> Result<InsertedRun, StoreError> {
    if !has_room(session, row.workspace_id, max).await? {
        return Ok(InsertedRun::Full);
    }
    if let Some(key_max) = max.of_key {
        let of_key: Option<i64> = session.one(OF_KEY, args![row.workflow_id, &row.concurrency_key]).await?;
        if of_key.is_none_or(|of_key| of_key >= key_max) {
            return Ok(InsertedRun::Skipped);
        }
    }
    let values = args![
        row.id,
        row.workspace_id,
        row.workflow_id,
        row.version,
        row.status.as_str(),
        row.attempt,
        row.started_by_kind.as_str(),
        &row.started_by_id,
        row.event_id,
        &row.delivery_id,
        row.parent_run_id,
        &row.concurrency_key,
        &row.labels,
        row.created_at,
        &row.sealed,
    ];
    if session.run(INSERT, values).await? == 0 {
        return Ok(InsertedRun::Disabled);
    }
    if !wake.write(session).await? {
        return Err(StoreError::UnknownReference);
    }
    Ok(InsertedRun::Inserted)
}

impl RunRow {
    /// Returns the column for the key of a workflow's limit of concurrency; without a key, all runs of the workflow share
    /// the limit. A key is made of the input, so the column has only its digest, which shows nothing and is short.
    #[must_use]
    pub fn concurrency_column(key: Option<&str>) -> String {
        key.map_or_else(|| "all".to_owned(), |key| digest_of(key.as_bytes()).to_string())
    }
}

impl RunStatus {
    /// Returns whether a run with this status has ended.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self, RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled)
    }
}

impl Store {
    /// Inserts a run with its wake. The name and the bot are those of the workflow.
    pub async fn insert_run(&self, row: &RunRow, wake: &NewWake, max: RunsMax) -> Result<InsertedRun, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let inserted = write_run(&mut session, row, wake, max).await?;
            if inserted == InsertedRun::Inserted {
                session.commit().await?;
            }
            Ok(inserted)
        })
    }

    /// Returns whether a run of any workspace has this id.
    pub async fn is_run(&self, id: RunId) -> Result<bool, StoreError> {
        let found: Option<i64> = self.db.one(EXISTS, args![id]).await?;
        Ok(found.is_some_and(|found| found > 0))
    }

    /// Returns the run with this id in the workspace.
    pub async fn run(&self, workspace: WorkspaceId, id: RunId) -> Result<Option<RunRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the runs in a workspace that match the filter, newest first.
    pub async fn runs(
        &self,
        workspace: WorkspaceId,
        filter: &RunFilter<'_>,
        page: &Page<RunId>,
    ) -> Result<Listed<RunRow, RunId>, StoreError> {
        let RunFilter { workflow, bot, status, started_by, since } = filter;
        let (status, after) = (status.map(RunStatus::as_str), page.after());
        let values = args![workspace, *workflow, *bot, status, *started_by, *since, &after, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, |row: &RunRow| row.id))
    }

    /// Records what a person asks of a run, and requests its turn. `sealed` is the new record; the caller has read in the one
    /// before that this may be asked. Returns `false` if the run has ended, was deleted or has changed since it was read.
    pub async fn ask_run(
        &self,
        before: &RunRow,
        asked: RunRequest,
        sealed: &str,
        wake: &NewWake,
    ) -> Result<bool, StoreError> {
        let values = args![before.workspace_id, before.id, asked.as_str(), sealed, &before.sealed];
        self.change_run(wake, ASK, values).await
    }

    /// Lets a run go on that the caller has read to be paused. Returns `false` if the run has ended, was deleted or has changed
    /// since it was read.
    pub async fn resume_run(&self, before: &RunRow, sealed: &str, wake: &NewWake) -> Result<bool, StoreError> {
        self.change_run(wake, RESUME, args![before.workspace_id, before.id, sealed, &before.sealed]).await
    }

    /// Begins the next attempt of a run that has failed or was cancelled. The caller has read in its record that no step is
    /// uncertain.
    pub async fn retry_run(
        &self,
        before: &RunRow,
        sealed: &str,
        wake: &NewWake,
        max: RunsMax,
    ) -> Result<RetriedRun, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            // The lock of the workspace precedes the wake, as in the turn of a run.
            if !has_room(&mut session, before.workspace_id, max).await? {
                return Ok(RetriedRun::Full);
            }
            wake.write(&mut session).await?;
            if session.run(RETRY, args![before.workspace_id, before.id, sealed, &before.sealed]).await? == 0 {
                return Ok(RetriedRun::Changed);
            }
            session.commit().await?;
            Ok(RetriedRun::Retried)
        })
    }

    async fn change_run(
        &self,
        wake: &NewWake,
        sql: &'static str,
        values: &[crate::db::Arg<'_>],
    ) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            // The wake comes first, as in the turn of a run.
            wake.write(&mut session).await?;
            if session.run(sql, values).await? == 0 {
                return Ok(false);
            }
            session.commit().await?;
            Ok(true)
        })
    }

    /// Requests turns of the runs that a key has started, because the key was deleted or rotated. Returns their wakes.
    pub async fn wake_runs_of_key(
        &self,
        workspace_id: WorkspaceId,
        key: KeyId,
        due_at: UtcMillis,
    ) -> Result<Vec<NewWake>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let keys: Vec<String> = session.all(WAKE_OF_KEY, args![workspace_id, &key.to_string(), due_at]).await?;
            session.commit().await?;
            // A key that cannot be read belongs to no run.
            let keys = keys.into_iter().filter_map(|key| key.parse().ok());
            Ok(keys.map(|key| NewWake { key, workspace_id, due_at, claim: None }).collect())
        })
    }

    /// Returns the numbers of runs that have not ended, of all workspaces, by their status. A status without runs is left out.
    pub async fn count_unended_runs(&self) -> Result<Vec<(RunStatus, u64)>, StoreError> {
        let counts: Vec<Count> = self.db.all(COUNT_UNENDED, args![]).await?;
        Ok(counts.into_iter().map(|count| (count.status, count.value)).collect())
    }

    /// Deletes the runs that ended before a time, with their steps. Returns the number of runs.
    pub async fn forget_runs(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET, args![before]).await
    }
}
