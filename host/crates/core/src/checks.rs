//! Where checks run: of parameters, of permissions and of results.
//!
//! What they take is decided by plugins, tenants and callers together, so no check may hold up the threads that serve
//! all callers. A check that needs little runs in place. A check that needs more is stopped and done again from the start on
//! a thread of a pool, with as many places as there are processors, shared among workspaces as plugins are; it ends at its deadline, when its caller
//! goes away, or when it has taken all steps that a check may take.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use monstrum_manifest::{CHECK_STEPS_MAX, OutputSchema};
use monstrum_types::{BotId, CallOutcome, Code, Effort, Halt, JsonText, Overrun, WorkspaceId};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::beside;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::Refusal;
use crate::fair_queue::{FairQueue, Share};

/// The steps that a check may take in place: at most some 30 microseconds in an optimised build, and a few in most cases,
/// since steps are upper bounds. A hop to another thread takes about as long.
pub const STEPS_IN_PLACE: u64 = 32_768;
/// What a byte of JSON takes to be read, written and copied.
const BYTE_STEPS: u64 = 4;
/// What a value of JSON takes besides its bytes.
const NODE_STEPS: u64 = 64;
/// What reading, writing or freeing a value may take on a thread that serves requests: a quarter of a millisecond.
const LARGE_STEPS: u64 = 1 << 18;

/// The threads for checks that are not done in place.
pub struct Checks {
    places: Arc<FairQueue<WorkspaceId, Option<BotId>>>,
}

/// For whom a check runs, and until when it may.
#[derive(Clone, Copy)]
pub struct Asker {
    pub workspace: WorkspaceId,
    pub bot: Option<BotId>,
    /// What the workspace may hold of the pool.
    pub share: Share,
    pub until: Instant,
}

impl Asker {
    /// For a check of `call` that begins now and may take `longest`, but no longer than the root of the call.
    pub fn of(call: &IncomingCall, share: Share, longest: Duration) -> Asker {
        let own = Instant::now() + longest;
        let until = call.lineage().map_or(own, |lineage| own.min(lineage.until));
        Asker { workspace: call.workspace(), bot: call.bot(), share, until }
    }
}

/// A check that came to no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// No thread of the pool was free in time.
    Busy,
    Overrun(Overrun),
}

impl Checks {
    /// A pool in which nothing runs, with as many places as there are processors.
    pub fn new() -> Checks {
        let processors = available_parallelism().map_or(1, |number| u32::try_from(number.get()).unwrap_or(u32::MAX));
        Checks { places: FairQueue::new(processors) }
    }

    /// Runs a check on a thread of the pool, waiting for a place. Dropping the future ends the check at its next step.
    pub async fn beside<T: Send + 'static>(
        &self,
        asker: Asker,
        check: impl FnOnce(&Effort) -> Result<T, Overrun> + Send + 'static,
    ) -> Result<T, Unchecked> {
        let place = self.places.enter(&asker.workspace, asker.bot, asker.share, asker.until).await;
        let place = place.ok_or(Unchecked::Busy)?;
        let halt = Halt::at(asker.until.into_std());
        let _cancelled_when_dropped = CancelWhenDropped(halt.clone());
        let checked = beside::spawn(move || {
            // Given back when the thread is free, not when the caller has gone.
            let _place = place;
            check(&Effort::until(CHECK_STEPS_MAX, halt))
        });
        // It may only fail by a panic of ours, after which nothing is known.
        checked.await.unwrap_or(Err(Overrun::Cancelled)).map_err(Unchecked::Overrun)
    }

    /// Runs a check in place or, if it needs more than is done there, beside.
    pub async fn run<T: Send + 'static>(
        &self,
        asker: Asker,
        check: impl Fn(&Effort) -> Result<T, Overrun> + Send + 'static,
    ) -> Result<T, Unchecked> {
        let checked = check(&in_place());
        match checked {
            Ok(checked) => Ok(checked),
            Err(_) => self.beside(asker, check).await,
        }
    }

    /// Whether a result is what its tool's `output_schema` says. One that could not be checked is not.
    pub async fn matches_output(&self, asker: Asker, schema: Arc<OutputSchema>, result: JsonText) -> bool {
        let check = move |effort: &Effort| {
            effort.spend(BYTE_STEPS.saturating_mul(result.as_str().len() as u64))?;
            schema.matches(&result.value(), effort)
        };
        self.run(asker, check).await.unwrap_or(false)
    }
}

impl Default for Checks {
    fn default() -> Self {
        Checks::new()
    }
}

/// What a check may take in place.
pub fn in_place() -> Effort {
    Effort::of(STEPS_IN_PLACE)
}

struct CancelWhenDropped(Halt);

impl Drop for CancelWhenDropped {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Unchecked {
    /// The same as the refusal of a call.
    pub fn refusal(self) -> Refusal {
        Box::new(self.outcome())
    }

    /// The end of the call whose check came to no end.
    pub fn outcome(self) -> CallOutcome {
        let (code, message) = match self {
            Unchecked::Busy => (Code::Busy, "the server is busy checking other calls"),
            Unchecked::Overrun(Overrun::Steps) => {
                (Code::Limit, "checking this call takes more work than one call may; send smaller parameters")
            }
            Unchecked::Overrun(Overrun::Deadline) => (Code::Timeout, "the call could not be checked in time"),
            Unchecked::Overrun(Overrun::Cancelled) => (Code::Cancelled, "the check of the call was cancelled"),
        };
        CallOutcome::error(code, message).by_rule("check")
    }
}

/// Pays for reading a JSON value, which its writer has made as large as they liked: for walking, copying and writing it
/// once each.
pub fn pay_for(value: &Value, effort: &Effort) -> Result<(), Overrun> {
    effort.spend(NODE_STEPS)?;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => effort.spend(BYTE_STEPS.saturating_mul(text.len() as u64)),
        Value::Array(items) => items.iter().try_for_each(|item| pay_for(item, effort)),
        Value::Object(members) => pay_for_object(members, effort),
    }
}

/// The same of an object.
pub fn pay_for_object(members: &Map<String, Value>, effort: &Effort) -> Result<(), Overrun> {
    members.iter().try_for_each(|(name, member)| {
        effort.spend(BYTE_STEPS.saturating_mul(name.len() as u64))?;
        pay_for(member, effort)
    })
}

/// Pays for copying a text once, which takes far less than writing it.
pub fn pay_for_text(text: &str, effort: &Effort) -> Result<(), Overrun> {
    effort.spend(NODE_STEPS + text.len() as u64)
}

/// Whether parameters are too large to be written or freed on a thread that serves requests.
pub fn is_large(params: &Value) -> bool {
    pay_for(params, &Effort::of(LARGE_STEPS)).is_err()
}

/// The same of an object.
pub fn is_large_object(params: &Map<String, Value>) -> bool {
    pay_for_object(params, &Effort::of(LARGE_STEPS)).is_err()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use serde_json::json;

    use super::*;

    fn asker(until: Instant) -> Asker {
        Asker { workspace: WorkspaceId::new(), bot: None, share: Share::Whole, until }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[tokio::test]
    async fn a_small_check_runs_where_it_is_asked_for() {
        let here = std::thread::current().id();
        let checks = Checks::new();
        let small = checks.run(asker(later()), |effort| {
            effort.spend(STEPS_IN_PLACE)?;
            Ok(std::thread::current().id())
        });
        assert_eq!(small.await, Ok(here));
        let large = checks.run(asker(later()), |effort| {
            effort.spend(STEPS_IN_PLACE + 1)?;
            Ok(std::thread::current().id())
        });
        assert_ne!(large.await, Ok(here));
        assert_eq!(checks.places.waiting(), 0);
    }

    #[tokio::test]
    async fn a_check_ends_with_its_steps_and_with_its_time() {
        let checks = Checks::new();
        let endless = |effort: &Effort| -> Result<(), Overrun> {
            loop {
                effort.spend(1 << 20)?;
            }
        };
        assert_eq!(checks.run(asker(later()), endless).await, Err(Unchecked::Overrun(Overrun::Steps)));
        let endless = |effort: &Effort| -> Result<(), Overrun> {
            effort.spend(STEPS_IN_PLACE + 1)?;
            loop {
                effort.spend(0)?;
            }
        };
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(checks.run(asker(soon), endless).await, Err(Unchecked::Overrun(Overrun::Deadline)));
    }

    #[tokio::test]
    async fn a_check_that_nobody_waits_for_ends() {
        let checks = Checks::new();
        let (begun, has_begun) = mpsc::channel();
        let (ended, has_ended) = mpsc::channel();
        let check = move |effort: &Effort| -> Result<(), Overrun> {
            begun.send(()).unwrap();
            let end = loop {
                if let Err(end) = effort.spend(0) {
                    break end;
                }
            };
            ended.send(end).unwrap();
            Err(end)
        };
        {
            let mut waiting = std::pin::pin!(checks.beside(asker(later()), check));
            while has_begun.try_recv().is_err() {
                assert!(futures::poll!(waiting.as_mut()).is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(has_ended.recv(), Ok(Overrun::Cancelled));
    }

    #[tokio::test]
    async fn a_workspace_that_shares_the_pool_leaves_room_for_another() {
        let checks = Checks { places: FairQueue::new(4) };
        let busy = Asker { share: Share::Part, ..asker(later()) };
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let mut waiting = Vec::new();
        for _ in 0..4 {
            let held = Arc::clone(&held);
            waiting.push(Box::pin(checks.beside(busy, move |_| Ok(held.lock().unwrap().recv().is_err()))));
            assert!(futures::poll!(waiting.last_mut().unwrap().as_mut()).is_pending());
        }
        let other = Asker { share: Share::Part, ..asker(later()) };
        assert_eq!(checks.beside(other, |_| Ok(())).await, Ok(()));
        drop(hold);
        for check in waiting {
            assert_eq!(check.await, Ok(true));
        }
    }

    #[test]
    fn large_parameters_are_not_read_in_place() {
        let read = |value: &Value| pay_for(value, &in_place());
        assert_eq!(
            read(&json!({"owner": "acme", "repo": "api", "labels": ["a", "b"], "body": "x".repeat(4_000)})),
            Ok(())
        );
        assert_eq!(read(&json!({"body": "x".repeat(20_000)})), Err(Overrun::Steps));
        assert_eq!(read(&json!(vec![0; 1_000])), Err(Overrun::Steps));
    }
}
