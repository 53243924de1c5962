//! The call of a step, as the pipeline of calls sees it: the record of its end, and the lease under which it runs.

use std::sync::{Arc, OnceLock};

use monstrum_core::app::App;
use monstrum_core::call_types::call_labels::CallLabels;
use monstrum_core::call_types::task_step::{Origin, TaskLease, TaskStep};
use monstrum_engine::Lease;
use monstrum_flow::StepStatus;
use monstrum_manifest::Effect;
use monstrum_store::{EndedRunStep, NewWake, RunStepRow, StoreRow, WakeClaim};
use monstrum_types::{AwaitedApproval, CallOutcome, RunId, UtcMillis, with_causes};
use monstrum_vault::Vault;
use parking_lot::Mutex;

use super::decisions::{Facts, StepEnd, Stop, after};
use crate::runs::progress::column;
use crate::runs::record::{RecordError, StepContent, seal_step};

/// The attempt that a call carries out. It makes the rows that end the attempt.
pub(super) struct StepOfCall {
    pub(super) app: Arc<App>,
    pub(super) claim: WakeClaim,
    pub(super) row: RunStepRow,
    pub(super) content: StepContent,
    pub(super) stored: Effect,
    pub(super) labels: CallLabels,
    pub(super) lease: Arc<LeaseOfStep>,
    pub(super) stop: Arc<OnceLock<Stop>>,
    /// The wake of the run.
    pub(super) wake: NewWake,
    /// The approval for which the call waits. The attempt then has no end.
    pub(super) parked: OnceLock<AwaitedApproval>,
    /// How the attempt has ended, if its end was written.
    pub(super) ended: OnceLock<StepStatus>,
}

impl TaskStep for StepOfCall {
    fn waits(&self, _approval: Option<&AwaitedApproval>) {
        // The call does not wait: the attempt waits without a turn.
    }

    fn ended(&self, outcome: &CallOutcome, has_started: bool, is_unanswered: bool) -> Vec<StoreRow> {
        // A call that has started would begin again with all that it has done before.
        if let Some(approval) = outcome.approval.as_deref().filter(|_| !has_started) {
            self.parked.get_or_init(|| approval.clone());
            return Vec::new();
        }
        let facts = Facts {
            stop: self.stop.get().copied(),
            has_lease: self.lease.is_in_force(),
            started: self.lease.gravest().or(has_started.then_some(Effect::Write)),
            is_unanswered,
            repeats: self.content.repeats,
            stored: self.stored,
        };
        let Some(end) = after(outcome, &facts) else { return Vec::new() };
        let (labels, status) = (self.labels.of_results(), end.status);
        let content = StepContent { labels: self.content.labels.clone().with(&labels), ..self.content.clone() };
        match ended(&self.app.vault, &self.claim, (&self.row, content), end, self.app.clock.now()) {
            Ok(row) => {
                self.ended.get_or_init(|| status);
                vec![StoreRow::RunStep(Box::new(row)), StoreRow::Wake(self.wake.clone())]
            }
            // The attempt then has no end, and the next turn decides about it as after a crash.
            Err(error) => {
                let error = with_causes(&error);
                tracing::error!(%error, run.id = %self.row.run_id, "the end of a step cannot be sealed");
                Vec::new()
            }
        }
    }
}

/// Returns the row that ends an attempt.
pub(super) fn ended(
    vault: &Vault,
    claim: &WakeClaim,
    (row, content): (&RunStepRow, StepContent),
    end: StepEnd,
    now: UtcMillis,
) -> Result<EndedRunStep, RecordError> {
    let StepEnd { status, data, error, effect, may_have_happened, refused } = end;
    let code = error.as_ref().map(|error| error.code.clone());
    let content = StepContent {
        status,
        data,
        error,
        effect: Some(effect.as_str().to_owned()),
        may_have_happened,
        refused,
        waiting_since: None,
        ended_at: Some(now),
        ..content
    };
    Ok(EndedRunStep {
        key: row.key(),
        wake: claim.key.clone(),
        claim: claim.id,
        status: column(status),
        code,
        ended_at: now,
        sealed: seal_step(vault, row, &content)?,
    })
}

/// The lease of the turn of a step. It also knows which effects have started.
pub(super) struct LeaseOfStep {
    lease: Lease,
    run: RunId,
    gravest: Mutex<Option<Effect>>,
}

impl LeaseOfStep {
    pub(super) fn new(lease: Lease, run: RunId) -> LeaseOfStep {
        LeaseOfStep { lease, run, gravest: Mutex::new(None) }
    }

    /// Returns the gravest effect of the call and of the calls below it that have started.
    fn gravest(&self) -> Option<Effect> {
        *self.gravest.lock()
    }
}

impl TaskLease for LeaseOfStep {
    fn is_in_force(&self) -> bool {
        self.lease.is_alive()
    }

    fn origin(&self) -> Origin {
        Origin::Run(self.run)
    }

    fn has_started(&self, effect: Effect, is_child: bool) {
        let mut gravest = self.gravest.lock();
        *gravest = Some(graver(*gravest, effect, is_child));
    }
}

/// Returns the gravest effect after another call has started. A call below the call of the step has another request id when it
/// is made again, so that the upstream cannot know that it is the same.
fn graver(known: Option<Effect>, started: Effect, is_child: bool) -> Effect {
    match (known, started) {
        (None | Some(Effect::Read), Effect::Read) => Effect::Read,
        (None | Some(Effect::Read | Effect::Idempotent), Effect::Idempotent) if !is_child => Effect::Idempotent,
        (Some(Effect::Idempotent), Effect::Read) => Effect::Idempotent,
        _ => Effect::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gravest_effect_counts() {
        use Effect::{Idempotent, Read, Write};
        let of = |started: &[(Effect, bool)]| {
            started.iter().fold(None, |known, (effect, is_child)| Some(graver(known, *effect, *is_child)))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(Read, false), (Read, true)]), Some(Read));
        assert_eq!(of(&[(Idempotent, false), (Read, true)]), Some(Idempotent));
        assert_eq!(of(&[(Read, false), (Idempotent, false)]), Some(Idempotent));
        assert_eq!(of(&[(Read, false), (Idempotent, true)]), Some(Write), "the upstream sees another request id");
        assert_eq!(of(&[(Write, true), (Read, false), (Idempotent, false)]), Some(Write));
    }
}
