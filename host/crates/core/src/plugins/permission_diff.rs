//! The permission diff: the permissions that a version of a plugin requests in addition to the permissions of the
//! serving version. A version with a permission diff waits for approval by a root key.
//!
//! Operators granted tools, scopes and credentials on the basis of the old manifest. The permission diff contains one
//! sentence for each change that widens these grants. It does not contain changes that only narrow the grants.

use std::collections::{BTreeMap, BTreeSet};

use monstrum_api::plugins::{DifferenceKind, PluginDifference};
use monstrum_guardian::match_glob;
use monstrum_manifest::{
    AuthMethod, Effect, Executor, FieldKind, Manifest, OriginPattern, ResourceType, ScopeDimension, Tool,
};
use monstrum_types::ToolName;
use serde_json::{Value, json};

/// Returns the permissions that `candidate` requests in addition to those of `serving`, one item for each change.
/// `retired` contains the tools of earlier versions that `serving` no longer has. A retired tool that returns with a
/// different operation or a lower effect is also a change.
pub(super) fn permission_diff(
    serving: &Manifest,
    candidate: &Manifest,
    retired: &BTreeMap<ToolName, RetiredTool>,
) -> Vec<PluginDifference> {
    let mut added = Vec::new();
    let (old, new) = (&serving.resource_type, &candidate.resource_type);
    if old.id != new.id {
        let text = format!("resource type `{}` instead of `{}`", new.id, old.id);
        added.push(changed(DifferenceKind::ResourceType, text, &json!(old.id), &json!(new.id)));
    }
    capabilities(&serving.executor, &candidate.executor, &mut added);
    configuration(old, new, &mut added);
    for method in &new.auth_methods {
        authentication(serving, candidate, method, &mut added);
    }
    for tool in &new.tools {
        let before = old.tools.iter().find(|before| before.name == tool.name).map(RetiredTool::from);
        if let Some(before) = before.or_else(|| retired.get(&tool.name).cloned()) {
            changed_tool(&before, tool, &mut added);
        }
        if !old.tools.iter().any(|before| before.name == tool.name) && is_outside_of_all(old, new, tool) {
            let (name, operation) = (&tool.name, &tool.operation);
            let text = format!("new tool `{name}`: no existing scope dimension applies to its operation `{operation}`");
            added.push(changed(DifferenceKind::Tool, text, &Value::Null, &json!(operation)));
        }
    }
    if let Some(check) = new.credential_check.as_ref().filter(|check| old.credential_check.as_ref() != Some(check)) {
        let params = Value::Object(check.params.clone());
        let text = format!("the credential check calls `{}` with parameters {params}", check.tool);
        let before = old.credential_check.as_ref().map(|check| json!({ "tool": check.tool, "params": check.params }));
        let after = json!({ "tool": check.tool, "params": check.params });
        added.push(changed(DifferenceKind::CredentialCheck, text, &before.unwrap_or_default(), &after));
    }
    for dimension in &old.scope_dimensions {
        narrowed(dimension, new.scope_dimensions.iter().find(|after| after.key == dimension.key), &mut added);
    }
    added
}

/// The declarations of a tool of an earlier version.
#[derive(Clone)]
pub(super) struct RetiredTool {
    operation: String,
    effect: Effect,
}

impl From<&Tool> for RetiredTool {
    fn from(tool: &Tool) -> RetiredTool {
        RetiredTool { operation: tool.operation.clone(), effect: tool.effect }
    }
}

fn changed_tool(before: &RetiredTool, tool: &Tool, added: &mut Vec<PluginDifference>) {
    let name = &tool.name;
    if before.operation != tool.operation {
        let text = format!("tool `{name}` has operation `{}` instead of `{}`", tool.operation, before.operation);
        added.push(changed(DifferenceKind::Tool, text, &json!(before.operation), &json!(tool.operation)));
    }
    // Gates and annotations trust the effect, so that a lower effect may make a call run without a question.
    if tool.effect < before.effect {
        let text = format!("tool `{name}` has effect `{}` instead of `{}`", tool.effect, before.effect);
        added.push(changed(DifferenceKind::Tool, text, &json!(before.effect), &json!(tool.effect)));
    }
}

/// Returns whether no existing scope dimension applies to calls of `tool`. Returns false if the old version has no
/// dimensions, because its calls were not constrained.
fn is_outside_of_all(old: &ResourceType, new: &ResourceType, tool: &Tool) -> bool {
    let concerns = |dimension: &ScopeDimension| {
        let is_known = old.scope_dimensions.iter().any(|before| before.key == dimension.key);
        is_known && dimension.operation_filter.as_deref().is_none_or(|filter| match_glob(&tool.operation, filter))
    };
    !old.scope_dimensions.is_empty() && !new.scope_dimensions.iter().any(concerns)
}

fn capabilities(old: &Executor, new: &Executor, added: &mut Vec<PluginDifference>) {
    for capability in new.capabilities.iter().filter(|capability| !old.capabilities.contains(capability)) {
        let text = format!("capability `{}`", word(capability));
        added.push(changed(DifferenceKind::Capability, text, &Value::Null, &json!(capability)));
    }
    // Globs are compared as text. A new glob counts as a change even if an old glob covers it.
    for glob in new.calls.iter().filter(|glob| !old.calls.contains(glob)) {
        let text = format!("calls to tools `{glob}`");
        added.push(changed(DifferenceKind::Calls, text, &Value::Null, &json!(glob)));
    }
    for origin in beyond(&new.egress, &old.egress) {
        let text = format!("egress to `{origin}`");
        added.push(changed(DifferenceKind::Egress, text, &Value::Null, &json!(origin)));
    }
}

/// Compares the defaults of `api_base`. The default is an allowed origin of egress, and the audience of auth methods
/// that declare no audience.
fn configuration(old: &ResourceType, new: &ResourceType, added: &mut Vec<PluginDifference>) {
    let base = |of: &ResourceType| {
        let field = of.config_schema.iter().find(|field| field.field == "api_base");
        field.and_then(|field| field.default.clone()).filter(|value| !value.is_null())
    };
    let (before, after) = (base(old), base(new));
    if after.is_some() && before != after {
        let text = format!("the default of `api_base` is {}", shown(after.as_ref()));
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        added.push(changed(DifferenceKind::Config, text, &before, &after));
    }
}

fn authentication(serving: &Manifest, candidate: &Manifest, method: &AuthMethod, added: &mut Vec<PluginDifference>) {
    let name = method.method;
    let Some(before) = serving.resource_type.auth_methods.iter().find(|before| before.method == name) else {
        let text = format!("auth method `{name}`");
        added.push(changed(DifferenceKind::AuthMethod, text, &Value::Null, &json!(name)));
        return;
    };
    match (&before.audience, &method.audience) {
        (_, Some(declared)) => {
            for origin in beyond(declared, before.audience.as_deref().unwrap_or_default()) {
                let text = format!("auth method `{name}`: audience `{origin}`");
                added.push(changed(DifferenceKind::AuthMethod, text, &json!(before.audience), &json!(declared)));
            }
        }
        (Some(declared), None) => {
            let text = format!("auth method `{name}`: the audience is no longer declared");
            added.push(changed(DifferenceKind::AuthMethod, text, &json!(declared), &Value::Null));
        }
        (None, None) => {}
    }
    let (old, new) = (before.inject_rules(), method.inject_rules());
    if old != new {
        let text = format!("auth method `{name}`: the inject rules differ");
        added.push(changed(DifferenceKind::AuthMethod, text, &json!(old), &json!(new)));
    }
    let plain = |manifest: &Manifest, method: &AuthMethod| -> BTreeSet<String> {
        let fields = method.credential_fields(&manifest.resource_type).iter();
        fields.filter(|field| field.kind != FieldKind::Secret).map(|field| field.field.clone()).collect()
    };
    for field in plain(candidate, method).difference(&plain(serving, before)) {
        let text = format!("auth method `{name}`: field `{field}` is not secret");
        added.push(changed(DifferenceKind::AuthMethod, text, &Value::Null, &json!(field)));
    }
}

fn narrowed(before: &ScopeDimension, after: Option<&ScopeDimension>, added: &mut Vec<PluginDifference>) {
    let key = &before.key;
    let mut add = |text: String| {
        added.push(changed(DifferenceKind::ScopeDimension, text, &json!(before), &json!(after)));
    };
    let Some(after) = after else {
        add(format!("scope dimension `{key}` is removed"));
        return;
    };
    for path in before.param_paths.iter().filter(|path| !after.param_paths.contains(path)) {
        add(format!("scope dimension `{key}` no longer checks `{path}`"));
    }
    if before.match_mode != after.match_mode {
        add(format!("scope dimension `{key}` compares by `{}`", word(&after.match_mode)));
    }
    if after.operation_filter.is_some() && before.operation_filter != after.operation_filter {
        let filter = after.operation_filter.as_deref().unwrap_or_default();
        add(format!("scope dimension `{key}` applies to `{filter}` only"));
    }
}

pub(super) fn beyond<'a>(
    new: &'a [OriginPattern],
    old: &'a [OriginPattern],
) -> impl Iterator<Item = &'a OriginPattern> {
    new.iter().filter(|origin| !old.iter().any(|known| known.covers(origin)))
}

/// Returns a difference. A null value means that the version has no such value.
pub(super) fn changed(kind: DifferenceKind, text: String, before: &Value, after: &Value) -> PluginDifference {
    let value = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
    PluginDifference { kind, text, before: value(before), after: value(after) }
}

/// Returns the name of an enum value in the form that the manifest uses.
pub(super) fn word(value: &impl serde::Serialize) -> String {
    shown(serde_json::to_value(value).ok().as_ref())
}

fn shown(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Value {
        json!({
            "name": "sample", "version": "1.0.0",
            "resource_type": {
                "id": "sample", "name": "Sample",
                "config_schema": [{"field": "api_base", "type": "url", "default": "https://api.example.com"}],
                "credential_schema": [{"field": "access_token", "type": "secret"}, {"field": "user"}],
                "auth_methods": [
                    {"method": "token", "audience": ["https://*.example.com"]},
                    {"method": "api_key"},
                ],
                "scope_dimensions": [
                    {"key": "repo", "param_paths": ["repo", "target.repo"], "operation_filter": "issue.*"},
                    {"key": "path", "param_paths": ["path"], "match_mode": "path"},
                ],
                "tools": [{"name": "sample_delete", "description": "Deletes", "operation": "issue.delete",
                           "input_schema": {"type": "object"}}],
            },
            "executor": {"egress": ["https://*.example.com"], "calls": ["sample_own", "sample_two"]},
        })
    }

    fn grown(edits: &[(&str, Value)]) -> Vec<String> {
        grown_from(&manifest(), edits)
    }

    fn grown_from(before: &Value, edits: &[(&str, Value)]) -> Vec<String> {
        let parse = |value: Value| -> Manifest { serde_json::from_value(value).unwrap() };
        let mut after = before.clone();
        for (pointer, value) in edits {
            let (parent, leaf) = pointer.rsplit_once('/').unwrap();
            match after.pointer_mut(parent).unwrap() {
                Value::Object(fields) => drop(fields.insert(leaf.to_owned(), value.clone())),
                Value::Array(items) if leaf == "-" => items.push(value.clone()),
                Value::Array(items) => items[leaf.parse::<usize>().unwrap()] = value.clone(),
                other => panic!("{other}"),
            }
        }
        let retired = BTreeMap::from([(
            "sample_old".parse().unwrap(),
            RetiredTool { operation: "issue.delete".to_owned(), effect: Effect::Write },
        )]);
        let differences = permission_diff(&parse(before.clone()), &parse(after), &retired);
        differences.into_iter().map(|difference| difference.text).collect()
    }

    const TYPE: &str = "/resource_type";

    #[test]
    fn harmless_changes_are_not_named() {
        let tool = json!({"name": "sample_new", "description": "", "operation": "issue.read",
                          "input_schema": {"type": "object"}});
        let harmless: [(&str, Value); 11] = [
            ("/version", json!("1.1.0")),
            ("/resource_type/tools/-", tool),
            ("/resource_type/tools", json!([])),
            ("/executor/capabilities", json!([])),
            ("/executor/calls", json!(["sample_two"])),
            ("/executor/egress", json!(["https://up.example.com", "https://*.example.com"])),
            ("/resource_type/auth_methods/0/audience", json!(["https://one.example.com"])),
            ("/resource_type/auth_methods", json!([])),
            ("/resource_type/scope_dimensions/-", json!({"key": "new", "param_paths": ["x"]})),
            ("/resource_type/scope_dimensions/0/operation_filter", Value::Null),
            ("/resource_type/scope_dimensions/1/param_paths", json!(["path", "other"])),
        ];
        for (place, value) in harmless {
            assert_eq!(grown(&[(place, value)]), Vec::<String>::new(), "{place}");
        }
    }

    #[test]
    fn a_new_tool_outside_of_all_dimensions_is_named() {
        let mut before = manifest();
        before["resource_type"]["scope_dimensions"] =
            json!([{"key": "repo", "param_paths": ["repo"], "operation_filter": "issue.*"}]);
        let tool = |operation: &str| json!({"name": "sample_new", "description": "", "operation": operation, "input_schema": {"type": "object"}});
        let add = |tool: Value| ("/resource_type/tools/-", tool);
        let named = ["new tool `sample_new`: no existing scope dimension applies to its operation `repo.delete`"];
        assert_eq!(grown_from(&before, &[add(tool("issue.close"))]), [""; 0]);
        assert_eq!(grown_from(&before, &[add(tool("repo.delete"))]), named);
        // A dimension that is added together with the tool does not count, because no binding constrains it yet.
        let dimension = json!({"key": "new", "param_paths": ["x"], "operation_filter": "repo.*"});
        let edits = [("/resource_type/scope_dimensions/-", dimension), add(tool("repo.delete"))];
        assert_eq!(grown_from(&before, &edits), named);
        before["resource_type"]["scope_dimensions"] = json!([]);
        assert_eq!(grown_from(&before, &[add(tool("repo.delete"))]), [""; 0], "the old version has no dimensions");
    }

    #[test]
    fn a_changed_credential_check_is_named() {
        let check = |tool: &str, params: Value| json!({"tool": tool, "params": params});
        let mut before = manifest();
        let place = "/resource_type/credential_check";
        let named = |params: &str| format!("the credential check calls `sample_delete` with parameters {params}");
        assert_eq!(grown_from(&before, &[(place, check("sample_delete", json!({})))]), [named("{}")]);
        before["resource_type"]["credential_check"] = check("sample_delete", json!({}));
        assert_eq!(grown_from(&before, &[(place, check("sample_delete", json!({})))]), [""; 0]);
        assert_eq!(grown_from(&before, &[(place, Value::Null)]), [""; 0]);
        let other = check("sample_delete", json!({"id": 1}));
        assert_eq!(grown_from(&before, &[(place, other)]), [named(r#"{"id":1}"#)]);
    }

    #[test]
    fn a_lower_effect_is_named() {
        let effect = |pointer: &'static str, effect: &str| (pointer, json!(effect));
        let tool = "/resource_type/tools/0/effect";
        let named =
            |after: &str, before: &str| [format!("tool `sample_delete` has effect `{after}` instead of `{before}`")];
        assert_eq!(grown(&[effect(tool, "read")]), named("read", "write"));
        assert_eq!(grown(&[effect(tool, "idempotent")]), named("idempotent", "write"));
        let mut before = manifest();
        before["resource_type"]["tools"][0]["effect"] = json!("idempotent");
        assert_eq!(grown_from(&before, &[effect(tool, "read")]), named("read", "idempotent"));
        assert_eq!(grown_from(&before, &[effect(tool, "write")]), [""; 0]);
        let returned = json!({"name": "sample_old", "description": "", "operation": "issue.delete", "effect": "read",
                              "input_schema": {"type": "object"}});
        let named = ["tool `sample_old` has effect `read` instead of `write`"];
        assert_eq!(grown(&[("/resource_type/tools/-", returned)]), named);
    }

    #[test]
    fn every_widening_change_is_named() {
        let at = |place: &str, value: Value| grown(&[(&format!("{TYPE}{place}"), value)]).join("; ");
        let executor = |place: &str, value: Value| grown(&[(&format!("/executor/{place}"), value)]).join("; ");
        let tool = |name: &str| {
            json!({"name": name, "description": "", "operation": "issue.read",
                                       "input_schema": {"type": "object"}})
        };
        let lines = [
            at("/id", json!("other")),
            executor("capabilities", json!(["http", "sandbox", "tools"])),
            executor("calls", json!(["jira_*", "sample_own"])),
            executor("egress", json!(["https://*.example.com", "https://evil.example"])),
            executor("egress", json!(["https://example.com:8443"])),
            at("/config_schema/0/default", json!("https://evil.example")),
            at("/auth_methods/0/audience", json!(["https://*.example.com", "https://evil.example"])),
            at("/auth_methods/0", json!({"method": "token"})),
            at("/auth_methods/1/audience", json!(["https://evil.example"])),
            at("/auth_methods/1/inject", json!([{"query": "key", "value": "{api_key}"}])),
            at("/auth_methods/-", json!({"method": "basic"})),
            at("/credential_schema", json!([{"field": "access_token"}, {"field": "user"}])),
            at("/tools/0", tool("sample_delete")),
            at("/tools/-", tool("sample_old")),
            at("/scope_dimensions/0", json!({"key": "repository", "param_paths": ["repo", "target.repo"]})),
            at("/scope_dimensions/0/param_paths", json!(["repo"])),
            at("/scope_dimensions/0/operation_filter", json!("issue.read")),
            at("/scope_dimensions/1/operation_filter", json!("*")),
            at("/scope_dimensions/1/match_mode", json!("pattern")),
        ];
        insta::assert_snapshot!(lines.join("\n"), @r#"
        resource type `other` instead of `sample`
        capability `sandbox`; capability `tools`
        calls to tools `jira_*`
        egress to `https://evil.example`
        egress to `https://example.com:8443`
        the default of `api_base` is https://evil.example
        auth method `token`: audience `https://evil.example`
        auth method `token`: the audience is no longer declared
        auth method `api_key`: audience `https://evil.example`
        auth method `api_key`: the inject rules differ
        auth method `basic`
        auth method `token`: field `access_token` is not secret; auth method `api_key`: field `access_token` is not secret
        tool `sample_delete` has operation `issue.read` instead of `issue.delete`
        tool `sample_old` has operation `issue.read` instead of `issue.delete`
        scope dimension `repo` is removed
        scope dimension `repo` no longer checks `target.repo`
        scope dimension `repo` applies to `issue.read` only
        scope dimension `path` applies to `*` only
        scope dimension `path` compares by `pattern`
        "#);
    }
}
