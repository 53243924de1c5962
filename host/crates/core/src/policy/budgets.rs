//! The budgets in force.

use monstrum_store::{BudgetLimits, BudgetRow, BudgetSubject, Changed, PayerLimits};
use monstrum_types::{AppUser, BotId, BudgetId, WorkspaceId};

use super::Snapshot;

/// The subject of a budget, with its workspace and the text that identifies it within its kind.
type Holder = (WorkspaceId, BudgetSubject, String);

/// The budgets of a snapshot, by subject. The monthly tokens of bots are in the rows of the bots.
#[derive(Clone, Default)]
pub struct Budgets {
    of_holders: imbl::HashMap<Holder, BudgetRow>,
    holders: imbl::HashMap<BudgetId, Holder>,
}

/// The limits of a subject that the policy does not know. Such a subject may spend nothing.
const NOTHING: BudgetLimits = BudgetLimits { tokens: Some(0), credits_millionths: Some(0) };

fn holder(row: &BudgetRow) -> Holder {
    (row.workspace_id, row.subject, row.holder.clone())
}

impl Budgets {
    /// Returns the budgets of a workspace, in any order.
    pub fn of_workspace(&self, workspace: WorkspaceId) -> impl Iterator<Item = &BudgetRow> {
        self.of_holders.values().filter(move |row| row.workspace_id == workspace)
    }

    /// Returns the limits of a subject, or `None` if the subject has no budget of its own.
    fn limits(&self, workspace: WorkspaceId, subject: BudgetSubject, holder: String) -> Option<BudgetLimits> {
        self.of_holders.get(&(workspace, subject, holder)).map(BudgetRow::limits)
    }

    /// Applies changes of budgets.
    pub(super) fn change(&mut self, rows: Changed<BudgetId, BudgetRow>) {
        // All old rows are removed before new rows are added, because the subject of an old row may have a new row.
        for id in rows.keys() {
            if let Some(holder) = self.holders.remove(id) {
                self.of_holders.remove(&holder);
            }
        }
        for row in rows.into_values().flatten() {
            self.holders.insert(row.id, holder(&row));
            self.of_holders.insert(holder(&row), row);
        }
    }
}

impl Snapshot {
    /// Returns the budgets of workspaces and users, and the budgets of credits of bots.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// Returns the limits of the budgets that pay for a call. A user without a budget has the budget of each user.
    pub fn payer_limits(&self, workspace: WorkspaceId, bot: BotId, user: Option<&AppUser>) -> PayerLimits {
        let of = |subject, holder| self.budgets.limits(workspace, subject, holder);
        let of_bot = self.bot(workspace, bot).map_or(NOTHING, |found| BudgetLimits {
            tokens: found.row.monthly_token_budget,
            credits_millionths: of(BudgetSubject::Bot, bot.to_string()).and_then(|own| own.credits_millionths),
        });
        let of_user = user.and_then(|user| {
            of(BudgetSubject::User, user.key()).or_else(|| of(BudgetSubject::EachUser, String::new()))
        });
        PayerLimits {
            workspace: of(BudgetSubject::Workspace, String::new()).unwrap_or_default(),
            bot: of_bot,
            user: of_user.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use monstrum_types::UtcMillis;

    use super::*;

    fn row(workspace: WorkspaceId, subject: BudgetSubject, holder: &str, tokens: i64) -> BudgetRow {
        BudgetRow {
            id: BudgetId::new(),
            workspace_id: workspace,
            subject,
            holder: holder.to_owned(),
            monthly_tokens: Some(tokens),
            monthly_credits_millionths: None,
            created_at: UtcMillis(1),
            updated_at: UtcMillis(1),
        }
    }

    fn tokens(limits: BudgetLimits) -> Option<i64> {
        limits.tokens
    }

    #[test]
    fn a_user_has_its_own_budget_or_the_budget_of_each_user() {
        let (workspace, other) = (WorkspaceId::new(), WorkspaceId::new());
        let user = |id: &str| AppUser { app_id: "app".to_owned(), user_id: id.to_owned() };
        let rows = [
            row(workspace, BudgetSubject::Workspace, "", 1),
            row(workspace, BudgetSubject::User, &user("ann").key(), 2),
            row(workspace, BudgetSubject::EachUser, "", 3),
        ];
        let mut snapshot = Snapshot::default();
        snapshot.budgets.change(rows.iter().map(|row| (row.id, Some(row.clone()))).collect());
        let limits = |workspace, user: Option<&AppUser>| snapshot.payer_limits(workspace, BotId::new(), user);
        let of_user = |id: &str| tokens(limits(workspace, Some(&user(id))).user);
        assert_eq!((of_user("ann"), of_user("bob")), (Some(2), Some(3)));
        assert_eq!(tokens(limits(workspace, None).workspace), Some(1));
        assert_eq!(tokens(limits(workspace, None).user), None, "a call without a user");
        assert_eq!(limits(workspace, None).bot, NOTHING, "the bot is unknown");
        let others = limits(other, Some(&user("ann")));
        assert_eq!((tokens(others.workspace), tokens(others.user)), (None, None), "another workspace");

        snapshot.budgets.change(Changed::from([(rows[1].id, None), (rows[0].id, None)]));
        let limits = snapshot.payer_limits(workspace, BotId::new(), Some(&user("ann")));
        assert_eq!((tokens(limits.user), tokens(limits.workspace)), (Some(3), None));
        assert_eq!(snapshot.budgets().of_workspace(workspace).count(), 1);
    }
}
