//! Decides what becomes of a call of a step. The functions of this module depend only on what they are given.
//!
//! A side effect that may have happened is never repeated, unless its tool, the definition or a person says that a repetition
//! is harmless. An attempt whose effect is unknown is *uncertain*.

use monstrum_core::call_types::resumed::{Recorded, Resumed, is_uncertain, resumed};
use monstrum_core::call_types::task_step::is_cut;
use monstrum_flow::{STEP_RESULT_BYTES_MAX, StepError, StepStatus};
use monstrum_manifest::Effect;
use monstrum_store::{ApprovalStatus, RunStepStop};
use monstrum_types::{CallOutcome, Code, Status, UtcMillis};
use serde_json::Value;

/// The interval at which an attempt that waits for an approval looks whether its run still stands. The decision about the
/// approval requests its turn at once.
const LOOK_AGAIN_MS: i64 = 60_000;

/// Why an attempt stops before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The turn ends, because the host stops or has lost the claim. The attempt goes on in another turn.
    Turn,
    /// The run goes another way.
    Cancelled,
    /// The time of the attempt is over.
    TimedOut,
    /// The key that started the run was deleted or rotated.
    Revoked,
}

impl From<RunStepStop> for Stop {
    fn from(stop: RunStepStop) -> Stop {
        match stop {
            RunStepStop::Cancel => Stop::Cancelled,
            RunStepStop::Timeout => Stop::TimedOut,
        }
    }
}

/// How an attempt ends.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepEnd {
    pub(super) status: StepStatus,
    pub(super) data: Value,
    pub(super) error: Option<StepError>,
    /// The gravest effect of the call and of the calls below it that have started.
    pub(super) effect: Effect,
    pub(super) may_have_happened: bool,
    /// Whether a rule refused the call.
    pub(super) refused: bool,
}

impl StepEnd {
    fn new(status: StepStatus, (code, message): (&str, &str), effect: Effect, may_have_happened: bool) -> StepEnd {
        let error = Some(StepError::new(code, message));
        StepEnd { status, data: Value::Null, error, effect, may_have_happened, refused: false }
    }

    fn uncertain(why: &str) -> StepEnd {
        let message = format!("the call may have had its effect, and its result is lost: {why}");
        StepEnd::new(StepStatus::Uncertain, ("uncertain", &message), Effect::Write, true)
    }

    /// Returns the end of a repetition of a write that has not begun. What the attempt before has done is still unknown.
    fn left_unknown(why: &str, refused: bool) -> StepEnd {
        StepEnd { refused, ..StepEnd::uncertain(why) }
    }

    fn stopped(stop: Stop, effect: Effect, may_have_happened: bool) -> StepEnd {
        let (status, code, message) = match stop {
            Stop::TimedOut => (StepStatus::Failed, "timeout", "the step did not end within its time"),
            Stop::Revoked => (StepStatus::Cancelled, "revoked", "the key that started the run was deleted or rotated"),
            Stop::Turn | Stop::Cancelled => {
                (StepStatus::Cancelled, "cancelled", "the step was stopped, because the run goes another way")
            }
        };
        StepEnd::new(status, (code, message), effect, may_have_happened)
    }

    /// Returns how an attempt ends that would end like this, and whose call does not run.
    pub(super) fn without_call(self, known: &Known) -> StepEnd {
        if !known.repeats_write() {
            return self;
        }
        let why = self.error.as_ref().map_or("it was not repeated", |error| error.message.as_str());
        StepEnd::left_unknown(why, self.refused)
    }

    /// Returns the end of an attempt whose call people have not approved. Nothing of it has started.
    pub(super) fn refused(code: &str, message: &str) -> StepEnd {
        StepEnd { refused: true, ..StepEnd::new(StepStatus::Failed, (code, message), Effect::Read, false) }
    }

    /// Returns the end of an attempt whose approval has expired. It is not asked for again.
    pub(super) fn not_approved(known: &Known) -> StepEnd {
        let message = "nobody approved the call in time";
        let end = StepEnd::new(StepStatus::Failed, ("timeout", message), known.stored, known.repeats);
        StepEnd { refused: true, ..end }
    }

    /// Returns the end of an attempt that the host could not run for a long time.
    pub(super) fn not_run(known: &Known) -> StepEnd {
        let message = "the server could not run the call; search its log for the id of the run";
        let may_have_happened = known.recorded == Recorded::Started || known.repeats;
        StepEnd::new(StepStatus::Failed, ("unavailable", message), known.stored, may_have_happened)
    }
}

/// What is known about an attempt before its call runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) stop: Option<Stop>,
    /// Whether the call of this attempt has started.
    pub(super) recorded: Recorded,
    /// Whether the attempt repeats one that may have had its effect.
    pub(super) repeats: bool,
    /// The effect of the tool when the attempt was planned.
    pub(super) stored: Effect,
    /// The effect of the tool now; `None` if the bot no longer has the tool.
    pub(super) declared: Option<Effect>,
}

impl Known {
    /// Returns whether the attempt repeats a write that may have had its effect.
    fn repeats_write(&self) -> bool {
        self.repeats && self.stored == Effect::Write
    }
}

/// Decides whether the call of an open attempt runs. Returns how the attempt ends if the call does not run.
pub(super) fn before(known: &Known) -> Option<StepEnd> {
    let Known { stop, recorded, repeats, stored, declared } = *known;
    if resumed(recorded, stored, declared) == Resumed::Uncertain {
        return Some(StepEnd::uncertain("the server stopped while the call ran"));
    }
    let stop = stop?;
    if known.repeats_write() {
        return Some(StepEnd::left_unknown("its repetition was stopped before it began", false));
    }
    Some(StepEnd::stopped(stop, stored, repeats || recorded == Recorded::Started))
}

/// What is known about a call that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) stop: Option<Stop>,
    /// Whether this host may still write the end of the attempt.
    pub(super) has_lease: bool,
    /// The gravest effect of the call and of the calls below it that have started; `None` if none has.
    pub(super) started: Option<Effect>,
    /// Whether something that the call has sent had no answer.
    pub(super) is_unanswered: bool,
    pub(super) repeats: bool,
    pub(super) stored: Effect,
}

/// Decides how an attempt ends whose call has ended. Returns `None` if the attempt goes on in another turn.
pub(super) fn after(outcome: &CallOutcome, facts: &Facts) -> Option<StepEnd> {
    let Facts { stop, has_lease, started, is_unanswered, repeats, stored } = *facts;
    let (effect, has_started) = (started.unwrap_or(stored), started.is_some());
    if outcome.status == Status::Success {
        return Some(succeeded(outcome, effect, has_started));
    }
    let code = outcome.code.unwrap_or(Code::Unavailable);
    let was_left = match code {
        // The host stops.
        Code::Interrupted => true,
        Code::Cancelled | Code::Unavailable => stop == Some(Stop::Turn),
        _ => false,
    };
    if was_left || !has_lease {
        return None;
    }
    let message = outcome.message.as_deref().unwrap_or(outcome.status.as_str());
    let stop = stop.filter(|_| code == Code::Cancelled);
    let is_lost = has_started && is_uncertain(effect, Some(code), is_unanswered);
    if is_lost {
        return Some(StepEnd::uncertain(message));
    }
    // What the attempt before has done is still unknown: the write of this one has not begun, or was stopped.
    let is_left_unknown = stop.is_some() || started != Some(Effect::Write);
    if repeats && stored == Effect::Write && is_left_unknown {
        return Some(StepEnd::left_unknown(message, is_refusal(outcome.status)));
    }
    let may_have_happened = match effect {
        // A write that has started is not repeated, even if the upstream has answered with an error.
        Effect::Write => has_started || repeats,
        // A repetition after a certain answer is another call.
        Effect::Read | Effect::Idempotent => has_started && (is_unanswered || is_cut(code)),
    };
    if let Some(stop) = stop {
        return Some(StepEnd::stopped(stop, effect, may_have_happened));
    }
    let end = StepEnd::new(StepStatus::Failed, (code.as_str(), message), effect, may_have_happened);
    Some(StepEnd { refused: is_refusal(outcome.status), ..end })
}

fn succeeded(outcome: &CallOutcome, effect: Effect, has_started: bool) -> StepEnd {
    let size = outcome.data.as_ref().map_or(0, |data| data.as_str().len());
    if u64::try_from(size).is_ok_and(|size| size <= STEP_RESULT_BYTES_MAX) {
        let data = outcome.data.as_ref().map_or(Value::Null, monstrum_types::JsonText::value);
        let status = StepStatus::Succeeded;
        return StepEnd { status, data, error: None, effect, may_have_happened: has_started, refused: false };
    }
    let message = format!("the result has {size} bytes; at most {STEP_RESULT_BYTES_MAX} are possible");
    StepEnd::new(StepStatus::Failed, ("limit", &message), effect, has_started)
}

/// Returns whether a call with this status was refused by a rule, so that it is not repeated.
fn is_refusal(status: Status) -> bool {
    matches!(status, Status::PermissionDenied | Status::ScopeViolation | Status::ApprovalRequired)
}

/// What an attempt that waits for an approval does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// It looks again at this time.
    Waits(UtcMillis),
    /// Its call is judged again, which finds out what was decided.
    Goes,
    /// The time of the approval is over.
    Expired,
    /// A person has denied the call. The denial is no longer in force, so the call would ask anew if it was judged again.
    Denied,
}

/// An approval for which an attempt waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) status: ApprovalStatus,
    /// Whether nothing can happen to the approval any more.
    pub(super) has_ended: bool,
    pub(super) expires_at: UtcMillis,
}

/// Decides about an attempt that waits for an approval; `None` if the approval was deleted.
pub(super) fn gate(approval: Option<Awaited>, now: UtcMillis) -> Gate {
    match approval {
        Some(Awaited { status: ApprovalStatus::Expired, .. }) => Gate::Expired,
        Some(Awaited { status: ApprovalStatus::Denied, expires_at, .. }) if expires_at <= now => Gate::Denied,
        Some(Awaited { has_ended: false, expires_at, .. }) if expires_at <= now => Gate::Expired,
        Some(Awaited { status: ApprovalStatus::Pending, expires_at, .. }) => Gate::Waits(look_at(expires_at, now)),
        Some(_) | None => Gate::Goes,
    }
}

/// Returns the time at which an attempt that waits for an approval looks again.
pub(super) fn look_at(expires_at: UtcMillis, now: UtcMillis) -> UtcMillis {
    expires_at.min(now.plus_ms(LOOK_AGAIN_MS))
}

#[cfg(test)]
mod tests;
