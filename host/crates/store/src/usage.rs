//! What the calls of bots have cost, and whether a further one fits into a budget.

use monstrum_types::{BotId, WorkspaceId};

use crate::db::{FromRow, Row, Session, args};
use crate::{Store, StoreError};

/// How often a charge is tried that meets others which wait for each other.
const ATTEMPTS_MAX: u32 = 5;
/// Ten years.
const MONTHS_MAX: i64 = 120;

/// The cost of one call, and on whose account it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The task that the caller has named, if it has.
    pub task_id: Option<&'a str>,
    /// In UTC, such as `2026-11`.
    pub month: &'a str,
    /// Not negative.
    pub tokens: i64,
    /// Not negative.
    pub credits_millionths: i64,
}

/// What a month has cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    pub month: String,
    pub tokens: i64,
    pub credits_millionths: i64,
    /// How many calls have cost that.
    pub calls: i64,
}

/// A bot's budget, and what of it is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// `None` for no limit.
    pub budget: Option<i64>,
    pub tokens: i64,
}

impl FromRow for UsageRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(UsageRow {
            month: row.text("month")?,
            tokens: row.int("tokens")?,
            credits_millionths: row.int("credits_millionths")?,
            calls: row.int("calls")?,
        })
    }
}

impl FromRow for Spent {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(Spent { budget: row.int_opt("budget")?, tokens: row.int("tokens")? })
    }
}

/// Adds a call to the bot's month, if the bot is there and its budget has room for it. A call without tokens always fits. The
/// row of the month is locked by whoever comes first, so each sees what all before it have spent; where the sum would pass the
/// largest number it stays there.
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

/// The same for the task; what it has spent is never more than its bot.
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
    /// Charges a call to its bot and task, exactly once and on disk when this returns; false, and nothing is charged, where
    /// the bot's monthly token budget has no room for it.
    pub async fn charge(&self, charge: &Charge<'_>) -> Result<bool, StoreError> {
        let mut attempt = 1;
        loop {
            match self.charge_once(charge).await {
                Err(error) if error.is_contention() && attempt < ATTEMPTS_MAX => attempt += 1,
                done => return done,
            }
        }
    }

    async fn charge_once(&self, charge: &Charge<'_>) -> Result<bool, StoreError> {
        let Charge { workspace_id, bot_id, task_id, month, tokens, credits_millionths } = *charge;
        let mut session: Session = self.db.write().await?;
        let args = args![workspace_id, bot_id, month, tokens, credits_millionths];
        if session.run(CHARGE, args).await? == 0 {
            return Ok(false);
        }
        let task = task_id.unwrap_or_default();
        session.run(CHARGE_TASK, args![workspace_id, bot_id, month, task, tokens, credits_millionths]).await?;
        session.commit().await?;
        Ok(true)
    }

    /// What a bot may spend in a month, and what it has spent of that; `None` where there is no such bot.
    pub async fn spent(&self, workspace: WorkspaceId, bot: BotId, month: &str) -> Result<Option<Spent>, StoreError> {
        self.db.one(SPENT, args![workspace, bot, month]).await
    }

    /// What a bot's calls have cost, the newest month first, 120 at most; those of one task, or of all.
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
