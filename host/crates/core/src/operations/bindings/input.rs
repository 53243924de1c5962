//! The inputs of bindings, and the checks that a binding passes before it is stored.

use std::borrow::Cow;
use std::collections::HashMap;

use monstrum_api::bindings::{BindingChange, NewBinding};
use monstrum_manifest::{ScopeDimension, config_dimensions};
use monstrum_store::BindingRow;
use monstrum_types::{BindingId, BotId, UtcMillis, WorkspaceId};
use serde_json::{Value, json};

use crate::app::App;
use crate::operations::change::set;
use crate::operations::{InputErrors, OperationError, gates, rules, scope_warnings};
use crate::plugins::Plugin;
use crate::policy::pattern_limits::{lists_of_binding, scopes_of_binding};

/// Creates a row from an input.
pub(in crate::operations) fn row(input: NewBinding, workspace: WorkspaceId, bot: BotId, now: UtcMillis) -> BindingRow {
    BindingRow {
        id: BindingId::new(),
        workspace_id: workspace,
        bot_id: bot,
        resource_id: input.resource_id,
        role_id: input.role_id,
        permissions: input.permissions.map(|permissions| json!(permissions)),
        scope_constraints: json!(input.scope_constraints),
        delegate: input.delegate.map(|delegate| json!(delegate)),
        gates: gates::stored(&input.gates),
        allow_calls: json!(input.allow_calls),
        allow_subscribe: input.allow_subscribe,
        limits: input.limits.map(|limits| json!(limits)),
        calls_per_minute: input.calls_per_minute.map(i64::from),
        enabled: input.enabled,
        expires_at: input.expires_at,
        created_at: now,
        updated_at: now,
    }
}

/// Returns `row` with the fields of the change replaced.
pub(super) fn changed(change: BindingChange, mut row: BindingRow, now: UtcMillis) -> BindingRow {
    set(&mut row.role_id, change.role_id);
    set(&mut row.permissions, change.permissions.map(|permissions| permissions.map(|permissions| json!(permissions))));
    set(&mut row.scope_constraints, change.scope_constraints.map(|scopes| json!(scopes.unwrap_or_default())));
    set(&mut row.delegate, change.delegate.map(|delegate| delegate.map(|delegate| json!(delegate))));
    set(&mut row.gates, change.gates.map(|changed| gates::stored(&changed.unwrap_or_default())));
    set(&mut row.allow_calls, change.allow_calls.map(|globs| json!(globs.unwrap_or_default())));
    set(&mut row.allow_subscribe, change.allow_subscribe.map(Option::unwrap_or_default));
    set(&mut row.limits, change.limits.map(|limits| limits.map(|limits| json!(limits))));
    set(&mut row.calls_per_minute, change.calls_per_minute.map(|rate| rate.map(i64::from)));
    set(&mut row.enabled, change.enabled);
    set(&mut row.expires_at, change.expires_at);
    row.updated_at = now;
    row
}

/// Checks the binding that would be stored, so that a change is judged by its result. `scopes_are_new` is false if the
/// stored scopes are kept: a binding can be changed and disabled even if its plugin no longer has the scope dimensions.
/// Returns warnings for the caller.
pub(in crate::operations) async fn check(
    app: &App,
    row: &BindingRow,
    before: Option<&BindingRow>,
    scopes_are_new: bool,
) -> Result<Vec<String>, OperationError> {
    let mut errors = InputErrors::default();
    let mut warnings = Vec::new();
    check_lists(&mut errors, row, before)?;
    let role = match row.role_id {
        None => None,
        Some(id) => {
            let role = app.store.role(row.workspace_id, id).await?;
            if role.is_none() {
                errors.add("/role_id", "no such role in this workspace");
            }
            role
        }
    };
    match app.store.resource(row.workspace_id, row.resource_id).await? {
        None => errors.add("/resource_id", "no such resource in this workspace"),
        Some(resource) => {
            let snapshot = app.policy.load();
            let serving = snapshot.resource_type(&resource.resource_type);
            let dimensions = serving.map(|plugin| dimensions(plugin, &resource.config));
            if scopes_are_new {
                check_scopes(&mut errors, row, dimensions.as_deref());
            }
            check_gates(&mut errors, row, before, dimensions.as_deref());
            if let (Some(dimensions), Some(role)) = (&dimensions, &role) {
                let of = &resource.resource_type;
                warnings = scope_warnings::of_binding(of, dimensions, &role.name, &role.scope_constraints);
            }
        }
    }
    errors.check().map(|()| warnings)
}

/// Checks the number of scope keys and the gates first, and then all other fields that refer to no other object.
fn check_lists(errors: &mut InputErrors, row: &BindingRow, before: Option<&BindingRow>) -> Result<(), OperationError> {
    let stored: HashMap<&str, &Value> = before.map(scopes_of_binding).unwrap_or_default().into_iter().collect();
    for (path, scopes) in scopes_of_binding(row) {
        rules::scope_keys(path, scopes, stored.get(path).copied())?;
    }
    for (path, gates) in gates_of(row) {
        let before = before.map(gates_of).and_then(|before| before.into_iter().find(|(own, _)| *own == path)?.1);
        gates::check(errors, path, gates, before)?;
    }
    check_alone(errors, row, before);
    Ok(())
}

/// Returns the gates of a binding and of its delegation, each with its JSON pointer.
fn gates_of(row: &BindingRow) -> [(&'static str, Option<&Value>); 2] {
    let of_link = row.delegate.as_ref().and_then(|link| link.get("gates"));
    [("/gates", row.gates.as_ref()), ("/delegate/gates", of_link)]
}

/// Checks a binding as it would be stored, whose role and resource are known to exist. `dimensions` are the scope
/// dimensions of the resource; `None` if no plugin serves its type. Scopes that are equal in `before` are not compared with those of the type.
pub(in crate::operations) fn check_whole(
    row: &BindingRow,
    before: Option<&BindingRow>,
    dimensions: Option<&[ScopeDimension]>,
) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    check_lists(&mut errors, row, before)?;
    if before.is_none_or(|before| before.scope_constraints != row.scope_constraints) {
        check_scopes(&mut errors, row, dimensions);
    }
    check_gates(&mut errors, row, before, dimensions);
    errors.check()
}

/// Returns the scope dimensions of a resource with this configuration. Dimensions that are not valid are omitted, because
/// such a resource is not served.
pub(in crate::operations) fn dimensions<'p>(plugin: &'p Plugin, config: &Value) -> Cow<'p, [ScopeDimension]> {
    if !plugin.has_remote_tools() {
        return Cow::Borrowed(&plugin.manifest.resource_type.scope_dimensions);
    }
    let own = config.as_object().map(config_dimensions);
    Cow::Owned(own.and_then(Result::ok).unwrap_or_default())
}

fn check_alone(errors: &mut InputErrors, row: &BindingRow, before: Option<&BindingRow>) {
    if row.role_id.is_none() && row.permissions.is_none() {
        errors.add("", "`role_id` or `permissions` is required, because a binding with neither allows nothing");
    }
    let limits = row.limits.as_ref().and_then(Value::as_object).into_iter().flatten();
    for (name, _) in limits.filter(|(_, value)| value.as_u64() == Some(0)) {
        errors.add(format!("/limits/{name}"), "must be at least 1");
    }
    if row.calls_per_minute == Some(0) {
        errors.add("/calls_per_minute", "must be at least 1");
    }
    rules::patterns(errors, lists_of_binding(row), before.map(lists_of_binding).unwrap_or_default());
}

/// Rejects scope keys that the type does not have. Such a key would deny every call of the binding.
fn check_scopes(errors: &mut InputErrors, row: &BindingRow, dimensions: Option<&[ScopeDimension]>) {
    let keys = row.scope_constraints.as_object().into_iter().flatten().map(|(key, _)| key);
    for key in keys {
        check_key(errors, format!("/scope_constraints/{}", rules::pointer_token(key)), key, dimensions);
    }
}

/// Rejects scope keys of gates that the type does not have, because such a condition would have no effect. The gates of
/// the delegation apply to tools of other types, so their keys are not checked.
fn check_gates(
    errors: &mut InputErrors,
    row: &BindingRow,
    before: Option<&BindingRow>,
    dimensions: Option<&[ScopeDimension]>,
) {
    if before.is_some_and(|before| before.gates == row.gates) {
        return;
    }
    for (path, key) in gates::keys("/gates", row.gates.as_ref()) {
        check_key(errors, path, key, dimensions);
    }
}

fn check_key(errors: &mut InputErrors, path: String, key: &str, dimensions: Option<&[ScopeDimension]>) {
    match dimensions {
        None => errors.add(path, "the plugin of this resource is not loaded, so its scope dimensions are unknown"),
        Some(dimensions) if !dimensions.iter().any(|dimension| dimension.key == key) => {
            let known: Vec<&str> = dimensions.iter().map(|dimension| dimension.key.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            errors.add(path, format!("unknown scope dimension (known dimensions: {known})"));
        }
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use monstrum_api::bindings::Permissions;
    use monstrum_guardian::{Approver, Delegation, Gate, GateAction, Grant};
    use monstrum_types::ResourceId;

    use super::*;

    fn row(extra: &Value) -> BindingRow {
        let mut body = json!({"resource_id": ResourceId::new(), "permissions": {"allowed_tools": ["*"]}});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let new: NewBinding = serde_json::from_value(body).unwrap();
        super::row(new, WorkspaceId::new(), BotId::new(), UtcMillis(0))
    }

    fn errors(row: &BindingRow) -> Vec<String> {
        let dimensions: Vec<ScopeDimension> =
            serde_json::from_value(json!([{"key": "repos", "param_paths": ["repo"]}])).unwrap();
        let mut errors = InputErrors::default();
        check_alone(&mut errors, row, None);
        check_scopes(&mut errors, row, Some(&dimensions));
        check_gates(&mut errors, row, None, Some(&dimensions));
        errors.paths().into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn what_is_stored_is_what_the_guardian_reads() {
        let row = row(&json!({
            "permissions": {"allowed_operations": ["issue.*"], "allowed_tools": []},
            "delegate": {
                "allowed_tools": ["github_*"], "scope_constraints": {"repos": ["acme/*"]}, "gates": [{"action": "ask"}],
            },
            "gates": [{"action": "deny", "tools": ["github_*"], "when": {"repos": ["acme/*"]}, "approvers": ["operator"]}],
        }));
        let gates: Vec<Gate> = serde_json::from_value(row.gates.unwrap()).unwrap();
        assert_eq!(gates[0].approvers, Some(vec![Approver::Operator]));
        assert_eq!((gates[0].action, gates[0].expires_s), (GateAction::Deny, None));
        let grant: Grant = serde_json::from_value(row.permissions.unwrap()).unwrap();
        assert_eq!(grant.allowed_operations, Some(vec!["issue.*".to_owned()]));
        assert_eq!(grant.allowed_tools, Some(vec![]));
        let link: Delegation = serde_json::from_value(row.delegate.unwrap()).unwrap();
        assert_eq!(link.scope_constraints["repos"], ["acme/*"]);
        assert_eq!(link.gates, [Gate::of(GateAction::Ask)]);
        let bare: Grant = serde_json::from_value(json!(Permissions::default())).unwrap();
        assert_eq!((bare.allowed_operations, bare.allowed_tools), (None, None));
    }

    #[test]
    fn every_fault_is_named_by_its_path() {
        assert!(errors(&row(&json!({"scope_constraints": {"repos": []}}))).is_empty());
        assert_eq!(
            errors(&row(&json!({"scope_constraints": {"orgs": ["x"], "a/b": []}}))),
            ["/scope_constraints/a~1b", "/scope_constraints/orgs",]
        );
        let gates = json!([{"action": "ask", "when": {"repos": ["a"], "orgs": ["a"]}}, {"action": "ask", "unless": {"x": ["a"]}}]);
        assert_eq!(errors(&row(&json!({"gates": gates}))), ["/gates/0/when/orgs", "/gates/1/unless/x"]);
        assert!(errors(&row(&json!({"delegate": {"gates": gates}}))).is_empty());
        assert_eq!(
            errors(&row(&json!({"limits": {"fuel": 0, "timeout_s": 1}, "calls_per_minute": 0}))),
            ["/limits/fuel", "/calls_per_minute",]
        );
    }

    #[test]
    fn a_change_is_judged_by_its_result() {
        let change = |text: &str| serde_json::from_str::<BindingChange>(text);
        let cleared = changed(change(r#"{"permissions": null}"#).unwrap(), row(&json!({})), UtcMillis(1));
        assert_eq!(errors(&cleared), [""]);
        let moved = change(r#"{"permissions": null, "role_id": "019a0000-0000-7000-8000-000000000001"}"#).unwrap();
        assert!(errors(&changed(moved, cleared, UtcMillis(1))).is_empty());
        for bad in [r#"{"resource_id": "019a0000-0000-7000-8000-000000000001"}"#, r#"{"enabled": null}"#] {
            assert!(change(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_named_changes_nothing() {
        let before = row(&json!({"limits": {"fuel": 5}, "calls_per_minute": 6, "allow_calls": ["a_*"]}));
        let after = changed(BindingChange::default(), before.clone(), UtcMillis(9));
        assert_eq!(BindingRow { updated_at: before.updated_at, ..after }, before);
    }
}
