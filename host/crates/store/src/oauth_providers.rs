//! OAuth providers: where the tokens of a resource type come from in a workspace.

use monstrum_types::{OauthProviderId, ResourceTypeId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args};
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
         device_authorization_url, scopes, created_at, updated_at"
    };
}

pub(crate) const ALL: &str = concat!("select ", columns!(), " from oauth_providers order by id");
const INSERT: &str =
    concat!("insert into oauth_providers (", columns!(), ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)");
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

impl Store {
    /// Adds a provider. A second one for the same type is a conflict.
    pub async fn insert_oauth_provider(&self, row: &OauthProviderRow) -> Result<(), StoreError> {
        let args = args![
            row.id,
            row.workspace_id,
            &row.resource_type,
            &row.client_id,
            &row.client_secret,
            &row.authorization_url,
            &row.token_url,
            &row.device_authorization_url,
            &row.scopes,
            row.created_at,
            row.updated_at,
        ];
        self.change(INSERT, args).await?;
        Ok(())
    }

    /// The provider of this id in the workspace.
    pub async fn oauth_provider(
        &self,
        workspace: WorkspaceId,
        id: OauthProviderId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.db.one(BY_ID, args![workspace, id]).await
    }

    /// The workspace's provider for a type.
    pub async fn oauth_provider_of_type(
        &self,
        workspace: WorkspaceId,
        resource_type: &ResourceTypeId,
    ) -> Result<Option<OauthProviderRow>, StoreError> {
        self.db.one(BY_TYPE, args![workspace, resource_type]).await
    }

    /// A page of the workspace's providers.
    pub async fn oauth_providers(
        &self,
        workspace: WorkspaceId,
        page: &Page<OauthProviderId>,
    ) -> Result<Listed<OauthProviderRow, OauthProviderId>, StoreError> {
        self.db.page(PAGE, Arg::from(workspace), page, |row: &OauthProviderRow| row.id).await
    }

    /// Writes the row over the one of its id and workspace, whose type stays; whether there was one. Whoever has changed it since
    /// `before`, when it was read, wins: nothing is written over what nobody has seen.
    pub async fn update_oauth_provider(&self, row: &OauthProviderRow, before: UtcMillis) -> Result<bool, StoreError> {
        let sql = "update oauth_providers set client_id = $3, client_secret = $4, authorization_url = $5, \
                   token_url = $6, device_authorization_url = $7, scopes = $8, updated_at = $9 \
                   where workspace_id = $1 and id = $2 and updated_at = $10";
        let args = args![
            row.workspace_id,
            row.id,
            &row.client_id,
            &row.client_secret,
            &row.authorization_url,
            &row.token_url,
            &row.device_authorization_url,
            &row.scopes,
            row.updated_at,
            before,
        ];
        Ok(self.change(sql, args).await? > 0)
    }

    /// Deletes a provider with the authorizations that are under way; whether there was one.
    pub async fn delete_oauth_provider(&self, workspace: WorkspaceId, id: OauthProviderId) -> Result<bool, StoreError> {
        let sql = "delete from oauth_providers where workspace_id = $1 and id = $2";
        self.delete(sql, args![workspace, id]).await
    }
}
