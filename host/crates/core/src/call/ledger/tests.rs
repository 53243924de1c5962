use std::time::Duration;

use futures::FutureExt as _;
use monstrum_store::{BotRow, BudgetLimits, DEFAULT_WORKSPACE, Payer, Spent, StoreOptions, UsageRow};
use monstrum_types::{FixedClock, RequestId};
use monstrum_vault::AuditKeys;
use parking_lot::Mutex;

use super::*;
use crate::audit::{HEADS_FILE, Heads, KeyRing};
use crate::call_types::incoming::IncomingCall;
use crate::policy::row_seals;

const DAY_MS: i64 = 24 * 3600 * 1000;

struct Books {
    ledger: Ledger,
    auditor: Auditor,
    clock: Arc<FixedClock>,
    /// The limits in force.
    limits: Arc<Mutex<PayerLimits>>,
    bot: BotRow,
    _folder: tempfile::TempDir,
}

/// Opens a ledger with these limits.
fn ledger(store: &Store, auditor: &Auditor, limits: &Arc<Mutex<PayerLimits>>, clock: &Arc<FixedClock>) -> Ledger {
    let limits = Arc::clone(limits);
    let limits = Box::new(move |_: Payers<'_>| *limits.lock());
    Ledger::new(store.clone(), auditor.clone(), limits, Arc::clone(clock) as _, "node".to_owned())
}

fn tokens(limit: i64) -> BudgetLimits {
    BudgetLimits { tokens: Some(limit), credits_millionths: None }
}

fn ann() -> AppUser {
    AppUser { app_id: "app".to_owned(), user_id: "ann".to_owned() }
}

impl Books {
    /// Opens a ledger at noon on 30 November 2026, for a bot whose monthly budget is `budget`.
    async fn open(budget: i64) -> Books {
        let folder = tempfile::tempdir().unwrap();
        let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let workspace = store.workspace_named(DEFAULT_WORKSPACE).await.unwrap().unwrap();
        let now: UtcMillis = "2026-11-30T12:00:00Z".parse().unwrap();
        let bot = BotRow {
            id: BotId::new(),
            workspace_id: workspace.id,
            name: "bot".to_owned(),
            description: String::new(),
            system_prompt: String::new(),
            model: None,
            use_agent_sandbox: false,
            monthly_token_budget: Some(budget),
            gates: None,
            mcp_subjects: None,
            model_fallbacks: None,
            task_limits: None,
            session_idle_s: None,
            client_tools: None,
            created_at: now,
            updated_at: now,
        };
        store.insert_bot(&bot).await.unwrap();
        let clock = Arc::new(FixedClock::new(now));
        let keys = Arc::new(AuditKeys::generate(1).unwrap());
        let heads = Heads::open(&folder.path().join(HEADS_FILE), &KeyRing::default()).unwrap();
        let auditor = Auditor::start(store.clone(), keys, heads, "node".to_owned(), 0, Arc::clone(&clock) as _);
        let (auditor, _) = auditor.await.unwrap();
        let of_bot = BudgetLimits { tokens: Some(budget), credits_millionths: None };
        let limits = Arc::new(Mutex::new(PayerLimits { bot: of_bot, ..PayerLimits::default() }));
        let ledger = ledger(&store, &auditor, &limits, &clock);
        Books { ledger, auditor, clock, limits, bot, _folder: folder }
    }

    async fn charge(&self, cost: Cost) -> Result<(), (Code, String)> {
        self.charge_task(None, cost).await
    }

    async fn charge_task(&self, task_id: Option<&str>, cost: Cost) -> Result<(), (Code, String)> {
        self.charge_for(None, task_id, cost).await
    }

    async fn charge_for(&self, user: Option<AppUser>, task_id: Option<&str>, cost: Cost) -> Result<(), (Code, String)> {
        let refused = self.ledger.charge((self.bot.workspace_id, self.bot.id, user), task_id, cost).await;
        refused.map_or(Ok(()), |end| Err((end.code.unwrap(), end.message.unwrap())))
    }
}

#[tokio::test]
async fn a_new_month_has_a_new_budget() {
    let books = Books::open(10).await;
    let cost = Cost { tokens: 6, credits: 0.1 };
    assert_eq!(books.charge(cost).await, Ok(()));
    let refused = |month: &str| {
        let message =
            format!("this call costs 6 tokens and exceeds the bot's budget for {month} (6 of 10 tokens are spent)");
        Err((Code::Budget, message))
    };
    assert_eq!(books.charge(cost).await, refused("2026-11"));
    books.clock.advance_ms(DAY_MS / 2 - 1);
    assert_eq!(books.charge(cost).await, refused("2026-11"), "the last millisecond");
    books.clock.advance_ms(1);
    assert_eq!(books.charge(cost).await, Ok(()));
    assert_eq!(books.charge(cost).await, refused("2026-12"));
    let rows = books.ledger.store.usage(books.bot.workspace_id, books.bot.id, None).await.unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (row.month.as_str(), row.tokens, row.credits_millionths)).collect();
    assert_eq!(rows, [("2026-12", 6, 100_000), ("2026-11", 6, 100_000)]);
    books.auditor.close();
}

#[tokio::test]
async fn a_task_id_with_nul_fails_no_row_of_other_calls() {
    let books = Books::open(10).await;
    assert_eq!(books.charge_task(Some("a\0b"), Cost { tokens: 1, credits: 0.0 }).await, Ok(()));
    assert!(books.auditor.is_healthy());
    let row = &books.ledger.store.usage(books.bot.workspace_id, books.bot.id, Some("a\u{fffd}b")).await.unwrap()[0];
    assert_eq!((row.tokens, row.calls), (1, 1));
    books.auditor.close();
}

/// The database rejects the text of the first charge.
#[tokio::test]
async fn a_charge_that_the_database_rejects_fails_no_row_of_other_calls() {
    let books = Books::open(10).await;
    let BotRow { workspace_id, id, .. } = books.bot;
    let charge = |task_id: &str| Charge {
        workspace_id,
        bot_id: id,
        user: None,
        task_id: Some(task_id.to_owned()),
        month: "2026-11".to_owned(),
        tokens: 1,
        credits_millionths: 0,
        limits: PayerLimits::default(),
    };
    let params = serde_json::json!({});
    let call = IncomingCall::bot_tool(RequestId::new(), workspace_id, id, "tool".to_owned(), params);
    let entry = books.auditor.open(&call, Arc::default()).unwrap();
    let (rejected, started) = tokio::join!(books.auditor.charge(charge("a\0b")), entry.started());
    assert_eq!((rejected, started), (Err(AuditUnavailable), Ok(())));
    assert!(books.auditor.is_healthy());
    assert_eq!(books.auditor.charge(charge("task")).await, Ok(true));
    books.auditor.close();
}

#[tokio::test]
async fn what_cannot_be_charged_does_not_run() {
    let books = Books::open(10).await;
    books.ledger.store.close().await;
    for _ in 0..2 {
        let (code, _) = books.charge(Cost { tokens: 1, credits: 0.0 }).await.unwrap_err();
        assert_eq!(code, Code::Unavailable);
    }
    books.auditor.close();
}

const NONE: BudgetLimits = BudgetLimits { tokens: None, credits_millionths: None };
const PRICE: Price = Price { input: 2_000_000, cached_input: 500_000, output: 10_000_000 };

impl Books {
    fn set(&self, workspace: BudgetLimits, bot: BudgetLimits, user: BudgetLimits) {
        *self.limits.lock() = PayerLimits { workspace, bot, user };
    }

    /// Opens the ledger of another host.
    fn other_host(&self) -> Ledger {
        let limits = Arc::clone(&self.limits);
        let limits = Box::new(move |_: Payers<'_>| *limits.lock());
        let store = self.ledger.store.clone();
        Ledger::new(store, self.auditor.clone(), limits, Arc::clone(&self.clock) as _, "other".to_owned())
    }

    fn request(&self, input_tokens: u64, output_tokens: u64) -> ReserveRequest {
        ReserveRequest {
            workspace_id: self.bot.workspace_id,
            bot_id: self.bot.id,
            user: Some(ann()),
            task_id: Some("task".to_owned()),
            request_id: RequestId::new(),
            model: "openai/gpt".to_owned(),
            input_tokens,
            output_tokens,
            price: Some(PRICE),
            is_retry: false,
        }
    }

    async fn reserve(&self, input_tokens: u64, output_tokens: u64) -> Result<Reservation, (Code, String)> {
        let reserved = self.ledger.reserve(self.request(input_tokens, output_tokens)).await;
        reserved.map_err(|refused| {
            assert_eq!(refused.rule.as_deref(), Some("budget"));
            (refused.code.unwrap(), refused.message.unwrap())
        })
    }

    async fn spent(&self) -> [Spent; 3] {
        let spent = async |payer| self.ledger.store.spent(self.bot.workspace_id, &payer, "2026-11").await.unwrap();
        [spent(Payer::Workspace).await, spent(Payer::Bot(self.bot.id)).await, spent(Payer::User(ann())).await]
    }

    async fn usage(&self) -> Vec<UsageRow> {
        self.ledger.store.usage(self.bot.workspace_id, self.bot.id, Some("task")).await.unwrap()
    }
}

fn round(tokens_input: i64, tokens_output: i64, credits_millionths: i64, rounds_estimated: i64) -> UsageRow {
    UsageRow {
        month: "2026-11".to_owned(),
        tokens: tokens_input + tokens_output,
        tokens_input,
        tokens_output,
        credits_millionths,
        rounds: 1,
        rounds_estimated,
        calls: 0,
    }
}

#[tokio::test]
async fn a_call_is_refused_by_the_budget_of_each_subject() {
    let books = Books::open(10).await;
    let cost = Cost { tokens: 6, credits: 0.5 };
    for (name, limits) in
        [("workspace", [tokens(5), NONE, NONE]), ("bot", [NONE, tokens(5), NONE]), ("user", [NONE, NONE, tokens(5)])]
    {
        let [workspace, bot, user] = limits;
        books.set(workspace, bot, user);
        let (code, message) = books.charge_for(Some(ann()), None, cost).await.unwrap_err();
        assert_eq!(code, Code::Budget);
        let expected =
            format!("this call costs 6 tokens and exceeds the {name}'s budget for 2026-11 (0 of 5 tokens are spent)");
        assert_eq!(message, expected);
        assert_eq!(books.spent().await, [Spent::default(); 3], "a refused call charges no subject");
    }
    books.set(tokens(6), BudgetLimits { tokens: Some(6), credits_millionths: Some(500_000) }, tokens(6));
    assert_eq!(books.charge_for(Some(ann()), None, cost).await, Ok(()));
    let spent = Spent { tokens: 6, credits_millionths: 500_000, ..Spent::default() };
    assert_eq!(books.spent().await, [spent; 3]);
    let (_, message) = books.charge_for(None, None, Cost { tokens: 0, credits: 0.1 }).await.unwrap_err();
    assert_eq!(
        message,
        "this call costs 0.1 credits and exceeds the bot's budget for 2026-11 (0.5 of 0.5 credits are spent)"
    );
    books.auditor.close();
}

#[tokio::test]
async fn a_round_is_reserved_on_all_subjects_and_settled_as_used() {
    let books = Books::open(10_000).await;
    let reservation = books.reserve(1000, 2000).await.unwrap();
    assert_eq!(reservation.output_tokens(), 2000);
    let reserved = Spent { tokens_reserved: 3000, credits_reserved_millionths: 22_000, ..Spent::default() };
    assert_eq!(books.spent().await, [reserved; 3]);
    // More than was reserved is charged too.
    let used = Used { input_tokens: 1200, cached_input_tokens: 200, output_tokens: 2500, is_estimated: false };
    reservation.settle(used).await;
    let spent = Spent { tokens: 3700, credits_millionths: 27_100, ..Spent::default() };
    assert_eq!(books.spent().await, [spent; 3]);
    assert_eq!(books.usage().await, [round(1200, 2500, 27_100, 0)]);
    books.auditor.close();
}

#[tokio::test]
async fn a_retry_is_charged_but_not_counted_as_a_round() {
    let books = Books::open(10_000).await;
    let used = |output_tokens| Used { input_tokens: 100, output_tokens, is_estimated: true, ..Used::default() };
    books.reserve(100, 2000).await.unwrap().settle(used(10)).await;
    let again = ReserveRequest { is_retry: true, ..books.request(100, 2000) };
    books.ledger.reserve(again).await.unwrap().settle(used(20)).await;
    assert_eq!(books.usage().await, [round(200, 30, 700, 1)]);
    books.auditor.close();
}

#[tokio::test]
async fn usage_beyond_the_budget_is_charged() {
    let books = Books::open(500).await;
    let reservation = books.reserve(100, 4000).await.unwrap();
    assert_eq!(reservation.output_tokens(), 400);
    reservation.settle(Used { input_tokens: 900, output_tokens: 300, ..Used::default() }).await;
    assert_eq!(books.spent().await[1].tokens, 1200);
    let (code, message) = books.reserve(1, 256).await.unwrap_err();
    assert_eq!(code, Code::Budget);
    assert_eq!(
        message,
        "this round needs at least 257 tokens and exceeds the bot's budget for 2026-11 (1200 of 500 tokens are spent)"
    );
    books.auditor.close();
}

#[tokio::test]
async fn the_output_is_lowered_and_never_below_the_minimum() {
    let books = Books::open(0).await;
    for (name, limits) in [
        ("workspace", [tokens(1256), NONE, NONE]),
        ("bot", [NONE, tokens(1256), NONE]),
        ("user", [NONE, NONE, tokens(1256)]),
    ] {
        let [workspace, bot, user] = limits;
        books.set(workspace, bot, user);
        let before = books.spent().await;
        let (code, message) = books.reserve(1001, 4000).await.unwrap_err();
        assert_eq!(code, Code::Budget);
        assert!(message.contains(&format!("exceeds the {name}'s budget")), "{message}");
        assert_eq!(books.spent().await, before, "a refused round reserves nothing");
        let reservation = books.reserve(1000, 4000).await.unwrap();
        assert_eq!(reservation.output_tokens(), OUTPUT_TOKENS_MIN);
        reservation.settle(Used::default()).await;
    }
    books.auditor.close();
}

#[tokio::test]
async fn reservations_at_once_never_exceed_a_budget() {
    // Each round needs at least 100 + 256 tokens and asks for 100 + 300.
    let books = Arc::new(Books::open(2_500).await);
    let reserving = (0..50).map(|_| {
        let books = Arc::clone(&books);
        tokio::spawn(async move { books.reserve(100, 300).await })
    });
    let mut reservations = Vec::new();
    for reserved in reserving.collect::<Vec<_>>() {
        match reserved.await.unwrap() {
            Ok(reservation) => reservations.push(reservation),
            Err((code, _)) => assert_eq!(code, Code::Budget),
        }
    }
    let outputs: Vec<u64> = reservations.iter().map(Reservation::output_tokens).collect();
    assert_eq!(outputs, [300; 6], "the seventh round has no room for the fewest tokens");
    assert_eq!(books.spent().await[1].tokens_reserved, 2_400);
    // A call is refused, although the tokens are only reserved.
    let (_, message) = books.charge(Cost { tokens: 101, credits: 0.0 }).await.unwrap_err();
    assert_eq!(
        message,
        "this call costs 101 tokens and exceeds the bot's budget for 2026-11 (0 of 2500 tokens are spent, and 2400 are \
         reserved for running rounds)"
    );
    assert_eq!(books.charge(Cost { tokens: 100, credits: 0.0 }).await, Ok(()));
    for reservation in reservations {
        reservation.settle(Used { input_tokens: 100, output_tokens: 10, ..Used::default() }).await;
    }
    let spent = books.spent().await[1];
    assert_eq!((spent.tokens, spent.tokens_reserved), (100 + 6 * 110, 0));
    books.auditor.close();
}

#[tokio::test]
async fn a_reservation_that_is_dropped_before_its_round_is_sent_is_released() {
    let books = Books::open(10_000).await;
    drop(books.reserve(1000, 2000).await.unwrap());
    books.ledger.shut_down().await;
    assert_eq!(books.usage().await, []);
    assert_eq!(books.spent().await, [Spent::default(); 3]);
    books.auditor.close();
}

/// The caller of `reserve` is dropped before it knows that the reservation is on disk.
#[tokio::test]
async fn a_reservation_that_nobody_receives_is_released() {
    let books = Books::open(10_000).await;
    let tasks = &books.ledger.settling.tasks;
    let mut reserving = Box::pin(books.ledger.reserve(books.request(1000, 2000)));
    assert!((&mut reserving).now_or_never().is_none(), "the task has not run yet");
    tasks.close();
    tasks.wait().await;
    assert_eq!(books.spent().await[0].tokens_reserved, 3000, "the reservation is on disk");
    drop(reserving);
    tasks.wait().await;
    assert_eq!(books.spent().await, [Spent::default(); 3]);

    let mut reserving = Box::pin(books.ledger.reserve(books.request(1000, 2000)));
    assert!((&mut reserving).now_or_never().is_none(), "the task has not run yet");
    drop(reserving);
    tasks.wait().await;
    assert_eq!(books.spent().await, [Spent::default(); 3]);
    assert_eq!(books.usage().await, []);
    books.auditor.close();
}

#[tokio::test]
async fn a_reservation_that_is_dropped_after_its_round_was_sent_is_charged_as_a_whole() {
    let books = Books::open(10_000).await;
    let mut reservation = books.reserve(1000, 2000).await.unwrap();
    reservation.begin();
    drop(reservation);
    books.ledger.shut_down().await;
    assert_eq!(books.usage().await, [round(1000, 2000, 22_000, 1)]);
    let whole = Spent { tokens: 3000, credits_millionths: 22_000, ..Spent::default() };
    assert_eq!(books.spent().await, [whole; 3]);
    books.auditor.close();
}

/// The caller of `settle` is dropped before the charge is written.
#[tokio::test]
async fn a_cancelled_settlement_is_charged_as_used() {
    let books = Books::open(10_000).await;
    let reservation = books.reserve(1000, 2000).await.unwrap();
    let used = Used { input_tokens: 7, output_tokens: 5, is_estimated: true, ..Used::default() };
    let mut settling = Box::pin(reservation.settle(used));
    assert!((&mut settling).now_or_never().is_none(), "the task has not run yet");
    drop(settling);
    books.ledger.shut_down().await;
    assert_eq!(books.usage().await, [round(7, 5, 64, 1)]);
    books.auditor.close();
}

#[tokio::test]
async fn the_next_run_charges_what_a_dead_run_has_reserved() {
    let books = Books::open(10_000).await;
    let store = books.ledger.store.clone();
    // The process ended without a drop.
    std::mem::forget(books.reserve(1000, 2000).await.unwrap());
    let next = ledger(&store, &books.auditor, &books.limits, &books.clock);
    next.settle_lost().await.unwrap();
    assert_eq!(books.usage().await, [round(1000, 2000, 22_000, 1)]);
    assert_eq!(books.spent().await[0].tokens_reserved, 0);
    next.settle_lost().await.unwrap();
    assert_eq!(books.usage().await.len(), 1, "nothing is charged twice");
    books.auditor.close();
}

#[tokio::test]
async fn a_reservation_of_another_host_is_charged_when_it_expires() {
    let books = Books::open(10_000).await;
    let reservation = books.reserve(1000, 2000).await.unwrap();
    let other = books.other_host();
    other.settle_lost().await.unwrap();
    other.settle_expired().await.unwrap();
    assert_eq!(books.usage().await, [], "the host of the reservation may be running");
    books.clock.advance_ms(3 * 3600 * 1000);
    other.settle_expired().await.unwrap();
    let whole = [round(1000, 2000, 22_000, 1)];
    assert_eq!(books.usage().await, whole);
    // The host was running after all: nothing is charged twice.
    reservation.settle(Used { input_tokens: 1, output_tokens: 1, ..Used::default() }).await;
    assert_eq!(books.usage().await, whole);
    books.auditor.close();
}

#[tokio::test]
async fn the_next_turn_of_a_task_charges_what_a_dead_host_has_reserved() {
    let books = Books::open(10_000).await;
    let task = TaskId::new();
    let request = ReserveRequest { task_id: Some(task.to_string()), ..books.request(1000, 2000) };
    // The process ended without a drop.
    std::mem::forget(books.ledger.reserve(request).await.unwrap());
    let usage = async || {
        let id = task.to_string();
        books.ledger.store.usage(books.bot.workspace_id, books.bot.id, Some(&id)).await.unwrap()
    };
    books.ledger.settle_of_task(books.bot.workspace_id, task).await.unwrap();
    assert_eq!(usage().await, [], "a host settles the rounds of its own turns");
    let other = books.other_host();
    other.settle_of_task(books.bot.workspace_id, TaskId::new()).await.unwrap();
    assert_eq!(usage().await, [], "the round of another task");
    other.settle_of_task(books.bot.workspace_id, task).await.unwrap();
    assert_eq!(usage().await, [round(1000, 2000, 22_000, 1)]);
    assert_eq!(books.spent().await[0].tokens_reserved, 0);
    books.auditor.close();
}

/// The month in which a round began pays for it.
#[tokio::test]
async fn a_round_is_charged_to_the_month_of_its_reservation() {
    let books = Books::open(10_000).await;
    let reservation = books.reserve(100, 300).await.unwrap();
    books.clock.advance_ms(DAY_MS);
    reservation.settle(Used { input_tokens: 100, output_tokens: 200, ..Used::default() }).await;
    assert_eq!(books.usage().await[0].month, "2026-11");
    books.auditor.close();
}

#[tokio::test]
async fn a_round_does_not_run_if_the_budgets_cannot_be_read() {
    let books = Books::open(10_000).await;
    let reservation = books.reserve(100, 300).await.unwrap();
    books.ledger.store.close().await;
    let refused = books.ledger.reserve(books.request(100, 300)).await.unwrap_err();
    assert_eq!(refused.code, Some(Code::Unavailable));
    // The settlement is not waited for while the database is unavailable.
    tokio::time::timeout(Duration::from_secs(20), reservation.settle(Used::default())).await.unwrap();
    books.ledger.shut_down().await;
    books.auditor.close();
}

#[tokio::test]
async fn a_round_of_a_deleted_bot_is_refused_but_a_running_round_is_charged() {
    let books = Books::open(10_000).await;
    let reservation = books.reserve(100, 300).await.unwrap();
    assert!(books.ledger.store.delete_bot(books.bot.workspace_id, books.bot.id).await.unwrap());
    let (code, message) = books.reserve(100, 300).await.unwrap_err();
    assert_eq!((code, message.as_str()), (Code::Budget, "the bot of this round was deleted"));
    reservation.settle(Used { input_tokens: 100, output_tokens: 200, ..Used::default() }).await;
    assert_eq!(books.spent().await[0].tokens, 300);
    books.auditor.close();
}
