//! OAuth providers: where the tokens of a resource type come from in a workspace.

use monstrum_types::{OauthProviderId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `oauth_providers`.
#[derive(Clone, Debug, PartialEq)]
pub struct OauthProviderRow {
    pub id: OauthProviderId,
    pub workspace_id: WorkspaceId,
    /// A workspace has one provider for a type.
    pub resource_type: ResourceTypeId,
    pub client_id: String,
    /// The text of a sealed record; None for a public client.
    pub client_secret: Option<String>,
    pub authorization_url: Option<String>,
    pub token_url: String,
    pub device_authorization_url: Option<String>,
    /// A list of texts.
    pub scopes: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, resource_type, client_id, client_secret, authorization_url, token_url, \
         device_authorization_url, scopes, created_at, updated_at, mac"
    };
}

const BY_ID: &str = concat!("select ", columns!(), " from oauth_providers where workspace_id = $1 and id = $2");
const BY_TYPE: &str =
    concat!("select ", columns!(), " from oauth_providers where workspace_id = $1 and resource_type = $2");
const PAGE: &str =
    concat!("select ", columns!(), " from oauth_providers where workspace_id = $1 and id > $2 order by id limit $3");

impl FromRow for OauthProviderRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(OauthProviderRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            resource_type: row.id("resource_type")?,
            client_id: row.text("client_id")?,
            client_secret: row.text_opt("client_secret")?,
            authorization_url: row.text_opt("authorization_url")?,
            token_url: row.text("token_url")?,
            device_authorization_url: row.text_opt("device_authorization_url")?,
            scopes: row.json("scopes")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Authentic for OauthProviderRow {
    const TABLE: Table = Table::OauthProviders;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            &self.resource_type,
            &self.client_id,
            &self.authorization_url,
            &self.token_url,
            &self.device_authorization_url,
            &self.scopes,
            self.created_at,
            self.updated_at
        ]
    }
}

impl Store {
    /// Adds a provider. A second one for the same type is a conflict.
    pub async fn insert_oauth_provider(&self, row: &OauthProviderRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| change
            .insert(row, values![&row.client_secret], Vec::new())
            .await)
    }

    /// The provider of this id in the workspace.
    pub async fn oauth_provider(
        &self,
        workspace: WorkspaceId,
        id: OauthProviderId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Whether a provider is the one that its workspace had when this process last verified it.
    pub fn is_verified_provider(&self, row: &OauthProviderRow) -> Result<bool, StoreError> {
        self.is_as_verified(row)
    }

    /// The workspace's provider for a type.
    pub async fn oauth_provider_of_type(
        &self,
        workspace: WorkspaceId,
        resource_type: &ResourceTypeId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.authentic_one(BY_TYPE, args![workspace, resource_type]).await
    }

    /// A page of the workspace's providers.
    pub async fn oauth_providers(
        &self,
        workspace: WorkspaceId,
        page: &Page<OauthProviderId>,
    ) -> Result<Listed<OauthProviderRow, OauthProviderId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Writes the row over the one of its id and workspace, whose type stays; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
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

    /// Deletes a provider with the authorizations that are under way; whether there was one.
    pub async fn delete_oauth_provider(&self, workspace: WorkspaceId, id: OauthProviderId) -> Result<bool, StoreError> {
        let is_own = |provider: &OauthProviderRow| provider.workspace_id == workspace;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], is_own).await)
    }
}
