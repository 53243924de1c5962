//! Decides what happens to a call whose end is not in the journal, when a task is resumed.
//!
//! A side effect that may have happened is never repeated, unless the tool says that a repetition is harmless.

use monstrum_core::call_types::task_step::is_cut;
use monstrum_manifest::Effect;
use monstrum_store::StoreError;
use monstrum_types::{Code, RequestId};

use crate::calls::ended;
use crate::journal::StepOutcome;
use crate::rounds::Offered;
use crate::runner::{Interrupted, TaskTurn};
use crate::state::{PlannedCall, State};

/// What is known about a call whose end is not in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// The audit has no row `started` of the call. That row is on disk before the first byte leaves the host, so the call
    /// had no effect.
    NotStarted,
    /// The call has started, and calls below it may have too.
    Started,
}

/// What happens to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The call runs, with its request id.
    Runs,
    /// The call never runs again, and the model reads that it may have taken effect.
    Uncertain,
}

/// Decides about a call. `stored` is the effect of its tool when the call was planned, `declared` is the effect that the
/// tool has now; it is `None` if the bot no longer has the tool.
#[must_use]
pub fn resumed(recorded: Recorded, stored: Effect, declared: Option<Effect>) -> Resumed {
    let may_repeat = |effect: Effect| matches!(effect, Effect::Read | Effect::Idempotent);
    match recorded {
        Recorded::NotStarted => Resumed::Runs,
        Recorded::Started => {
            if may_repeat(stored) && declared.is_some_and(may_repeat) {
                Resumed::Runs
            } else {
                Resumed::Uncertain
            }
        }
    }
}

/// Returns whether a call that has started and ended with this code may have taken effect nevertheless. `is_unanswered`
/// says whether something that the call has sent had no answer. An error that the upstream answered is certain.
#[must_use]
pub fn is_uncertain(effect: Effect, code: Option<Code>, is_unanswered: bool) -> bool {
    effect == Effect::Write && (is_unanswered || code.is_some_and(is_cut))
}

impl TaskTurn<'_> {
    /// Decides about the calls that an earlier turn has planned and not ended.
    pub(crate) async fn resume(&self, state: &mut State) -> Result<(), Interrupted> {
        let app = &self.runner.app;
        let unended = state.unended();
        if unended.is_empty() {
            return Ok(());
        }
        let offered = self.offered().await?;
        let mut ends = Vec::new();
        for planned in unended {
            let Some(request_id) = planned.request_id() else { continue };
            // The row of a plugin's call precedes the rows of the calls that the plugin makes.
            let has_started = self.has_started(&planned, request_id).await?;
            let recorded = if has_started { Recorded::Started } else { Recorded::NotStarted };
            let tool = planned.row.tool.as_deref().unwrap_or_default();
            if !has_started && self.expired.contains(&planned.row.sequence) {
                let outcome = StepOutcome::not_approved();
                ends.push(ended(&app.vault, &*app.clock, self.turn.claim(), &planned, &outcome)?);
                state.end(planned.row.sequence, outcome);
                continue;
            }
            let declared = offered.get(tool).map(Offered::effect);
            if resumed(recorded, planned.effect(), declared) == Resumed::Uncertain {
                let outcome = StepOutcome::uncertain();
                ends.push(ended(&app.vault, &*app.clock, self.turn.claim(), &planned, &outcome)?);
                state.end(planned.row.sequence, outcome);
            }
        }
        app.store.end_task_steps(&ends).await?;
        self.live.changed();
        Ok(())
    }

    /// Returns whether a planned call has started.
    pub(crate) async fn has_started(&self, planned: &PlannedCall, request_id: RequestId) -> Result<bool, StoreError> {
        let store = &self.runner.app.store;
        store.has_started(self.row.workspace_id, request_id, planned.row.started_at).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_without_effect_run_again() {
        use Effect::{Idempotent, Read, Write};
        for effect in [Read, Idempotent, Write] {
            assert_eq!(resumed(Recorded::NotStarted, effect, None), Resumed::Runs, "no byte has left");
        }
        for stored in [Read, Idempotent] {
            for declared in [Read, Idempotent] {
                assert_eq!(resumed(Recorded::Started, stored, Some(declared)), Resumed::Runs);
            }
            assert_eq!(resumed(Recorded::Started, stored, Some(Write)), Resumed::Uncertain);
            assert_eq!(resumed(Recorded::Started, stored, None), Resumed::Uncertain);
        }
        for declared in [Some(Read), Some(Idempotent), Some(Write), None] {
            assert_eq!(resumed(Recorded::Started, Write, declared), Resumed::Uncertain);
        }
    }

    #[test]
    fn a_write_that_was_cut_off_is_uncertain() {
        for cut in [Code::Timeout, Code::Cancelled, Code::Uncertain, Code::BadResult, Code::ResultTooLarge] {
            assert!(is_uncertain(Effect::Write, Some(cut), false), "{cut:?}");
            for harmless in [Effect::Read, Effect::Idempotent] {
                assert!(!is_uncertain(harmless, Some(cut), true), "{cut:?}");
            }
        }
        for answered in [Some(Code::InvalidParams), Some(Code::Upstream), Some(Code::Plugin), Some(Code::Denied), None]
        {
            assert!(!is_uncertain(Effect::Write, answered, false), "{answered:?}");
            assert!(is_uncertain(Effect::Write, answered, true), "{answered:?}");
        }
    }
}
