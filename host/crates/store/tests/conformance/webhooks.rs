//! Tests of webhooks: their rows are part of the policy, and a repeated request makes one event.

use monstrum_store::{
    EventRow, InsertedWebhook, Page, Receipt, ReceivedEvent, SealedColumn, Store, StoreError, WebhookKind, WebhookRow,
};
use monstrum_types::{EventId, UtcMillis, WebhookId, WorkspaceId};
use serde_json::json;

use crate::authentic::{Intruder, refused, unverified};
use crate::rows::{self, NOW, default_workspace, other_workspace};

const MAX: i64 = 3;

fn webhook(workspace: WorkspaceId, name: &str) -> WebhookRow {
    WebhookRow {
        id: WebhookId::new(),
        workspace_id: workspace,
        name: name.to_owned(),
        event: "e".to_owned(),
        bot_id: None,
        kind: WebhookKind::HmacSha256,
        signature_header: Some("X-Signature".to_owned()),
        signature_prefix: Some(String::new()),
        headers: json!(["X-Event"]),
        dedupe_header: Some("X-Delivery".to_owned()),
        created_at: NOW,
        updated_at: NOW,
        secret_created_at: NOW,
        sealed: "sealed".to_owned(),
    }
}

fn event(webhook: &WebhookRow, at: UtcMillis) -> EventRow {
    let id = EventId::new();
    EventRow {
        id,
        workspace_id: webhook.workspace_id,
        event_type: "custom.e".to_owned(),
        source_type: "webhook".to_owned(),
        source_id: webhook.id.to_string(),
        bot_id: webhook.bot_id,
        root_event_id: id,
        depth: 0,
        links: "{}".to_owned(),
        created_at: at,
        sealed: "sealed".to_owned(),
    }
}

fn receipt(request: &str, since: UtcMillis) -> Receipt {
    Receipt { request: request.to_owned(), since }
}

async fn inserted(store: &Store, row: &WebhookRow) -> InsertedWebhook {
    store.insert_webhook(row, MAX).await.unwrap()
}

async fn exists(store: &Store, event: &EventRow) -> bool {
    store.event(event.workspace_id, event.id).await.unwrap().is_some()
}

pub(crate) async fn webhooks_are_written_read_as_changes_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let before = store.snapshot().await.unwrap().verified;
    let (one, two) = (webhook(workspace, "one"), webhook(workspace, "two"));
    assert_eq!(inserted(store, &one).await, InsertedWebhook::Inserted);
    assert_eq!(inserted(store, &two).await, InsertedWebhook::Inserted);
    let (changes, verified) = store.changes_since(&before).await.unwrap().unwrap();
    assert_eq!(changes.webhooks.into_values().flatten().collect::<Vec<_>>(), [one.clone(), two.clone()]);
    let conflict = store.insert_webhook(&webhook(workspace, "one"), MAX).await;
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
    assert_eq!(inserted(store, &webhook(workspace, "three")).await, InsertedWebhook::Inserted);
    assert_eq!(inserted(store, &webhook(workspace, "four")).await, InsertedWebhook::Full);

    // A change keeps the secret, and a rotation replaces it.
    let later = NOW.plus_ms(1);
    let renamed =
        WebhookRow { name: "renamed".to_owned(), updated_at: later, sealed: "other".to_owned(), ..one.clone() };
    assert!(store.update_webhook(&renamed, NOW).await.unwrap());
    assert!(!store.update_webhook(&renamed, NOW).await.unwrap(), "the row was changed since");
    let renamed = WebhookRow { sealed: one.sealed.clone(), ..renamed };
    assert_eq!(store.webhook(workspace, one.id).await.unwrap(), Some(renamed.clone()));
    let latest = later.plus_ms(1);
    let rotated =
        WebhookRow { updated_at: latest, secret_created_at: latest, sealed: "rotated".to_owned(), ..renamed.clone() };
    assert!(!store.rotate_webhook(&rotated, NOW).await.unwrap());
    assert_eq!(store.webhook(workspace, one.id).await.unwrap(), Some(renamed));
    assert!(store.rotate_webhook(&rotated, later).await.unwrap());
    let (changes, verified) = store.changes_since(&verified).await.unwrap().unwrap();
    assert_eq!(changes.webhooks.get(&one.id), Some(&Some(rotated.clone())), "with its new secret");
    let listed = store.webhooks(workspace, &Page::first(9)).await.unwrap().items;
    assert_eq!(listed.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["renamed", "two", "three"]);

    assert!(!store.delete_webhook(workspace, one.id, NOW).await.unwrap());
    assert!(store.delete_webhook(workspace, one.id, latest).await.unwrap());
    let (changes, _) = store.changes_since(&verified).await.unwrap().unwrap();
    assert_eq!(changes.webhooks.get(&one.id), Some(&None));
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), snapshot.webhooks.len()), (Vec::new(), 2));
}

pub(crate) async fn webhooks_belong_to_their_workspace_and_are_deleted_with_their_bot(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let row = webhook(theirs, "theirs");
    inserted(store, &row).await;
    assert_eq!(store.webhook(ours, row.id).await.unwrap(), None);
    assert!(store.webhooks(ours, &Page::first(9)).await.unwrap().items.is_empty());
    let stolen = WebhookRow { workspace_id: ours, updated_at: NOW.plus_ms(1), ..row.clone() };
    assert!(!store.update_webhook(&stolen, NOW).await.unwrap());
    assert!(!store.delete_webhook(ours, row.id, NOW).await.unwrap());
    let foreign = store.receive_event(&stolen, &event(&stolen, NOW), None).await.unwrap();
    assert_eq!(foreign, ReceivedEvent::Changed);
    let bot = rows::bot(ours, "bot");
    store.insert_bot(&bot).await.unwrap();
    let of_other_bot = WebhookRow { bot_id: Some(bot.id), ..webhook(theirs, "of-other-bot") };
    assert!(store.insert_webhook(&of_other_bot, MAX).await.is_err(), "a bot of another workspace");
    inserted(store, &WebhookRow { bot_id: Some(bot.id), ..webhook(ours, "of-bot") }).await;
    assert!(store.delete_bot(ours, bot.id).await.unwrap());
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), &snapshot.webhooks), (Vec::new(), &vec![row]));
    assert!(store.delete_workspace(theirs).await.unwrap());
    assert!(store.snapshot().await.unwrap().webhooks.is_empty());
}

pub(crate) async fn a_repeated_request_makes_one_event(store: &Store) {
    let row = webhook(default_workspace(store).await, "hook");
    let other = webhook(row.workspace_id, "other");
    inserted(store, &row).await;
    inserted(store, &other).await;
    let since = NOW.plus_ms(-10);
    let receive = async |row: &WebhookRow, event: &EventRow, receipt: Option<&Receipt>| {
        store.receive_event(row, event, receipt).await.unwrap()
    };
    let (first, again) = (event(&row, NOW), event(&row, NOW.plus_ms(5)));
    assert_eq!(receive(&row, &first, Some(&receipt("a", since))).await, ReceivedEvent::Inserted);
    assert_eq!(receive(&row, &again, Some(&receipt("a", since))).await, ReceivedEvent::Repeated(first.id));
    assert!(exists(store, &first).await && !exists(store, &again).await);
    assert_eq!(receive(&row, &again, Some(&receipt("b", since))).await, ReceivedEvent::Inserted);
    let of_other = event(&other, NOW);
    assert_eq!(receive(&other, &of_other, Some(&receipt("a", since))).await, ReceivedEvent::Inserted);
    for _ in 0..2 {
        assert_eq!(receive(&row, &event(&row, NOW), None).await, ReceivedEvent::Inserted, "without a receipt");
    }
    // An earlier request counts for a time.
    let later = event(&row, NOW.plus_ms(20));
    assert_eq!(receive(&row, &later, Some(&receipt("a", NOW))).await, ReceivedEvent::Inserted);
    let latest = event(&row, NOW.plus_ms(21));
    assert_eq!(receive(&row, &latest, Some(&receipt("a", NOW))).await, ReceivedEvent::Repeated(later.id));
    assert_eq!(store.forget_webhook_receipts(NOW.plus_ms(20)).await.unwrap(), 2);
    assert_eq!(receive(&row, &latest, Some(&receipt("a", NOW))).await, ReceivedEvent::Repeated(later.id));

    // A webhook that was changed or deleted since it was read takes no request, and leaves no receipt.
    let changed = WebhookRow { updated_at: NOW.plus_ms(1), ..row.clone() };
    assert!(store.update_webhook(&changed, NOW).await.unwrap());
    let late = event(&row, NOW.plus_ms(30));
    assert_eq!(receive(&row, &late, Some(&receipt("c", since))).await, ReceivedEvent::Changed);
    assert_eq!(receive(&changed, &late, Some(&receipt("c", since))).await, ReceivedEvent::Inserted);
    assert!(store.delete_webhook(row.workspace_id, row.id, changed.updated_at).await.unwrap());
    assert_eq!(receive(&changed, &event(&row, NOW), None).await, ReceivedEvent::Changed);
    assert!(exists(store, &late).await, "events are kept");
}

pub(crate) async fn of_requests_at_once_one_makes_an_event(store: &Store) {
    let row = webhook(default_workspace(store).await, "hook");
    inserted(store, &row).await;
    let events: Vec<EventRow> = (0..12).map(|_| event(&row, NOW)).collect();
    let receipt = receipt("a", NOW.plus_ms(-10));
    let sent = events.iter().map(|event| store.receive_event(&row, event, Some(&receipt)));
    let received: Vec<ReceivedEvent> =
        futures::future::join_all(sent).await.into_iter().collect::<Result<_, _>>().unwrap();
    let first: Vec<EventId> = events
        .iter()
        .zip(&received)
        .filter(|(_, received)| **received == ReceivedEvent::Inserted)
        .map(|(event, _)| event.id)
        .collect();
    assert_eq!(first.len(), 1, "{received:?}");
    let repeated = received.iter().filter(|received| **received == ReceivedEvent::Repeated(first[0])).count();
    assert_eq!(repeated, events.len() - 1, "{received:?}");
}

pub(crate) async fn secrets_of_webhooks_are_sealed_records(store: &Store) {
    let row = webhook(default_workspace(store).await, "hook");
    inserted(store, &row).await;
    let before = store.snapshot().await.unwrap().generation;
    let page = store.sealed_records(SealedColumn::WebhookSecrets, None, 9).await.unwrap();
    let record = page.records[0].clone();
    assert_eq!(record.key, [row.id.to_string()]);
    assert_eq!(record.bound, [row.workspace_id.to_string(), row.secret_created_at.0.to_string()]);
    assert_eq!(record.sealed, row.sealed);
    let replaced = [(record, "again".to_owned())];
    assert_eq!(store.replace_sealed(SealedColumn::WebhookSecrets, &replaced, 2).await.unwrap(), 1);
    let snapshot = store.snapshot().await.unwrap();
    assert!(snapshot.generation > before, "hosts read the record again");
    assert_eq!(snapshot.webhooks, [WebhookRow { sealed: "again".to_owned(), ..row }]);
}

/// A webhook that another program writes takes no request, and a deleted or older webhook stops its workspace.
pub(crate) async fn an_edited_or_restored_webhook_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let row = webhook(default_workspace(store).await, "hook");
    inserted(store, &row).await;
    intruder.run("create table old_webhooks as select * from webhooks".to_owned()).await;
    for edit in [
        "event = 'other'",
        "name = 'other'",
        "kind = 'token'",
        "signature_header = null",
        "signature_prefix = 'x'",
        "headers = '[]'",
        "dedupe_header = null",
        "updated_at = 1",
        "secret_created_at = 1",
        "mac = null",
    ] {
        intruder.run(format!("update webhooks set {edit}")).await;
        let snapshot = store.snapshot().await.unwrap();
        assert!(snapshot.webhooks.is_empty(), "{edit}");
        assert_eq!(refused(&snapshot), [format!("webhooks/{}", row.id)], "{edit}");
        assert_eq!(unverified(&snapshot).len(), 1, "{edit}");
        assert_eq!(store.webhook(row.workspace_id, row.id).await.unwrap(), None, "{edit}");
        intruder.run("delete from webhooks".to_owned()).await;
        intruder.run("insert into webhooks select * from old_webhooks".to_owned()).await;
    }
    assert_eq!(store.snapshot().await.unwrap().webhooks, std::slice::from_ref(&row));
    let changed = WebhookRow { event: "changed".to_owned(), updated_at: NOW.plus_ms(1), ..row };
    assert!(store.update_webhook(&changed, NOW).await.unwrap());
    intruder.run("delete from webhooks".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "a deleted webhook");
    intruder.run("insert into webhooks select * from old_webhooks".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "an older webhook");
    intruder.run("drop table old_webhooks".to_owned()).await;
}
