use monstrum_egress::EgressOptions;
use monstrum_store::{DEFAULT_WORKSPACE, InstanceKeyRow, ResourceRow, SealsRows, StoreOptions};
use monstrum_types::{OauthProviderId, SystemClock};
use monstrum_vault::MasterKeys;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::super::new_row;
use super::super::provider::seal_secret;
use super::*;

/// A row key for tests: its seals are not encrypted.
struct TestRowKey;

impl SealsRows for TestRowKey {
    fn version(&self) -> u32 {
        1
    }

    fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32] {
        Sha256::new().chain_update(label).chain_update([0]).chain_update(bytes).finalize().into()
    }

    fn seal(&self, plaintext: &[u8], _: &str, _: i64) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok(hex::encode(plaintext))
    }

    fn unseal(&self, sealed: &str, _: &str, _: i64) -> Option<Vec<u8>> {
        hex::decode(sealed).ok()
    }
}

fn given_for(origin: &str) -> GivenFor {
    let given_for = json!({
        "resource_type": "github", "auth_method": "oauth2_auth_code", "audience": [origin],
        "inject": [{ "header": "Authorization", "value": "Bearer {access_token}" }],
    });
    serde_json::from_value(given_for).unwrap()
}

/// Creates a store and a vault in `folder`.
async fn opened(folder: &tempfile::TempDir) -> (Store, Arc<Vault>) {
    let store = Store::open(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
    let store = store.with_row_key(Arc::new(TestRowKey));
    let (name, sealed) = ("rows".to_owned(), "sealed".to_owned());
    let record = InstanceKeyRow { name, version: 1, sealed, created_at: UtcMillis(0) };
    assert!(store.initialize(&record, UtcMillis(0)).await.unwrap());
    let vault = Arc::new(Vault::new(MasterKeys::create(&folder.path().join("master.key")).unwrap()));
    (store, vault)
}

#[tokio::test]
async fn finished_refreshes_are_not_kept_forever() {
    let folder = tempfile::tempdir().unwrap();
    let (store, vault) = opened(&folder).await;
    let refresher = Refresher::new(store, vault, Egress::new(EgressOptions::default()), Arc::new(SystemClock));
    let under_way = refresher.in_progress((ResourceId::new(), Subject::Shared));
    let recent = (ResourceId::new(), Subject::User("1:a1:7".into()));
    refresher.in_progress(recent.clone()).lock().await.refreshed_at = Some(Instant::now());
    for _ in 0..3 * REFRESHES_SWEEP_AT {
        refresher.in_progress((ResourceId::new(), Subject::Shared));
    }
    let refreshes = refresher.refreshes.lock();
    assert!(refreshes.len() <= REFRESHES_SWEEP_AT, "{} are held", refreshes.len());
    assert!(refreshes.contains_key(&recent));
    assert!(refreshes.values().any(|refresh| Arc::ptr_eq(refresh, &under_way)));
}

/// Checks that the host sends no refresh token to a provider whose row differs from the verified row.
#[tokio::test]
async fn an_unverified_provider_is_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (store, vault) = opened(&folder).await;
    let (workspace, now) = (store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id, SystemClock.now());
    let resource = resource(workspace, now);
    store.insert_resource(&resource).await.unwrap();
    store.snapshot().await.unwrap();
    let provider = provider(&resource, now);
    store.insert_oauth_provider(&provider).await.unwrap();
    let given_for = given_for("https://here.example").obtained_from(&provider, None);
    let secret = |text: &str| Secret::new(text.to_owned());
    let fields =
        BTreeMap::from([("access_token".to_owned(), secret("stale")), ("refresh_token".to_owned(), secret("refresh"))]);
    store
        .put_credential(&new_row(&vault, &resource, &Subject::Shared, &given_for, &fields, now).unwrap())
        .await
        .unwrap();
    let egress = Egress::new(EgressOptions::default());
    let refresher = Arc::new(Refresher::new(store.clone(), vault, egress, Arc::new(SystemClock)));
    let was_asked = async || {
        let target = RefreshTarget {
            workspace,
            resource: resource.id,
            subject: Subject::Shared,
            resource_type: resource.resource_type.clone(),
            network: Network::default(),
            given_for: given_for.clone(),
        };
        let refreshed = refresher.refresh(target, Some(Secret::new("stale".to_owned()))).await;
        assert!(matches!(refreshed, Err(CredentialState::Unavailable)));
        refresher.in_progress((resource.id, Subject::Shared)).lock().await.backoff.is_some()
    };
    assert!(!was_asked().await, "the row was added after the last verification of the workspace");
    store.snapshot().await.unwrap();
    assert!(was_asked().await);
}

/// Checks that a record opens only in the row of its own user, even if the rest of the row is the same.
#[tokio::test]
async fn a_record_that_is_moved_to_another_user_does_not_open() {
    let folder = tempfile::tempdir().unwrap();
    let (store, vault) = opened(&folder).await;
    let (workspace, now) = (store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id, SystemClock.now());
    let resource = resource(workspace, now);
    let given_for = given_for("https://here.example");
    let fields = BTreeMap::from([("access_token".to_owned(), Secret::new("of-a-user".to_owned()))]);
    let user = |app: &str, id: &str| {
        Subject::of_user(&monstrum_types::AppUser { app_id: app.to_owned(), user_id: id.to_owned() })
    };
    let sealed = |subject: &Subject| new_row(&vault, &resource, subject, &given_for, &fields, now).unwrap();
    let subjects = [Subject::Shared, user("a", "7"), user("b", "7"), user("a", "8")];
    for own in &subjects {
        let row = sealed(own);
        for subject in &subjects {
            let (subject_kind, subject_id) = (subject.kind().to_owned(), subject.id().to_owned());
            let moved = CredentialRow { subject_kind, subject_id, ..row.clone() };
            assert_eq!(Opened::open(&moved, &vault).is_ok(), own == subject, "{own:?} {subject:?}");
        }
        let unknown = CredentialRow { subject_kind: "group".to_owned(), ..row };
        assert!(Opened::open(&unknown, &vault).is_err());
    }
}

/// Returns a provider at whose token URL no server listens.
fn provider(resource: &ResourceRow, now: UtcMillis) -> OauthProviderRow {
    OauthProviderRow {
        id: OauthProviderId::new(),
        workspace_id: resource.workspace_id,
        resource_type: resource.resource_type.clone(),
        resource_id: None,
        client_id: "client".to_owned(),
        client_secret: None,
        authorization_url: None,
        token_url: "https://127.0.0.1:1/token".to_owned(),
        device_authorization_url: None,
        scopes: json!([]),
        server: None,
        created_at: now,
        updated_at: now,
    }
}

fn resource(workspace: WorkspaceId, now: UtcMillis) -> ResourceRow {
    ResourceRow {
        id: ResourceId::new(),
        workspace_id: workspace,
        resource_type: "github".parse().unwrap(),
        name: "r".to_owned(),
        config: json!({}),
        network: json!({}),
        labels: None,
        created_at: now,
        updated_at: now,
    }
}

/// Checks that a credential that was saved again for another audience is not sent under the earlier rules.
#[tokio::test]
async fn a_credential_for_another_purpose_is_not_a_newer_token() {
    let folder = tempfile::tempdir().unwrap();
    let (store, vault) = opened(&folder).await;
    let workspace = store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap().id;
    let now = SystemClock.now();
    let resource = resource(workspace, now);
    store.insert_resource(&resource).await.unwrap();
    let (here, there) = (given_for("https://here.example"), given_for("https://there.example"));
    let fields = BTreeMap::from([("access_token".to_owned(), Secret::new("the newer token".to_owned()))]);
    store.put_credential(&new_row(&vault, &resource, &Subject::Shared, &there, &fields, now).unwrap()).await.unwrap();
    let egress = Egress::new(EgressOptions::default());
    let refresher = Arc::new(Refresher::new(store, vault, egress, Arc::new(SystemClock)));
    let refreshed = async |given_for: GivenFor| {
        let target = RefreshTarget {
            workspace,
            resource: resource.id,
            subject: Subject::Shared,
            resource_type: resource.resource_type.clone(),
            network: Network::default(),
            given_for,
        };
        let refreshed = refresher.refresh(target, Some(Secret::new("the stale token".to_owned()))).await;
        refreshed.map(|refreshed| refreshed.fields["access_token"].expose().to_owned())
    };
    assert_eq!(refreshed(here).await, Err(CredentialState::Unavailable));
    assert_eq!(refreshed(there).await, Ok("the newer token".to_owned()));
}

/// Checks that the error names the faulty record of this host, and blames the provider only for its own answer.
#[tokio::test]
async fn a_fault_of_this_host_is_not_blamed_on_the_provider() {
    let folder = tempfile::tempdir().unwrap();
    let (store, vault) = opened(&folder).await;
    let now = SystemClock.now();
    let resource = resource(WorkspaceId::new(), now);
    let sound = provider(&resource, now);
    let secret = seal_secret(&vault, &sound, &Secret::new("a client secret".to_owned())).unwrap().to_string();
    let of_another = OauthProviderRow { id: OauthProviderId::new(), client_secret: Some(secret), ..sound.clone() };
    let without_url = OauthProviderRow { token_url: "token".to_owned(), ..sound.clone() };
    let refresher = Refresher::new(store, vault, Egress::new(EgressOptions::default()), Arc::new(SystemClock));
    let asked = async |provider: &OauthProviderRow, fields: &[&str]| {
        let fields = fields.iter().map(|name| ((*name).to_owned(), Secret::new("a refresh token".to_owned())));
        let given_for = given_for("https://here.example");
        let opened = Opened { given_for: given_for.clone(), fields: fields.collect() };
        let (workspace, resource, resource_type) = (resource.workspace_id, resource.id, sound.resource_type.clone());
        let (subject, network) = (Subject::Shared, Network::default());
        let target = RefreshTarget { workspace, resource, subject, resource_type, network, given_for };
        let error = refresher.ask(&target, &opened, provider).await.err().unwrap();
        (error.to_string(), error.code().map(str::to_owned), error.is_of_grant())
    };
    let told = |text: &str| (text.to_owned(), None, false);
    assert_eq!(
        asked(&of_another, &["refresh_token"]).await,
        told("the stored client secret of the OAuth provider cannot be decrypted")
    );
    assert_eq!(
        asked(&without_url, &["refresh_token"]).await,
        told("the stored token_url of the OAuth provider is invalid: expected an absolute URL")
    );
    assert_eq!(asked(&sound, &[]).await, told("the stored credential has no refresh token"));
    assert_eq!(
        asked(&sound, &["refresh_token"]).await,
        told("the request to the provider failed: `127.0.0.1` has an address to which this resource may not connect")
    );
}
