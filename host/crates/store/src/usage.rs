//! What calls and rounds have cost, and the reservations of rounds.
//!
//! A charge is paid by three subjects: the workspace, the bot and the user. `usage_totals` has the sums of each subject by
//! month, which budgets are compared with. `usage_rows` has the same usage by bot, task, user and model, for reports.
//!
//! Every transaction that charges or reserves locks the row of the workspace in `usage_totals` first. Therefore the
//! charges and reservations of a workspace take place one after another, whichever host makes them, and each sees the
//! result of those before it. A statement that follows the lock can check all three subjects at once.

mod reports;
mod reservations;

pub use reports::{UsageBy, UsageGroup, UsageGroups};
pub use reservations::{ReservationFilter, ReservationPage, ReservationRow, Used};

use monstrum_types::{AppUser, BotId, WakeKind, WorkspaceId};
use sha2::{Digest as _, Sha256};

use crate::db::{Arg, Session, args, from_row, values};
use crate::{EndedRunStep, EndedStep, EventRow, NewWake, PayerLimits, Store, StoreError};

/// The maximum number of months in a usage report: ten years.
const MONTHS_MAX: i64 = 120;

/// The cost of one call, and the subjects that pay for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The user on whose behalf the call is made.
    pub user: Option<AppUser>,
    /// The task id that the caller specified.
    pub task_id: Option<String>,
    /// The month in UTC, such as `2026-11`.
    pub month: String,
    /// The number of tokens, which must not be negative.
    pub tokens: i64,
    /// The number of millionths of a credit, which must not be negative.
    pub credits_millionths: i64,
    /// The limits of the budgets, which must not be negative.
    pub limits: PayerLimits,
}

/// A row that is written in the transaction of the audit rows, so that either both are on disk or neither is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRow {
    /// Charges a call to its workspace, bot and user. The charge is not written if the bot does not exist or the call
    /// exceeds the limits of one of them.
    Charge(Charge),
    /// Adds past usage regardless of the limits. The usage is not written if the bot does not exist.
    Usage(Charge),
    /// Requests a turn. See [`NewWake`] for when the request is not written.
    Wake(NewWake),
    /// Inserts an event with its wake. The event is not written if its workspace does not exist.
    Event(Box<EventRow>),
    /// Ends a step of a task. The end is not written if the claim of the task was replaced.
    TaskStep(Box<EndedStep>),
    /// Ends an attempt of a step of a run. The end is not written if the claim of the step was replaced.
    RunStep(Box<EndedRunStep>),
}

/// The usage in one month.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageRow {
    pub month: String,
    /// The number of all tokens: those of rounds and those of calls.
    pub tokens: i64,
    /// The number of tokens that models have read.
    pub tokens_input: i64,
    /// The number of tokens that models have written.
    pub tokens_output: i64,
    pub credits_millionths: i64,
    /// The number of rounds.
    pub rounds: i64,
    /// The number of rounds whose tokens are an estimate.
    pub rounds_estimated: i64,
    /// The number of calls with a cost, without the rounds.
    pub calls: i64,
}

/// A subject that pays for calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payer {
    Workspace,
    Bot(BotId),
    User(AppUser),
}

/// What a subject has spent in a month, and what is reserved for running rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub tokens: i64,
    pub credits_millionths: i64,
    pub tokens_reserved: i64,
    pub credits_reserved_millionths: i64,
}

/// The tokens that a bot has spent in a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BotSpent {
    pub bot_id: BotId,
    pub tokens: i64,
}

from_row! { BotSpent { bot_id, tokens } }

from_row! {
    UsageRow { month, tokens, tokens_input, tokens_output, credits_millionths, rounds, rounds_estimated, calls }
}

from_row! { Spent { tokens, credits_millionths, tokens_reserved, credits_reserved_millionths } }

/// Makes an upsert add to the counters of a table. The counters saturate at the maximum value of a 64-bit integer.
macro_rules! adding {
    ($table:literal) => {
        concat!(
            adding!($table, "tokens"),
            ", ",
            adding!($table, "tokens_input"),
            ", ",
            adding!($table, "tokens_output"),
            ", ",
            adding!($table, "credits_millionths"),
            ", ",
            adding!($table, "rounds"),
            ", ",
            adding!($table, "rounds_estimated"),
            ", ",
            adding!($table, "calls"),
        )
    };
    ($table:literal, $column:literal) => {
        concat!(
            $column,
            " = case when ",
            $table,
            ".",
            $column,
            " > 9223372036854775807 - excluded.",
            $column,
            " then 9223372036854775807 else ",
            $table,
            ".",
            $column,
            " + excluded.",
            $column,
            " end",
        )
    };
}

/// Creates and locks the row of a workspace in a month. Writes nothing if the bot does not exist.
const LOCK_OF_BOT: &str = "insert into usage_totals (workspace_id, subject, holder, month, tokens, tokens_input, \
    tokens_output, credits_millionths, rounds, rounds_estimated, calls) \
    select workspace_id, 'workspace', '', $3, 0, 0, 0, 0, 0, 0, 0 from bots where workspace_id = $1 and id = $2 \
    on conflict (workspace_id, subject, holder, month) do update set calls = usage_totals.calls";

/// Like [`LOCK_OF_BOT`], for usage that is charged even if the bot was deleted.
const LOCK: &str = "insert into usage_totals (workspace_id, subject, holder, month, tokens, tokens_input, \
    tokens_output, credits_millionths, rounds, rounds_estimated, calls) \
    values ($1, 'workspace', '', $2, 0, 0, 0, 0, 0, 0, 0) \
    on conflict (workspace_id, subject, holder, month) do update set calls = usage_totals.calls";

/// Adds to the totals of the three subjects, if the condition `$if` holds for all of them. Parameters: 1 workspace, 2 bot,
/// 3 month, 4 key of the user or the empty text, and the counters 5 to 11.
macro_rules! add_totals {
    ($if:expr) => {
        concat!(
            "insert into usage_totals (workspace_id, subject, holder, month, tokens, tokens_input, tokens_output, \
             credits_millionths, rounds, rounds_estimated, calls) \
             select cast($1 as text), payers.subject, payers.holder, cast($3 as text), cast($5 as bigint), \
             cast($6 as bigint), cast($7 as bigint), cast($8 as bigint), cast($9 as bigint), cast($10 as bigint), \
             cast($11 as bigint) \
             from (select 'workspace' as subject, '' as holder union all select 'bot', cast($2 as text) \
             union all select 'user', cast($4 as text)) as payers \
             where (payers.subject <> 'user' or payers.holder <> '')",
            $if,
            " on conflict (workspace_id, subject, holder, month) do update set ",
            adding!("usage_totals"),
        )
    };
}

const ADD_TOTALS: &str = add_totals!("");

/// Whether an amount is more than a limit leaves. The subtraction cannot overflow, because the usage is below the limit
/// where it is evaluated.
macro_rules! exceeds {
    ($amount:literal, $limit:literal, $spent:literal, $reserved:literal) => {
        concat!(
            "(",
            $amount,
            " > 0 and limits.",
            $limit,
            " is not null and case when coalesce(usage_totals.",
            $spent,
            ", 0) >= limits.",
            $limit,
            " then 1 = 1 else ",
            $amount,
            " > limits.",
            $limit,
            " - coalesce(usage_totals.",
            $spent,
            ", 0) - coalesce((select cast(sum(",
            $reserved,
            ") as bigint) from reservations where reservations.workspace_id = $1 and reservations.month = $3 \
             and (limits.subject = 'workspace' or (limits.subject = 'bot' and reservations.bot_id = limits.holder) \
             or (limits.subject = 'user' and reservations.user_key = limits.holder))), 0) end)",
        )
    };
}

/// Adds to the totals of the three subjects, if none of them exceeds its limits. Further parameters: the limits of tokens
/// and credits of the workspace (12, 13), the bot (14, 15) and the user (16, 17).
const CHARGE_TOTALS: &str = add_totals!(concat!(
    " and not exists (select 1 from (select 'workspace' as subject, '' as holder, cast($12 as bigint) as tokens_max, \
     cast($13 as bigint) as credits_max union all select 'bot', cast($2 as text), cast($14 as bigint), \
     cast($15 as bigint) union all select 'user', cast($4 as text), cast($16 as bigint), cast($17 as bigint)) as limits \
     left join usage_totals on usage_totals.workspace_id = $1 and usage_totals.subject = limits.subject \
     and usage_totals.holder = limits.holder and usage_totals.month = $3 \
     where (limits.subject <> 'user' or limits.holder <> '') and (",
    exceeds!("$5", "tokens_max", "tokens", "tokens_input + tokens_output"),
    " or ",
    exceeds!("$8", "credits_max", "credits_millionths", "credits_millionths"),
    "))",
));

/// Adds to the usage of a task.
const ADD_ROW: &str = concat!(
    "insert into usage_rows (bot_id, month, task_id, detail, workspace_id, user_key, model, tokens, tokens_input, \
     tokens_output, credits_millionths, rounds, rounds_estimated, calls) \
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
     on conflict (bot_id, month, task_id, detail) do update set ",
    adding!("usage_rows"),
);

/// What a subject has spent, and what is reserved for it. Reservations have limits that keep the sums in range.
const SPENT: &str = "select coalesce(max(usage_totals.tokens), 0) as tokens, \
    coalesce(max(usage_totals.credits_millionths), 0) as credits_millionths, \
    coalesce((select cast(sum(tokens_input + tokens_output) as bigint) from reservations where workspace_id = $1 \
    and month = $4 and ($2 = 'workspace' or ($2 = 'bot' and bot_id = $3) or ($2 = 'user' and user_key = $3))), 0) \
    as tokens_reserved, \
    coalesce((select cast(sum(credits_millionths) as bigint) from reservations where workspace_id = $1 \
    and month = $4 and ($2 = 'workspace' or ($2 = 'bot' and bot_id = $3) or ($2 = 'user' and user_key = $3))), 0) \
    as credits_reserved_millionths \
    from usage_totals where workspace_id = $1 and subject = $2 and holder = $3 and month = $4";

const SPENT_BY_BOTS: &str = "select holder as bot_id, tokens from usage_totals where workspace_id = $1 \
    and subject = 'bot' and month = $2 and tokens > 0 and holder in (select id from bots where workspace_id = $1 \
    and monthly_token_budget is not null) order by holder";

const OF_BOT: &str = "select month, tokens, tokens_input, tokens_output, credits_millionths, rounds, rounds_estimated, \
    calls from usage_totals where workspace_id = $1 and subject = 'bot' and holder = $2 order by month desc limit $3";

const OF_TASK: &str = "select month, tokens, tokens_input, tokens_output, credits_millionths, rounds, rounds_estimated, \
    calls from usage_rows where workspace_id = $1 and bot_id = $2 and task_id = $3 order by month desc limit $4";

/// The maximum number of rows of a task that are read: one for each month, user and model.
const TASK_ROWS_MAX: i64 = 10_000;

/// Usage to add to the counters.
#[derive(Clone, Copy, Default)]
struct Counters {
    tokens: i64,
    tokens_input: i64,
    tokens_output: i64,
    credits_millionths: i64,
    rounds: i64,
    rounds_estimated: i64,
    calls: i64,
}

/// The subjects that pay, and the columns by which reports group their usage.
#[derive(Clone, Copy)]
struct Account<'a> {
    workspace_id: WorkspaceId,
    bot_id: BotId,
    user_key: &'a str,
    task_id: &'a str,
    model: &'a str,
    month: &'a str,
}

impl Counters {
    fn values(&self) -> Vec<Arg<'static>> {
        let Counters { tokens, tokens_input, tokens_output, credits_millionths, rounds, rounds_estimated, calls } =
            *self;
        values![tokens, tokens_input, tokens_output, credits_millionths, rounds, rounds_estimated, calls]
    }
}

impl Account<'_> {
    /// Returns the text that distinguishes the user and the model.
    fn detail(&self) -> String {
        if self.user_key.is_empty() && self.model.is_empty() {
            return String::new();
        }
        let parts = format!("{}:{}{}", self.user_key.len(), self.user_key, self.model);
        hex::encode(Sha256::digest(parts))
    }

    /// Returns the parameters of [`ADD_TOTALS`].
    fn totals(&self, counters: &Counters) -> Vec<Arg<'static>> {
        let mut args: Vec<Arg<'static>> = values![self.workspace_id, self.bot_id];
        args.extend([owned(self.month), owned(self.user_key)]);
        args.extend(counters.values());
        args
    }

    /// Returns the parameters of [`ADD_ROW`].
    fn row(&self, counters: &Counters) -> Vec<Arg<'static>> {
        let mut args: Vec<Arg<'static>> = values![self.bot_id];
        args.extend([owned(self.month), owned(self.task_id), owned(&self.detail())]);
        args.extend(values![self.workspace_id]);
        args.extend([owned(self.user_key), owned(self.model)]);
        args.extend(counters.values());
        args
    }
}

fn owned(text: &str) -> Arg<'static> {
    Arg::Text(Some(text.to_owned().into()))
}

impl Payer {
    fn subject(&self) -> &'static str {
        match self {
            Payer::Workspace => "workspace",
            Payer::Bot(_) => "bot",
            Payer::User(_) => "user",
        }
    }

    /// Returns the text that identifies the subject within its kind.
    fn holder(&self) -> String {
        match self {
            Payer::Workspace => String::new(),
            Payer::Bot(id) => id.to_string(),
            Payer::User(user) => user.key(),
        }
    }
}

impl StoreRow {
    /// Returns the sort key of the row. All transactions write their rows in this order, and therefore lock rows in the
    /// same order, those of workspaces first.
    pub(crate) fn lock_order(&self) -> (u8, String) {
        match self {
            // A workspace has a row for each month.
            StoreRow::Charge(charge) | StoreRow::Usage(charge) => {
                (0, format!("{}/{}", charge.workspace_id, charge.month))
            }
            StoreRow::Event(event) => (1, event.id.to_string()),
            // The row of the task precedes its wake, because the end of a step only reads the wake.
            StoreRow::TaskStep(step) => (2, format!("{}/{:020}", step.task_id, step.sequence)),
            // The wake of a run precedes its steps, as in the turn of a run.
            StoreRow::Wake(wake) if wake.key.kind() == WakeKind::Run => (3, wake.key.to_string()),
            StoreRow::RunStep(step) => (4, step.lock_order()),
            StoreRow::Wake(wake) => (5, wake.key.to_string()),
        }
    }

    /// Returns the approximate size of the row, without fields that are always short.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            StoreRow::Charge(_) | StoreRow::Usage(_) | StoreRow::Wake(_) => 0,
            StoreRow::Event(event) => event.sealed.len(),
            StoreRow::TaskStep(step) => step.sealed.len(),
            StoreRow::RunStep(step) => step.sealed.len(),
        }
    }

    /// Returns the statements that write the row, in order. If a statement changes nothing, the remaining statements do
    /// not run, and the row is not written. The statements that have run are not undone.
    pub(crate) fn statements(&self) -> Vec<(&'static str, Vec<Arg<'_>>)> {
        match self {
            StoreRow::Charge(charge) => charge.statements(true),
            StoreRow::Usage(charge) => charge.statements(false),
            StoreRow::Event(event) => event.statements().into(),
            StoreRow::TaskStep(step) => step.statements().into(),
            StoreRow::RunStep(step) => vec![step.statement()],
            StoreRow::Wake(wake) => vec![wake.statement()],
        }
    }
}

impl Charge {
    /// Returns the statements of a charge. The first statement only locks, and the second charges all subjects, if
    /// `is_limited` only within their limits.
    fn statements(&self, is_limited: bool) -> Vec<(&'static str, Vec<Arg<'_>>)> {
        let Charge { workspace_id, bot_id, month, tokens, credits_millionths, limits, .. } = self;
        let user_key = self.user.as_ref().map(AppUser::key).unwrap_or_default();
        let account = Account {
            workspace_id: *workspace_id,
            bot_id: *bot_id,
            user_key: &user_key,
            task_id: self.task_id.as_deref().unwrap_or_default(),
            model: "",
            month,
        };
        let (tokens, credits_millionths) = (*tokens, *credits_millionths);
        let counters = Counters { tokens, credits_millionths, calls: 1, ..Counters::default() };
        let mut totals = account.totals(&counters);
        let of_totals = if is_limited {
            for limit in [limits.workspace, limits.bot, limits.user] {
                totals.extend(values![limit.tokens, limit.credits_millionths]);
            }
            CHARGE_TOTALS
        } else {
            ADD_TOTALS
        };
        vec![
            (LOCK_OF_BOT, values![workspace_id, bot_id, month]),
            (of_totals, totals),
            (ADD_ROW, account.row(&counters)),
        ]
    }
}

impl Session {
    async fn spent(&mut self, workspace: WorkspaceId, payer: &Payer, month: &str) -> Result<Spent, StoreError> {
        let holder = payer.holder();
        Ok(self.one(SPENT, args![workspace, payer.subject(), &holder, month]).await?.unwrap_or_default())
    }
}

impl Store {
    /// Returns what a subject has spent in a month, and what is reserved for it.
    pub async fn spent(&self, workspace: WorkspaceId, payer: &Payer, month: &str) -> Result<Spent, StoreError> {
        self.db.read().await?.spent(workspace, payer, month).await
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
        let Some(task) = task_id else { return self.db.all(OF_BOT, args![workspace, bot, MONTHS_MAX]).await };
        let rows: Vec<UsageRow> = self.db.all(OF_TASK, args![workspace, bot, task, TASK_ROWS_MAX]).await?;
        let mut months: Vec<UsageRow> = Vec::new();
        for row in rows {
            match months.last_mut().filter(|last| last.month == row.month) {
                Some(last) => last.add(&row),
                None => months.push(row),
            }
        }
        months.truncate(usize::try_from(MONTHS_MAX).unwrap_or(usize::MAX));
        Ok(months)
    }
}

impl UsageRow {
    fn add(&mut self, other: &UsageRow) {
        for (sum, addend) in [
            (&mut self.tokens, other.tokens),
            (&mut self.tokens_input, other.tokens_input),
            (&mut self.tokens_output, other.tokens_output),
            (&mut self.credits_millionths, other.credits_millionths),
            (&mut self.rounds, other.rounds),
            (&mut self.rounds_estimated, other.rounds_estimated),
            (&mut self.calls, other.calls),
        ] {
            *sum = sum.saturating_add(addend);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_lock_the_months_of_a_workspace_in_one_order() {
        let (workspace_id, bot_id) = (WorkspaceId::new(), BotId::new());
        let order = |month: &str| {
            StoreRow::Charge(Charge {
                workspace_id,
                bot_id,
                user: None,
                task_id: None,
                month: month.to_owned(),
                tokens: 1,
                credits_millionths: 0,
                limits: PayerLimits::default(),
            })
            .lock_order()
        };
        assert!(order("2026-11") < order("2026-12"));
        assert!(order("2026-12") < order("2027-01"));
    }
}
