//! Database operations on budgets. A budget limits what its subject may spend in a month (UTC).
//!
//! The monthly tokens of a bot are a column of `bots`; the row of a bot's budget limits its credits only. What a subject
//! has spent is in `usage_totals`.

use monstrum_types::{AppUser, BotId, BudgetId, UtcMillis, WorkspaceId, words};

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{BotRow, Listed, Page, Store, StoreError};

words! {
    /// The subject of a budget.
    pub enum BudgetSubject {
        /// All calls in the workspace.
        Workspace = "workspace",
        /// The calls of one bot.
        Bot = "bot",
        /// The calls on behalf of one user.
        User = "user",
        /// The calls on behalf of any user without a budget of its own. Each such user has the whole budget.
        EachUser = "each_user",
    }
}

/// The limits of a budget. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetLimits {
    pub tokens: Option<i64>,
    pub credits_millionths: Option<i64>,
}

/// The limits of the subjects that pay for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PayerLimits {
    pub workspace: BudgetLimits,
    pub bot: BudgetLimits,
    pub user: BudgetLimits,
}

/// A row of `budgets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRow {
    pub id: BudgetId,
    pub workspace_id: WorkspaceId,
    pub subject: BudgetSubject,
    /// The id of the bot, or the [key](AppUser::key) of the user. Empty for the other subjects.
    pub holder: String,
    /// The maximum number of tokens in a month; `None` means no limit. Always `None` for a bot, whose limit is
    /// [`BotRow::monthly_token_budget`].
    pub monthly_tokens: Option<i64>,
    /// The maximum number of millionths of a credit in a month; `None` means no limit.
    pub monthly_credits_millionths: Option<i64>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    BudgetRow in Budgets("budgets"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, subject, holder, monthly_tokens, monthly_credits_millionths, created_at, updated_at,
    ],
    others: [],
}

const OF_HOLDER: &str = select!("where workspace_id = $1 and subject = $2 and holder = $3");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");
pub(crate) const OF_BOT: &str = select!("where workspace_id = $1 and subject = 'bot' and holder = $2");

impl BudgetRow {
    /// Returns the limits of the row.
    #[must_use]
    pub fn limits(&self) -> BudgetLimits {
        BudgetLimits { tokens: self.monthly_tokens, credits_millionths: self.monthly_credits_millionths }
    }

    /// Returns the bot, if the row is the budget of a bot.
    #[must_use]
    pub fn bot(&self) -> Option<BotId> {
        if self.subject == BudgetSubject::Bot { self.holder.parse().ok() } else { None }
    }

    /// Returns the user, if the row is the budget of one user.
    #[must_use]
    pub fn user(&self) -> Option<AppUser> {
        if self.subject == BudgetSubject::User { AppUser::of_key(&self.holder) } else { None }
    }
}

/// A change of the budget of one subject, which is made in one transaction.
#[derive(Clone, Debug, Default)]
pub struct BudgetWrite<'a> {
    /// The row of the budget as the caller read it.
    pub before: Option<&'a BudgetRow>,
    /// The row to write; `None` deletes the row.
    pub after: Option<&'a BudgetRow>,
    /// The bot to write, and its `updated_at` as the caller read it.
    pub bot: Option<(&'a BotRow, UtcMillis)>,
}

impl Store {
    /// Returns the budget of a subject.
    pub async fn budget(
        &self,
        workspace: WorkspaceId,
        subject: BudgetSubject,
        holder: &str,
    ) -> Result<Option<BudgetRow>, StoreError> {
        self.authentic_one(OF_HOLDER, args![workspace, &subject, holder]).await
    }

    /// Returns a page of the budgets of a workspace.
    pub async fn budgets(
        &self,
        workspace: WorkspaceId,
        page: &Page<BudgetId>,
    ) -> Result<Listed<BudgetRow, BudgetId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Changes the budget of a subject, all or nothing. Fails with [`StoreError::ChangedMeanwhile`] if a row has changed
    /// since the caller read it, and with [`StoreError::Conflict`] if the subject has a budget by now.
    pub async fn write_budget(&self, workspace: WorkspaceId, write: &BudgetWrite<'_>) -> Result<(), StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            async {
                let is_written = match (write.before, write.after) {
                    (None, None) => true,
                    (None, Some(row)) => {
                        change.insert(row, Vec::new(), Vec::new()).await?;
                        true
                    }
                    (Some(before), None) => change.delete(args![before.id], |row: &BudgetRow| row == before).await?,
                    (Some(before), Some(after)) => {
                        change
                            .update(args![before.id], |row: &BudgetRow| (row == before).then(|| after.clone()))
                            .await?
                    }
                };
                let is_bot_written = match write.bot {
                    Some((bot, before)) => change.update(args![bot.id], |old| bot.over(old, before)).await?,
                    None => true,
                };
                if is_written && is_bot_written { Ok(()) } else { Err(StoreError::ChangedMeanwhile) }
            }
            .await
        })
    }
}
