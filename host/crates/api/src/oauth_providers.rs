//! OAuth providers. The client secret is part of inputs only.

use monstrum_types::{OauthProviderId, ResourceTypeId, Secret, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};

/// A provider of tokens.
#[derive(Serialize, ToSchema)]
pub struct OauthProvider {
    pub id: OauthProviderId,
    pub resource_type: ResourceTypeId,
    pub client_id: String,
    /// Whether a client secret is stored; it is never shown.
    pub has_client_secret: bool,
    pub authorization_url: Option<String>,
    pub token_url: String,
    pub device_authorization_url: Option<String>,
    #[schema(value_type = Vec<String>)]
    pub scopes: serde_json::Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What is absent of the URLs and scopes is taken from what the type's manifest proposes.
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

/// Each field that is named is replaced whole; null clears it. Another `token_url`, `device_authorization_url` or `client_id`
/// asks for the `client_secret` again, and for the credentials' authorization.
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
    OauthProvider => OauthProviderList "A page of providers.",
}
