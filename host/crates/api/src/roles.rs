//! Roles: named permissions for bindings.

use std::collections::BTreeMap;

use monstrum_types::{RoleId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};

/// Scope key to patterns.
pub type ScopeConstraints = BTreeMap<String, Vec<String>>;

/// What a binding with this role allows. A list that is absent does not restrict; if both are, nothing is allowed.
#[derive(Serialize, ToSchema)]
pub struct Role {
    pub id: RoleId,
    pub name: String,
    /// fnmatch globs over operations, such as `issue.*`.
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_operations: Option<Value>,
    /// fnmatch globs over tool names, such as `github_*`.
    #[schema(value_type = Option<Vec<String>>)]
    pub allowed_tools: Option<Value>,
    /// Scope key to patterns.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// What to know of what was just saved, a sentence each: it was saved nevertheless.
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
}

/// Each field that is named is replaced whole; null clears it.
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
}

lists! {
    Role => RoleList "A page of roles.",
}
