//! Detects tasks that make no progress: a model that repeats one call, or whose calls all fail.
//!
//! The guards are a function of the ended calls of a task in their order, so that a task that is resumed on another host
//! continues with the same counts.

use monstrum_types::Status;
use sha2::{Digest, Sha256};

/// The number of same calls in a row with the same result at which the model is told about it.
pub const SAME_CALLS_TOLD: u32 = 3;
/// The number of same calls in a row with the same result at which the task ends.
pub const SAME_CALLS_MAX: u32 = 5;
/// The number of failed calls in a row at which the task ends.
pub const FAILED_CALLS_MAX: u32 = 10;

/// The counts of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guards {
    last: Option<[u8; 32]>,
    same: u32,
    failed: u32,
}

/// What follows from an ended call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The task goes on.
    GoOn,
    /// The task goes on, and the model reads that it repeats itself.
    Repeated,
    /// The task ends, because it makes no progress.
    Stuck,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedCall<'a> {
    pub tool: &'a str,
    /// The parameters as JSON text.
    pub params: &'a str,
    pub status: Status,
    /// What the call returned, as text.
    pub result: &'a str,
}

impl Guards {
    /// Counts an ended call.
    pub fn count(&mut self, call: EndedCall<'_>) -> Verdict {
        let digest = digest(call);
        self.same = if self.last == Some(digest) { self.same.saturating_add(1) } else { 1 };
        self.last = Some(digest);
        self.failed = if call.status == Status::Success { 0 } else { self.failed.saturating_add(1) };
        if self.same >= SAME_CALLS_MAX || self.failed >= FAILED_CALLS_MAX {
            Verdict::Stuck
        } else if self.same >= SAME_CALLS_TOLD {
            Verdict::Repeated
        } else {
            Verdict::GoOn
        }
    }
}

/// Returns a digest of a call and its result. The length of each part precedes it, so that different calls never share
/// their bytes.
fn digest(call: EndedCall<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [call.tool, call.params, call.status.as_str(), call.result] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(tool: &'a str, status: Status, result: &'a str) -> EndedCall<'a> {
        EndedCall { tool, params: "{}", status, result }
    }

    #[test]
    fn the_same_call_is_told_at_the_third_and_ends_at_the_fifth() {
        let mut guards = Guards::default();
        let verdicts: Vec<Verdict> = (0..5).map(|_| guards.count(call("list", Status::Success, "[]"))).collect();
        let (go_on, repeated) = (Verdict::GoOn, Verdict::Repeated);
        assert_eq!(verdicts, [go_on, go_on, repeated, repeated, Verdict::Stuck]);
    }

    #[test]
    fn another_result_or_another_call_is_progress() {
        let mut guards = Guards::default();
        for round in 0..20 {
            let result = format!("{round}");
            assert_eq!(guards.count(call("poll", Status::Success, &result)), Verdict::GoOn);
            assert_eq!(guards.count(call("poll", Status::Success, "same")), Verdict::GoOn);
        }
        let one = EndedCall { tool: "a", params: "bc", status: Status::Success, result: "" };
        let other = EndedCall { tool: "ab", params: "c", ..one };
        assert_ne!(digest(one), digest(other));
    }

    #[test]
    fn ten_failed_calls_in_a_row_end_the_task() {
        let mut guards = Guards::default();
        let results: Vec<String> = (0..30).map(|number| number.to_string()).collect();
        for result in &results[..9] {
            assert_eq!(guards.count(call("x", Status::Error, result)), Verdict::GoOn);
        }
        assert_eq!(guards.count(call("x", Status::Success, "ok")), Verdict::GoOn);
        for result in &results[10..19] {
            assert_eq!(guards.count(call("x", Status::PermissionDenied, result)), Verdict::GoOn);
        }
        assert_eq!(guards.count(call("x", Status::Error, "last")), Verdict::Stuck);
    }
}
