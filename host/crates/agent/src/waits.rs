//! What a task waits for: a task waits if it has running calls and each of them waits for a person. Its wall clock then
//! stands still.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use monstrum_api::tasks::WaitingFor;
use monstrum_types::{ApprovalId, AwaitedApproval, WorkspaceId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::tasks::Tasks;

impl Tasks {
    /// Returns what a task waits for, as the API shows it.
    pub(crate) fn waiting_for(&self, workspace: WorkspaceId, waiting_for: Option<&str>) -> Option<WaitingFor> {
        let (kind, id) = waiting_for?.split_once('/')?;
        let approval = id.parse::<ApprovalId>().ok().filter(|_| kind == "approval");
        let url = approval.and_then(|approval| self.app.calls.approvals.url(workspace, approval));
        Some(WaitingFor { kind: kind.to_owned(), id: id.to_owned(), url })
    }
}

/// The running calls of a task, and its wall clock.
pub(crate) struct Waits {
    calls: Mutex<RunningCalls>,
    current: watch::Sender<Option<AwaitedApproval>>,
}

struct RunningCalls {
    /// The positions of the steps whose calls run.
    running: HashSet<i64>,
    /// Those that wait, each with its approval.
    waiting: BTreeMap<i64, AwaitedApproval>,
    /// The time at which the task ends, if its wall clock does not stand still until then.
    deadline: Instant,
    stands_since: Option<Instant>,
}

/// A call that runs until the value is dropped.
pub(crate) struct RunningCall {
    waits: Arc<Waits>,
    step: i64,
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.waits.change(|calls| {
            calls.running.remove(&self.step);
            calls.waiting.remove(&self.step);
        });
    }
}

impl Waits {
    pub(crate) fn new(deadline: Instant) -> Arc<Waits> {
        let (running, waiting) = (HashSet::new(), BTreeMap::new());
        let calls = Mutex::new(RunningCalls { running, waiting, deadline, stands_since: None });
        Arc::new(Waits { calls, current: watch::Sender::new(None) })
    }

    /// Records that the call of a step runs.
    pub(crate) fn begun(self: &Arc<Self>, step: i64) -> RunningCall {
        self.change(|calls| {
            calls.running.insert(step);
        });
        RunningCall { waits: Arc::clone(self), step }
    }

    /// Records what the call of a step waits for.
    pub(crate) fn waits(&self, step: i64, approval: Option<AwaitedApproval>) {
        self.change(|calls| match approval {
            // A call that was cancelled does not begin to wait.
            Some(approval) if calls.running.contains(&step) => {
                calls.waiting.insert(step, approval);
            }
            _ => {
                calls.waiting.remove(&step);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut RunningCalls)) {
        let mut calls = self.calls.lock();
        change(&mut calls);
        let waits_for = calls.waiting.values().next().filter(|_| calls.waiting.len() == calls.running.len()).cloned();
        match (calls.stands_since, &waits_for) {
            (None, Some(_)) => calls.stands_since = Some(Instant::now()),
            (Some(since), None) => {
                calls.deadline += since.elapsed();
                calls.stands_since = None;
            }
            _ => {}
        }
        // The lock orders the values.
        self.current.send_if_modified(|current| {
            let is_other = *current != waits_for;
            *current = waits_for;
            is_other
        });
    }

    /// Listens to what the task waits for.
    pub(crate) fn listen(&self) -> watch::Receiver<Option<AwaitedApproval>> {
        self.current.subscribe()
    }

    /// Waits until the wall clock of the task has run out. It must be called again after each change.
    pub(crate) async fn run_out(&self) {
        let deadline = {
            let calls = self.calls.lock();
            calls.stands_since.is_none().then_some(calls.deadline)
        };
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use monstrum_types::UtcMillis;
    use tokio::time::advance;

    use super::*;

    fn approval() -> AwaitedApproval {
        AwaitedApproval { id: ApprovalId::new(), url: None, expires_at: UtcMillis(0) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wall_clock_stands_still_while_all_running_calls_wait() {
        let waits = Waits::new(Instant::now() + Duration::from_secs(10));
        let current = waits.listen();
        let (one, two) = (waits.begun(1), waits.begun(2));
        let asked = approval();
        waits.waits(1, Some(asked.clone()));
        assert_eq!(*current.borrow(), None, "the other call runs");
        drop(two);
        assert_eq!(*current.borrow(), Some(asked));
        advance(Duration::from_secs(3600)).await;
        assert!(waits.run_out().now_or_never().is_none());
        waits.waits(1, None);
        assert_eq!(*current.borrow(), None);
        advance(Duration::from_secs(9)).await;
        assert!(waits.run_out().now_or_never().is_none(), "an hour does not count");
        advance(Duration::from_secs(2)).await;
        assert!(waits.run_out().now_or_never().is_some());
        drop(one);
        waits.waits(1, Some(approval()));
        assert_eq!(*current.borrow(), None, "the call has ended");
    }
}
