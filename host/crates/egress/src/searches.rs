//! Where secrets are searched for, and what it costs a call.
//!
//! A search of little text runs where it is asked for. A larger one runs on a thread of its own, of which there are never
//! more than processors; the call that has had the least searched is next. Every view of a text is counted to the call,
//! and a search ends at its next view once the call has ended or used up its budget.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use monstrum_types::{Failure, FailureCode};
use tokio::sync::oneshot;

/// More text than this is searched on a thread. Usual text of this size takes less than 0.1 ms, and text made to be slow
/// about 1 ms.
pub const INLINE_SEARCH_BYTES_MAX: usize = 16 * 1024;

/// Bytes that one unit of fuel pays for: both take a processor about a nanosecond.
const BYTES_PER_FUEL: u64 = 2;

/// What may be searched where no call pays for it, such as the answer of a registry: what a call with the default fuel may.
const BYTES_MAX: u64 = 1_000_000_000 * BYTES_PER_FUEL;

/// The bytes that a call has had searched, over all views of all its texts.
#[derive(Debug)]
pub struct SearchBudget {
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Default for SearchBudget {
    fn default() -> Self {
        SearchBudget { bytes: AtomicU64::new(0), bytes_max: BYTES_MAX }
    }
}

impl SearchBudget {
    /// The budget of a call with so much fuel. Fifty answers of 10 MiB of usual text fit into that of the default fuel.
    #[must_use]
    pub fn of_fuel(fuel: u64) -> Self {
        SearchBudget { bytes: AtomicU64::new(0), bytes_max: fuel.saturating_mul(BYTES_PER_FUEL) }
    }

    /// What the searches so far are worth in fuel.
    #[must_use]
    pub fn fuel_used(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) / BYTES_PER_FUEL
    }

    fn spend(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max
    }
}

/// Why a search has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The call has ended.
    Cancelled,
    /// The call's budget is used up.
    Budget,
    /// The search has panicked.
    Failed,
}

impl Stopped {
    /// What a plugin is told.
    pub(crate) fn failure(self) -> Failure {
        match self {
            Stopped::Budget => {
                let message = "searching the requests and responses of this call for secrets has used up its budget";
                Failure::unsent(FailureCode::Limit, message)
            }
            Stopped::Cancelled | Stopped::Failed => {
                Failure::unsent(FailureCode::Internal, "the search for secrets failed")
            }
        }
    }
}

/// What a search asks at each view whether it may go on.
pub struct Watch {
    budget: Arc<SearchBudget>,
    cancelled: Arc<AtomicBool>,
    is_over_budget: AtomicBool,
}

impl Watch {
    fn new(budget: Arc<SearchBudget>) -> Self {
        Watch { budget, cancelled: Arc::default(), is_over_budget: AtomicBool::new(false) }
    }

    /// Counts a view of so many bytes; false where the search is to end.
    pub(crate) fn may_look_at(&self, bytes: usize) -> bool {
        if !self.budget.spend(bytes) {
            self.is_over_budget.store(true, Ordering::Relaxed);
        }
        self.check().is_ok()
    }

    /// Whether the search has been to its end.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        if self.cancelled.load(Ordering::Relaxed) {
            Err(Stopped::Cancelled)
        } else if self.is_over_budget.load(Ordering::Relaxed) {
            Err(Stopped::Budget)
        } else {
            Ok(())
        }
    }
}

/// Searches `bytes` of text by `work`, and counts it to `budget`. Dropping the future ends the search.
pub(crate) async fn run<T: Send + 'static>(
    bytes: usize,
    budget: &Arc<SearchBudget>,
    work: impl FnOnce(&Watch) -> Result<T, Stopped> + Send + 'static,
) -> Result<T, Stopped> {
    run_in(&TURNS, bytes, budget, work).await
}

async fn run_in<T: Send + 'static>(
    turns: &Arc<Turns>,
    bytes: usize,
    budget: &Arc<SearchBudget>,
    work: impl FnOnce(&Watch) -> Result<T, Stopped> + Send + 'static,
) -> Result<T, Stopped> {
    let watch = Watch::new(Arc::clone(budget));
    if bytes <= INLINE_SEARCH_BYTES_MAX {
        return work(&watch);
    }
    let _cancel_when_dropped = CancelOnDrop(Arc::clone(&watch.cancelled));
    let turn = turns.take(budget.bytes.load(Ordering::Relaxed)).await;
    let search = tokio::task::spawn_blocking(move || {
        // As long as the thread works, even if the call has gone.
        let _turn = turn;
        work(&watch)
    });
    search.await.unwrap_or(Err(Stopped::Failed))
}

/// Runs `work`, which looks through `bytes` of text by what its watch allows, where it keeps no worker of the runtime for
/// long. For what a call says itself rather than sends; the bytes are counted to `budget`. Dropping the future ends the
/// search.
pub async fn search<T: Send + 'static>(
    bytes: usize,
    budget: &Arc<SearchBudget>,
    work: impl FnOnce(&Watch) -> Result<T, Stopped> + Send + 'static,
) -> Result<T, Stopped> {
    run(bytes, budget, work).await
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// As many searches at once as there are processors.
static TURNS: LazyLock<Arc<Turns>> =
    LazyLock::new(|| Turns::new(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)));

/// Who may search now, and who is next.
struct Turns {
    state: Mutex<State>,
}

struct State {
    free: usize,
    arrivals: u64,
    /// By what was searched for the call before, then by arrival.
    waiting: BTreeMap<(u64, u64), oneshot::Sender<Turn>>,
}

/// The right to search. It goes to the next one when it is dropped. Empty once it has been handed on.
struct Turn(Option<Arc<Turns>>);

impl Turns {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Turns { state: Mutex::new(State { free: count, arrivals: 0, waiting: BTreeMap::new() }) })
    }

    async fn take(self: &Arc<Self>, searched: u64) -> Turn {
        let given = {
            let mut state = self.lock();
            if state.free > 0 {
                state.free -= 1;
                return Turn(Some(Arc::clone(self)));
            }
            let (giver, given) = oneshot::channel();
            state.arrivals += 1;
            let arrival = state.arrivals;
            state.waiting.insert((searched, arrival), giver);
            given
        };
        given.await.expect("a turn is given to all that wait for one")
    }

    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        let mut state = self.lock();
        let next = state.waiting.pop_first().map(|(_, next)| next);
        state.free += usize::from(next.is_none());
        next
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        while let Some(next) = turns.next() {
            match next.send(Turn(Some(Arc::clone(&turns)))) {
                Ok(()) => return,
                // The call that waited has ended, and the next one gets the turn.
                Err(mut unwanted) => unwanted.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
