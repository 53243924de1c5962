//! The usage and budgets of bots.

use monstrum_types::{BotId, WorkspaceId};

use crate::db::{args, from_row, retry};
use crate::{Store, StoreError};

/// The maximum number of months in a usage report: ten years.
const MONTHS_MAX: i64 = 120;

/// The cost of one call, and the bot and task to charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The task id that the caller specified.
    pub task_id: Option<&'a str>,
    /// The month in UTC, such as `2026-11`.
    pub month: &'a str,
    /// The number of tokens, which must not be negative.
    pub tokens: i64,
    /// The number of millionths of a credit, which must not be negative.
    pub credits_millionths: i64,
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

from_row! { UsageRow { month, tokens, credits_millionths, calls } }

from_row! { Spent { budget, tokens } }

/// Adds a call to its bot's usage in a month, if the bot exists and the call is within its budget. A call with zero
/// tokens is always within the budget. The upsert locks the row of that month, so that concurrent charges see each
/// other. Credits saturate at the maximum value of a 64-bit integer.
const CHARGE: &str = "\
    insert into bot_usage (workspace_id, bot_id, month, tokens, credits_millionths, calls) \
    select workspace_id, id, $3, cast($4 as bigint), cast($5 as bigint), 1 from bots \
    where workspace_id = $1 and id = $2 \
    and ($4 = 0 or $4 <= coalesce(monthly_token_budget, 9223372036854775807)) \
    on conflict (bot_id, month) do update set \
    tokens = bot_usage.tokens + excluded.tokens, \
    credits_millionths = case when bot_usage.credits_millionths > 9223372036854775807 - excluded.credits_millionths \
    then 9223372036854775807 else bot_usage.credits_millionths + excluded.credits_millionths end, \
    calls = bot_usage.calls + 1 \
    where excluded.tokens = 0 or bot_usage.tokens <= \
    coalesce((select monthly_token_budget from bots where id = $2), 9223372036854775807) - excluded.tokens";

/// Adds a call to its task's usage. The tokens of a task never exceed those of its bot, so they cannot overflow.
const CHARGE_TASK: &str = "\
    insert into task_usage (workspace_id, bot_id, month, task_id, tokens, credits_millionths, calls) \
    values ($1, $2, $3, $4, $5, $6, 1) on conflict (bot_id, month, task_id) do update set \
    tokens = task_usage.tokens + excluded.tokens, \
    credits_millionths = case when task_usage.credits_millionths > 9223372036854775807 - excluded.credits_millionths \
    then 9223372036854775807 else task_usage.credits_millionths + excluded.credits_millionths end, \
    calls = task_usage.calls + 1";

const SPENT: &str = "select monthly_token_budget as budget, \
    coalesce((select tokens from bot_usage where bot_id = $2 and month = $3), 0) as tokens \
    from bots where workspace_id = $1 and id = $2";

const OF_BOT: &str = "select month, tokens, credits_millionths, calls from bot_usage \
    where workspace_id = $1 and bot_id = $2 order by month desc limit $3";

const OF_TASK: &str = "select month, tokens, credits_millionths, calls from task_usage \
    where workspace_id = $1 and bot_id = $2 and task_id = $3 order by month desc limit $4";

impl Store {
    /// Charges a call to its bot and task exactly once. The charge is on disk when this returns. Returns `false` and
    /// charges nothing if the bot does not exist or the call exceeds its monthly token budget.
    pub async fn charge(&self, charge: &Charge<'_>) -> Result<bool, StoreError> {
        retry!(self.charge_once(charge))
    }

    async fn charge_once(&self, charge: &Charge<'_>) -> Result<bool, StoreError> {
        let Charge { workspace_id, bot_id, task_id, month, tokens, credits_millionths } = *charge;
        let mut session = self.db.write().await?;
        let args = args![workspace_id, bot_id, month, tokens, credits_millionths];
        if session.run(CHARGE, args).await? == 0 {
            return Ok(false);
        }
        let task = task_id.unwrap_or_default();
        session.run(CHARGE_TASK, args![workspace_id, bot_id, month, task, tokens, credits_millionths]).await?;
        session.commit().await?;
        Ok(true)
    }

    /// Returns the budget of a bot and its usage in a month, or `None` if the bot does not exist.
    pub async fn spent(&self, workspace: WorkspaceId, bot: BotId, month: &str) -> Result<Option<Spent>, StoreError> {
        self.db.one(SPENT, args![workspace, bot, month]).await
    }

    /// Returns the usage per month of a bot, or of one of its tasks. The newest month is first, and at most 120
    /// months are returned.
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
