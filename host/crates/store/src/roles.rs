//! Roles: what a binding allows, under a name.

use monstrum_types::{RoleId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args};
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
        "id, workspace_id, name, allowed_operations, allowed_tools, scope_constraints, created_at, updated_at"
    };
}

pub(crate) const ALL: &str = concat!("select ", columns!(), " from roles order by id");
const INSERT: &str = concat!("insert into roles (", columns!(), ") values ($1, $2, $3, $4, $5, $6, $7, $8)");
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

impl Store {
    /// Adds a role.
    pub async fn insert_role(&self, row: &RoleRow) -> Result<(), StoreError> {
        let args = args![
            row.id,
            row.workspace_id,
            &row.name,
            &row.allowed_operations,
            &row.allowed_tools,
            &row.scope_constraints,
            row.created_at,
            row.updated_at,
        ];
        self.change(INSERT, args).await?;
        Ok(())
    }

    /// The role of this id in the workspace.
    pub async fn role(&self, workspace: WorkspaceId, id: RoleId) -> Result<Option<RoleRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// A page of the workspace's roles.
    pub async fn roles(
        &self,
        workspace: WorkspaceId,
        page: &Page<RoleId>,
    ) -> Result<Listed<RoleRow, RoleId>, StoreError> {
        self.db.page(PAGE, Arg::from(workspace), page, |row: &RoleRow| row.id).await
    }

    /// Writes the row over the one of its id and workspace; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_role(&self, row: &RoleRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update roles set name = $3, allowed_operations = $4, allowed_tools = $5, scope_constraints = $6, \
                   updated_at = $7 where workspace_id = $1 and id = $2 and updated_at = $8";
        let args = args![
            row.workspace_id,
            row.id,
            &row.name,
            &row.allowed_operations,
            &row.allowed_tools,
            &row.scope_constraints,
            row.updated_at,
            before,
        ];
        Ok(self.change(sql, args).await? > 0)
    }

    /// Deletes a role; whether there was one. A role of a binding is in use.
    pub async fn delete_role(&self, workspace: WorkspaceId, id: RoleId) -> Result<bool, StoreError> {
        self.delete("delete from roles where workspace_id = $1 and id = $2", args![workspace, id]).await
    }
}
