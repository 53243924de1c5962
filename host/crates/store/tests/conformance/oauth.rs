//! Tests of OAuth providers, authorizations and refresh leases: each step succeeds only once, and only within its
//! workspace.

use monstrum_store::{FlowStatus, OauthFlowRow, OauthProviderRow, Page, ResourceRow, Store, StoreError};
use monstrum_types::{KeyId, OauthFlowId, OauthProviderId, ResourceId, WorkspaceId};
use serde_json::json;

use crate::rows::{self, NOW, default_workspace, other_workspace};

fn provider(workspace: WorkspaceId, resource_type: &str) -> OauthProviderRow {
    OauthProviderRow {
        id: OauthProviderId::new(),
        workspace_id: workspace,
        resource_type: resource_type.parse().unwrap(),
        client_id: "client".to_owned(),
        client_secret: Some("sealed".to_owned()),
        authorization_url: Some("https://id.example/auth".to_owned()),
        token_url: "https://id.example/token".to_owned(),
        device_authorization_url: None,
        scopes: json!(["repo"]),
        created_at: NOW,
        updated_at: NOW,
    }
}

fn flow(resource: &ResourceRow, provider: &OauthProviderRow, status: FlowStatus) -> OauthFlowRow {
    OauthFlowRow {
        id: OauthFlowId::new(),
        workspace_id: resource.workspace_id,
        resource_id: resource.id,
        provider_id: provider.id,
        key_id: KeyId::new(),
        auth_method: "oauth2_auth_code".to_owned(),
        given_for: json!({"resource_type": "github"}),
        status,
        ticket_hash: None,
        state_hash: None,
        browser_hash: None,
        sealed: None,
        message: None,
        poll_interval_s: None,
        next_poll_at: None,
        created_at: NOW,
        expires_at: NOW.plus_ms(600_000),
    }
}

async fn begun(store: &Store) -> (ResourceRow, OauthProviderRow) {
    let workspace = default_workspace(store).await;
    let (resource, provider) = (rows::resource(workspace, "r"), provider(workspace, "github"));
    store.insert_resource(&resource).await.unwrap();
    store.insert_oauth_provider(&provider).await.unwrap();
    (resource, provider)
}

pub(crate) async fn providers_are_inserted_updated_and_deleted(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let mut row = provider(ours, "github");
    store.insert_oauth_provider(&row).await.unwrap();
    match store.insert_oauth_provider(&provider(ours, "github")).await {
        Err(StoreError::Conflict { constraint }) => {
            assert_eq!(constraint, "oauth_providers_workspace_id_resource_type_key");
        }
        other => panic!("{other:?}"),
    }
    let (other, there) = (provider(ours, "jira"), provider(theirs, "github"));
    for row in [&other, &there] {
        store.insert_oauth_provider(row).await.unwrap();
    }
    row.client_secret = None;
    row.device_authorization_url = Some("https://id.example/device".to_owned());
    assert!(store.update_oauth_provider(&row, crate::rows::NOW).await.unwrap());
    assert!(
        !store
            .update_oauth_provider(&OauthProviderRow { workspace_id: theirs, ..row.clone() }, crate::rows::NOW)
            .await
            .unwrap()
    );
    assert_eq!(store.oauth_provider(ours, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.oauth_provider(theirs, row.id).await.unwrap(), None);
    let github = "github".parse().unwrap();
    assert_eq!(store.oauth_provider_of_type(theirs, &github).await.unwrap(), Some(there));
    assert_eq!(store.oauth_providers(ours, &Page::first(50)).await.unwrap().items, [row.clone(), other]);
    // Providers are part of the policy, because the issuer of a token affects whether the token is refreshed.
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.oauth_providers.len(), 3);
    assert!(snapshot.oauth_providers.contains(&row));
    assert!(!store.delete_oauth_provider(theirs, row.id).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), snapshot.generation, "nothing was deleted");
    assert!(store.delete_oauth_provider(ours, row.id).await.unwrap());
    assert!(!store.delete_oauth_provider(ours, row.id).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), snapshot.generation + 1);
}

pub(crate) async fn each_step_of_an_authorization_is_taken_once(store: &Store) {
    let (resource, provider) = begun(store).await;
    let (workspace, late) = (resource.workspace_id, NOW.plus_ms(600_000));
    let started =
        OauthFlowRow { ticket_hash: Some("ticket".to_owned()), ..flow(&resource, &provider, FlowStatus::Started) };
    store.insert_oauth_flow(&started).await.unwrap();
    assert_eq!(store.oauth_flow_of_ticket("ticket", NOW).await.unwrap().as_ref(), Some(&started));
    assert_eq!(store.oauth_flow_of_ticket("ticket", late).await.unwrap(), None, "the authorization has expired");

    let of_browser = |browser: &str, state: &str| OauthFlowRow {
        status: FlowStatus::Begun,
        state_hash: Some(state.to_owned()),
        browser_hash: Some(browser.to_owned()),
        sealed: Some("verifier".to_owned()),
        ..started.clone()
    };
    let first = of_browser("first", "state");
    assert!(store.begin_oauth_flow(&started, &first).await.unwrap());
    assert!(!store.begin_oauth_flow(&started, &of_browser("second", "other")).await.unwrap(), "the status has changed");
    assert!(
        !store.begin_oauth_flow(&first, &of_browser("second", "other")).await.unwrap(),
        "the authorization is bound to another browser"
    );
    let again = of_browser("first", "newer");
    assert!(store.begin_oauth_flow(&first, &again).await.unwrap());
    assert_eq!(store.oauth_flow_of_state("state", NOW).await.unwrap(), None);
    assert_eq!(store.oauth_flow_of_state("newer", NOW).await.unwrap().as_ref(), Some(&again));
    assert_eq!(store.oauth_flow_of_state("newer", late).await.unwrap(), None);

    let taken = |from, to| store.move_oauth_flow(started.id, from, to, None);
    assert!(taken(FlowStatus::Begun, FlowStatus::Taken).await.unwrap());
    assert!(!taken(FlowStatus::Begun, FlowStatus::Taken).await.unwrap());
    let failed = store.move_oauth_flow(started.id, FlowStatus::Taken, FlowStatus::Failed, Some("no")).await;
    assert!(failed.unwrap());
    let ended = store.oauth_flow(workspace, resource.id, started.id).await.unwrap().unwrap();
    let expected = OauthFlowRow { status: FlowStatus::Failed, sealed: None, message: Some("no".to_owned()), ..again };
    assert_eq!(ended, expected, "the sealed record is deleted");

    assert_eq!(store.oauth_flow(WorkspaceId::new(), resource.id, started.id).await.unwrap(), None);
    assert_eq!(store.oauth_flow(workspace, ResourceId::new(), started.id).await.unwrap(), None);
    assert_eq!(store.purge_oauth_flows(late).await.unwrap(), 0);
    assert_eq!(store.purge_oauth_flows(late.plus_ms(1)).await.unwrap(), 1);
}

pub(crate) async fn one_host_polls_a_provider_at_a_time(store: &Store) {
    let (resource, provider) = begun(store).await;
    let pending = OauthFlowRow {
        poll_interval_s: Some(5),
        next_poll_at: Some(NOW),
        ..flow(&resource, &provider, FlowStatus::Pending)
    };
    store.insert_oauth_flow(&pending).await.unwrap();
    assert!(store.due_oauth_flows(NOW.plus_ms(-1), 10).await.unwrap().is_empty());
    assert_eq!(store.due_oauth_flows(NOW, 10).await.unwrap(), std::slice::from_ref(&pending));
    assert!(store.due_oauth_flows(NOW, 0).await.unwrap().is_empty());
    let next = NOW.plus_ms(5_000);
    assert!(store.claim_oauth_poll(&pending, 10, next).await.unwrap());
    assert!(!store.claim_oauth_poll(&pending, 10, next).await.unwrap());
    let claimed = OauthFlowRow { poll_interval_s: Some(10), next_poll_at: Some(next), ..pending.clone() };
    assert_eq!(store.due_oauth_flows(next, 10).await.unwrap(), [claimed]);
    store.move_oauth_flow(pending.id, FlowStatus::Pending, FlowStatus::Done, None).await.unwrap();
    assert!(store.due_oauth_flows(next, 10).await.unwrap().is_empty());
}

pub(crate) async fn authorizations_are_deleted_with_their_resource_or_provider(store: &Store) {
    let (resource, provider) = begun(store).await;
    let first = flow(&resource, &provider, FlowStatus::Pending);
    store.insert_oauth_flow(&first).await.unwrap();
    store.delete_oauth_provider(resource.workspace_id, provider.id).await.unwrap();
    assert_eq!(store.oauth_flow(resource.workspace_id, resource.id, first.id).await.unwrap(), None);
    store.insert_oauth_provider(&provider).await.unwrap();
    store.insert_oauth_flow(&first).await.unwrap();
    store.delete_resource(resource.workspace_id, resource.id).await.unwrap();
    assert_eq!(store.oauth_flow(resource.workspace_id, resource.id, first.id).await.unwrap(), None);
}

pub(crate) async fn one_host_refreshes_a_credential(store: &Store) {
    let (resource, _) = begun(store).await;
    let row = rows::credential(&resource);
    store.put_credential(&row).await.unwrap();
    let generation = store.generation().await.unwrap();
    let (until, after) = (NOW.plus_ms(1_000), NOW.plus_ms(1_001));
    assert!(store.claim_refresh(&row, NOW, until).await.unwrap());
    assert!(!store.claim_refresh(&row, NOW, until).await.unwrap(), "the credential is leased");
    assert!(store.claim_refresh(&row, until, after).await.unwrap(), "the lease has expired");
    store.release_refresh(&row, until).await.unwrap();
    assert!(!store.claim_refresh(&row, until, after).await.unwrap(), "the lease of another host is not released");
    store.release_refresh(&row, after).await.unwrap();
    assert!(store.claim_refresh(&row, until, after).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), generation, "a lease does not change the policy");

    let mut fresh = row.clone();
    (fresh.sealed, fresh.expires_at, fresh.updated_at) = ("fresh".to_owned(), Some(after), after);
    assert!(!store.put_refreshed(&fresh, "another").await.unwrap());
    assert!(store.put_refreshed(&fresh, &row.sealed).await.unwrap());
    assert!(!store.put_refreshed(&fresh, &row.sealed).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), generation, "a refreshed token does not change the policy");
    assert_eq!(store.credential(resource.workspace_id, resource.id).await.unwrap().as_ref(), Some(&fresh));
    assert!(!store.claim_refresh(&row, after, after).await.unwrap(), "the sealed record has changed");
    assert!(store.claim_refresh(&fresh, NOW, until).await.unwrap(), "the lease ended with the refresh");

    // A newly saved credential has a new id and no lease.
    let saved = rows::credential(&resource);
    store.put_credential(&saved).await.unwrap();
    assert!(!store.put_refreshed(&fresh, &fresh.sealed).await.unwrap());
    assert!(store.claim_refresh(&saved, NOW, until).await.unwrap());
}
