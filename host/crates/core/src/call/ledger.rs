//! Charges the cost of calls to the bot and the task before the plugin runs. A call that exceeds the bot's budget is
//! refused.
//!
//! The charge is one SQL statement and is on disk before the plugin starts, so concurrent calls, several hosts and
//! restarts cannot exceed a budget. A charge is never refunded: a call that ran costs the amount in its manifest, even
//! if it failed. Calls that were refused earlier, and tools without a cost, are not charged.

mod reservation;

use std::sync::Arc;

use monstrum_manifest::Cost;
use monstrum_store::{Charge, Spent, Store};
use monstrum_types::{BotId, CallOutcome, Clock, Code, UtcMillis, WorkspaceId};

pub use self::reservation::{OUTPUT_TOKENS_MIN, Price, Reservation, ReserveRequest, Used};

use crate::audit::{AuditUnavailable, Auditor};

/// Charges calls to the budgets of bots.
pub struct Ledger {
    store: Store,
    auditor: Auditor,
    clock: Arc<dyn Clock>,
}

impl Ledger {
    pub fn new(store: Store, auditor: Auditor, clock: Arc<dyn Clock>) -> Ledger {
        Ledger { store, auditor, clock }
    }

    /// Charges `cost` to a bot and a task. Returns an outcome if the call must not run.
    pub async fn charge(
        &self,
        workspace_id: WorkspaceId,
        bot_id: BotId,
        task_id: Option<&str>,
        cost: Cost,
    ) -> Option<CallOutcome> {
        let month = month(self.clock.now());
        let tokens = i64::try_from(cost.tokens).unwrap_or(i64::MAX);
        let credits_millionths = cost.credits_millionths();
        // The database cannot store U+0000, and a failed charge would also fail the rows of other calls.
        let task_id = task_id.map(|id| id.replace('\0', "\u{fffd}"));
        let charge = Charge { workspace_id, bot_id, task_id, month: month.clone(), tokens, credits_millionths };
        let refused = match self.auditor.charge(charge).await {
            Ok(true) => return None,
            Ok(false) => self.store.spent(workspace_id, bot_id, &month).await,
            Err(AuditUnavailable) => return Some(cannot_be_written()),
        };
        Some(match refused {
            Ok(Some(Spent { budget: Some(budget), tokens: spent })) => {
                let message = format!(
                    "this call costs {tokens} tokens and exceeds the bot's budget for {month} ({spent} of {budget} \
                     tokens are spent)"
                );
                CallOutcome::error(Code::Budget, message).by_rule("budget")
            }
            // The bot or its budget was just deleted, or the charge would overflow a counter.
            Ok(_) => CallOutcome::error(Code::Budget, "this call cannot be charged; try again").by_rule("budget"),
            Err(error) => {
                tracing::error!(%error, "failed to read the budget of a bot");
                cannot_be_written()
            }
        })
    }
}

/// Returns the outcome of a call that cannot be charged. Such a call does not run.
fn cannot_be_written() -> CallOutcome {
    CallOutcome::error(Code::Unavailable, "the cost of this call could not be recorded; try again")
}

/// Returns the month in UTC, such as `2026-11`.
pub fn month(now: UtcMillis) -> String {
    now.to_string().chars().take("YYYY-MM".len()).collect()
}

#[cfg(test)]
mod tests {
    use monstrum_store::{BotRow, DEFAULT_WORKSPACE, StoreOptions};
    use monstrum_types::{FixedClock, RequestId};
    use monstrum_vault::AuditKeys;

    use super::*;
    use crate::audit::{HEADS_FILE, Heads, KeyRing};
    use crate::call_types::incoming::IncomingCall;
    use crate::policy::row_seals;

    const DAY_MS: i64 = 24 * 3600 * 1000;

    struct Books {
        ledger: Ledger,
        auditor: Auditor,
        clock: Arc<FixedClock>,
        bot: BotRow,
        _folder: tempfile::TempDir,
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
            let ledger = Ledger::new(store, auditor.clone(), Arc::clone(&clock) as _);
            Books { ledger, auditor, clock, bot, _folder: folder }
        }

        async fn charge(&self, cost: Cost) -> Result<(), (Code, String)> {
            self.charge_task(None, cost).await
        }

        async fn charge_task(&self, task_id: Option<&str>, cost: Cost) -> Result<(), (Code, String)> {
            let refused = self.ledger.charge(self.bot.workspace_id, self.bot.id, task_id, cost).await;
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
            task_id: Some(task_id.to_owned()),
            month: "2026-11".to_owned(),
            tokens: 1,
            credits_millionths: 0,
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
}
