//! Waits for the decision about an approval.

use std::time::Duration;

use monstrum_store::{ApprovalRow, ApprovalStatus};
use monstrum_types::{ApprovalId, WorkspaceId};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::Approvals;

/// The interval at which a wait reads the row, because another host may have changed it.
const POLL: Duration = Duration::from_secs(1);

impl Approvals {
    /// Waits until an approval is no longer pending, or has expired.
    pub async fn decided(&self, workspace: WorkspaceId, id: ApprovalId) {
        // The subscription precedes the read, so that no change is missed.
        let mut changes = self.subscribe();
        loop {
            match self.store.approval(workspace, id).await {
                Ok(Some(row)) if self.is_pending(&row) => {}
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "cannot read an approval that a call waits for; retrying"),
            }
            // A timeout means that the row is read again.
            let _: Result<(), Elapsed> = timeout(POLL, changed(&mut changes, id)).await;
        }
    }

    /// Waits until an approval changes on this host, or until the rows must be read because another host may have
    /// changed them.
    pub async fn changed_or_due(&self, changes: &mut Receiver<ApprovalId>) {
        let any = async {
            if let Err(RecvError::Closed) = changes.recv().await {
                std::future::pending::<()>().await;
            }
        };
        let _: Result<(), Elapsed> = timeout(POLL, any).await;
    }

    fn is_pending(&self, row: &ApprovalRow) -> bool {
        row.status == ApprovalStatus::Pending && row.is_open(self.clock.now())
    }
}

/// Waits until this approval changes on this host, or until notifications were missed.
async fn changed(changes: &mut Receiver<ApprovalId>, id: ApprovalId) {
    loop {
        match changes.recv().await {
            Ok(changed) if changed != id => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            // This branch never runs, because the approvals outlive the calls.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}
