//! The engine `local`, which needs nothing but the database.
//!
//! One process drives the wakes of a database: the only process with SQLite, and the holder of the chore `automation` with
//! PostgreSQL. The driver keeps the wakes of the next minute in memory and claims each at its time; local/driver.rs has
//! this loop. Every process runs the wakes that it inserted with a claim of its own, renews its claims and cancels what it
//! could not renew; local/claims.rs has that part. local/turns.rs runs one turn.

mod claims;
mod driver;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use monstrum_store::{DueCount, NewClaim, NewWake, Store, StoreError, WakeClaim};
use monstrum_types::{Clock, UtcMillis, WakeClaimId, WakeKey, WakeKind, WorkspaceId, words};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::handler::{Engine, Handler, Lease, LeaseStart};
use crate::limits::AHEAD;
use crate::schedule::{Room, Schedule, Scheduled};

words! {
    /// How a turn ended, as a metric counts it.
    pub enum TurnResult {
        /// The turn did its work.
        Done = "done",
        /// The turn failed and will be repeated.
        Failed = "failed",
        /// The turn panicked and will be repeated.
        Panicked = "panicked",
        /// The turn was cancelled, because the host stops or could not renew the claim.
        Cancelled = "cancelled",
        /// The claim was replaced, so the turn wrote nothing.
        Lost = "lost",
    }
}

/// Receives the measurements of an engine.
pub trait Observer: Send + Sync {
    /// A turn has ended.
    fn turn(&self, kind: WakeKind, result: TurnResult, took: Duration);

    /// The wakes that are due and unclaimed were counted. A process that does not drive reports none.
    fn due(&self, due: DueCount);
}

/// [`AHEAD`] in milliseconds.
const AHEAD_MS: i64 = AHEAD.as_secs().cast_signed() * 1000;

/// What an engine needs.
pub struct LocalOptions {
    /// The database.
    pub store: Store,
    /// The name of this host, which no other host of the database has.
    pub node: String,
    /// The clock that decides what is due. With PostgreSQL, the clock of the database does.
    pub clock: Arc<dyn Clock>,
    /// The receiver of the measurements.
    pub observer: Arc<dyn Observer>,
}

/// The engine. Clones share its state.
#[derive(Clone)]
pub struct Local(Arc<Inner>);

struct Inner {
    store: Store,
    node: String,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    handlers: Mutex<HashMap<WakeKind, Arc<dyn Handler>>>,
    state: Mutex<State>,
    /// The difference between the clock of the database and the clock of this host, in milliseconds.
    offset_ms: AtomicI64,
    /// Notified when the driver has something to do.
    changed: Notify,
    turns: TaskTracker,
}

#[derive(Default)]
struct State {
    schedule: Schedule,
    room: Room,
    /// The claims that are being made.
    claiming: HashSet<WakeClaimId>,
    /// The claims of wakes that are being inserted.
    reserved: HashMap<WakeClaimId, LeaseStart>,
    running: HashMap<WakeKey, Running>,
    /// The time until which this process drives the wakes; `None` means that it does not.
    drives_until: Option<DrivesUntil>,
    /// Whether this process has just begun to drive and has not searched the database since.
    has_to_search: bool,
    is_stopping: bool,
}

#[derive(Clone, Copy)]
enum DrivesUntil {
    Stop,
    At(Instant),
}

/// A turn that runs.
struct Running {
    claim: WakeClaim,
    lease: Lease,
    signals: Arc<Notify>,
    /// The time at which the process knew that the claim was made.
    began: Instant,
    /// The earliest time of the wakes that were signalled while the turn ran.
    signalled: Option<UtcMillis>,
}

impl State {
    fn drives(&self) -> bool {
        match self.drives_until {
            None => false,
            Some(DrivesUntil::Stop) => !self.is_stopping,
            Some(DrivesUntil::At(until)) => !self.is_stopping && Instant::now() < until,
        }
    }

    /// Schedules a wake if this process drives and the wake is due within the next minute. Searches find later wakes.
    fn plan(&mut self, key: &WakeKey, workspace_id: WorkspaceId, due_at: UtcMillis, now: UtcMillis) {
        if self.drives() && due_at.since_ms(now) <= AHEAD_MS {
            self.schedule.add(Scheduled { key: key.clone(), workspace_id, due_at });
        }
    }
}

impl Local {
    /// Creates an engine without handlers. [`Local::run`] starts it.
    #[must_use]
    pub fn new(options: LocalOptions) -> Local {
        let LocalOptions { store, node, clock, observer } = options;
        Local(Arc::new(Inner {
            store,
            node,
            clock,
            observer,
            handlers: Mutex::default(),
            state: Mutex::default(),
            offset_ms: AtomicI64::new(0),
            changed: Notify::new(),
            turns: TaskTracker::new(),
        }))
    }

    /// Registers the handler of a kind of keys, before the engine runs. A turn of a kind without a handler fails, and is
    /// repeated later, so that operators see it.
    pub fn register(&self, handler: Arc<dyn Handler>) {
        self.0.handlers.lock().insert(handler.kind(), handler);
    }

    /// Returns whether a handler is registered.
    #[must_use]
    pub fn has_handlers(&self) -> bool {
        !self.0.handlers.lock().is_empty()
    }

    /// Drops the claims that an earlier process left. Without this, turns that a crash interrupted would wait for the end
    /// of their claims. Call it before the first use of [`Engine::reserve`], whose claims it would drop too.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn drop_claims(&self) -> Result<(), StoreError> {
        self.0.store.drop_claims(&self.0.node).await.map(drop)
    }

    /// Runs the engine until `stop` is cancelled. At the end, asks all turns to end, waits up to
    /// [`crate::limits::CANCEL_GRACE`], and releases the claims, so that others can go on at once.
    pub async fn run(&self, stop: CancellationToken) {
        let inner = &self.0;
        if !inner.store.is_shared() {
            inner.state.lock().drives_until = Some(DrivesUntil::Stop);
        }
        let work = async {
            tokio::join!(inner.drive(), inner.renew_claims(), inner.watch_leases(), inner.hold_lead());
        };
        stop.run_until_cancelled(work).await;
        self.shut_down().await;
    }

    async fn shut_down(&self) {
        let inner = &self.0;
        {
            let mut state = inner.state.lock();
            state.is_stopping = true;
            for running in state.running.values() {
                running.lease.cancel();
            }
        }
        inner.turns.close();
        // A turn that does not end is dropped after the grace period, so the wait ends.
        inner.turns.wait().await;
        inner.release_all().await;
    }
}

impl Engine for Local {
    fn signal(&self, wakes: &[NewWake]) {
        let now = self.0.now();
        let mut state = self.0.state.lock();
        for NewWake { key, workspace_id, due_at, .. } in wakes.iter().filter(|wake| wake.claim.is_none()) {
            if let Some(running) = state.running.get_mut(key) {
                // The end of the turn may not have noticed the wake, so the driver looks at the key again.
                running.signalled = Some(running.signalled.map_or(*due_at, |earlier| earlier.min(*due_at)));
                running.signals.notify_one();
            } else {
                state.plan(key, *workspace_id, *due_at, now);
            }
        }
        drop(state);
        self.0.changed.notify_one();
    }

    fn reserve(&self, key: WakeKey, workspace_id: WorkspaceId) -> NewWake {
        let start = LeaseStart::now(self.0.clock.as_ref());
        let (id, now) = (WakeClaimId::new(), self.0.now());
        self.0.state.lock().reserved.insert(id, start);
        let claim = NewClaim { id, node: self.0.node.clone(), until: now.plus_ms(monstrum_store::CLAIM_MS) };
        NewWake { key, workspace_id, due_at: now, claim: Some(claim) }
    }

    fn start(&self, wake: &NewWake) {
        let Some(claim) = &wake.claim else { return };
        let mut state = self.0.state.lock();
        let reserved = state.reserved.remove(&claim.id);
        let Some(start) = reserved.filter(|_| !state.is_stopping) else { return };
        state.room.enter(wake.key.kind(), wake.workspace_id);
        let (id, key, workspace_id) = (claim.id, wake.key.clone(), wake.workspace_id);
        // The wake is new, so it has the first version.
        let claim = WakeClaim { id, key, workspace_id, version: 1, failures: 0 };
        self.0.begin(&mut state, claim, start);
    }
}

impl Inner {
    /// Returns the current time for wakes.
    fn now(&self) -> UtcMillis {
        self.clock.now().plus_ms(self.offset_ms.load(Ordering::Relaxed))
    }
}
