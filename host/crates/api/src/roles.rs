//! Roles: named permissions for bindings.

use std::collections::BTreeMap;

use monstrum_types::{RoleId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::gates::Gate;
use crate::list::lists;
use crate::patch::{not_null, nullable};

/// A map from scope keys to patterns.
pub type ScopeConstraints = BTreeMap<String, Vec<String>>;

/// A role: the operations and tools that its bindings allow. An absent list imposes no restriction. If both lists are
/// absent, nothing is allowed.
#[derive(Serialize, ToSchema)]
pub struct Role {
    pub id: RoleId,
    pub name: String,
    /// Globs in the syntax of fnmatch that match operations, such as `issue.*`.
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_operations: Option<Value>,
    /// Globs in the syntax of fnmatch that match tool names, such as `github_*`.
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_tools: Option<Value>,
    /// A map from scope keys to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: Value,
    /// The gates. The list is empty if there are none.
    #[schema(value_type = Vec<Gate>)]
    pub gates: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// Warnings about the saved role, one sentence each. Warnings do not prevent saving.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub warnings: Vec<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRole {
    pub name: String,
    pub allowed_operations: Option<Vec<String>>,
    pub allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: ScopeConstraints,
    /// The gates, at most 20.
    #[serde(default)]
    #[schema(max_items = 20)]
    pub gates: Vec<Gate>,
}

/// Changes to a role. Each field in the request replaces the whole stored field; null clears a field.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RoleChange {
    #[serde(default, deserialize_with = "not_null")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_operations: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_tools: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<std::collections::HashMap<String, Vec<String>>>)]
    pub scope_constraints: Option<Option<ScopeConstraints>>,
    /// The gates, at most 20.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<Gate>>, max_items = 20)]
    pub gates: Option<Option<Vec<Gate>>>,
}

lists! {
    Role => RoleList "A page of roles.",
}
