//! Bots.

use monstrum_types::{BotId, UtcMillis, WorkspaceId};

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{BindingRow, KeyRow, Listed, Page, Store, StoreError, bindings, keys};

/// A row of `bots`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BotRow {
    pub id: BotId,
    pub workspace_id: WorkspaceId,
    /// Unique in the workspace.
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    pub model: Option<String>,
    pub use_agent_sandbox: bool,
    pub monthly_token_budget: Option<i64>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, name, description, system_prompt, model, use_agent_sandbox, monthly_token_budget, \
         created_at, updated_at, mac"
    };
}

const BY_ID: &str = concat!("select ", columns!(), " from bots where workspace_id = $1 and id = $2");
const PAGE: &str =
    concat!("select ", columns!(), " from bots where workspace_id = $1 and id > $2 order by id limit $3");

impl FromRow for BotRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(BotRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            name: row.text("name")?,
            description: row.text("description")?,
            system_prompt: row.text("system_prompt")?,
            model: row.text_opt("model")?,
            use_agent_sandbox: row.flag("use_agent_sandbox")?,
            monthly_token_budget: row.int_opt("monthly_token_budget")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Authentic for BotRow {
    const TABLE: Table = Table::Bots;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            &self.name,
            &self.description,
            &self.system_prompt,
            &self.model,
            self.use_agent_sandbox,
            self.monthly_token_budget,
            self.created_at,
            self.updated_at
        ]
    }
}

impl Store {
    /// Adds a bot.
    pub async fn insert_bot(&self, row: &BotRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| change.insert(row, Vec::new(), Vec::new()).await)
    }

    /// The bot of this id in the workspace.
    pub async fn bot(&self, workspace: WorkspaceId, id: BotId) -> Result<Option<BotRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// A page of the workspace's bots.
    pub async fn bots(&self, workspace: WorkspaceId, page: &Page<BotId>) -> Result<Listed<BotRow, BotId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Writes the row over the one of its id and workspace; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_bot(&self, row: &BotRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next =
                |old: &BotRow| (old.updated_at == before).then(|| BotRow { created_at: old.created_at, ..row.clone() });
            change.update(args![row.id], next).await
        })
    }

    /// Deletes a bot with its bindings and keys, and makes the deletion of its sandboxes jobs; whether there was one.
    pub async fn delete_bot(&self, workspace: WorkspaceId, id: BotId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<BindingRow>(bindings::OF_BOT, args![workspace, id]).await?;
            change.delete_found::<KeyRow>(keys::OF_BOT, args![workspace, id]).await?;
            let is_deleted = change.delete(args![id], |bot: &BotRow| bot.workspace_id == workspace).await?;
            if is_deleted {
                // Behind the bot, whose row holds off a request that would add a sandbox to it.
                change.session.delete_sandboxes_of_bot(workspace, id).await?;
            }
            Ok(is_deleted)
        });
        deleted.map_err(StoreError::of_deletion)
    }
}
