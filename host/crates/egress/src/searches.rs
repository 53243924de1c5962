//! The scheduling and the budget of searches for secrets.
//!
//! A search of a small text runs in place. A search of a larger text runs on a blocking thread. The number of
//! concurrent searches is limited to the number of processors, and calls that have used less of their budget have
//! priority. Each view of a text is charged to the call's budget. If the call ends or exhausts its budget, the search
//! ends before the next view.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use monstrum_types::{Failure, FailureCode};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The maximum size of a text that is searched in place. A search of ordinary text of this size takes less than 0.1 ms,
/// and a search of worst-case text about 1 ms.
pub const INLINE_SEARCH_BYTES_MAX: usize = 16 * 1024;

/// The number of searched bytes that cost one unit of fuel. Searching these bytes and executing one unit of fuel each
/// take about a nanosecond.
const BYTES_PER_FUEL: u64 = 2;

/// The budget of searches that do not belong to a call, such as a search of a registry's response. This budget equals
/// the budget of a call with the default fuel.
const BYTES_MAX: u64 = 1_000_000_000 * BYTES_PER_FUEL;

/// The number of bytes that were searched for a call, over all views of all its texts.
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
    /// Creates the budget of a call with this much fuel. The default fuel is enough for fifty responses, each with 10
    /// MiB of ordinary text.
    #[must_use]
    pub fn of_fuel(fuel: u64) -> Self {
        SearchBudget { bytes: AtomicU64::new(0), bytes_max: fuel.saturating_mul(BYTES_PER_FUEL) }
    }

    /// Returns the cost of the searches so far, in fuel.
    #[must_use]
    pub fn fuel_used(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) / BYTES_PER_FUEL
    }

    fn spend(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.bytes_max
    }
}

/// The reason why a search has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchError {
    /// The call has ended.
    Cancelled,
    /// The call's budget is exhausted.
    Budget,
    /// The search panicked.
    Failed,
}

impl SearchError {
    /// Returns the failure for the plugin.
    pub(crate) fn failure(self) -> Failure {
        match self {
            SearchError::Budget => {
                let message = "searching this call's requests and responses for secrets exceeded the call's budget";
                Failure::unsent(FailureCode::Limit, message)
            }
            SearchError::Cancelled | SearchError::Failed => {
                Failure::unsent(FailureCode::Internal, "the search for secrets failed")
            }
        }
    }
}

/// Controls a running search. Before each view, the search checks whether it may continue.
pub struct Watch {
    budget: Arc<SearchBudget>,
    cancelled: Arc<AtomicBool>,
    is_over_budget: AtomicBool,
}

impl Watch {
    fn new(budget: Arc<SearchBudget>) -> Self {
        Watch { budget, cancelled: Arc::default(), is_over_budget: AtomicBool::new(false) }
    }

    /// Charges the search of a view with `bytes` bytes to the budget. Returns false if the search must end.
    pub(crate) fn may_look_at(&self, bytes: usize) -> bool {
        if !self.budget.spend(bytes) {
            self.is_over_budget.store(true, Ordering::Relaxed);
        }
        self.check().is_ok()
    }

    /// Fails if the call has ended or its budget is exhausted, in which case the search must end.
    pub(crate) fn check(&self) -> Result<(), SearchError> {
        if self.cancelled.load(Ordering::Relaxed) {
            Err(SearchError::Cancelled)
        } else if self.is_over_budget.load(Ordering::Relaxed) {
            Err(SearchError::Budget)
        } else {
            Ok(())
        }
    }
}

/// Runs the search `work` over `bytes` of text and charges it to `budget`. Dropping the future ends the search.
pub(crate) async fn run<T: Send + 'static>(
    bytes: usize,
    budget: &Arc<SearchBudget>,
    work: impl FnOnce(&Watch) -> Result<T, SearchError> + Send + 'static,
) -> Result<T, SearchError> {
    run_in(&QUEUE, bytes, budget, work).await
}

async fn run_in<T: Send + 'static>(
    queue: &Arc<SearchQueue>,
    bytes: usize,
    budget: &Arc<SearchBudget>,
    work: impl FnOnce(&Watch) -> Result<T, SearchError> + Send + 'static,
) -> Result<T, SearchError> {
    let watch = Watch::new(Arc::clone(budget));
    if bytes <= INLINE_SEARCH_BYTES_MAX {
        return work(&watch);
    }
    let _cancel_when_dropped = CancelOnDrop(Arc::clone(&watch.cancelled));
    let permit = queue.take(budget.bytes.load(Ordering::Relaxed)).await;
    let search = tokio::task::spawn_blocking(move || {
        // The thread holds the permit until the search ends, even if the call has ended.
        let _permit = permit;
        work(&watch)
    });
    search.await.unwrap_or(Err(SearchError::Failed))
}

/// Runs the search `work` over `bytes` of text without blocking a worker thread of the runtime, and charges it to
/// `budget`. Use this function for texts of a call that are not part of an outbound request or its response. Dropping
/// the future ends the search.
pub async fn search<T: Send + 'static>(
    bytes: usize,
    budget: &Arc<SearchBudget>,
    work: impl FnOnce(&Watch) -> Result<T, SearchError> + Send + 'static,
) -> Result<T, SearchError> {
    run(bytes, budget, work).await
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The search queue of the process, with one permit per processor.
static QUEUE: LazyLock<Arc<SearchQueue>> =
    LazyLock::new(|| SearchQueue::new(std::thread::available_parallelism().map_or(1, std::num::NonZero::get)));

/// A semaphore with priorities, for searches.
struct SearchQueue {
    state: Mutex<State>,
}

struct State {
    free: usize,
    arrivals: u64,
    /// The waiting searches, sorted by the number of bytes already searched for the call, then by arrival.
    waiting: BTreeMap<(u64, u64), oneshot::Sender<SearchPermit>>,
}

/// A permit to search. Dropping the permit passes it to the next waiting call. The value is `None` after the permit has
/// been passed to another call.
struct SearchPermit(Option<Arc<SearchQueue>>);

impl SearchQueue {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(SearchQueue { state: Mutex::new(State { free: count, arrivals: 0, waiting: BTreeMap::new() }) })
    }

    async fn take(self: &Arc<Self>, searched: u64) -> SearchPermit {
        let given = {
            let mut state = self.state.lock();
            if state.free > 0 {
                state.free -= 1;
                return SearchPermit(Some(Arc::clone(self)));
            }
            let (giver, given) = oneshot::channel();
            state.arrivals += 1;
            let arrival = state.arrivals;
            state.waiting.insert((searched, arrival), giver);
            given
        };
        given.await.expect("every waiting search gets a permit")
    }

    fn next(&self) -> Option<oneshot::Sender<SearchPermit>> {
        let mut state = self.state.lock();
        let next = state.waiting.pop_first().map(|(_, next)| next);
        state.free += usize::from(next.is_none());
        next
    }
}

impl Drop for SearchPermit {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        while let Some(next) = queue.next() {
            match next.send(SearchPermit(Some(Arc::clone(&queue)))) {
                Ok(()) => return,
                // The waiting call has ended, so the next call gets the permit.
                Err(mut unwanted) => unwanted.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
