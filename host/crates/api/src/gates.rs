//! Gates of bots, roles, bindings and delegations.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::roles::ScopeConstraints;

/// A gate. After all other rules have allowed a call, a gate makes the call wait for a person, or denies it. A gate
/// applies to a call if all of its conditions hold; an absent condition always holds. If several gates apply, one gate
/// with the action `deny` denies the call. Otherwise, a person must satisfy all gates: only kinds of keys that every gate
/// accepts may approve, and the shortest `expires_s` counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// Globs in the syntax of fnmatch that match the names of the tools to which the gate applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 200)]
    pub tools: Option<Vec<String>>,
    /// Globs in the syntax of fnmatch that match the operations to which the gate applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 200)]
    pub operations: Option<Vec<String>>,
    /// A map from scope keys to patterns. The gate applies if, for each key, some value of the call matches a pattern or
    /// the call has no value. A key that the resource type of the tool does not have counts as matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::HashMap<String, Vec<String>>>)]
    pub when: Option<ScopeConstraints>,
    /// A map from scope keys to patterns. The gate does not apply if, for each key, the call has values and every value
    /// matches a pattern. A key that the resource type of the tool does not have counts as not matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::HashMap<String, Vec<String>>>)]
    pub unless: Option<ScopeConstraints>,
    /// Labels of resources. The gate applies if the caller has read a result of a resource with one of these labels. A
    /// call for which the server does not record labels counts as having read results with every label.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 4)]
    pub after: Option<Vec<String>>,
    pub action: GateAction,
    /// The kinds of keys that may approve the call. A root key may always approve. Absent: `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1, max_items = 3)]
    pub approvers: Option<Vec<Approver>>,
    /// Whether the key that made the call may approve it. Absent: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_starter: Option<bool>,
    /// The number of seconds after which a request for approval, or an unused approval, expires. Absent: 3 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 60, maximum = 604_800)]
    pub expires_s: Option<u32>,
    /// The reason for the gate, which the approver reads. At most 1 KiB. The answer to a denied call contains it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The effect of a gate: `ask` makes the call wait for a person, `deny` denies the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateAction {
    Ask,
    Deny,
}

/// A kind of key that may approve calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approver {
    Admin,
    Operator,
    Approver,
}
