//! Tests of tools that come from outside and of their discoveries: of concurrent changes one succeeds, and rows that
//! another program edits or restores serve nothing.

use monstrum_store::{
    DiscoveryRow, FirstDiscoveryRow, ResourceRow, ResourceToolRow, Scope, Store, StoreError, ToolWrites,
};
use monstrum_types::{Digest, DiscoveryStatus, KeyId, PinStatus, ResourceToolId, UtcMillis};
use serde_json::json;

use crate::authentic::{Intruder, refused, unverified};
use crate::rows::{self, NOW, default_workspace};

const LATER: UtcMillis = UtcMillis(NOW.0 + 30_000);

fn digest(number: u32) -> Digest {
    format!("sha256:{number:064x}").parse().unwrap()
}

async fn resource(store: &Store) -> ResourceRow {
    let resource = rows::resource(default_workspace(store).await, "tracker");
    store.insert_resource(&resource).await.unwrap();
    resource
}

/// Returns an approved tool.
fn tool(resource: &ResourceRow, name: &str) -> ResourceToolRow {
    ResourceToolRow {
        id: ResourceToolId::new(),
        workspace_id: resource.workspace_id,
        resource_id: resource.id,
        original_name: name.to_owned(),
        slug: name.to_lowercase(),
        status: PinStatus::Approved,
        reason: None,
        digest: digest(1),
        definition: json!({ "name": name }).to_string(),
        hint: Some("read".to_owned()),
        effect: "write".to_owned(),
        approved_digest: Some(digest(1)),
        rejected_digest: None,
        approved_definition: None,
        approved_by: Some(KeyId::new()),
        approved_at: Some(NOW),
        created_at: NOW,
        updated_at: NOW,
    }
}

async fn write(store: &Store, resource: &ResourceRow, writes: ToolWrites) -> bool {
    store.write_resource_tools(resource.workspace_id, resource.id, &writes).await.unwrap()
}

async fn tools(store: &Store, resource: &ResourceRow) -> Vec<ResourceToolRow> {
    store.resource_tools(resource.workspace_id, resource.id).await.unwrap()
}

pub(crate) async fn tools_are_written_read_as_changes_and_deleted_with_their_resource(store: &Store) {
    let resource = resource(store).await;
    let verified = store.snapshot().await.unwrap().verified;
    let (one, other) = (tool(&resource, "One"), tool(&resource, "Other"));
    let first = FirstDiscoveryRow {
        resource_id: resource.id,
        workspace_id: resource.workspace_id,
        url: "https://example.com/mcp".to_owned(),
        discovered_at: NOW,
    };
    let written = vec![one.clone(), other.clone()];
    assert!(write(store, &resource, ToolWrites { written, first: Some(first.clone()), ..ToolWrites::default() }).await);
    assert_eq!(tools(store, &resource).await, [one.clone(), other.clone()]);
    assert_eq!(store.first_discovery(resource.workspace_id, resource.id).await.unwrap(), Some(first.clone()));
    let (changes, verified) = store.changes_since(&verified).await.unwrap().expect("only the changed rows are read");
    assert_eq!(changes.resource_tools.into_values().flatten().collect::<Vec<_>>(), [one.clone(), other.clone()]);

    let changed = ResourceToolRow { status: PinStatus::Changed, digest: digest(2), ..one.clone() };
    let writes = ToolWrites {
        config: Some(resource.config.clone()),
        before: vec![one.clone(), other.clone()],
        written: vec![changed.clone()],
        deleted: vec![other.id],
        first_before: Some(first.clone()),
        first: None,
    };
    assert!(write(store, &resource, writes).await);
    let (changes, _) = store.changes_since(&verified).await.unwrap().unwrap();
    assert_eq!(changes.resource_tools.get(&other.id), Some(&None));
    assert_eq!(changes.resource_tools.get(&one.id), Some(&Some(changed)));
    assert_eq!(store.snapshot().await.unwrap().resource_tools.len(), 1);

    assert!(store.delete_resource(resource.workspace_id, resource.id).await.unwrap());
    assert_eq!(tools(store, &resource).await, []);
    assert_eq!(store.first_discovery(resource.workspace_id, resource.id).await.unwrap(), None);
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), snapshot.resource_tools), (Vec::new(), Vec::new()));
}

pub(crate) async fn of_two_changes_of_the_same_tools_one_succeeds(store: &Store) {
    let resource = resource(store).await;
    let row = tool(&resource, "a");
    let insert = || ToolWrites { written: vec![row.clone()], ..ToolWrites::default() };
    assert!(write(store, &resource, insert()).await);
    assert!(!write(store, &resource, insert()).await, "the resource had no tools when the caller read them");
    let change = |status| ToolWrites {
        before: vec![row.clone()],
        written: vec![ResourceToolRow { status, ..row.clone() }],
        ..ToolWrites::default()
    };
    let (approve, reject) = (change(PinStatus::Changed), change(PinStatus::Rejected));
    let (one, other) = tokio::join!(write(store, &resource, approve), write(store, &resource, reject));
    assert!(one != other, "{one} {other}");
    assert_eq!(tools(store, &resource).await.len(), 1);

    let before = tools(store, &resource).await;
    let other_config = Some(json!({ "url": "https://other.example" }));
    let late = ToolWrites { config: other_config, deleted: vec![row.id], before, ..ToolWrites::default() };
    let late = store.write_resource_tools(resource.workspace_id, resource.id, &late).await;
    assert!(matches!(late, Err(StoreError::ChangedMeanwhile)), "{late:?}");
    assert_eq!(tools(store, &resource).await.len(), 1, "the tools were declared for another configuration");
}

pub(crate) async fn one_host_at_a_time_discovers(store: &Store) {
    let resource = resource(store).await;
    let place = (resource.workspace_id, resource.id);
    assert_eq!(store.discovery(place.0, place.1).await.unwrap(), None);
    assert!(store.claim_discovery(place, "a", NOW, LATER).await.unwrap());
    assert!(!store.claim_discovery(place, "b", NOW, LATER).await.unwrap());
    assert!(store.claim_discovery(place, "a", NOW, LATER).await.unwrap(), "the holder may claim again");
    assert!(store.claim_discovery(place, "b", LATER, LATER).await.unwrap(), "the claim of `a` has expired");
    store.release_discovery(resource.id, "a").await.unwrap();
    assert!(!store.claim_discovery(place, "a", NOW, LATER).await.unwrap(), "only the holder releases its claim");
    let row = DiscoveryRow {
        resource_id: resource.id,
        workspace_id: resource.workspace_id,
        status: DiscoveryStatus::Ok,
        last_discovery_at: Some(NOW),
        error: None,
        server: Some(json!({ "name": "s" })),
        protocol: Some("2026-07-28".to_owned()),
        claimed_by: None,
        claimed_until: None,
    };
    store.put_discovery(&row).await.unwrap();
    let stored = store.discovery(place.0, place.1).await.unwrap().unwrap();
    assert_eq!(stored.claimed_by.as_deref(), Some("b"), "the result of a discovery keeps the claim");
    assert_eq!(DiscoveryRow { claimed_by: None, claimed_until: None, ..stored }, row);
    store.release_discovery(resource.id, "b").await.unwrap();
    assert!(store.claim_discovery(place, "a", NOW, LATER).await.unwrap());
}

/// A tool that an intruder approves, or whose approval the intruder restores, is not among the rows of the policy.
pub(crate) async fn an_edited_or_restored_tool_serves_nothing(store: &Store, intruder: &mut impl Intruder) {
    let resource = resource(store).await;
    let row = tool(&resource, "a");
    assert!(write(store, &resource, ToolWrites { written: vec![row.clone()], ..ToolWrites::default() }).await);
    intruder.run("create table kept_tools as select * from resource_tools".to_owned()).await;
    let rejected =
        ResourceToolRow { status: PinStatus::Rejected, approved_digest: None, updated_at: LATER, ..row.clone() };
    let writes = ToolWrites { before: vec![row.clone()], written: vec![rejected.clone()], ..ToolWrites::default() };
    assert!(write(store, &resource, writes).await);
    assert!(!store.snapshot().await.unwrap().resource_tools[0].is_served());

    for edit in ["status = 'approved'", "effect = 'read'", "slug = 'b'", "original_name = 'b'", "definition = '{}'"] {
        intruder.run(format!("update resource_tools set {edit}")).await;
        let snapshot = store.snapshot().await.unwrap();
        assert!(snapshot.resource_tools.is_empty(), "{edit}");
        assert_eq!(refused(&snapshot), [format!("resource_tools/{}", row.id)], "{edit}");
        intruder.run("delete from resource_tools".to_owned()).await;
        intruder.run("insert into resource_tools select * from kept_tools".to_owned()).await;
    }
    let snapshot = store.snapshot().await.unwrap();
    assert!(snapshot.resource_tools.is_empty(), "the restored row has a valid MAC, but the seal does not count it");
    assert_eq!(
        snapshot.unverified.iter().map(|found| found.scope).collect::<Vec<_>>(),
        [Scope::Workspace(resource.workspace_id)]
    );
    let place = (resource.workspace_id, resource.id);
    let writes = ToolWrites { before: vec![row.clone()], written: vec![rejected], ..ToolWrites::default() };
    let change = store.write_resource_tools(place.0, place.1, &writes).await;
    assert!(matches!(change, Err(StoreError::Unverified { .. })), "{change:?}");
    intruder.run("drop table kept_tools".to_owned()).await;
}

/// The record of the first discovery decides which tools need no approval, so its deletion is detected.
pub(crate) async fn a_deleted_first_discovery_is_detected(store: &Store, intruder: &mut impl Intruder) {
    let resource = resource(store).await;
    let first = FirstDiscoveryRow {
        resource_id: resource.id,
        workspace_id: resource.workspace_id,
        url: String::new(),
        discovered_at: NOW,
    };
    assert!(write(store, &resource, ToolWrites { first: Some(first), ..ToolWrites::default() }).await);
    assert_eq!(unverified(&store.snapshot().await.unwrap()), Vec::<String>::new());
    intruder.run("delete from first_discoveries".to_owned()).await;
    assert_eq!(store.snapshot().await.unwrap().unverified.len(), 1);
}
