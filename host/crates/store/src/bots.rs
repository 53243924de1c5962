//! Bots.

use monstrum_types::{BotId, UtcMillis, WorkspaceId};

use crate::db::{ATTEMPTS_MAX, Arg, FromRow, Row, args};
use crate::{Listed, Page, Store, StoreError};

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
         created_at, updated_at"
    };
}

pub(crate) const ALL: &str = concat!("select ", columns!(), " from bots order by id");
const INSERT: &str = concat!("insert into bots (", columns!(), ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)");
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

impl Store {
    /// Adds a bot.
    pub async fn insert_bot(&self, row: &BotRow) -> Result<(), StoreError> {
        let args = args![
            row.id,
            row.workspace_id,
            &row.name,
            &row.description,
            &row.system_prompt,
            &row.model,
            row.use_agent_sandbox,
            row.monthly_token_budget,
            row.created_at,
            row.updated_at,
        ];
        self.change(INSERT, args).await?;
        Ok(())
    }

    /// The bot of this id in the workspace.
    pub async fn bot(&self, workspace: WorkspaceId, id: BotId) -> Result<Option<BotRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// A page of the workspace's bots.
    pub async fn bots(&self, workspace: WorkspaceId, page: &Page<BotId>) -> Result<Listed<BotRow, BotId>, StoreError> {
        self.db.page(PAGE, Arg::from(workspace), page, |row: &BotRow| row.id).await
    }

    /// Writes the row over the one of its id and workspace; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_bot(&self, row: &BotRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update bots set name = $3, description = $4, system_prompt = $5, model = $6, \
                   use_agent_sandbox = $7, monthly_token_budget = $8, updated_at = $9 \
                   where workspace_id = $1 and id = $2 and updated_at = $10";
        let args = args![
            row.workspace_id,
            row.id,
            &row.name,
            &row.description,
            &row.system_prompt,
            &row.model,
            row.use_agent_sandbox,
            row.monthly_token_budget,
            row.updated_at,
            before,
        ];
        Ok(self.change(sql, args).await? > 0)
    }

    /// Deletes a bot with its bindings and keys, and makes the deletion of its sandboxes jobs; whether there was one.
    pub async fn delete_bot(&self, workspace: WorkspaceId, id: BotId) -> Result<bool, StoreError> {
        let mut attempt = 1;
        loop {
            match self.try_delete_bot(workspace, id).await {
                Err(error) if error.is_contention() && attempt < ATTEMPTS_MAX => attempt += 1,
                done => return done.map_err(StoreError::of_deletion),
            }
        }
    }

    async fn try_delete_bot(&self, workspace: WorkspaceId, id: BotId) -> Result<bool, StoreError> {
        let mut session = self.db.write().await?;
        if session.run("delete from bots where workspace_id = $1 and id = $2", args![workspace, id]).await? == 0 {
            return Ok(false);
        }
        // Behind the bot, whose row holds off whoever would add a sandbox to it.
        session.delete_sandboxes_of_bot(workspace, id).await?;
        session.bump_generation().await?;
        session.commit().await?;
        Ok(true)
    }
}
