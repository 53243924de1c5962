//! OAuth providers. The client secret occurs only in requests, never in responses.

use monstrum_types::{OauthProviderId, ResourceId, ResourceTypeId, Secret, TokenAuth, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};

/// An OAuth provider, which issues the tokens for one resource type, or for one resource.
#[derive(Serialize, ToSchema)]
pub struct OauthProvider {
    pub id: OauthProviderId,
    pub resource_type: ResourceTypeId,
    /// The resource to which the provider belongs. Null for a provider of the type, which is used for resources without
    /// a provider of their own.
    pub resource_id: Option<ResourceId>,
    pub client_id: String,
    /// Whether a client secret is stored. The secret itself is never returned.
    pub has_client_secret: bool,
    pub authorization_url: Option<String>,
    pub token_url: String,
    pub device_authorization_url: Option<String>,
    #[schema(value_type = Vec<String>)]
    pub scopes: serde_json::Value,
    /// The issuer whose metadata an admin has confirmed. Null for a provider whose values an admin has entered.
    pub issuer: Option<String>,
    /// How the client authenticates at the token endpoint. Null for a provider whose values an admin has entered: the
    /// server then tries HTTP Basic and the body.
    pub token_auth: Option<TokenAuth>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// A new OAuth provider. The default URLs and scopes are the ones that the manifest of the resource type proposes.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewOauthProvider {
    pub resource_type: ResourceTypeId,
    pub client_id: String,
    #[serde(default)]
    #[schema(value_type = Option<String>, write_only)]
    pub client_secret: Option<Secret>,
    pub authorization_url: Option<String>,
    pub token_url: Option<String>,
    pub device_authorization_url: Option<String>,
    pub scopes: Option<Vec<String>>,
}

/// Changes to an OAuth provider. Each field in the request replaces the whole stored field; null clears a field. If a
/// client secret is stored, a change of `token_url`, `device_authorization_url` or `client_id` requires the
/// `client_secret` again. The URLs of a provider that was discovered cannot be changed; discover and confirm it again. After a change of `token_url` or `client_id`, the existing credentials need a new
/// authorization.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OauthProviderChange {
    #[serde(default, deserialize_with = "not_null")]
    pub client_id: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, write_only)]
    pub client_secret: Option<Option<Secret>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub authorization_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "not_null")]
    pub token_url: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub device_authorization_url: Option<Option<String>>,
    #[serde(default, deserialize_with = "not_null")]
    pub scopes: Option<Vec<String>>,
}

lists! {
    OauthProvider => OauthProviderList "A page of OAuth providers.",
}
