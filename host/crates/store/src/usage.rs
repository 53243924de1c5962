//! The usage and budgets of bots.

use monstrum_types::{BotId, WorkspaceId};

use crate::db::{Arg, args, from_row, values};
use crate::{EventRow, NewWake, Store, StoreError};

/// The maximum number of months in a usage report: ten years.
const MONTHS_MAX: i64 = 120;

/// The cost of one call, and the bot and task to charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The task id that the caller specified.
    pub task_id: Option<String>,
    /// The month in UTC, such as `2026-11`.
    pub month: String,
    /// The number of tokens, which must not be negative.
    pub tokens: i64,
    /// The number of millionths of a credit, which must not be negative.
    pub credits_millionths: i64,
}

/// A row that is written in the transaction of the audit rows, so that either both are on disk or neither is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRow {
    /// Charges a call to its bot and task. The charge is not written if the bot does not exist or the call exceeds the
    /// bot's monthly token budget.
    Charge(Charge),
    /// Adds past usage regardless of the budget. The usage is not written if the bot does not exist.
    Usage(Charge),
    /// Requests a turn. See [`NewWake`] for when the request is not written.
    Wake(NewWake),
    /// Inserts an event. The event is not written if its workspace does not exist.
    Event(Box<EventRow>),
}

/// The usage in one month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    pub month: String,
    pub tokens: i64,
    pub credits_millionths: i64,
    /// The number of calls.
    pub calls: i64,
}

/// The token budget of a bot and its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The monthly token budget; `None` means unlimited.
    pub budget: Option<i64>,
    pub tokens: i64,
}

/// The tokens that a bot has spent in a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BotSpent {
    pub bot_id: BotId,
    pub tokens: i64,
}

from_row! { BotSpent { bot_id, tokens } }

from_row! { UsageRow { month, tokens, credits_millionths, calls } }

from_row! { Spent { budget, tokens } }

/// Adds a call to its bot's usage in a month, if the bot exists and the condition `$first` holds. Later calls in the
/// month also require `$further`. Credits saturate at the maximum value of a 64-bit integer.
macro_rules! charge {
    ($tokens:literal, $first:literal, $further:literal) => {
        concat!(
            "insert into bot_usage (workspace_id, bot_id, month, tokens, credits_millionths, calls) \
             select workspace_id, id, $3, cast($4 as bigint), cast($5 as bigint), 1 from bots \
             where workspace_id = $1 and id = $2 ",
            $first,
            " on conflict (bot_id, month) do update set tokens = ",
            $tokens,
            ", credits_millionths = case \
             when bot_usage.credits_millionths > 9223372036854775807 - excluded.credits_millionths \
             then 9223372036854775807 else bot_usage.credits_millionths + excluded.credits_millionths end, \
             calls = bot_usage.calls + 1",
            $further,
        )
    };
}

/// Charges a call that is within the budget of its bot. A call with zero tokens is always within the budget. The upsert
/// locks the row of that month, so that each charge takes concurrent charges into account.
const CHARGE: &str = charge!(
    "bot_usage.tokens + excluded.tokens",
    "and ($4 = 0 or $4 <= coalesce(monthly_token_budget, 9223372036854775807))",
    " where excluded.tokens = 0 or bot_usage.tokens <= \
      coalesce((select monthly_token_budget from bots where id = $2), 9223372036854775807) - excluded.tokens"
);

/// Adds usage regardless of the budget. Like credits, tokens saturate at the maximum value of a 64-bit integer.
const ADD: &str = charge!(
    "case when bot_usage.tokens > 9223372036854775807 - excluded.tokens \
     then 9223372036854775807 else bot_usage.tokens + excluded.tokens end",
    "",
    ""
);

/// Adds a call to the usage of its task. The tokens of a task never exceed the tokens of its bot.
const CHARGE_TASK: &str = "\
    insert into task_usage (workspace_id, bot_id, month, task_id, tokens, credits_millionths, calls) \
    values ($1, $2, $3, $6, $4, $5, 1) on conflict (bot_id, month, task_id) do update set \
    tokens = case when task_usage.tokens > 9223372036854775807 - excluded.tokens \
    then 9223372036854775807 else task_usage.tokens + excluded.tokens end, \
    credits_millionths = case when task_usage.credits_millionths > 9223372036854775807 - excluded.credits_millionths \
    then 9223372036854775807 else task_usage.credits_millionths + excluded.credits_millionths end, \
    calls = task_usage.calls + 1";

const SPENT: &str = "select monthly_token_budget as budget, \
    coalesce((select tokens from bot_usage where bot_id = $2 and month = $3), 0) as tokens \
    from bots where workspace_id = $1 and id = $2";

const SPENT_BY_BOTS: &str = "select bot_id, tokens from bot_usage where workspace_id = $1 and month = $2 and tokens > 0 \
    and bot_id in (select id from bots where workspace_id = $1 and monthly_token_budget is not null) order by bot_id";

const OF_BOT: &str = "select month, tokens, credits_millionths, calls from bot_usage \
    where workspace_id = $1 and bot_id = $2 order by month desc limit $3";

const OF_TASK: &str = "select month, tokens, credits_millionths, calls from task_usage \
    where workspace_id = $1 and bot_id = $2 and task_id = $3 order by month desc limit $4";

impl StoreRow {
    /// Returns the sort key of the row. All transactions write their rows in this order, and therefore lock rows in the
    /// same order.
    pub(crate) fn lock_order(&self) -> (u8, String) {
        match self {
            StoreRow::Charge(charge) | StoreRow::Usage(charge) => (0, charge.bot_id.to_string()),
            StoreRow::Event(event) => (1, event.id.to_string()),
            StoreRow::Wake(wake) => (2, wake.key.to_string()),
        }
    }

    /// Returns the approximate size of the row, without fields that are always short.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            StoreRow::Charge(_) | StoreRow::Usage(_) | StoreRow::Wake(_) => 0,
            StoreRow::Event(event) => event.sealed.len(),
        }
    }

    /// Returns the statements that write the row, in order. If a statement changes nothing, the remaining statements do
    /// not run, and the row is not written.
    pub(crate) fn statements(&self) -> Vec<(&'static str, Vec<Arg<'_>>)> {
        match self {
            StoreRow::Charge(charge) => charge.statements(CHARGE),
            StoreRow::Usage(charge) => charge.statements(ADD),
            StoreRow::Event(event) => vec![event.statement()],
            StoreRow::Wake(wake) => vec![wake.statement()],
        }
    }
}

impl Charge {
    fn statements(&self, of_bot: &'static str) -> Vec<(&'static str, Vec<Arg<'_>>)> {
        let Charge { workspace_id, bot_id, task_id, month, tokens, credits_millionths } = self;
        let task = task_id.as_deref().unwrap_or_default();
        vec![
            (of_bot, values![workspace_id, bot_id, month, tokens, credits_millionths]),
            (CHARGE_TASK, values![workspace_id, bot_id, month, tokens, credits_millionths, task]),
        ]
    }
}

impl Store {
    /// Returns the budget of a bot and its usage in a month, or `None` if the bot does not exist.
    pub async fn spent(&self, workspace: WorkspaceId, bot: BotId, month: &str) -> Result<Option<Spent>, StoreError> {
        self.db.one(SPENT, args![workspace, bot, month]).await
    }

    /// Returns the tokens that each bot of the workspace with a budget has spent in a month. Bots that have spent none are
    /// left out.
    pub async fn spent_by_bots(&self, workspace: WorkspaceId, month: &str) -> Result<Vec<BotSpent>, StoreError> {
        self.db.all(SPENT_BY_BOTS, args![workspace, month]).await
    }

    /// Returns the usage of a bot, or of one task of the bot, for each month. The newest month is first, and at most
    /// 120 months are returned.
    pub async fn usage(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        task_id: Option<&str>,
    ) -> Result<Vec<UsageRow>, StoreError> {
        match task_id {
            Some(task) => self.db.all(OF_TASK, args![workspace, bot, task, MONTHS_MAX]).await,
            None => self.db.all(OF_BOT, args![workspace, bot, MONTHS_MAX]).await,
        }
    }
}
