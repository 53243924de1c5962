//! Decides what happens to a call of a task or of a run whose end is not in its journal.
//!
//! A side effect that may have happened is never repeated, unless the tool says that a repetition is harmless.

use monstrum_manifest::Effect;
use monstrum_types::Code;

use crate::call_types::task_step::is_cut;

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
    /// The call never runs again, and its caller learns that it may have taken effect.
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
