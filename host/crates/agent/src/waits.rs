//! What a task waits for: a task waits if it has running calls and each of them waits for a person. Its wall clock then
//! stands still. After a few seconds, the turn ends, so that the task needs neither a claim nor memory until the decision:
//! the calls have no end in the journal, and are judged again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use monstrum_api::tasks::WaitingFor;
use monstrum_engine::Turn;
use monstrum_store::{AfterTurn, ApprovalRow, ApprovalStatus, StoreError, TaskRow, TaskStatus};
use monstrum_types::{ApprovalId, AwaitedApproval, TaskId, UtcMillis, WorkspaceId};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::journal::{self, TaskContent};
use crate::links::LinksOfTask;
use crate::runner::{Runner, TaskTurn};
use crate::tasks::Tasks;

/// The time for which a call waits for a decision before its task waits without a turn. Programs that decide are faster.
pub(crate) const PARKED_AFTER: Duration = Duration::from_secs(5);
/// The interval at which a task without a turn looks whether its key and its delegations are still there. A decision wakes
/// the task at once.
const LOOK_AGAIN_MS: i64 = 60_000;

impl Tasks {
    /// Returns what a task waits for, as the API shows it.
    pub(crate) fn waiting_for(&self, workspace: WorkspaceId, waiting_for: Option<&str>) -> Option<WaitingFor> {
        let (kind, ids) = waiting_for?.split_once('/')?;
        let id = ids.split([',', ':']).next().unwrap_or_default();
        let approval = id.parse::<ApprovalId>().ok().filter(|_| kind == "approval");
        let url = approval.and_then(|approval| self.app.calls.approvals.url(workspace, approval));
        Some(WaitingFor { kind: kind.to_owned(), id: id.to_owned(), url })
    }
}

impl TaskTurn<'_> {
    /// Returns whether the task waits for decisions without a turn. The caller of a task that waits for its answer has
    /// time-outs of its own.
    pub(crate) fn parks(&self) -> bool {
        may_park(self.content)
    }

    /// Records that the call of a step waits for a decision, and the task without a turn.
    pub(crate) fn park(&self, step: i64, approval: AwaitedApproval) {
        self.parked.lock().push((step, approval));
    }

    /// Returns whether a call waits for a decision, and the task without a turn.
    pub(crate) fn is_parked(&self) -> bool {
        !self.parked.lock().is_empty()
    }
}

impl Runner {
    /// Ends the turn of a task whose steps wait for decisions.
    pub(crate) async fn park(
        &self,
        turn: &Turn,
        id: TaskId,
        mut steps: Vec<(i64, AwaitedApproval)>,
    ) -> Result<AfterTurn, StoreError> {
        let now = self.app.clock.now();
        steps.sort_by_key(|(step, approval)| (approval.expires_at, *step));
        let first_end = steps.first().map_or(now, |(_, approval)| approval.expires_at);
        let steps: Vec<String> = steps.iter().map(|(step, approval)| format!("{}:{step}", approval.id)).collect();
        let waiting_for = format!("approval/{}", steps.join(","));
        self.app.store.park_task(turn.claim(), id, &waiting_for, first_end.min(now.plus_ms(LOOK_AGAIN_MS)), now).await
    }

    /// Returns the time at which a task that waits for decisions looks again, or `None` if it has to go on: one of the
    /// approvals was decided or has expired, the task was cancelled, or what it stands on is gone.
    pub(crate) async fn still_waits(&self, row: &TaskRow) -> Result<Option<UtcMillis>, StoreError> {
        let app = &self.app;
        let now = app.clock.now();
        let waited_for = self.waited_for(row).await?;
        if waited_for.is_empty() || row.cancelled_at.is_some() {
            return Ok(None);
        }
        let mut first_end = now.plus_ms(LOOK_AGAIN_MS);
        for (_, approval) in waited_for {
            match approval.filter(|row| row.status == ApprovalStatus::Pending && row.is_open(now)) {
                Some(approval) => first_end = first_end.min(approval.expires_at),
                None => return Ok(None),
            }
        }
        let Some(content) = journal::open_task(&app.vault, row).ok().filter(may_park) else { return Ok(None) };
        let snapshot = app.policy.load();
        let has_key = match content.source.key(row.key_id) {
            Ok(key) => key.is_none_or(|key| snapshot.key_hash(key.id) == Some(&key.hash)),
            Err(_) => false,
        };
        // While the policy lacks the bot, nothing is known about the links.
        let has_bot = snapshot.bot(row.workspace_id, row.bot_id).is_some();
        let links = LinksOfTask::new(row.workspace_id, &content.links);
        let stands = has_key && (!has_bot || links.are_in_force(&snapshot, now));
        Ok(stands.then_some(first_end))
    }

    /// Returns the steps for whose approvals a task has waited, and whose approvals have expired. Their calls ask no second
    /// time.
    pub(crate) async fn expired_steps(&self, row: &TaskRow) -> Result<HashSet<i64>, StoreError> {
        let now = self.app.clock.now();
        let has_expired = |approval: &ApprovalRow| {
            approval.status == ApprovalStatus::Expired || (approval.is_unended() && !approval.is_open(now))
        };
        let waited_for = self.waited_for(row).await?.into_iter();
        Ok(waited_for.filter(|(_, row)| row.as_ref().is_some_and(has_expired)).map(|(step, _)| step).collect())
    }

    /// Returns the steps for which a task waits without a turn, each with its approval.
    async fn waited_for(&self, row: &TaskRow) -> Result<Vec<(i64, Option<ApprovalRow>)>, StoreError> {
        let parked = row.waiting_for.as_deref().filter(|_| row.status == TaskStatus::Waiting);
        let parked = parked.and_then(|text| text.strip_prefix("approval/")).unwrap_or_default();
        let mut waited_for = Vec::new();
        // A task that still has its turn has no steps there, because it waits in memory.
        for (id, step) in parked.split(',').filter_map(|part| part.split_once(':')) {
            if let (Ok(id), Ok(step)) = (id.parse::<ApprovalId>(), step.parse::<i64>()) {
                waited_for.push((step, self.app.store.approval(row.workspace_id, id).await?));
            }
        }
        Ok(waited_for)
    }
}

fn may_park(content: &TaskContent) -> bool {
    content.request.is_none() && content.source.waiting_call().is_none()
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
    use futures::FutureExt as _;
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
