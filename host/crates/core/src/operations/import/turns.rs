//! Limits for concurrent imports. A workspace has at most one import at a time, and a host runs at most
//! [`IMPORTS_MAX`], because the lines of an import are kept in memory. Further imports wait in the order in which they
//! began.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use monstrum_types::WorkspaceId;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::operations::OperationError;

/// The maximum number of concurrent imports on a host, which has memory for two.
const IMPORTS_MAX: usize = 2;
/// The maximum number of imports that wait. A waiting import holds a connection, but no memory for lines.
const WAITING_MAX: usize = 32;
/// The maximum time to wait. It exceeds the time after which a running import must have received its body while other
/// imports wait.
const WAIT_MAX: Duration = Duration::from_secs(120);

static PLACES: Semaphore = Semaphore::const_new(IMPORTS_MAX);
static WAITING: AtomicUsize = AtomicUsize::new(0);
static WORKSPACES: Mutex<BTreeSet<WorkspaceId>> = Mutex::new(BTreeSet::new());

/// A guard that blocks other imports into the workspaces of an import, until it is dropped.
pub(super) struct Turn {
    workspaces: BTreeSet<WorkspaceId>,
    /// `None` while the import waits.
    place: Option<SemaphorePermit<'static>>,
}

impl Turn {
    /// Begins an import into a workspace. Fails if another import into the workspace has begun, if [`WAITING_MAX`]
    /// imports wait, or if the host still runs [`IMPORTS_MAX`] imports after [`WAIT_MAX`].
    pub(super) async fn begin(workspace: WorkspaceId) -> Result<Turn, OperationError> {
        let mut turn = Turn { workspaces: BTreeSet::new(), place: None };
        turn.extend([workspace])?;
        let waiting = Waiting::begin()?;
        let place = tokio::time::timeout(WAIT_MAX, PLACES.acquire()).await;
        drop(waiting);
        turn.place = Some(place.map_err(|_| busy())?.expect("the semaphore is never closed"));
        Ok(turn)
    }

    /// Adds workspaces to the import. Fails if another import into one of them is running.
    pub(super) fn extend(&mut self, workspaces: impl IntoIterator<Item = WorkspaceId>) -> Result<(), OperationError> {
        let mut all = WORKSPACES.lock();
        for workspace in workspaces {
            if self.workspaces.contains(&workspace) {
                continue;
            }
            if !all.insert(workspace) {
                return Err(OperationError::conflict(
                    "another import into this workspace is running; try again when it has ended",
                ));
            }
            self.workspaces.insert(workspace);
        }
        Ok(())
    }

    /// Whether another import waits until this import ends.
    pub(super) fn is_awaited() -> bool {
        WAITING.load(Ordering::Acquire) > 0
    }
}

fn busy() -> OperationError {
    OperationError::Busy("other imports are running; try again later".to_owned())
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = WORKSPACES.lock();
        for workspace in &self.workspaces {
            all.remove(workspace);
        }
    }
}

/// An import that waits.
struct Waiting;

impl Waiting {
    fn begin() -> Result<Waiting, OperationError> {
        let waiting = WAITING.fetch_add(1, Ordering::AcqRel);
        let guard = Waiting;
        if waiting < WAITING_MAX { Ok(guard) } else { Err(busy()) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_workspace_has_one_import_at_a_time_and_a_host_two() {
        let [first, second, third, fourth] = [(); 4].map(|()| WorkspaceId::new());
        let mut one = Turn::begin(first).await.unwrap();
        assert!(matches!(Turn::begin(first).await, Err(OperationError::Conflict(_))));
        let two = Turn::begin(second).await.unwrap();
        assert!(matches!(Turn::begin(third).await, Err(OperationError::Busy(_))), "after the wait");
        assert!(matches!(one.extend([third, second]), Err(OperationError::Conflict(_))));
        drop(one);
        let three = Turn::begin(third).await.unwrap();

        let waiting = tokio::spawn(Turn::begin(fourth));
        while !Turn::is_awaited() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(Turn::begin(fourth).await, Err(OperationError::Conflict(_))), "the other one waits");
        drop(two);
        drop(waiting.await.unwrap().unwrap());
        assert!(!Turn::is_awaited());
        // An import that stops waiting leaves nothing behind.
        let again = Turn::begin(fourth).await.unwrap();
        let cancelled = tokio::spawn(Turn::begin(second));
        while !Turn::is_awaited() {
            tokio::task::yield_now().await;
        }
        cancelled.abort();
        assert!(cancelled.await.is_err());
        assert!(!Turn::is_awaited());
        drop((three, again));
        drop(Turn::begin(second).await.unwrap());
    }
}
