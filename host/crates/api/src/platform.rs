//! Calls of platform functions.

use monstrum_types::ResourceId;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A call of a function.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionCall {
    /// What the function takes; the plugin alone judges it.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// A resource of the type, whose credential and configured upstream the function then uses. Without one it has no
    /// credential, and reaches what the plugin's manifest lists.
    pub resource_id: Option<ResourceId>,
}
