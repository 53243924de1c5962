//! The turns of runs: each reads the journal of a run, plans what comes next, and writes all of it in one transaction.
//!
//! A turn does no I/O but that of the database. What it starts runs in turns of its own, which request another turn of the run
//! when they end. Two turns that plan from the same journal plan the same, and only one of them can write, so a turn that is
//! cut off anywhere is repeated without a trace.
//!
//! read.rs opens the journal, outcomes.rs ends attempts whose task, run, event or decision has come, begin.rs prepares what
//! new attempts start, and reports.rs has the events of runs.

mod begin;
mod outcomes;
mod read;
mod reports;

use std::sync::Arc;

use async_trait::async_trait;
use monstrum_agent::Tasks;
use monstrum_core::app::App;
use monstrum_core::approvals::ApprovalError;
use monstrum_core::{beside, meters};
use monstrum_engine::{Engine, Handler, Turn, TurnError, TurnOutcome};
use monstrum_flow::{Command, Definition, RunEnd, StepError, plan};
use monstrum_store::{
    AdvancedRun, ApprovalRow, ChildRefusal, NewChild, NewWake, RunProgress, RunRequest, RunRoom, RunStatus, RunStepKey,
    RunStepRow, StoreError, wake_of,
};
use monstrum_types::{RunId, UtcMillis, WakeKind, with_causes};

use super::children::Children;
use super::definitions::Definitions;
use super::history::history;
use super::keys;
use super::progress::{Progress, fail, progress};
use super::record::{EndingContent, RunContent, seal_run, seal_step};
use super::revocation::{is_revoked, revoked};
use super::waits::Waits;
use crate::current::{too_many_changes, verified};
use begin::Begun;
use read::ReadRun;

/// The maximum number of runs of a workspace that run at once. The others wait: each runs at least one call, and a host has
/// room for few hundred.
const RUNNING_MAX: i64 = 100;
/// The maximum number of runs of a workspace that have started and have not ended. Nearly all of them wait.
const STARTED_MAX: i64 = 100_000;
/// The time after which a queued run looks for room, even if no other run has told it that there is some.
const QUEUED_MS: i64 = 600_000;

/// The number of tasks and runs that may be refused one by one in a turn.
const REFUSED_MAX: usize = 16;
/// The maximum number of times that a turn decides, because the run has changed or something was refused.
const DECISIONS_MAX: usize = 8 + REFUSED_MAX + 1;

/// Runs the turns of runs.
pub struct RunTurns {
    app: Arc<App>,
    engine: Arc<dyn Engine>,
    definitions: Arc<Definitions>,
    children: Children,
    waits: Waits,
}

/// An attempt that cannot begin: another one of the same step begins only if the definition repeats it.
type Refused = (RunStepKey, StepError);

impl RunTurns {
    /// Creates the handler of the runs of a host.
    #[must_use]
    pub fn new(app: Arc<App>, engine: Arc<dyn Engine>, definitions: Arc<Definitions>, tasks: Arc<Tasks>) -> RunTurns {
        let children = Children::new(Arc::clone(&app), Arc::clone(&engine), tasks, Arc::clone(&definitions));
        let waits = Waits::new(Arc::clone(&app));
        RunTurns { app, engine, definitions, children, waits }
    }

    /// Plans and writes. Returns `None` if the turn has to decide again.
    async fn decide(
        &self,
        turn: &Turn,
        id: RunId,
        refused: &mut Vec<Refused>,
    ) -> Result<Option<TurnOutcome>, TurnError> {
        let app = &self.app;
        let Some((row, steps)) = app.store.begin_run_turn(turn.claim(), id).await? else {
            return Ok(Some(TurnOutcome::Done));
        };
        let mut run = ReadRun::open(&app.vault, row, steps)?;
        let now = run.not_before(app.store.wake_time(app.clock.now()).await?);
        let found = self.definitions.of(run.row.workspace_id, run.row.workflow_id, run.row.version).await;
        let definition = found.map_err(|error| failed(&error))?;
        self.stop_children(&run).await?;
        let (ended, asking) = self.outcomes(turn, &mut run, now).await?;
        let is_revoked = is_revoked(app, &run.row, &run.content).await?;
        if is_revoked && run.content.ending.is_none() && !run.is_cancelled() {
            run.content.asked = Some(RunRequest::Cancel.as_str().to_owned());
        }
        let Planned { mut progress, start } = self.planned(turn, &run, &definition, is_revoked, now)?;
        progress.ended.splice(0..0, ended);
        for (key, error) in refused.iter() {
            for step in progress.steps.iter_mut().filter(|(row, _)| row.key() == *key) {
                fail(step, error.clone(), now);
            }
        }
        let begun = self.begin(&run, &mut progress, asking, is_revoked, now).await?;
        self.write(turn, &run, (&definition, start), (progress, begun), (now, refused)).await
    }

    /// Cancels the tasks and runs of attempts that are to stop. To cancel twice is harmless, so a turn that was cut off after
    /// its transaction loses nothing.
    async fn stop_children(&self, run: &ReadRun) -> Result<(), TurnError> {
        for (row, content) in run.open_steps() {
            if row.stopping.is_some() && read::has_child(content) {
                self.children.cancel(row, content).await?;
            }
        }
        Ok(())
    }

    /// Plans what comes next.
    fn planned(
        &self,
        turn: &Turn,
        run: &ReadRun,
        definition: &Definition,
        is_revoked: bool,
        now: UtcMillis,
    ) -> Result<Planned, TurnError> {
        let is_new = run.content.started_at.is_none();
        let begins = if is_new { Beginning::of(run) } else { Beginning::Goes };
        let commands = match begins {
            // Nothing is to be stopped, undone or told.
            Beginning::Ends => vec![Command::EndRun {
                status: RunEnd::Cancelled,
                output: None,
                error: Some(StepError::new("cancelled", "the run was cancelled")),
                uncertain: Vec::new(),
                undo_failed: Vec::new(),
            }],
            Beginning::Rests => Vec::new(),
            Beginning::Starts | Beginning::Goes => {
                let mut history = history(&run.row, &run.content, &run.steps).map_err(|error| failed(&error))?;
                if is_new {
                    history.run.started_at = now.0;
                }
                // The expressions of a plan take up to a tenth of a second.
                beside::in_place(true, || plan(definition, &history, now.0))
            }
        };
        let read = (&run.row, &run.content, run.steps.as_slice());
        let planned = progress(&self.app.vault, turn.claim(), definition, read, commands, now);
        let mut progress = planned.map_err(|error| failed(&error))?;
        if matches!(begins, Beginning::Ends | Beginning::Rests) {
            progress.content.started_at = None;
        }
        if begins == Beginning::Rests {
            progress.status = RunStatus::Paused;
        }
        if let Some(EndingContent { error: Some(error), .. }) = &mut progress.content.ending
            && is_revoked
            && run.content.ending.is_none()
        {
            *error = revoked();
        }
        let of_key = definition.concurrency.as_ref().map(|concurrency| i64::from(concurrency.max));
        let look_again_at = now.plus_ms(QUEUED_MS);
        let room = RunRoom { running: RUNNING_MAX, started: STARTED_MAX, of_key, look_again_at };
        let start = (begins == Beginning::Starts).then_some(room);
        Ok(Planned { progress, start })
    }

    /// Writes the progress of a run, and tells the engine about what begins.
    async fn write(
        &self,
        turn: &Turn,
        run: &ReadRun,
        (definition, start): (&Definition, Option<RunRoom>),
        (mut progress, begun): (Progress, Begun),
        (now, refused): (UtcMillis, &mut Vec<Refused>),
    ) -> Result<Option<TurnOutcome>, TurnError> {
        let app = &self.app;
        progress.status = if progress.content.started_at.is_none() && !progress.content.has_ended {
            progress.status
        } else {
            progress.status_of(&run.steps)
        };
        let labels = run.labels();
        progress.content.labels = labels.clone();
        let attempts = run.steps.len() + progress.steps.len();
        progress.content.attempts = u64::try_from(attempts).map_err(|error| failed(&error))?;
        let is_unchanged = !progress.is_step
            && progress.ended.is_empty()
            && begun.approvals.is_empty()
            && progress.status == run.row.status
            && RunContent { attempts: run.content.attempts, ..progress.content.clone() } == run.read;
        if is_unchanged {
            return Ok(Some(progress.next.map_or(TurnOutcome::Done, TurnOutcome::Rest)));
        }
        let Begun { children, mut wakes, mut events, approvals, asked_again, void, again } = begun;
        let has_ended = progress.content.has_ended;
        if has_ended {
            events.push(reports::ended(&app.vault, run, &progress.content, now).map_err(|error| failed(&error))?);
            wakes.extend(run.row.parent_run_id.map(|id| keys::wake(keys::run_key(id), run.row.workspace_id, now)));
        }
        for key in &progress.asked {
            events.push(reports::uncertain(&app.vault, run, key, now).map_err(|error| failed(&error))?);
        }
        let mut steps = Vec::with_capacity(progress.steps.len());
        for (row, content) in &progress.steps {
            let sealed = seal_step(&app.vault, row, content).map_err(|error| failed(&error))?;
            steps.push(RunStepRow { sealed, ..row.clone() });
        }
        // The next turn cancels their tasks and runs.
        let stops_child = progress.stopped.iter().any(|(key, _)| run.has_child(key));
        for (key, _) in progress.stopped.iter().filter(|(key, _)| !run.has_child(key)) {
            wakes.push(keys::wake(keys::step_key(key), run.row.workspace_id, now));
        }
        let is_due = (again || stops_child) && !has_ended;
        let next = if is_due { Some(now) } else { progress.next.filter(|_| !has_ended) };
        let sealed = seal_run(&app.vault, &run.row, &progress.content).map_err(|error| failed(&error))?;
        let started_at = progress.content.started_at;
        let code = progress.content.ending.as_ref().and_then(|ending| ending.error.as_ref());
        let written = RunProgress {
            read: &run.row,
            start,
            status: progress.status,
            code: code.map(|error| error.code.as_str()),
            labels: &labels,
            started_at,
            deadline_at: started_at.map(|at| at.plus_ms(definition.timeout_ms)),
            ended_at: has_ended.then_some(now),
            sealed: &sealed,
            ended: progress.ended,
            stopped: progress.stopped,
            resealed: progress.resealed,
            steps,
            children,
            wakes,
            events,
            approvals,
            asked_again,
            void: void.iter().map(|row| row.id).collect(),
            next,
            now,
        };
        self.advance(turn, &written, &void, refused).await
    }

    /// Writes what a turn has decided. Returns `None` if the turn has to decide again.
    async fn advance(
        &self,
        turn: &Turn,
        written: &RunProgress<'_>,
        void: &[ApprovalRow],
        refused: &mut Vec<Refused>,
    ) -> Result<Option<TurnOutcome>, TurnError> {
        let is_done = |advanced: &AdvancedRun| matches!(advanced, AdvancedRun::Done { .. });
        let advance = self.app.store.advance_run(turn.claim(), written);
        match self.app.approvals.in_turn(&written.approvals, void, advance, is_done).await {
            Ok(AdvancedRun::Done { after, woken }) => {
                self.signal(written, &woken);
                if written.ended_at.is_some() {
                    meters::run_ended(written.status.as_str());
                }
                Ok(Some(TurnOutcome::Ended(after)))
            }
            Ok(AdvancedRun::NoRoom { after, woken }) => {
                self.engine.signal(&woken);
                Ok(Some(TurnOutcome::Ended(after)))
            }
            Ok(AdvancedRun::Refused { step, why }) => {
                // Each refusal costs a plan, so after some of them, and without room for any, nothing else is tried.
                let all = why == ChildRefusal::Full || refused.len() >= REFUSED_MAX;
                let steps = written.children.iter().map(|child| &child.step).filter(|other| all || **other == step);
                refused.extend(steps.map(|step| (step.clone(), refusal(why))));
                Ok(None)
            }
            Err(ApprovalError::Store(StoreError::ChangedMeanwhile)) => Ok(None),
            Err(ApprovalError::Store(error)) => Err(error.into()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Tells the engine about everything that a turn has requested.
    fn signal(&self, written: &RunProgress<'_>, woken: &[NewWake]) {
        let mut wakes: Vec<NewWake> = written.wakes.iter().chain(woken).cloned().collect();
        wakes.extend(written.events.iter().map(wake_of));
        wakes.extend(written.children.iter().map(|child| child.child.wake().clone()));
        wakes.extend(written.children.iter().filter_map(|child| match &child.child {
            NewChild::Task(task, _) => Some(wake_of(&task.session.created)),
            NewChild::Run(..) => None,
        }));
        self.engine.signal(&wakes);
    }
}

/// How an attempt of a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// It needs room.
    Starts,
    /// It was paused before it began.
    Rests,
    /// It was cancelled before it began.
    Ends,
    /// It has begun, or it undoes what earlier attempts have done.
    Goes,
}

impl Beginning {
    fn of(run: &ReadRun) -> Beginning {
        match run.content.asked.as_deref() {
            None => Beginning::Starts,
            Some("pause") => Beginning::Rests,
            Some("cancel_and_undo") if !run.steps.is_empty() => Beginning::Goes,
            Some(_) => Beginning::Ends,
        }
    }
}

/// What a turn has planned.
struct Planned {
    progress: Progress,
    /// The room that the run needs, if it starts.
    start: Option<RunRoom>,
}

fn refusal(why: ChildRefusal) -> StepError {
    match why {
        ChildRefusal::Full => StepError::new("busy", "the workspace has too many tasks or runs that have not ended"),
        ChildRefusal::Skipped => {
            StepError::new("skipped", "the workflow has reached its limit of concurrency, and starts no run beyond it")
        }
        ChildRefusal::Disabled => StepError::new("disabled", "the workflow was disabled or deleted"),
    }
}

fn failed(error: &dyn std::error::Error) -> TurnError {
    TurnError::Failed(with_causes(error))
}

#[async_trait]
impl Handler for RunTurns {
    fn kind(&self) -> WakeKind {
        WakeKind::Run
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let Ok(id) = turn.key().id().parse::<RunId>() else { return Ok(TurnOutcome::Done) };
        let mut refused = Vec::new();
        for _ in 0..DECISIONS_MAX {
            verified(&self.app, turn.workspace())?;
            if let Some(outcome) = self.decide(turn, id, &mut refused).await? {
                return Ok(outcome);
            }
        }
        Err(too_many_changes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::StepContent;
    use super::super::record::tests::{run as run_row, step as step_row};
    use super::*;

    fn begins(asked: Option<RunRequest>, has_steps: bool) -> Beginning {
        let asked = asked.map(RunRequest::as_str);
        let content: RunContent = serde_json::from_value(json!({ "input": {}, "asked": asked })).unwrap();
        let row = run_row();
        let steps = if has_steps { vec![(step_row(&row), StepContent::default())] } else { Vec::new() };
        Beginning::of(&ReadRun { row, read: content.clone(), content, steps })
    }

    #[test]
    fn a_run_begins_as_people_have_asked() {
        assert_eq!(begins(None, false), Beginning::Starts);
        assert_eq!(begins(Some(RunRequest::Pause), false), Beginning::Rests);
        assert_eq!(begins(Some(RunRequest::Cancel), true), Beginning::Ends);
        assert_eq!(begins(Some(RunRequest::CancelAndUndo), false), Beginning::Ends);
        // A retry that was cancelled in the queue undoes what the attempt before has done.
        assert_eq!(begins(Some(RunRequest::CancelAndUndo), true), Beginning::Goes);
    }

    #[test]
    fn a_refused_task_or_run_has_a_code_of_its_own() {
        let codes = [ChildRefusal::Full, ChildRefusal::Skipped, ChildRefusal::Disabled].map(|why| refusal(why).code);
        assert_eq!(codes, ["busy", "skipped", "disabled"]);
    }
}
