//! Workspaces: the walls between tenants.

use monstrum_types::{UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{FromRow, Row, args};
use crate::{Listed, Page, Store, StoreError};

/// The workspace that always exists, and in which a root key acts unless it names another.
pub const DEFAULT_WORKSPACE: &str = "default";

/// A row of `workspaces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceRow {
    pub id: WorkspaceId,
    /// Unique in the instance.
    pub name: String,
    /// What its sandboxes may be; `None` for what the server gives to all.
    pub sandbox: Option<Value>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, name, sandbox, created_at, updated_at"
    };
}

pub(crate) const ALL: &str = concat!("select ", columns!(), " from workspaces order by id");
const INSERT: &str = concat!("insert into workspaces (", columns!(), ") values ($1, $2, $3, $4, $5)");
const BY_ID: &str = concat!("select ", columns!(), " from workspaces where id = $1");
const BY_NAME: &str = concat!("select ", columns!(), " from workspaces where name = $1");
const PAGE: &str = concat!("select ", columns!(), " from workspaces where id > $1 order by id limit $2");

impl FromRow for WorkspaceRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(WorkspaceRow {
            id: row.id("id")?,
            name: row.text("name")?,
            sandbox: row.json_opt("sandbox")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Store {
    /// Adds a workspace.
    pub async fn insert_workspace(&self, row: &WorkspaceRow) -> Result<(), StoreError> {
        self.change(INSERT, args![row.id, &row.name, &row.sandbox, row.created_at, row.updated_at]).await?;
        Ok(())
    }

    /// The workspace of this id.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRow>, StoreError> {
        self.db.one(BY_ID, args![id]).await
    }

    /// The workspace of this name.
    pub async fn workspace_named(&self, name: &str) -> Result<Option<WorkspaceRow>, StoreError> {
        self.db.one(BY_NAME, args![name]).await
    }

    /// A page of all workspaces.
    pub async fn workspaces(&self, page: &Page<WorkspaceId>) -> Result<Listed<WorkspaceRow, WorkspaceId>, StoreError> {
        let rows = self.db.all(PAGE, args![&page.after(), page.rows()]).await?;
        Ok(page.of(rows, |row: &WorkspaceRow| row.id))
    }

    /// Writes the row over the one of its id; whether there was one. Whoever has changed it since `before`, when it was
    /// read, wins: nothing is written over what nobody has seen.
    pub async fn update_workspace(&self, row: &WorkspaceRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update workspaces set name = $2, sandbox = $3, updated_at = $4 where id = $1 and updated_at = $5";
        let args = args![row.id, &row.name, &row.sandbox, row.updated_at, before];
        Ok(self.change(sql, args).await? > 0)
    }

    /// Deletes a workspace with its keys. One that still holds resources, roles or bots is in use.
    pub async fn delete_workspace(&self, id: WorkspaceId) -> Result<bool, StoreError> {
        self.delete("delete from workspaces where id = $1", args![id]).await
    }

    pub(crate) async fn create_default_workspace(&self, now: UtcMillis) -> Result<(), StoreError> {
        if self.workspace_named(DEFAULT_WORKSPACE).await?.is_some() {
            return Ok(());
        }
        let name = DEFAULT_WORKSPACE.to_owned();
        let row = WorkspaceRow { id: WorkspaceId::new(), name, sandbox: None, created_at: now, updated_at: now };
        match self.insert_workspace(&row).await {
            // Another node was faster.
            Err(StoreError::Conflict { .. }) => Ok(()),
            inserted => inserted,
        }
    }
}
