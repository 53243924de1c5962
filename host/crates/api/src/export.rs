//! The lines of an export. Each line describes one object and refers to other objects by name, because ids are not
//! valid in another instance. No line contains a key, a credential or a secret.
//!
//! An import reads the same lines. All fields except `workspace` are required, so that a shortened line does not widen
//! a permission, and unknown fields are errors.

use monstrum_types::{ResourceTypeId, UtcMillis, WorkspaceSandbox};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::bindings::{Delegate, Limits, Permissions};
use crate::bots::TaskLimits;
use crate::gates::Gate;
use crate::resources::Network;
use crate::roles::ScopeConstraints;

/// One line of an export: an object whose type is in the field `kind`.
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

/// A workspace. Only an export of all workspaces contains such lines, which precede all other lines.
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
    /// The name of the workspace. Absent in the export of a single workspace.
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
    pub gates: Vec<Gate>,
}

/// A bot.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BotLine {
    /// The name of the workspace. Absent in the export of a single workspace.
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
    pub gates: Vec<Gate>,
    /// The models that are tried after `model`. This field and the following are absent if they are not set, and in
    /// exports of earlier releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub model_fallbacks: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub task_limits: Option<TaskLimits>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub session_idle_s: Option<i64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub client_tools: bool,
}

/// A resource. The line does not contain the credential of the resource.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResourceLine {
    /// The name of the workspace. Absent in the export of a single workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub resource_type: ResourceTypeId,
    pub name: String,
    /// The configuration. In a resource of the type `bot`, the field `bot` is the name of a bot.
    pub config: Map<String, Value>,
    pub network: Network,
    pub labels: Vec<String>,
}

/// The grant of a resource to a bot. A bot has at most one binding for each resource.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BindingLine {
    /// The name of the workspace. Absent in the export of a single workspace.
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
    pub gates: Vec<Gate>,
    /// Globs that match the names of the tools of other plugins that this resource's plugin may call.
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
