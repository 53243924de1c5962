//! Calls of platform functions.

use monstrum_types::ResourceId;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A call of a function.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionCall {
    /// The parameters of the function. The plugin, not the host, validates the parameters.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// A resource of the type, whose credential and configured upstream the function uses. Without a resource, the
    /// function has no credential and can reach only the origins that the plugin's manifest lists.
    pub resource_id: Option<ResourceId>,
}
