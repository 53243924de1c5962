//! The lines of an export. A line is one object. It names the objects that it refers to, because their ids mean nothing
//! in another instance. No line contains a key, a credential or a secret.
//!
//! An import reads the same lines. All fields except `workspace` are required, so that a shortened line does not widen
//! a permission, and unknown fields are errors.

use monstrum_types::{ResourceTypeId, UtcMillis, WorkspaceSandbox};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::bindings::{Delegate, Limits, Permissions};
use crate::resources::Network;
use crate::roles::ScopeConstraints;

/// One line of an export: an object of the kind that its field `kind` names.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schema(as = ExportLine)]
pub enum Line {
    Workspace(WorkspaceLine),
    Role(RoleLine),
    Bot(BotLine),
    Resource(ResourceLine),
    Binding(BindingLine),
}

/// A workspace. These lines come first. Only the export of all workspaces has them.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceLine {
    pub name: String,
    /// The settings of the workspace's sandboxes. Null means the settings of the server.
    #[serde(deserialize_with = "Option::deserialize")]
    pub sandbox: Option<WorkspaceSandbox>,
}

/// A role.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleLine {
    /// The name of the workspace. It is absent in the export of a single workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub name: String,
    #[serde(deserialize_with = "Option::deserialize")]
    pub allowed_operations: Option<Vec<String>>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub allowed_tools: Option<Vec<String>>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: ScopeConstraints,
}

/// A bot.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BotLine {
    /// The name of the workspace. It is absent in the export of a single workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    #[serde(deserialize_with = "Option::deserialize")]
    pub model: Option<String>,
    pub use_agent_sandbox: bool,
    #[serde(deserialize_with = "Option::deserialize")]
    pub monthly_token_budget: Option<i64>,
}

/// A resource, without its credential.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceLine {
    /// The name of the workspace. It is absent in the export of a single workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub resource_type: ResourceTypeId,
    pub name: String,
    /// The configuration. In a resource of the type `bot`, `bot` is the name of a bot.
    pub config: Map<String, Value>,
    pub network: Network,
}

/// The grant of a resource to a bot. A bot has one binding of each resource.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingLine {
    /// The name of the workspace. It is absent in the export of a single workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    /// The name of the bot.
    pub bot: String,
    /// The name of the resource.
    pub resource: String,
    /// The name of the role.
    #[serde(deserialize_with = "Option::deserialize")]
    pub role: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub permissions: Option<Permissions>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: ScopeConstraints,
    #[serde(deserialize_with = "Option::deserialize")]
    pub delegate: Option<Delegate>,
    /// Globs that match the names of other plugins' tools that this resource's plugin may call.
    pub allow_calls: Vec<String>,
    pub allow_subscribe: bool,
    #[serde(deserialize_with = "Option::deserialize")]
    pub limits: Option<Limits>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub calls_per_minute: Option<u32>,
    pub enabled: bool,
    #[serde(deserialize_with = "Option::deserialize")]
    pub expires_at: Option<UtcMillis>,
}
