//! Tests of OAuth providers, authorizations and refresh leases: each step succeeds only once, and only within its
//! workspace.

use monstrum_store::{
    FlowStatus, MissingScopesRow, OauthFlowRow, OauthProposalRow, OauthProviderRow, Page, ResourceRow, Store,
    StoreError,
};
use monstrum_types::{KeyId, OauthFlowId, OauthProviderId, ResourceId, WorkspaceId};
use serde_json::json;

use crate::rows::{self, NOW, default_workspace, other_workspace};

fn provider(workspace: WorkspaceId, resource_type: &str) -> OauthProviderRow {
    OauthProviderRow {
        id: OauthProviderId::new(),
        workspace_id: workspace,
        resource_type: resource_type.parse().unwrap(),
        resource_id: None,
        client_id: "client".to_owned(),
        client_secret: Some("sealed".to_owned()),
        authorization_url: Some("https://id.example/auth".to_owned()),
        token_url: "https://id.example/token".to_owned(),
        device_authorization_url: None,
        scopes: json!(["repo"]),
        server: None,
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
        subject: None,
        return_to: None,
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
    assert!(!store.delete_oauth_provider(theirs, row.id, row.updated_at).await.unwrap());
    assert!(!store.delete_oauth_provider(ours, row.id, row.updated_at.plus_ms(1)).await.unwrap(), "changed since");
    assert_eq!(store.generation().await.unwrap(), snapshot.generation, "nothing was deleted");
    assert!(store.delete_oauth_provider(ours, row.id, row.updated_at).await.unwrap());
    assert!(!store.delete_oauth_provider(ours, row.id, row.updated_at).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), snapshot.generation + 1);
}

pub(crate) async fn a_user_signs_in_once_and_in_one_browser(store: &Store) {
    let (resource, provider) = begun(store).await;
    let text = |text: &str| Some(text.to_owned());
    let signing_in = OauthFlowRow {
        ticket_hash: text("ticket"),
        state_hash: text("state"),
        browser_hash: text("first"),
        sealed: text("nonce"),
        subject: Some(json!({"app_id": "a", "user_id": "7"})),
        return_to: text("/done"),
        ..flow(&resource, &provider, FlowStatus::SigningIn)
    };
    store.insert_oauth_flow(&signing_in).await.unwrap();
    assert_eq!(store.oauth_flow_of_ticket("ticket", NOW).await.unwrap().as_ref(), Some(&signing_in));
    let same_ticket = OauthFlowRow { id: OauthFlowId::new(), state_hash: text("other"), ..signing_in.clone() };
    assert!(matches!(store.insert_oauth_flow(&same_ticket).await, Err(StoreError::Conflict { .. })));
    let same_id = OauthFlowRow { ticket_hash: text("other"), state_hash: text("other"), ..signing_in.clone() };
    assert!(matches!(store.insert_oauth_flow(&same_id).await, Err(StoreError::Conflict { .. })));

    let other_browser = OauthFlowRow { browser_hash: text("second"), state_hash: text("x"), ..signing_in.clone() };
    assert!(!store.sign_in_oauth_flow(&other_browser).await.unwrap());
    let again = OauthFlowRow { state_hash: text("newer"), sealed: text("newer nonce"), ..signing_in.clone() };
    assert!(store.sign_in_oauth_flow(&again).await.unwrap());
    assert!(!store.signed_in_oauth_flow(&signing_in, "proof").await.unwrap(), "the answer to an earlier request");
    assert!(store.signed_in_oauth_flow(&again, "proof").await.unwrap());
    assert!(!store.signed_in_oauth_flow(&again, "proof").await.unwrap(), "the answer counts once");
    assert!(!store.refuse_sign_in(&again, "no").await.unwrap());
    let started = store.oauth_flow_of_ticket("ticket", NOW).await.unwrap().unwrap();
    let expected =
        OauthFlowRow { status: FlowStatus::Started, state_hash: None, sealed: text("proof"), ..signing_in.clone() };
    assert_eq!(started, expected);
    assert!(!store.show_oauth_flow(started.id, "second").await.unwrap(), "the page is of the first browser");

    let refused = OauthFlowRow {
        id: OauthFlowId::new(),
        ticket_hash: text("refused"),
        state_hash: text("refused"),
        ..signing_in
    };
    store.insert_oauth_flow(&refused).await.unwrap();
    assert!(store.refuse_sign_in(&refused, "no").await.unwrap());
    let ended = store.oauth_flow_of_ticket("refused", NOW).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.sealed, ended.message.as_deref()), (FlowStatus::Failed, None, Some("no")));

    let shown = OauthFlowRow { ticket_hash: text("shown"), ..flow(&resource, &provider, FlowStatus::Started) };
    store.insert_oauth_flow(&shown).await.unwrap();
    assert!(store.show_oauth_flow(shown.id, "first").await.unwrap());
    assert!(!store.show_oauth_flow(shown.id, "second").await.unwrap());
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
    assert!(store.delete_oauth_provider(resource.workspace_id, provider.id, provider.updated_at).await.unwrap());
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

pub(crate) async fn a_resource_has_its_own_provider(store: &Store) {
    let (resource, of_type) = begun(store).await;
    let (workspace, github) = (resource.workspace_id, of_type.resource_type.clone());
    let provider_for = |id| store.oauth_provider_for(workspace, id, &github);
    assert_eq!(provider_for(resource.id).await.unwrap().as_ref(), Some(&of_type));
    let own = OauthProviderRow {
        resource_id: Some(resource.id),
        server: Some(json!({"issuer": "https://id.example"})),
        ..provider(workspace, "github")
    };
    store.insert_oauth_provider(&own).await.unwrap();
    match store.insert_oauth_provider(&OauthProviderRow { id: OauthProviderId::new(), ..own.clone() }).await {
        Err(StoreError::Conflict { constraint }) => {
            assert_eq!(constraint, "oauth_providers_workspace_id_resource_id_key");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(provider_for(resource.id).await.unwrap().as_ref(), Some(&own));
    assert_eq!(provider_for(ResourceId::new()).await.unwrap().as_ref(), Some(&of_type));
    assert_eq!(store.oauth_provider_of_type(workspace, &github).await.unwrap().as_ref(), Some(&of_type));
    assert_eq!(store.oauth_provider_of_resource(workspace, resource.id).await.unwrap().as_ref(), Some(&own));
    assert_eq!(store.oauth_provider_of_resource(WorkspaceId::new(), resource.id).await.unwrap(), None);
    let page = Page::first(50);
    let listed = store.oauth_providers_of_type(workspace, &github, &page).await.unwrap();
    assert_eq!(listed.items, [of_type.clone(), own.clone()]);
    let first = store.oauth_providers_of_type(workspace, &github, &Page::first(1)).await.unwrap();
    assert_eq!((first.items, first.next_cursor), (vec![of_type.clone()], Some(of_type.id)));
    assert!(store.oauth_providers_of_type(workspace, &"jira".parse().unwrap(), &page).await.unwrap().items.is_empty());

    // The resource of a provider stays the same.
    let changed = OauthProviderRow { resource_id: None, client_id: "another".to_owned(), ..own.clone() };
    assert!(store.update_oauth_provider(&changed, NOW).await.unwrap());
    let changed = OauthProviderRow { resource_id: own.resource_id, ..changed };
    assert_eq!(store.oauth_provider(workspace, own.id).await.unwrap(), Some(changed));
    let foreign = OauthProviderRow { id: OauthProviderId::new(), ..own.clone() };
    let foreign = OauthProviderRow { workspace_id: other_workspace(store).await, ..foreign };
    assert!(store.insert_oauth_provider(&foreign).await.is_err(), "the resource belongs to another workspace");

    store.delete_resource(workspace, resource.id).await.unwrap();
    assert_eq!(store.oauth_provider(workspace, own.id).await.unwrap(), None);
    let snapshot = store.snapshot().await.unwrap();
    assert!(snapshot.unverified.is_empty(), "{:?}", snapshot.unverified);
    assert_eq!(snapshot.oauth_providers, [of_type]);
}

pub(crate) async fn a_proposal_is_replaced_and_expires(store: &Store) {
    let (resource, _) = begun(store).await;
    let (workspace, generation) = (resource.workspace_id, store.generation().await.unwrap());
    let proposal = |issuer: &str| OauthProposalRow {
        resource_id: resource.id,
        workspace_id: workspace,
        digest: format!("sha256:{:064}", issuer.len()).parse().unwrap(),
        proposal: json!({ "issuer": issuer }),
        created_at: NOW,
        expires_at: NOW.plus_ms(1_000),
    };
    let (first, second) = (proposal("a"), proposal("bb"));
    let found = |now| store.oauth_proposal(workspace, resource.id, now);
    assert_eq!(found(NOW).await.unwrap(), None);
    store.put_oauth_proposal(&first).await.unwrap();
    assert_eq!(found(NOW).await.unwrap().as_ref(), Some(&first));
    store.put_oauth_proposal(&second).await.unwrap();
    assert_eq!(found(NOW).await.unwrap().as_ref(), Some(&second));
    assert_eq!(found(second.expires_at).await.unwrap(), None);
    assert_eq!(store.oauth_proposal(WorkspaceId::new(), resource.id, NOW).await.unwrap(), None);
    assert_eq!(store.generation().await.unwrap(), generation, "a proposal does not change the policy");
    assert_eq!(store.purge_oauth_proposals(second.expires_at).await.unwrap(), 0);
    assert_eq!(store.purge_oauth_proposals(second.expires_at.plus_ms(1)).await.unwrap(), 1);
    store.put_oauth_proposal(&first).await.unwrap();
    store.delete_resource(workspace, resource.id).await.unwrap();
    assert_eq!(found(NOW).await.unwrap(), None);
    assert!(store.put_oauth_proposal(&first).await.is_err(), "the resource does not exist");
}

pub(crate) async fn missing_scopes_belong_to_their_credential(store: &Store) {
    let (resource, _) = begun(store).await;
    let credential = rows::credential(&resource);
    store.put_credential(&credential).await.unwrap();
    let missing = |scopes: &[&str]| MissingScopesRow {
        credential_id: credential.id,
        workspace_id: resource.workspace_id,
        scopes: json!(scopes),
        noted_at: NOW,
    };
    let found = || store.missing_scopes(resource.workspace_id, credential.id);
    assert_eq!(found().await.unwrap(), None);
    store.put_missing_scopes(&missing(&["a"])).await.unwrap();
    store.put_missing_scopes(&missing(&["a", "b"])).await.unwrap();
    assert_eq!(found().await.unwrap(), Some(missing(&["a", "b"])));
    assert_eq!(store.missing_scopes(WorkspaceId::new(), credential.id).await.unwrap(), None);
    let all = async |workspace, limit| store.missing_scopes_of_workspace(workspace, limit).await.unwrap();
    assert_eq!(all(resource.workspace_id, 9).await, [missing(&["a", "b"])]);
    assert_eq!((all(resource.workspace_id, 0).await, all(WorkspaceId::new(), 9).await), (vec![], vec![]));
    // A new authorization replaces the credential, so nothing is missing any more.
    store.put_credential(&rows::credential(&resource)).await.unwrap();
    assert_eq!(found().await.unwrap(), None);
    match store.put_missing_scopes(&missing(&["a"])).await {
        Err(StoreError::UnknownReference) => {}
        other => panic!("{other:?}"),
    }
}
