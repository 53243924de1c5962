//! OAuth providers, which issue tokens for a resource type in a workspace.

use monstrum_types::{OauthProviderId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `oauth_providers`.
#[derive(Clone, Debug, PartialEq)]
pub struct OauthProviderRow {
    pub id: OauthProviderId,
    pub workspace_id: WorkspaceId,
    /// The resource type, which is unique in the workspace.
    pub resource_type: ResourceTypeId,
    pub client_id: String,
    /// A sealed record in its text form; `None` for a public client.
    pub client_secret: Option<String>,
    pub authorization_url: Option<String>,
    pub token_url: String,
    pub device_authorization_url: Option<String>,
    /// A JSON list of strings.
    pub scopes: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    OauthProviderRow in OauthProviders("oauth_providers"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, resource_type, client_id, authorization_url, token_url, device_authorization_url, scopes,
        created_at, updated_at,
    ],
    // The secret is sealed and bound to the client and its endpoints.
    others: [client_secret],
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const BY_TYPE: &str = select!("where workspace_id = $1 and resource_type = $2");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");

impl Store {
    /// Inserts a provider. Fails with a conflict if the workspace already has a provider for the same resource type.
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

    /// Returns the provider for a resource type in the workspace.
    pub async fn oauth_provider_of_type(
        &self,
        workspace: WorkspaceId,
        resource_type: &ResourceTypeId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.authentic_one(BY_TYPE, args![workspace, resource_type]).await
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
    /// `updated_at` differs from `before`, the value that the caller read. The resource type stays unchanged. Returns
    /// whether the provider was updated.
    pub async fn update_oauth_provider(&self, row: &OauthProviderRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update oauth_providers set client_secret = $3 where workspace_id = $1 and id = $2";
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let next = |old: &OauthProviderRow| {
                let (resource_type, created_at) = (old.resource_type.clone(), old.created_at);
                (old.updated_at == before).then(|| OauthProviderRow { resource_type, created_at, ..row.clone() })
            };
            let is_updated = change.update(args![row.id], next).await?;
            if is_updated {
                change.session.run(sql, args![row.workspace_id, row.id, &row.client_secret]).await?;
            }
            Ok(is_updated)
        })
    }

    /// Deletes a provider with its unfinished authorizations. Returns whether the provider existed.
    pub async fn delete_oauth_provider(&self, workspace: WorkspaceId, id: OauthProviderId) -> Result<bool, StoreError> {
        let is_own = |provider: &OauthProviderRow| provider.workspace_id == workspace;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
