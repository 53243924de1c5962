//! Tests of authenticated rows: rows that another program writes grant no permissions and are reported.

use monstrum_store::{
    BindingRow, BotRow, KeyKind, Page, ResourceRow, RoleRow, SandboxFilter, SandboxRow, Scope, Store, StoreError, Table,
};
use monstrum_types::{SandboxInstanceId, WorkspaceId};
use serde_json::json;

use crate::rows::{self, NOW, bound, default_workspace, other_workspace};
use crate::sandboxes;

pub(crate) use crate::agent_hosts::forged_agents_are_ignored;
pub(crate) use crate::approvals::{a_forged_grant_is_ignored, a_restored_approval_permits_nothing};
pub(crate) use crate::budgets::an_edited_or_restored_budget_is_rejected;
pub(crate) use crate::console::forged_sessions_and_tickets_log_nobody_in;
pub(crate) use crate::feed::{
    a_forged_row_is_not_read_as_a_change, a_restored_credential_is_not_read_with_its_resource,
    an_older_generation_is_read_with_everything, an_older_row_is_not_read_as_a_change,
    changes_that_are_not_listed_are_noticed,
};
pub(crate) use crate::resource_tools::{
    a_deleted_first_discovery_is_detected, an_edited_or_restored_tool_serves_nothing,
};
pub(crate) use crate::rotated::{
    a_rotation_of_the_row_key_can_stop_after_every_scope, an_unverified_scope_is_not_rotated,
    rows_under_a_retired_row_key_are_rejected,
};
pub(crate) use crate::sandboxes::a_sandbox_without_its_labels_is_rejected;
pub(crate) use crate::schedules::an_edited_or_restored_schedule_is_rejected;
pub(crate) use crate::step_approvals::an_edited_question_is_rejected;
pub(crate) use crate::subscriptions::an_edited_or_restored_subscription_is_rejected;
pub(crate) use crate::usage::unreadable_reservations_do_not_hide_others;
pub(crate) use crate::webhooks::an_edited_or_restored_webhook_is_rejected;
pub(crate) use crate::workflows::an_edited_or_restored_workflow_is_rejected;

/// Another program with write access to the database. Its statements must be valid in both SQLite and PostgreSQL.
pub(crate) trait Intruder {
    async fn run(&mut self, sql: String);
    async fn columns(&mut self) -> Vec<String>;
}

/// Returns the unverified scopes of a snapshot, with the reasons.
pub(crate) fn unverified(rows: &monstrum_store::PolicyRows) -> Vec<String> {
    rows.unverified.iter().map(|found| format!("{}: {}", found.scope, found.why)).collect()
}

pub(crate) fn refused(rows: &monstrum_store::PolicyRows) -> Vec<String> {
    rows.refused.iter().map(ToString::to_string).collect()
}

pub(crate) async fn a_forged_row_is_ignored(store: &Store, intruder: &mut impl Intruder) {
    let key = rows::key(None, KeyKind::Root, None, "ours");
    store.insert_key(&key).await.unwrap();
    let forged = rows::key(None, KeyKind::Root, None, "forged");
    intruder
        .run(format!(
            "insert into api_keys (id, workspace_id, name, kind, bot_id, prefix, hash, created_at, mac) \
             select '{}', null, 'forged', 'root', null, prefix, 'forged', created_at, mac from api_keys",
            forged.id
        ))
        .await;
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.keys, std::slice::from_ref(&key));
    assert_eq!(refused(&snapshot), [format!("api_keys/{}", forged.id)]);
    assert_eq!(unverified(&snapshot), Vec::<String>::new(), "an additional row has no other effect");
    assert_eq!(store.key(None, forged.id).await.unwrap(), None);
    assert_eq!(store.keys(None, &Page::first(9)).await.unwrap().items, [key]);
    assert!(store.delete_key(None, forged.id).await.unwrap(), "a forged key can be deleted");
    assert_eq!(refused(&store.snapshot().await.unwrap()), Vec::<String>::new());
}

/// A page that contains only forged rows does not end a list if an authentic row follows.
pub(crate) async fn forged_rows_do_not_end_a_list(store: &Store, intruder: &mut impl Intruder) {
    const FORGED: usize = 25;
    const PAGE: u32 = 4;
    let bot = BotRow { use_agent_sandbox: false, ..rows::bot(default_workspace(store).await, "b") };
    store.insert_bot(&bot).await.unwrap();
    // Later ids sort after earlier ids, so the forged rows precede the authentic row.
    let forged: Vec<_> = (0..FORGED).map(|_| SandboxInstanceId::new()).collect();
    let honest = sandboxes::sandbox(&bot, "honest");
    assert!(forged.iter().all(|id| *id < honest.id));
    assert!(store.insert_sandbox(&honest).await.unwrap());
    let columns = "workspace_id, bot_id, provider, app_id, user_id, node, status, last_active_at, created_at, attempts, \
                   network, labels, mac";
    for id in &forged {
        intruder
            .run(format!(
                "insert into sandbox_instances (id, sandbox_id, chat_id, next_attempt_at, {columns}) \
                 select '{id}', '{id}', '{id}', 0, {columns} from sandbox_instances where id = '{}'",
                honest.id
            ))
            .await;
    }
    let found = |rows: Vec<SandboxRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
    let of_node = store.sandboxes_of_node("node-1", None, PAGE).await.unwrap();
    assert_eq!(found(of_node), [honest.id]);
    assert_eq!(found(store.sandboxes_of_node("node-1", Some(honest.id), PAGE).await.unwrap()), []);
    let idle = store.idle_sandboxes("node-1", NOW, NOW, None, PAGE).await.unwrap();
    assert_eq!(found(idle), [honest.id]);
    let off = store.sandboxes_switched_off("node-1", None, PAGE).await.unwrap();
    assert_eq!(found(off), [honest.id]);
    let open = store.sandboxes_with_network("node-1", "none", None, PAGE).await.unwrap();
    assert_eq!(found(open), [honest.id]);
    let mut listed = Vec::new();
    let mut page = Page::first(PAGE);
    loop {
        let answer = store.sandboxes(bot.workspace_id, &SandboxFilter::default(), &page).await.unwrap();
        listed.extend(found(answer.items));
        page.cursor = answer.next_cursor;
        if page.cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, [honest.id], "an empty page has a cursor while there are more rows");
    // Due deletions are sorted with the longest overdue first, and the forged rows are overdue for longer.
    let of_app = sandboxes::of_app(Some(bot.id), None);
    let deleted = store.delete_conversations(bot.workspace_id, of_app).await.unwrap();
    assert_eq!(deleted, Some(1 + FORGED as u64));
    let due = store.due_sandbox_deletions("node-1", NOW.plus_ms(1 << 40), PAGE).await.unwrap();
    assert_eq!(found(due), [honest.id]);
}

/// A row without optional columns has the MAC of a row that was written before these columns existed. Such a row is not
/// authentic with a value in an optional column, and a row with a value is not authentic without it.
pub(crate) async fn edited_gates_and_labels_are_rejected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let (gated, bare) = (bound(store, workspace).await, rows::bot(workspace, "bare"));
    store.insert_bot(&bare).await.unwrap();
    let (gates, labels) = (Some(json!([{"action": "deny"}])), Some(json!(["private"])));
    let role = RoleRow { gates: gates.clone(), ..gated.role.clone() };
    let bot = BotRow { gates: gates.clone(), ..gated.bot.clone() };
    let resource = ResourceRow { labels: labels.clone(), ..gated.resource.clone() };
    let binding = BindingRow { gates: gates.clone(), ..gated.binding.clone() };
    assert!(store.update_role(&role, NOW).await.unwrap() && store.update_bot(&bot, NOW).await.unwrap());
    assert!(store.update_resource(&resource, NOW).await.unwrap() && store.update_binding(&binding, NOW).await.unwrap());
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((&snapshot.roles, &snapshot.resources), (&vec![role], &vec![resource]));
    assert_eq!((&snapshot.bots, &snapshot.bindings), (&vec![bot, bare.clone()], &vec![binding]));
    for (table, column, id, stored) in [
        ("roles", "gates", gated.role.id.to_string(), gates.as_ref()),
        ("bots", "gates", gated.bot.id.to_string(), gates.as_ref()),
        ("resources", "labels", gated.resource.id.to_string(), labels.as_ref()),
        ("bot_resources", "gates", gated.binding.id.to_string(), gates.as_ref()),
        ("bots", "gates", bare.id.to_string(), None),
    ] {
        let sql = |value: Option<&str>| value.map_or("null".to_owned(), |value| format!("'{value}'"));
        let stored = stored.map(ToString::to_string);
        for edited in [None, Some("[]"), Some(""), Some("null"), Some(r#"[{"action":"ask"}]"#)] {
            if edited == stored.as_deref() {
                continue;
            }
            let edit = format!("update {table} set {column} = {} where id = '{id}'", sql(edited));
            intruder.run(edit.clone()).await;
            let snapshot = store.snapshot().await.unwrap();
            assert_eq!(refused(&snapshot), [format!("{table}/{id}")], "{edit}");
            assert_eq!(snapshot.unverified.len(), 1, "{edit}");
            intruder.run(format!("update {table} set {column} = {} where id = '{id}'", sql(stored.as_deref()))).await;
            let snapshot = store.snapshot().await.unwrap();
            assert_eq!((refused(&snapshot), unverified(&snapshot)), (Vec::new(), Vec::new()), "{edit}");
        }
    }
}

pub(crate) async fn an_edited_row_is_rejected_and_its_scope_unverified(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let other = other_workspace(store).await;
    let (here, there) = (bound(store, workspace).await, bound(store, other).await);
    store.snapshot().await.unwrap();
    intruder.run(format!("update roles set allowed_operations = null where id = '{}'", here.role.id)).await;
    let snapshot = store.snapshot().await.unwrap();
    let name = format!("roles/{}", here.role.id);
    assert_eq!(refused(&snapshot), std::slice::from_ref(&name));
    assert_eq!(unverified(&snapshot), [format!("{workspace}: the scope has 4 valid rows, but its seal counts 5")]);
    assert_eq!(snapshot.unverified[0].differing[0].to_string(), name, "the host names the changed row");
    assert_eq!(snapshot.bindings, [there.binding], "other workspaces are not affected");
    assert_eq!(store.role(workspace, here.role.id).await.unwrap(), None, "a direct read does not find the role either");
    let refused = store.insert_role(&rows::role(workspace, "s")).await;
    assert!(matches!(refused, Err(StoreError::Unverified { .. })), "{refused:?}");
    store.insert_role(&rows::role(other, "s")).await.unwrap();
}

pub(crate) async fn a_restored_row_is_detected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let key = rows::key(Some(workspace), KeyKind::Admin, None, "k");
    store.insert_key(&key).await.unwrap();
    intruder.run("create table kept as select * from api_keys".to_owned()).await;
    store.delete_key(Some(workspace), key.id).await.unwrap();
    store.snapshot().await.unwrap();
    intruder.run("insert into api_keys select * from kept".to_owned()).await;
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(refused(&snapshot), Vec::<String>::new(), "the MAC of the restored row is valid");
    assert_eq!(unverified(&snapshot), [format!("{workspace}: the scope has 1 valid rows, but its seal counts 0")]);
    assert_eq!(snapshot.unverified[0].differing[0].to_string(), format!("api_keys/{}", key.id));
    assert!(snapshot.keys.is_empty(), "this host has seen that it was deleted");
}

pub(crate) async fn a_restored_older_version_of_a_row_is_detected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let mut role = bound(store, workspace).await.role;
    intruder.run("create table kept as select * from roles".to_owned()).await;
    role.allowed_operations = Some(json!([]));
    role.updated_at = NOW.plus_ms(1);
    assert!(store.update_role(&role, NOW).await.unwrap());
    let columns = "allowed_operations = (select allowed_operations from kept), updated_at = (select updated_at from kept), \
                   mac = (select mac from kept)";
    intruder.run(format!("update roles set {columns}")).await;
    let snapshot = store.snapshot().await.unwrap();
    let why = "its 5 valid rows do not match its seal";
    assert_eq!(unverified(&snapshot), [format!("{workspace}: {why}")]);
    assert!(snapshot.roles.is_empty() && snapshot.bindings.is_empty());
}

pub(crate) async fn a_restored_seal_is_rejected_with_all_its_rows(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    store.insert_role(&rows::role(workspace, "r")).await.unwrap();
    intruder.run("create table kept_seals as select * from policy_seals".to_owned()).await;
    intruder.run("create table kept as select * from roles".to_owned()).await;
    let [role] = store.snapshot().await.unwrap().roles.try_into().unwrap();
    store.delete_role(workspace, role.id).await.unwrap();
    store.snapshot().await.unwrap();
    intruder.run("insert into roles select * from kept".to_owned()).await;
    intruder.run("delete from policy_seals".to_owned()).await;
    intruder.run("insert into policy_seals select * from kept_seals".to_owned()).await;
    let snapshot = store.snapshot().await.unwrap();
    let why = "its seal has generation 2, but this host has seen generation 3";
    assert_eq!(unverified(&snapshot), [format!("{workspace}: {why}")]);
    let refused = store.insert_role(&rows::role(workspace, "s")).await;
    assert!(matches!(refused, Err(StoreError::Unverified { .. })), "{refused:?}");
    // A seal whose generation was forged cannot be decrypted.
    intruder.run("update policy_seals set generation = 9".to_owned()).await;
    let snapshot = store.snapshot().await.unwrap();
    assert!(unverified(&snapshot).iter().all(|found| found.ends_with("its seal cannot be decrypted")));
    intruder.run("delete from policy_seals".to_owned()).await;
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(unverified(&snapshot)[0], "instance: the scope has no seal");
}

pub(crate) async fn restored_trust_is_not_read(store: &Store, intruder: &mut impl Intruder) {
    let row = monstrum_store::TrustRow {
        id: monstrum_types::TrustId::new(),
        public_key: "key".to_owned(),
        name_glob: "*".to_owned(),
        type_glob: "*".to_owned(),
        created_at: NOW,
    };
    store.insert_trust(&row).await.unwrap();
    assert_eq!(store.trust_of_key("key").await.unwrap(), std::slice::from_ref(&row));
    intruder.run("create table kept as select * from trust".to_owned()).await;
    store.delete_trust(row.id).await.unwrap();
    intruder.run("insert into trust select * from kept".to_owned()).await;
    let read = store.trust_of_key("key").await;
    assert!(matches!(read, Err(StoreError::Unverified { .. })), "{read:?}");
}

/// Seals remain correct after every kind of change.
pub(crate) async fn every_change_updates_the_seals(store: &Store, _: &mut impl Intruder) {
    let verified = async |what: &str| {
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!((unverified(&snapshot), refused(&snapshot)), (Vec::new(), Vec::new()), "after {what}");
    };
    let workspace = default_workspace(store).await;
    let mut total = store.sealed_generations().await.unwrap();
    let mut grows = async |what: &str| {
        verified(what).await;
        let now = store.sealed_generations().await.unwrap();
        assert!(now > total, "{what}: {total}, then {now}");
        total = now;
    };
    let there = bound(store, workspace).await;
    grows("five inserts").await;
    let key = rows::key(Some(workspace), KeyKind::Bot, Some(there.bot.id), "k");
    store.insert_key(&key).await.unwrap();
    store.rotate_key(&key, "mk_ghijkl", "another").await.unwrap();
    grows("a key").await;
    store.put_credential(&rows::credential(&there.resource)).await.unwrap();
    grows("a replaced credential").await;
    store.delete_bot(workspace, there.bot.id).await.unwrap();
    grows("a bot with its binding and its key").await;
    store.delete_resource(workspace, there.resource.id).await.unwrap();
    grows("a resource with its credential").await;
    let other = other_workspace(store).await;
    grows("a workspace").await;
    store.insert_key(&rows::key(Some(other), KeyKind::Admin, None, "k")).await.unwrap();
    grows("a key in the workspace").await;
    store.delete_workspace(other).await.unwrap();
    grows("a workspace with its key").await;
    assert_eq!(store.seal_generations().await.unwrap().len(), 2, "the seal of the workspace is also deleted");
    let gone = store.insert_role(&rows::role(WorkspaceId::new(), "r")).await;
    assert!(matches!(gone, Err(StoreError::UnknownReference)), "{gone:?}");
}

/// The lists in the code contain every table and column of the database.
pub(crate) async fn every_column_is_listed_as_covered_or_left_out(_: &Store, intruder: &mut impl Intruder) {
    // Tables without MACs: counters, sealed responses, sealed outputs of commands, sealed tasks and runs, firings, sealed keys,
    // the audit log (which has a separate chain), the seals, and the list of changed rows (which is verified against the
    // seals).
    const NEITHER: [&str; 24] = [
        "settings",
        "wakes",
        "chores",
        "events",
        "event_counters",
        "deliveries",
        "usage_totals",
        "usage_rows",
        "reservations",
        "idempotency_keys",
        "sandbox_outputs",
        "sessions",
        "tasks",
        "task_steps",
        "schedule_runs",
        "webhook_receipts",
        "runs",
        "run_steps",
        "instance_keys",
        "audit_events",
        "audit_rows",
        "audit_anchors",
        "policy_seals",
        "policy_changes",
    ];
    let columns = intruder.columns().await;
    let mut listed: Vec<String> = Table::columns().collect();
    listed.sort();
    let mut found: Vec<String> = columns
        .into_iter()
        .filter(|column| !NEITHER.iter().any(|table| column.starts_with(&format!("{table}."))))
        .filter(|column| !column.starts_with("_sqlx"))
        .collect();
    found.sort();
    assert_eq!(found, listed, "add a new column to a list of store/src/rows/tables/columns.rs");
}

pub(crate) async fn an_operator_can_seal_a_scope_again(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    intruder.run("update roles set name = 'edited'".to_owned()).await;
    intruder.run("update bots set mac = null".to_owned()).await;
    assert_eq!(store.snapshot().await.unwrap().unverified.len(), 1);
    let scope = Scope::Workspace(workspace);
    let rows = store.scope_rows(scope).await.unwrap();
    let bad: Vec<_> = rows.iter().filter(|row| !row.is_valid).map(|row| row.name.to_string()).collect();
    assert_eq!(bad, [format!("roles/{}", there.role.id), format!("bots/{}", there.bot.id)]);
    let key = rows::key(Some(workspace), KeyKind::Admin, None, "k");
    assert!(matches!(store.insert_key(&key).await, Err(StoreError::Unverified { .. })));
    let binding = rows.iter().find(|row| row.name.table == Table::BotResources).unwrap();
    // Rows that the operator has not seen must not be sealed.
    let fewer = store.seal_scope(scope, &rows[1..], &[]).await;
    assert!(matches!(fewer, Err(StoreError::Unverified { .. })), "{fewer:?}");
    assert_eq!(store.seal_scope(scope, &rows, std::slice::from_ref(&binding.name)).await.unwrap(), 4);
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), refused(&snapshot)), (Vec::new(), Vec::new()));
    assert_eq!((snapshot.roles[0].name.as_str(), snapshot.bindings.len()), ("edited", 0));
    store.insert_key(&key).await.unwrap();
}

/// The row of the restored workspace has a wrong MAC. The row must not be counted, so that the scope of the instance
/// stays valid.
pub(crate) async fn a_restored_workspace_does_not_restore_its_keys(store: &Store, intruder: &mut impl Intruder) {
    let other = other_workspace(store).await;
    let key = rows::key(Some(other), KeyKind::Admin, None, "theirs");
    store.insert_key(&key).await.unwrap();
    store.insert_role(&rows::role(other, "theirs")).await.unwrap();
    for table in ["workspaces", "api_keys", "roles", "policy_seals"] {
        let column = match table {
            "workspaces" => "id",
            "policy_seals" => "scope",
            _ => "workspace_id",
        };
        intruder.run(format!("create table kept_{table} as select * from {table} where {column} = '{other}'")).await;
    }
    for role in store.snapshot().await.unwrap().roles {
        store.delete_role(other, role.id).await.unwrap();
    }
    assert!(store.delete_key(Some(other), key.id).await.unwrap());
    assert!(store.delete_workspace(other).await.unwrap());
    let total = store.sealed_generations().await.unwrap();

    intruder.run("update kept_workspaces set mac = null".to_owned()).await;
    for table in ["workspaces", "api_keys", "roles", "policy_seals"] {
        intruder.run(format!("insert into {table} select * from kept_{table}")).await;
        intruder.run(format!("drop table kept_{table}")).await;
    }
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(refused(&snapshot), [format!("workspaces/{other}")]);
    assert_eq!((snapshot.keys.len(), snapshot.roles.len()), (0, 0), "{:?}", snapshot.keys);
    assert_eq!(store.sealed_generations().await.unwrap(), total, "the seal of the deleted workspace does not count");
}

/// Returns all problems that a verification finds.
pub(crate) async fn problems(store: &Store) -> Vec<String> {
    store.verify_rows().await.unwrap().problems()
}

/// Rows of uncounted tables change during normal use, so an operator cannot accept them. The operator can delete a
/// forged row of such a table.
pub(crate) async fn forged_rows_that_are_not_counted_can_be_deleted(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    let (ours, forged) = (crate::sandboxes::sandbox(&there.bot, "a"), crate::sandboxes::sandbox(&there.bot, "b"));
    for row in [&ours, &forged] {
        assert!(store.insert_sandbox(row).await.unwrap());
    }
    let (gone, stray) = (WorkspaceId::new(), crate::sandboxes::sandbox(&there.bot, "c"));
    assert!(store.insert_sandbox(&stray).await.unwrap());
    intruder.run(format!("update sandbox_instances set chat_id = 'x' where id = '{}'", forged.id)).await;
    intruder.run(format!("update sandbox_instances set workspace_id = '{gone}' where id = '{}'", stray.id)).await;
    let name = |row: &monstrum_store::SandboxRow| format!("sandbox_instances/{}", row.id);
    for (scope, row) in [(Scope::Workspace(workspace), &forged), (Scope::Instance, &stray)] {
        let shown = store.scope_rows(scope).await.unwrap();
        let listed: Vec<_> = shown.iter().filter(|row| !row.is_counted).collect();
        assert_eq!((listed.len(), listed[0].name.to_string(), listed[0].is_valid), (1, name(row), false));
        let counted = shown.len() as u64 - 1;
        assert_eq!(store.seal_scope(scope, &shown, &[]).await.unwrap(), counted, "the forged sandbox is not accepted");
        assert!(store.verify_rows().await.unwrap().refused.iter().any(|refused| refused.to_string() == name(row)));
        assert_eq!(store.seal_scope(scope, &shown, &[listed[0].name.clone()]).await.unwrap(), counted);
    }
    assert_eq!(problems(store).await, Vec::<String>::new());
    assert_eq!(store.sandbox(workspace, ours.id).await.unwrap(), Some(ours));
}

/// SQLite accepts a blob in place of text, and both databases accept malformed text.
pub(crate) async fn a_malformed_row_does_not_hide_others(store: &Store, intruder: &mut impl Intruder) {
    let other = other_workspace(store).await;
    let there = bound(store, other).await;
    intruder
        .run(
            "insert into workspaces (id, name, created_at, updated_at) values ('!', 'forged', 0, 0), ('~', 'f', 0, 0)"
                .to_owned(),
        )
        .await;
    intruder
        .run(format!(
            "insert into roles (id, workspace_id, name, scope_constraints, created_at, updated_at) \
             values ('!', '{other}', 'forged', 'not JSON', 0, 0)"
        ))
        .await;
    intruder.run("insert into policy_seals (scope, generation, sealed) values ('!', 1, 'no seal')".to_owned()).await;
    let listed = store.workspaces(&Page::first(1)).await.unwrap();
    assert_eq!(listed.items.len(), 1, "a page of forged rows is skipped");
    let mut found = Vec::new();
    let mut page = Page::first(1);
    while let Some(cursor) = { store.workspaces(&page).await.unwrap() }.next_cursor {
        found.extend(store.workspaces(&page).await.unwrap().items);
        page = Page { cursor: Some(cursor), ..page };
    }
    found.extend(store.workspaces(&page).await.unwrap().items);
    assert_eq!(found.len(), 2, "{found:?}");
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(refused(&snapshot), ["workspaces/!", "workspaces/~", "roles/!"]);
    assert_eq!((unverified(&snapshot), &snapshot.bindings), (Vec::new(), &vec![there.binding.clone()]));
    assert!(store.delete_role(other, there.role.id).await.is_err(), "the role is in use");
    assert!(store.delete_bot(other, there.bot.id).await.unwrap());
}

/// A deletion also deletes child rows, even those that another program wrote.
pub(crate) async fn an_unreadable_child_row_does_not_block_a_deletion(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let there = bound(store, workspace).await;
    let spare = rows::resource(workspace, "spare");
    store.insert_resource(&spare).await.unwrap();
    intruder
        .run(format!(
            "insert into bot_resources (id, workspace_id, bot_id, resource_id, scope_constraints, allow_calls, \
             allow_subscribe, enabled, created_at, updated_at) \
             values ('!', '{workspace}', '{}', '{}', 'not JSON', 'not JSON', false, true, 0, 0)",
            there.bot.id, spare.id
        ))
        .await;
    assert!(store.delete_bot(workspace, there.bot.id).await.unwrap());
    assert_eq!(problems(store).await, Vec::<String>::new());
    assert!(store.delete_resource(workspace, spare.id).await.unwrap());
}

/// A row that a request reads is compared with the last verified row. If they differ, the whole scope is verified.
pub(crate) async fn a_single_row_is_compared_with_the_verified_one(store: &Store, intruder: &mut impl Intruder) {
    let id = default_workspace(store).await;
    let settings = |network: &str| Some(json!({ "network": network }));
    let mut row = store.workspace(id).await.unwrap().unwrap();
    row.sandbox = settings("full");
    assert!(store.update_workspace(&row, row.updated_at).await.unwrap());
    store.snapshot().await.unwrap();
    intruder.run("create table kept as select * from workspaces".to_owned()).await;
    row.sandbox = settings("none");
    assert!(store.update_workspace(&row, row.updated_at).await.unwrap());
    let read = async || store.verified_workspace(id).await.map(|row| row.and_then(|row| row.sandbox));
    assert_eq!(read().await.unwrap(), settings("none"), "a change is visible before the next snapshot");
    store.snapshot().await.unwrap();
    assert_eq!(read().await.unwrap(), settings("none"));
    assert_eq!(store.verified_workspace(WorkspaceId::new()).await.unwrap(), None);
    store.require_verified(id).unwrap();

    let older = "sandbox = (select sandbox from kept), mac = (select mac from kept)";
    for attack in [older, "mac = null", "id = '019a0000-0000-7000-8000-000000000001'"] {
        intruder.run("create table now as select * from workspaces".to_owned()).await;
        intruder.run(format!("update workspaces set {attack}")).await;
        let refused = read().await;
        assert!(matches!(refused, Err(StoreError::Unverified { .. })), "{attack}: {refused:?}");
        let refused = store.require_verified(id);
        assert!(matches!(refused, Err(StoreError::Unverified { .. })), "{attack}: {refused:?}");
        intruder.run("delete from workspaces".to_owned()).await;
        intruder.run("insert into workspaces select * from now".to_owned()).await;
        intruder.run("drop table now".to_owned()).await;
        assert_eq!(read().await.unwrap(), settings("none"));
        store.require_verified(id).unwrap();
    }
}
