//! The firing of a schedule: one transaction writes the firing, its task or run, the event, and what is next. A firing is
//! unique by its planned time, so that one of several hosts starts the work.

use monstrum_types::{RunId, ScheduleId, TaskId, UtcMillis};

use super::{ScheduleRow, ScheduleRun, ScheduleRunStatus};
use crate::db::{Session, args, retry};
use crate::runs::{InsertedRun, LOCK_WORKSPACE, RunRow, RunStatus, RunsMax, write_run};
use crate::tasks::{InsertedTask, NewSession, TaskRow, TaskStatus, TasksMax};
use crate::wakes::{AfterTurn, NewWake, WakeClaim, end_turn};
use crate::{EventRow, Store, StoreError};

/// The task that a firing starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledTask {
    pub row: TaskRow,
    pub session: NewSession,
    pub wake: NewWake,
    /// The event `schedule.fired`.
    pub event: EventRow,
}

/// The run that a firing starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledRun {
    pub row: RunRow,
    pub wake: NewWake,
    pub max: RunsMax,
    /// The event `schedule.fired`.
    pub event: EventRow,
}

/// What a firing starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduledWork {
    Task(Box<ScheduledTask>),
    Run(Box<ScheduledRun>),
}

impl ScheduledWork {
    /// Returns the firing that starts the work.
    #[must_use]
    pub fn firing(&self, planned_at: UtcMillis, fired_at: UtcMillis, is_manual: bool) -> ScheduleRun {
        let (task_id, run_id) = match self {
            ScheduledWork::Task(task) => (Some(task.row.id), None),
            ScheduledWork::Run(run) => (None, Some(run.row.id)),
        };
        ScheduleRun { planned_at, is_manual, status: ScheduleRunStatus::Running, fired_at, task_id, run_id }
    }

    /// Returns the wake of the task or run.
    #[must_use]
    pub fn wake(&self) -> &NewWake {
        match self {
            ScheduledWork::Task(task) => &task.wake,
            ScheduledWork::Run(run) => &run.wake,
        }
    }
}

/// The work of a schedule that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndedWork {
    Task(TaskId, TaskStatus),
    Run(RunId, RunStatus),
}

/// A turn of a schedule.
#[derive(Clone, Debug)]
pub struct ScheduleFiring<'a> {
    /// The schedule as the turn has read it.
    pub schedule: &'a ScheduleRow,
    /// The planned time of the next firing.
    pub next_at: Option<UtcMillis>,
    /// The time of the next turn.
    pub wake_at: Option<UtcMillis>,
    /// The firings: new ones, and queued ones whose status changes.
    pub runs: Vec<ScheduleRun>,
    /// What the last of the firings starts.
    pub work: Option<&'a ScheduledWork>,
}

/// The result of a turn of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiredSchedule {
    /// The turn has ended; the firing whose planned time had fired before was left out.
    Fired { after: AfterTurn, has_work: bool },
    /// The schedule was changed or deleted since it was read, so nothing was written.
    Changed,
    /// The workspace has too many tasks or runs that have not ended, so nothing was written.
    Full,
    /// The workflow has as many runs as it allows and starts none beyond them, so nothing was written.
    Skipped,
    /// The workflow was disabled or deleted, so nothing was written.
    Disabled,
}

const ADVANCE: &str = "\
    update schedules set next_at = $4 where workspace_id = $1 and id = $2 and updated_at = $3 \
    and coalesce(next_at, -1) = coalesce(cast($5 as bigint), -1)";
const LOCK: &str = "update schedules set failures = failures where workspace_id = $1 and id = $2 and updated_at = $3";
// A firing that waits can start or be skipped. Any other firing of the same planned time is the only one.
const RECORD: &str = "\
    insert into schedule_runs (schedule_id, planned_at, workspace_id, is_manual, status, fired_at, task_id, run_id) \
    values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (schedule_id, planned_at) do update set \
    status = excluded.status, fired_at = excluded.fired_at, task_id = excluded.task_id, run_id = excluded.run_id \
    where schedule_runs.status = 'queued' and excluded.status <> 'queued'";
const LAST: &str = "\
    update schedules set last_planned_at = $2, last_fired_at = $3, last_task_id = $4, last_run_id = $5, last_status = $6, \
    failures = failures + $7 where id = $1";
const REQUEST: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'schedule/' || schedule_id, workspace_id, cast($2 as bigint), 1 from schedule_runs where task_id = $1 or run_id = $1 \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 returning key as value";
const LOCK_OF_WORK: &str = "\
    update schedules set failures = failures \
    where id = (select schedule_id from schedule_runs where task_id = $1 or run_id = $1)";
const END_RUN: &str = "update schedule_runs set status = $2 where (task_id = $1 or run_id = $1) and status = 'running'";
const END_LAST: &str = "update schedules set last_status = $2 where last_task_id = $1 or last_run_id = $1";
const FAILED: &str = "\
    update schedules set failures = failures + 1 \
    where id = (select schedule_id from schedule_runs where (task_id = $1 or run_id = $1) and not is_manual)";
// A schedule that is paused stays paused when earlier work is completed.
const COMPLETED: &str = "\
    update schedules set failures = 0 where failures < $2 \
    and id = (select schedule_id from schedule_runs where (task_id = $1 or run_id = $1) and not is_manual)";

impl EndedWork {
    fn id(self) -> String {
        match self {
            EndedWork::Task(id, _) => id.to_string(),
            EndedWork::Run(id, _) => id.to_string(),
        }
    }

    /// Returns what becomes of the firing; `None` for work that has not ended.
    fn status(self) -> Option<ScheduleRunStatus> {
        match self {
            EndedWork::Task(_, TaskStatus::Completed) | EndedWork::Run(_, RunStatus::Completed) => {
                Some(ScheduleRunStatus::Completed)
            }
            EndedWork::Task(_, TaskStatus::Failed) | EndedWork::Run(_, RunStatus::Failed) => {
                Some(ScheduleRunStatus::Failed)
            }
            EndedWork::Task(_, TaskStatus::Cancelled) | EndedWork::Run(_, RunStatus::Cancelled) => {
                Some(ScheduleRunStatus::Cancelled)
            }
            EndedWork::Task(..) | EndedWork::Run(..) => None,
        }
    }
}

/// Requests a turn of the schedule that started a task or a run, if one did, in the transaction that ends it. Returns the
/// key of the schedule.
pub(crate) async fn request_turn_of(
    session: &mut Session,
    ended: EndedWork,
    now: UtcMillis,
) -> Result<Option<String>, StoreError> {
    session.one(REQUEST, args![&ended.id(), now]).await
}

/// Records the end of a task or a run that a schedule started. [`request_turn_of`] comes before, because wakes are locked first.
pub(crate) async fn end_work(session: &mut Session, ended: EndedWork) -> Result<(), StoreError> {
    let (id, Some(status)) = (ended.id(), ended.status()) else { return Ok(()) };
    session.run(LOCK_OF_WORK, args![&id]).await?;
    if session.run(END_RUN, args![&id, status.as_str()]).await? == 0 {
        return Ok(());
    }
    session.run(END_LAST, args![&id, status.as_str()]).await?;
    match status {
        ScheduleRunStatus::Failed => session.run(FAILED, args![&id]).await?,
        ScheduleRunStatus::Completed => session.run(COMPLETED, args![&id, ScheduleRow::FAILURES_MAX]).await?,
        _ => 0,
    };
    Ok(())
}

/// Takes the lock of the workspace before all others if the firing starts a run, like each transaction that starts or ends
/// runs.
async fn lock_workspace(session: &mut Session, firing: &ScheduleFiring<'_>) -> Result<(), StoreError> {
    if matches!(firing.work, Some(ScheduledWork::Run(_))) {
        session.run(LOCK_WORKSPACE, args![firing.schedule.workspace_id]).await?;
    }
    Ok(())
}

/// What became of the firings of a turn.
enum Written {
    /// The firings are written, and whether work was started.
    Work(bool),
    /// The work was refused, so the transaction must not be committed.
    Refused(FiredSchedule),
}

impl ScheduleRow {
    /// The number of failures in a row that pause a schedule.
    pub const FAILURES_MAX: i64 = 5;

    /// Returns whether the schedule is paused, because it failed too often.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.failures >= ScheduleRow::FAILURES_MAX
    }
}

impl ScheduleRun {
    /// Records the firing, and makes it the last one of its schedule. Returns `false` if the planned time had fired.
    async fn record(&self, session: &mut Session, schedule: &ScheduleRow) -> Result<bool, StoreError> {
        let ScheduleRun { planned_at, is_manual, status, fired_at, task_id, run_id } = self;
        let (id, word): (ScheduleId, _) = (schedule.id, status.as_str());
        let values = args![id, *planned_at, schedule.workspace_id, *is_manual, word, *fired_at, *task_id, *run_id];
        if session.run(RECORD, values).await? == 0 {
            return Ok(false);
        }
        let failures = i64::from(*status == ScheduleRunStatus::Failed && !is_manual);
        session.run(LAST, args![id, *planned_at, *fired_at, *task_id, *run_id, word, failures]).await?;
        Ok(true)
    }
}

impl Store {
    /// Ends a turn of a schedule: records its firings, starts the work and plans the next turn. Fails with
    /// [`StoreError::LostClaim`] and writes nothing if the claim was replaced.
    pub async fn fire_schedule(
        &self,
        claim: &WakeClaim,
        firing: &ScheduleFiring<'_>,
        max: TasksMax,
    ) -> Result<FiredSchedule, StoreError> {
        let ScheduleFiring { schedule, next_at, wake_at, .. } = firing;
        retry!(async {
            let mut session = self.db.write().await?;
            lock_workspace(&mut session, firing).await?;
            let after = end_turn(&mut session, claim, *wake_at).await?;
            let values = args![schedule.workspace_id, schedule.id, schedule.updated_at, *next_at, schedule.next_at];
            if session.run(ADVANCE, values).await? == 0 {
                return Ok(FiredSchedule::Changed);
            }
            match self.write_firing(&mut session, firing, max).await? {
                Written::Work(has_work) => {
                    session.commit().await?;
                    Ok(FiredSchedule::Fired { after, has_work })
                }
                Written::Refused(refused) => Ok(refused),
            }
        })
    }

    /// Fires a schedule outside of its turns, for a person. The next time stays as it is.
    pub async fn fire_schedule_now(
        &self,
        schedule: &ScheduleRow,
        run: &ScheduleRun,
        work: &ScheduledWork,
        max: TasksMax,
    ) -> Result<FiredSchedule, StoreError> {
        let firing = ScheduleFiring {
            schedule,
            next_at: schedule.next_at,
            wake_at: None,
            runs: vec![run.clone()],
            work: Some(work),
        };
        retry!(async {
            let mut session = self.db.write().await?;
            lock_workspace(&mut session, &firing).await?;
            let values = args![schedule.workspace_id, schedule.id, schedule.updated_at];
            if session.run(LOCK, values).await? == 0 {
                return Ok(FiredSchedule::Changed);
            }
            match self.write_firing(&mut session, &firing, max).await? {
                Written::Work(has_work) => {
                    session.commit().await?;
                    Ok(FiredSchedule::Fired { after: AfterTurn::Asleep, has_work })
                }
                Written::Refused(refused) => Ok(refused),
            }
        })
    }

    /// Writes the firings and the work of the last one.
    async fn write_firing(
        &self,
        session: &mut Session,
        firing: &ScheduleFiring<'_>,
        max: TasksMax,
    ) -> Result<Written, StoreError> {
        let mut is_new = false;
        for run in &firing.runs {
            is_new = run.record(session, firing.schedule).await?;
        }
        let event = match firing.work.filter(|_| is_new) {
            None => return Ok(Written::Work(false)),
            Some(ScheduledWork::Task(task)) => {
                match self.write_task(session, &task.row, Some(&task.session), &task.wake, max).await? {
                    InsertedTask::Inserted => &task.event,
                    InsertedTask::Full | InsertedTask::TreeFull => return Ok(Written::Refused(FiredSchedule::Full)),
                    InsertedTask::Busy | InsertedTask::NoSession => return Err(StoreError::UnknownReference),
                }
            }
            Some(ScheduledWork::Run(run)) => match write_run(session, &run.row, &run.wake, run.max).await? {
                InsertedRun::Inserted => &run.event,
                InsertedRun::Full => return Ok(Written::Refused(FiredSchedule::Full)),
                InsertedRun::Skipped => return Ok(Written::Refused(FiredSchedule::Skipped)),
                InsertedRun::Disabled => return Ok(Written::Refused(FiredSchedule::Disabled)),
            },
        };
        event.insert(session).await?;
        Ok(Written::Work(true))
    }
}
