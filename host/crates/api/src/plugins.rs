//! Plugins and their pending versions.

use monstrum_manifest::Capability;
use monstrum_types::{Digest, ResourceTypeId, ToolName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;

/// Whether a plugin serves.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// The version in the folder serves.
    Loaded,
    /// The version in the folder could not be loaded. The version before it, if there is one, still serves.
    Failed,
    /// The version in the folder asks for more than the version before it, which still serves, or for a name that belongs
    /// to another plugin.
    NeedsApproval,
}

/// A plugin of the folder. `version`, `digest` and all that follows are those of the version that serves.
#[derive(Serialize, ToSchema)]
pub struct Plugin {
    pub name: String,
    pub version: Option<String>,
    /// SHA-256 of the component.
    pub digest: Option<Digest>,
    pub status: PluginStatus,
    /// What its author says of it, as all up to `repository`: null where no version serves.
    pub description: Option<String>,
    pub author: Option<String>,
    pub license: Option<String>,
    pub tags: Vec<String>,
    pub homepage: Option<String>,
    pub repository: Option<String>,
    /// Why the version in the folder does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The interfaces that the component imports.
    pub imports: Vec<String>,
    /// What its manifest asks for.
    #[schema(value_type = Vec<String>)]
    pub capabilities: Vec<Capability>,
    pub resource_type: Option<ResourceTypeId>,
    pub tools: Vec<ToolName>,
    /// What it exports for infrastructure code, beyond tools: `POST /api/platform/{type}/{function}` calls one.
    pub functions: Vec<String>,
    /// What its author should know.
    pub warnings: Vec<String>,
    /// The version that waits for approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

/// A version that asks for more than the one that serves.
#[derive(Serialize, ToSchema)]
#[schema(as = PendingVersion)]
pub struct Pending {
    pub version: String,
    /// SHA-256 of the component.
    pub digest: Digest,
    /// SHA-256 of the manifest.
    pub manifest_digest: Digest,
    /// What it asks for beyond the version that serves, a sentence each.
    pub grows: Vec<String>,
}

/// Which version is approved.
#[derive(Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// The digest that `pending` shows; where another version waits by now, nothing is approved.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// The same for the manifest, in which everything stands that the version asks for.
    #[serde(default)]
    pub manifest_digest: Option<Digest>,
}

lists! {
    Plugin => PluginList "A page of plugins.",
}
