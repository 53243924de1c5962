//! Renews the policy when resources gain their first agent or lose their last one.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::RemoteAgents;

/// The time for which changes are merged into one renewal, so that many agents that connect at once cause few renewals.
const MERGE: Duration = Duration::from_millis(200);

impl RemoteAgents {
    /// Renews the policy after changes until `stop` is cancelled. If a renewal fails, the policy is stale, and the task
    /// that polls the database renews it.
    pub async fn follow_presence(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.presence.notified()).await.is_some() {
            if stop.run_until_cancelled(tokio::time::sleep(MERGE)).await.is_none() {
                return;
            }
            if let Err(error) = self.policy.renew().await {
                tracing::warn!(%error, "the policy cannot be renewed after agents connected or disconnected");
            }
        }
    }
}
