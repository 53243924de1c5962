//! The comparison of a version that waits for approval with the version before it, for the person who approves it.
//!
//! The permission diff decides whether a version waits. This module adds what the person wants to know besides it, and
//! decides nothing.

use std::collections::BTreeMap;

use monstrum_api::plugins::{ComparedVersion, DifferenceKind, PluginDifference, ToolChange, ToolDifference};
use monstrum_manifest::{Manifest, ScopeDimension, Tool};
use monstrum_store::{OwnedKind, PluginRow, StoreError};
use monstrum_types::ToolName;
use serde_json::{Value, json};

use super::owners;
use super::permission_diff::{beyond, changed, permission_diff, word};
use super::{Pending, Plugins, UNREADABLE};

/// The comparison of a waiting version with the version before it.
pub struct VersionDiff {
    pub from: Option<ComparedVersion>,
    pub to: ComparedVersion,
    pub grows: Vec<PluginDifference>,
    pub narrows: Vec<PluginDifference>,
    pub tools: Vec<ToolDifference>,
}

impl Plugins {
    /// Compares a waiting version with the serving version of its plugin. The first version of a plugin that takes its
    /// resource type from another plugin is compared with the serving version of that plugin, as in the assessment.
    pub async fn diff(&self, pending: &Pending) -> Result<VersionDiff, StoreError> {
        let manifest = &pending.plugin.manifest;
        let records = self.records.read().await?;
        let taken_type = pending.takes.iter().find(|taken| taken.name.kind == OwnedKind::Type);
        let before = match (records.plugin(&pending.row.name), taken_type) {
            (None, Some(taken)) => records.plugin(&taken.plugin),
            (recorded, _) => recorded,
        };
        let taken = owners::sentences(&pending.takes).into_iter();
        let mut diff = VersionDiff {
            from: before.map(compared),
            to: compared(&pending.row),
            grows: taken.map(|text| changed(DifferenceKind::Name, text, &Value::Null, &Value::Null)).collect(),
            narrows: Vec::new(),
            tools: Vec::new(),
        };
        let Some(before) = before else {
            diff.tools = tools(&[], &manifest.resource_type.tools);
            return Ok(diff);
        };
        let Some(serving) = self.stored_manifest(before).await? else {
            diff.grows.push(changed(DifferenceKind::Unreadable, UNREADABLE.to_owned(), &Value::Null, &Value::Null));
            return Ok(diff);
        };
        let retired = self.retired_tools(&before.name, &serving).await?;
        diff.grows.extend(permission_diff(&serving, manifest, &retired));
        diff.narrows = narrows(&serving, manifest);
        diff.tools = tools(&serving.resource_type.tools, &manifest.resource_type.tools);
        Ok(diff)
    }
}

fn compared(row: &PluginRow) -> ComparedVersion {
    ComparedVersion {
        plugin: row.name.clone(),
        version: row.version.clone(),
        digest: row.component_digest.clone(),
        manifest_digest: row.manifest_digest.clone(),
        signed_by: None,
    }
}

/// Returns the permissions of `serving` that `candidate` no longer requests, and the constraints that it adds. The list
/// is information only: a change that it does not name has no effect on the approval.
fn narrows(serving: &Manifest, candidate: &Manifest) -> Vec<PluginDifference> {
    let mut narrows = Vec::new();
    let mut lost = |kind: DifferenceKind, text: String, before: Value| {
        narrows.push(changed(kind, text, &before, &Value::Null));
    };
    let (old, new) = (&serving.executor, &candidate.executor);
    for capability in old.capabilities.iter().filter(|capability| !new.capabilities.contains(capability)) {
        lost(DifferenceKind::Capability, format!("no capability `{}`", word(capability)), json!(capability));
    }
    for glob in old.calls.iter().filter(|glob| !new.calls.contains(glob)) {
        lost(DifferenceKind::Calls, format!("no calls to tools `{glob}`"), json!(glob));
    }
    for origin in beyond(&old.egress, &new.egress) {
        lost(DifferenceKind::Egress, format!("no egress to `{origin}`"), json!(origin));
    }
    let (old, new) = (&serving.resource_type, &candidate.resource_type);
    for method in &old.auth_methods {
        let name = method.method;
        let Some(after) = new.auth_methods.iter().find(|after| after.method == name) else {
            lost(DifferenceKind::AuthMethod, format!("no auth method `{name}`"), json!(name));
            continue;
        };
        if let (Some(before), Some(after)) = (&method.audience, &after.audience) {
            for origin in beyond(before, after) {
                let text = format!("auth method `{name}`: no audience `{origin}`");
                lost(DifferenceKind::AuthMethod, text, json!(origin));
            }
        }
    }
    for tool in &old.tools {
        let after = new.tools.iter().find(|after| after.name == tool.name);
        if let Some(after) = after.filter(|after| after.effect > tool.effect) {
            let text = format!("tool `{}` has effect `{}` instead of `{}`", tool.name, after.effect, tool.effect);
            narrows.push(changed(DifferenceKind::Tool, text, &json!(tool.effect), &json!(after.effect)));
        }
    }
    for dimension in &new.scope_dimensions {
        let before = old.scope_dimensions.iter().find(|before| before.key == dimension.key);
        constrained(before, dimension, &mut narrows);
    }
    narrows
}

fn constrained(before: Option<&ScopeDimension>, after: &ScopeDimension, narrows: &mut Vec<PluginDifference>) {
    let key = &after.key;
    let mut add = |text: String| {
        narrows.push(changed(DifferenceKind::ScopeDimension, text, &json!(before), &json!(after)));
    };
    let Some(before) = before else {
        add(format!("scope dimension `{key}` is new"));
        return;
    };
    for path in after.param_paths.iter().filter(|path| !before.param_paths.contains(path)) {
        add(format!("scope dimension `{key}` also checks `{path}`"));
    }
    if let (Some(filter), None) = (&before.operation_filter, &after.operation_filter) {
        add(format!("scope dimension `{key}` applies to all operations, and not to `{filter}` only"));
    }
}

/// Returns the tools that differ, ordered by name.
fn tools(before: &[Tool], after: &[Tool]) -> Vec<ToolDifference> {
    let mut both: BTreeMap<&ToolName, (Option<&Tool>, Option<&Tool>)> = BTreeMap::new();
    for tool in before {
        both.entry(&tool.name).or_default().0 = Some(tool);
    }
    for tool in after {
        both.entry(&tool.name).or_default().1 = Some(tool);
    }
    let differ = both.into_iter().filter(|(_, (before, after))| before != after);
    let difference = differ.map(|(name, (before, after))| ToolDifference {
        name: name.clone(),
        change: match (before, after) {
            (None, _) => ToolChange::Added,
            (_, None) => ToolChange::Removed,
            _ => ToolChange::Changed,
        },
        before: before.map(|tool| json!(tool)),
        after: after.map(|tool| json!(tool)),
    });
    difference.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Value {
        json!({
            "name": "sample", "version": "1.0.0",
            "resource_type": {
                "id": "sample", "name": "Sample",
                "auth_methods": [{"method": "token", "audience": ["https://a.example", "https://b.example"]}],
                "scope_dimensions": [{"key": "repo", "param_paths": ["repo"], "operation_filter": "issue.*"}],
                "tools": [{"name": "sample_list", "description": "Lists", "operation": "issue.read",
                           "input_schema": {"type": "object"}, "effect": "read"}],
            },
            "executor": {"capabilities": ["http"], "egress": ["https://a.example"], "calls": ["other_*"]},
        })
    }

    fn edited(edits: &[(&str, Value)]) -> (Manifest, Manifest) {
        let mut after = manifest();
        for (pointer, value) in edits {
            *after.pointer_mut(pointer).unwrap() = value.clone();
        }
        (serde_json::from_value(manifest()).unwrap(), serde_json::from_value(after).unwrap())
    }

    #[test]
    fn what_a_version_gives_up_is_named() {
        for (place, value, expected) in [
            ("/executor/capabilities", json!([]), "no capability `http`"),
            ("/executor/egress", json!([]), "no egress to `https://a.example`"),
            ("/executor/calls", json!([]), "no calls to tools `other_*`"),
            ("/resource_type/auth_methods", json!([]), "no auth method `token`"),
            (
                "/resource_type/auth_methods/0/audience",
                json!(["https://a.example"]),
                "auth method `token`: no audience `https://b.example`",
            ),
            (
                "/resource_type/tools/0/effect",
                json!("write"),
                "tool `sample_list` has effect `write` instead of `read`",
            ),
            (
                "/resource_type/scope_dimensions/0/param_paths",
                json!(["repo", "owner"]),
                "scope dimension `repo` also checks `owner`",
            ),
            (
                "/resource_type/scope_dimensions/0/operation_filter",
                Value::Null,
                "scope dimension `repo` applies to all operations, and not to `issue.*` only",
            ),
        ] {
            let (serving, candidate) = edited(&[(place, value)]);
            let texts: Vec<String> =
                narrows(&serving, &candidate).into_iter().map(|difference| difference.text).collect();
            assert_eq!(texts, [expected], "{place}");
            // The way back asks for more, so nothing of it is named as a narrowing.
            assert!(narrows(&candidate, &serving).is_empty(), "{place}");
        }
        let (same, _) = edited(&[]);
        assert!(narrows(&same, &same).is_empty());
    }

    #[test]
    fn tools_that_differ_are_shown_with_both_declarations() {
        let (serving, candidate) = edited(&[("/resource_type/tools/0/description", json!("Lists all"))]);
        let (old, new) = (&serving.resource_type.tools, &candidate.resource_type.tools);
        let seen = |differences: Vec<ToolDifference>| -> Vec<Value> {
            let seen = differences.into_iter().map(|tool| {
                let description = |tool: Option<Value>| tool.map(|tool| tool["description"].clone());
                json!([tool.name, tool.change, description(tool.before), description(tool.after)])
            });
            seen.collect()
        };
        assert_eq!(seen(tools(old, new)), [json!(["sample_list", "changed", "Lists", "Lists all"])]);
        assert_eq!(seen(tools(&[], new)), [json!(["sample_list", "added", null, "Lists all"])]);
        assert_eq!(seen(tools(old, &[])), [json!(["sample_list", "removed", "Lists", null])]);
        assert!(tools(old, old).is_empty());
    }
}
