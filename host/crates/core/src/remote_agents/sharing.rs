//! Tells the other hosts of the database which resources have an agent at this host, and reads which have one there.
//!
//! The connection of an agent belongs to one host. The other hosts list its tools, and answer calls of them with the id of
//! that host. What a host has told ends with its lease: the tools of the agents of a killed host vanish with it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use monstrum_store::StoreError;
use monstrum_types::{ResourceId, UtcMillis, WorkspaceId};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::RemoteAgents;

/// The lease of a host. A killed host's tools are listed for at most this time.
const LEASE: Duration = Duration::from_secs(10);
const LEASE_MS: i64 = 10_000;
/// The interval at which a host renews its lease. A host can miss two renewals.
const RENEWAL: Duration = Duration::from_secs(3);
/// The time for which changes are merged into one write. Each write compares all rows of the host.
const MERGE: Duration = Duration::from_millis(500);
/// The interval at which a host reads the leases of the others.
const POLL: Duration = Duration::from_secs(1);
/// The time limit, at shutdown, for telling the other hosts that this host has no agents.
const END_MAX: Duration = Duration::from_secs(2);

/// What this host has told the other hosts, and what it knows about them.
#[derive(Default)]
pub(super) struct Shared {
    /// The resources that were stored last, and the time; `None` if the stored rows are unknown.
    own: Option<(BTreeSet<(WorkspaceId, ResourceId)>, Instant)>,
    others: HashMap<String, OtherHost>,
}

struct OtherHost {
    version: i64,
    lease_until: UtcMillis,
    /// The end of the lease by the clock of this host.
    until: Instant,
    resources: Arc<BTreeSet<ResourceId>>,
}

impl Shared {
    /// Returns the resources that other hosts serve, with the id of one such host.
    fn elsewhere(&mut self, now: Instant) -> HashMap<ResourceId, String> {
        self.others.retain(|_, host| now < host.until);
        let mut elsewhere: HashMap<ResourceId, String> = HashMap::new();
        for (node, host) in &self.others {
            for resource in host.resources.iter() {
                let held = elsewhere.entry(*resource).or_insert_with(|| node.clone());
                if node < held {
                    held.clone_from(node);
                }
            }
        }
        elsewhere
    }

    /// Returns the end of a lease that was read, which ends at `until` by the clock of the database, and the resources of
    /// the host, if they have not changed since they were read.
    fn lease(&self, node: &str, version: i64, lease_until: UtcMillis, until: Instant) -> Lease {
        let Some(known) = self.others.get(node) else { return Lease { until, resources: None } };
        // A lease that was not renewed ends at the time that was computed first, even if the clock of the database was
        // set back.
        let until = if known.lease_until == lease_until { known.until.min(until) } else { until };
        Lease { until, resources: (known.version == version).then(|| Arc::clone(&known.resources)) }
    }

    /// Returns the time of the next exchange.
    fn wake(&self, now: Instant) -> Instant {
        self.others.values().map(|host| host.until).fold(now + POLL, Instant::min)
    }
}

struct Lease {
    until: Instant,
    resources: Option<Arc<BTreeSet<ResourceId>>>,
}

impl RemoteAgents {
    /// Exchanges with the other hosts of the database which resources have an agent, until `stop` is cancelled. Returns
    /// at once if no other host can use the database.
    pub async fn share_presence(&self, stop: CancellationToken) {
        if !self.store.is_shared() {
            return;
        }
        loop {
            let wake = self.exchange().await;
            let is_unshared = tokio::select! {
                () = stop.cancelled() => return,
                () = self.unshared.notified() => true,
                () = sleep_until(wake) => false,
            };
            if is_unshared && stop.run_until_cancelled(tokio::time::sleep(MERGE)).await.is_none() {
                return;
            }
        }
    }

    /// Stores what this host has, and reads what the others have. Returns the time of the next exchange.
    async fn exchange(&self) -> Instant {
        let mut shared = self.shared.lock().await;
        if let Err(error) = self.publish(&mut shared).await {
            tracing::warn!(%error, "the other hosts cannot be told about the agents of this host");
        }
        if let Err(error) = self.read_others(&mut shared).await {
            tracing::warn!(%error, "the agents of the other hosts cannot be read");
        }
        let elsewhere = shared.elsewhere(Instant::now());
        let mut held = self.elsewhere.lock();
        if *held != elsewhere {
            self.policy.set_present_elsewhere(elsewhere.keys().copied().collect());
            *held = elsewhere;
            self.presence.notify_one();
        }
        shared.wake(Instant::now())
    }

    /// Stores which resources have an agent at this host, if they have changed or the lease must be renewed.
    async fn publish(&self, shared: &mut Shared) -> Result<(), StoreError> {
        let now = Instant::now();
        let resources = self.served();
        if let Some((known, at)) = &shared.own {
            let is_current = known.is_empty() || now.duration_since(*at) < RENEWAL;
            if is_current && *known == resources {
                return Ok(());
            }
        }
        shared.own = None;
        self.store.share_agents(&self.node, &resources, LEASE_MS).await?;
        shared.own = Some((resources, now));
        Ok(())
    }

    /// Returns the resources that have an agent at this host.
    fn served(&self) -> BTreeSet<(WorkspaceId, ResourceId)> {
        let groups = self.groups.lock();
        let first = groups.iter().filter_map(|(id, group)| Some((id, group.connections.first()?)));
        first.map(|(id, connection)| (connection.workspace, *id)).collect()
    }

    async fn read_others(&self, shared: &mut Shared) -> Result<(), StoreError> {
        let asked = Instant::now();
        let mut others = HashMap::new();
        for host in self.store.agent_hosts(&self.node).await? {
            let left = Duration::from_millis(u64::try_from(host.lease_left_ms).unwrap_or_default()).min(LEASE);
            let Lease { until, resources } = shared.lease(&host.node, host.version, host.lease_until, asked + left);
            let resources = match resources {
                Some(resources) => resources,
                None => {
                    let rows = self.store.agent_presences(&host.node).await?;
                    Arc::new(rows.into_iter().map(|row| row.resource_id).collect())
                }
            };
            let other = OtherHost { version: host.version, lease_until: host.lease_until, until, resources };
            others.insert(host.node, other);
        }
        shared.others = others;
        Ok(())
    }

    /// Tells the other hosts that this host has no agents any more. If this fails, its lease ends.
    pub(super) async fn end_sharing(&self) {
        if !self.store.is_shared() {
            return;
        }
        let publish = async {
            let mut shared = self.shared.lock().await;
            self.publish(&mut shared).await
        };
        match timeout(END_MAX, publish).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the other hosts cannot be told that the agents have disconnected");
            }
            Err(_) => tracing::warn!("the other hosts could not be told in time that the agents have disconnected"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(resources: &[ResourceId], lease_until: i64, until: Instant) -> OtherHost {
        let resources = Arc::new(resources.iter().copied().collect());
        OtherHost { version: 1, lease_until: UtcMillis(lease_until), until, resources }
    }

    #[tokio::test(start_paused = true)]
    async fn agents_of_other_hosts_are_known_until_their_lease_ends() {
        let (one, other, now) = (ResourceId::new(), ResourceId::new(), Instant::now());
        let mut shared = Shared::default();
        shared.others.insert("b".to_owned(), host(&[one, other], 0, now + LEASE));
        shared.others.insert("a".to_owned(), host(&[one], 0, now + LEASE / 4));
        let elsewhere = shared.elsewhere(now);
        assert_eq!((elsewhere[&one].as_str(), elsewhere[&other].as_str()), ("a", "b"));
        assert_eq!(shared.wake(now), now + POLL);
        assert_eq!(shared.wake(now + LEASE / 4 - POLL / 2), now + LEASE / 4);
        assert_eq!(shared.elsewhere(now + LEASE / 4)[&one], "b");
        assert!(shared.elsewhere(now + LEASE).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_renewed_ends_even_if_the_clock_of_the_database_is_set_back() {
        let (one, now) = (ResourceId::new(), Instant::now());
        let mut shared = Shared::default();
        shared.others.insert("a".to_owned(), host(&[one], 100, now + POLL));
        let Lease { until, resources } = shared.lease("a", 1, UtcMillis(100), now + LEASE);
        assert_eq!((until, resources.is_some()), (now + POLL, true));
        let Lease { until, resources } = shared.lease("a", 2, UtcMillis(200), now + LEASE);
        assert_eq!(
            (until, resources.is_some()),
            (now + LEASE, false),
            "the lease was renewed, and the resources changed"
        );
        assert_eq!(shared.lease("new", 1, UtcMillis(1), now + LEASE).until, now + LEASE);
    }
}
