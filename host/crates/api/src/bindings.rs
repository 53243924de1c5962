//! Bindings, which grant resources to bots.

use monstrum_types::{BindingId, BotId, ResourceId, RoleId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::gates::Gate;
use crate::list::lists;
use crate::patch::{not_null, nullable};
use crate::roles::ScopeConstraints;

/// The grant of a resource to a bot.
#[derive(Serialize, ToSchema)]
pub struct Binding {
    pub id: BindingId,
    pub bot_id: BotId,
    pub resource_id: ResourceId,
    pub role_id: Option<RoleId>,
    #[schema(value_type = Option<Permissions>)]
    pub permissions: Option<Value>,
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: Value,
    #[schema(value_type = Option<Delegate>)]
    pub delegate: Option<Value>,
    /// The gates. The list is empty if there are none.
    #[schema(value_type = Vec<Gate>)]
    pub gates: Value,
    #[schema(value_type = Vec<String>)]
    pub allow_calls: Value,
    pub allow_subscribe: bool,
    #[schema(value_type = Option<Limits>)]
    pub limits: Option<Value>,
    pub calls_per_minute: Option<i64>,
    pub enabled: bool,
    /// The time at which the binding expires. An expired binding grants nothing.
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// Warnings about the saved binding, one sentence each. Warnings do not prevent saving.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub warnings: Vec<String>,
}

/// The operations and tools that a binding allows. An absent list imposes no restriction. If the binding also has a
/// role, both must allow a call.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_operations: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
}

/// The tools and the scope that a bot may use when it is called through this binding.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Delegate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    pub scope_constraints: ScopeConstraints,
    /// Gates for the calls that the called bot makes on behalf of the calling bot, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 20)]
    pub gates: Vec<Gate>,
}

/// The limits of calls through a binding. These limits can be lower than those of the plugin and the operator, but
/// cannot raise them.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub fuel: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub memory_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub timeout_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub concurrent: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBinding {
    pub resource_id: ResourceId,
    /// The role. A binding requires a role, permissions, or both. If it has both, the permissions can only restrict the
    /// role.
    pub role_id: Option<RoleId>,
    pub permissions: Option<Permissions>,
    /// A map from scope keys to patterns. Every key must be a scope dimension of the resource type.
    #[serde(default)]
    pub scope_constraints: ScopeConstraints,
    pub delegate: Option<Delegate>,
    /// The gates, at most 20. Each key in `when` and `unless` must be a scope dimension of the resource type.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub gates: Vec<Gate>,
    /// Globs that match the names of the tools of other plugins that this resource's plugin may call.
    #[serde(default)]
    pub allow_calls: Vec<String>,
    #[serde(default)]
    pub allow_subscribe: bool,
    pub limits: Option<Limits>,
    #[schema(minimum = 1)]
    pub calls_per_minute: Option<u32>,
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub enabled: bool,
    pub expires_at: Option<UtcMillis>,
}

fn yes() -> bool {
    true
}

/// Changes to a binding. Each field in the request replaces the whole stored field; null clears a field.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BindingChange {
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<RoleId>)]
    pub role_id: Option<Option<RoleId>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Permissions>)]
    pub permissions: Option<Option<Permissions>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<std::collections::HashMap<String, Vec<String>>>)]
    pub scope_constraints: Option<Option<ScopeConstraints>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Delegate>)]
    pub delegate: Option<Option<Delegate>>,
    /// The gates, at most 20.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<Gate>>, max_items = 20)]
    pub gates: Option<Option<Vec<Gate>>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>)]
    pub allow_calls: Option<Option<Vec<String>>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<bool>)]
    pub allow_subscribe: Option<Option<bool>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Limits>)]
    pub limits: Option<Option<Limits>>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub calls_per_minute: Option<Option<u32>>,
    #[serde(deserialize_with = "not_null")]
    pub enabled: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<UtcMillis>)]
    pub expires_at: Option<Option<UtcMillis>>,
}

lists! {
    Binding => BindingList "A page of bindings.",
}
