//! Resources: instances of resource types, with their configuration.

use monstrum_types::{ResourceId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{
    CredentialRow, FirstDiscoveryRow, KeyRow, Listed, OauthProviderRow, Page, ResourceToolRow, Store, StoreError,
    credentials, discoveries, keys, oauth_providers, resource_tools,
};

/// A row of `resources`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceRow {
    pub id: ResourceId,
    pub workspace_id: WorkspaceId,
    pub resource_type: ResourceTypeId,
    /// The name, which is unique in the workspace.
    pub name: String,
    /// A JSON object that matches the `config_schema` of the resource type.
    pub config: Value,
    /// The allowed network targets, in addition to public HTTPS.
    pub network: Value,
    /// The labels as a JSON list; `None` if there are none.
    pub labels: Option<Value>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    ResourceRow in Resources("resources"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, resource_type, name, config, network, created_at, updated_at],
    optional: [labels],
    others: [],
}

pub(crate) const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");

impl ResourceRow {
    /// Returns the row that replaces `old`, unless that was changed since `before`. The resource type stays unchanged.
    pub(crate) fn over(&self, old: &ResourceRow, before: UtcMillis) -> Option<ResourceRow> {
        (old.updated_at == before).then(|| ResourceRow {
            resource_type: old.resource_type.clone(),
            created_at: old.created_at,
            ..self.clone()
        })
    }
}

impl Store {
    /// Inserts a resource.
    pub async fn insert_resource(&self, row: &ResourceRow) -> Result<(), StoreError> {
        self.insert_row(row, &[]).await
    }

    /// Returns the resource with this id in the workspace.
    pub async fn resource(&self, workspace: WorkspaceId, id: ResourceId) -> Result<Option<ResourceRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the resources in a workspace.
    pub async fn resources(
        &self,
        workspace: WorkspaceId,
        page: &Page<ResourceId>,
    ) -> Result<Listed<ResourceRow, ResourceId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Updates a resource, matched by id and workspace. Does nothing if the resource is missing or if its
    /// `updated_at` differs from `before`, the value that the caller read. The resource type stays unchanged. Returns
    /// whether the resource was updated.
    pub async fn update_resource(&self, row: &ResourceRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.update(args![row.id], |old| row.over(old, before)).await
        })
    }

    /// Deletes a resource with its credentials, keys and OAuth provider. Returns whether the resource existed. Fails if a binding uses the
    /// resource.
    pub async fn delete_resource(&self, workspace: WorkspaceId, id: ResourceId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<CredentialRow>(credentials::OF_RESOURCE, args![workspace, id]).await?;
            change.delete_found::<KeyRow>(keys::OF_RESOURCE, args![workspace, id]).await?;
            change.delete_found::<OauthProviderRow>(oauth_providers::OF_RESOURCE, args![workspace, id]).await?;
            change.delete_found::<ResourceToolRow>(resource_tools::OF_RESOURCE, args![workspace, id]).await?;
            change.delete_found::<FirstDiscoveryRow>(discoveries::FIRST_OF_RESOURCE, args![workspace, id]).await?;
            change.delete(args![id], |resource: &ResourceRow| resource.workspace_id == workspace).await
        });
        deleted.map_err(StoreError::of_deletion)
    }
}
