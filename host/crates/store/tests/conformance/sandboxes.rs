//! Tests of sandboxes: leases, states and deletion.

use monstrum_store::{
    BotRow, ConversationFilter, Page, RunningSandboxes, SandboxFilter, SandboxRow, SandboxSettled, SandboxStatus,
    Store, StoreError,
};
use monstrum_types::{BotId, Labels, SandboxInstanceId, UtcMillis, WorkspaceId};
use serde_json::json;

use crate::authentic::Intruder;
use crate::rows::{self, NOW, default_workspace, other_workspace};

const LATER: UtcMillis = UtcMillis(NOW.0 + 1000);

/// Creates a row with a different value in every column.
pub(crate) fn sandbox(bot: &BotRow, chat: &str) -> SandboxRow {
    SandboxRow {
        id: SandboxInstanceId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        provider: "embedded".to_owned(),
        sandbox_id: format!("{:0>16}", hex::encode(chat)),
        app_id: Some("app".to_owned()),
        user_id: Some("user".to_owned()),
        chat_id: Some(chat.to_owned()),
        node: Some("node-1".to_owned()),
        status: SandboxStatus::Running,
        operation: None,
        operation_until: None,
        last_active_at: NOW,
        created_at: NOW.plus_ms(-1),
        limit: Some(json!({"memory_mib": 512})),
        network: Some("none".to_owned()),
        error: Some("it was busy".to_owned()),
        attempts: 3,
        next_attempt_at: Some(NOW.plus_ms(7)),
        labels: Some(["mail".to_owned()].into_iter().collect()),
    }
}

async fn bot(store: &Store, workspace: WorkspaceId, name: &str) -> BotRow {
    let row = rows::bot(workspace, name);
    store.insert_bot(&row).await.unwrap();
    row
}

pub(crate) fn of_app(bot: Option<BotId>, chat: Option<&str>) -> ConversationFilter<'_> {
    ConversationFilter { bot, app: "app", chat }
}

async fn inserted(store: &Store, row: SandboxRow) -> SandboxRow {
    assert!(store.insert_sandbox(&row).await.unwrap());
    row
}

async fn reread(store: &Store, row: &SandboxRow) -> SandboxRow {
    store.sandbox(row.workspace_id, row.id).await.unwrap().unwrap()
}

fn settled(status: SandboxStatus) -> SandboxSettled {
    SandboxSettled { status, last_active_at: None, error: None, limit: None, network: None }
}

pub(crate) async fn sandboxes_are_inserted_listed_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let (one, two) = (bot(store, workspace, "one").await, bot(store, workspace, "two").await);
    let generation = store.generation().await.unwrap();
    let a = inserted(store, sandbox(&one, "a")).await;
    let b = inserted(store, sandbox(&two, "b")).await;
    let c = inserted(store, SandboxRow { node: None, limit: None, network: None, ..sandbox(&one, "c") }).await;
    assert_eq!(reread(store, &a).await, a);
    assert_eq!(reread(store, &c).await, c);
    assert_eq!(store.sandbox_of_provider(workspace, "embedded", &b.sandbox_id).await.unwrap().as_ref(), Some(&b));
    assert_eq!(store.sandbox_of_provider(workspace, "other", &b.sandbox_id).await.unwrap(), None);
    assert_eq!(store.sandbox_of_conversation(workspace, "app", "b").await.unwrap().as_ref(), Some(&b));
    assert_eq!(store.sandbox_of_conversation(workspace, "app", "x").await.unwrap(), None);

    let first = store.sandboxes(workspace, &SandboxFilter::default(), &Page::first(2)).await.unwrap();
    assert_eq!((&first.items[..], first.next_cursor), (&[a.clone(), b.clone()][..], Some(b.id)));
    let second = store
        .sandboxes(workspace, &SandboxFilter::default(), &Page { limit: 2, cursor: first.next_cursor })
        .await
        .unwrap();
    assert_eq!((&second.items[..], second.next_cursor), (&[c.clone()][..], None));
    let of_one = store
        .sandboxes(workspace, &SandboxFilter { bot: Some(one.id), ..SandboxFilter::default() }, &Page::first(50))
        .await
        .unwrap();
    assert_eq!(of_one.items, [a.clone(), c.clone()]);
    let by = async |filter: SandboxFilter| -> Vec<_> {
        let listed = store.sandboxes(workspace, &filter, &Page::first(50)).await.unwrap();
        listed.items.into_iter().map(|row| row.id).collect()
    };
    let (any, chat) = (SandboxFilter::default, |chat: &str| Some(chat.to_owned()));
    assert_eq!(by(any()).await, [a.id, b.id, c.id]);
    assert_eq!(by(SandboxFilter { app_id: chat("app"), chat_id: chat("b"), ..any() }).await, [b.id]);
    assert_eq!(by(SandboxFilter { bot: Some(one.id), chat_id: chat("b"), ..any() }).await, []);
    assert_eq!(by(SandboxFilter { app_id: chat("other"), ..any() }).await, []);

    assert!(store.delete_sandbox(workspace, a.id).await.unwrap());
    assert_eq!(by(SandboxFilter { status: Some(SandboxStatus::Deleting), ..any() }).await, [a.id]);
    assert!(!store.delete_sandbox(workspace, a.id).await.unwrap(), "the sandbox is already marked");
    assert!(!store.delete_sandbox(workspace, SandboxInstanceId::new()).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), generation, "sandboxes do not change the policy");
}

pub(crate) async fn a_conversation_has_one_sandbox(store: &Store) {
    let workspace = default_workspace(store).await;
    let (one, two) = (bot(store, workspace, "one").await, bot(store, workspace, "two").await);
    let a = inserted(store, sandbox(&one, "a")).await;
    let refused = async |row: SandboxRow| match store.insert_sandbox(&row).await {
        Err(StoreError::Conflict { constraint }) => constraint,
        other => panic!("expected a conflict, not {other:?}"),
    };
    let by_name = "sandbox_instances_workspace_id_provider_sandbox_id_key";
    let by_chat = "sandbox_instances_workspace_id_app_id_chat_id_key";
    // The sandbox id is already used, first by a sandbox of another chat and then by a sandbox of another bot.
    assert_eq!(refused(SandboxRow { chat_id: Some("1-a".to_owned()), ..sandbox(&one, "a") }).await, by_name);
    assert_eq!(refused(SandboxRow { chat_id: None, ..sandbox(&two, "a") }).await, by_name);
    // The chat already has a sandbox with another id.
    assert_eq!(refused(SandboxRow { chat_id: Some("a".to_owned()), ..sandbox(&one, "b") }).await, by_chat);
    inserted(store, SandboxRow { chat_id: None, ..sandbox(&one, "c") }).await;
    inserted(store, SandboxRow { chat_id: None, ..sandbox(&one, "d") }).await;
    let foreign = other_workspace(store).await;
    let theirs = bot(store, foreign, "one").await;
    inserted(store, sandbox(&theirs, "a")).await;
    assert_eq!(reread(store, &a).await, a);

    let rows: Vec<_> = (0..8).map(|_| sandbox(&one, "e")).collect();
    let made = futures::future::join_all(rows.iter().map(|row| store.insert_sandbox(row))).await;
    assert_eq!(made.iter().filter(|made| matches!(made, Ok(true))).count(), 1, "{made:?}");
}

pub(crate) async fn sandboxes_of_other_workspaces_are_not_found(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let there = bot(store, theirs, "b").await;
    let row = inserted(store, sandbox(&there, "a")).await;
    assert_eq!(store.sandbox(ours, row.id).await.unwrap(), None);
    assert_eq!(store.sandbox_of_provider(ours, "embedded", &row.sandbox_id).await.unwrap(), None);
    assert_eq!(store.sandbox_of_conversation(ours, "app", "a").await.unwrap(), None);
    assert!(store.sandboxes(ours, &SandboxFilter::default(), &Page::first(50)).await.unwrap().items.is_empty());
    assert!(
        store
            .sandboxes(ours, &SandboxFilter { bot: Some(there.id), ..SandboxFilter::default() }, &Page::first(50))
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert!(!store.delete_sandbox(ours, row.id).await.unwrap());
    assert_eq!(store.delete_conversations(ours, of_app(None, Some("a"))).await.unwrap(), Some(0));
    assert_eq!(store.delete_conversations(ours, of_app(None, None)).await.unwrap(), Some(0));
    assert!(!store.delete_bot(ours, there.id).await.unwrap());
    assert_eq!(reread(store, &row).await, row);
    let joined = SandboxRow { workspace_id: ours, ..sandbox(&there, "b") };
    assert!(!store.insert_sandbox(&joined).await.unwrap(), "the bot is in another workspace");
    assert_eq!(store.sandbox(ours, joined.id).await.unwrap(), None);
}

pub(crate) async fn a_sandbox_has_one_lease_at_a_time(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let row = inserted(store, sandbox(&bot, "a")).await;
    let names: Vec<String> = (0..16).map(|number| format!("operation {number}")).collect();
    let claims = names.iter().map(|name| store.claim_sandbox(&row, SandboxStatus::Stopping, name, LATER));
    let claimed = futures::future::join_all(claims).await;
    assert_eq!(claimed.iter().filter(|claimed| matches!(claimed, Ok(true))).count(), 1, "{claimed:?}");
    let held = reread(store, &row).await;
    assert_eq!((held.status, held.operation_until), (SandboxStatus::Stopping, Some(LATER)));
    assert!(held.is_claimed(NOW) && !held.is_claimed(LATER), "the claim ends when the lease expires");
    // Only one operation can take over an expired lease.
    assert!(store.claim_sandbox(&held, SandboxStatus::Creating, "next", LATER).await.unwrap());
    assert!(!store.claim_sandbox(&held, SandboxStatus::Creating, "other", LATER).await.unwrap());

    let b = inserted(store, sandbox(&bot, "b")).await;
    assert!(store.touch_sandbox(b.id, NOW.plus_ms(1)).await.unwrap());
    assert!(
        !store.claim_sandbox(&b, SandboxStatus::Stopping, "late", LATER).await.unwrap(),
        "the sandbox was used after the row was read"
    );
}

pub(crate) async fn an_operation_settles_only_its_own_lease(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let row = inserted(store, sandbox(&bot, "a")).await;
    assert!(store.claim_sandbox(&row, SandboxStatus::Creating, "mine", LATER).await.unwrap());
    let running = SandboxSettled {
        status: SandboxStatus::Running,
        last_active_at: Some(LATER),
        error: None,
        limit: Some(json!({"memory_mib": 1024})),
        network: Some("full".to_owned()),
    };
    assert!(!store.settle_sandbox(row.id, "another", SandboxStatus::Creating, &running).await.unwrap());
    assert!(!store.settle_sandbox(row.id, "mine", SandboxStatus::Stopping, &running).await.unwrap());
    store.release_sandbox(row.id, "another").await.unwrap();
    assert!(store.settle_sandbox(row.id, "mine", SandboxStatus::Creating, &running).await.unwrap());
    let expected = SandboxRow {
        last_active_at: LATER,
        error: None,
        limit: running.limit.clone(),
        network: running.network.clone(),
        ..row.clone()
    };
    assert_eq!(reread(store, &row).await, expected);
    assert!(
        !store.settle_sandbox(row.id, "mine", SandboxStatus::Running, &running).await.unwrap(),
        "the lease has ended"
    );

    // `None` keeps the stored value, and a mark for deletion takes precedence over the result of an operation.
    assert!(store.claim_sandbox(&expected, SandboxStatus::Stopping, "mine", LATER).await.unwrap());
    assert!(store.delete_sandbox(workspace, row.id).await.unwrap());
    let stopped = settled(SandboxStatus::Stopped);
    assert!(!store.settle_sandbox(row.id, "mine", SandboxStatus::Stopping, &stopped).await.unwrap());
    let held = reread(store, &row).await;
    assert_eq!((held.status, held.operation.as_deref()), (SandboxStatus::Deleting, Some("mine")));
    store.release_sandbox(row.id, "mine").await.unwrap();
    assert_eq!(reread(store, &row).await.operation, None);
}

pub(crate) async fn uses_are_recorded_while_a_sandbox_is_running(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let a = inserted(store, sandbox(&bot, "a")).await;
    let b = inserted(store, SandboxRow { status: SandboxStatus::Stopped, ..sandbox(&bot, "b") }).await;
    assert!(store.touch_sandbox(a.id, LATER).await.unwrap());
    assert!(store.touch_sandbox(a.id, NOW).await.unwrap(), "a use is recorded even if the clock is behind");
    assert_eq!(reread(store, &a).await.last_active_at, LATER);
    assert!(!store.touch_sandbox(b.id, LATER).await.unwrap());
    let uses = [(a.id, LATER.plus_ms(1)), (b.id, LATER), (SandboxInstanceId::new(), LATER)];
    store.touch_sandboxes(&uses).await.unwrap();
    assert_eq!(reread(store, &a).await.last_active_at, LATER.plus_ms(1));
    assert_eq!(reread(store, &b).await, b);
}

pub(crate) async fn a_deletion_is_retried_until_it_succeeds(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let a = inserted(store, sandbox(&bot, "a")).await;
    let b = inserted(store, SandboxRow { node: None, ..sandbox(&bot, "b") }).await;
    let due = async |node: &str, at: UtcMillis| {
        let rows = store.due_sandbox_deletions(node, at, 10).await.unwrap();
        rows.into_iter().map(|row| row.chat_id.unwrap()).collect::<Vec<_>>()
    };
    assert!(due("node-1", LATER).await.is_empty());
    let delete = async |bot, chat| store.delete_conversations(workspace, of_app(bot, chat)).await.unwrap();
    assert_eq!(delete(Some(BotId::new()), Some("a")).await, Some(0));
    assert_eq!(delete(Some(bot.id), Some("a")).await, Some(1));
    assert_eq!(delete(Some(BotId::new()), None).await, Some(0));
    assert_eq!(delete(None, None).await, Some(1), "the other sandbox was already marked");
    assert_eq!(due("node-1", NOW).await, ["a", "b"]);
    assert_eq!(due("node-2", NOW).await, ["b"], "the other sandbox is on another host");
    let row = reread(store, &a).await;
    assert_eq!((row.attempts, row.error.as_ref()), (0, None));

    assert!(store.claim_sandbox(&row, SandboxStatus::Deleting, "mine", LATER).await.unwrap());
    assert_eq!(due("node-1", NOW).await, ["b"], "the other deletion is leased");
    assert_eq!(due("node-1", LATER).await, ["a", "b"], "the lease has expired");
    store.postpone_sandbox_deletion(a.id, "another", LATER, "no").await.unwrap();
    store.postpone_sandbox_deletion(a.id, "mine", LATER.plus_ms(1), "it is busy").await.unwrap();
    let row = reread(store, &a).await;
    assert_eq!((row.attempts, row.error.as_deref(), row.operation.as_ref()), (1, Some("it is busy"), None));
    assert_eq!(due("node-1", LATER).await, ["b"]);
    assert_eq!(due("node-1", LATER.plus_ms(1)).await, ["b", "a"], "the longest overdue deletion is first");

    assert!(store.claim_sandbox(&row, SandboxStatus::Deleting, "mine", LATER).await.unwrap());
    assert!(!store.remove_sandbox(a.id, "another").await.unwrap());
    assert!(store.remove_sandbox(a.id, "mine").await.unwrap());
    assert!(!store.remove_sandbox(a.id, "mine").await.unwrap());
    let c = inserted(store, SandboxRow { operation: Some("mine".to_owned()), ..sandbox(&bot, "c") }).await;
    assert!(!store.remove_sandbox(c.id, "mine").await.unwrap(), "the sandbox is not marked for deletion");
    assert_eq!(reread(store, &b).await.status, SandboxStatus::Deleting);
}

pub(crate) async fn deleting_a_bot_marks_its_sandboxes_for_deletion(store: &Store) {
    let workspace = other_workspace(store).await;
    let (gone, stays) = (bot(store, workspace, "gone").await, bot(store, workspace, "stays").await);
    let a = inserted(store, sandbox(&gone, "a")).await;
    let b = inserted(store, sandbox(&stays, "b")).await;
    let generation = store.generation().await.unwrap();
    assert!(store.delete_bot(workspace, gone.id).await.unwrap());
    assert!(!store.delete_bot(workspace, gone.id).await.unwrap());
    assert_eq!(store.generation().await.unwrap(), generation + 1);
    assert_eq!(reread(store, &a).await.status, SandboxStatus::Deleting);
    assert_eq!(reread(store, &b).await, b);
    assert!(!store.insert_sandbox(&sandbox(&gone, "c")).await.unwrap());
    assert!(store.delete_bot(workspace, stays.id).await.unwrap());
    assert!(store.delete_workspace(workspace).await.unwrap());
    let due = store.due_sandbox_deletions("node-1", NOW, 10).await.unwrap();
    assert_eq!(due.len(), 2, "the rows of sandboxes outlive the workspace");
}

/// Inserts sandboxes while their bot is being deleted.
pub(crate) async fn a_sandbox_never_outlives_its_bot_unmarked(store: &Store) {
    let workspace = default_workspace(store).await;
    for round in 0..20 {
        let bot = bot(store, workspace, &format!("b{round}")).await;
        let rows: Vec<_> = (0..3).map(|chat| sandbox(&bot, &format!("{round}-{chat}"))).collect();
        let (inserted, deleted) = futures::future::join(
            futures::future::join_all(rows.iter().map(|row| store.insert_sandbox(row))),
            store.delete_bot(workspace, bot.id),
        )
        .await;
        assert!(deleted.unwrap());
        for (row, inserted) in rows.iter().zip(inserted) {
            let status = store.sandbox(workspace, row.id).await.unwrap().map(|row| row.status);
            assert_eq!(status, inserted.unwrap().then_some(SandboxStatus::Deleting));
        }
    }
}

pub(crate) async fn lost_sandboxes_differ_from_those_in_error(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let row = inserted(store, sandbox(&bot, "a")).await;
    let other = inserted(store, SandboxRow { status: SandboxStatus::Error, ..sandbox(&bot, "b") }).await;
    assert!(store.claim_sandbox(&row, SandboxStatus::Creating, "mine", LATER).await.unwrap());
    let lost = settled(SandboxStatus::Lost);
    assert!(store.settle_sandbox(row.id, "mine", SandboxStatus::Creating, &lost).await.unwrap());
    let held = reread(store, &row).await;
    assert_eq!(held.status, SandboxStatus::Lost);
    let by = async |status| {
        let filter = SandboxFilter { status: Some(status), ..SandboxFilter::default() };
        let listed = store.sandboxes(workspace, &filter, &Page::first(10)).await.unwrap();
        listed.items.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(by(SandboxStatus::Lost).await, [row.id]);
    assert_eq!(by(SandboxStatus::Error).await, [other.id]);
    assert!(store.claim_sandbox(&held, SandboxStatus::Creating, "next", LATER).await.unwrap());
    assert_eq!(reread(store, &row).await.status, SandboxStatus::Creating);
    let running = settled(SandboxStatus::Running);
    assert!(store.settle_sandbox(row.id, "next", SandboxStatus::Creating, &running).await.unwrap());
    assert_eq!(reread(store, &row).await.status, SandboxStatus::Running);
    assert!(by(SandboxStatus::Lost).await.is_empty());
}

pub(crate) async fn a_host_finds_its_sandboxes(store: &Store) {
    use SandboxStatus::{Creating, Deleting, Error, Lost, Running, Stopped, Stopping};
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    for status in [Creating, Running, Stopping, Stopped, Deleting, Error, Lost] {
        let row = SandboxRow { status, network: Some("full".to_owned()), ..sandbox(&bot, status.as_str()) };
        inserted(store, row).await;
    }
    let theirs = SandboxRow { node: Some("node-2".to_owned()), ..sandbox(&bot, "theirs") };
    inserted(store, theirs).await;
    let busy = SandboxRow {
        status: Creating,
        operation: Some("mine".to_owned()),
        operation_until: Some(LATER),
        node: None,
        ..sandbox(&bot, "busy")
    };
    let busy = inserted(store, busy).await;
    let chats = |rows: Vec<SandboxRow>| rows.into_iter().map(|row| row.chat_id.unwrap()).collect::<Vec<_>>();
    let idle = async |active, now| chats(store.idle_sandboxes("node-1", active, now, None, 10).await.unwrap());
    assert_eq!(idle(NOW, NOW).await, ["creating", "running", "stopping", "error"]);
    assert_eq!(idle(NOW, LATER).await, ["creating", "running", "stopping", "error", "busy"]);
    assert!(idle(NOW.plus_ms(-1), LATER).await.is_empty());
    let first = store.idle_sandboxes("node-1", NOW, NOW, None, 3).await.unwrap();
    let rest = store.idle_sandboxes("node-1", NOW, NOW, Some(first[2].id), 3).await.unwrap();
    assert_eq!(chats(rest), ["error"]);
    let all = store.sandboxes_of_node("node-1", None, 10).await.unwrap();
    assert_eq!(chats(all), ["creating", "running", "stopping", "stopped", "deleting", "error", "lost", "busy"]);
    let open = store.sandboxes_with_network("node-1", "full", None, 10).await.unwrap();
    assert_eq!(chats(open), ["running"]);
    let switched_off = async || chats(store.sandboxes_switched_off("node-1", None, 10).await.unwrap());
    assert!(switched_off().await.is_empty());
    let off = BotRow { use_agent_sandbox: false, ..bot.clone() };
    assert!(store.update_bot(&off, bot.updated_at).await.unwrap());
    assert_eq!(switched_off().await, ["running"]);
    let running = async |but| store.running_sandboxes_by_bot("node-1", but).await.unwrap();
    let of_bot = |count| vec![RunningSandboxes { workspace: bot.workspace_id, bot: bot.id, count }];
    assert_eq!(running(SandboxInstanceId::new()).await, of_bot(4));
    assert_eq!(running(busy.id).await, of_bot(3));
    store.release_sandboxes_of_node("node-1").await.unwrap();
    assert_eq!(reread(store, &busy).await, busy, "the lease of a sandbox without a node may belong to another host");
}

pub(crate) async fn labels_of_a_sandbox_only_grow(store: &Store) {
    let bot = bot(store, default_workspace(store).await, "b").await;
    let [fresh, older] = [Some(Labels::none()), None];
    let fresh = inserted(store, SandboxRow { labels: fresh, ..sandbox(&bot, "a") }).await;
    let older = inserted(store, SandboxRow { labels: older, ..sandbox(&bot, "b") }).await;
    assert!(older.known_labels().is_all(), "nothing is known of a sandbox of an earlier release");
    let labels = |name: &str| -> Labels { [name.to_owned()].into_iter().collect() };
    for (name, expected) in [("mail", "mail"), ("web", "mail web"), ("mail", "mail web")] {
        store.add_sandbox_labels(&fresh, &labels(name)).await.unwrap();
        assert_eq!(reread(store, &fresh).await.known_labels().to_string(), expected);
    }
    store.add_sandbox_labels(&fresh, &Labels::ALL).await.unwrap();
    store.add_sandbox_labels(&fresh, &labels("mail")).await.unwrap();
    assert!(reread(store, &fresh).await.known_labels().is_all());
    store.add_sandbox_labels(&older, &labels("mail")).await.unwrap();
    assert!(reread(store, &older).await.known_labels().is_all());
    assert_eq!(crate::authentic::problems(store).await, Vec::<String>::new());
}

pub(crate) async fn a_sandbox_without_its_labels_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let bot = bot(store, default_workspace(store).await, "b").await;
    let row = inserted(store, sandbox(&bot, "a")).await;
    for edit in ["''", "null", "'other'"] {
        intruder.run(format!("update sandbox_instances set labels = {edit}")).await;
        assert_eq!(store.sandbox(row.workspace_id, row.id).await.unwrap(), None, "{edit}");
    }
    intruder.run("update sandbox_instances set labels = 'mail'".to_owned()).await;
    assert_eq!(reread(store, &row).await, row);
}
