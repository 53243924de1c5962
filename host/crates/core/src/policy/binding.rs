//! The bindings of a snapshot. Their rows have a form that needs little memory, because a host may hold hundreds of
//! thousands of bindings, and reads most of their columns only when it assembles the rules of a binding.

use std::sync::Arc;

use monstrum_guardian::{BindingRules, DelegationRules, PatternList};
use monstrum_manifest::MatchMode;
use monstrum_store::BindingRow;
use monstrum_types::{BindingId, BotId, Effort, Overrun, ResourceId, RoleId, UtcMillis, WorkspaceId};
use serde_json::Value;

use super::{Resource, Role, is_same};

/// The grant of a resource to a bot. The grant includes the rules for the tools of the resource's type.
pub struct Binding {
    pub row: PackedBinding,
    pub role: Option<Arc<Role>>,
    pub rules: BindingRules,
    /// The tools of other plugins that the resource's plugin may call.
    pub allow_calls: PatternList,
    /// The rules for a bot that is called through this binding. A binding without `delegate` adds no restriction.
    pub link: Arc<DelegationRules>,
    pub resource: Arc<Resource>,
    /// The maximum memory, in bytes, of the compiled patterns of the binding. The patterns of its role do not count.
    pub(super) pattern_bytes: u64,
}

impl Binding {
    /// Returns whether the binding is enabled and not expired at `now`.
    pub fn is_active(&self, now: UtcMillis) -> bool {
        self.row.enabled && self.row.expires_at.is_none_or(|end| now < end)
    }

    /// Returns whether the binding was assembled from this row, role and resource.
    pub(super) fn is_made_of(&self, row: &BindingRow, role: Option<&Arc<Role>>, resource: &Arc<Resource>) -> bool {
        self.row.is_of(row) && is_same(self.role.as_ref(), role) && Arc::ptr_eq(&self.resource, resource)
    }

    /// Returns whether the plugin of the binding's resource may call `tool`.
    pub fn allows_call(&self, tool: &str, effort: &Effort) -> Result<bool, Overrun> {
        self.allow_calls.matches(MatchMode::Pattern, tool, effort)
    }
}

/// The row of a binding, with its JSON columns as one text.
#[derive(Debug)]
pub struct PackedBinding {
    pub id: BindingId,
    pub bot_id: BotId,
    pub resource_id: ResourceId,
    pub role_id: Option<RoleId>,
    /// A JSON object with the optional members `fuel`, `memory_mib`, `timeout_s` and `concurrent`.
    pub limits: Option<Box<Value>>,
    pub calls_per_minute: Option<i64>,
    pub expires_at: Option<UtcMillis>,
    pub enabled: bool,
    allow_subscribe: bool,
    workspace_id: WorkspaceId,
    created_at: UtcMillis,
    updated_at: UtcMillis,
    /// The columns `permissions`, `scope_constraints`, `delegate` and `allow_calls` as a JSON list. A fifth element
    /// contains the column `gates` if the binding has gates.
    json: Box<str>,
}

impl PackedBinding {
    pub(super) fn of(row: &BindingRow) -> PackedBinding {
        PackedBinding {
            id: row.id,
            bot_id: row.bot_id,
            resource_id: row.resource_id,
            role_id: row.role_id,
            limits: row.limits.clone().map(Box::new),
            calls_per_minute: row.calls_per_minute,
            expires_at: row.expires_at,
            enabled: row.enabled,
            allow_subscribe: row.allow_subscribe,
            workspace_id: row.workspace_id,
            created_at: row.created_at,
            updated_at: row.updated_at,
            json: json(row).into_boxed_str(),
        }
    }

    /// Returns the row.
    pub fn unpacked(&self) -> BindingRow {
        let columns: Vec<Value> = serde_json::from_str(&self.json).expect("the text was written by `json`");
        let mut columns = columns.into_iter();
        let mut next = || columns.next().unwrap_or_default();
        let (permissions, scope_constraints, delegate, allow_calls) = (next(), next(), next(), next());
        let gates = columns.next();
        let not_null = |value: Value| Some(value).filter(|value| !value.is_null());
        let (permissions, delegate) = (not_null(permissions), not_null(delegate));
        BindingRow {
            id: self.id,
            workspace_id: self.workspace_id,
            bot_id: self.bot_id,
            resource_id: self.resource_id,
            role_id: self.role_id,
            permissions,
            scope_constraints,
            delegate,
            gates,
            allow_calls,
            allow_subscribe: self.allow_subscribe,
            limits: self.limits.as_deref().cloned(),
            calls_per_minute: self.calls_per_minute,
            enabled: self.enabled,
            expires_at: self.expires_at,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }

    /// Returns whether this is the packed form of `row`.
    pub fn is_of(&self, row: &BindingRow) -> bool {
        self.id == row.id && self.updated_at == row.updated_at && self.unpacked() == *row
    }
}

fn json(row: &BindingRow) -> String {
    let BindingRow { permissions, scope_constraints, delegate, allow_calls, gates, .. } = row;
    let columns = [permissions.as_ref(), Some(scope_constraints), delegate.as_ref(), Some(allow_calls)];
    let columns: Vec<Option<&Value>> = columns.into_iter().chain(gates.as_ref().map(Some)).collect();
    serde_json::to_string(&columns).expect("JSON values serialize to JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_unpacked_unchanged() {
        let full = BindingRow {
            id: BindingId::new(),
            workspace_id: WorkspaceId::new(),
            bot_id: BotId::new(),
            resource_id: ResourceId::new(),
            role_id: Some(RoleId::new()),
            permissions: Some(json!({"allowed_tools": ["b", "a"]})),
            scope_constraints: json!({"z": ["\u{0}\"é"], "a": []}),
            delegate: Some(json!({"allowed_tools": null})),
            gates: Some(json!([{"action": "ask", "tools": ["b_*"]}])),
            allow_calls: json!(["jira_*"]),
            allow_subscribe: true,
            limits: Some(json!({"fuel": u64::MAX})),
            calls_per_minute: Some(1),
            enabled: true,
            expires_at: Some(UtcMillis(3)),
            created_at: UtcMillis(1),
            updated_at: UtcMillis(2),
        };
        let empty =
            BindingRow { permissions: None, delegate: None, gates: None, limits: None, role_id: None, ..full.clone() };
        let ungated = BindingRow { gates: None, ..full.clone() };
        for row in [&full, &empty, &ungated] {
            assert_eq!(PackedBinding::of(row).unpacked(), *row);
            assert!(PackedBinding::of(row).is_of(row));
        }
        assert!(!PackedBinding::of(&full).is_of(&empty));
        assert!(!PackedBinding::of(&full).is_of(&ungated));
        assert!(!PackedBinding::of(&ungated).is_of(&full));
        assert!(!PackedBinding::of(&full).is_of(&BindingRow { enabled: false, ..full.clone() }));
    }

    /// The memory of a row counts for each of the bindings of a host.
    #[test]
    fn a_packed_row_is_small() {
        assert!(size_of::<PackedBinding>() <= 200, "{} bytes", size_of::<PackedBinding>());
    }
}
