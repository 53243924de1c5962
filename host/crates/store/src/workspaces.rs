//! Workspaces, which isolate tenants.

use monstrum_types::{UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::args;
use crate::rows::{Scope, authentic, change};
use crate::{KeyRow, Listed, Page, Store, StoreError, keys};

/// The name of the workspace that every new database contains. A root key uses this workspace by default.
pub const DEFAULT_WORKSPACE: &str = "default";

/// A row of `workspaces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceRow {
    pub id: WorkspaceId,
    /// The name, which is unique in the instance.
    pub name: String,
    /// The limits for sandboxes in this workspace; `None` uses the limits of the server.
    pub sandbox: Option<Value>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    WorkspaceRow in Workspaces("workspaces"), select: select, scope: |_| Scope::Instance,
    covered: [id, name, sandbox, created_at, updated_at],
    others: [],
}

const BY_ID: &str = select!("where id = $1");
const BY_NAME: &str = select!("where name = $1");
const PAGE: &str = select!("where id > $1 order by id limit $2");

impl Store {
    /// Inserts a workspace.
    pub async fn insert_workspace(&self, row: &WorkspaceRow) -> Result<(), StoreError> {
        change!(self, &[Scope::Instance], |change| {
            change.insert(row, Vec::new(), Vec::new()).await?;
            change.open_scope(row.id).await
        })
    }

    /// Returns the workspace with this id.
    pub async fn workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRow>, StoreError> {
        self.authentic_one(BY_ID, args![id]).await
    }

    /// Returns the workspace with this id, in its sealed state. If its row is missing or has changed since the last
    /// verification, verifies all rows of the instance.
    pub async fn verified_workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRow>, StoreError> {
        if let Some(row) = self.workspace(id).await?
            && self.is_as_verified(&row)?
        {
            return Ok(Some(row));
        }
        let workspaces: Vec<WorkspaceRow> = self.verified_instance().await?.take();
        Ok(workspaces.into_iter().find(|row| row.id == id))
    }

    /// Returns the workspace with this name.
    pub async fn workspace_named(&self, name: &str) -> Result<Option<WorkspaceRow>, StoreError> {
        self.authentic_one(BY_NAME, args![name]).await
    }

    /// Returns a page of all workspaces.
    pub async fn workspaces(&self, page: &Page<WorkspaceId>) -> Result<Listed<WorkspaceRow, WorkspaceId>, StoreError> {
        self.authentic_page(PAGE, Vec::new(), page).await
    }

    /// Updates a workspace, matched by id. Does nothing if the workspace is missing or if its `updated_at` is no
    /// longer `before`, the value that the caller read. Returns whether the workspace was updated.
    pub async fn update_workspace(&self, row: &WorkspaceRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| {
            let next = |old: &WorkspaceRow| {
                let created_at = old.created_at;
                (old.updated_at == before).then(|| WorkspaceRow { created_at, ..row.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Deletes a workspace with its keys. Returns whether the workspace existed. Fails if it still contains
    /// resources, roles or bots.
    pub async fn delete_workspace(&self, id: WorkspaceId) -> Result<bool, StoreError> {
        let scopes = [Scope::Instance, Scope::Workspace(id)];
        let deleted = change!(self, &scopes, |change| {
            change.delete_found::<KeyRow>(keys::OF_WORKSPACE, args![id]).await?;
            change.delete_grants(id).await?;
            let is_deleted = change.delete(args![id], |_: &WorkspaceRow| true).await?;
            if is_deleted {
                change.close_scope(id).await?;
            }
            Ok(is_deleted)
        });
        deleted.map_err(StoreError::of_deletion)
    }
}
