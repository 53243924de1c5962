//! The current uses of sandboxes in this process. A sandbox in use is not idle, regardless of how long its command
//! runs.

use std::collections::HashMap;
use std::sync::Arc;

use monstrum_types::{Clock, SandboxInstanceId, UtcMillis};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// All uses of sandboxes in this process.
#[derive(Clone)]
pub(super) struct Activities {
    uses: Arc<Mutex<HashMap<SandboxInstanceId, Use>>>,
    clock: Arc<dyn Clock>,
}

struct Use {
    count: usize,
    /// The time when the last use ended.
    ended_at: UtcMillis,
    cut: CancellationToken,
}

/// One use of a sandbox. It ends when this value is dropped.
pub(super) struct Activity {
    of: Activities,
    id: SandboxInstanceId,
    cut: CancellationToken,
}

impl Activities {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Activities {
        Activities { uses: Arc::default(), clock }
    }

    pub(super) fn begin(&self, id: SandboxInstanceId) -> Activity {
        let mut uses = self.uses.lock();
        let fresh = || Use { count: 0, ended_at: self.clock.now(), cut: CancellationToken::new() };
        let used = uses.entry(id).or_insert_with(fresh);
        if used.cut.is_cancelled() {
            // Earlier uses were cut off. The new use gets a new token, because a use with the old token would be cut
            // off at once.
            used.cut = CancellationToken::new();
        }
        used.count += 1;
        Activity { of: self.clone(), id, cut: used.cut.clone() }
    }

    pub(super) fn is_active(&self, id: SandboxInstanceId) -> bool {
        self.uses.lock().get(&id).is_some_and(|used| used.count > 0)
    }

    /// Cuts off the uses of a sandbox that will be stopped or deleted.
    pub(super) fn cut(&self, id: SandboxInstanceId) {
        if let Some(used) = self.uses.lock().get(&id) {
            used.cut.cancel();
        }
    }

    /// Cuts off all uses.
    pub(super) fn cut_all(&self) {
        self.uses.lock().values().for_each(|used| used.cut.cancel());
    }

    /// Takes the times of use that must be stored. There is one time for each sandbox that is in use or was in use
    /// since the last call.
    pub(super) fn take(&self) -> Vec<(SandboxInstanceId, UtcMillis)> {
        let now = self.clock.now();
        let mut uses = self.uses.lock();
        let at = |used: &Use| if used.count > 0 { now } else { used.ended_at };
        let mut noted: Vec<_> = uses.iter().map(|(id, used)| (*id, at(used))).collect();
        // All hosts sort the times in the same order, so that concurrent writes of two hosts do not deadlock.
        noted.sort_unstable_by_key(|(id, _)| *id);
        uses.retain(|_, used| used.count > 0);
        noted
    }

    /// Puts back times that could not be stored. Skips sandboxes that were used again after the times were taken.
    pub(super) fn put_back(&self, noted: Vec<(SandboxInstanceId, UtcMillis)>) {
        let mut uses = self.uses.lock();
        for (id, ended_at) in noted {
            uses.entry(id).or_insert_with(|| Use { count: 0, ended_at, cut: CancellationToken::new() });
        }
    }
}

impl Activity {
    /// Waits until this use is cut off.
    pub(super) async fn cut(&self) {
        self.cut.cancelled().await;
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        let now = self.of.clock.now();
        if let Some(used) = self.of.uses.lock().get_mut(&self.id) {
            used.count -= 1;
            used.ended_at = now;
        }
    }
}
