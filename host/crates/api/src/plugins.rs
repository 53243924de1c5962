//! Plugins and their pending versions.

use monstrum_manifest::Capability;
use monstrum_types::{Digest, PluginName, ResourceId, ResourceTypeId, ToolName, WorkspaceId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
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

/// The comparison of the version that waits for approval with the version before it.
#[derive(Serialize, ToSchema)]
pub struct PluginDiff {
    /// The version before; null if the plugin has no version in force. If the new version takes its resource type from
    /// another plugin, this is the version of that plugin.
    pub from: Option<ComparedVersion>,
    /// The version that waits for approval.
    pub to: ComparedVersion,
    /// The permissions and names that the new version requests in addition. Their texts are those of `pending.grows`.
    pub grows: Vec<PluginDifference>,
    /// The permissions that the new version no longer requests, and the constraints that it adds.
    pub narrows: Vec<PluginDifference>,
    /// The tools that differ.
    pub tools: Vec<ToolDifference>,
    pub touches: PluginTouches,
}

/// A compared version of a plugin.
#[derive(Serialize, ToSchema)]
pub struct ComparedVersion {
    pub plugin: PluginName,
    pub version: String,
    /// SHA-256 of the component.
    pub digest: Digest,
    /// SHA-256 of the manifest.
    pub manifest_digest: Digest,
    /// The key that has signed the package of the waiting version. Absent for a folder that was copied, and after a
    /// restart of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed_by: Option<String>,
}

/// What a difference between two versions of a plugin is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    AuthMethod,
    Calls,
    Capability,
    Config,
    CredentialCheck,
    Egress,
    /// A resource type or tools that belong to another plugin.
    Name,
    ResourceType,
    ScopeDimension,
    Tool,
    /// The previous version can no longer be read.
    Unreadable,
}

/// One difference between two versions of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct PluginDifference {
    pub kind: DifferenceKind,
    /// A sentence about the difference.
    pub text: String,
    /// The value in the version before; absent if the version has no such value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value in the new version; absent if the version has no such value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// How a tool differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolChange {
    Added,
    Changed,
    Removed,
}

/// A tool that differs between two versions of a plugin.
#[derive(Serialize, ToSchema)]
pub struct ToolDifference {
    pub name: ToolName,
    pub change: ToolChange,
    /// The declaration in the manifest of the version before; absent for an added tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Value>,
    /// The declaration in the manifest of the new version; absent for a removed tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Value>,
}

/// What a new version of a plugin touches, in all workspaces.
#[derive(Serialize, ToSchema)]
pub struct PluginTouches {
    /// The bindings to resources of the plugin's type, at most 200.
    pub bindings: Vec<TouchedBinding>,
    /// The credentials that an approval makes wait for an admin, at most 200.
    pub credentials: Vec<TouchedCredential>,
}

/// A binding to a resource of the plugin's type, by its names.
#[derive(Serialize, ToSchema)]
pub struct TouchedBinding {
    pub workspace: String,
    pub resource: String,
    pub bot: String,
}

/// A resource whose credential an admin must confirm after an approval.
#[derive(Serialize, ToSchema)]
pub struct TouchedCredential {
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    pub resource: String,
}

lists! {
    Plugin => PluginList "A page of plugins.",
}
