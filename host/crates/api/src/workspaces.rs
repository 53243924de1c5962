//! Workspaces, which separate tenants.

use monstrum_types::{UtcMillis, WorkspaceId, WorkspaceSandbox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};

/// A workspace. Everything except plugins belongs to a workspace and is not visible in other workspaces.
#[derive(Serialize, ToSchema)]
pub struct Workspace {
    pub id: WorkspaceId,
    pub name: String,
    /// The settings of the workspace's sandboxes. Null means the settings of the server.
    #[schema(value_type = Option<WorkspaceSandbox>)]
    pub sandbox: Option<Value>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorkspace {
    pub name: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceChange {
    #[serde(default, deserialize_with = "not_null")]
    pub name: Option<String>,
    /// The settings of the workspace's sandboxes. A value replaces all stored settings; null means the settings of the
    /// server.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<WorkspaceSandbox>)]
    pub sandbox: Option<Option<WorkspaceSandbox>>,
}

lists! {
    Workspace => WorkspaceList "A page of workspaces.",
}
