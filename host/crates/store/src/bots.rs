//! Database operations on bots.

use monstrum_types::{BotId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{
    BindingRow, BudgetRow, KeyRow, Listed, Page, ScheduleRow, Store, StoreError, SubscriptionRow, WebhookRow, bindings,
    budgets, keys, schedules, subscriptions, webhooks,
};

/// A row of `bots`.
#[derive(Clone, Debug, PartialEq)]
pub struct BotRow {
    pub id: BotId,
    pub workspace_id: WorkspaceId,
    /// The name, which is unique in the workspace.
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    pub model: Option<String>,
    pub use_agent_sandbox: bool,
    pub monthly_token_budget: Option<i64>,
    /// The gates as a JSON list; `None` if there are none.
    pub gates: Option<Value>,
    /// The patterns of the subjects of access tokens that the bot admits, as a JSON list; `None` if it admits none.
    pub mcp_subjects: Option<Value>,
    /// The models that are tried after `model`, as a JSON list of `resource/model`; `None` if there are none.
    pub model_fallbacks: Option<Value>,
    /// The limits of the bot's tasks, as a JSON object; `None` for the defaults.
    pub task_limits: Option<Value>,
    /// The time in seconds after which a session without tasks ends; `None` for the default.
    pub session_idle_s: Option<i64>,
    /// 1 if clients may bring tools of their own; `None` if not. See [`BotRow::admits_client_tools`].
    pub client_tools: Option<i64>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    BotRow in Bots("bots"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, name, description, system_prompt, model, use_agent_sandbox, monthly_token_budget, created_at,
        updated_at,
    ],
    optional: [gates, mcp_subjects, model_fallbacks, task_limits, session_idle_s, client_tools],
    others: [],
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");

impl BotRow {
    /// Returns whether clients may bring tools of their own, which run at the client and are not governed.
    #[must_use]
    pub fn admits_client_tools(&self) -> bool {
        self.client_tools == Some(1)
    }

    /// Returns the row that replaces `old`, unless that was changed since `before`.
    pub(crate) fn over(&self, old: &BotRow, before: UtcMillis) -> Option<BotRow> {
        (old.updated_at == before).then(|| BotRow { created_at: old.created_at, ..self.clone() })
    }
}

impl Store {
    /// Inserts a bot.
    pub async fn insert_bot(&self, row: &BotRow) -> Result<(), StoreError> {
        self.insert_row(row, &[]).await
    }

    /// Returns the bot with this id in the workspace.
    pub async fn bot(&self, workspace: WorkspaceId, id: BotId) -> Result<Option<BotRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the bots in a workspace.
    pub async fn bots(&self, workspace: WorkspaceId, page: &Page<BotId>) -> Result<Listed<BotRow, BotId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Updates a bot, matched by id and workspace. Does nothing if the bot is missing or if its `updated_at` is no
    /// longer `before`, the value that the caller read. Returns whether the bot was updated.
    pub async fn update_bot(&self, row: &BotRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.update(args![row.id], |old| row.over(old, before)).await
        })
    }

    /// Deletes a bot with its bindings, keys, approvals, budget, schedules, subscriptions and webhooks, and marks its
    /// sandboxes for deletion. Keeps its usage, which reports of the workspace include. Returns whether the bot existed.
    pub async fn delete_bot(&self, workspace: WorkspaceId, id: BotId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<BindingRow>(bindings::OF_BOT, args![workspace, id]).await?;
            change.delete_found::<KeyRow>(keys::OF_BOT, args![workspace, id]).await?;
            change.delete_found::<BudgetRow>(budgets::OF_BOT, args![workspace, id]).await?;
            change.delete_found::<ScheduleRow>(schedules::OF_BOT, args![workspace, id]).await?;
            change.delete_found::<WebhookRow>(webhooks::OF_BOT, args![workspace, id]).await?;
            change.delete_found::<SubscriptionRow>(subscriptions::OF_BOT, args![workspace, id]).await?;
            change.delete_grants_of_bot(workspace, id).await?;
            let is_deleted = change.delete(args![id], |bot: &BotRow| bot.workspace_id == workspace).await?;
            if is_deleted {
                // Mark the sandboxes after deleting the bot: the lock on the bot's row keeps other requests from
                // adding a sandbox.
                change.session.mark_sandboxes_of_bot(workspace, id).await?;
            }
            Ok(is_deleted)
        });
        deleted.map_err(StoreError::of_deletion)
    }
}
