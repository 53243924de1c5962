//! Runs the calls of a round: calls that change nothing together, all others one by one.

use std::sync::{Arc, OnceLock};

use futures::stream::{FuturesUnordered, StreamExt as _};
use monstrum_core::call_types::call_labels::CallLabels;
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_core::call_types::resumed::is_uncertain;
use monstrum_core::call_types::task_step::{TaskOfCall, TaskStep};
use monstrum_engine::Lease;
use monstrum_manifest::Effect;
use monstrum_store::{EndedStep, StoreRow, WakeClaim};
use monstrum_types::{AwaitedApproval, CallOutcome, Clock, Code, Labels, Status};
use monstrum_vault::Vault;
use serde_json::Value;

use crate::journal::{self, CallContent, StepOutcome};
use crate::own_tools;
use crate::present::UNCERTAIN;
use crate::runner::{Interrupted, TaskTurn};
use crate::state::{PlannedCall, State};
use crate::waits::{PARKED_AFTER, Waits};

/// The maximum number of calls of one task that run at once. It is also the number of connections that browsers open to
/// one server, so upstreams are used to it.
const CALLS_AT_ONCE: usize = 8;

/// The step of a task that a call carries out. It makes the row that ends the step in the journal.
struct Step {
    vault: Arc<Vault>,
    clock: Arc<dyn Clock>,
    lease: Lease,
    claim: WakeClaim,
    planned: PlannedCall,
    labels: CallLabels,
    waits: Arc<Waits>,
    outcome: OnceLock<StepOutcome>,
    /// Whether the task waits without a turn for the decision about the call.
    parks: bool,
    /// The approval for which the call waits. The step then has no end, and runs again after the decision.
    parked: OnceLock<AwaitedApproval>,
}

impl TaskStep for Step {
    fn waits(&self, approval: Option<&AwaitedApproval>) {
        self.waits.waits(self.planned.row.sequence, approval.cloned());
    }

    fn ended(&self, outcome: &CallOutcome, has_started: bool, is_unanswered: bool) -> Vec<StoreRow> {
        if let Some(approval) = outcome.approval.as_deref().filter(|_| self.parks && !has_started) {
            self.parked.get_or_init(|| approval.clone());
            return Vec::new();
        }
        // A plugin that makes calls sends nothing itself, but its calls may have.
        let may_have_acted = has_started || self.planned.content.makes_calls;
        let is_cut = is_uncertain(self.planned.effect(), outcome.code, is_unanswered)
            || (self.planned.effect() == Effect::Write && !self.lease.is_alive());
        let is_uncertain = may_have_acted && is_cut && outcome.status != Status::Success;
        let outcome = match is_uncertain {
            true => StepOutcome::failed(Code::Uncertain, UNCERTAIN),
            false => StepOutcome::from(outcome),
        };
        let outcome = StepOutcome { labels: self.labels.of_results(), ..outcome };
        match ended(&self.vault, &*self.clock, &self.claim, &self.planned, &outcome) {
            Ok(row) => {
                self.outcome.get_or_init(|| outcome);
                vec![StoreRow::TaskStep(Box::new(row))]
            }
            // The step then has no end, and the task decides about it as after a crash.
            Err(error) => {
                tracing::error!(%error, task.id = %self.planned.row.task_id, "the end of a call cannot be sealed");
                Vec::new()
            }
        }
    }
}

/// Returns the row that ends a step with `outcome`.
pub(crate) fn ended(
    vault: &Vault,
    clock: &dyn Clock,
    claim: &WakeClaim,
    planned: &PlannedCall,
    outcome: &StepOutcome,
) -> Result<EndedStep, journal::JournalError> {
    let content = CallContent { outcome: Some(outcome.clone()), ..planned.content.clone() };
    Ok(EndedStep {
        task_id: planned.row.task_id,
        sequence: planned.row.sequence,
        wake: claim.key.clone(),
        claim: claim.id,
        status: outcome.status.as_str().to_owned(),
        ended_at: clock.now(),
        sealed: journal::seal_step(vault, &planned.row, &content)?,
    })
}

impl TaskTurn<'_> {
    /// Runs calls, in the order in which the model asked for them. Calls next to each other that change nothing run
    /// together. Stops to begin calls when the task stops.
    pub(crate) async fn run_calls(&self, state: &mut State, calls: Vec<PlannedCall>) -> Result<(), Interrupted> {
        let mut calls = calls.into_iter().peekable();
        while let Some(first) = calls.next() {
            self.attended().await;
            if self.stops() {
                return Ok(());
            }
            if first.effect() != Effect::Read {
                let sequence = first.row.sequence;
                // The calls after one that waits for a decision wait too, so that they keep their order.
                let Some(outcome) = self.run_call(first, state.labels()).await? else { return Ok(()) };
                state.end(sequence, outcome);
                self.live.changed();
                continue;
            }
            let mut reads = vec![first];
            while let Some(next) = calls.next_if(|next| next.effect() == Effect::Read) {
                reads.push(next);
            }
            self.run_reads(state, reads).await?;
            if self.is_parked() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn run_reads(&self, state: &mut State, reads: Vec<PlannedCall>) -> Result<(), Interrupted> {
        let mut waiting = reads.into_iter();
        let labels = &state.labels().clone();
        let run = |call: PlannedCall| async move { (call.row.sequence, self.run_call(call, labels).await) };
        let mut running: FuturesUnordered<_> = waiting.by_ref().take(CALLS_AT_ONCE).map(run).collect();
        let mut failed = None;
        while let Some((sequence, outcome)) = running.next().await {
            match outcome {
                Ok(Some(outcome)) => state.end(sequence, outcome),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
            self.live.changed();
            if failed.is_none()
                && !self.stops()
                && let Some(next) = waiting.next()
            {
                running.push(run(next));
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Runs one call to its end, which is then in the journal and in the audit. `labels` are those of what the model had
    /// read when it asked for the call. Returns `None` if the call waits for a decision, and the task without a turn.
    async fn run_call(&self, planned: PlannedCall, labels: &Labels) -> Result<Option<StepOutcome>, Interrupted> {
        let app = &self.runner.app;
        let Some(request_id) = planned.request_id() else {
            return Err(Interrupted::Failed("a planned call has no id".to_owned()));
        };
        let tool = planned.row.tool.clone().unwrap_or_default();
        let params = Value::Object(planned.content.params.clone());
        let _running = self.waits.begun(planned.row.sequence);
        // Calls of a plugin that ask would begin again with all that the plugin has done before.
        let parks = self.parks() && !planned.content.makes_calls;
        let wait = if parks { PARKED_AFTER } else { self.approval_wait() };
        let step = Arc::new(Step {
            vault: Arc::clone(&app.vault),
            clock: Arc::clone(&app.clock),
            lease: self.turn.lease().clone(),
            claim: self.turn.claim().clone(),
            planned,
            labels: CallLabels::new(labels.clone()),
            waits: Arc::clone(&self.waits),
            outcome: OnceLock::new(),
            parks,
            parked: OnceLock::new(),
        });
        let call = IncomingCall::bot_tool(request_id, self.row.workspace_id, self.row.bot_id, tool, params)
            .with_wait_for_approval(Some(wait))
            .with_labels(step.labels.clone());
        let call = self.of_task(call, TaskOfCall { step: Some(Arc::clone(&step) as _), lease: self.lease() });
        let ended = match own_tools::is_own(call.tool()) {
            false => app.calls.run_until(call, &self.stop_calls).await,
            true => {
                let params = call.params().value().as_object().cloned().unwrap_or_default();
                let outcome = self.own_call(call.tool(), &params, &step.labels).await?;
                app.calls.answer_step(call, outcome).await
            }
        };
        ended.map_err(|error| Interrupted::Failed(error.to_string()))?;
        if let Some(approval) = step.parked.get() {
            self.park(step.planned.row.sequence, approval.clone());
            return Ok(None);
        }
        self.take_place().await;
        let outcome = step.outcome.get().cloned().map(Some);
        outcome.ok_or_else(|| Interrupted::Failed("the end of a call could not be kept".to_owned()))
    }
}
