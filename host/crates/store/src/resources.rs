//! Resources: instances of resource types, with their configuration.

use monstrum_types::{ResourceId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{CredentialRow, Listed, Page, Store, StoreError, credentials};

/// A row of `resources`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceRow {
    pub id: ResourceId,
    pub workspace_id: WorkspaceId,
    pub resource_type: ResourceTypeId,
    /// Unique in the workspace.
    pub name: String,
    /// An object by the type's config_schema.
    pub config: Value,
    /// What is opened for it beyond public https.
    pub network: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, resource_type, name, config, network, created_at, updated_at, mac"
    };
}

const BY_ID: &str = concat!("select ", columns!(), " from resources where workspace_id = $1 and id = $2");
const PAGE: &str =
    concat!("select ", columns!(), " from resources where workspace_id = $1 and id > $2 order by id limit $3");

impl FromRow for ResourceRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(ResourceRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            resource_type: row.id("resource_type")?,
            name: row.text("name")?,
            config: row.json("config")?,
            network: row.json("network")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Authentic for ResourceRow {
    const TABLE: Table = Table::Resources;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            &self.resource_type,
            &self.name,
            &self.config,
            &self.network,
            self.created_at,
            self.updated_at
        ]
    }
}

impl Store {
    /// Adds a resource.
    pub async fn insert_resource(&self, row: &ResourceRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| change.insert(row, Vec::new(), Vec::new()).await)
    }

    /// The resource of this id in the workspace.
    pub async fn resource(&self, workspace: WorkspaceId, id: ResourceId) -> Result<Option<ResourceRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// A page of the workspace's resources.
    pub async fn resources(
        &self,
        workspace: WorkspaceId,
        page: &Page<ResourceId>,
    ) -> Result<Listed<ResourceRow, ResourceId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Writes the row over the one of its id and workspace, whose type stays; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_resource(&self, row: &ResourceRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &ResourceRow| {
                (old.updated_at == before).then(|| ResourceRow {
                    resource_type: old.resource_type.clone(),
                    created_at: old.created_at,
                    ..row.clone()
                })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Deletes a resource with its credentials; whether there was one. A bound resource is in use.
    pub async fn delete_resource(&self, workspace: WorkspaceId, id: ResourceId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<CredentialRow>(credentials::OF_RESOURCE, args![workspace, id]).await?;
            change.delete(args![id], |resource: &ResourceRow| resource.workspace_id == workspace).await
        });
        deleted.map_err(StoreError::of_deletion)
    }
}
