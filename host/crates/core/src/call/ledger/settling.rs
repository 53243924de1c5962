//! Settles reservations. Each is settled by a task of its own, which no caller can cancel and which tries again while the
//! database is unavailable.

use std::time::Duration;

use monstrum_store::{ReservationFilter, Store, StoreError, Used};
use monstrum_types::{ReservationId, WorkspaceId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The interval between attempts to settle a reservation.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of reservations that are read at once. It only bounds the memory.
const READ_AT_ONCE_MAX: u32 = 256;

/// The tasks that settle reservations.
pub(super) struct Settling {
    store: Store,
    pub(super) tasks: TaskTracker,
    closing: CancellationToken,
}

/// How a reservation ends.
pub(super) enum Settlement {
    /// Its round has used this.
    Used(Used),
    /// Its round may have used all of it.
    Whole,
    /// Its round was not sent. The database may not have the reservation.
    Unsent { workspace: WorkspaceId, month: String },
}

impl Settling {
    pub(super) fn new(store: Store) -> Settling {
        Settling { store, tasks: TaskTracker::new(), closing: CancellationToken::new() }
    }

    /// Settles a reservation. The returned future ends after the first attempt; dropping it
    /// does not end the task.
    pub(super) fn spawn(
        &self,
        runtime: &Handle,
        id: ReservationId,
        settlement: Settlement,
    ) -> impl Future<Output = ()> + use<> {
        let (tried, was_tried) = oneshot::channel();
        let (store, closing) = (self.store.clone(), self.closing.clone());
        let settle = async move {
            let mut tried = Some(tried);
            loop {
                let is_done = is_settled(&store, id, &settlement).await;
                if let Some(tried) = tried.take() {
                    // The caller may no longer wait.
                    let _: Result<(), ()> = tried.send(());
                }
                if is_done || closing.run_until_cancelled(tokio::time::sleep(RETRY_INTERVAL)).await.is_none() {
                    return;
                }
            }
        };
        self.tasks.spawn_on(settle, runtime);
        async move {
            // The task ends without a result only if the runtime is shut down.
            let _: Result<(), _> = was_tried.await;
        }
    }

    /// Settles reservations as a whole. A reservation that cannot be read or charged keeps its room, and does not keep
    /// the others from being settled.
    pub(super) async fn settle_whole(&self, filter: ReservationFilter<'_>) -> Result<(), StoreError> {
        let mut after = String::new();
        loop {
            let page = self.store.reservations(filter, &after, READ_AT_ONCE_MAX).await?;
            for error in &page.unreadable {
                tracing::error!(%error, "a row of the table `reservations` cannot be read; correct or delete it");
            }
            for row in &page.rows {
                match self.store.settle(row.id, None).await {
                    Ok(_) => {
                        tracing::warn!(call.id = %row.request_id, model = row.model, "a round of a dead host was charged as a whole");
                    }
                    Err(error @ StoreError::Unavailable { .. }) => return Err(error),
                    Err(error) => {
                        tracing::error!(%error, reservation.id = %row.id, "a reservation of a dead host cannot be settled");
                    }
                }
            }
            let Some(next) = page.next else { return Ok(()) };
            after = next;
        }
    }

    /// Waits until the tasks have ended. They make no further attempts.
    pub(super) async fn shut_down(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Tries to settle a reservation. Returns whether a further attempt is of no use.
async fn is_settled(store: &Store, id: ReservationId, settlement: &Settlement) -> bool {
    let settled = match settlement {
        Settlement::Used(used) => store.settle(id, Some(*used)).await,
        Settlement::Whole => store.settle(id, None).await,
        Settlement::Unsent { workspace, month } => store.release(id, *workspace, month).await.map(|()| true),
    };
    match settled {
        Ok(is_first) => {
            if !is_first {
                tracing::warn!(reservation.id = %id, "a reservation was already charged as a whole, or its workspace was deleted");
            }
            true
        }
        Err(error) => {
            tracing::error!(%error, reservation.id = %id, "a reservation cannot be settled");
            // A value that the database rejects stays rejected, and a row that cannot be read stays unreadable.
            !matches!(error, StoreError::Unavailable { .. })
        }
    }
}
