//! Schedules: the times at which tasks of bots and runs of workflows start.
//!
//! What a person saved is sealed and bound to the id, the workspace, the bot, the name and the times of the changes, which the
//! MAC covers. The other columns say what is next. Every change of a schedule has a later time than the change before, so that
//! the seal of the workspace reveals a row that was restored together with an older record.

mod firing;

use monstrum_types::{BotId, RunId, ScheduleId, TaskId, UtcMillis, WorkspaceId, words};

use crate::db::{args, from_row, values};
use crate::rows::{Authentic as _, Scope, authentic, change};
use crate::wakes::NewWake;
use crate::{Listed, Page, Store, StoreError};

pub(crate) use firing::{EndedWork, end_work, request_turn_of};
pub use firing::{FiredSchedule, ScheduleFiring, ScheduledRun, ScheduledTask, ScheduledWork};

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
    pub last_run_id: Option<RunId>,
    pub last_status: Option<ScheduleRunStatus>,
    /// The number of failures in a row.
    pub failures: i64,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// What a person saved: a sealed record in its text form.
    pub sealed: String,
}

authentic! {
    ScheduleRow in Schedules("schedules"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, bot_id, name, created_at, updated_at],
    // The sealed record authenticates itself, and a rotation of the master key replaces it. The other columns change with
    // each firing.
    others: [next_at, last_planned_at, last_fired_at, last_task_id, last_run_id, last_status, failures, sealed],
}

words! {
    /// What became of a firing.
    pub enum ScheduleRunStatus {
        /// The firing waits for the end of an earlier task or run.
        Queued = "queued",
        /// The task or run of the firing has not ended.
        Running = "running",
        /// The task or run is completed.
        Completed = "completed",
        /// The task or run failed, or could not be started.
        Failed = "failed",
        /// The task or run was cancelled.
        Cancelled = "cancelled",
        /// Nothing was started, because an earlier task or run had not ended, or the limit of the workflow was reached.
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
    pub run_id: Option<RunId>,
}

from_row! { ScheduleRun { planned_at, is_manual, status, fired_at, task_id, run_id } }

/// The firings of a schedule that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningSchedule {
    /// The number of tasks and runs that have not ended.
    pub started: i64,
    /// The firings that wait for the end of a task or run, in the order of their times.
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

/// A change of a schedule. The columns that firings write stay as they are, except those that the change names.
#[derive(Clone, Debug)]
pub struct ScheduleUpdate<'a> {
    /// The row with its new name, record and time of the change.
    pub row: &'a ScheduleRow,
    /// The time of the change before, as the caller read it.
    pub before: UtcMillis,
    /// The new planned time of the next firing; `None` keeps the stored time.
    pub next_at: Option<Option<UtcMillis>>,
    /// Whether the failures are forgotten.
    pub is_resumed: bool,
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 = '' or id < $3) order by id desc limit $4"
);
pub(crate) const OF_BOT: &str = select!("where workspace_id = $1 and bot_id = $2");
const SET_RECORD: &str = "update schedules set sealed = $2 where id = $1";
const SET_NEXT: &str = "update schedules set next_at = $2 where id = $1";
const RESUME: &str = "update schedules set failures = 0 where id = $1";
const COUNT_OF_BOT: &str = "select count(*) as value from schedules where workspace_id = $1 and bot_id = $2";
const COUNT_OF_WORKSPACE: &str = "select count(*) as value from schedules where workspace_id = $1";
const RUNNING: &str = "\
    select count(*) as value from schedule_runs \
    left join tasks on tasks.id = schedule_runs.task_id left join runs on runs.id = schedule_runs.run_id \
    where schedule_runs.schedule_id = $1 and schedule_runs.status = 'running' \
    and ((tasks.id is not null and tasks.ended_at is null) or (runs.id is not null and runs.ended_at is null))";
const QUEUED: &str = "\
    select planned_at, is_manual, status, fired_at, task_id, run_id from schedule_runs \
    where schedule_id = $1 and status = 'queued' order by planned_at limit $2";
const PAUSED: &str = select!("where workspace_id = $1 and failures >= $2 order by id desc limit $3");
const FORGET_RUNS: &str = "delete from schedule_runs where fired_at < $1 and status not in ('queued', 'running')";

impl Store {
    /// Inserts a schedule with its wake.
    pub async fn insert_schedule(
        &self,
        row: &ScheduleRow,
        wake: Option<&NewWake>,
        max: SchedulesMax,
    ) -> Result<InsertedSchedule, StoreError> {
        // The lock of the seal keeps two insertions from exceeding a limit together.
        change!(self, &[row.scope()], |change| {
            async {
                let (workspace, bot) = (row.workspace_id, row.bot_id);
                let of_bot: Option<i64> = change.session.one(COUNT_OF_BOT, args![workspace, bot]).await?;
                if of_bot.unwrap_or(i64::MAX) >= max.of_bot {
                    return Ok(InsertedSchedule::BotFull);
                }
                let of_workspace: Option<i64> = change.session.one(COUNT_OF_WORKSPACE, args![workspace]).await?;
                if of_workspace.unwrap_or(i64::MAX) >= max.of_workspace {
                    return Ok(InsertedSchedule::WorkspaceFull);
                }
                let ScheduleRow { next_at, last_planned_at, last_fired_at, last_status, .. } = row;
                let last_status = last_status.map(ScheduleRunStatus::as_str);
                let started = (row.last_task_id, row.last_run_id);
                let last = values![*next_at, *last_planned_at, *last_fired_at, started.0, started.1, last_status];
                let left_out = last.into_iter().chain(values![row.failures, &row.sealed]).collect();
                change.insert(row, left_out, Vec::new()).await?;
                if let Some(wake) = wake {
                    wake.write(&mut change.session).await?;
                }
                Ok(InsertedSchedule::Inserted)
            }
            .await
        })
    }

    /// Returns the schedule with this id in the workspace, if its row is authentic.
    pub async fn schedule(&self, workspace: WorkspaceId, id: ScheduleId) -> Result<Option<ScheduleRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns the schedule with this id in the workspace, even if another program wrote its row. Such a row can be
    /// deleted, and nothing else.
    pub async fn stored_schedule(
        &self,
        workspace: WorkspaceId,
        id: ScheduleId,
    ) -> Result<Option<ScheduleRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// Returns whether a schedule is unchanged since this process last verified its workspace. The columns that its
    /// firings change do not count.
    pub fn is_verified_schedule(&self, row: &ScheduleRow) -> Result<bool, StoreError> {
        self.is_as_verified(row)
    }

    /// Returns a page of the schedules in a workspace, or of a bot, newest first.
    pub async fn schedules(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        page: &Page<ScheduleId>,
    ) -> Result<Listed<ScheduleRow, ScheduleId>, StoreError> {
        self.authentic_page(PAGE, values![workspace, bot], page).await
    }

    /// Returns schedules of the workspace that are paused because they failed too often, newest first.
    pub async fn paused_schedules(&self, workspace: WorkspaceId, limit: u32) -> Result<Vec<ScheduleRow>, StoreError> {
        self.authentic_up_to(PAUSED, values![workspace, ScheduleRow::FAILURES_MAX], limit).await
    }

    /// Changes a schedule and requests its next turn. Returns the new row, or `None` if the schedule was changed since it
    /// was read or does not exist.
    pub async fn update_schedule(
        &self,
        update: &ScheduleUpdate<'_>,
        wake: &NewWake,
    ) -> Result<Option<ScheduleRow>, StoreError> {
        let ScheduleUpdate { row, before, next_at, is_resumed } = update;
        change!(self, &[row.scope()], |change| {
            async {
                // The wake precedes the schedule, in the order of the locks.
                wake.write(&mut change.session).await?;
                let next = |old: &ScheduleRow| (old.updated_at == *before).then(|| ScheduleRow::clone(row));
                if !change.update(args![row.id], next).await? {
                    return Ok(None);
                }
                change.session.run(SET_RECORD, args![row.id, &row.sealed]).await?;
                if let Some(next_at) = next_at {
                    change.session.run(SET_NEXT, args![row.id, *next_at]).await?;
                }
                if *is_resumed {
                    change.session.run(RESUME, args![row.id]).await?;
                }
                change.session.one(BY_ID, args![row.workspace_id, row.id]).await
            }
            .await
        })
    }

    /// Deletes a schedule that was last changed at `before`. Its tasks and runs go on. Returns `false` if the schedule was changed
    /// since or does not exist.
    pub async fn delete_schedule(
        &self,
        workspace: WorkspaceId,
        id: ScheduleId,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            let may = |row: &ScheduleRow| row.workspace_id == workspace && row.updated_at == before;
            change.delete(args![id], may).await
        })
    }

    /// Returns the firings of a schedule that have not ended, with at most `limit` that wait.
    pub async fn running_schedule(&self, id: ScheduleId, limit: u32) -> Result<RunningSchedule, StoreError> {
        let started: Option<i64> = self.db.one(RUNNING, args![id]).await?;
        let queued = self.db.all(QUEUED, args![id, i64::from(limit)]).await?;
        Ok(RunningSchedule { started: started.unwrap_or(0), queued })
    }

    /// Deletes the ended firings that happened before a time. Returns their number.
    pub async fn forget_schedule_runs(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET_RUNS, args![before]).await
    }
}
