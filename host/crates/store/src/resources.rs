//! Resources: instances of resource types, with their configuration.

use monstrum_types::{ResourceId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args};
use crate::{Listed, Page, Store, StoreError};

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
        "id, workspace_id, resource_type, name, config, network, created_at, updated_at"
    };
}

pub(crate) const ALL: &str = concat!("select ", columns!(), " from resources order by id");
const INSERT: &str = concat!("insert into resources (", columns!(), ") values ($1, $2, $3, $4, $5, $6, $7, $8)");
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

impl Store {
    /// Adds a resource.
    pub async fn insert_resource(&self, row: &ResourceRow) -> Result<(), StoreError> {
        let args = args![
            row.id,
            row.workspace_id,
            &row.resource_type,
            &row.name,
            &row.config,
            &row.network,
            row.created_at,
            row.updated_at,
        ];
        self.change(INSERT, args).await?;
        Ok(())
    }

    /// The resource of this id in the workspace.
    pub async fn resource(&self, workspace: WorkspaceId, id: ResourceId) -> Result<Option<ResourceRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// A page of the workspace's resources.
    pub async fn resources(
        &self,
        workspace: WorkspaceId,
        page: &Page<ResourceId>,
    ) -> Result<Listed<ResourceRow, ResourceId>, StoreError> {
        self.db.page(PAGE, Arg::from(workspace), page, |row: &ResourceRow| row.id).await
    }

    /// Writes the row over the one of its id and workspace, whose type stays; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_resource(&self, row: &ResourceRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update resources set name = $3, config = $4, network = $5, updated_at = $6 \
                   where workspace_id = $1 and id = $2 and updated_at = $7";
        let args = args![row.workspace_id, row.id, &row.name, &row.config, &row.network, row.updated_at, before];
        Ok(self.change(sql, args).await? > 0)
    }

    /// Deletes a resource with its credentials; whether there was one. A bound resource is in use.
    pub async fn delete_resource(&self, workspace: WorkspaceId, id: ResourceId) -> Result<bool, StoreError> {
        self.delete("delete from resources where workspace_id = $1 and id = $2", args![workspace, id]).await
    }
}
