//! OAuth providers, which issue tokens for a resource type in a workspace, or for one resource.

use monstrum_types::{OauthProviderId, ResourceId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `oauth_providers`.
#[derive(Clone, Debug, PartialEq)]
pub struct OauthProviderRow {
    pub id: OauthProviderId,
    pub workspace_id: WorkspaceId,
    /// The resource type, which is unique among the providers of the workspace that belong to no resource.
    pub resource_type: ResourceTypeId,
    /// The resource to which the provider belongs, which has at most one; `None` for a provider of the type.
    pub resource_id: Option<ResourceId>,
    pub client_id: String,
    /// A sealed record in its text form; `None` for a public client.
    pub client_secret: Option<String>,
    pub authorization_url: Option<String>,
    pub token_url: String,
    pub device_authorization_url: Option<String>,
    /// A JSON list of strings.
    pub scopes: Value,
    /// What an admin has confirmed of the metadata of the authorization server, as a JSON object; `None` for a provider
    /// whose values an admin has entered.
    pub server: Option<Value>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    OauthProviderRow in OauthProviders("oauth_providers"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, resource_type, client_id, authorization_url, token_url, device_authorization_url, scopes,
        created_at, updated_at,
    ],
    optional: [resource_id, server],
    // The secret is sealed and bound to the client and its endpoints.
    others: [client_secret],
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const BY_TYPE: &str = select!("where workspace_id = $1 and resource_type = $2 and resource_id is null");
pub(crate) const OF_RESOURCE: &str = select!("where workspace_id = $1 and resource_id = $2");
const OF_TYPE_PAGE: &str = select!("where workspace_id = $1 and resource_type = $2 and id > $3 order by id limit $4");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");

impl Store {
    /// Inserts a provider. Fails with a conflict if the workspace already has a provider for the same resource type, or
    /// the resource has one.
    pub async fn insert_oauth_provider(&self, row: &OauthProviderRow) -> Result<(), StoreError> {
        self.insert_row(row, args![&row.client_secret]).await
    }

    /// Returns the provider with this id in the workspace.
    pub async fn oauth_provider(
        &self,
        workspace: WorkspaceId,
        id: OauthProviderId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns whether a provider is unchanged since this process last verified its workspace.
    pub fn is_verified_provider(&self, row: &OauthProviderRow) -> Result<bool, StoreError> {
        self.is_as_verified(row)
    }

    /// Returns the provider for a resource type in the workspace that belongs to no resource.
    pub async fn oauth_provider_of_type(
        &self,
        workspace: WorkspaceId,
        resource_type: &ResourceTypeId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.authentic_one(BY_TYPE, args![workspace, resource_type]).await
    }

    /// Returns the provider that belongs to a resource.
    pub async fn oauth_provider_of_resource(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.authentic_one(OF_RESOURCE, args![workspace, resource]).await
    }

    /// Returns the provider for a resource: its own, or else the provider of its type. A provider of the resource with a
    /// wrong MAC stands for no provider, because the provider of the type may be another server.
    pub async fn oauth_provider_for(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        resource_type: &ResourceTypeId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.read().await?;
        let own = session.fetch(OF_RESOURCE, args![workspace, resource]).await?;
        if let Some(own) = own.first() {
            return Ok(rows.authentic(own));
        }
        let of_type = session.fetch(BY_TYPE, args![workspace, resource_type]).await?;
        Ok(of_type.first().and_then(|row| rows.authentic(row)))
    }

    /// Returns a page of the providers for a resource type in a workspace.
    pub async fn oauth_providers_of_type(
        &self,
        workspace: WorkspaceId,
        resource_type: &ResourceTypeId,
        page: &Page<OauthProviderId>,
    ) -> Result<Listed<OauthProviderRow, OauthProviderId>, StoreError> {
        self.authentic_page(OF_TYPE_PAGE, values![workspace, resource_type], page).await
    }

    /// Returns a page of the providers in a workspace.
    pub async fn oauth_providers(
        &self,
        workspace: WorkspaceId,
        page: &Page<OauthProviderId>,
    ) -> Result<Listed<OauthProviderRow, OauthProviderId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Updates a provider, matched by id and workspace. Does nothing if the provider is missing or if its
    /// `updated_at` differs from `before`, the value that the caller read. The resource type and the resource stay
    /// unchanged. Returns whether the provider was updated.
    pub async fn update_oauth_provider(&self, row: &OauthProviderRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update oauth_providers set client_secret = $3 where workspace_id = $1 and id = $2";
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &OauthProviderRow| {
                let (resource_type, resource_id) = (old.resource_type.clone(), old.resource_id);
                let created_at = old.created_at;
                let next = || OauthProviderRow { resource_type, resource_id, created_at, ..row.clone() };
                (old.updated_at == before).then(next)
            };
            let is_updated = change.update(args![row.id], next).await?;
            if is_updated {
                change.session.run(sql, args![row.workspace_id, row.id, &row.client_secret]).await?;
            }
            Ok(is_updated)
        })
    }

    /// Deletes a provider that was last changed at `before`, with its unfinished authorizations. Returns `false` if the
    /// provider was changed since or does not exist.
    pub async fn delete_oauth_provider(
        &self,
        workspace: WorkspaceId,
        id: OauthProviderId,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        let is_own = |provider: &OauthProviderRow| provider.workspace_id == workspace && provider.updated_at == before;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
