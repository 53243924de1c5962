//! The response to an import of the lines of an export.

use monstrum_types::UtcMillis;
use serde::Serialize;
use utoipa::ToSchema;

use crate::bindings::{Delegate, Limits, Permissions};
use crate::gates::Gate;

/// The changes that an import has made or, for a dry run, would make.
#[derive(Serialize, ToSchema)]
pub struct Import {
    pub dry_run: bool,
    /// A digest of the lines and of the objects that they change. An import with this `plan` changes the same objects from
    /// the same states, or nothing.
    pub plan: String,
    /// The workspaces to which the lines belong.
    pub workspaces: Vec<ImportedWorkspace>,
}

/// The changes that an import makes in a workspace.
#[derive(Serialize, ToSchema)]
pub struct ImportedWorkspace {
    pub workspace: String,
    /// The effect of the import on the workspace itself.
    pub state: ImportedState,
    pub created: ImportedCounts,
    pub changed: ImportedCounts,
    /// The numbers of objects that already matched their lines.
    pub unchanged: ImportedCounts,
    /// The bots whose grants change, by name. A response lists at most 1 000 grants, gates and labels, and 4 MiB of them.
    pub permissions: Vec<ImportedPermissions>,
    /// The bots whose own gates change. The gates of roles and bindings are part of the grants.
    pub gates: Vec<ChangedGates>,
    /// The resources whose labels change.
    pub labels: Vec<ChangedLabels>,
    /// The number of gained and lost grants and of changed gates and labels that are not listed.
    pub permissions_left_out: usize,
}

/// The effect of an import on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportedState {
    Created,
    Changed,
    Unchanged,
}

/// Numbers of objects.
#[derive(Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ImportedCounts {
    pub roles: usize,
    pub bots: usize,
    pub resources: usize,
    pub bindings: usize,
}

/// The difference between the grants of a bot before and after an import.
#[derive(Serialize, ToSchema)]
pub struct ImportedPermissions {
    pub bot: String,
    pub gains: Vec<Grant>,
    pub loses: Vec<Grant>,
}

/// The gates of a bot before and after an import.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct ChangedGates {
    pub bot: String,
    #[schema(value_type = Vec<Gate>)]
    pub before: serde_json::Value,
    #[schema(value_type = Vec<Gate>)]
    pub after: serde_json::Value,
}

/// The labels of a resource before and after an import.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct ChangedLabels {
    pub resource: String,
    #[schema(value_type = Vec<String>)]
    pub before: serde_json::Value,
    #[schema(value_type = Vec<String>)]
    pub after: serde_json::Value,
}

/// A grant of a bot: a resource through an enabled binding, or a sandbox in each conversation.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Grant {
    Binding(Box<BindingGrant>),
    Sandbox,
}

/// The grant of a resource through an enabled binding. If any field changes, the bot loses the old grant and gains the
/// new grant.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct BindingGrant {
    /// The name of the resource.
    pub resource: String,
    pub role: Option<RoleGrant>,
    #[schema(value_type = Option<Permissions>)]
    pub permissions: Option<serde_json::Value>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: serde_json::Value,
    #[schema(value_type = Option<Delegate>)]
    pub delegate: Option<serde_json::Value>,
    #[schema(value_type = Vec<Gate>)]
    pub gates: serde_json::Value,
    #[schema(value_type = Vec<String>)]
    pub allow_calls: serde_json::Value,
    pub allow_subscribe: bool,
    #[schema(value_type = Option<Limits>)]
    pub limits: Option<serde_json::Value>,
    pub calls_per_minute: Option<i64>,
    pub expires_at: Option<UtcMillis>,
}

/// The role of a binding, as part of a grant.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
pub struct RoleGrant {
    pub name: String,
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_operations: Option<serde_json::Value>,
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_tools: Option<serde_json::Value>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: serde_json::Value,
    #[schema(value_type = Vec<Gate>)]
    pub gates: serde_json::Value,
}
