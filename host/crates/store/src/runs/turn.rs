//! The transactions of a run's turn.

use monstrum_types::{ApprovalId, Labels, RunId, UtcMillis};

use super::room::{self, Awaits, RunRoom};
use super::steps::{ASK_AGAIN, EndedRunStep, OF_RUN, RESEAL, RunStepKey, RunStepRow, RunStepStop, STOP};
use super::{InsertedRun, LOCK_WORKSPACE, RunRow, RunStatus, RunsMax, run_columns, select_runs, write_run};
use crate::db::{Arg, Session, args, retry, values};
use crate::rows::Scope;
use crate::schedules::{self, EndedWork};
use crate::tasks::{InsertedTask, TasksMax};
use crate::wakes::{AfterTurn, NewWake, WakeClaim, confirm_claim, end_turn};
use crate::{DeliveredTask, EventRow, NewApproval, Store, StoreError, deliveries};

/// What a turn of a run writes, all or nothing.
#[derive(Clone, Debug)]
pub struct RunProgress<'a> {
    /// The run as the turn has read it.
    pub read: &'a RunRow,
    /// The room that the run needs, if it starts with this turn.
    pub start: Option<RunRoom>,
    pub status: RunStatus,
    pub code: Option<&'a str>,
    pub labels: &'a Labels,
    pub started_at: Option<UtcMillis>,
    pub deadline_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
    pub sealed: &'a str,
    /// The ends of attempts that no call ends.
    pub ended: Vec<EndedRunStep>,
    /// The attempts that are to stop.
    pub stopped: Vec<(RunStepKey, RunStepStop)>,
    /// Attempts whose records are replaced, with the records that the turn has read and the new ones.
    pub resealed: Vec<(RunStepKey, String, String)>,
    /// New attempts.
    pub steps: Vec<RunStepRow>,
    /// The tasks and runs that new attempts start.
    pub children: Vec<ChildOfStep>,
    /// The wakes of the steps that begin or stop, and of what waits for the end of the run.
    pub wakes: Vec<NewWake>,
    pub events: Vec<EventRow>,
    /// The approvals that steps ask for.
    pub approvals: Vec<NewApproval>,
    /// The attempts that wait for another approval than before.
    pub asked_again: Vec<(RunStepKey, ApprovalId)>,
    /// The approvals for which no step waits any more. Those that are pending become void.
    pub void: Vec<ApprovalId>,
    /// The time of the next turn of the run.
    pub next: Option<UtcMillis>,
    pub now: UtcMillis,
}

/// A task or a run that an attempt starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildOfStep {
    pub step: RunStepKey,
    pub child: NewChild,
}

/// A task or a run to insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewChild {
    Task(Box<DeliveredTask>, TasksMax),
    Run(Box<RunRow>, NewWake, RunsMax),
}

impl NewChild {
    /// Returns the wake of the task or the run.
    #[must_use]
    pub fn wake(&self) -> &NewWake {
        match self {
            NewChild::Task(task, _) => &task.wake,
            NewChild::Run(_, wake, _) => wake,
        }
    }
}

/// Why an attempt cannot start its task or run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildRefusal {
    /// The workspace has too many tasks or runs that have not ended.
    Full,
    /// The workflow has as many runs as its limit of concurrency allows, and starts none beyond it.
    Skipped,
    /// The workflow was disabled or deleted.
    Disabled,
}

/// The result of a turn of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdvancedRun {
    /// Everything was written, and the turn has ended. `woken` are the wakes of runs and of a delivery that may
    /// start now.
    Done { after: AfterTurn, woken: Vec<NewWake> },
    /// The run has no room to start, so only that was written. The turn has ended.
    NoRoom { after: AfterTurn, woken: Vec<NewWake> },
    /// An attempt cannot start its task or run, so nothing was written: the turn has to decide again.
    Refused { step: RunStepKey, why: ChildRefusal },
}

const OF_TURN: &str = select_runs!("where id = $1 and workspace_id = $2 and ended_at is null");
const HAS_CLAIM: &str = "select count(*) as value from wakes where key = $1 and claim_id = $2";
const PROGRESS: &str = "\
    update runs set status = $2, code = $3, labels = $4, started_at = $5, deadline_at = $6, ended_at = $7, sealed = $8, \
    awaits = null where id = $1 and ended_at is null and sealed = $9";
// Dispatches of events take the same lock before they look for waits, so that each dispatch sees a wait, or the wait sees
// its event.
const LOCK_EVENTS: &str = "\
    insert into event_counters (workspace_id, sequence) select id, 0 from workspaces where id = $1 \
    on conflict (workspace_id) do update set sequence = event_counters.sequence";

impl Store {
    /// Begins a turn of a run: returns the run with its journal, or `None` if it has ended or does not exist. Fails with
    /// [`StoreError::LostClaim`] if the claim was replaced.
    pub async fn begin_run_turn(
        &self,
        claim: &WakeClaim,
        id: RunId,
    ) -> Result<Option<(RunRow, Vec<RunStepRow>)>, StoreError> {
        // The transaction at the end of the turn finds out whether anything has changed since.
        let mut session = self.db.read_consistently().await?;
        let claims: Option<i64> = session.one(HAS_CLAIM, args![&claim.key, claim.id]).await?;
        if claims != Some(1) {
            return Err(StoreError::LostClaim);
        }
        let run: Option<RunRow> = session.one(OF_TURN, args![id, claim.workspace_id]).await?;
        let Some(run) = run else { return Ok(None) };
        Ok(Some((run, session.all(OF_RUN, args![id]).await?)))
    }

    /// Writes what a turn of a run has decided, and ends the turn. Fails with [`StoreError::ChangedMeanwhile`] and writes
    /// nothing if the run has ended or changed meanwhile, or an attempt that is to end or to stop: the turn then has to decide
    /// again.
    pub async fn advance_run(&self, claim: &WakeClaim, progress: &RunProgress<'_>) -> Result<AdvancedRun, StoreError> {
        let scope = [Scope::from(progress.read.workspace_id)];
        let has_approvals = !progress.approvals.is_empty() || !progress.void.is_empty();
        let scopes: &[Scope] = if has_approvals { &scope } else { &[] };
        retry!(async {
            // The seal of the approvals precedes the other locks, as in the transaction of a decision.
            let mut change = self.begin_change(scopes).await?;
            let session = &mut change.session;
            let read = progress.read;
            lock(session, progress).await?;
            confirm_claim(session, claim).await?;
            let mut next_runs = Vec::new();
            if let Some(needed) = &progress.start {
                match room::find(session, read, needed).await? {
                    Ok(left) => next_runs = left,
                    Err(awaits) => {
                        let woken = room::rest(session, read, awaits, progress.now).await?;
                        let after = end_turn(session, claim, Some(needed.look_again_at)).await?;
                        change.finish().await?;
                        return Ok(AdvancedRun::NoRoom { after, woken });
                    }
                }
            }
            write(session, progress).await?;
            if let Some((step, why)) = self.write_children(session, progress).await? {
                return Ok(AdvancedRun::Refused { step, why });
            }
            for approval in &progress.approvals {
                change.insert_step_approval(approval).await?;
            }
            for id in &progress.void {
                change.void_pending(read.workspace_id, *id, progress.now).await?;
            }
            let session = &mut change.session;
            for wake in &progress.wakes {
                wake.write(session).await?;
            }
            if passes_room_on(progress) {
                next_runs.extend([Awaits::Workspace, Awaits::Key]);
            }
            let mut woken = room::wake_next(session, read, &next_runs, progress.now).await?;
            let leaves_queue = read.status == RunStatus::Queued && progress.status != RunStatus::Queued;
            if leaves_queue || progress.ended_at.is_some() {
                // A delivery to a trigger may find room now; if it does not, it rests again.
                woken.extend(deliveries::wake_trigger(session, read.workspace_id, progress.now).await?);
            }
            if progress.ended_at.is_some() {
                woken.extend(end_of_schedule(session, progress).await?);
            }
            let after = end_turn(session, claim, progress.next).await?;
            change.finish().await?;
            Ok(AdvancedRun::Done { after, woken })
        })
    }

    /// Writes the tasks and runs that attempts start. Returns the first attempt that cannot start its own.
    async fn write_children(
        &self,
        session: &mut Session,
        progress: &RunProgress<'_>,
    ) -> Result<Option<(RunStepKey, ChildRefusal)>, StoreError> {
        for ChildOfStep { step, child } in &progress.children {
            let why = match child {
                NewChild::Task(task, max) => {
                    match self.write_task(session, &task.row, Some(&task.session), &task.wake, *max).await? {
                        InsertedTask::Inserted => continue,
                        InsertedTask::Full | InsertedTask::TreeFull => ChildRefusal::Full,
                        InsertedTask::Busy | InsertedTask::NoSession => return Err(StoreError::UnknownReference),
                    }
                }
                NewChild::Run(row, wake, max) => match write_run(session, row, wake, *max).await? {
                    InsertedRun::Inserted => continue,
                    InsertedRun::Full => ChildRefusal::Full,
                    InsertedRun::Skipped => ChildRefusal::Skipped,
                    InsertedRun::Disabled => ChildRefusal::Disabled,
                },
            };
            return Ok(Some((step.clone(), why)));
        }
        Ok(None)
    }
}

/// Records the end of a run for the schedule that started it, and requests a turn of the schedule.
async fn end_of_schedule(session: &mut Session, progress: &RunProgress<'_>) -> Result<Option<NewWake>, StoreError> {
    let RunProgress { read, status, now, .. } = progress;
    let ended = EndedWork::Run(read.id, *status);
    let Some(key) = schedules::request_turn_of(session, ended, *now).await? else { return Ok(None) };
    schedules::end_work(session, ended).await?;
    // A key that cannot be read belongs to no object.
    Ok(key.parse().ok().map(|key| NewWake { key, workspace_id: read.workspace_id, due_at: *now, claim: None }))
}

/// Returns whether other runs may start after this turn: the run gives up its room, or leaves the queue without a start.
fn passes_room_on(progress: &RunProgress<'_>) -> bool {
    let before = progress.read.status;
    let leaves_room = before.holds_room() && !progress.status.holds_room();
    let leaves_queue = before == RunStatus::Queued && progress.start.is_none() && progress.status != RunStatus::Queued;
    // The first steps of a run may wait at once.
    let starts_without_room = progress.start.is_some() && !progress.status.holds_room();
    leaves_room || leaves_queue || starts_without_room || progress.ended_at.is_some()
}

/// Takes the locks of a turn, in the order in which every transaction takes them: events, workspace, wakes.
async fn lock(session: &mut Session, progress: &RunProgress<'_>) -> Result<(), StoreError> {
    let workspace = progress.read.workspace_id;
    if progress.steps.iter().any(|step| step.wait_event.is_some()) {
        session.run(LOCK_EVENTS, args![workspace]).await?;
    }
    let starts_run = progress.children.iter().any(|child| matches!(child.child, NewChild::Run(..)));
    if progress.start.is_some() || starts_run || passes_room_on(progress) {
        session.run(LOCK_WORKSPACE, args![workspace]).await?;
    }
    Ok(())
}

/// Writes the run, its attempts and the events of a turn.
async fn write(session: &mut Session, progress: &RunProgress<'_>) -> Result<(), StoreError> {
    let RunProgress { read, status, code, labels, started_at, deadline_at, ended_at, sealed, .. } = progress;
    let values =
        args![read.id, status.as_str(), *code, *labels, *started_at, *deadline_at, *ended_at, *sealed, &read.sealed,];
    let mut is_current = session.run(PROGRESS, values).await? > 0;
    for end in &progress.ended {
        let (sql, values) = end.statement();
        is_current = is_current && session.run(sql, &values).await? > 0;
    }
    for (key, stop) in &progress.stopped {
        let mut values = key.values();
        values.extend(values![stop.as_str()]);
        is_current = is_current && session.run(STOP, &values).await? > 0;
    }
    for (key, before, after) in &progress.resealed {
        let mut values: Vec<Arg<'_>> = key.values();
        values.extend(values![before, after]);
        is_current = is_current && session.run(RESEAL, &values).await? > 0;
    }
    for (key, approval) in &progress.asked_again {
        let mut values = key.values();
        values.extend(values![*approval]);
        is_current = is_current && session.run(ASK_AGAIN, &values).await? > 0;
    }
    if !is_current {
        return Err(StoreError::ChangedMeanwhile);
    }
    for step in &progress.steps {
        step.insert(session).await?;
    }
    for event in &progress.events {
        event.insert(session).await?;
    }
    Ok(())
}
