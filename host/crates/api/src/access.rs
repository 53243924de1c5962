//! What a bot can do: every tool of its bindings, also those that a rule hides.

use monstrum_types::{BindingId, RoleId};
use serde::Serialize;
use utoipa::ToSchema;

use crate::tools::NamedResource;

/// A tool of a binding.
#[derive(Serialize, ToSchema)]
pub struct ToolAccess {
    pub tool: String,
    pub operation: String,
    pub resource: NamedResource,
    pub binding_id: BindingId,
    /// The role of the binding. Absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<NamedRole>,
    /// The switch of the bot that grants the tool. Absent for the tool of a stored binding. Other routes do not know the
    /// binding and the resource of a switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "use_agent_sandbox")]
    pub switch: Option<&'static str>,
    /// Whether the bot sees the tool.
    pub visible: bool,
    /// The rule that hides the tool. Absent for a visible tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Whether a gate may ask a person before a call of the tool. Absent for a hidden tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asks: Option<bool>,
    /// The scopes that restrict the values of a call. The values of a call must be permitted by each of them.
    pub scopes: Vec<ScopeAccess>,
}

/// A list of values to which a scope restricts calls.
#[derive(Serialize, ToSchema)]
pub struct ScopeAccess {
    /// The key of the scope dimension.
    pub dimension: String,
    /// `pattern`, `path` or `exact`.
    pub match_mode: String,
    /// `role` or `binding`.
    pub source: String,
    pub entries: Vec<String>,
}

/// A role by id and name.
#[derive(Serialize, ToSchema)]
pub struct NamedRole {
    pub id: RoleId,
    pub name: String,
}

/// Every tool of a bot's bindings.
#[derive(Serialize, ToSchema)]
pub struct AccessList {
    pub items: Vec<ToolAccess>,
}

/// A binding that was not saved, and calls to check under it.
#[derive(serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewInput {
    /// The binding that the draft replaces. Absent for a new binding.
    pub binding_id: Option<BindingId>,
    /// The binding, as it would be saved.
    pub draft: crate::bindings::NewBinding,
    /// Calls to check under the draft, at most 20.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub samples: Vec<SampleCall>,
}

/// A call to check.
#[derive(serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleCall {
    pub tool: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: serde_json::Map<String, serde_json::Value>,
}

/// What a draft would do.
#[derive(Serialize, ToSchema)]
pub struct Preview {
    pub tools: Vec<PreviewedTool>,
    /// The outcome of each sample, in their order.
    pub checks: Vec<SampleCheck>,
}

/// A tool of the resource under the draft.
#[derive(Serialize, ToSchema)]
pub struct PreviewedTool {
    pub name: String,
    pub operation: String,
    pub visible: bool,
    /// The rule that hides the tool. Absent for a visible tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The state of the tool under the binding that the draft replaces. Absent for a new binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub was: Option<WasVisible>,
}

/// The state of a tool before a change.
#[derive(Serialize, ToSchema)]
pub struct WasVisible {
    pub visible: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// The outcome of a sample call.
#[derive(Serialize, ToSchema)]
pub struct SampleCheck {
    /// `allow`, `ask` or `deny`.
    pub decision: crate::tools::CheckDecision,
    pub message: Option<String>,
    pub rule: Option<String>,
    pub reason: Option<String>,
}
