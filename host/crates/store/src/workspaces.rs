//! Workspaces: the walls between tenants.

use monstrum_types::{UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{KeyRow, Listed, Page, Store, StoreError, keys};

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
        "id, name, sandbox, created_at, updated_at, mac"
    };
}

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

impl Authentic for WorkspaceRow {
    const TABLE: Table = Table::Workspaces;

    fn scope(&self) -> Scope {
        Scope::Instance
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![self.id, &self.name, &self.sandbox, self.created_at, self.updated_at]
    }
}

impl Store {
    /// Adds a workspace.
    pub async fn insert_workspace(&self, row: &WorkspaceRow) -> Result<(), StoreError> {
        change!(self, &[Scope::Instance], |change| {
            change.insert(row, Vec::new(), Vec::new()).await?;
            change.open_scope(row.id).await
        })
    }

    /// The workspace of this id.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRow>, StoreError> {
        self.authentic_one(BY_ID, args![id]).await
    }

    /// The workspace of this id, as it was sealed. Where its row is another one, or is gone, all rows of the instance are
    /// verified first: only then there is no such workspace.
    pub async fn verified_workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRow>, StoreError> {
        if let Some(row) = self.workspace(id).await?
            && self.is_as_verified(&row)?
        {
            return Ok(Some(row));
        }
        let workspaces: Vec<WorkspaceRow> = self.verified_instance().await?.take();
        Ok(workspaces.into_iter().find(|row| row.id == id))
    }

    /// The workspace of this name.
    pub async fn workspace_named(&self, name: &str) -> Result<Option<WorkspaceRow>, StoreError> {
        self.authentic_one(BY_NAME, args![name]).await
    }

    /// A page of all workspaces.
    pub async fn workspaces(&self, page: &Page<WorkspaceId>) -> Result<Listed<WorkspaceRow, WorkspaceId>, StoreError> {
        self.authentic_page(PAGE, Vec::new(), page).await
    }

    /// Writes the row over the one of its id; whether there was one. Whoever has changed it since `before`, when it was
    /// read, wins: nothing is written over what nobody has seen.
    pub async fn update_workspace(&self, row: &WorkspaceRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| {
            let next = |old: &WorkspaceRow| {
                let created_at = old.created_at;
                (old.updated_at == before).then(|| WorkspaceRow { created_at, ..row.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Deletes a workspace with its keys. One that still holds resources, roles or bots is in use.
    pub async fn delete_workspace(&self, id: WorkspaceId) -> Result<bool, StoreError> {
        let scopes = [Scope::Instance, Scope::Workspace(id)];
        let deleted = change!(self, &scopes, |change| {
            change.delete_found::<KeyRow>(keys::OF_WORKSPACE, args![id]).await?;
            let is_deleted = change.delete(args![id], |_: &WorkspaceRow| true).await?;
            if is_deleted {
                change.close_scope(id).await?;
            }
            Ok(is_deleted)
        });
        deleted.map_err(StoreError::of_deletion)
    }
}
