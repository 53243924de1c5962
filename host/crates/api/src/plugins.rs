//! Plugins and their pending versions.

use monstrum_manifest::Capability;
use monstrum_types::{Digest, ResourceTypeId, ToolName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;

/// The status of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// The version in the folder is in force.
    Loaded,
    /// The version in the folder could not be loaded. The previous version, if any, remains in force.
    Failed,
    /// The version in the folder requests more permissions than the previous version, or a name that belongs to another
    /// plugin. The previous version, if any, remains in force.
    NeedsApproval,
}

/// A plugin in the plugins folder. All fields except `name`, `status`, `error` and `pending` describe the version in
/// force. If no version is in force, these fields are null or empty.
#[derive(Serialize, ToSchema)]
pub struct Plugin {
    pub name: String,
    pub version: Option<String>,
    /// SHA-256 of the component.
    pub digest: Option<Digest>,
    pub status: PluginStatus,
    /// The description in the plugin's manifest.
    pub description: Option<String>,
    pub author: Option<String>,
    pub license: Option<String>,
    pub tags: Vec<String>,
    pub homepage: Option<String>,
    pub repository: Option<String>,
    /// The reason why the version in the folder is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The interfaces that the component imports.
    pub imports: Vec<String>,
    /// The capabilities that the manifest requests.
    #[schema(value_type = Vec<String>)]
    pub capabilities: Vec<Capability>,
    pub resource_type: Option<ResourceTypeId>,
    pub tools: Vec<ToolName>,
    /// The functions that the component exports for infrastructure code, in addition to the tools. `POST
    /// /api/platform/{type}/{function}` calls a function.
    pub functions: Vec<String>,
    /// Warnings for the plugin's author.
    pub warnings: Vec<String>,
    /// The version that waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

/// A version that waits for approval because it requests more permissions than the version in force, or a name that
/// belongs to another plugin.
#[derive(Serialize, ToSchema)]
#[schema(as = PendingVersion)]
pub struct Pending {
    pub version: String,
    /// SHA-256 of the component.
    pub digest: Digest,
    /// SHA-256 of the manifest.
    pub manifest_digest: Digest,
    /// The permission diff: one sentence for each permission or name that this version requests in addition to those of
    /// the version in force.
    pub grows: Vec<String>,
}

/// The version to approve.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The `digest` in `pending`. If another version waits for approval, the request fails. The default is the waiting
    /// version.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// The `manifest_digest` in `pending`. If a version with another manifest waits for approval, the request fails.
    /// The manifest contains all permissions that the version requests.
    #[serde(default)]
    pub manifest_digest: Option<Digest>,
}

lists! {
    Plugin => PluginList "A page of plugins.",
}
