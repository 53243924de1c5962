//! Resources: instances of resource types.

use monstrum_types::{ResourceId, ResourceTypeId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::credentials::CredentialMetadata;
use crate::list::lists;
use crate::patch::{not_null, nullable};

/// An instance of a resource type.
#[derive(Serialize, ToSchema)]
pub struct Resource {
    pub id: ResourceId,
    pub resource_type: ResourceTypeId,
    pub name: String,
    /// As it was given; defaults of the type are not filled in.
    #[schema(value_type = Object)]
    pub config: Value,
    #[schema(value_type = Network)]
    pub network: Value,
    /// What is known of its credential; null where there is none.
    pub credential: Option<CredentialMetadata>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What is opened for a resource beyond public https.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// CIDRs that may be connected to although they are not public, such as `10.1.0.0/16`.
    #[serde(default)]
    pub allow_addresses: Vec<String>,
    /// Whether `http://` may be used at all.
    #[serde(default)]
    pub allow_http: bool,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewResource {
    pub resource_type: ResourceTypeId,
    pub name: String,
    #[serde(default)]
    pub config: Map<String, Value>,
    #[serde(default)]
    pub network: Network,
}

/// Each field that is named is replaced whole; null clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceChange {
    #[serde(default, deserialize_with = "not_null")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Object>)]
    pub config: Option<Option<Map<String, Value>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Network>)]
    pub network: Option<Option<Network>>,
}

lists! {
    Resource => ResourceList "A page of resources.",
}
