//! What a binding may be made of, and the checks that it passes before it is stored.

use std::collections::{BTreeMap, HashMap};

use monstrum_manifest::ScopeDimension;
use monstrum_store::BindingRow;
use monstrum_types::{BindingId, BotId, ResourceId, RoleId, UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::gateway::extract::{Faults, given, named};
use crate::gateway::problem::Problem;
use crate::gateway::{rules, scope_warnings};
use monstrum_core::app::App;
use monstrum_core::policy::pattern_limits::{lists_of_binding, scopes_of_binding};

type ScopeConstraints = BTreeMap<String, Vec<String>>;

/// What a binding allows by itself. A list that is absent does not restrict; with a role, both must allow.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Permissions {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_operations: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_tools: Option<Vec<String>>,
}

/// How a bot that is called through this binding is narrowed.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Delegate {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    scope_constraints: ScopeConstraints,
}

/// Limits below those of the plugin and the operator, which they cannot raise.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    fuel: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    memory_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    timeout_s: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    concurrent: Option<u64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBinding {
    resource_id: ResourceId,
    /// A role or permissions are required; with both, the permissions only narrow.
    role_id: Option<RoleId>,
    permissions: Option<Permissions>,
    /// Scope key to patterns; every key must be a dimension of the resource's type.
    #[serde(default)]
    scope_constraints: ScopeConstraints,
    delegate: Option<Delegate>,
    /// Globs over tools of other plugins that this resource's plugin may call.
    #[serde(default)]
    allow_calls: Vec<String>,
    #[serde(default)]
    allow_subscribe: bool,
    limits: Option<Limits>,
    #[schema(minimum = 1)]
    calls_per_minute: Option<u32>,
    #[serde(default = "yes")]
    #[schema(default = true)]
    enabled: bool,
    expires_at: Option<UtcMillis>,
}

fn yes() -> bool {
    true
}

/// Each field that is named is replaced whole; null clears it.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BindingChange {
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<RoleId>)]
    role_id: Option<Option<RoleId>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<Permissions>)]
    permissions: Option<Option<Permissions>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<std::collections::HashMap<String, Vec<String>>>)]
    scope_constraints: Option<Option<ScopeConstraints>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<Delegate>)]
    delegate: Option<Option<Delegate>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<Vec<String>>)]
    allow_calls: Option<Option<Vec<String>>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<bool>)]
    allow_subscribe: Option<Option<bool>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<Limits>)]
    limits: Option<Option<Limits>>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    calls_per_minute: Option<Option<u32>>,
    #[serde(deserialize_with = "given")]
    enabled: Option<bool>,
    #[serde(deserialize_with = "named")]
    #[schema(value_type = Option<UtcMillis>)]
    expires_at: Option<Option<UtcMillis>>,
}

impl NewBinding {
    pub fn into_row(self, workspace: WorkspaceId, bot: BotId, now: UtcMillis) -> BindingRow {
        BindingRow {
            id: BindingId::new(),
            workspace_id: workspace,
            bot_id: bot,
            resource_id: self.resource_id,
            role_id: self.role_id,
            permissions: self.permissions.map(|permissions| json!(permissions)),
            scope_constraints: json!(self.scope_constraints),
            delegate: self.delegate.map(|delegate| json!(delegate)),
            allow_calls: json!(self.allow_calls),
            allow_subscribe: self.allow_subscribe,
            limits: self.limits.map(|limits| json!(limits)),
            calls_per_minute: self.calls_per_minute.map(i64::from),
            enabled: self.enabled,
            expires_at: self.expires_at,
            created_at: now,
            updated_at: now,
        }
    }
}

impl BindingChange {
    /// Whether the change gives new scopes.
    pub fn names_scopes(&self) -> bool {
        self.scope_constraints.is_some()
    }

    /// `row` with what is named in its place.
    pub fn apply(self, mut row: BindingRow, now: UtcMillis) -> BindingRow {
        if let Some(role) = self.role_id {
            row.role_id = role;
        }
        if let Some(permissions) = self.permissions {
            row.permissions = permissions.map(|permissions| json!(permissions));
        }
        if let Some(constraints) = self.scope_constraints {
            row.scope_constraints = json!(constraints.unwrap_or_default());
        }
        if let Some(delegate) = self.delegate {
            row.delegate = delegate.map(|delegate| json!(delegate));
        }
        if let Some(globs) = self.allow_calls {
            row.allow_calls = json!(globs.unwrap_or_default());
        }
        if let Some(allow) = self.allow_subscribe {
            row.allow_subscribe = allow.unwrap_or_default();
        }
        if let Some(limits) = self.limits {
            row.limits = limits.map(|limits| json!(limits));
        }
        if let Some(rate) = self.calls_per_minute {
            row.calls_per_minute = rate.map(i64::from);
        }
        if let Some(enabled) = self.enabled {
            row.enabled = enabled;
        }
        if let Some(end) = self.expires_at {
            row.expires_at = end;
        }
        row.updated_at = now;
        row
    }
}

/// Checks a binding as it would be stored, so that a change is judged by its result. `scopes_are_new` is false where the
/// scopes are those that were stored: a binding can be changed and disabled although its plugin no longer knows them.
/// Answers what whoever saves it should know.
pub async fn check(
    app: &App,
    row: &BindingRow,
    before: Option<&BindingRow>,
    scopes_are_new: bool,
) -> Result<Vec<String>, Problem> {
    let stored: HashMap<&str, &Value> = before.map(scopes_of_binding).unwrap_or_default().into_iter().collect();
    for (path, scopes) in scopes_of_binding(row) {
        rules::scope_keys(path, scopes, stored.get(path).copied())?;
    }
    let mut faults = Faults::default();
    let mut warnings = Vec::new();
    check_alone(&mut faults, row, before);
    let role = match row.role_id {
        None => None,
        Some(id) => {
            let role = app.store.role(row.workspace_id, id).await?;
            if role.is_none() {
                faults.add("/role_id", "no such role in this workspace");
            }
            role
        }
    };
    match app.store.resource(row.workspace_id, row.resource_id).await? {
        None => faults.add("/resource_id", "no such resource in this workspace"),
        Some(resource) => {
            let snapshot = app.policy.load();
            let serving = snapshot.resource_type(&resource.resource_type);
            if scopes_are_new {
                let dimensions = serving.map(|plugin| plugin.manifest.resource_type.scope_dimensions.as_slice());
                check_scopes(&mut faults, row, dimensions);
            }
            if let (Some(plugin), Some(role)) = (serving, &role) {
                warnings = scope_warnings::of_binding(plugin, &role.name, &role.scope_constraints);
            }
        }
    }
    faults.check().map(|()| warnings)
}

fn check_alone(faults: &mut Faults, row: &BindingRow, before: Option<&BindingRow>) {
    if row.role_id.is_none() && row.permissions.is_none() {
        faults.add("", "role_id or permissions are required: without either the binding would allow nothing");
    }
    let limits = row.limits.as_ref().and_then(Value::as_object).into_iter().flatten();
    for (name, _) in limits.filter(|(_, value)| value.as_u64() == Some(0)) {
        faults.add(format!("/limits/{name}"), "must be at least 1");
    }
    if row.calls_per_minute == Some(0) {
        faults.add("/calls_per_minute", "must be at least 1");
    }
    rules::patterns(faults, lists_of_binding(row), before.map(lists_of_binding).unwrap_or_default());
}

/// A key that the type does not have would deny every call of the binding, so it is refused here.
fn check_scopes(faults: &mut Faults, row: &BindingRow, dimensions: Option<&[ScopeDimension]>) {
    let keys = row.scope_constraints.as_object().into_iter().flatten().map(|(key, _)| key);
    for key in keys {
        let path = format!("/scope_constraints/{}", rules::pointer_token(key));
        match dimensions {
            None => faults.add(path, "the plugin of this resource is not loaded, so its dimensions are not known"),
            Some(dimensions) if !dimensions.iter().any(|dimension| dimension.key == *key) => {
                let known: Vec<&str> = dimensions.iter().map(|dimension| dimension.key.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                faults.add(path, format!("not a scope dimension of this resource's type, which has: {known}"));
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use monstrum_guardian::{Delegation, Grant};

    use super::*;
    use crate::gateway::extract::parse_body;

    fn row(extra: &Value) -> BindingRow {
        let mut body = json!({"resource_id": ResourceId::new(), "permissions": {"allowed_tools": ["*"]}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let new: NewBinding = parse_body(body.to_string().as_bytes()).unwrap();
        new.into_row(WorkspaceId::new(), BotId::new(), UtcMillis(0))
    }

    fn faults(row: &BindingRow) -> Vec<String> {
        let dimensions: Vec<ScopeDimension> =
            serde_json::from_value(json!([{"key": "repos", "param_paths": ["repo"]}])).unwrap();
        let mut faults = Faults::default();
        check_alone(&mut faults, row, None);
        check_scopes(&mut faults, row, Some(&dimensions));
        faults.into_inner().into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn what_is_stored_is_what_the_guardian_reads() {
        let row = row(&json!({
            "permissions": {"allowed_operations": ["issue.*"], "allowed_tools": []},
            "delegate": {"allowed_tools": ["github_*"], "scope_constraints": {"repos": ["acme/*"]}},
        }));
        let grant: Grant = serde_json::from_value(row.permissions.unwrap()).unwrap();
        assert_eq!(grant.allowed_operations, Some(vec!["issue.*".to_owned()]));
        assert_eq!(grant.allowed_tools, Some(vec![]));
        let link: Delegation = serde_json::from_value(row.delegate.unwrap()).unwrap();
        assert_eq!(link.scope_constraints["repos"], ["acme/*"]);
        let bare: Grant = serde_json::from_value(json!(Permissions::default())).unwrap();
        assert_eq!((bare.allowed_operations, bare.allowed_tools), (None, None));
    }

    #[test]
    fn every_fault_is_named_by_its_path() {
        assert!(faults(&row(&json!({"scope_constraints": {"repos": []}}))).is_empty());
        assert_eq!(
            faults(&row(&json!({"scope_constraints": {"orgs": ["x"], "a/b": []}}))),
            ["/scope_constraints/a~1b", "/scope_constraints/orgs",]
        );
        assert_eq!(
            faults(&row(&json!({"limits": {"fuel": 0, "timeout_s": 1}, "calls_per_minute": 0}))),
            ["/limits/fuel", "/calls_per_minute",]
        );
    }

    #[test]
    fn a_change_is_judged_by_its_result() {
        let change = |text: &str| parse_body::<BindingChange>(text.as_bytes());
        let cleared = change(r#"{"permissions": null}"#).unwrap().apply(row(&json!({})), UtcMillis(1));
        assert_eq!(faults(&cleared), [""]);
        let moved = change(r#"{"permissions": null, "role_id": "019a0000-0000-7000-8000-000000000001"}"#).unwrap();
        assert!(faults(&moved.apply(cleared, UtcMillis(1))).is_empty());
        for bad in [r#"{"resource_id": "019a0000-0000-7000-8000-000000000001"}"#, r#"{"enabled": null}"#] {
            assert!(change(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_named_changes_nothing() {
        let before = row(&json!({"limits": {"fuel": 5}, "calls_per_minute": 6, "allow_calls": ["a_*"]}));
        let change: BindingChange = parse_body(b"{}").unwrap();
        let after = change.apply(before.clone(), UtcMillis(9));
        assert_eq!(BindingRow { updated_at: before.updated_at, ..after }, before);
    }
}
