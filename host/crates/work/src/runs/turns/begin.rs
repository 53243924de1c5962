//! Prepares what new attempts start: wakes of calls, events, tasks, runs and questions. The turn writes all of it with the
//! attempts.

use monstrum_core::emitter::EmitError;
use monstrum_core::events::{CustomName, EventError, EventLinks, EventName, NewEvent};
use monstrum_engine::TurnError;
use monstrum_flow::{StepError, StepStatus, Work};
use monstrum_store::{
    ApprovalRow, ChildOfStep, EventRow, NewApproval, NewChild, NewWake, RunStepKey, RunStepRow, RunStepStatus,
};
use monstrum_types::{ApprovalId, UtcMillis, with_causes};
use serde_json::{Value, json};

use super::RunTurns;
use super::outcomes::AskingAgain;
use super::read::ReadRun;
use crate::runs::progress::{Progress, StartedStep, fail};
use crate::runs::record::{RunContent, StepContent, WaitContent};
use crate::runs::revocation::revoked;
use crate::runs::steps::planned_effect;
use crate::runs::{approvals, keys};

/// What new attempts start.
#[derive(Default)]
pub(super) struct Begun {
    pub(super) children: Vec<ChildOfStep>,
    pub(super) wakes: Vec<NewWake>,
    pub(super) events: Vec<EventRow>,
    pub(super) approvals: Vec<NewApproval>,
    /// The attempts that wait for another approval than before.
    pub(super) asked_again: Vec<(RunStepKey, ApprovalId)>,
    /// The approvals for which no attempt waits any more.
    pub(super) void: Vec<ApprovalRow>,
    /// Whether the run has its next turn at once.
    pub(super) again: bool,
}

type Attempt = (RunStepRow, StepContent);

impl RunTurns {
    /// Prepares what the new attempts of a plan start, and what attempts ask again. One that cannot begin has failed. Without
    /// the key of the run, nothing acts any more, also in `finally`.
    pub(super) async fn begin(
        &self,
        run: &ReadRun,
        progress: &mut Progress,
        asking: Vec<AskingAgain>,
        is_revoked: bool,
        now: UtcMillis,
    ) -> Result<Begun, TurnError> {
        let mut begun = Begun::default();
        // A plan may have ended an attempt that was about to ask again.
        let is_ended = |key: &RunStepKey| progress.ended.iter().any(|end| end.key == *key);
        for AskingAgain { key, new, record } in asking.into_iter().filter(|asking| !is_ended(&asking.key)) {
            begun.asked_again.push((key.clone(), new.row.id));
            begun.approvals.push(new);
            progress.resealed.push((key, record.0, record.1));
        }
        begun.void = approvals::open_ones(&self.app, &run.row, &run.voided(&progress.ended), now).await?;
        let labels = run.labels();
        // What a task, a run or a question begins with is what the run has read until now.
        let content = RunContent { labels: labels.clone(), ..progress.content.clone() };
        let started = std::mem::take(&mut progress.started);
        for attempt in &mut progress.steps {
            attempt.1.labels_before = labels.clone();
            if attempt.1.ended_at.is_some() {
                begun.again |= attempt.1.status == StepStatus::Failed;
                continue;
            }
            let work = started.iter().find(|step| step.key == attempt.0.key()).map(|StartedStep { work, .. }| work);
            let prepared = match work {
                _ if is_revoked && acts(work, &attempt.1) => {
                    attempt.1.refused = true;
                    Err(revoked())
                }
                Some(work @ Work::Tool { .. }) => {
                    let effect = planned_effect(&self.app, (&run.row, &run.content), &attempt.0, work).await;
                    attempt.0.effect = effect.map(|effect| effect.as_str().to_owned());
                    begun.wakes.push(keys::wake(keys::step_key(&attempt.0.key()), run.row.workspace_id, now));
                    Ok(())
                }
                Some(Work::Emit { name, data }) => self.emit(run, attempt, (name, data), &mut begun, now),
                Some(work) => self.child((run, &content), attempt, work, &mut begun, now).await?,
                None => self.wait((run, &content), attempt, &mut begun, now).await?,
            };
            if let Err(error) = prepared {
                fail(attempt, error, now);
                begun.again = true;
            }
        }
        Ok(begun)
    }

    /// Emits an event. The attempt has succeeded when the transaction of the turn is on disk.
    fn emit(
        &self,
        run: &ReadRun,
        (row, content): &mut Attempt,
        (name, data): (&str, &Value),
        begun: &mut Begun,
        now: UtcMillis,
    ) -> Result<(), StepError> {
        let name = CustomName::new(name).map_err(|error| StepError::new("invalid", error.to_string()))?;
        let event = NewEvent {
            workspace_id: run.row.workspace_id,
            event_type: EventName::Custom(name),
            source_type: "bot",
            source_id: run.row.bot_id.to_string(),
            bot_id: Some(run.row.bot_id),
            links: EventLinks { run_id: Some(run.row.id), ..EventLinks::default() },
            cause: run.content.cause,
            data: data.clone(),
        };
        let event = self.app.emitter.row(event).map_err(|error| not_emitted(&error))?;
        (content.status, content.ended_at, content.event_id) = (StepStatus::Succeeded, Some(now), Some(event.id));
        content.data = json!({ "event_id": event.id });
        (row.status, row.ended_at) = (RunStepStatus::Succeeded, Some(now));
        begun.events.push(event);
        begun.again = true;
        Ok(())
    }

    /// Prepares the task or the run of an attempt.
    async fn child(
        &self,
        (run, content_of_run): (&ReadRun, &RunContent),
        (row, content): &mut Attempt,
        work: &Work,
        begun: &mut Begun,
        now: UtcMillis,
    ) -> Result<Result<(), StepError>, TurnError> {
        let step = row.key();
        let child = match self.children.prepare(&run.row, content_of_run, &step, work, now).await? {
            Ok(child) => child,
            Err(error) => return Ok(Err(error)),
        };
        match &child {
            NewChild::Task(task, _) => (row.task_id, content.task_id) = (Some(task.row.id), Some(task.row.id)),
            NewChild::Run(new, ..) => (row.child_run_id, content.child_run_id) = (Some(new.id), Some(new.id)),
        }
        row.status = RunStepStatus::Waiting;
        begun.children.push(ChildOfStep { step, child });
        Ok(Ok(()))
    }

    /// Prepares a wait for an event or a person.
    async fn wait(
        &self,
        (run, content_of_run): (&ReadRun, &RunContent),
        (row, content): &mut Attempt,
        begun: &mut Begun,
        now: UtcMillis,
    ) -> Result<Result<(), StepError>, TurnError> {
        match &content.wait {
            None | Some(WaitContent::Time) => Ok(Ok(())),
            Some(WaitContent::Event { event_type, .. }) => {
                if let Some(error) = self.waits.refusal(run.row.workspace_id, event_type).await? {
                    return Ok(Err(error));
                }
                row.wait_event = Some(event_type.clone());
                // An event that was dispatched before this wait is on disk is found by the next turn.
                begun.again = true;
                Ok(Ok(()))
            }
            Some(WaitContent::Approval { .. }) => {
                let (run, asked) = ((&run.row, content_of_run), begun.approvals.len());
                match approvals::ask(&self.app, run, (row, content), asked, now).await? {
                    Ok(new) => {
                        (row.approval_id, content.approval_id) = (Some(new.row.id), Some(new.row.id));
                        begun.approvals.push(new);
                        Ok(Ok(()))
                    }
                    Err(error) => Ok(Err(error)),
                }
            }
        }
    }
}

/// Returns whether an attempt starts a task or a run, emits an event, or asks a person. The turn of a call finds out by itself
/// whether the key is gone.
fn acts(work: Option<&Work>, content: &StepContent) -> bool {
    match work {
        Some(Work::Tool { .. }) => false,
        Some(Work::Agent { .. } | Work::Workflow { .. } | Work::Emit { .. }) => true,
        None => matches!(content.wait, Some(WaitContent::Approval { .. })),
    }
}

fn not_emitted(error: &EmitError) -> StepError {
    match error {
        EmitError::Limited(_) | EmitError::Event(EventError::TooLarge { .. }) => {
            StepError::new("limit", error.to_string())
        }
        EmitError::Event(_) | EmitError::Store(_) => {
            tracing::error!(error = %with_causes(error), "an event of a run cannot be made");
            StepError::new("unavailable", "the event cannot be stored")
        }
    }
}
