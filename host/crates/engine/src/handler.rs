//! What the engine and the code that takes turns have in common.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use monstrum_store::{AfterTurn, NewWake, StoreError, WakeClaim};
use monstrum_types::{Clock, UtcMillis, WakeKey, WakeKind, WorkspaceId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limits::CLAIM;

/// Accepts wakes. The wakes are rows; the engine is told about those that this process wrote, so that their turns begin
/// without a search.
pub trait Engine: Send + Sync {
    /// Tells the engine about wakes that were written, after their transaction was committed. A wake about which the
    /// engine is not told is found later: in another process after [`crate::limits::SHARED_SEARCH_INTERVAL`], in this one
    /// after [`crate::limits::SEARCH_INTERVAL`].
    fn signal(&self, wakes: &[NewWake]);

    /// Prepares a wake that this host claims as it inserts it, so that the turn runs in this process: for work whose
    /// caller waits here. Write the wake in the transaction of the work, and then call [`Engine::start`]. If the wake is
    /// not started, another turn of the key runs on any host, at the latest 30 seconds later.
    ///
    /// The key must be new: the wake is not written if the key has one already.
    fn reserve(&self, key: WakeKey, workspace: WorkspaceId) -> NewWake;

    /// Starts the turn of a wake of [`Engine::reserve`], after its transaction was committed.
    fn start(&self, wake: &NewWake);
}

/// Runs the turns of one kind of keys.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Returns the kind of the keys.
    fn kind(&self) -> WakeKind;

    /// Runs one turn: reads what the object needs now, does it, and ends the turn.
    ///
    /// A turn can be the second one for the same work: the process may have ended at any point of an earlier turn. The
    /// turn has to find out from the rows, and must not repeat an effect outside of the database that may have happened.
    /// A wake whose object does not exist needs no work.
    ///
    /// Except for turns of steps and tasks, a turn does no I/O but that of the database.
    ///
    /// # Errors
    ///
    /// The turn is repeated: after 1, 5, 30 and 120 seconds, then every 5 minutes. A panic counts as an error.
    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError>;
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The handler's transaction has ended the turn, by `end_turn` of the crate store.
    Ended(AfterTurn),
    /// The key has no more work. The engine deletes the wake, unless a turn was requested in the meantime.
    Done,
    /// The key has work again at this time, or earlier if a turn is requested.
    Rest(UtcMillis),
}

/// An error of a turn. Operators see its text and causes, so they must contain no content of tenants and no secret.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// The database failed, or the claim was lost.
    #[error("the database failed")]
    Store(#[from] StoreError),
    /// The turn was cancelled: the host stops, or has lost the claim.
    #[error("the turn was cancelled")]
    Cancelled,
    /// Another error.
    #[error("{0}")]
    Failed(String),
}

/// A turn that runs.
pub struct Turn {
    claim: WakeClaim,
    lease: Lease,
    signals: Arc<Notify>,
}

impl Turn {
    /// Creates a turn. The engine does this; a test of a handler can do it too.
    #[must_use]
    pub fn new(claim: WakeClaim, lease: Lease, signals: Arc<Notify>) -> Turn {
        Turn { claim, lease, signals }
    }

    /// Returns the claim, which every transaction of the turn has to confirm (`confirm_claim` or `end_turn` of the crate
    /// store).
    #[must_use]
    pub fn claim(&self) -> &WakeClaim {
        &self.claim
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &WakeKey {
        &self.claim.key
    }

    /// Returns the workspace of the wake. The object must be of the same workspace.
    #[must_use]
    pub fn workspace(&self) -> WorkspaceId {
        self.claim.workspace_id
    }

    /// Returns the lease of the claim.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Waits until the turn has to end: the host stops, has lost the claim, or could not renew it. The turn then has
    /// [`crate::limits::CANCEL_GRACE`] before it is dropped.
    pub async fn cancelled(&self) {
        self.lease.cancelled().await;
    }

    /// Waits until the claim was lost or could not be renewed, so that another host may run the turn.
    pub async fn lost(&self) {
        self.lease.lost.cancelled().await;
    }

    /// Waits until this process signals another wake of the key. Requests of other hosts are not noticed. A signal that
    /// came since the turn began, or since the previous call, returns at once.
    pub async fn signalled(&self) {
        self.signals.notified().await;
    }
}

/// Tells whether a claim is still in force, as far as this host knows. Each request and command of a turn checks the lease
/// before its first byte leaves the host, so that a host that was paused sends nothing.
#[derive(Clone)]
pub struct Lease {
    clock: Arc<dyn Clock>,
    renewed: Arc<Mutex<LeaseStart>>,
    /// Cancelled when the turn has to end.
    cancelled: CancellationToken,
    /// Cancelled when the claim was lost.
    lost: CancellationToken,
}

impl Lease {
    /// Creates the lease of a claim that was made after `start`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, start: LeaseStart) -> Lease {
        let (cancelled, lost) = (CancellationToken::new(), CancellationToken::new());
        Lease { clock, renewed: Arc::new(Mutex::new(start)), cancelled, lost }
    }

    /// Returns whether the claim lives: it was not lost, and its last renewal is not too old. While the process is
    /// stopped, one of the two clocks of the machine may stand still, so both count.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.lost.is_cancelled() && self.age() < CLAIM
    }

    /// Waits until the turn has to end.
    pub(crate) async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// Returns the time since the last successful renewal began.
    pub(crate) fn age(&self) -> Duration {
        let renewed = *self.renewed.lock();
        renewed.age(self.clock.as_ref())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    pub(crate) fn renew(&self, start: LeaseStart) {
        *self.renewed.lock() = start;
    }

    /// Asks the turn to end.
    pub(crate) fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// Ends the lease and asks the turn to end.
    pub(crate) fn lose(&self) {
        self.lost.cancel();
        self.cancelled.cancel();
    }
}

/// The moment before a claim or a renewal, by both clocks of the machine.
#[derive(Clone, Copy)]
pub struct LeaseStart {
    at: Instant,
    time: UtcMillis,
}

impl LeaseStart {
    /// Returns the current moment.
    #[must_use]
    pub fn now(clock: &dyn Clock) -> LeaseStart {
        LeaseStart { at: Instant::now(), time: clock.now() }
    }

    /// Returns the time since this moment.
    pub(crate) fn age(self, clock: &dyn Clock) -> Duration {
        let by_clock = u64::try_from(clock.now().since_ms(self.time)).unwrap_or(0);
        self.at.elapsed().max(Duration::from_millis(by_clock))
    }

    pub(crate) fn is_later_than(self, at: Instant) -> bool {
        self.at > at
    }
}
