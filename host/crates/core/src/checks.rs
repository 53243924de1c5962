//! Runs the checks of parameters, permissions and results.
//!
//! The work of a check depends on input from plugins, tenants and callers, so no check may block the serving threads. A
//! check first runs in place. If it exceeds the limit for work in place, it is stopped and starts again on a thread
//! pool. The pool has one place for each processor. Workspaces share these places in the same way as the call slots of
//! plugins. A check in the pool ends at its deadline, when its caller is dropped, or when it exceeds the step limit of
//! one check.

mod content;

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use monstrum_manifest::{CHECK_STEPS_MAX, OutputSchema, ResultForm};
use monstrum_types::{BotId, CallOutcome, Code, Effort, Halt, JsonText, Overrun, WorkspaceId};
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::beside;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::Refusal;
use crate::fair_queue::{FairQueue, Share};

/// The maximum number of steps of a check in place. In an optimised build, these steps take at most about 30
/// microseconds, and usually far less, because step counts are upper bounds. A switch to another thread takes about 30
/// microseconds too.
pub const STEPS_IN_PLACE: u64 = 32_768;
/// The number of steps charged for reading, writing and copying one byte of JSON.
const BYTE_STEPS: u64 = 4;
/// The number of steps charged for one JSON value, in addition to its bytes.
const NODE_STEPS: u64 = 64;
/// The maximum number of steps for reading, writing or freeing a value on a serving thread. These steps take about a
/// quarter of a millisecond.
const LARGE_STEPS: u64 = 1 << 18;

/// The thread pool for checks that exceed the limit for work in place.
pub struct Checks {
    places: Arc<FairQueue<WorkspaceId, Option<BotId>>>,
}

/// The workspace and bot for which a check runs, and its deadline.
#[derive(Clone, Copy)]
pub struct Asker {
    pub workspace: WorkspaceId,
    pub bot: Option<BotId>,
    /// The share of the pool that the workspace may hold.
    pub share: Share,
    pub until: Instant,
}

impl Asker {
    /// Returns the asker for a check of `call` that begins now. The deadline of the check is `longest` from now, or the
    /// deadline of the parent call if it is earlier.
    pub fn of(call: &IncomingCall, share: Share, longest: Duration) -> Asker {
        let own = Instant::now() + longest;
        let until = call.lineage().map_or(own, |lineage| own.min(lineage.until));
        Asker { workspace: call.workspace(), bot: call.bot(), share, until }
    }
}

/// The reason why a check did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// No thread of the pool was free in time.
    Busy,
    Overrun(Overrun),
}

impl Checks {
    /// Creates an idle pool. The number of its places is the number of processors.
    pub fn new() -> Checks {
        let processors = available_parallelism().map_or(1, |number| u32::try_from(number.get()).unwrap_or(u32::MAX));
        Checks { places: FairQueue::new(processors) }
    }

    /// Waits for a place and runs a check on a thread of the pool. Dropping the future ends the check at its next step.
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
            // The place is freed when the thread is free, not when the caller is dropped.
            let _place = place;
            check(&Effort::until(CHECK_STEPS_MAX, halt))
        });
        // A join error can only come from a panic in the check, after which its result is unknown.
        checked.await.unwrap_or(Err(Overrun::Cancelled)).map_err(Unchecked::Overrun)
    }

    /// Runs a check in place. If the check exceeds the step limit in place, runs the check again in the pool.
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

    /// Checks a result against the declarations of its tool. A result that could not be checked does not match the
    /// tool's `output_schema`, and is not valid content.
    pub async fn output(
        &self,
        asker: Asker,
        form: ResultForm,
        schema: Option<Arc<OutputSchema>>,
        result: JsonText,
    ) -> CheckedOutput {
        let check = move |effort: &Effort| {
            effort.spend(BYTE_STEPS.saturating_mul(result.as_str().len() as u64))?;
            let value = result.value();
            let described = match form {
                ResultForm::Json => Some(&value),
                ResultForm::Content => match content::check(&value) {
                    Ok(content) => content.structured,
                    Err(fault) => return Ok(CheckedOutput::Invalid(fault)),
                },
            };
            let matches = match (&schema, described) {
                (Some(schema), Some(described)) => schema.matches(described, effort)?,
                (Some(_), None) => false,
                (None, _) => true,
            };
            Ok(if matches { CheckedOutput::Matches } else { CheckedOutput::Mismatch })
        };
        match (self.run(asker, check).await, form) {
            (Ok(checked), _) => checked,
            (Err(_), ResultForm::Json) => CheckedOutput::Mismatch,
            (Err(_), ResultForm::Content) => CheckedOutput::Invalid("the content could not be checked".to_owned()),
        }
    }
}

/// The result of checking the data that a tool returned.
pub enum CheckedOutput {
    /// The data matches the tool's declarations.
    Matches,
    /// The data does not match the tool's `output_schema`. The caller gets the data with a flag.
    Mismatch,
    /// The data is not valid content, for this reason. The caller does not get the data.
    Invalid(String),
}

impl Default for Checks {
    fn default() -> Self {
        Checks::new()
    }
}

/// Returns the effort that a check may use in place.
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
    /// Converts this reason to the refusal of a call.
    pub fn refusal(self) -> Refusal {
        Box::new(self.outcome())
    }

    /// Returns the outcome of a call whose check did not finish.
    pub fn outcome(self) -> CallOutcome {
        let (code, message) = match self {
            Unchecked::Busy => (Code::Busy, "the server is busy checking other calls; try again"),
            Unchecked::Overrun(Overrun::Steps) => {
                (Code::Limit, "checking this call exceeds the work limit of one call; send smaller parameters")
            }
            Unchecked::Overrun(Overrun::Deadline) => (Code::Timeout, "the check of the call timed out"),
            Unchecked::Overrun(Overrun::Cancelled) => (Code::Cancelled, "the check of the call was cancelled"),
        };
        CallOutcome::error(code, message).by_rule("check")
    }
}

/// Charges the steps for traversing, copying and writing a JSON value once each. The sender of the value decides its
/// size.
pub fn pay_for(value: &Value, effort: &Effort) -> Result<(), Overrun> {
    effort.spend(NODE_STEPS)?;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => effort.spend(BYTE_STEPS.saturating_mul(text.len() as u64)),
        Value::Array(items) => items.iter().try_for_each(|item| pay_for(item, effort)),
        Value::Object(members) => pay_for_object(members, effort),
    }
}

/// Charges the steps of [`pay_for`] for each name and value of a JSON object.
pub fn pay_for_object(members: &Map<String, Value>, effort: &Effort) -> Result<(), Overrun> {
    members.iter().try_for_each(|(name, member)| {
        effort.spend(BYTE_STEPS.saturating_mul(name.len() as u64))?;
        pay_for(member, effort)
    })
}

/// Charges the steps for copying a text once. Copying needs far fewer steps than writing.
pub fn pay_for_text(text: &str, effort: &Effort) -> Result<(), Overrun> {
    effort.spend(NODE_STEPS + text.len() as u64)
}

/// Returns whether parameters are too large to be written or freed on a serving thread.
pub fn is_large(params: &Value) -> bool {
    pay_for(params, &Effort::of(LARGE_STEPS)).is_err()
}

/// Returns whether an object is too large in the sense of [`is_large`].
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
