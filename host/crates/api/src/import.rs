//! The answer to an import of the lines of an export.

use monstrum_types::UtcMillis;
use serde::Serialize;
use utoipa::ToSchema;

use crate::bindings::{Delegate, Limits, Permissions};

/// What an import has changed or, for a dry run, would change.
#[derive(Serialize, ToSchema)]
pub struct Import {
    pub dry_run: bool,
    /// The workspaces that the lines concern.
    pub workspaces: Vec<ImportedWorkspace>,
}

/// What an import changes in a workspace.
#[derive(Serialize, ToSchema)]
pub struct ImportedWorkspace {
    pub workspace: String,
    /// What happens to the workspace itself.
    pub state: ImportedState,
    pub created: ImportedCounts,
    pub changed: ImportedCounts,
    /// The objects that were already as their lines say.
    pub unchanged: ImportedCounts,
    /// The bots whose grants change, by name. An import lists at most 1 000 grants, and 4 MiB of them.
    pub permissions: Vec<ImportedPermissions>,
    /// The number of gained and lost grants that are not listed.
    pub permissions_left_out: usize,
}

/// What an import does to an object.
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

/// The difference between what a bot was granted before an import and what it is granted after it.
#[derive(Serialize, ToSchema)]
pub struct ImportedPermissions {
    pub bot: String,
    pub gains: Vec<Grant>,
    pub loses: Vec<Grant>,
}

/// What a bot is granted: a resource by an enabled binding, or a sandbox in each conversation.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Grant {
    Binding(Box<BindingGrant>),
    Sandbox,
}

/// The grant of a resource by a binding that is enabled. A change of any field is a loss of the old grant and a gain of
/// the new one.
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
    #[schema(value_type = Vec<String>)]
    pub allow_calls: serde_json::Value,
    pub allow_subscribe: bool,
    #[schema(value_type = Option<Limits>)]
    pub limits: Option<serde_json::Value>,
    pub calls_per_minute: Option<i64>,
    pub expires_at: Option<UtcMillis>,
}

/// A role, as a part of a grant.
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
}
