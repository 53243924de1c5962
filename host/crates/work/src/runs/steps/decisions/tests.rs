//! Tests of the decisions about calls of steps.

use Effect::{Idempotent, Read, Write};
use Recorded::{NotStarted, Started};
use monstrum_types::JsonText;
use serde_json::json;

use super::*;

const KNOWN: Known = Known { stop: None, recorded: NotStarted, repeats: false, stored: Write, declared: None };
const FACTS: Facts =
    Facts { stop: None, has_lease: true, started: None, is_unanswered: false, repeats: false, stored: Write };

/// Returns the status, the code, whether the call may have happened, and whether it was refused.
fn shown(end: &StepEnd) -> (StepStatus, &str, bool, bool) {
    let code = end.error.as_ref().map_or("", |error| error.code.as_str());
    (end.status, code, end.may_have_happened, end.refused)
}

fn failed(code: Code) -> CallOutcome {
    CallOutcome::error(code, "it failed")
}

fn after_call(outcome: &CallOutcome, facts: Facts) -> (StepStatus, String, bool, bool) {
    let end = after(outcome, &facts).expect("the attempt ends");
    let (status, code, may_have_happened, refused) = shown(&end);
    (status, code.to_owned(), may_have_happened, refused)
}

fn ends(status: StepStatus, code: &str, may_have_happened: bool) -> (StepStatus, String, bool, bool) {
    (status, code.to_owned(), may_have_happened, false)
}

#[test]
fn a_call_that_has_not_started_runs() {
    for stored in [Read, Idempotent, Write] {
        for repeats in [false, true] {
            assert_eq!(before(&Known { stored, repeats, ..KNOWN }), None, "{stored:?}");
        }
    }
}

#[test]
fn a_call_that_has_started_runs_again_only_if_that_is_harmless() {
    let started = Known { recorded: Started, ..KNOWN };
    for stored in [Read, Idempotent] {
        for declared in [Read, Idempotent] {
            assert_eq!(before(&Known { stored, declared: Some(declared), ..started }), None);
        }
        for declared in [Some(Write), None] {
            let end = before(&Known { stored, declared, ..started }).unwrap();
            assert_eq!(shown(&end), (StepStatus::Uncertain, "uncertain", true, false));
        }
    }
    for declared in [Some(Read), Some(Idempotent), Some(Write), None] {
        for stop in [None, Some(Stop::Cancelled), Some(Stop::TimedOut), Some(Stop::Revoked)] {
            let end = before(&Known { stop, declared, ..started }).unwrap();
            assert_eq!(shown(&end), (StepStatus::Uncertain, "uncertain", true, false));
        }
    }
}

#[test]
fn an_attempt_that_is_to_stop_does_not_begin() {
    for (stop, status, code) in [
        (Stop::Cancelled, StepStatus::Cancelled, "cancelled"),
        (Stop::TimedOut, StepStatus::Failed, "timeout"),
        (Stop::Revoked, StepStatus::Cancelled, "revoked"),
    ] {
        let stops = Known { stop: Some(stop), ..KNOWN };
        assert_eq!(shown(&before(&stops).unwrap()), (status, code, false, false));
        let read = Known { stored: Read, declared: Some(Read), recorded: Started, ..stops };
        assert_eq!(shown(&before(&read).unwrap()), (status, code, true, false));
        let repeats = Known { repeats: true, stored: Idempotent, ..stops };
        assert_eq!(shown(&before(&repeats).unwrap()), (status, code, true, false));
        // What the attempt before has done is still unknown.
        let unknown = Known { repeats: true, ..stops };
        assert_eq!(shown(&before(&unknown).unwrap()), (StepStatus::Uncertain, "uncertain", true, false));
    }
}

#[test]
fn a_result_ends_the_attempt_even_if_it_is_to_stop() {
    let outcome = CallOutcome::success(JsonText::from(&json!({ "number": 7 })));
    for stop in [None, Some(Stop::Turn), Some(Stop::Cancelled), Some(Stop::TimedOut), Some(Stop::Revoked)] {
        let end = after(&outcome, &Facts { stop, started: Some(Write), ..FACTS }).unwrap();
        assert_eq!((end.status, &end.data), (StepStatus::Succeeded, &json!({ "number": 7 })));
        assert_eq!((end.effect, end.may_have_happened, end.error), (Write, true, None));
    }
    let nothing = CallOutcome { data: None, ..outcome };
    assert_eq!(after(&nothing, &FACTS).unwrap().data, Value::Null);
}

#[test]
fn a_result_of_more_than_one_mebibyte_is_refused() {
    // The quotes belong to the JSON.
    let result = |letters: usize| CallOutcome::success(JsonText::from(&json!("x".repeat(letters))));
    let facts = Facts { started: Some(Read), ..FACTS };
    let max = usize::try_from(STEP_RESULT_BYTES_MAX).unwrap();
    assert_eq!(after(&result(max - 2), &facts).unwrap().status, StepStatus::Succeeded);
    assert_eq!(after_call(&result(max - 1), facts), ends(StepStatus::Failed, "limit", true));
}

#[test]
fn a_write_that_was_cut_off_is_uncertain() {
    let wrote = Facts { started: Some(Write), ..FACTS };
    let uncertain = || ends(StepStatus::Uncertain, "uncertain", true);
    for code in [Code::Timeout, Code::Cancelled, Code::Trap, Code::Fuel, Code::Memory, Code::BadResult] {
        assert_eq!(after_call(&failed(code), wrote), uncertain(), "{code:?}");
        for stop in [Stop::Cancelled, Stop::TimedOut, Stop::Revoked] {
            assert_eq!(after_call(&failed(code), Facts { stop: Some(stop), ..wrote }), uncertain(), "{code:?}");
        }
        let nothing = after_call(&failed(code), FACTS);
        assert_eq!(nothing, ends(StepStatus::Failed, code.as_str(), false), "no byte has left");
    }
    let unanswered = Facts { is_unanswered: true, ..wrote };
    assert_eq!(after_call(&failed(Code::Plugin), unanswered), uncertain());
    // A policy that no longer permits the call has cut it off.
    let revoked = CallOutcome::failure(Status::PermissionDenied, Code::Denied, "no").by_rule("revoked.binding");
    assert_eq!(after_call(&revoked, unanswered), uncertain());
    // The upstream has answered with an error. The call is not repeated all the same.
    assert_eq!(after_call(&failed(Code::Plugin), wrote), ends(StepStatus::Failed, "plugin", true));
}

#[test]
fn a_harmless_call_that_was_cut_off_has_failed() {
    for started in [Read, Idempotent] {
        let facts = Facts { started: Some(started), ..FACTS };
        assert_eq!(after_call(&failed(Code::Timeout), facts), ends(StepStatus::Failed, "timeout", true));
        let unanswered = Facts { is_unanswered: true, ..facts };
        assert_eq!(after_call(&failed(Code::Upstream), unanswered), ends(StepStatus::Failed, "upstream", true));
        // After a certain answer, the next attempt is another call.
        assert_eq!(after_call(&failed(Code::Plugin), facts), ends(StepStatus::Failed, "plugin", false));
    }
    // The effect of the calls below the call counts, and not only that of its tool.
    let child = Facts { started: Some(Write), stored: Read, ..FACTS };
    assert_eq!(after_call(&failed(Code::Timeout), child), ends(StepStatus::Uncertain, "uncertain", true));
}

#[test]
fn a_call_that_was_stopped_says_why() {
    for (stop, status, code) in [
        (Stop::Cancelled, StepStatus::Cancelled, "cancelled"),
        (Stop::TimedOut, StepStatus::Failed, "timeout"),
        (Stop::Revoked, StepStatus::Cancelled, "revoked"),
    ] {
        let stopped = Facts { stop: Some(stop), ..FACTS };
        assert_eq!(after_call(&failed(Code::Cancelled), stopped), ends(status, code, false));
        let read = Facts { started: Some(Read), ..stopped };
        assert_eq!(after_call(&failed(Code::Cancelled), read), ends(status, code, true));
        // The call has failed by itself, before it was cancelled.
        assert_eq!(after_call(&failed(Code::Busy), stopped), ends(StepStatus::Failed, "busy", false));
        let unknown = Facts { repeats: true, ..stopped };
        assert_eq!(after_call(&failed(Code::Cancelled), unknown), ends(StepStatus::Uncertain, "uncertain", true));
    }
}

#[test]
fn an_attempt_goes_on_after_its_host_has_stopped() {
    for started in [None, Some(Read), Some(Idempotent), Some(Write)] {
        let left = Facts { stop: Some(Stop::Turn), started, ..FACTS };
        for code in [Code::Cancelled, Code::Interrupted, Code::Unavailable] {
            assert_eq!(after(&failed(code), &left), None, "{code:?}");
        }
        assert_eq!(after(&failed(Code::Interrupted), &Facts { stop: None, ..left }), None);
        let lost = Facts { has_lease: false, stop: None, ..left };
        assert_eq!(after(&failed(Code::Unavailable), &lost), None, "another host goes on with the attempt");
    }
    let left = Facts { stop: Some(Stop::Turn), started: Some(Read), ..FACTS };
    assert_eq!(after_call(&failed(Code::Plugin), left), ends(StepStatus::Failed, "plugin", false));
}

#[test]
fn a_refusal_is_marked() {
    for (status, code) in [
        (Status::PermissionDenied, Code::Denied),
        (Status::ScopeViolation, Code::Scope),
        (Status::ApprovalRequired, Code::Approval),
    ] {
        let (ended, word, may_have_happened, refused) = after_call(&CallOutcome::failure(status, code, "no"), FACTS);
        assert_eq!(
            (ended, word.as_str(), may_have_happened, refused),
            (StepStatus::Failed, code.as_str(), false, true)
        );
    }
}

#[test]
fn a_repetition_that_has_not_written_leaves_unknown_what_was_before() {
    let repeats = Facts { repeats: true, ..FACTS };
    let uncertain = |refused: bool| (StepStatus::Uncertain, "uncertain".to_owned(), true, refused);
    let denied = CallOutcome::failure(Status::PermissionDenied, Code::Denied, "no");
    assert_eq!(after_call(&denied, repeats), uncertain(true));
    assert_eq!(after_call(&failed(Code::Busy), repeats), uncertain(false));
    // Only something that changes nothing was sent.
    let read = Facts { started: Some(Read), ..repeats };
    assert_eq!(after_call(&failed(Code::Plugin), read), uncertain(false));
    let wrote = Facts { started: Some(Write), ..repeats };
    assert_eq!(after_call(&failed(Code::Plugin), wrote), ends(StepStatus::Failed, "plugin", true));
    let harmless = Facts { stored: Idempotent, ..repeats };
    assert_eq!(after_call(&denied, harmless), (StepStatus::Failed, "denied".to_owned(), false, true));
}

#[test]
fn a_repetition_whose_call_does_not_run_leaves_unknown_what_was_before() {
    let repeats = Known { repeats: true, ..KNOWN };
    for (end, refused) in [
        (StepEnd::refused("denied", "not today"), true),
        (StepEnd::not_approved(&repeats), true),
        (StepEnd::not_run(&repeats), false),
    ] {
        let unknown = end.clone().without_call(&repeats);
        assert_eq!(shown(&unknown), (StepStatus::Uncertain, "uncertain", true, refused));
        assert_eq!(unknown.effect, Write);
        let (message, why) = (unknown.error.unwrap().message, end.error.clone().unwrap().message);
        assert!(message.contains(&why), "{message}");
        for known in [KNOWN, Known { stored: Idempotent, ..repeats }, Known { stored: Read, ..repeats }] {
            assert_eq!(end.clone().without_call(&known), end);
        }
    }
}

#[test]
fn a_gate_is_open_after_the_decision() {
    use ApprovalStatus::{Approved, Denied, Expired, Pending, Used, Void};
    let now = UtcMillis(1_000_000);
    let at = |status, has_ended, expires_at| {
        gate(Some(Awaited { status, has_ended, expires_at: UtcMillis(expires_at) }), now)
    };
    assert_eq!(at(Pending, false, 1_000_500), Gate::Waits(UtcMillis(1_000_500)));
    assert_eq!(at(Pending, false, 9_000_000), Gate::Waits(now.plus_ms(LOOK_AGAIN_MS)));
    assert_eq!(at(Pending, false, 1_000_000), Gate::Expired);
    assert_eq!(at(Expired, true, 999_999), Gate::Expired);
    assert_eq!(at(Approved, false, 999_999), Gate::Expired, "the decision came, and the call did not run");
    assert_eq!(at(Approved, false, 2_000_000), Gate::Goes);
    for decided in [Approved, Void, Used] {
        assert_eq!(at(decided, true, 999_999), Gate::Goes, "{decided:?}");
    }
    assert_eq!(at(Denied, true, 1_000_001), Gate::Goes, "the call is judged again, and denied");
    assert_eq!(at(Denied, true, 1_000_000), Gate::Denied);
    assert_eq!(gate(None, now), Gate::Goes, "the call is judged anew");
}

#[test]
fn an_expired_approval_is_not_asked_for_again() {
    let end = StepEnd::not_approved(&KNOWN);
    assert_eq!(shown(&end), (StepStatus::Failed, "timeout", false, true));
    assert!(StepEnd::not_approved(&Known { repeats: true, ..KNOWN }).may_have_happened);
    let end = StepEnd::not_run(&Known { recorded: Started, stored: Read, ..KNOWN });
    assert_eq!(shown(&end), (StepStatus::Failed, "unavailable", true, false));
}
