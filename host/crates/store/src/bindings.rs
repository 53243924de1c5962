//! Bindings, which connect a bot to resources and define its permissions on them.

use monstrum_types::{BindingId, BotId, ResourceId, ResourceTypeId, RoleId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, from_row, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `bot_resources`.
#[derive(Clone, Debug, PartialEq)]
pub struct BindingRow {
    pub id: BindingId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    pub resource_id: ResourceId,
    pub role_id: Option<RoleId>,
    /// A JSON object with the optional members `allowed_operations` and `allowed_tools`.
    pub permissions: Option<Value>,
    /// A JSON object that maps scope keys to lists of patterns.
    pub scope_constraints: Value,
    /// A JSON object with the members `allowed_tools`, `scope_constraints` and `gates`, of which only `scope_constraints` is
    /// always present.
    pub delegate: Option<Value>,
    /// The gates as a JSON list; `None` if there are none.
    pub gates: Option<Value>,
    /// A JSON list of globs that match the tools that the resource's plugin may call.
    pub allow_calls: Value,
    pub allow_subscribe: bool,
    /// A JSON object with the optional members `fuel`, `memory_mib`, `timeout_s` and `concurrent`.
    pub limits: Option<Value>,
    pub calls_per_minute: Option<i64>,
    pub enabled: bool,
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// The names of a bound resource, its bot and its workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundRow {
    pub workspace: String,
    pub resource: String,
    pub bot: String,
}

authentic! {
    BindingRow in BotResources("bot_resources"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, bot_id, resource_id, role_id, permissions, scope_constraints, delegate, allow_calls,
        allow_subscribe, limits, calls_per_minute, enabled, expires_at, created_at, updated_at,
    ],
    optional: [gates],
    others: [],
}

from_row! { BoundRow { workspace, resource, bot } }

pub(crate) const OF_BOT: &str = select!("where workspace_id = $1 and bot_id = $2");
const BY_ID: &str = select!("where workspace_id = $1 and bot_id = $2 and id = $3");
const PAGE: &str = select!("where workspace_id = $1 and bot_id = $2 and id > $3 order by id limit $4");

impl BindingRow {
    /// Returns the row that replaces `old`, unless that belongs to another bot or was changed since `before`.
    pub(crate) fn over(&self, old: &BindingRow, before: UtcMillis) -> Option<BindingRow> {
        let is_of_that_version = old.bot_id == self.bot_id && old.updated_at == before;
        is_of_that_version.then(|| BindingRow { created_at: old.created_at, ..self.clone() })
    }
}

impl Store {
    /// Inserts a binding. The bot, the resource and the role must belong to the same workspace.
    pub async fn insert_binding(&self, row: &BindingRow) -> Result<(), StoreError> {
        self.insert_row(row, &[]).await
    }

    /// Inserts several bindings of one workspace in a single change. Used only by benchmarks.
    #[doc(hidden)]
    pub async fn insert_bindings(&self, workspace: WorkspaceId, rows: &[BindingRow]) -> Result<(), StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            for row in rows {
                change.insert(row, Vec::new(), Vec::new()).await?;
            }
            Ok(())
        })
    }

    /// Returns the binding with this id, if it belongs to the bot and the workspace.
    pub async fn binding(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        id: BindingId,
    ) -> Result<Option<BindingRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, bot, id]).await
    }

    /// Returns a page of the bindings of a bot.
    pub async fn bindings(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        page: &Page<BindingId>,
    ) -> Result<Listed<BindingRow, BindingId>, StoreError> {
        self.authentic_page(PAGE, values![workspace, bot], page).await
    }

    /// Returns up to `limit` bindings to resources of a type, in all workspaces, ordered by name.
    pub async fn bound(&self, resource_type: &ResourceTypeId, limit: u32) -> Result<Vec<BoundRow>, StoreError> {
        let sql = "select workspaces.name as workspace, resources.name as resource, bots.name as bot \
                   from bot_resources \
                   join resources on resources.id = bot_resources.resource_id \
                   join bots on bots.id = bot_resources.bot_id \
                   join workspaces on workspaces.id = bot_resources.workspace_id \
                   where resources.resource_type = $1 order by workspaces.name, resources.name, bots.name limit $2";
        self.db.all(sql, args![resource_type, i64::from(limit)]).await
    }

    /// Updates a binding, matched by id, bot and workspace. Does nothing if the binding is missing or if its
    /// `updated_at` differs from `before`, the value that the caller read. Returns whether the binding was updated.
    pub async fn update_binding(&self, row: &BindingRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.update(args![row.id], |old| row.over(old, before)).await
        })
    }

    /// Deletes a binding. Returns whether the binding existed.
    pub async fn delete_binding(&self, workspace: WorkspaceId, bot: BotId, id: BindingId) -> Result<bool, StoreError> {
        let is_own = |binding: &BindingRow| binding.workspace_id == workspace && binding.bot_id == bot;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
