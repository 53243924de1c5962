//! Tests of subscriptions.

use monstrum_store::{Page, Store, SubscriptionMaker, SubscriptionRow};
use monstrum_types::{BotId, SubscriptionId, UtcMillis, WorkspaceId};
use serde_json::json;

use crate::authentic::{Intruder, refused, unverified};
use crate::rows::{self, NOW, default_workspace, other_workspace};

pub(crate) fn subscription(workspace_id: WorkspaceId, bot_id: BotId) -> SubscriptionRow {
    SubscriptionRow {
        id: SubscriptionId::new(),
        workspace_id,
        bot_id,
        pattern: "custom.*".to_owned(),
        instruction: "Look at {data}.".to_owned(),
        sources: json!(["own", "platform"]),
        narrow: None,
        active: true,
        made_by_kind: SubscriptionMaker::Key,
        made_by_id: "k".to_owned(),
        starters: json!([]),
        expires_at: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) async fn subscriptions_are_written_read_as_changes_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = rows::bot(workspace, "bot");
    store.insert_bot(&bot).await.unwrap();
    let before = store.snapshot().await.unwrap().verified;
    let row = subscription(workspace, bot.id);
    assert!(store.insert_subscription(&row, 2).await.unwrap());
    let narrow = Some(json!({ "allowed_tools": ["a"] }));
    let made_by_kind = SubscriptionMaker::Plugin;
    let other = SubscriptionRow { narrow, made_by_kind, expires_at: Some(NOW), ..subscription(workspace, bot.id) };
    assert!(store.insert_subscription(&other, 2).await.unwrap());
    assert!(!store.insert_subscription(&subscription(workspace, bot.id), 2).await.unwrap(), "the bot has two");
    let (changes, verified) = store.changes_since(&before).await.unwrap().unwrap();
    let changed: Vec<_> = changes.subscriptions.into_values().flatten().collect();
    assert_eq!(changed, [row.clone(), other.clone()]);
    assert!(row.is_in_force(NOW) && !other.is_in_force(NOW) && other.is_in_force(NOW.plus_ms(-1)));
    let page = |limit| Page { limit, cursor: None };
    let first = store.subscriptions(workspace, None, &page(1)).await.unwrap();
    assert_eq!((first.items, first.next_cursor), (vec![row.clone()], Some(row.id)));
    assert_eq!(store.subscriptions(workspace, Some(bot.id), &page(9)).await.unwrap().items.len(), 2);
    assert!(store.subscriptions(workspace, Some(BotId::new()), &page(9)).await.unwrap().items.is_empty());

    let changed = SubscriptionRow { active: false, updated_at: NOW.plus_ms(1), ..row.clone() };
    assert!(!changed.is_in_force(NOW));
    assert!(store.update_subscription(&changed, NOW).await.unwrap());
    assert!(!store.update_subscription(&row, NOW).await.unwrap(), "it was changed since");
    assert_eq!(store.subscription(workspace, row.id).await.unwrap(), Some(changed.clone()));
    assert!(!store.delete_subscription(workspace, row.id, NOW, NOW).await.unwrap(), "it was changed since");
    assert!(store.delete_subscription(workspace, row.id, changed.updated_at, NOW).await.unwrap());
    let (changes, _) = store.changes_since(&verified).await.unwrap().unwrap();
    assert_eq!(changes.subscriptions.get(&row.id), Some(&None));
    assert!(store.delete_bot(workspace, bot.id).await.unwrap());
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), snapshot.subscriptions), (Vec::new(), Vec::new()));
}

pub(crate) async fn subscriptions_belong_to_their_bot_and_workspace(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let bot = rows::bot(ours, "bot");
    store.insert_bot(&bot).await.unwrap();
    assert!(store.insert_subscription(&subscription(theirs, bot.id), 9).await.is_err(), "a bot of another workspace");
    let row = subscription(ours, bot.id);
    assert!(store.insert_subscription(&row, 9).await.unwrap());
    assert_eq!(store.subscription(theirs, row.id).await.unwrap(), None);
    assert!(store.subscriptions(theirs, None, &Page::first(9)).await.unwrap().items.is_empty());
    let stolen = SubscriptionRow { workspace_id: theirs, ..row.clone() };
    assert!(!store.update_subscription(&stolen, NOW).await.unwrap());
    assert!(!store.delete_subscription(theirs, row.id, NOW, NOW).await.unwrap());
    assert_eq!(store.snapshot().await.unwrap().subscriptions, [row]);
}

/// A subscription that another program writes starts nothing, and a deleted or older one stops its workspace.
pub(crate) async fn an_edited_or_restored_subscription_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let bot = rows::bot(workspace, "bot");
    store.insert_bot(&bot).await.unwrap();
    let row = subscription(workspace, bot.id);
    assert!(store.insert_subscription(&row, 9).await.unwrap());
    intruder.run("create table old_subscriptions as select * from subscriptions".to_owned()).await;
    for edit in [
        "pattern = '*'",
        "instruction = 'Delete all.'",
        "sources = '[\"any\"]'",
        "narrow = '{}'",
        "made_by_kind = 'plugin'",
        "expires_at = 5",
        "starters = '[\"k\"]'",
    ] {
        intruder.run(format!("update subscriptions set {edit}")).await;
        let snapshot = store.snapshot().await.unwrap();
        assert!(snapshot.subscriptions.is_empty(), "{edit}");
        assert_eq!(refused(&snapshot), [format!("subscriptions/{}", row.id)], "{edit}");
        assert_eq!(unverified(&snapshot).len(), 1, "{edit}");
        intruder.run("delete from subscriptions".to_owned()).await;
        intruder.run("insert into subscriptions select * from old_subscriptions".to_owned()).await;
    }
    let off = SubscriptionRow { active: false, updated_at: UtcMillis(NOW.0 + 1), ..row };
    assert_eq!(unverified(&store.snapshot().await.unwrap()), Vec::<String>::new());
    assert!(store.update_subscription(&off, NOW).await.unwrap());
    intruder.run("delete from subscriptions".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "a deleted subscription");
    intruder.run("insert into subscriptions select * from old_subscriptions".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "an older subscription");
    intruder.run("drop table old_subscriptions".to_owned()).await;
}
