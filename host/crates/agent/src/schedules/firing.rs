//! The turns of schedules: what is due starts a task or a run.

use async_trait::async_trait;
use monstrum_core::operations::OperationError;
use monstrum_engine::{Handler, Turn, TurnError, TurnOutcome};
use monstrum_store::{FiredSchedule, RunningSchedule, ScheduleFiring, ScheduleRow, ScheduleRun, ScheduleRunStatus};
use monstrum_types::{ScheduleId, UtcMillis, WakeKind, with_causes};

use super::plan::{Outcome, Plan, QUEUED_MAX, Unended, plan};
use super::record::Record;
use super::timing::Timing;
use super::{Schedules, due_at, refusal};
use crate::tasks::TASKS_MAX;

/// Runs the turns of schedules.
pub struct ScheduleTurns(Schedules);

/// A schedule as its turn has read it.
struct Read<'a> {
    row: &'a ScheduleRow,
    record: &'a Record,
    timing: &'a Timing,
    running: &'a RunningSchedule,
    now: UtcMillis,
}

impl ScheduleTurns {
    /// Creates the handler of the schedules of a host.
    #[must_use]
    pub fn new(schedules: Schedules) -> ScheduleTurns {
        ScheduleTurns(schedules)
    }

    /// Fails if the rows of the workspace may be forged: then nothing starts.
    fn check(&self, row: &ScheduleRow) -> Result<(), TurnError> {
        let policy = &self.0.app.policy;
        let snapshot = policy.load();
        if policy.is_stale() {
            return Err(TurnError::Failed("the policy could not be read".to_owned()));
        }
        if snapshot.verification.unverified_for(row.workspace_id).is_some() {
            return Err(TurnError::Failed("the rows of the workspace do not match their seals".to_owned()));
        }
        if snapshot.bot(row.workspace_id, row.bot_id).is_none() {
            return Err(TurnError::Failed("the bot of the schedule is not in the policy".to_owned()));
        }
        Ok(())
    }

    /// Decides what is due, and does it.
    async fn fire(&self, turn: &Turn, read: Read<'_>) -> Result<TurnOutcome, TurnError> {
        let Read { row, record, timing, running, now } = read;
        let unended = Unended { runs: running.started > 0, queued: running.queued.len() };
        let Plan { firing, next_at } = plan(row.id, (record, timing), row.next_at, now, unended);
        let next = ScheduleRow { next_at, ..row.clone() };
        let wake_at = due_at(&next, record);
        let Some((planned_at, outcome)) = firing else {
            return match running.queued.first().filter(|_| running.started == 0) {
                Some(queued) => self.start(turn, &read, queued.planned_at, (next_at, wake_at)).await,
                None if next_at != row.next_at => self.end(turn, row, Vec::new(), (next_at, wake_at)).await,
                None => Ok(wake_at.map_or(TurnOutcome::Done, TurnOutcome::Rest)),
            };
        };
        let status = match outcome {
            Outcome::Start => return self.start(turn, &read, planned_at, (next_at, wake_at)).await,
            Outcome::Queue => ScheduleRunStatus::Queued,
            Outcome::Skip => ScheduleRunStatus::Skipped,
            Outcome::Miss => ScheduleRunStatus::Missed,
        };
        // A firing that waits for nothing is the next turn's.
        let wake_at = if running.started == 0 && !running.queued.is_empty() { Some(now) } else { wake_at };
        self.end(turn, row, vec![run(planned_at, status, now)], (next_at, wake_at)).await
    }

    /// Starts the work of a planned time. Work that cannot be started is a failure of the schedule.
    async fn start(
        &self,
        turn: &Turn,
        read: &Read<'_>,
        planned_at: UtcMillis,
        next: (Option<UtcMillis>, Option<UtcMillis>),
    ) -> Result<TurnOutcome, TurnError> {
        let Read { row, record, running, now, .. } = read;
        let prepared = self.0.work(row, record, (planned_at, *now)).await;
        // No work will end that would let the next waiting firing start.
        let after_failure = (next.0, if running.queued.len() > 1 { Some(*now) } else { next.1 });
        let failed = |error: &OperationError| {
            let error = with_causes(error);
            tracing::warn!(schedule.id = %row.id, %error, "a schedule cannot start its task or run");
            vec![run(planned_at, ScheduleRunStatus::Failed, *now)]
        };
        let work = match prepared {
            Ok(work) => work,
            Err(error) => return self.end(turn, row, failed(&error), after_failure).await,
        };
        let started = work.firing(planned_at, *now, false);
        let (next_at, wake_at) = next;
        let firing = ScheduleFiring { schedule: row, next_at, wake_at, runs: vec![started], work: Some(&work) };
        let fired = self.0.app.store.fire_schedule(turn.claim(), &firing, TASKS_MAX).await?;
        match fired {
            FiredSchedule::Fired { after, has_work } => {
                if has_work {
                    self.0.signal(&work);
                } else {
                    tracing::error!(schedule.id = %row.id, "a planned time has fired before, so it starts nothing");
                }
                Ok(TurnOutcome::Ended(after))
            }
            FiredSchedule::Changed => Ok(TurnOutcome::Rest(*now)),
            FiredSchedule::Skipped => {
                self.end(turn, row, vec![run(planned_at, ScheduleRunStatus::Skipped, *now)], after_failure).await
            }
            FiredSchedule::Full | FiredSchedule::Disabled => {
                self.end(turn, row, failed(&refusal(&work, fired)), after_failure).await
            }
        }
    }

    /// Ends a turn that starts nothing.
    async fn end(
        &self,
        turn: &Turn,
        schedule: &ScheduleRow,
        runs: Vec<ScheduleRun>,
        (next_at, wake_at): (Option<UtcMillis>, Option<UtcMillis>),
    ) -> Result<TurnOutcome, TurnError> {
        let firing = ScheduleFiring { schedule, next_at, wake_at, runs, work: None };
        match self.0.app.store.fire_schedule(turn.claim(), &firing, TASKS_MAX).await? {
            FiredSchedule::Fired { after, .. } => Ok(TurnOutcome::Ended(after)),
            FiredSchedule::Changed | FiredSchedule::Full | FiredSchedule::Skipped | FiredSchedule::Disabled => {
                Ok(TurnOutcome::Rest(self.0.app.clock.now()))
            }
        }
    }
}

#[async_trait]
impl Handler for ScheduleTurns {
    fn kind(&self) -> WakeKind {
        WakeKind::Schedule
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let Ok(id) = turn.key().id().parse::<ScheduleId>() else { return Ok(TurnOutcome::Done) };
        let app = &self.0.app;
        let Some(stored) = app.store.stored_schedule(turn.workspace(), id).await? else { return Ok(TurnOutcome::Done) };
        self.check(&stored)?;
        let row = app.store.schedule(turn.workspace(), id).await?.ok_or_else(not_sealed)?;
        if !self.0.is_in_force(&row).await? {
            return Err(not_sealed());
        }
        let record = self.0.open(&row).map_err(|error| {
            tracing::error!(error = %with_causes(&error), schedule.id = %id, "a schedule cannot be opened");
            TurnError::Failed("the record of the schedule cannot be opened, so it starts nothing".to_owned())
        })?;
        let timing = record.timing().map_err(|error| TurnError::Failed(error.to_string()))?;
        let running = app.store.running_schedule(id, QUEUED_MAX).await?;
        let now = app.store.wake_time(app.clock.now()).await?;
        if record.enabled && !row.is_paused() {
            return self.fire(turn, Read { row: &row, record: &record, timing: &timing, running: &running, now }).await;
        }
        if row.is_paused() {
            tracing::warn!(schedule.id = %id, failures = row.failures, "a schedule is paused, because it fails");
        }
        if running.queued.is_empty() {
            return Ok(TurnOutcome::Done);
        }
        let skipped = |queued: &ScheduleRun| ScheduleRun { status: ScheduleRunStatus::Skipped, ..queued.clone() };
        let runs = running.queued.iter().map(skipped).collect();
        self.end(turn, &row, runs, (row.next_at, None)).await
    }
}

fn not_sealed() -> TurnError {
    TurnError::Failed(
        "the row of the schedule was edited or restored by another program, so it starts nothing".to_owned(),
    )
}

/// Returns a firing that a turn makes.
fn run(planned_at: UtcMillis, status: ScheduleRunStatus, fired_at: UtcMillis) -> ScheduleRun {
    ScheduleRun { planned_at, is_manual: false, status, fired_at, task_id: None, run_id: None }
}
