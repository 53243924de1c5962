//! Tests of incremental policy reads: only changed rows are read, and they are accepted only if they match the seals.

use monstrum_store::{BindingRow, KeyKind, PolicyChanges, RoleRow, Store, VerifiedPolicy};
use monstrum_types::{UtcMillis, WorkspaceId};
use serde_json::json;

use crate::authentic::Intruder;
use crate::rows::{self, NOW, bound, default_workspace, other_workspace};

async fn verified(store: &Store) -> VerifiedPolicy {
    store.snapshot().await.unwrap().verified
}

/// Returns the changes since `before`, which must match the seals.
async fn changes(store: &Store, before: &VerifiedPolicy) -> (PolicyChanges, VerifiedPolicy) {
    store.changes_since(before).await.unwrap().expect("the changes match the seals")
}

async fn is_refused(store: &Store, before: &VerifiedPolicy) -> bool {
    store.changes_since(before).await.unwrap().is_none()
}

fn restricted(row: &RoleRow, at: UtcMillis) -> RoleRow {
    RoleRow { allowed_operations: Some(json!([])), updated_at: at, ..row.clone() }
}

pub(crate) async fn only_changed_rows_are_read(store: &Store) {
    let workspace = default_workspace(store).await;
    let here = bound(store, workspace).await;
    let before = verified(store).await;
    let (nothing, before) = changes(store, &before).await;
    assert_eq!(nothing.generation, store.generation().await.unwrap());
    assert!(nothing.roles.is_empty() && nothing.bindings.is_empty() && nothing.scope_generations.is_empty());

    let role = restricted(&here.role, NOW.plus_ms(1));
    assert!(store.update_role(&role, here.role.updated_at).await.unwrap());
    let key = rows::key(None, KeyKind::Root, None, "root");
    store.insert_key(&key).await.unwrap();
    assert!(store.delete_binding(workspace, here.bot.id, here.binding.id).await.unwrap());
    let (changed, after) = changes(store, &before).await;
    assert_eq!(changed.roles.into_iter().collect::<Vec<_>>(), [(role.id, Some(role))]);
    assert_eq!(changed.keys.into_iter().collect::<Vec<_>>(), [(key.id, Some(key))]);
    assert_eq!(changed.bindings.into_iter().collect::<Vec<_>>(), [(here.binding.id, None)]);
    assert!(changed.bots.is_empty() && changed.resources.is_empty() && changed.credentials.is_empty());
    let whole = store.snapshot().await.unwrap();
    assert_eq!(changed.generation, whole.generation);
    assert_eq!(changed.generations_total, whole.generations_total);
    for (scope, generation) in changed.scope_generations {
        assert_eq!(whole.scope_generations.get(&scope), Some(&generation));
    }
    let (nothing, _) = changes(store, &after).await;
    assert!(nothing.roles.is_empty() && nothing.keys.is_empty(), "the later state already contains these changes");
}

/// A changed resource is returned with its credential, because the caller may not have read the credential yet.
pub(crate) async fn a_changed_resource_comes_with_its_credential(store: &Store) {
    let workspace = default_workspace(store).await;
    let here = bound(store, workspace).await;
    let before = verified(store).await;
    let mut resource = here.resource.clone();
    (resource.name, resource.updated_at) = ("renamed".to_owned(), NOW.plus_ms(1));
    assert!(store.update_resource(&resource, here.resource.updated_at).await.unwrap());
    let (changed, before) = changes(store, &before).await;
    assert_eq!(changed.resources[&resource.id].as_ref(), Some(&resource));
    assert_eq!(changed.credentials[&here.credential.id].as_ref(), Some(&here.credential));
    // A refreshed token is not a change of the policy, but a rejected credential is.
    let mut tokens = here.credential.clone();
    (tokens.sealed, tokens.updated_at) = ("fresh".to_owned(), NOW.plus_ms(2));
    assert!(store.put_refreshed(&tokens, &here.credential.sealed).await.unwrap());
    assert!(changes(store, &before).await.0.credentials.is_empty());
    let mut refused = tokens.clone();
    refused.status = "needs_authorization".to_owned();
    assert!(store.put_refused(&refused, &tokens.sealed).await.unwrap());
    let (changed, before) = changes(store, &before).await;
    assert_eq!(changed.credentials[&refused.id].as_ref(), Some(&refused));
    assert!(store.delete_credential(workspace, resource.id).await.unwrap());
    assert_eq!(changes(store, &before).await.0.credentials[&refused.id], None);
}

/// Changes of rarely changed tables, and too many changes to read one by one, make the host read everything.
pub(crate) async fn other_changes_are_read_with_everything(store: &Store) {
    let workspace = default_workspace(store).await;
    let before = verified(store).await;
    other_workspace(store).await;
    assert!(is_refused(store, &before).await, "a changed workspace makes the host read all rows");
    let before = verified(store).await;
    let (mut bots, mut resources) = (Vec::new(), Vec::new());
    for number in 0..45 {
        let (bot, resource) =
            (rows::bot(workspace, &format!("b{number}")), rows::resource(workspace, &format!("g{number}")));
        store.insert_bot(&bot).await.unwrap();
        store.insert_resource(&resource).await.unwrap();
        bots.push(bot);
        resources.push(resource);
    }
    let pairs = bots.iter().flat_map(|bot| resources.iter().map(move |resource| (bot, resource)));
    let bindings: Vec<BindingRow> = pairs.map(|(bot, resource)| rows::binding(bot, resource, None)).collect();
    store.insert_bindings(workspace, &bindings[..1]).await.unwrap();
    let (changed, _) = changes(store, &before).await;
    assert_eq!((changed.bots.len(), changed.resources.len(), changed.bindings.len()), (45, 45, 1));
    store.insert_bindings(workspace, &bindings[1..]).await.unwrap();
    assert!(is_refused(store, &before).await, "the host reads at most 2 000 changed rows");
    let before = verified(store).await;
    changes(store, &before).await;
    // A host must read everything if the changes were forgotten before it has read them.
    store.insert_role(&rows::role(workspace, "r")).await.unwrap();
    let generation = store.generation().await.unwrap();
    assert_eq!(store.forget_changes(generation).await.unwrap(), 1 + 1 + 90 + 1 + 1 + 1);
    assert!(is_refused(store, &before).await);
}

pub(crate) async fn changes_that_are_not_listed_are_noticed(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let here = bound(store, workspace).await;
    let before = verified(store).await;
    let role = restricted(&here.role, NOW.plus_ms(1));
    assert!(store.update_role(&role, here.role.updated_at).await.unwrap());
    // If the list is empty, the generation of the change is missing.
    intruder.run("create table kept as select * from policy_changes".to_owned()).await;
    intruder.run("delete from policy_changes".to_owned()).await;
    assert!(is_refused(store, &before).await);
    // If the list names another row instead of the changed row, the sum does not match the seal.
    intruder.run("insert into policy_changes select * from kept".to_owned()).await;
    changes(store, &before).await;
    let other = format!("update policy_changes set kind = 'bots', id = '{}' where id = '{}'", here.bot.id, role.id);
    intruder.run(other).await;
    assert!(is_refused(store, &before).await);
    // The list of changes may name a wrong scope, or a kind that does not exist.
    intruder.run(format!("update policy_changes set kind = 'roles', id = '{}', scope = 'instance'", role.id)).await;
    assert!(is_refused(store, &before).await);
    intruder.run(format!("update policy_changes set scope = '{workspace}', kind = 'rolls'")).await;
    assert!(is_refused(store, &before).await);
    // The list names an unchanged row of another scope instead. This store knows a later seal of the changed scope.
    let other = other_workspace(store).await;
    let there = bound(store, other).await;
    let before = verified(store).await;
    assert!(store.update_role(&here.role, role.updated_at).await.unwrap());
    let (_, _) = changes(store, &before).await;
    let unchanged = format!(
        "update policy_changes set kind = 'bots', id = '{}', scope = '{other}' where number = (select generation from settings)",
        there.bot.id
    );
    intruder.run(unchanged).await;
    assert!(is_refused(store, &before).await);
    let roles = store.snapshot().await.unwrap().roles;
    assert!(roles.contains(&here.role), "all rows together match the seal");
}

/// After a role is restricted, another program restores the older, less restricted row with its valid MAC and adds it
/// to the list.
pub(crate) async fn an_older_row_is_not_read_as_a_change(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let here = bound(store, workspace).await;
    let before = verified(store).await;
    intruder.run("create table old_roles as select * from roles".to_owned()).await;
    let role = restricted(&here.role, NOW.plus_ms(1));
    assert!(store.update_role(&role, here.role.updated_at).await.unwrap());
    let (_, later) = changes(store, &before).await;
    let columns = "allowed_operations = (select allowed_operations from old_roles), \
                   updated_at = (select updated_at from old_roles), mac = (select mac from old_roles)";
    intruder.run(format!("update roles set {columns}")).await;
    assert!(is_refused(store, &before).await, "the older row is refused, given the state before the restriction");
    intruder.run("update settings set generation = generation + 1".to_owned()).await;
    intruder
        .run(format!(
            "insert into policy_changes select g.generation, 0, '{workspace}', 0, 'roles', '{}' from settings g",
            role.id
        ))
        .await;
    assert!(is_refused(store, &later).await, "the older row is refused, given the state after the restriction");
    let whole = store.snapshot().await.unwrap();
    assert_eq!(crate::authentic::unverified(&whole).len(), 1);
    assert!(is_refused(store, &later).await, "all changes are refused while a scope is unverified");
}

/// After a credential is deleted, another program restores it before its resource changes.
pub(crate) async fn a_restored_credential_is_not_read_with_its_resource(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let here = bound(store, workspace).await;
    intruder.run("create table old_credentials as select * from credentials".to_owned()).await;
    assert!(store.delete_credential(workspace, here.resource.id).await.unwrap());
    let before = verified(store).await;
    let mut resource = here.resource.clone();
    (resource.name, resource.updated_at) = ("renamed".to_owned(), NOW.plus_ms(1));
    assert!(store.update_resource(&resource, here.resource.updated_at).await.unwrap());
    changes(store, &before).await;
    intruder.run("insert into credentials select * from old_credentials".to_owned()).await;
    assert!(is_refused(store, &before).await);
}

/// The list of changes names a forged row, which has no valid MAC.
pub(crate) async fn a_forged_row_is_not_read_as_a_change(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let here = bound(store, workspace).await;
    let before = verified(store).await;
    intruder.run("update roles set allowed_operations = '[\"*\"]'".to_owned()).await;
    intruder.run("update settings set generation = generation + 1".to_owned()).await;
    intruder
        .run(format!(
            "insert into policy_changes select g.generation, 0, '{workspace}', 0, 'roles', '{}' from settings g",
            here.role.id
        ))
        .await;
    assert!(is_refused(store, &before).await);
}

/// A decreased generation in `settings` does not restore an older state.
pub(crate) async fn an_older_generation_is_read_with_everything(store: &Store, intruder: &mut impl Intruder) {
    let workspace: WorkspaceId = default_workspace(store).await;
    bound(store, workspace).await;
    let before = verified(store).await;
    intruder.run("update settings set generation = generation - 1".to_owned()).await;
    assert!(is_refused(store, &before).await);
}
