//! Roles: named sets of permissions for bindings.

use monstrum_types::{RoleId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `roles`.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleRow {
    pub id: RoleId,
    pub workspace_id: WorkspaceId,
    /// The name, which is unique in the workspace.
    pub name: String,
    /// A JSON list of globs that match the names of allowed operations.
    pub allowed_operations: Option<Value>,
    /// A JSON list of globs that match the names of allowed tools.
    pub allowed_tools: Option<Value>,
    /// A JSON object that maps scope keys to lists of patterns.
    pub scope_constraints: Value,
    /// The gates as a JSON list; `None` if there are none.
    pub gates: Option<Value>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    RoleRow in Roles("roles"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, name, allowed_operations, allowed_tools, scope_constraints, created_at, updated_at],
    optional: [gates],
    others: [],
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");

impl RoleRow {
    /// Returns the row that replaces `old`, unless that was changed since `before`.
    pub(crate) fn over(&self, old: &RoleRow, before: UtcMillis) -> Option<RoleRow> {
        (old.updated_at == before).then(|| RoleRow { created_at: old.created_at, ..self.clone() })
    }
}

impl Store {
    /// Inserts a role.
    pub async fn insert_role(&self, row: &RoleRow) -> Result<(), StoreError> {
        self.insert_row(row, &[]).await
    }

    /// Returns the role with this id in the workspace.
    pub async fn role(&self, workspace: WorkspaceId, id: RoleId) -> Result<Option<RoleRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the roles in a workspace.
    pub async fn roles(
        &self,
        workspace: WorkspaceId,
        page: &Page<RoleId>,
    ) -> Result<Listed<RoleRow, RoleId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Updates a role, matched by id and workspace. Does nothing if the role is missing or if its `updated_at` is no
    /// longer `before`, the value that the caller read. Returns whether the role was updated.
    pub async fn update_role(&self, row: &RoleRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.update(args![row.id], |old| row.over(old, before)).await
        })
    }

    /// Deletes a role. Returns whether the role existed. Fails if a binding uses the role.
    pub async fn delete_role(&self, workspace: WorkspaceId, id: RoleId) -> Result<bool, StoreError> {
        let is_own = |role: &RoleRow| role.workspace_id == workspace;
        let deleted = change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await);
        deleted.map_err(StoreError::of_deletion)
    }
}
