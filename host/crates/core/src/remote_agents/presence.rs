//! Renews the policy when resources gain their first agent or lose their last one.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::RemoteAgents;

/// The time for which changes are merged into one renewal, so that many agents that connect at once cause few renewals.
const MERGE: Duration = Duration::from_millis(200);
/// The interval at which resources without sockets are forgotten.
const FORGET_INTERVAL: Duration = Duration::from_secs(60);

impl RemoteAgents {
    /// Renews the policy after changes until `stop` is cancelled. If a renewal fails, the policy is stale, and the task
    /// that polls the database renews it.
    pub async fn follow_presence(&self, stop: CancellationToken) {
        let mut forgetting = interval(FORGET_INTERVAL);
        forgetting.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.presence.notified() => {}
                _ = forgetting.tick() => {
                    let now = Instant::now();
                    self.groups.lock().retain(|_, group| group.is_needed(now));
                    continue;
                }
            }
            if stop.run_until_cancelled(tokio::time::sleep(MERGE)).await.is_none() {
                return;
            }
            if let Err(error) = self.policy.renew().await {
                tracing::warn!(%error, "the policy cannot be renewed after agents connected or disconnected");
            }
        }
    }
}
