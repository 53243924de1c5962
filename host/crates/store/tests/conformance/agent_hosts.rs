//! Tests of the hosts with connected agents: a host knows the agents of the others while their leases last, and forged
//! rows are ignored.

use std::collections::BTreeSet;

use monstrum_store::{AgentPresenceRow, ResourceRow, Store};
use monstrum_types::{ResourceId, WorkspaceId};

use crate::authentic::Intruder;
use crate::rows::{self, default_workspace};

const LEASE_MS: i64 = 60_000;

async fn resource(store: &Store, name: &str) -> ResourceRow {
    let resource = rows::resource(default_workspace(store).await, name);
    store.insert_resource(&resource).await.unwrap();
    resource
}

fn set(resources: &[&ResourceRow]) -> BTreeSet<(WorkspaceId, ResourceId)> {
    resources.iter().map(|resource| (resource.workspace_id, resource.id)).collect()
}

async fn share(store: &Store, node: &str, resources: &[&ResourceRow], lease_ms: i64) {
    store.share_agents(node, &set(resources), lease_ms).await.unwrap();
}

/// Returns the names of the hosts that the host `node` knows.
async fn known(store: &Store, node: &str) -> Vec<String> {
    store.agent_hosts(node).await.unwrap().into_iter().map(|host| host.node).collect()
}

async fn resources_of(store: &Store, node: &str) -> BTreeSet<(WorkspaceId, ResourceId)> {
    let rows = store.agent_presences(node).await.unwrap();
    rows.into_iter().map(|AgentPresenceRow { workspace_id, resource_id, .. }| (workspace_id, resource_id)).collect()
}

pub(crate) async fn agents_are_known_to_other_hosts_while_the_lease_of_their_host_lasts(store: &Store) {
    let (one, other) = (resource(store, "one").await, resource(store, "other").await);
    share(store, "a", &[&one], LEASE_MS).await;
    assert_eq!((known(store, "a").await, known(store, "b").await), (vec![], vec!["a".to_owned()]));
    let [host] = store.agent_hosts("b").await.unwrap().try_into().unwrap();
    assert!((1..=LEASE_MS).contains(&host.lease_left_ms), "{host:?}");
    assert_eq!(resources_of(store, "a").await, set(&[&one]));

    // A renewal leaves the version as it is, and each change raises it.
    share(store, "a", &[&one], LEASE_MS).await;
    assert_eq!(store.agent_hosts("b").await.unwrap()[0].version, host.version);
    share(store, "a", &[&other], LEASE_MS).await;
    let changed = store.agent_hosts("b").await.unwrap()[0].version;
    assert!(changed > host.version, "{changed} {}", host.version);
    assert_eq!(resources_of(store, "a").await, set(&[&other]));

    share(store, "b", &[&one, &other], LEASE_MS).await;
    assert_eq!(known(store, "c").await, ["a", "b"]);
    share(store, "a", &[&other], 0).await;
    assert_eq!(known(store, "c").await, ["b"], "the lease has ended");
    share(store, "b", &[], LEASE_MS).await;
    assert_eq!((known(store, "c").await, resources_of(store, "b").await), (vec![], BTreeSet::new()));
}

pub(crate) async fn a_deleted_resource_has_no_agents(store: &Store) {
    let (kept, deleted) = (resource(store, "kept").await, resource(store, "deleted").await);
    share(store, "a", &[&kept, &deleted], LEASE_MS).await;
    assert!(store.delete_resource(deleted.workspace_id, deleted.id).await.unwrap());
    assert_eq!(resources_of(store, "a").await, set(&[&kept]));
    // The host may not know yet that the resource was deleted.
    share(store, "a", &[&kept, &deleted], LEASE_MS).await;
    assert_eq!(resources_of(store, "a").await, set(&[&kept]));
    let foreign = (WorkspaceId::new(), kept.id);
    store.share_agents("a", &BTreeSet::from([foreign]), LEASE_MS).await.unwrap();
    assert_eq!(resources_of(store, "a").await, BTreeSet::new(), "the resource belongs to another workspace");
}

pub(crate) async fn hosts_without_a_lease_are_forgotten(store: &Store) {
    const DAYS_MS: i64 = 2 * 24 * 3_600 * 1_000;
    let one = resource(store, "one").await;
    share(store, "old", &[&one], -DAYS_MS).await;
    share(store, "recent", &[&one], -1_000).await;
    store.forget_agent_hosts().await.unwrap();
    assert_eq!(resources_of(store, "old").await, BTreeSet::new());
    assert_eq!(resources_of(store, "recent").await, set(&[&one]));
}

/// Rows of another program make no host list tools, and name no host.
pub(crate) async fn forged_agents_are_ignored(store: &Store, intruder: &mut impl Intruder) {
    let (one, other) = (resource(store, "one").await, resource(store, "other").await);
    share(store, "a", &[&one], LEASE_MS).await;
    share(store, "expired", &[&one], 0).await;
    for sql in [
        "update agent_hosts set lease_until = lease_until + 60000 where node = 'expired'".to_owned(),
        "insert into agent_hosts (node, version, lease_until, mac) select 'forged', version, lease_until, mac \
         from agent_hosts where node = 'a'"
            .to_owned(),
        format!("update agent_presences set resource_id = '{}' where node = 'a'", other.id),
    ] {
        intruder.run(sql).await;
    }
    assert_eq!(known(store, "b").await, ["a"]);
    assert_eq!(resources_of(store, "a").await, BTreeSet::new());
    let refused = store.verify_rows().await.unwrap().refused;
    let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(refused, ["agent_hosts/expired", "agent_hosts/forged", &format!("agent_presences/a/{}", other.id)]);
    // The host replaces the rows that are not its own.
    share(store, "a", &[&one], LEASE_MS).await;
    assert_eq!(resources_of(store, "a").await, set(&[&one]));
}
