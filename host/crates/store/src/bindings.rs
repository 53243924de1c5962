//! Bindings of resources to bots, which grant what a bot may do.

use monstrum_types::{BindingId, BotId, ResourceId, ResourceTypeId, RoleId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `bot_resources`.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingRow {
    pub id: BindingId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    pub resource_id: ResourceId,
    pub role_id: Option<RoleId>,
    /// `{allowed_operations?, allowed_tools?}`.
    pub permissions: Option<Value>,
    /// An object of lists of patterns.
    pub scope_constraints: Value,
    pub delegate: Option<Value>,
    /// A list of globs over tools that the resource's plugin may call.
    pub allow_calls: Value,
    pub allow_subscribe: bool,
    /// `{fuel?, memory_mib?, timeout_s?, concurrent?}`.
    pub limits: Option<Value>,
    pub calls_per_minute: Option<i64>,
    pub enabled: bool,
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What is bound to what, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRow {
    pub workspace: String,
    pub resource: String,
    pub bot: String,
}

macro_rules! columns {
    () => {
        "id, workspace_id, bot_id, resource_id, role_id, permissions, scope_constraints, delegate, allow_calls, \
         allow_subscribe, limits, calls_per_minute, enabled, expires_at, created_at, updated_at, mac"
    };
}

pub(crate) const OF_BOT: &str =
    concat!("select ", columns!(), " from bot_resources where workspace_id = $1 and bot_id = $2");
const BY_ID: &str =
    concat!("select ", columns!(), " from bot_resources where workspace_id = $1 and bot_id = $2 and id = $3");
const PAGE: &str = concat!(
    "select ",
    columns!(),
    " from bot_resources where workspace_id = $1 and bot_id = $2 and id > $3 order by id limit $4"
);

impl FromRow for BindingRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(BindingRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            bot_id: row.id("bot_id")?,
            resource_id: row.id("resource_id")?,
            role_id: row.id_opt("role_id")?,
            permissions: row.json_opt("permissions")?,
            scope_constraints: row.json("scope_constraints")?,
            delegate: row.json_opt("delegate")?,
            allow_calls: row.json("allow_calls")?,
            allow_subscribe: row.flag("allow_subscribe")?,
            limits: row.json_opt("limits")?,
            calls_per_minute: row.int_opt("calls_per_minute")?,
            enabled: row.flag("enabled")?,
            expires_at: row.time_opt("expires_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Authentic for BindingRow {
    const TABLE: Table = Table::BotResources;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            self.bot_id,
            self.resource_id,
            self.role_id,
            &self.permissions,
            &self.scope_constraints,
            &self.delegate,
            &self.allow_calls,
            self.allow_subscribe,
            &self.limits,
            self.calls_per_minute,
            self.enabled,
            self.expires_at,
            self.created_at,
            self.updated_at
        ]
    }
}

impl FromRow for BoundRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(BoundRow { workspace: row.text("workspace")?, resource: row.text("resource")?, bot: row.text("bot")? })
    }
}

impl Store {
    /// Adds a binding. Bot, resource and role must be of the same workspace.
    pub async fn insert_binding(&self, row: &BindingRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| change.insert(row, Vec::new(), Vec::new()).await)
    }

    /// Adds bindings of one workspace in one change, for benches that need many.
    #[doc(hidden)]
    pub async fn insert_bindings(&self, workspace: WorkspaceId, rows: &[BindingRow]) -> Result<(), StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            for row in rows {
                change.insert(row, Vec::new(), Vec::new()).await?;
            }
            Ok(())
        })
    }

    /// The binding of this id of the workspace's bot.
    pub async fn binding(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        id: BindingId,
    ) -> Result<Option<BindingRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, bot, id]).await
    }

    /// A page of the bindings of a bot.
    pub async fn bindings(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        page: &Page<BindingId>,
    ) -> Result<Listed<BindingRow, BindingId>, StoreError> {
        self.authentic_page(PAGE, values![workspace, bot], page).await
    }

    /// What of a resource type is bound, in all workspaces: the first `limit`.
    pub async fn bound(&self, resource_type: &ResourceTypeId, limit: u32) -> Result<Vec<BoundRow>, StoreError> {
        let sql = "select workspaces.name as workspace, resources.name as resource, bots.name as bot \
                   from bot_resources \
                   join resources on resources.id = bot_resources.resource_id \
                   join bots on bots.id = bot_resources.bot_id \
                   join workspaces on workspaces.id = bot_resources.workspace_id \
                   where resources.resource_type = $1 order by workspaces.name, resources.name, bots.name limit $2";
        self.db.all(sql, args![resource_type, i64::from(limit)]).await
    }

    /// Writes the row over the one of its id, bot and workspace; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_binding(&self, row: &BindingRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &BindingRow| {
                (old.bot_id == row.bot_id && old.updated_at == before)
                    .then(|| BindingRow { created_at: old.created_at, ..row.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Deletes a binding; whether there was one.
    pub async fn delete_binding(&self, workspace: WorkspaceId, bot: BotId, id: BindingId) -> Result<bool, StoreError> {
        let is_own = |binding: &BindingRow| binding.workspace_id == workspace && binding.bot_id == bot;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
