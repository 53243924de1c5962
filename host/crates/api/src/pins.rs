//! Tools that come from outside, the decisions of admins about them, and their discovery.

use monstrum_manifest::Effect;
use monstrum_types::{DiscoveryStatus, KeyId, PinStatus, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The tools of a resource that come from its server or agent.
#[derive(Serialize, ToSchema)]
pub struct PinnedTools {
    pub items: Vec<PinnedTool>,
}

/// A tool that a server or an agent declares. Characters that a person does not see are written as escapes such as
/// `\u{202e}`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PinnedTool {
    /// The name under which bots use the tool.
    pub name: String,
    /// The name that the server or the agent uses. A decision repeats it.
    pub original_name: String,
    pub status: PinStatus,
    /// The reason for the status `invalid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The SHA-256 of the declared definition. A decision repeats it.
    pub digest: String,
    /// `read`, `idempotent` or `write`: the effect of a call, as an admin has set it.
    #[schema(value_type = String)]
    pub effect: Effect,
    /// The effect that the server or the agent declares.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub hint: Option<Effect>,
    /// The definition that was declared last: `name`, `title`, `description`, `inputSchema`, `outputSchema` and
    /// `annotations`.
    #[schema(value_type = Object)]
    pub definition: Map<String, Value>,
    /// The approved definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<ApprovedDefinition>,
}

/// A definition that was approved.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ApprovedDefinition {
    pub digest: String,
    #[schema(value_type = Object)]
    pub definition: Map<String, Value>,
    /// The key that approved the definition; null if the configuration of the resource approved it.
    pub by: Option<KeyId>,
    pub at: Option<UtcMillis>,
}

/// The decisions of an admin, of which all or none are made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinDecisions {
    #[schema(max_items = 512)]
    pub tools: Vec<PinDecision>,
}

/// The decision about one tool.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinDecision {
    pub original_name: String,
    /// The `digest` of the definition that the admin has read.
    pub digest: String,
    /// The effect of a call of the approved tool; `write` by default.
    #[schema(value_type = Option<String>)]
    pub effect: Option<Effect>,
    /// The earlier decision that the caller knows. If another request has decided since, nothing is decided.
    pub was: Option<EarlierDecision>,
}

/// An earlier decision about a tool.
#[derive(Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlierDecision {
    /// The digest of the approved definition; null if no definition was approved.
    pub approved_digest: Option<String>,
    /// The effect of calls of the approved tool.
    pub effect: Option<String>,
}

/// The result of a discovery that was requested.
#[derive(Serialize, ToSchema)]
pub struct DiscoveryResult {
    pub discovery: Discovery,
}

/// The last discovery of the tools of a resource.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Discovery {
    pub status: DiscoveryStatus,
    pub last_discovery_at: Option<UtcMillis>,
    /// The reason why the last discovery failed.
    pub error: Option<String>,
    /// What the server says about itself.
    #[schema(value_type = Option<Object>)]
    pub server: Option<Value>,
    /// The revision of the protocol.
    pub protocol: Option<String>,
}
