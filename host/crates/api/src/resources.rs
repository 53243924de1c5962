//! Resources: instances of resource types.

use monstrum_types::{RequestId, ResourceId, ResourceTypeId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::credentials::CredentialMetadata;
use crate::list::lists;
use crate::patch::{not_null, nullable};
use crate::pins::Discovery;

/// A resource: one account or system of a resource type.
#[derive(Serialize, ToSchema)]
pub struct Resource {
    pub id: ResourceId,
    pub resource_type: ResourceTypeId,
    pub name: String,
    /// The configuration as it was saved. The defaults of the resource type are not filled in.
    #[schema(value_type = Object)]
    pub config: Value,
    #[schema(value_type = Network)]
    pub network: Value,
    /// Labels for the results of this resource, to which gates refer. Only an admin key can change them.
    #[schema(value_type = Vec<String>)]
    pub labels: Value,
    /// The metadata of the resource's credential; null if the resource has no credential.
    pub credential: Option<CredentialMetadata>,
    /// The last discovery of the tools; absent if the tools of this type do not come from a server or an agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discovery: Option<Discovery>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// The health of a resource.
#[derive(Serialize, ToSchema)]
pub struct ResourceHealth {
    /// The metadata of the resource's credential; null if the resource has no credential.
    pub credential: Option<CredentialMetadata>,
    pub last_hour: RecentCalls,
    /// The newest call that failed, if it is one of the newest 1,000 calls of the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
}

/// The calls of the last hour that ran: those with the status `success`, and those with the status `error` whose code says
/// something about the resource (not `invalid_params`, `limit`, `busy`, `budget` or `cancelled`). Only the newest 1,000
/// calls of the resource are read.
#[derive(Serialize, ToSchema)]
pub struct RecentCalls {
    pub calls: usize,
    pub succeeded: usize,
    /// The median duration; null if no call ran.
    pub p50_ms: Option<i64>,
}

/// A call that failed.
#[derive(Serialize, ToSchema)]
pub struct LastFailure {
    pub request_id: RequestId,
    pub at: UtcMillis,
    pub code: Option<String>,
    pub message: Option<String>,
}

/// The network rules of a resource. The default allows only HTTPS to public addresses.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Non-public address ranges to which connections are allowed, in CIDR notation, such as `10.1.0.0/16`.
    #[serde(default)]
    pub allow_addresses: Vec<String>,
    /// Whether `http://` URLs are allowed.
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
    /// At most 4 labels, each of 1 to 32 characters of a-z and `-`. Setting labels requires an admin key.
    #[serde(default)]
    #[schema(max_items = 4)]
    pub labels: Vec<String>,
}

/// Changes to a resource. Each field in the request replaces the whole stored field; null clears a field.
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
    /// At most 4 labels, each of 1 to 32 characters of a-z and `-`. Changing labels requires an admin key.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>, max_items = 4)]
    pub labels: Option<Option<Vec<String>>>,
}

lists! {
    Resource => ResourceList "A page of resources.",
}
