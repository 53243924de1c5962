//! Roles: what a binding allows, under a name.

use monstrum_types::{RoleId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `roles`.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleRow {
    pub id: RoleId,
    pub workspace_id: WorkspaceId,
    /// Unique in the workspace.
    pub name: String,
    /// A list of globs over operations.
    pub allowed_operations: Option<Value>,
    /// A list of globs over tools.
    pub allowed_tools: Option<Value>,
    /// An object of lists of patterns.
    pub scope_constraints: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, name, allowed_operations, allowed_tools, scope_constraints, created_at, updated_at, \
         mac"
    };
}

const BY_ID: &str = concat!("select ", columns!(), " from roles where workspace_id = $1 and id = $2");
const PAGE: &str =
    concat!("select ", columns!(), " from roles where workspace_id = $1 and id > $2 order by id limit $3");

impl FromRow for RoleRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(RoleRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            name: row.text("name")?,
            allowed_operations: row.json_opt("allowed_operations")?,
            allowed_tools: row.json_opt("allowed_tools")?,
            scope_constraints: row.json("scope_constraints")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Authentic for RoleRow {
    const TABLE: Table = Table::Roles;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            &self.name,
            &self.allowed_operations,
            &self.allowed_tools,
            &self.scope_constraints,
            self.created_at,
            self.updated_at
        ]
    }
}

impl Store {
    /// Adds a role.
    pub async fn insert_role(&self, row: &RoleRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| change.insert(row, Vec::new(), Vec::new()).await)
    }

    /// The role of this id in the workspace.
    pub async fn role(&self, workspace: WorkspaceId, id: RoleId) -> Result<Option<RoleRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// A page of the workspace's roles.
    pub async fn roles(
        &self,
        workspace: WorkspaceId,
        page: &Page<RoleId>,
    ) -> Result<Listed<RoleRow, RoleId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Writes the row over the one of its id and workspace; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_role(&self, row: &RoleRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &RoleRow| {
                (old.updated_at == before).then(|| RoleRow { created_at: old.created_at, ..row.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Deletes a role; whether there was one. A role of a binding is in use.
    pub async fn delete_role(&self, workspace: WorkspaceId, id: RoleId) -> Result<bool, StoreError> {
        let is_own = |role: &RoleRow| role.workspace_id == workspace;
        let deleted = change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await);
        deleted.map_err(StoreError::of_deletion)
    }
}
