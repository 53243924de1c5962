//! Ends approvals whose time limit has passed, and deletes the data of ended approvals.

use std::time::Duration;

use monstrum_store::{ApprovalRow, ApprovalStatus, StoreError};
use serde_json::json;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{ApprovalError, Approvals, change, shown};

/// The interval at which expired approvals are ended. A call checks the time limit itself, so the interval only delays
/// what lists show.
const INTERVAL: Duration = Duration::from_secs(5);
/// The maximum number of rows that are read at once.
const ROWS_AT_ONCE: u32 = 100;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// The time for which the parameters of an ended approval are kept.
const PARAMS_KEPT_MS: i64 = 30 * DAY_MS;
/// The time for which the row of an ended approval is kept. The audit keeps its steps for longer.
const ROWS_KEPT_MS: i64 = 365 * DAY_MS;

impl Approvals {
    /// Ends expired approvals until `stop` is cancelled.
    pub async fn follow_expiry(&self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            if let Err(error) = self.expire_due().await {
                tracing::warn!(%error, "cannot end expired approvals; retrying");
            }
        }
    }

    /// Ends all approvals whose time limit has passed.
    pub async fn expire_due(&self) -> Result<(), ApprovalError> {
        loop {
            let due = self.store.due_approvals(self.clock.now(), ROWS_AT_ONCE).await?;
            for row in &due {
                self.expire(row).await?;
            }
            if due.len() < ROWS_AT_ONCE as usize {
                break;
            }
        }
        let grants = self.store.expired_grants(self.clock.now(), ROWS_AT_ONCE).await?;
        for grant in &grants {
            self.store.delete_grant(grant).await?;
        }
        if !grants.is_empty() {
            self.renew().await;
        }
        Ok(())
    }

    /// Ends an approval whose time limit has passed. Returns whether this call has ended it.
    pub(super) async fn expire(&self, row: &ApprovalRow) -> Result<bool, ApprovalError> {
        let after = json!({ "id": row.id, "status": ApprovalStatus::Expired.as_str() });
        let change = change("approval.expire", row, None, shown(row), after);
        let expiring = self.store.expire_approval(row, self.clock.now());
        let expired = self.recorded(change, expiring, Option::is_some).await?;
        if let Some(wakes) = &expired {
            self.emitter.signal_wakes(wakes);
            if row.status == ApprovalStatus::Approved {
                self.renew().await;
            }
            self.notify(row.id);
        }
        Ok(expired.is_some())
    }

    /// Deletes the parameters of approvals that ended 30 days ago, and the rows of those that ended a year ago.
    pub async fn purge(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.store.purge_approval_params(now.plus_ms(-PARAMS_KEPT_MS)).await?;
        self.store.purge_approvals(now.plus_ms(-ROWS_KEPT_MS)).await?;
        Ok(())
    }
}
