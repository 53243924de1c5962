//! What the calls of a task stand on: the key and the links with which it was started, its lease, and its place.

use std::sync::Arc;
use std::time::Duration;

use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_core::call_types::task_step::{Origin, TaskLease, TaskPosition};
use monstrum_engine::Lease;

use crate::places::PlaceOfTask;
use crate::runner::{Stop, TaskTurn};

/// The task of this host to which a call belongs, for the pipeline of calls.
struct TaskOfHost {
    lease: Lease,
    place: Arc<PlaceOfTask>,
    position: TaskPosition,
}

impl TaskLease for TaskOfHost {
    fn is_in_force(&self) -> bool {
        self.lease.is_alive()
    }

    fn origin(&self) -> Origin {
        Origin::Task(self.position)
    }

    fn give_place(&self) {
        self.place.give_up();
    }
}

impl TaskTurn<'_> {
    /// Stops the task if the key that started it was deleted or rotated, or if a delegation is no longer in force.
    pub(crate) fn check_grounds(&self) {
        let app = &self.runner.app;
        let (snapshot, now) = (app.policy.load(), app.clock.now());
        if let Some(key) = self.key
            && snapshot.key_hash(key.id) != Some(&key.hash)
        {
            self.stops_for(Stop::Revoked);
        }
        // While the policy lacks the bot of the task, because it was deleted or a row cannot be verified, nothing is known
        // about the links. The bot then makes no call.
        let has_bot = snapshot.bot(self.row.workspace_id, self.row.bot_id).is_some();
        if has_bot && !self.links.are_in_force(&snapshot, now) {
            self.stops_for(Stop::Undelegated);
        }
    }

    /// Returns whether the task stops, after it has looked at what it stands on.
    pub(crate) fn has_lost_its_grounds(&self) -> bool {
        self.check_grounds();
        self.stops()
    }

    /// Waits until a delegation expires. Never returns if none does.
    pub(crate) async fn delegation_expired(&self) {
        let app = &self.runner.app;
        let now = app.clock.now();
        match self.links.expire_at(&app.policy.load(), now) {
            Some(end) => {
                let left = u64::try_from(end.since_ms(now)).unwrap_or(0);
                // The wait is at least 1 ms, so that a difference between the clock and the timer does not cause a busy
                // loop.
                tokio::time::sleep(Duration::from_millis(left.max(1))).await;
            }
            None => std::future::pending().await,
        }
    }

    /// Waits for a place, if a call of the task has given it up. Returns early if the task stops.
    pub(crate) async fn take_place(&self) {
        tokio::select! {
            () = self.place.take(&self.runner.places, (self.row.workspace_id, self.row.bot_id)) => {}
            () = self.stop_calls.cancelled() => {}
        }
    }

    /// Returns the lease of the task, for its calls.
    pub(crate) fn lease(&self) -> Arc<dyn TaskLease> {
        let position = match self.content.tree {
            Some(tree) => TaskPosition { task: self.row.id, root: tree.root, depth: tree.depth },
            None => TaskPosition::first(self.row.id),
        };
        Arc::new(TaskOfHost { lease: self.turn.lease().clone(), place: Arc::clone(&self.place), position })
    }

    /// Makes a call with the key and under the links with which this task was started.
    pub(crate) fn as_started(&self, call: IncomingCall) -> IncomingCall {
        let app = &self.runner.app;
        let call = call.with_links(self.links.of_call(&app.policy.load(), app.clock.now()));
        match self.key {
            Some(key) => call.with_key(key),
            None => call,
        }
    }
}
