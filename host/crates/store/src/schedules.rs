//! Schedules: the times at which bots start tasks.
//!
//! What a person saved is sealed and bound to the id, the workspace, the bot, the name and the times of the changes. The
//! other columns select rows and say what is next.

mod firing;

use monstrum_types::{BotId, ScheduleId, TaskId, UtcMillis, WorkspaceId, words};

use crate::db::{args, from_row, retry};
use crate::wakes::NewWake;
use crate::{Listed, Page, Store, StoreError};

pub(crate) use firing::end_run;
pub use firing::{FiredSchedule, ScheduleFiring, ScheduledTask};

/// A row of `schedules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRow {
    pub id: ScheduleId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    pub name: String,
    /// The planned time of the next firing.
    pub next_at: Option<UtcMillis>,
    /// The last firing.
    pub last_planned_at: Option<UtcMillis>,
    pub last_fired_at: Option<UtcMillis>,
    pub last_task_id: Option<TaskId>,
    pub last_status: Option<ScheduleRunStatus>,
    /// The number of failures in a row.
    pub failures: i64,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// What a person saved: a sealed record in its text form.
    pub sealed: String,
}

from_row! {
    ScheduleRow {
        id, workspace_id, bot_id, name, next_at, last_planned_at, last_fired_at, last_task_id, last_status, failures,
        created_at, updated_at, sealed,
    }
}

words! {
    /// What became of a firing.
    pub enum ScheduleRunStatus {
        /// The firing waits for the end of an earlier task.
        Queued = "queued",
        /// The task of the firing has not ended.
        Running = "running",
        /// The task is completed.
        Completed = "completed",
        /// The task failed, or could not be started.
        Failed = "failed",
        /// The task was cancelled.
        Cancelled = "cancelled",
        /// An earlier task had not ended, so no task was started.
        Skipped = "skipped",
        /// No host was there at the planned time, and the schedule does not make up for it.
        Missed = "missed",
    }
}

/// A row of `schedule_runs`: a firing of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRun {
    pub planned_at: UtcMillis,
    /// Whether a person asked for the firing. Such a firing does not count as a failure of the schedule.
    pub is_manual: bool,
    pub status: ScheduleRunStatus,
    pub fired_at: UtcMillis,
    pub task_id: Option<TaskId>,
}

from_row! { ScheduleRun { planned_at, is_manual, status, fired_at, task_id } }

/// The firings of a schedule that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningSchedule {
    /// The number of tasks that have not ended.
    pub tasks: i64,
    /// The firings that wait for the end of a task, in the order of their times.
    pub queued: Vec<ScheduleRun>,
}

/// The maximum numbers of schedules.
#[derive(Clone, Copy, Debug)]
pub struct SchedulesMax {
    pub of_bot: i64,
    pub of_workspace: i64,
}

/// The result of inserting a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedSchedule {
    Inserted,
    /// The bot has the maximum number of schedules.
    BotFull,
    /// The workspace has the maximum number of schedules.
    WorkspaceFull,
}

macro_rules! select {
    ($rest:expr) => {
        concat!(
            "select id, workspace_id, bot_id, name, next_at, last_planned_at, last_fired_at, last_task_id, last_status, \
             failures, created_at, updated_at, sealed from schedules ",
            $rest
        )
    };
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 = '' or id < $3) order by id desc limit $4"
);
const INSERT: &str = "\
    insert into schedules (id, workspace_id, bot_id, name, next_at, failures, created_at, updated_at, sealed) \
    select $1, workspace_id, id, $4, cast($5 as bigint), 0, cast($6 as bigint), cast($6 as bigint), $7 from bots \
    where workspace_id = $2 and id = $3";
const UPDATE: &str = "\
    update schedules set name = $4, next_at = $5, failures = $6, updated_at = $7, sealed = $8 \
    where workspace_id = $1 and id = $2 and updated_at = $3";
const DELETE: &str = "delete from schedules where workspace_id = $1 and id = $2 and updated_at = $3";
const OF_BOT: &str = "select count(*) as value from schedules where workspace_id = $1 and bot_id = $2";
const OF_WORKSPACE: &str = "select count(*) as value from schedules where workspace_id = $1";
// The update locks the row of the workspace, so that two insertions do not exceed a limit together.
const LOCK_WORKSPACE: &str = "update workspaces set name = name where id = $1";
const RUNNING: &str = "\
    select count(*) as value from schedule_runs join tasks on tasks.id = schedule_runs.task_id \
    where schedule_runs.schedule_id = $1 and schedule_runs.status = 'running' and tasks.ended_at is null";
const QUEUED: &str = "\
    select planned_at, is_manual, status, fired_at, task_id from schedule_runs \
    where schedule_id = $1 and status = 'queued' order by planned_at limit $2";
const PAUSED: &str = select!("where workspace_id = $1 and failures >= $2 order by id desc limit $3");
const OF_TASK: &str = select!("where id = (select schedule_id from schedule_runs where task_id = $1)");
const FORGET_RUNS: &str = "delete from schedule_runs where fired_at < $1 and status not in ('queued', 'running')";

impl Store {
    /// Inserts a schedule with its wake.
    pub async fn insert_schedule(
        &self,
        row: &ScheduleRow,
        wake: Option<&NewWake>,
        max: SchedulesMax,
    ) -> Result<InsertedSchedule, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK_WORKSPACE, args![row.workspace_id]).await?;
            let of_bot: Option<i64> = session.one(OF_BOT, args![row.workspace_id, row.bot_id]).await?;
            if of_bot.unwrap_or(i64::MAX) >= max.of_bot {
                return Ok(InsertedSchedule::BotFull);
            }
            let of_workspace: Option<i64> = session.one(OF_WORKSPACE, args![row.workspace_id]).await?;
            if of_workspace.unwrap_or(i64::MAX) >= max.of_workspace {
                return Ok(InsertedSchedule::WorkspaceFull);
            }
            let ScheduleRow { id, workspace_id, bot_id, name, next_at, created_at, sealed, .. } = row;
            let values = args![*id, *workspace_id, *bot_id, name, *next_at, *created_at, sealed];
            if session.run(INSERT, values).await? == 0 {
                return Err(StoreError::UnknownReference);
            }
            if let Some(wake) = wake {
                wake.write(&mut session).await?;
            }
            session.commit().await?;
            Ok(InsertedSchedule::Inserted)
        })
    }

    /// Returns the schedule with this id in the workspace.
    pub async fn schedule(&self, workspace: WorkspaceId, id: ScheduleId) -> Result<Option<ScheduleRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the schedules in a workspace, or of a bot, newest first.
    pub async fn schedules(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        page: &Page<ScheduleId>,
    ) -> Result<Listed<ScheduleRow, ScheduleId>, StoreError> {
        let after = page.after();
        let values = args![workspace, bot, &after, page.rows()];
        Ok(page.of(self.db.all(PAGE, values).await?, |row: &ScheduleRow| row.id))
    }

    /// Returns schedules of the workspace that are paused because they failed too often, newest first.
    pub async fn paused_schedules(&self, workspace: WorkspaceId, limit: u32) -> Result<Vec<ScheduleRow>, StoreError> {
        self.db.all(PAUSED, args![workspace, ScheduleRow::FAILURES_MAX, i64::from(limit)]).await
    }

    /// Changes a schedule that was last changed at `before`, and requests its next turn. Returns `false` if the schedule
    /// was changed since or does not exist.
    pub async fn update_schedule(
        &self,
        row: &ScheduleRow,
        before: UtcMillis,
        wake: &NewWake,
    ) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            wake.write(&mut session).await?;
            let ScheduleRow { id, workspace_id, name, next_at, failures, updated_at, sealed, .. } = row;
            let values = args![*workspace_id, *id, before, name, *next_at, *failures, *updated_at, sealed];
            if session.run(UPDATE, values).await? == 0 {
                return Ok(false);
            }
            session.commit().await?;
            Ok(true)
        })
    }

    /// Deletes a schedule that was last changed at `before`. Its tasks go on. Returns `false` if the schedule was changed
    /// since or does not exist.
    pub async fn delete_schedule(
        &self,
        workspace: WorkspaceId,
        id: ScheduleId,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        Ok(self.db.run(DELETE, args![workspace, id, before]).await? > 0)
    }

    /// Returns the firings of a schedule that have not ended, with at most `limit` that wait.
    pub async fn running_schedule(&self, id: ScheduleId, limit: u32) -> Result<RunningSchedule, StoreError> {
        let tasks: Option<i64> = self.db.one(RUNNING, args![id]).await?;
        let queued = self.db.all(QUEUED, args![id, i64::from(limit)]).await?;
        Ok(RunningSchedule { tasks: tasks.unwrap_or(0), queued })
    }

    /// Returns the schedule that started a task.
    pub async fn schedule_of_task(&self, task: TaskId) -> Result<Option<ScheduleRow>, StoreError> {
        self.db.one(OF_TASK, args![task]).await
    }

    /// Deletes the ended firings that happened before a time. Returns their number.
    pub async fn forget_schedule_runs(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET_RUNS, args![before]).await
    }
}
