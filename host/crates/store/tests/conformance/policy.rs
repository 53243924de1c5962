//! Tests of the rows that the policy is compiled from.

use monstrum_store::{
    ConfigurationRow, CredentialRow, DEFAULT_WORKSPACE, KeyKind, KeyRow, KeyUse, Page, RowWrite, Store, StoreError,
    WorkspaceRow,
};
use monstrum_types::{BotId, WorkspaceId};
use serde_json::json;

use crate::rows::{self, NOW, bound, default_workspace, other_workspace};

pub(crate) async fn a_new_store_has_its_default_workspace(store: &Store) {
    let all = store.workspaces(&Page::first(50)).await.unwrap();
    assert_eq!(all.items.len(), 1);
    assert_eq!(all.items[0].name, DEFAULT_WORKSPACE);
    assert_eq!(all.next_cursor, None);
}

pub(crate) async fn workspaces_are_inserted_updated_and_deleted(store: &Store) {
    let mut row =
        WorkspaceRow { id: WorkspaceId::new(), name: "a".to_owned(), sandbox: None, created_at: NOW, updated_at: NOW };
    store.insert_workspace(&row).await.unwrap();
    row.name = "b".to_owned();
    row.updated_at = NOW.plus_ms(1);
    assert!(store.update_workspace(&row, NOW).await.unwrap());
    assert_eq!(store.workspace(row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.workspace_named("b").await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.workspace_named("a").await.unwrap(), None);

    let held = rows::bot(row.id, "b");
    store.insert_bot(&held).await.unwrap();
    store.insert_key(&rows::key(Some(row.id), KeyKind::Admin, None, "k")).await.unwrap();
    assert!(matches!(store.delete_workspace(row.id).await, Err(StoreError::InUse)));
    assert!(store.delete_bot(row.id, held.id).await.unwrap());
    assert!(store.delete_workspace(row.id).await.unwrap());
    assert!(!store.delete_workspace(row.id).await.unwrap());
    assert!(!store.update_workspace(&row, NOW).await.unwrap());
    assert!(store.snapshot().await.unwrap().keys.is_empty(), "the keys of the workspace are also deleted");
}

pub(crate) async fn roles_are_inserted_updated_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut row = rows::role(workspace, "r");
    store.insert_role(&row).await.unwrap();
    assert_eq!(store.role(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    row.name = "s".to_owned();
    row.allowed_operations = None;
    row.allowed_tools = Some(json!(["github_*"]));
    row.scope_constraints = json!({});
    row.updated_at = NOW.plus_ms(1);
    assert!(store.update_role(&row, crate::rows::NOW).await.unwrap());
    assert_eq!(store.role(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.roles(workspace, &Page::first(50)).await.unwrap().items, [row.clone()]);
    assert!(store.delete_role(workspace, row.id).await.unwrap());
    assert!(!store.delete_role(workspace, row.id).await.unwrap());
    assert!(!store.update_role(&row, crate::rows::NOW).await.unwrap());
    assert_eq!(store.role(workspace, row.id).await.unwrap(), None);
}

pub(crate) async fn bots_are_inserted_updated_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut row = rows::bot(workspace, "b");
    store.insert_bot(&row).await.unwrap();
    assert_eq!(store.bot(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    row.name = "c".to_owned();
    row.description = String::new();
    row.system_prompt = "be brief".to_owned();
    row.model = None;
    row.use_agent_sandbox = false;
    row.monthly_token_budget = None;
    row.updated_at = NOW.plus_ms(1);
    assert!(store.update_bot(&row, crate::rows::NOW).await.unwrap());
    assert_eq!(store.bot(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.bots(workspace, &Page::first(50)).await.unwrap().items, [row.clone()]);
    assert!(store.delete_bot(workspace, row.id).await.unwrap());
    assert!(!store.delete_bot(workspace, row.id).await.unwrap());
    assert!(!store.update_bot(&row, crate::rows::NOW).await.unwrap());
}

pub(crate) async fn resources_are_inserted_updated_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut row = rows::resource(workspace, "g");
    store.insert_resource(&row).await.unwrap();
    assert_eq!(store.resource(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    row.name = "h".to_owned();
    row.config = json!({"z": 1, "a": [null, true, 1.5, "ü"]});
    row.network = json!({"allow_http": true});
    row.updated_at = NOW.plus_ms(1);
    assert!(store.update_resource(&row, crate::rows::NOW).await.unwrap());
    assert_eq!(store.resource(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.resources(workspace, &Page::first(50)).await.unwrap().items, [row.clone()]);
    assert!(store.delete_resource(workspace, row.id).await.unwrap());
    assert!(!store.delete_resource(workspace, row.id).await.unwrap());
    assert!(!store.update_resource(&row, crate::rows::NOW).await.unwrap());
}

pub(crate) async fn credentials_are_inserted_updated_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let resource = rows::resource(workspace, "g");
    store.insert_resource(&resource).await.unwrap();
    assert_eq!(store.credential(workspace, resource.id).await.unwrap(), None);

    let first = rows::credential(&resource);
    store.put_credential(&first).await.unwrap();
    let mut second = rows::credential(&resource);
    second.sealed = "AQAAAAI".to_owned();
    second.created_at = NOW.plus_ms(5);
    store.put_credential(&second).await.unwrap();
    assert_eq!(store.credential(workspace, resource.id).await.unwrap().as_ref(), Some(&second));
    assert!(
        !store.update_credential(&first, &first.sealed, crate::rows::NOW).await.unwrap(),
        "the replaced credential no longer exists"
    );
    // A credential is replaced only if the stored one is the expected one.
    let other = rows::credential(&resource);
    let is_first = |stored: Option<&CredentialRow>| stored.is_some_and(|stored| stored.id == first.id);
    assert!(!store.put_credential_if(&other, is_first).await.unwrap());
    assert!(!store.put_credential_if(&other, |stored| stored.is_none()).await.unwrap());
    assert_eq!(store.credential(workspace, resource.id).await.unwrap().as_ref(), Some(&second));
    let stood = second.sealed.clone();

    second.auth_method = "basic".to_owned();
    second.sealed = "AQAAAAM".to_owned();
    second.key_version = 2;
    second.given_for = json!({});
    second.status = "needs-authorization".to_owned();
    second.expires_at = Some(NOW);
    second.updated_at = NOW.plus_ms(9);
    assert!(
        !store.update_credential(&second, &second.sealed, crate::rows::NOW).await.unwrap(),
        "the stored record differs"
    );
    assert!(store.update_credential(&second, &stood, crate::rows::NOW).await.unwrap());
    assert_eq!(store.credentials(workspace, &Page::first(50)).await.unwrap().items, [second]);
    assert!(store.delete_credential(workspace, resource.id).await.unwrap());
    assert!(!store.delete_credential(workspace, resource.id).await.unwrap());

    store.put_credential(&first).await.unwrap();
    assert!(store.delete_resource(workspace, resource.id).await.unwrap());
    assert!(
        store.credentials(workspace, &Page::first(50)).await.unwrap().items.is_empty(),
        "the credential is deleted with its resource"
    );
}

pub(crate) async fn credentials_of_users_are_apart(store: &Store) {
    let (workspace, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let resource = rows::resource(workspace, "g");
    store.insert_resource(&resource).await.unwrap();
    let of_user = |subject: &str| CredentialRow {
        subject_kind: "user".to_owned(),
        subject_id: subject.to_owned(),
        ..rows::credential(&resource)
    };
    let (shared, of_a, of_b) = (rows::credential(&resource), of_user("1:a1:7"), of_user("1:b1:7"));
    for row in [&shared, &of_a, &of_b] {
        store.put_credential(row).await.unwrap();
    }
    let held = async |subject: &str| store.user_credential(workspace, resource.id, subject).await.unwrap();
    assert_eq!(store.credential(workspace, resource.id).await.unwrap(), Some(shared.clone()));
    assert_eq!((held("1:a1:7").await, held("1:b1:7").await), (Some(of_a.clone()), Some(of_b.clone())));
    assert_eq!((held("1:a1:8").await, held("").await), (None, None));
    assert_eq!(store.user_credential(theirs, resource.id, "1:a1:7").await.unwrap(), None);

    let list = async |subject: Option<&str>| {
        store.user_credentials(workspace, resource.id, subject, &Page::first(9)).await.unwrap().items
    };
    let mut both = vec![of_a.clone(), of_b.clone()];
    both.sort_by_key(|row| row.id);
    assert_eq!(list(None).await, both);
    assert_eq!((list(Some("1:b1:7")).await, list(Some("")).await), (vec![of_b.clone()], vec![]));

    let newer = of_user("1:a1:7");
    store.put_credential(&newer).await.unwrap();
    assert_eq!((held("1:a1:7").await, held("1:b1:7").await), (Some(newer), Some(of_b)));
    assert!(!store.delete_user_credential(theirs, resource.id, "1:a1:7").await.unwrap());
    assert!(store.delete_user_credential(workspace, resource.id, "1:a1:7").await.unwrap());
    assert!(!store.delete_user_credential(workspace, resource.id, "1:a1:7").await.unwrap());
    assert!(store.delete_credential(workspace, resource.id).await.unwrap());
    assert_eq!(list(None).await.len(), 1, "the credential of another user remains");
    assert!(store.delete_resource(workspace, resource.id).await.unwrap());
    assert!(list(None).await.is_empty());
}

pub(crate) async fn bindings_are_inserted_updated_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut row = bound(store, workspace).await.binding;
    assert_eq!(store.binding(workspace, row.bot_id, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.binding(workspace, BotId::new(), row.id).await.unwrap(), None);
    row.role_id = None;
    row.permissions = None;
    row.scope_constraints = json!({});
    row.delegate = Some(json!({"allowed_tools": ["x"]}));
    row.allow_calls = json!(["jira_*"]);
    row.allow_subscribe = true;
    row.limits = None;
    row.calls_per_minute = None;
    row.enabled = false;
    row.expires_at = None;
    row.updated_at = NOW.plus_ms(1);
    assert!(store.update_binding(&row, crate::rows::NOW).await.unwrap());
    assert_eq!(store.bindings(workspace, row.bot_id, &Page::first(50)).await.unwrap().items, [row.clone()]);
    assert!(store.delete_binding(workspace, row.bot_id, row.id).await.unwrap());
    assert!(!store.delete_binding(workspace, row.bot_id, row.id).await.unwrap());
    assert!(!store.update_binding(&row, crate::rows::NOW).await.unwrap());
}

pub(crate) async fn keys_are_inserted_rotated_and_deleted(store: &Store) {
    let workspace = Some(default_workspace(store).await);
    let mut row = rows::key(workspace, KeyKind::Operator, None, "k");
    store.insert_key(&row).await.unwrap();
    assert!(store.rotate_key(&row, "mk_ghijkl", "another").await.unwrap());
    assert!(
        !store.rotate_key(&row, "mk_mnopqr", "a third").await.unwrap(),
        "the key was rotated after the row was read"
    );
    row.prefix = "mk_ghijkl".to_owned();
    row.hash = "another".to_owned();
    assert_eq!(store.key(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.keys(workspace, &Page::first(50)).await.unwrap().items, [row.clone()]);

    let twin = KeyRow { hash: row.hash.clone(), ..rows::key(workspace, KeyKind::Admin, None, "l") };
    assert_eq!(conflict(store.insert_key(&twin).await), "api_keys_hash_key");
    assert!(store.delete_key(workspace, row.id).await.unwrap());
    assert!(!store.delete_key(workspace, row.id).await.unwrap());
    assert!(!store.rotate_key(&row, "mk_stuvwx", "a fourth").await.unwrap(), "the key is deleted");
}

pub(crate) async fn the_latest_use_of_a_key_is_kept(store: &Store) {
    let workspace = Some(default_workspace(store).await);
    let other = Some(rows::other_workspace(store).await);
    let [own, root, theirs, gone] = [
        rows::key(workspace, KeyKind::Operator, None, "own"),
        rows::key(None, KeyKind::Root, None, "root"),
        rows::key(other, KeyKind::Admin, None, "theirs"),
        rows::key(workspace, KeyKind::Admin, None, "gone"),
    ];
    for row in [&own, &root, &theirs, &gone] {
        store.insert_key(row).await.unwrap();
    }
    store.delete_key(workspace, gone.id).await.unwrap();
    let generation = store.generation().await.unwrap();
    let of = |row: &KeyRow, ms| KeyUse { workspace_id: row.workspace_id, id: row.id, at: NOW.plus_ms(ms) };
    let known = async |row: &KeyRow| {
        let row = store.key(row.workspace_id, row.id).await.unwrap();
        row.and_then(|row| row.last_used_at).map(|at| at.since_ms(NOW))
    };
    assert_eq!(known(&own).await, None, "the key was never used");
    store.save_key_uses(&[]).await.unwrap();
    store.save_key_uses(&[of(&gone, 1), of(&own, 5), of(&root, 7)]).await.unwrap();
    assert_eq!((known(&own).await, known(&root).await, known(&theirs).await), (Some(5), Some(7), None));
    store.save_key_uses(&[of(&own, 3), of(&theirs, 9)]).await.unwrap();
    assert_eq!((known(&own).await, known(&theirs).await), (Some(5), Some(9)), "an earlier use is ignored");
    assert_eq!(known(&gone).await, None, "a deleted key stays deleted");

    assert_eq!(store.generation().await.unwrap(), generation, "uses do not change the policy");
    assert!(store.rotate_key(&own, "mk_ghijkl", "another").await.unwrap());
    assert_eq!(known(&own).await, Some(5), "a rotated key keeps its last use");
    let keys = store.snapshot().await.unwrap().keys;
    let used: Vec<_> = keys.iter().map(|row| (row.id, row.last_used_at.map(|at| at.since_ms(NOW)))).collect();
    let mut expected = vec![(own.id, Some(5)), (root.id, Some(7)), (theirs.id, Some(9))];
    expected.sort();
    assert_eq!(used, expected);
}

fn conflict(result: Result<(), StoreError>) -> String {
    match result {
        Err(StoreError::Conflict { constraint }) => constraint,
        other => panic!("expected a conflict, not {other:?}"),
    }
}

pub(crate) async fn names_are_unique_in_a_workspace(store: &Store) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    assert_eq!(conflict(store.insert_role(&rows::role(workspace, "r")).await), "roles_workspace_id_name_key");
    assert_eq!(conflict(store.insert_bot(&rows::bot(workspace, "b")).await), "bots_workspace_id_name_key");
    assert_eq!(
        conflict(store.insert_resource(&rows::resource(workspace, "g")).await),
        "resources_workspace_id_name_key"
    );
    let again = rows::binding(&there.bot, &there.resource, None);
    assert_eq!(conflict(store.insert_binding(&again).await), "bot_resources_bot_id_resource_id_key");

    let workspace_again = WorkspaceRow { id: WorkspaceId::new(), ..store.workspace(workspace).await.unwrap().unwrap() };
    assert_eq!(conflict(store.insert_workspace(&workspace_again).await), "workspaces_name_key");

    let key = rows::key(Some(workspace), KeyKind::Admin, None, "k");
    store.insert_key(&key).await.unwrap();
    let twin = rows::key(Some(workspace), KeyKind::Admin, None, "k");
    assert_eq!(conflict(store.insert_key(&twin).await), "api_keys_workspace_id_name_key");
    store.insert_key(&rows::key(None, KeyKind::Root, None, "k")).await.unwrap();
    assert_eq!(conflict(store.insert_key(&rows::key(None, KeyKind::Root, None, "k")).await), "api_keys_name_key");

    let other = rows::other_workspace(store).await;
    let same_id = monstrum_store::RoleRow { workspace_id: other, ..there.role };
    assert_eq!(conflict(store.insert_role(&same_id).await), "roles_pkey");
    bound(store, other).await;
    store.insert_key(&rows::key(Some(other), KeyKind::Admin, None, "k")).await.unwrap();

    let renamed = rows::role(workspace, "s");
    store.insert_role(&renamed).await.unwrap();
    let clash = monstrum_store::RoleRow { name: "r".to_owned(), ..renamed };
    assert!(matches!(store.update_role(&clash, crate::rows::NOW).await, Err(StoreError::Conflict { .. })));
}

pub(crate) async fn a_bound_row_cannot_be_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    assert!(matches!(store.delete_role(workspace, there.role.id).await, Err(StoreError::InUse)));
    assert!(matches!(store.delete_resource(workspace, there.resource.id).await, Err(StoreError::InUse)));
    assert!(
        store.credential(workspace, there.resource.id).await.unwrap().is_some(),
        "the failed deletion has no effect"
    );
    assert!(store.delete_binding(workspace, there.bot.id, there.binding.id).await.unwrap());
    assert!(store.delete_role(workspace, there.role.id).await.unwrap());
    assert!(store.delete_resource(workspace, there.resource.id).await.unwrap());
}

pub(crate) async fn deleting_a_bot_deletes_its_bindings_and_keys(store: &Store) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    let key = rows::key(Some(workspace), KeyKind::Bot, Some(there.bot.id), "k");
    store.insert_key(&key).await.unwrap();
    assert!(store.delete_bot(workspace, there.bot.id).await.unwrap());
    let snapshot = store.snapshot().await.unwrap();
    assert!(snapshot.bindings.is_empty() && snapshot.keys.is_empty());
    assert_eq!(snapshot.resources, [there.resource]);
}

pub(crate) async fn lists_have_pages(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut all = Vec::new();
    for number in 0..5 {
        let row = rows::role(workspace, &format!("role {number}"));
        store.insert_role(&row).await.unwrap();
        all.push(row);
    }
    all.sort_by_key(|row| row.id);
    let first = store.roles(workspace, &Page::first(2)).await.unwrap();
    assert_eq!(first.items, all[..2]);
    assert_eq!(first.next_cursor, Some(all[1].id));
    let second = store.roles(workspace, &Page { limit: 2, cursor: first.next_cursor }).await.unwrap();
    assert_eq!(second.items, all[2..4]);
    let third = store.roles(workspace, &Page { limit: 2, cursor: second.next_cursor }).await.unwrap();
    assert_eq!(third.items, all[4..]);
    assert_eq!(third.next_cursor, None);

    let exact = store.roles(workspace, &Page::first(5)).await.unwrap();
    assert_eq!((exact.items.len(), exact.next_cursor), (5, None));
    assert_eq!(store.roles(workspace, &Page::first(0)).await.unwrap().items.len(), 1);
    assert_eq!(store.roles(workspace, &Page::first(u32::MAX)).await.unwrap().items.len(), 5);
}

pub(crate) async fn every_change_raises_the_generation(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut last = store.generation().await.unwrap();
    let mut grown = async |what: &str, by: i64| {
        let now = store.generation().await.unwrap();
        assert_eq!(now, last + by, "{what}");
        last = now;
    };
    let there = bound(store, workspace).await;
    grown("five inserts", 5).await;
    let key = rows::key(Some(workspace), KeyKind::Bot, Some(there.bot.id), "k");
    store.insert_key(&key).await.unwrap();
    grown("insert a key", 1).await;
    store.update_role(&there.role, crate::rows::NOW).await.unwrap();
    store.update_bot(&there.bot, crate::rows::NOW).await.unwrap();
    store.update_resource(&there.resource, crate::rows::NOW).await.unwrap();
    store.update_credential(&there.credential, &there.credential.sealed, crate::rows::NOW).await.unwrap();
    store.update_binding(&there.binding, crate::rows::NOW).await.unwrap();
    store.rotate_key(&key, &key.prefix, "another").await.unwrap();
    grown("six updates", 6).await;
    assert!(store.insert_bot(&there.bot).await.is_err());
    assert!(!store.delete_bot(workspace, BotId::new()).await.unwrap());
    grown("nothing changed", 0).await;
    store.delete_binding(workspace, there.bot.id, there.binding.id).await.unwrap();
    store.delete_credential(workspace, there.resource.id).await.unwrap();
    store.delete_resource(workspace, there.resource.id).await.unwrap();
    store.delete_role(workspace, there.role.id).await.unwrap();
    store.delete_key(Some(workspace), key.id).await.unwrap();
    store.delete_bot(workspace, there.bot.id).await.unwrap();
    grown("six deletions", 6).await;
    let other = rows::other_workspace(store).await;
    store.delete_workspace(other).await.unwrap();
    grown("a workspace was inserted and deleted", 2).await;
}

pub(crate) async fn a_snapshot_holds_all_rows(store: &Store) {
    let workspace = default_workspace(store).await;
    let other = rows::other_workspace(store).await;
    let (here, there) = (bound(store, workspace).await, bound(store, other).await);
    let root = rows::key(None, KeyKind::Root, None, "root");
    store.insert_key(&root).await.unwrap();
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.generation, store.generation().await.unwrap());
    assert_eq!(snapshot.workspaces.len(), 2);
    assert_eq!(snapshot.keys, [root]);
    assert_eq!(snapshot.roles, [here.role, there.role]);
    assert_eq!(snapshot.bots, [here.bot, there.bot]);
    assert_eq!(snapshot.resources, [here.resource, there.resource]);
    assert_eq!(snapshot.credentials, [here.credential, there.credential]);
    assert_eq!(snapshot.bindings, [here.binding, there.binding]);
}

/// Inserts roles and bots while taking snapshots. Each snapshot must match its generation.
pub(crate) async fn a_snapshot_is_consistent(store: &Store) {
    let workspace = default_workspace(store).await;
    let start = store.generation().await.unwrap();
    let writer = store.clone();
    let writing = tokio::spawn(async move {
        for number in 0..40 {
            writer.insert_role(&rows::role(workspace, &number.to_string())).await.unwrap();
            writer.insert_bot(&rows::bot(workspace, &number.to_string())).await.unwrap();
        }
    });
    while !writing.is_finished() {
        let snapshot = store.snapshot().await.unwrap();
        let rows = i64::try_from(snapshot.roles.len() + snapshot.bots.len()).unwrap();
        assert_eq!(snapshot.generation - start, rows);
    }
    writing.await.unwrap();
}

/// Drops the futures of changes at every await point. Each change must be either complete, with its generation, or
/// absent.
pub(crate) async fn a_cancelled_change_is_atomic(store: &Store) {
    let workspace = default_workspace(store).await;
    let start = store.generation().await.unwrap();
    for polls in 0..40 {
        let row = rows::bot(workspace, &polls.to_string());
        let mut change = Box::pin(store.insert_bot(&row));
        let mut left = polls;
        std::future::poll_fn(|context| {
            let done = change.as_mut().poll(context).is_ready();
            left -= 1;
            if done || left < 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
    store.insert_bot(&rows::bot(workspace, "after all of them")).await.unwrap();
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.generation - start, i64::try_from(snapshot.bots.len()).unwrap());
}

pub(crate) async fn of_two_updates_of_the_same_version_one_fails(store: &Store) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    let later = NOW.plus_ms(1);
    let (mut role, mut bot, mut resource) = (there.role.clone(), there.bot.clone(), there.resource.clone());
    let mut binding = there.binding.clone();
    (role.updated_at, bot.updated_at, resource.updated_at, binding.updated_at) = (later, later, later, later);
    role.allowed_operations = Some(json!([]));
    for wins in [true, false] {
        assert_eq!(store.update_role(&role, NOW).await.unwrap(), wins);
        assert_eq!(store.update_bot(&bot, NOW).await.unwrap(), wins);
        assert_eq!(store.update_resource(&resource, NOW).await.unwrap(), wins);
        assert_eq!(store.update_binding(&binding, NOW).await.unwrap(), wins);
        // The stale update in the second round must not overwrite the first update.
        role.allowed_operations = Some(json!(["*"]));
    }
    let stands = store.role(workspace, role.id).await.unwrap().unwrap();
    assert_eq!(stands.allowed_operations, Some(json!([])));
}

pub(crate) async fn rows_are_written_together_or_not_at_all(store: &Store) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    let (bot, mut role) = (rows::bot(workspace, "another"), there.role.clone());
    (role.allowed_operations, role.updated_at) = (Some(json!([])), NOW.plus_ms(1));
    let write = |row: ConfigurationRow, before| RowWrite { row, before };
    let both = |before| {
        let bot = write(ConfigurationRow::Bot(bot.clone()), None);
        [bot, write(ConfigurationRow::Role(role.clone()), Some(before))]
    };
    let stale = store.write_rows(workspace, &both(NOW.plus_ms(-1))).await;
    assert!(matches!(stale, Err(StoreError::ChangedMeanwhile)), "{stale:?}");
    assert_eq!(store.bot(workspace, bot.id).await.unwrap(), None, "nothing of it was written");

    store.write_rows(workspace, &both(NOW)).await.unwrap();
    assert_eq!(store.bot(workspace, bot.id).await.unwrap().as_ref(), Some(&bot));
    assert_eq!(store.role(workspace, role.id).await.unwrap().as_ref(), Some(&role));
    assert!(store.verify_rows().await.unwrap().problems().is_empty());

    let scope = store.scope_rows(workspace.into()).await;
    let stored = scope.unwrap().into_iter().find(|row| row.name.key == role.id.to_string()).unwrap();
    assert_eq!(stored.digest, Some(ConfigurationRow::Role(role.clone()).digest().unwrap()));
    role.name = "a\0b".to_owned();
    assert!(matches!(ConfigurationRow::Role(role).digest(), Err(StoreError::Nul)));
}
