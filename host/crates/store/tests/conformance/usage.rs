//! Tests of usage accounting, and of budgets under concurrent charges.

use monstrum_store::{
    BotRow, BotSpent, BudgetLimits, Charge, Payer, PayerLimits, ReservationFilter, ReservationRow, Spent, Store,
    StoreRow, UsageBy, UsageGroup, UsageRow, Used,
};
use monstrum_types::{AppUser, RequestId, ReservationId, WorkspaceId};

use crate::authentic::Intruder;
use crate::rows::{self, NOW, default_workspace, other_workspace};

const MONTH: &str = "2026-11";

async fn bot(store: &Store, budget: Option<i64>) -> BotRow {
    let row = BotRow { monthly_token_budget: budget, ..rows::bot(default_workspace(store).await, "bot") };
    store.insert_bot(&row).await.unwrap();
    row
}

/// Returns the cost of a call, which the budget of its bot limits.
fn call(bot: &BotRow, tokens: i64, credits_millionths: i64) -> Charge {
    let limits = PayerLimits { bot: of_tokens(bot.monthly_token_budget), ..PayerLimits::default() };
    Charge {
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        user: None,
        task_id: None,
        month: MONTH.to_owned(),
        tokens,
        credits_millionths,
        limits,
    }
}

fn of_tokens(tokens: Option<i64>) -> BudgetLimits {
    BudgetLimits { tokens, credits_millionths: None }
}

fn user(id: &str) -> AppUser {
    AppUser { app_id: "app".to_owned(), user_id: id.to_owned() }
}

/// Writes a single charge in one transaction, and returns whether the charge was within the budget.
async fn charge(store: &Store, charge: Charge) -> bool {
    store.append(&[], &[StoreRow::Charge(charge)]).await.unwrap()[0]
}

fn month(month: &str, tokens: i64, credits_millionths: i64, calls: i64) -> UsageRow {
    UsageRow { month: month.to_owned(), tokens, credits_millionths, calls, ..UsageRow::default() }
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
    let spent = Spent { tokens: 100, credits_millionths: 12, ..Spent::default() };
    for payer in [Payer::Workspace, Payer::Bot(bot.id)] {
        assert_eq!(store.spent(bot.workspace_id, &payer, MONTH).await.unwrap(), spent, "{payer:?}");
    }

    // A changed budget takes earlier usage into account.
    for (budget, fits) in [(Some(99), false), (Some(101), true), (Some(0), false), (None, true)] {
        let changed = BotRow { monthly_token_budget: budget, ..bot.clone() };
        assert_eq!(charge(store, call(&changed, 1, 0)).await, fits, "{budget:?}");
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

pub(crate) async fn usage_belongs_to_its_workspace_and_outlives_its_bot(store: &Store) {
    let bot = bot(store, None).await;
    let ours = other_workspace(store).await;
    assert!(!charge(store, Charge { workspace_id: ours, ..call(&bot, 1, 1) }).await);
    assert!(charge(store, call(&bot, 1, 1)).await);
    for task in [None, Some("")] {
        assert!(store.usage(ours, bot.id, task).await.unwrap().is_empty());
        assert_eq!(store.usage(bot.workspace_id, bot.id, task).await.unwrap().len(), 1);
    }
    for payer in [Payer::Workspace, Payer::Bot(bot.id)] {
        assert_eq!(store.spent(ours, &payer, MONTH).await.unwrap(), Spent::default(), "{payer:?}");
    }
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
    assert_eq!(store.usage(bot.workspace_id, bot.id, None).await.unwrap(), [month(MONTH, 1, 1, 1)]);
    assert!(!charge(store, call(&bot, 1, 1)).await, "the bot is deleted");
    assert!(store.delete_bot(bot.workspace_id, budgeted.id).await.unwrap());
    let of_workspace = store.spent(bot.workspace_id, &Payer::Workspace, MONTH).await.unwrap();
    assert_eq!(of_workspace.tokens, 9);
}

pub(crate) async fn sums_saturate(store: &Store) {
    let bot = bot(store, None).await;
    assert!(charge(store, call(&bot, i64::MAX - 1, i64::MAX - 1)).await);
    assert!(charge(store, call(&bot, 2, 2)).await);
    let limited = BotRow { monthly_token_budget: Some(i64::MAX), ..bot.clone() };
    assert!(!charge(store, call(&limited, 1, 2)).await);
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

pub(crate) async fn a_call_is_charged_to_all_subjects_or_to_none(store: &Store) {
    let bot = bot(store, None).await;
    let call = |limits, user_id: Option<&str>, credits_millionths| Charge {
        user: user_id.map(user),
        limits,
        ..call(&bot, 6, credits_millionths)
    };
    let spent = async |payer: &Payer| {
        let spent = store.spent(bot.workspace_id, payer, MONTH).await.unwrap();
        (spent.tokens, spent.credits_millionths)
    };
    let subjects = [Payer::Workspace, Payer::Bot(bot.id), Payer::User(user("ann"))];
    let (small, large) = (of_tokens(Some(5)), of_tokens(Some(6)));
    let poor = BudgetLimits { tokens: None, credits_millionths: Some(9) };
    for limits in [
        PayerLimits { workspace: small, bot: large, user: large },
        PayerLimits { workspace: large, bot: small, user: large },
        PayerLimits { workspace: large, bot: large, user: small },
        PayerLimits { workspace: poor, ..PayerLimits::default() },
        PayerLimits { bot: poor, ..PayerLimits::default() },
        PayerLimits { user: poor, ..PayerLimits::default() },
    ] {
        assert!(!charge(store, call(limits, Some("ann"), 10)).await, "{limits:?}");
        for subject in &subjects {
            assert_eq!(spent(subject).await, (0, 0), "{limits:?}");
        }
    }
    assert_eq!(store.usage(bot.workspace_id, bot.id, None).await.unwrap(), []);
    let rich = BudgetLimits { tokens: Some(6), credits_millionths: Some(10) };
    assert!(charge(store, call(PayerLimits { workspace: rich, bot: rich, user: rich }, Some("ann"), 10)).await);
    for subject in &subjects {
        assert_eq!(spent(subject).await, (6, 10));
    }
    // Another user, and a call without a user, do not use the budget of this user.
    let limits = PayerLimits { user: rich, ..PayerLimits::default() };
    assert!(charge(store, call(limits, Some("bob"), 10)).await);
    assert!(charge(store, call(limits, None, 10)).await);
    assert!(!charge(store, call(limits, Some("ann"), 10)).await);
    assert_eq!(spent(&subjects[2]).await, (6, 10));
    assert_eq!(spent(&Payer::Workspace).await, (18, 30));
}

fn reservation(bot: &BotRow, tokens_input: i64, tokens_output: i64) -> ReservationRow {
    ReservationRow {
        id: ReservationId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        user_key: user("ann").key(),
        task_id: "task".to_owned(),
        request_id: RequestId::new(),
        model: "openai/gpt".to_owned(),
        month: MONTH.to_owned(),
        tokens_input,
        tokens_output,
        credits_millionths: 500,
        node: "node-1".to_owned(),
        expires_at: NOW.plus_ms(1_000),
    }
}

/// Reserves tokens if all subjects have room for them within `limit`.
async fn reserve(store: &Store, row: &ReservationRow, limit: i64) -> Option<bool> {
    let decide = |spent: [Spent; 3]| {
        let needed = row.tokens_input + row.tokens_output;
        let has_room = spent.iter().all(|spent| spent.tokens + spent.tokens_reserved + needed <= limit);
        if has_room { Ok(((), row.clone())) } else { Err(()) }
    };
    let ann = user("ann");
    let payers = (row.workspace_id, row.bot_id, Some(&ann));
    store.reserve(payers, MONTH, decide).await.unwrap().map(|reserved| reserved.is_ok())
}

pub(crate) async fn a_reservation_takes_room_until_it_is_settled(store: &Store) {
    let bot = bot(store, None).await;
    let row = reservation(&bot, 100, 400);
    assert_eq!(reserve(store, &row, 499).await, Some(false));
    assert_eq!(reserve(store, &row, 500).await, Some(true));
    let subjects = [Payer::Workspace, Payer::Bot(bot.id), Payer::User(user("ann"))];
    let spent = async |payer: &Payer| store.spent(bot.workspace_id, payer, MONTH).await.unwrap();
    let reserved = Spent { tokens_reserved: 500, credits_reserved_millionths: 500, ..Spent::default() };
    for subject in &subjects {
        assert_eq!(spent(subject).await, reserved);
        assert_eq!(store.spent(bot.workspace_id, subject, "2026-12").await.unwrap(), Spent::default());
    }
    assert_eq!(spent(&Payer::User(user("bob"))).await, Spent::default());
    // A call needs room besides the reservation.
    let (small, large) = (of_tokens(Some(500)), of_tokens(Some(501)));
    for (limits, fits) in [
        (PayerLimits { workspace: small, bot: large, user: large }, false),
        (PayerLimits { workspace: large, bot: small, user: large }, false),
        (PayerLimits { workspace: large, bot: large, user: small }, false),
        (PayerLimits { workspace: large, bot: large, user: large }, true),
    ] {
        let call = Charge { user: Some(user("ann")), limits, ..call(&bot, 1, 0) };
        assert_eq!(charge(store, call).await, fits, "{limits:?}");
    }

    let used = Used { tokens_input: 90, tokens_output: 700, credits_millionths: 7, ..Used::default() };
    assert!(store.settle(row.id, Some(used)).await.unwrap());
    assert!(!store.settle(row.id, Some(used)).await.unwrap(), "it is settled once");
    let settled = Spent { tokens: 791, credits_millionths: 7, ..Spent::default() };
    for subject in &subjects {
        assert_eq!(spent(subject).await, settled);
    }
    let round = UsageRow {
        tokens: 790,
        tokens_input: 90,
        tokens_output: 700,
        credits_millionths: 7,
        rounds: 1,
        ..month(MONTH, 790, 7, 0)
    };
    assert_eq!(store.usage(bot.workspace_id, bot.id, Some("task")).await.unwrap(), [round]);
    let total = &store.usage(bot.workspace_id, bot.id, None).await.unwrap()[0];
    assert_eq!((total.tokens, total.tokens_output, total.rounds, total.calls), (791, 700, 1, 1));
}

pub(crate) async fn a_round_that_used_nothing_is_not_counted(store: &Store) {
    let bot = bot(store, None).await;
    let row = reservation(&bot, 100, 400);
    assert_eq!(reserve(store, &row, 500).await, Some(true));
    assert!(store.settle(row.id, Some(Used::default())).await.unwrap());
    assert_eq!(store.spent(bot.workspace_id, &Payer::Workspace, MONTH).await.unwrap(), Spent::default());
    assert_eq!(store.usage(bot.workspace_id, bot.id, None).await.unwrap(), []);
    assert_eq!(store.usage(bot.workspace_id, bot.id, Some("task")).await.unwrap(), []);
    assert!(!store.settle(row.id, None).await.unwrap(), "it is settled once");
}

pub(crate) async fn a_round_of_several_tries_is_counted_once(store: &Store) {
    let bot = bot(store, None).await;
    for is_retry in [false, true] {
        let row = reservation(&bot, 100, 400);
        assert_eq!(reserve(store, &row, 5_000).await, Some(true));
        let used = Used { tokens_input: 90, tokens_output: 10, credits_millionths: 7, is_estimated: true, is_retry };
        assert!(store.settle(row.id, Some(used)).await.unwrap());
    }
    let usage = &store.usage(bot.workspace_id, bot.id, Some("task")).await.unwrap()[0];
    assert_eq!((usage.tokens, usage.credits_millionths), (200, 14));
    assert_eq!((usage.rounds, usage.rounds_estimated), (1, 1));
}

pub(crate) async fn a_reservation_is_released_if_it_exists(store: &Store) {
    let bot = bot(store, None).await;
    let row = reservation(&bot, 100, 400);
    let release = async |id| store.release(id, bot.workspace_id, MONTH).await.unwrap();
    release(row.id).await;
    assert_eq!(reserve(store, &row, 500).await, Some(true));
    release(ReservationId::new()).await;
    let spent = async || store.spent(bot.workspace_id, &Payer::Bot(bot.id), MONTH).await.unwrap();
    assert_eq!(spent().await.tokens_reserved, 500, "the reservation of another round");
    release(row.id).await;
    assert_eq!(spent().await, Spent::default());
    assert_eq!(store.usage(bot.workspace_id, bot.id, None).await.unwrap(), []);
    // The workspace may have been deleted since.
    store.release(row.id, WorkspaceId::new(), MONTH).await.unwrap();
}

pub(crate) async fn reservations_at_once_never_exceed_the_budget(store: &Store) {
    const FITTING: i64 = 7;
    let bot = bot(store, None).await;
    let reserving = (0..50).map(|_| {
        let (store, row) = (store.clone(), reservation(&bot, 10, 90));
        tokio::spawn(async move { reserve(&store, &row, FITTING * 100 + 99).await })
    });
    let mut reserved = 0;
    for is_reserved in reserving.collect::<Vec<_>>() {
        reserved += i64::from(is_reserved.await.unwrap().unwrap());
    }
    assert_eq!(reserved, FITTING);
    let spent = store.spent(bot.workspace_id, &Payer::Workspace, MONTH).await.unwrap();
    assert_eq!(spent.tokens_reserved, FITTING * 100);
}

pub(crate) async fn reservations_of_dead_hosts_are_found(store: &Store) {
    let bot = bot(store, None).await;
    let row = reservation(&bot, 1, 2);
    let others = ReservationRow { node: "node-2".to_owned(), ..reservation(&bot, 3, 4) };
    for row in [&row, &others] {
        assert_eq!(reserve(store, row, 1_000).await, Some(true));
    }
    let rows = async |filter, after: &str, limit| {
        let page = store.reservations(filter, after, limit).await.unwrap();
        assert!(page.unreadable.is_empty(), "{page:?}");
        (page.rows, page.next)
    };
    let lost = async |node, now| rows(ReservationFilter::Lost { node, now }, "", 9).await.0;
    assert_eq!(lost("node-1", NOW).await, std::slice::from_ref(&row));
    assert_eq!(lost("node-3", NOW).await, []);
    let (one, other) = if row.id < others.id { (&row, &others) } else { (&others, &row) };
    let both = [one.clone(), other.clone()];
    assert_eq!(lost("node-3", NOW.plus_ms(1_000)).await, both);
    let expired = |now| ReservationFilter::Expired { now };
    assert_eq!(rows(expired(NOW), "", 9).await.0, []);
    let later = expired(NOW.plus_ms(1_000));
    assert_eq!(rows(later, "", 9).await, (both.to_vec(), None));
    let first = one.id.to_string();
    assert_eq!(rows(later, "", 1).await, (vec![one.clone()], Some(first.clone())));
    assert_eq!(rows(later, &first, 9).await, (vec![other.clone()], None));
    let of_task =
        async |workspace, task_id, node| rows(ReservationFilter::OfTask { workspace, task_id, node }, "", 9).await.0;
    assert_eq!(of_task(bot.workspace_id, "task", "node-2").await, std::slice::from_ref(&row), "those of other hosts");
    assert_eq!(of_task(bot.workspace_id, "task", "node-3").await, both);
    assert_eq!(of_task(bot.workspace_id, "other", "node-3").await, []);
    assert_eq!(of_task(other_workspace(store).await, "task", "node-3").await, []);
    // A whole settlement uses everything, and is marked.
    assert!(store.settle(row.id, None).await.unwrap());
    let total = &store.usage(bot.workspace_id, bot.id, None).await.unwrap()[0];
    assert_eq!((total.tokens, total.credits_millionths, total.rounds_estimated), (3, 500, 1));
    // A round of a deleted bot is charged. A new round is not reserved.
    assert!(store.delete_bot(bot.workspace_id, bot.id).await.unwrap());
    assert!(store.settle(others.id, None).await.unwrap());
    assert_eq!(store.spent(bot.workspace_id, &Payer::Workspace, MONTH).await.unwrap().tokens, 10);
    assert_eq!(reserve(store, &reservation(&bot, 1, 1), 1_000).await, None);
}

/// A host starts although another program has written reservations that cannot be read.
pub(crate) async fn unreadable_reservations_do_not_hide_others(store: &Store, intruder: &mut impl Intruder) {
    let bot = bot(store, None).await;
    let mut rows = [reservation(&bot, 1, 2), reservation(&bot, 3, 4), reservation(&bot, 5, 6)];
    rows.sort_by_key(|row| row.id.to_string());
    for row in &rows {
        assert_eq!(reserve(store, row, 1_000).await, Some(true));
    }
    intruder.run(format!("update reservations set request_id = 'x' where id = '{}'", rows[0].id)).await;
    intruder.run(format!("update reservations set bot_id = 'x' where id = '{}'", rows[1].id)).await;
    let filter = ReservationFilter::Lost { node: "node-1", now: NOW };
    let page = store.reservations(filter, "", 9).await.unwrap();
    assert_eq!((page.rows, page.unreadable.len(), page.next), (vec![rows[2].clone()], 2, None));
    let page = store.reservations(filter, "", 2).await.unwrap();
    assert_eq!((page.rows, page.unreadable.len()), (vec![], 2));
    assert_eq!(page.next, Some(rows[1].id.to_string()));
    intruder.run(format!("update reservations set id = 'x' where id = '{}'", rows[0].id)).await;
    let page = store.reservations(filter, "", 9).await.unwrap();
    assert_eq!((page.rows, page.unreadable.len()), (vec![rows[2].clone()], 2));
    assert!(store.settle(rows[1].id, None).await.is_err());
    assert!(store.settle(rows[2].id, None).await.unwrap());
}

pub(crate) async fn usage_is_reported_by_bot_user_task_and_model(store: &Store) {
    let (one, other) = (bot(store, None).await, rows::bot(default_workspace(store).await, "other"));
    store.insert_bot(&other).await.unwrap();
    let call = |bot: &BotRow, task: Option<&str>, by: Option<&str>, tokens| Charge {
        user: by.map(user),
        task_id: task.map(str::to_owned),
        limits: PayerLimits::default(),
        ..call(bot, tokens, 1)
    };
    assert!(charge(store, call(&one, Some("a"), Some("ann"), 5)).await);
    assert!(charge(store, call(&one, Some("b"), Some("bob"), 6)).await);
    assert!(charge(store, call(&other, Some("a"), None, 20)).await);
    let round = ReservationRow { task_id: "a".to_owned(), ..reservation(&one, 30, 40) };
    assert_eq!(reserve(store, &round, 1_000).await, Some(true));
    assert!(store.settle(round.id, None).await.unwrap());

    let groups = async |by: UsageBy, limit| store.usage_groups(one.workspace_id, MONTH, by, limit).await.unwrap();
    let shown = |group: &UsageGroup| {
        let usage = &group.usage;
        (usage.tokens, usage.tokens_input, usage.tokens_output, usage.rounds, usage.calls)
    };
    let by_bot = groups(UsageBy { bot: true, ..UsageBy::default() }, 9).await;
    let found: Vec<_> = by_bot.items.iter().map(|group| (group.bot, shown(group))).collect();
    assert_eq!(found, [(Some(one.id), (81, 30, 40, 1, 2)), (Some(other.id), (20, 0, 0, 0, 1))]);
    assert!(!by_bot.has_more);
    let by_user = groups(UsageBy { user: true, ..UsageBy::default() }, 9).await;
    let found: Vec<_> = by_user.items.iter().map(|group| (group.user.clone(), group.usage.tokens)).collect();
    assert_eq!(found, [(Some(Some(user("ann"))), 75), (Some(None), 20), (Some(Some(user("bob"))), 6)]);
    let by_task = groups(UsageBy { bot: true, task: true, ..UsageBy::default() }, 9).await;
    let found: Vec<_> =
        by_task.items.iter().map(|group| (group.bot, group.task.as_deref(), group.usage.tokens)).collect();
    let (a, b) = (Some("a"), Some("b"));
    assert_eq!(found, [(Some(one.id), a, 75), (Some(other.id), a, 20), (Some(one.id), b, 6)]);
    let by_model = groups(UsageBy { model: true, ..UsageBy::default() }, 1).await;
    let found: Vec<_> = by_model.items.iter().map(|group| (group.model.as_deref(), group.usage.tokens)).collect();
    assert_eq!((found, by_model.has_more), (vec![(Some("openai/gpt"), 70)], true));
    assert_eq!(groups(UsageBy::default(), 9).await.items[0].usage.month, MONTH);

    let all = UsageBy { bot: true, user: true, task: true, model: true };
    assert_eq!(groups(all, 9).await.items.len(), 4);
    assert!(store.usage_groups(one.workspace_id, "2026-12", all, 9).await.unwrap().items.is_empty());
    let ours = other_workspace(store).await;
    assert!(store.usage_groups(ours, MONTH, all, 9).await.unwrap().items.is_empty());
}
