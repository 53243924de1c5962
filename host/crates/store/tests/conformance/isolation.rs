//! Tests of the isolation between workspaces.

use monstrum_store::{BindingRow, KeyKind, KeyRow, KeyUse, Page, Store, StoreError};

use crate::rows::{self, bound, default_workspace, other_workspace};

pub(crate) async fn rows_of_other_workspaces_are_not_found(store: &Store) {
    let theirs = default_workspace(store).await;
    let ours = other_workspace(store).await;
    let there = bound(store, theirs).await;
    let key = rows::key(Some(theirs), KeyKind::Admin, None, "k");
    store.insert_key(&key).await.unwrap();

    assert_eq!(store.role(ours, there.role.id).await.unwrap(), None);
    assert_eq!(store.bot(ours, there.bot.id).await.unwrap(), None);
    assert_eq!(store.resource(ours, there.resource.id).await.unwrap(), None);
    assert_eq!(store.credential(ours, there.resource.id).await.unwrap(), None);
    assert_eq!(store.binding(ours, there.bot.id, there.binding.id).await.unwrap(), None);
    assert_eq!(store.key(Some(ours), key.id).await.unwrap(), None);
    assert_eq!(store.key(None, key.id).await.unwrap(), None);

    assert!(store.roles(ours, &Page::first(50)).await.unwrap().items.is_empty());
    assert!(store.bots(ours, &Page::first(50)).await.unwrap().items.is_empty());
    assert!(store.resources(ours, &Page::first(50)).await.unwrap().items.is_empty());
    assert!(store.credentials(ours, &Page::first(50)).await.unwrap().items.is_empty());
    assert!(store.bindings(ours, there.bot.id, &Page::first(50)).await.unwrap().items.is_empty());
    assert!(store.keys(Some(ours), &Page::first(50)).await.unwrap().items.is_empty());
}

pub(crate) async fn rows_of_other_workspaces_are_not_changed(store: &Store) {
    let theirs = default_workspace(store).await;
    let ours = other_workspace(store).await;
    let there = bound(store, theirs).await;
    let key = rows::key(Some(theirs), KeyKind::Admin, None, "k");
    store.insert_key(&key).await.unwrap();
    let before = store.snapshot().await.unwrap();

    let (mut role, mut bot, mut resource) = (there.role.clone(), there.bot.clone(), there.resource.clone());
    let (mut credential, mut binding) = (there.credential.clone(), there.binding.clone());
    (role.workspace_id, bot.workspace_id, resource.workspace_id) = (ours, ours, ours);
    (credential.workspace_id, binding.workspace_id) = (ours, ours);
    assert!(!store.update_role(&role, crate::rows::NOW).await.unwrap());
    assert!(!store.update_bot(&bot, crate::rows::NOW).await.unwrap());
    assert!(!store.update_resource(&resource, crate::rows::NOW).await.unwrap());
    assert!(!store.update_credential(&credential, &credential.sealed, crate::rows::NOW).await.unwrap());
    assert!(!store.update_binding(&binding, crate::rows::NOW).await.unwrap());
    let as_ours = KeyRow { workspace_id: Some(ours), ..key.clone() };
    assert!(!store.rotate_key(&as_ours, "mk_stolen", "stolen").await.unwrap());
    for workspace_id in [Some(ours), None] {
        store.save_key_uses(&[KeyUse { workspace_id, id: key.id, at: rows::NOW }]).await.unwrap();
    }

    assert!(!store.delete_binding(ours, there.bot.id, there.binding.id).await.unwrap());
    assert!(!store.delete_credential(ours, there.resource.id).await.unwrap());
    assert!(!store.delete_resource(ours, there.resource.id).await.unwrap());
    assert!(!store.delete_role(ours, there.role.id).await.unwrap());
    assert!(!store.delete_bot(ours, there.bot.id).await.unwrap());
    assert!(!store.delete_key(Some(ours), key.id).await.unwrap());
    assert!(!store.delete_key(None, key.id).await.unwrap());

    let after = store.snapshot().await.unwrap();
    assert_eq!(after.generation, before.generation);
    assert_eq!(after.keys, before.keys);
    assert_eq!(after.bindings, before.bindings);
    assert_eq!(after.credentials, before.credentials);
}

pub(crate) async fn rows_of_different_workspaces_cannot_be_linked(store: &Store) {
    let theirs = default_workspace(store).await;
    let ours = other_workspace(store).await;
    let (there, here) = (bound(store, theirs).await, bound(store, ours).await);
    store.delete_binding(ours, here.bot.id, here.binding.id).await.unwrap();

    let unknown = |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::UnknownReference)));
    let to_their_resource = rows::binding(&here.bot, &there.resource, None);
    unknown(store.insert_binding(&to_their_resource).await);
    unknown(store.insert_binding(&rows::binding(&here.bot, &here.resource, Some(there.role.id))).await);
    unknown(store.insert_binding(&BindingRow { workspace_id: theirs, ..to_their_resource }).await);
    unknown(store.insert_key(&rows::key(Some(ours), KeyKind::Bot, Some(there.bot.id), "k")).await);

    let mut credential = rows::credential(&there.resource);
    credential.workspace_id = ours;
    unknown(store.put_credential(&credential).await);
    assert_eq!(store.credential(theirs, there.resource.id).await.unwrap(), Some(there.credential));

    let mut ours_then_theirs = rows::binding(&here.bot, &here.resource, None);
    store.insert_binding(&ours_then_theirs).await.unwrap();
    ours_then_theirs.resource_id = there.resource.id;
    unknown(store.update_binding(&ours_then_theirs, crate::rows::NOW).await.map(drop));
    unknown(store.insert_bot(&rows::bot(monstrum_types::WorkspaceId::new(), "b")).await);
}

pub(crate) async fn root_keys_belong_to_no_workspace(store: &Store) {
    let workspace = default_workspace(store).await;
    let root = rows::key(None, KeyKind::Root, None, "root");
    store.insert_key(&root).await.unwrap();
    assert_eq!(store.key(Some(workspace), root.id).await.unwrap(), None);
    assert!(store.keys(Some(workspace), &Page::first(50)).await.unwrap().items.is_empty());
    assert!(!store.delete_key(Some(workspace), root.id).await.unwrap());
    let as_theirs = KeyRow { workspace_id: Some(workspace), ..root.clone() };
    assert!(!store.rotate_key(&as_theirs, "mk_stolen", "stolen").await.unwrap());
    store.save_key_uses(&[KeyUse { workspace_id: Some(workspace), id: root.id, at: rows::NOW }]).await.unwrap();
    assert_eq!(store.keys(None, &Page::first(50)).await.unwrap().items, [root]);

    // The database rejects keys whose kind does not match their workspace and bot.
    assert!(store.insert_key(&rows::key(Some(workspace), KeyKind::Root, None, "a")).await.is_err());
    assert!(store.insert_key(&rows::key(None, KeyKind::Admin, None, "b")).await.is_err());
    assert!(store.insert_key(&rows::key(Some(workspace), KeyKind::Bot, None, "c")).await.is_err());
}

pub(crate) async fn keys_of_agents_belong_to_a_resource(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let there = bound(store, theirs).await;
    let (first, second) = (rows::resource(ours, "first"), rows::resource(ours, "second"));
    store.insert_resource(&first).await.unwrap();
    store.insert_resource(&second).await.unwrap();
    let key = |kind, resource_id, name| KeyRow { resource_id, ..rows::key(Some(ours), kind, None, name) };
    let (of_first, of_second) = (key(KeyKind::Agent, Some(first.id), "a"), key(KeyKind::Agent, Some(second.id), "b"));
    store.insert_key(&of_first).await.unwrap();
    store.insert_key(&of_second).await.unwrap();
    assert_eq!(store.key(Some(ours), of_first.id).await.unwrap(), Some(of_first.clone()));

    // The database rejects keys whose kind does not match their resource, and resources of other workspaces.
    assert!(store.insert_key(&key(KeyKind::Agent, None, "c")).await.is_err());
    assert!(store.insert_key(&key(KeyKind::Admin, Some(first.id), "d")).await.is_err());
    assert!(store.insert_key(&key(KeyKind::Agent, Some(there.resource.id), "e")).await.is_err());

    assert!(store.delete_resource(ours, first.id).await.unwrap());
    assert_eq!(store.key(Some(ours), of_first.id).await.unwrap(), None);
    let kept = store.snapshot().await.unwrap();
    assert_eq!(kept.keys, [of_second]);
    assert!(kept.unverified.is_empty(), "the seal counts the deleted key");
}
