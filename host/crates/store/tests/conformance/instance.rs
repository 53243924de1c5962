//! Tests of the rows of the instance, and of stored responses.

use monstrum_store::{
    AuditKind, BoundRow, Claim, IdempotencyKey, InstanceKeyRow, Page, PluginRow, PluginVersionRow, ResourceRow, Store,
    StoreError, StoredAnswer, TrustRow,
};
use monstrum_types::{Digest, KeyId, RequestId, TrustId};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::rows::{self, AppendRows as _, NOW, default_workspace};

pub(crate) async fn instance_keys_are_inserted_once(store: &Store) {
    let key = |version, sealed: &str| InstanceKeyRow {
        name: "audit".to_owned(),
        version,
        sealed: sealed.to_owned(),
        created_at: NOW,
    };
    assert!(store.instance_keys("audit").await.unwrap().is_empty());
    assert!(store.insert_instance_key(&key(1, "one")).await.unwrap());
    assert!(!store.insert_instance_key(&key(1, "another one")).await.unwrap());
    assert!(store.insert_instance_key(&key(2, "two")).await.unwrap());
    assert_eq!(store.instance_keys("audit").await.unwrap(), [key(1, "one"), key(2, "two")]);
    assert!(store.instance_keys("other").await.unwrap().is_empty());
}

fn digest(byte: &str) -> Digest {
    format!("sha256:{}", byte.repeat(32)).parse().unwrap()
}

/// Creates a version whose digests match its content. The store does not return a version whose digests do not match.
fn version(version: &str, component: &str) -> PluginVersionRow {
    let of = |bytes: &[u8]| format!("sha256:{}", hex::encode(Sha256::digest(bytes))).parse().unwrap();
    let (manifest, component) = ("name: github\n", [&[0, 0x61, 0x73, 0x6d, 0xff], component.as_bytes()].concat());
    PluginVersionRow {
        plugin: "github".parse().unwrap(),
        version: version.to_owned(),
        manifest_digest: of(manifest.as_bytes()),
        component_digest: of(&component),
        manifest: manifest.to_owned(),
        component,
        locales: json!({"en-US": {}}),
        created_at: NOW,
    }
}

fn serving(version: &PluginVersionRow) -> PluginRow {
    PluginRow {
        name: version.plugin.clone(),
        version: version.version.clone(),
        manifest_digest: version.manifest_digest.clone(),
        component_digest: version.component_digest.clone(),
        updated_at: NOW,
    }
}

pub(crate) async fn only_stored_versions_can_be_active(store: &Store) {
    let (old, mut new) = (version("1.0.0", "0a"), version("1.1.0", "0b"));
    new.created_at = NOW.plus_ms(1);
    assert!(matches!(store.serve_plugin(&serving(&old), &[], &[]).await, Err(StoreError::UnknownReference)));
    assert!(store.insert_plugin_version(&old).await.unwrap());
    assert!(!store.insert_plugin_version(&old).await.unwrap());
    let generation = store.generation().await.unwrap();
    assert_eq!(store.serve_plugin(&serving(&old), &[], &[]).await.unwrap(), []);
    assert!(store.insert_plugin_version(&new).await.unwrap());
    assert_eq!(store.plugin(&old.plugin).await.unwrap(), Some(serving(&old)));
    assert_eq!(store.serve_plugin(&serving(&new), &[], &[]).await.unwrap(), []);
    assert_eq!(store.generation().await.unwrap(), generation + 3, "a stored version is also an authenticated row");
    assert_eq!(store.plugins().await.unwrap(), [serving(&new)]);

    let read = store.plugin_version(&new.plugin, &new.manifest_digest, &new.component_digest).await.unwrap().unwrap();
    assert!(read == new, "the content is complete");
    assert!(store.plugin_version(&new.plugin, &digest("0a"), &digest("0b")).await.unwrap().is_none());
    let versions = store.plugin_versions(&new.plugin).await.unwrap();
    assert_eq!(versions.iter().map(|row| row.version.as_str()).collect::<Vec<_>>(), ["1.0.0", "1.1.0"]);

    assert!(store.delete_plugin(&new.plugin).await.unwrap());
    assert!(!store.delete_plugin(&new.plugin).await.unwrap());
    assert!(store.plugins().await.unwrap().is_empty());
    assert!(store.plugin_versions(&new.plugin).await.unwrap().is_empty());
}

pub(crate) async fn plugin_records_have_the_generation_of_the_instance(store: &Store) {
    let empty = store.plugin_records().await.unwrap();
    assert_eq!(store.instance_generation().await.unwrap(), empty.generation);
    let version = version("1.0.0", "0a");
    store.insert_plugin_version(&version).await.unwrap();
    store.serve_plugin(&serving(&version), &[], &[]).await.unwrap();
    let records = store.plugin_records().await.unwrap();
    assert_eq!(records.plugins, [serving(&version)]);
    assert!(records.generation > empty.generation);
    assert_eq!(store.instance_generation().await.unwrap(), records.generation);
}

pub(crate) async fn trust_is_inserted_and_deleted(store: &Store) {
    let row = |key: &str, name_glob: &str| TrustRow {
        id: TrustId::new(),
        public_key: key.to_owned(),
        name_glob: name_glob.to_owned(),
        type_glob: format!("{name_glob}-type"),
        created_at: NOW,
    };
    let (first, second, other) = (row("ed25519:a", "github"), row("ed25519:a", "acme-*"), row("ed25519:b", "github"));
    for row in [&first, &second, &other] {
        store.insert_trust(row).await.unwrap();
    }
    match store.insert_trust(&row("ed25519:a", "github")).await {
        Err(StoreError::Conflict { constraint }) => assert_eq!(constraint, "trust_public_key_name_glob_key"),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.trust_of_key("ed25519:a").await.unwrap(), [first.clone(), second.clone()]);
    assert!(store.trust_of_key("ed25519:A").await.unwrap().is_empty());
    let page = store.trust(&Page::first(2)).await.unwrap();
    assert_eq!(page.items, [first.clone(), second.clone()]);
    let rest = store.trust(&Page { limit: 2, cursor: page.next_cursor }).await.unwrap();
    assert_eq!((rest.items, rest.next_cursor), (vec![other], None));
    assert_eq!(store.trust_of_id(first.id).await.unwrap().as_ref(), Some(&first));
    assert!(store.delete_trust(first.id).await.unwrap());
    assert_eq!(store.trust_of_id(first.id).await.unwrap(), None);
    assert!(!store.delete_trust(first.id).await.unwrap());
    assert_eq!(store.trust_of_key("ed25519:a").await.unwrap(), [second]);
}

pub(crate) async fn bindings_are_found_by_resource_type(store: &Store) {
    let workspace = default_workspace(store).await;
    let (bot, resource, unbound) =
        (rows::bot(workspace, "bot"), rows::resource(workspace, "github"), rows::resource(workspace, "unbound"));
    store.insert_bot(&bot).await.unwrap();
    for row in [&resource, &unbound] {
        store.insert_resource(row).await.unwrap();
    }
    assert!(store.bound(&resource.resource_type, 10).await.unwrap().is_empty());
    store.insert_binding(&rows::binding(&bot, &resource, None)).await.unwrap();
    let bound = BoundRow { workspace: "default".to_owned(), resource: "github".to_owned(), bot: "bot".to_owned() };
    assert_eq!(store.bound(&resource.resource_type, 10).await.unwrap(), [bound]);
    assert!(store.bound(&resource.resource_type, 0).await.unwrap().is_empty());
    assert!(store.bound(&"other".parse().unwrap(), 10).await.unwrap().is_empty());
}

async fn request(store: &Store, key: &str) -> IdempotencyKey {
    IdempotencyKey {
        workspace_id: default_workspace(store).await,
        caller: KeyId::new(),
        route: "POST /api/bots".to_owned(),
        key: key.to_owned(),
    }
}

pub(crate) async fn a_request_is_claimed_once(store: &Store) {
    let key = request(store, "k").await;
    assert_eq!(store.claim_request(&key, "hash", NOW).await.unwrap(), Claim::First);
    let running = Claim::Earlier { body_hash: "hash".to_owned(), answer: None };
    assert_eq!(store.claim_request(&key, "other hash", NOW).await.unwrap(), running);

    let answer = StoredAnswer { status: 201, sealed: "AQAAAAE".to_owned() };
    assert!(store.answer_request(&key, &answer).await.unwrap());
    let answered = Claim::Earlier { body_hash: "hash".to_owned(), answer: Some(answer.clone()) };
    assert_eq!(store.claim_request(&key, "hash", NOW).await.unwrap(), answered);
    let second = StoredAnswer { status: 500, ..answer };
    assert!(!store.answer_request(&key, &second).await.unwrap(), "an answer is final");
    store.release_request(&key).await.unwrap();
    store.forget_request(&key, &StoredAnswer { status: 201, sealed: "AQAAAAI".to_owned() }).await.unwrap();
    assert_eq!(store.claim_request(&key, "hash", NOW).await.unwrap(), answered, "an answered request is not released");
    store.forget_request(&key, &StoredAnswer { status: 201, sealed: "AQAAAAE".to_owned() }).await.unwrap();
    assert_eq!(store.claim_request(&key, "new hash", NOW).await.unwrap(), Claim::First, "the answer was forgotten");

    let of_another = IdempotencyKey { caller: KeyId::new(), ..key.clone() };
    assert_eq!(store.claim_request(&of_another, "hash", NOW).await.unwrap(), Claim::First);
    let of_another_route = IdempotencyKey { route: "POST /api/roles".to_owned(), ..key };
    assert_eq!(store.claim_request(&of_another_route, "hash", NOW).await.unwrap(), Claim::First);
}

pub(crate) async fn of_two_concurrent_claims_one_is_first(store: &Store) {
    let key = request(store, "k").await;
    let claims = (0..16).map(|_| {
        let (store, key) = (store.clone(), key.clone());
        tokio::spawn(async move { store.claim_request(&key, "hash", NOW).await.unwrap() })
    });
    let mut first = 0;
    for claim in claims.collect::<Vec<_>>() {
        first += u32::from(claim.await.unwrap() == Claim::First);
    }
    assert_eq!(first, 1);
}

pub(crate) async fn a_released_or_purged_key_can_be_claimed_again(store: &Store) {
    let (released, running, answered) =
        (request(store, "a").await, request(store, "b").await, request(store, "c").await);
    for key in [&released, &running, &answered] {
        store.claim_request(key, "hash", NOW).await.unwrap();
    }
    store.release_request(&released).await.unwrap();
    assert_eq!(store.claim_request(&released, "hash", NOW.plus_ms(10)).await.unwrap(), Claim::First);
    store.answer_request(&answered, &StoredAnswer { status: 201, sealed: String::new() }).await.unwrap();

    assert_eq!(store.purge_requests(NOW, NOW).await.unwrap(), 0);
    assert_eq!(store.purge_requests(NOW, NOW.plus_ms(5)).await.unwrap(), 1, "the unanswered claim is deleted");
    assert_eq!(store.claim_request(&running, "hash", NOW).await.unwrap(), Claim::First);
    assert_eq!(store.purge_requests(NOW.plus_ms(5), NOW).await.unwrap(), 2);
    assert_eq!(store.claim_request(&answered, "hash", NOW).await.unwrap(), Claim::First);
}

pub(crate) async fn unusual_texts_round_trip(store: &Store) {
    let workspace = default_workspace(store).await;
    for (number, text) in ["'; drop table bots; --", "$1", "?1", "%_\\", "é😀\u{2028}\r\n\t", " ", &"x".repeat(100_000)]
        .iter()
        .enumerate()
    {
        let mut bot = rows::bot(workspace, text);
        bot.description = (*text).to_owned();
        store.insert_bot(&bot).await.unwrap();
        assert_eq!(store.bot(workspace, bot.id).await.unwrap(), Some(bot), "text {number}");
    }
    let resource =
        ResourceRow { config: json!({"nul": "a\u{0}b", "deep": [[[[]]]]}), ..rows::resource(workspace, "g") };
    store.insert_resource(&resource).await.unwrap();
    assert_eq!(store.resource(workspace, resource.id).await.unwrap(), Some(resource));
}

/// PostgreSQL cannot store U+0000, so the store also rejects text with U+0000 if the database is SQLite.
pub(crate) async fn a_text_with_nul_is_rejected(store: &Store) {
    let workspace = default_workspace(store).await;
    let generation = store.generation().await.unwrap();
    let mut bot = rows::bot(workspace, "b");
    bot.description = "a\0b".to_owned();
    assert!(matches!(store.insert_bot(&bot).await, Err(StoreError::Nul)));
    let mut event = rows::event(workspace, 1, AuditKind::Finished, RequestId::new());
    event.tool = Some("a\0b".to_owned());
    assert!(matches!(store.append_rows(&[event]).await, Err(StoreError::Nul)));
    assert_eq!(store.generation().await.unwrap(), generation);
    assert_eq!(store.count_events().await.unwrap(), 0);
}
