//! The lines of an export. Each line describes one object and refers to other objects by name, because ids are not
//! valid in another instance. No line contains a key, a credential or a secret.

use monstrum_types::{ResourceTypeId, UtcMillis, WorkspaceSandbox};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::bindings::{Delegate, Limits, Permissions};
use crate::resources::Network;
use crate::roles::ScopeConstraints;

/// One line of an export: an object whose type is in the field `kind`.
#[derive(Serialize, ToSchema)]
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
#[derive(Serialize, ToSchema)]
pub struct WorkspaceLine {
    pub name: String,
    /// The settings of the workspace's sandboxes. Null means the settings of the server.
    pub sandbox: Option<WorkspaceSandbox>,
}

/// A role.
#[derive(Serialize, ToSchema)]
pub struct RoleLine {
    /// The name of the workspace. Absent in the export of a single workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub name: String,
    pub allowed_operations: Option<Vec<String>>,
    pub allowed_tools: Option<Vec<String>>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: ScopeConstraints,
}

/// A bot.
#[derive(Serialize, ToSchema)]
pub struct BotLine {
    /// The name of the workspace. Absent in the export of a single workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    pub model: Option<String>,
    pub use_agent_sandbox: bool,
    pub monthly_token_budget: Option<i64>,
}

/// A resource. The line does not contain the credential of the resource.
#[derive(Serialize, ToSchema)]
pub struct ResourceLine {
    /// The name of the workspace. Absent in the export of a single workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    pub resource_type: ResourceTypeId,
    pub name: String,
    /// The configuration. In a resource of the type `bot`, the field `bot` is the name of a bot.
    pub config: Map<String, Value>,
    pub network: Network,
}

/// The grant of a resource to a bot. A bot has at most one binding for each resource.
#[derive(Serialize, ToSchema)]
pub struct BindingLine {
    /// The name of the workspace. Absent in the export of a single workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub workspace: Option<String>,
    /// The name of the bot.
    pub bot: String,
    /// The name of the resource.
    pub resource: String,
    /// The name of the role.
    pub role: Option<String>,
    pub permissions: Option<Permissions>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: ScopeConstraints,
    pub delegate: Option<Delegate>,
    /// Globs that match the names of the tools of other plugins that this resource's plugin may call.
    pub allow_calls: Vec<String>,
    pub allow_subscribe: bool,
    pub limits: Option<Limits>,
    pub calls_per_minute: Option<u32>,
    pub enabled: bool,
    pub expires_at: Option<UtcMillis>,
}
