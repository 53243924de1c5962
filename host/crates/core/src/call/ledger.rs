//! Charges the cost of calls and rounds to the workspace, the bot and the user. A call that exceeds the budget of one of
//! them is refused.
//!
//! The charge of a call is on disk before the plugin starts, and one statement checks and charges all three subjects, so
//! concurrent calls, several hosts and restarts cannot exceed a budget. A charge is never refunded: a call that ran costs
//! the amount in its manifest, even if it failed. Calls that were refused earlier, and tools without a cost, are not
//! charged.
//!
//! The cost of a round is known only after the round, so a round reserves the most that it can cost (see
//! [`Ledger::reserve`]).

mod budget;
mod reservation;
mod settling;

use std::sync::Arc;

use monstrum_manifest::Cost;
use monstrum_store::{Charge, PayerLimits, ReservationFilter, Store, StoreError};
use monstrum_types::{AppUser, BotId, CallOutcome, Clock, Code, TaskId, UtcMillis, WorkspaceId};

pub use self::reservation::{OUTPUT_TOKENS_MIN, Price, Reservation, ReserveRequest, Used};

use self::budget::{Amount, Exceeded, PAYERS};
use self::settling::Settling;
use crate::audit::{AuditUnavailable, Auditor};

/// The subjects that pay for a call.
#[derive(Clone, Copy, Debug)]
pub struct Payers<'a> {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    pub user: Option<&'a AppUser>,
}

/// Returns the limits in force of the subjects that pay for a call.
pub type LimitsInForce = Box<dyn Fn(Payers<'_>) -> PayerLimits + Send + Sync>;

/// Charges calls and rounds to the budgets of workspaces, bots and users.
pub struct Ledger {
    store: Store,
    auditor: Auditor,
    limits: LimitsInForce,
    clock: Arc<dyn Clock>,
    /// The id of this host.
    node: String,
    settling: Arc<Settling>,
}

impl Ledger {
    /// Opens the ledger of the host `node`. The limits come from the verified policy, so a budget that another program
    /// writes to the database permits nothing.
    pub fn new(store: Store, auditor: Auditor, limits: LimitsInForce, clock: Arc<dyn Clock>, node: String) -> Ledger {
        let settling = Arc::new(Settling::new(store.clone()));
        Ledger { store, auditor, limits, clock, node, settling }
    }

    /// Charges `cost` to a workspace, a bot, a user and a task. Returns an outcome if the call must not run.
    pub async fn charge(
        &self,
        (workspace_id, bot_id, user): (WorkspaceId, BotId, Option<AppUser>),
        task_id: Option<&str>,
        cost: Cost,
    ) -> Option<CallOutcome> {
        let month = month(self.clock.now());
        let tokens = i64::try_from(cost.tokens).unwrap_or(i64::MAX);
        let credits_millionths = cost.credits_millionths();
        // A failed charge would also fail the rows of other calls.
        let (user, task_id) = (user.as_ref().map(storable_user), task_id.map(storable));
        let limits = (self.limits)(Payers { workspace: workspace_id, bot: bot_id, user: user.as_ref() });
        let charge = Charge { workspace_id, bot_id, user, task_id, month, tokens, credits_millionths, limits };
        match self.auditor.charge(charge.clone()).await {
            Ok(true) => None,
            Ok(false) => Some(self.refusal(&charge).await),
            Err(AuditUnavailable) => Some(cannot_be_written()),
        }
    }

    /// Returns the outcome of a call whose charge was refused.
    async fn refusal(&self, charge: &Charge) -> CallOutcome {
        let mut exceeded = None;
        for (payer, limits) in PAYERS.into_iter().zip(of_payers(&charge.limits)) {
            let Some(subject) = payer.of(charge.bot_id, charge.user.as_ref()) else { continue };
            let spent = match self.store.spent(charge.workspace_id, &subject, &charge.month).await {
                Ok(spent) => spent,
                Err(error) => {
                    tracing::error!(%error, "failed to read what a call exceeds");
                    return cannot_be_written();
                }
            };
            let amount = Amount { tokens: charge.tokens, credits_millionths: charge.credits_millionths };
            exceeded = exceeded.or_else(|| Exceeded::find(payer, limits, spent, amount));
        }
        match exceeded {
            Some(exceeded) => exceeded.outcome("this call costs", &charge.month),
            // The bot was just deleted, or the month has changed its totals since the refusal.
            None => CallOutcome::error(Code::Budget, "this call cannot be charged; try again").by_rule("budget"),
        }
    }

    /// Settles the reservations of an earlier run of this host, and those of hosts that are considered dead, as if their
    /// rounds had used all of them. Call this before the first reservation of this run.
    pub async fn settle_lost(&self) -> Result<(), StoreError> {
        self.settling.settle_whole(ReservationFilter::Lost { node: &self.node, now: self.clock.now() }).await
    }

    /// Settles the reservations of hosts that are considered dead.
    pub async fn settle_expired(&self) -> Result<(), StoreError> {
        self.settling.settle_whole(ReservationFilter::Expired { now: self.clock.now() }).await
    }

    /// Settles the reservations that other hosts have made for a task. Call this when a turn of the task begins: turns are
    /// exclusive, so a host that ran an earlier turn has lost its claim. This host settles the rounds of its own turns.
    pub async fn settle_of_task(&self, workspace: WorkspaceId, task: TaskId) -> Result<(), StoreError> {
        let task_id = task.to_string();
        self.settling.settle_whole(ReservationFilter::OfTask { workspace, task_id: &task_id, node: &self.node }).await
    }

    /// Waits until all reservations are settled. A reservation that the database does not accept now is settled at the
    /// next start.
    pub async fn shut_down(&self) {
        self.settling.shut_down().await;
    }
}

/// Returns the limits in the order of [`PAYERS`].
fn of_payers(limits: &PayerLimits) -> [monstrum_store::BudgetLimits; 3] {
    [limits.workspace, limits.bot, limits.user]
}

/// Replaces U+0000, which the database cannot store.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn storable_user(user: &AppUser) -> AppUser {
    AppUser { app_id: storable(&user.app_id), user_id: storable(&user.user_id) }
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
mod tests;
