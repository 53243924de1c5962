//! The claims of this process: their renewal, and the end of what could not be renewed.

use std::collections::HashSet;
use std::time::Duration;

use monstrum_types::{WakeClaimId, WakeKey};
use tokio::time::MissedTickBehavior;

use super::Inner;
use crate::handler::LeaseStart;
use crate::limits::{CLAIM, RENEW_INTERVAL, RENEW_MAX};

/// The interval at which the ages of leases are checked.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The time after which a statement that does not answer is abandoned, and the pause before it is repeated.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(4);
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl Inner {
    /// Renews the claims of this process in regular intervals.
    pub(super) async fn renew_claims(&self) {
        loop {
            let pause = if self.renew().await { RENEW_INTERVAL } else { RETRY_PAUSE };
            tokio::time::sleep(pause).await;
        }
    }

    /// Cancels turns whose claims could not be renewed.
    pub(super) async fn watch_leases(&self) {
        let mut tick = tokio::time::interval(WATCH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.expire();
        }
    }

    /// Renews the claims once. Turns whose claims were replaced are cancelled, and claims without a turn are released.
    /// Returns `false` if the database failed.
    pub(super) async fn renew(&self) -> bool {
        {
            let mut state = self.state.lock();
            // A wake that was reserved long ago has been rolled back, or its claim has expired.
            state.reserved.retain(|_, start| start.age(self.clock.as_ref()) < CLAIM);
            if state.running.is_empty() && state.reserved.is_empty() && state.claiming.is_empty() {
                // Claims of which this process knows nothing expire by themselves.
                return true;
            }
        }
        let start = LeaseStart::now(self.clock.as_ref());
        let renewed = tokio::time::timeout(ANSWER_MAX, self.store.renew_claims(&self.node, self.clock.now())).await;
        match renewed {
            Ok(Ok(held)) => {
                let unknown = self.compare(held, start);
                if !unknown.is_empty()
                    && let Err(error) = self.store.release_claims(&unknown).await
                {
                    tracing::warn!(%error, "cannot release claims without turns; retrying");
                }
                true
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot renew the claims of turns; retrying");
                false
            }
            Err(_) => {
                tracing::warn!("cannot renew the claims of turns, because the database does not answer; retrying");
                false
            }
        }
    }

    /// Renews the leases of the claims that the host still has, and ends those of the others. Turns that began after the
    /// renewal are left as they are. Returns the claims that belong to no
    /// turn.
    fn compare(&self, held: Vec<(WakeKey, WakeClaimId)>, start: LeaseStart) -> Vec<(WakeKey, WakeClaimId)> {
        let state = self.state.lock();
        let ids: HashSet<WakeClaimId> = held.iter().map(|(_, id)| *id).collect();
        for running in state.running.values() {
            if ids.contains(&running.claim.id) {
                running.lease.renew(start);
            } else if start.is_later_than(running.began) {
                running.lease.lose();
            }
        }
        let is_known = |key: &WakeKey, id: &WakeClaimId| {
            state.running.get(key).is_some_and(|running| running.claim.id == *id)
                || state.claiming.contains(id)
                || state.reserved.contains_key(id)
        };
        held.into_iter().filter(|(key, id)| !is_known(key, id)).collect()
    }

    /// Ends the leases that were not renewed for too long.
    pub(super) fn expire(&self) {
        for running in self.state.lock().running.values() {
            if running.lease.age() >= RENEW_MAX {
                running.lease.lose();
            }
        }
    }

    /// Releases all claims of this process at its end. If that fails, they expire, or the next start drops them.
    pub(super) async fn release_all(&self) {
        let released = async {
            self.store.drop_claims(&self.node).await?;
            if self.store.is_shared() {
                self.store.release_chore(super::driver::CHORE, &self.node).await
            } else {
                Ok(())
            }
        };
        match tokio::time::timeout(ANSWER_MAX, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the claims of turns"),
            Err(_) => tracing::warn!("cannot release the claims of turns, because the database does not answer"),
        }
    }
}
