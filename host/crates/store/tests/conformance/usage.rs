//! Tests of usage accounting, and of budgets under concurrent charges.

use monstrum_store::{BotRow, BotSpent, Charge, Spent, Store, StoreRow, UsageRow};

use crate::rows::{self, default_workspace, other_workspace};

const MONTH: &str = "2026-11";

async fn bot(store: &Store, budget: Option<i64>) -> BotRow {
    let row = BotRow { monthly_token_budget: budget, ..rows::bot(default_workspace(store).await, "bot") };
    store.insert_bot(&row).await.unwrap();
    row
}

fn call(bot: &BotRow, tokens: i64, credits_millionths: i64) -> Charge {
    let (workspace_id, bot_id) = (bot.workspace_id, bot.id);
    Charge { workspace_id, bot_id, task_id: None, month: MONTH.to_owned(), tokens, credits_millionths }
}

/// Writes a single charge in one transaction, and returns whether the charge was within the budget.
async fn charge(store: &Store, charge: Charge) -> bool {
    store.append(&[], &[StoreRow::Charge(charge)]).await.unwrap()[0]
}

fn month(month: &str, tokens: i64, credits_millionths: i64, calls: i64) -> UsageRow {
    UsageRow { month: month.to_owned(), tokens, credits_millionths, calls }
}

pub(crate) async fn calls_are_charged_up_to_the_budget(store: &Store) {
    let bot = bot(store, Some(100)).await;
    assert!(!charge(store, call(&bot, 101, 0)).await, "even the first call may exceed the budget");
    assert!(charge(store, call(&bot, 60, 5)).await);
    assert!(!charge(store, call(&bot, 41, 5)).await);
    assert!(charge(store, call(&bot, 40, 0)).await);
    assert!(!charge(store, call(&bot, 1, 0)).await);
    assert!(charge(store, call(&bot, 0, 7)).await, "a call without tokens needs no budget");
    let usage = |task| store.usage(bot.workspace_id, bot.id, task);
    assert_eq!(usage(None).await.unwrap(), [month(MONTH, 100, 12, 3)]);
    let spent = |budget| Some(Spent { budget, tokens: 100 });
    assert_eq!(store.spent(bot.workspace_id, bot.id, MONTH).await.unwrap(), spent(Some(100)));

    // A changed budget applies immediately and takes earlier usage into account.
    for (budget, fits) in [(Some(99), false), (Some(101), true), (Some(0), false), (None, true)] {
        store.update_bot(&BotRow { monthly_token_budget: budget, ..bot.clone() }, crate::rows::NOW).await.unwrap();
        assert_eq!(charge(store, call(&bot, 1, 0)).await, fits, "{budget:?}");
    }
    assert_eq!(usage(None).await.unwrap(), [month(MONTH, 102, 12, 5)]);
    assert_eq!(usage(Some("")).await.unwrap(), [month(MONTH, 102, 12, 5)], "calls without a task");
}

pub(crate) async fn usage_is_counted_per_month_and_task(store: &Store) {
    let bot = bot(store, Some(10)).await;
    let of = |task: &str, month: &str, tokens| Charge {
        task_id: Some(task.to_owned()),
        month: month.to_owned(),
        ..call(&bot, tokens, 1)
    };
    assert!(charge(store, of("a", "2026-11", 6)).await);
    assert!(!charge(store, of("b", "2026-11", 6)).await, "tasks share the bot's budget");
    assert!(charge(store, of("b", "2026-11", 4)).await);
    assert!(charge(store, of("a", "2026-12", 10)).await, "a new month has a new budget");
    assert!(charge(store, of("a", "2027-01", 1)).await);
    let usage = async |task| store.usage(bot.workspace_id, bot.id, task).await.unwrap();
    let all = [month("2027-01", 1, 1, 1), month("2026-12", 10, 1, 1), month("2026-11", 10, 2, 2)];
    assert_eq!(usage(None).await, all);
    assert_eq!(usage(Some("a")).await, [all[0].clone(), all[1].clone(), month("2026-11", 6, 1, 1)]);
    assert_eq!(usage(Some("b")).await, [month("2026-11", 4, 1, 1)]);
    assert!(usage(Some("c")).await.is_empty());
}

pub(crate) async fn concurrent_charges_never_exceed_the_budget(store: &Store) {
    const FITTING: i64 = 10;
    let bot = bot(store, Some(FITTING * 7 + 6)).await;
    let charges = (0..64).map(|number| {
        let (store, bot) = (store.clone(), bot.clone());
        tokio::spawn(async move {
            let task_id = Some(format!("task {}", number % 3));
            charge(&store, Charge { task_id, ..call(&bot, 7, 1) }).await
        })
    });
    let mut charged = 0;
    for is_charged in charges.collect::<Vec<_>>() {
        charged += i64::from(is_charged.await.unwrap());
    }
    assert_eq!(charged, FITTING);
    let all = store.usage(bot.workspace_id, bot.id, None).await.unwrap();
    assert_eq!(all, [month(MONTH, FITTING * 7, FITTING, FITTING)]);
    let mut by_task = 0;
    for task in ["task 0", "task 1", "task 2"] {
        let rows = store.usage(bot.workspace_id, bot.id, Some(task)).await.unwrap();
        by_task += rows.iter().map(|row| row.tokens).sum::<i64>();
    }
    assert_eq!(by_task, FITTING * 7);
}

pub(crate) async fn usage_belongs_to_its_workspace_and_is_deleted_with_its_bot(store: &Store) {
    let bot = bot(store, None).await;
    let ours = other_workspace(store).await;
    assert!(!charge(store, Charge { workspace_id: ours, ..call(&bot, 1, 1) }).await);
    assert!(charge(store, call(&bot, 1, 1)).await);
    for task in [None, Some("")] {
        assert!(store.usage(ours, bot.id, task).await.unwrap().is_empty());
        assert_eq!(store.usage(bot.workspace_id, bot.id, task).await.unwrap().len(), 1);
    }
    assert_eq!(store.spent(ours, bot.id, MONTH).await.unwrap(), None);
    assert_eq!(store.spent_by_bots(bot.workspace_id, MONTH).await.unwrap(), [], "the bot has no budget");
    let budgeted = BotRow { monthly_token_budget: Some(9), ..rows::bot(bot.workspace_id, "budgeted") };
    store.insert_bot(&budgeted).await.unwrap();
    assert_eq!(store.spent_by_bots(bot.workspace_id, MONTH).await.unwrap(), [], "the bot has spent nothing");
    assert!(charge(store, call(&budgeted, 8, 0)).await);
    let spent = BotSpent { bot_id: budgeted.id, tokens: 8 };
    assert_eq!(store.spent_by_bots(bot.workspace_id, MONTH).await.unwrap(), [spent]);
    assert_eq!(store.spent_by_bots(bot.workspace_id, "2026-12").await.unwrap(), []);
    assert_eq!(store.spent_by_bots(ours, MONTH).await.unwrap(), []);
    assert!(store.delete_bot(bot.workspace_id, bot.id).await.unwrap());
    assert!(store.usage(bot.workspace_id, bot.id, None).await.unwrap().is_empty());
    assert!(!charge(store, call(&bot, 1, 1)).await, "the bot is deleted");
}

pub(crate) async fn sums_saturate(store: &Store) {
    let bot = bot(store, None).await;
    assert!(charge(store, call(&bot, i64::MAX - 1, i64::MAX - 1)).await);
    assert!(!charge(store, call(&bot, 2, 2)).await);
    assert!(charge(store, call(&bot, 1, 2)).await);
    assert!(charge(store, call(&bot, 0, i64::MAX)).await);
    let all = [month(MONTH, i64::MAX, i64::MAX, 3)];
    assert_eq!(store.usage(bot.workspace_id, bot.id, None).await.unwrap(), all);
    assert_eq!(store.usage(bot.workspace_id, bot.id, Some("")).await.unwrap(), all);
}

pub(crate) async fn usage_that_has_happened_is_added_beyond_the_budget(store: &Store) {
    let bot = bot(store, Some(10)).await;
    let add = async |tokens| store.append(&[], &[StoreRow::Usage(call(&bot, tokens, 1))]).await.unwrap()[0];
    assert!(add(8).await);
    assert!(add(8).await);
    assert!(!charge(store, call(&bot, 1, 0)).await);
    assert!(add(i64::MAX).await);
    assert_eq!(store.usage(bot.workspace_id, bot.id, None).await.unwrap(), [month(MONTH, i64::MAX, 3, 3)]);
    assert!(store.delete_bot(bot.workspace_id, bot.id).await.unwrap());
    assert!(!add(1).await, "the bot is deleted");
}
