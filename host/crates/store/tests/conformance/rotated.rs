//! Tests of row key rotation: during and after a rotation, only the rows that were valid before the rotation are valid.

use std::sync::Arc;

use monstrum_store::{KeyKind, Scope, SealsRows, Store, StoreError};

use crate::authentic::{Intruder, problems, refused, unverified};
use crate::row_key::{TestKey, record};
use crate::rows::{self, bound, default_workspace, other_workspace};

/// Returns the store as a new process would open it with these versions of the row key.
fn under(store: &Store, newest: u32, older: Option<u32>) -> Store {
    let key = |version| Arc::new(TestKey(version)) as Arc<dyn SealsRows>;
    store.clone().with_row_keys(key(newest), older.map(key))
}

/// After each scope is rotated, a store that has both keys accepts all rows, and another process can continue the
/// rotation.
pub(crate) async fn a_rotation_of_the_row_key_can_stop_after_every_scope(store: &Store, _: &mut impl Intruder) {
    let here = bound(store, default_workspace(store).await).await;
    bound(store, other_workspace(store).await).await;
    let sandbox = crate::sandboxes::sandbox(&here.bot, "a");
    assert!(store.insert_sandbox(&sandbox).await.unwrap());
    assert!(store.insert_instance_key(&record(2)).await.unwrap());
    let (mut total, scopes) = (store.sealed_generations().await.unwrap(), store.scopes().await.unwrap());
    assert_eq!(scopes.len(), 3);
    for scope in &scopes {
        let rotating = under(store, 2, Some(1));
        assert_eq!((rotating.row_key_version(), rotating.newest_row_key_version()), (Some(1), Some(2)));
        assert_ne!(rotating.rotate_scope(*scope, &|_| ()).await.unwrap(), 0, "{scope}");
        assert_eq!(problems(&rotating).await, Vec::<String>::new(), "no problems after the rotation of {scope}");
        let now = rotating.sealed_generations().await.unwrap();
        assert_eq!(now, total, "{scope}: otherwise an older state could be restored until the next signed head");
        // An operator may insert a row during the rotation, for example with `key recover`.
        rotating.insert_key(&rows::key(None, KeyKind::Root, None, &format!("at {scope}"))).await.unwrap();
        assert_eq!(problems(&rotating).await, Vec::<String>::new(), "no problems after a change");
        total = rotating.sealed_generations().await.unwrap();
    }
    let rotating = under(store, 2, Some(1));
    for scope in &scopes {
        assert_eq!(rotating.rotate_scope(*scope, &|_| ()).await.unwrap(), 0, "{scope} is rotated");
    }
    assert_eq!(problems(&under(store, 2, None)).await.len(), 1, "the sandbox is not rotated yet");
    assert_eq!(rotating.rotate_uncounted_rows(&|_| ()).await.unwrap(), 1);
    assert_eq!(rotating.rotate_uncounted_rows(&|_| ()).await.unwrap(), 0);
    assert_eq!(problems(&under(store, 2, None)).await, Vec::<String>::new());
    rotating.retire_row_keys("rows").await.unwrap();
    assert_eq!(rotating.row_key_version(), Some(2));
    assert_eq!(store.instance_keys("rows").await.unwrap(), [record(2)]);
    assert_eq!(problems(&rotating).await, Vec::<String>::new());
    assert_eq!(under(store, 1, None).snapshot().await.unwrap().keys, [], "the older key validates nothing");
    assert_eq!(rotating.sandbox(sandbox.workspace_id, sandbox.id).await.unwrap(), Some(sandbox));
}

/// After a rotation, a row that is valid only under the retired key comes from an attacker who has that key.
pub(crate) async fn rows_under_a_retired_row_key_are_rejected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let key = rows::key(Some(workspace), KeyKind::Admin, None, "theirs");
    store.insert_key(&key).await.unwrap();
    store.insert_role(&rows::role(workspace, "r")).await.unwrap();
    for table in ["api_keys", "policy_seals", "roles"] {
        intruder.run(format!("create table kept_{table} as select * from {table}")).await;
    }
    store.delete_key(Some(workspace), key.id).await.unwrap();
    store.insert_instance_key(&record(2)).await.unwrap();
    let rotating = under(store, 2, Some(1));
    for scope in store.scopes().await.unwrap() {
        rotating.rotate_scope(scope, &|_| ()).await.unwrap();
    }
    rotating.retire_row_keys("rows").await.unwrap();

    intruder.run("insert into api_keys select * from kept_api_keys".to_owned()).await;
    for store in [&rotating, &under(store, 2, None)] {
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!(refused(&snapshot), [format!("api_keys/{}", key.id)]);
        assert_eq!((unverified(&snapshot), snapshot.keys), (Vec::new(), Vec::new()));
    }
    for table in ["policy_seals", "roles"] {
        intruder.run(format!("delete from {table}")).await;
        intruder.run(format!("insert into {table} select * from kept_{table}")).await;
    }
    let snapshot = under(store, 2, None).snapshot().await.unwrap();
    let faults = unverified(&snapshot);
    assert!(
        faults.len() == 2 && faults.iter().all(|found| found.ends_with("its seal cannot be decrypted")),
        "{faults:?}"
    );
    assert!(snapshot.roles.is_empty());
}

/// A rotation would give invalid rows in the scope a valid seal, so it must fail.
pub(crate) async fn an_unverified_scope_is_not_rotated(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let (here, there) = (bound(store, workspace).await, bound(store, other_workspace(store).await).await);
    intruder.run(format!("delete from bot_resources where id = '{}'", here.binding.id)).await;
    store.insert_instance_key(&record(2)).await.unwrap();
    let rotating = under(store, 2, Some(1));
    let refused = rotating.rotate_scope(Scope::Workspace(workspace), &|_| ()).await;
    assert!(
        matches!(&refused, Err(StoreError::Unverified { scope, .. }) if *scope == workspace.to_string()),
        "{refused:?}"
    );
    assert_eq!(rotating.rotate_scope(Scope::Workspace(there.role.workspace_id), &|_| ()).await.unwrap(), 5);
    let rows = under(store, 1, None).scope_rows(Scope::Workspace(workspace)).await.unwrap();
    assert!(rows.len() == 4 && rows.iter().all(|row| row.is_valid), "no row of the scope was written");
    intruder.run("update workspaces set mac = null where name = 'other'".to_owned()).await;
    let refused = rotating.rotate_scope(Scope::Instance, &|_| ()).await;
    assert!(matches!(refused, Err(StoreError::Unverified { .. })), "{refused:?}");
}
