//! Tests of workflows, their versions and their triggers.

use monstrum_store::{
    BotRow, DocumentFormat, InsertedTrigger, InsertedWorkflow, NewWorkflowVersion, Page, Store, StoreError,
    WorkflowRow, WorkflowTriggerRow, WorkflowVersionRow,
};
use monstrum_types::{KeyId, UtcMillis, WorkflowId, WorkflowTriggerId, WorkflowVersionId, WorkspaceId};
use serde_json::json;

use crate::authentic::{Intruder, refused, unverified};
use crate::rows::{self, NOW, default_workspace, other_workspace};

const MAX: i64 = 3;
const DOCUMENT: &str = "workflow: release\nsteps: []\n";

pub(crate) async fn bot(store: &Store, workspace: WorkspaceId, name: &str) -> BotRow {
    let row = rows::bot(workspace, name);
    store.insert_bot(&row).await.unwrap();
    row
}

pub(crate) fn workflow(bot: &BotRow, name: &str) -> WorkflowRow {
    WorkflowRow {
        id: WorkflowId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        name: name.to_owned(),
        version: 1,
        enabled: true,
        created_at: NOW,
        updated_at: NOW,
    }
}

fn version(workflow: &WorkflowRow, version: i64, document: &str) -> WorkflowVersionRow {
    WorkflowVersionRow {
        id: WorkflowVersionId::new(),
        workspace_id: workflow.workspace_id,
        workflow_id: workflow.id,
        version,
        format: DocumentFormat::Text,
        digest: WorkflowVersionRow::digest_of(document),
        saved_by: KeyId::new(),
        created_at: NOW,
    }
}

pub(crate) fn trigger(workflow: &WorkflowRow) -> WorkflowTriggerRow {
    WorkflowTriggerRow {
        id: WorkflowTriggerId::new(),
        workspace_id: workflow.workspace_id,
        workflow_id: workflow.id,
        event_pattern: "custom.*".to_owned(),
        instruction: "Look at {data}.".to_owned(),
        sources: json!(["own", "platform"]),
        narrow: Some(json!({ "allowed_tools": ["github_*"] })),
        enabled: true,
        starters: json!([]),
        created_at: NOW,
        updated_at: NOW,
    }
}

/// Inserts a workflow. Returns the row of its first version.
pub(crate) async fn inserted(store: &Store, row: &WorkflowRow) -> WorkflowVersionRow {
    let first = version(row, 1, DOCUMENT);
    let new = NewWorkflowVersion { row: &first, document: DOCUMENT };
    assert_eq!(store.insert_workflow(row, new, MAX).await.unwrap(), InsertedWorkflow::Inserted);
    first
}

async fn is_intact(store: &Store) -> bool {
    let snapshot = store.snapshot().await.unwrap();
    unverified(&snapshot).is_empty() && refused(&snapshot).is_empty()
}

pub(crate) async fn workflows_are_inserted_changed_listed_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let (one, two) = (bot(store, workspace, "one").await, bot(store, workspace, "two").await);
    let [first, second, third] = [workflow(&one, "a"), workflow(&two, "b"), workflow(&one, "c")];
    inserted(store, &first).await;
    let taken = workflow(&two, "a");
    let row = version(&taken, 1, DOCUMENT);
    let conflict = store.insert_workflow(&taken, NewWorkflowVersion { row: &row, document: DOCUMENT }, MAX).await;
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
    inserted(store, &second).await;
    inserted(store, &third).await;
    let full = workflow(&one, "d");
    let row = version(&full, 1, DOCUMENT);
    let full = store.insert_workflow(&full, NewWorkflowVersion { row: &row, document: DOCUMENT }, MAX).await.unwrap();
    assert_eq!(full, InsertedWorkflow::Full);
    let listed = store.workflows(workspace, None, &Page::first(2)).await.unwrap();
    assert_eq!((listed.items, listed.next_cursor), (vec![third.clone(), second.clone()], Some(second.id)));
    let rest = store.workflows(workspace, None, &Page { limit: 2, cursor: Some(second.id) }).await.unwrap();
    assert_eq!((rest.items, rest.next_cursor), (vec![first.clone()], None));
    let of_bot = store.workflows(workspace, Some(one.id), &Page::first(9)).await.unwrap();
    assert_eq!(of_bot.items, [third, first.clone()]);

    // The bot and the name never change.
    let later = NOW.plus_ms(1);
    let disabled = WorkflowRow { enabled: false, updated_at: later, ..first.clone() };
    let renamed = WorkflowRow { bot_id: two.id, name: "z".to_owned(), ..disabled.clone() };
    assert!(store.update_workflow(&renamed, NOW, None).await.unwrap());
    assert!(!store.update_workflow(&renamed, NOW, None).await.unwrap(), "another request was first");
    assert_eq!(store.workflow(workspace, first.id).await.unwrap(), Some(disabled.clone()));
    assert_eq!(store.workflow_named(workspace, "a").await.unwrap(), Some(disabled));
    assert_eq!(store.workflow_named(workspace, "z").await.unwrap(), None);
    assert!(!store.delete_workflow(workspace, first.id, NOW).await.unwrap());
    assert!(matches!(store.delete_bot(workspace, one.id).await, Err(StoreError::InUse)));
    assert!(store.delete_workflow(workspace, first.id, later).await.unwrap());
    assert_eq!(store.workflow(workspace, first.id).await.unwrap(), None);
    assert!(is_intact(store).await);
}

pub(crate) async fn versions_of_a_workflow_are_kept(store: &Store) {
    let workspace = default_workspace(store).await;
    let row = workflow(&bot(store, workspace, "b").await, "a");
    let first = inserted(store, &row).await;
    let document = "workflow: release\nsteps: [{ id: x, emit: y }]\n";
    let second = WorkflowVersionRow { format: DocumentFormat::Json, ..version(&row, 2, document) };
    let new = NewWorkflowVersion { row: &second, document };
    let changed = WorkflowRow { version: 2, updated_at: NOW.plus_ms(1), ..row.clone() };
    assert!(!store.update_workflow(&changed, NOW.plus_ms(9), Some(new)).await.unwrap());
    assert_eq!(store.workflow_version(workspace, row.id, 2).await.unwrap(), None, "all or nothing");
    assert!(store.update_workflow(&changed, NOW, Some(new)).await.unwrap());
    let again = WorkflowRow { updated_at: NOW.plus_ms(2), ..changed.clone() };
    let same = version(&row, 2, document);
    let twice = NewWorkflowVersion { row: &same, document };
    let conflict = store.update_workflow(&again, changed.updated_at, Some(twice)).await;
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
    let found = store.workflow_version(workspace, row.id, 1).await.unwrap();
    assert_eq!(found, Some((first.clone(), DOCUMENT.to_owned())));
    let found = store.workflow_version(workspace, row.id, 2).await.unwrap();
    assert_eq!(found, Some((second.clone(), document.to_owned())));
    let listed = store.workflow_versions(workspace, row.id, &Page::first(9)).await.unwrap();
    assert_eq!(listed.items, [second, first]);
    assert!(store.delete_workflow(workspace, row.id, changed.updated_at).await.unwrap());
    assert_eq!(store.workflow_version(workspace, row.id, 1).await.unwrap(), None);
    assert!(is_intact(store).await);
}

pub(crate) async fn triggers_are_inserted_changed_listed_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let (row, other) = (workflow(&bot, "a"), workflow(&bot, "c"));
    let before = store.snapshot().await.unwrap().verified;
    inserted(store, &row).await;
    inserted(store, &other).await;
    let [first, second] = [trigger(&row), WorkflowTriggerRow { narrow: None, ..trigger(&row) }];
    for new in [&first, &second] {
        assert_eq!(store.insert_workflow_trigger(new, 2).await.unwrap(), InsertedTrigger::Inserted);
    }
    assert_eq!(store.insert_workflow_trigger(&trigger(&row), 2).await.unwrap(), InsertedTrigger::Full);
    let missing = WorkflowTriggerRow { workflow_id: WorkflowId::new(), ..trigger(&row) };
    let missing = store.insert_workflow_trigger(&missing, 2).await;
    assert!(matches!(missing, Err(StoreError::UnknownReference)), "{missing:?}");
    // Hosts follow these changes row by row, so that saving a workflow does not make them read the whole policy.
    assert!(store.changes_since(&before).await.unwrap().is_some());
    let listed = store.workflow_triggers(workspace, row.id, &Page::first(9)).await.unwrap();
    assert_eq!(listed.items, [second.clone(), first.clone()]);
    assert_eq!(store.workflow_trigger(workspace, other.id, first.id).await.unwrap(), None);

    let later = NOW.plus_ms(1);
    let disabled = WorkflowTriggerRow { enabled: false, starters: json!(["k"]), updated_at: later, ..first.clone() };
    let widened = WorkflowTriggerRow { event_pattern: "*".to_owned(), sources: json!(["any"]), ..disabled.clone() };
    assert!(store.update_workflow_trigger(&widened, NOW).await.unwrap());
    assert!(!store.update_workflow_trigger(&widened, NOW).await.unwrap());
    assert_eq!(store.workflow_trigger(workspace, row.id, first.id).await.unwrap(), Some(disabled), "nothing widens");
    assert!(!store.delete_workflow_trigger(workspace, row.id, first.id, NOW).await.unwrap());
    assert!(!store.delete_workflow_trigger(workspace, other.id, first.id, later).await.unwrap());
    assert!(store.delete_workflow_trigger(workspace, row.id, first.id, later).await.unwrap());
    assert!(store.delete_workflow(workspace, row.id, NOW).await.unwrap());
    assert_eq!(store.workflow_trigger(workspace, row.id, second.id).await.unwrap(), None);
    assert!(is_intact(store).await);
}

pub(crate) async fn workflows_belong_to_their_workspace(store: &Store) {
    let (theirs, ours) = (default_workspace(store).await, other_workspace(store).await);
    let row = workflow(&bot(store, theirs, "b").await, "a");
    inserted(store, &row).await;
    let event = trigger(&row);
    store.insert_workflow_trigger(&event, MAX).await.unwrap();
    assert_eq!(store.workflow(ours, row.id).await.unwrap(), None);
    assert_eq!(store.workflow_named(ours, &row.name).await.unwrap(), None);
    assert_eq!(store.workflow_version(ours, row.id, 1).await.unwrap(), None);
    assert_eq!(store.workflow_trigger(ours, row.id, event.id).await.unwrap(), None);
    assert!(store.workflows(ours, None, &Page::first(9)).await.unwrap().items.is_empty());
    assert!(store.workflow_versions(ours, row.id, &Page::first(9)).await.unwrap().items.is_empty());
    assert!(store.workflow_triggers(ours, row.id, &Page::first(9)).await.unwrap().items.is_empty());
    let stolen = WorkflowRow { workspace_id: ours, ..row.clone() };
    assert!(!store.update_workflow(&stolen, NOW, None).await.unwrap());
    let added = WorkflowTriggerRow { workspace_id: ours, ..trigger(&row) };
    assert!(matches!(store.insert_workflow_trigger(&added, MAX).await, Err(StoreError::UnknownReference)));
    let added = WorkflowTriggerRow { workspace_id: ours, ..event.clone() };
    assert!(!store.update_workflow_trigger(&added, NOW).await.unwrap());
    assert!(!store.delete_workflow_trigger(ours, row.id, event.id, NOW).await.unwrap());
    assert!(!store.delete_workflow(ours, row.id, NOW).await.unwrap());
    let foreign = workflow(&BotRow { workspace_id: ours, ..bot(store, theirs, "c").await }, "f");
    let first = version(&foreign, 1, DOCUMENT);
    let refused = store.insert_workflow(&foreign, NewWorkflowVersion { row: &first, document: DOCUMENT }, MAX).await;
    assert!(matches!(refused, Err(StoreError::UnknownReference)), "a bot of another workspace: {refused:?}");
    assert_eq!(store.workflow(theirs, row.id).await.unwrap(), Some(row));
}

/// A workflow, version or trigger that another program writes is not read, and one that it restores stops its workspace.
pub(crate) async fn an_edited_or_restored_workflow_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let (bot, strong) = (bot(store, workspace, "b").await, bot(store, workspace, "strong").await);
    let row = workflow(&bot, "a");
    let first = inserted(store, &row).await;
    let event = trigger(&row);
    store.insert_workflow_trigger(&event, MAX).await.unwrap();
    let edits = [
        ("workflows", row.id.to_string(), format!("bot_id = '{}'", strong.id)),
        ("workflows", row.id.to_string(), "enabled = not enabled".to_owned()),
        ("workflows", row.id.to_string(), "version = 2".to_owned()),
        ("workflow_versions", first.id.to_string(), "version = 2".to_owned()),
        ("workflow_versions", first.id.to_string(), "digest = 'x'".to_owned()),
        ("workflow_triggers", event.id.to_string(), "event_pattern = '*'".to_owned()),
        ("workflow_triggers", event.id.to_string(), "sources = '[\"any\"]'".to_owned()),
        ("workflow_triggers", event.id.to_string(), "narrow = null".to_owned()),
        ("workflow_triggers", event.id.to_string(), "starters = '[\"k\"]'".to_owned()),
    ];
    for (table, id, edit) in edits {
        intruder.run(format!("create table kept as select * from {table}")).await;
        intruder.run(format!("update {table} set {edit}")).await;
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!(refused(&snapshot), [format!("{table}/{id}")], "{edit}");
        assert_eq!(unverified(&snapshot).len(), 1, "{edit}");
        let found = match table {
            "workflows" => store.workflow(workspace, row.id).await.unwrap().is_some(),
            "workflow_versions" => {
                let versions = [1, 2].map(|version| store.workflow_version(workspace, row.id, version));
                let [one, two] = versions;
                one.await.unwrap().is_some() || two.await.unwrap().is_some()
            }
            _ => store.workflow_trigger(workspace, row.id, event.id).await.unwrap().is_some(),
        };
        assert!(!found, "{edit}");
        let columns = edit.split(" = ").next().unwrap().to_owned();
        intruder.run(format!("update {table} set {columns} = (select {columns} from kept)")).await;
        intruder.run("drop table kept".to_owned()).await;
        assert!(is_intact(store).await, "{edit}");
    }
    // The document is not part of the MAC, but of the digest that the MAC covers.
    intruder.run("update workflow_versions set document = 'workflow: other'".to_owned()).await;
    assert_eq!(store.workflow_version(workspace, row.id, 1).await.unwrap(), None);
    intruder.run(format!("update workflow_versions set document = '{DOCUMENT}'")).await;
    assert!(store.workflow_version(workspace, row.id, 1).await.unwrap().is_some());

    intruder.run("create table kept as select * from workflow_triggers".to_owned()).await;
    assert!(store.delete_workflow_trigger(workspace, row.id, event.id, NOW).await.unwrap());
    intruder.run("insert into workflow_triggers select * from kept".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "a restored trigger");
    let added = store.insert_workflow_trigger(&trigger(&row), MAX).await;
    assert!(matches!(added, Err(StoreError::Unverified { .. })), "{added:?}");
    intruder.run("delete from workflow_triggers".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()), Vec::<String>::new());
    let changed = WorkflowRow { enabled: false, updated_at: UtcMillis(NOW.0 + 1), ..row };
    intruder.run("create table older as select * from workflows".to_owned()).await;
    assert!(store.update_workflow(&changed, NOW, None).await.unwrap());
    let older = "enabled = (select enabled from older), updated_at = (select updated_at from older), \
                 mac = (select mac from older)";
    intruder.run(format!("update workflows set {older}")).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "an older state of a workflow");
}
