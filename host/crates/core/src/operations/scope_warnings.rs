//! Warnings about scopes of a role that a resource type does not have. Such scopes are not validation errors, because
//! one role may apply to several types, but a binding of such a type denies every tool. Therefore the caller who saves
//! the role or the binding gets a warning.

use monstrum_types::{RoleId, WorkspaceId};
use serde_json::Value;

use crate::plugins::Plugin;
use crate::policy::Snapshot;
use crate::policy::pattern_limits::SCOPE_KEYS_MAX;

/// Returns the warnings for a role with these scopes: for keys that no type has, and for keys that are missing in the
/// types of the role's bindings.
pub(super) fn of_role(snapshot: &Snapshot, workspace: WorkspaceId, role: RoleId, constraints: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let serving = snapshot.resource_types();
    for key in keys(constraints) {
        if !serving.iter().any(|plugin| has(plugin, key)) {
            warnings.push(format!(
                "no loaded resource type has the scope dimension `{key}`: bindings with this role deny every tool"
            ));
            continue;
        }
        let mut types: Vec<&str> = snapshot
            .bindings_of_role(workspace, role)
            .map(|binding| &binding.resource.plugin)
            .filter(|plugin| !has(plugin, key))
            .map(|plugin| plugin.manifest.resource_type.id.as_str())
            .collect();
        types.sort_unstable();
        types.dedup();
        warnings.extend(types.into_iter().map(|of| {
            format!(
                "the role is bound to resources of type `{of}`, which has no scope dimension `{key}`: these bindings deny \
                 every tool"
            )
        }));
    }
    warnings
}

/// Returns the warnings for a binding of this plugin's type whose role has these scopes.
pub(super) fn of_binding(plugin: &Plugin, role: &str, constraints: &Value) -> Vec<String> {
    let resource_type = &plugin.manifest.resource_type;
    let known: Vec<&str> = resource_type.scope_dimensions.iter().map(|dimension| dimension.key.as_str()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let unknown = keys(constraints).filter(|key| !has(plugin, key));
    let warning = |key: &str| {
        format!(
            "role `{role}` constrains `{key}`, which is not a scope dimension of type `{}` (known dimensions: \
             {known}): this binding denies every tool",
            resource_type.id
        )
    };
    unknown.map(warning).collect()
}

/// Returns the keys of scopes, at most [`SCOPE_KEYS_MAX`]. Rows stored before this limit was introduced may have more.
fn keys(constraints: &Value) -> impl Iterator<Item = &str> {
    constraints.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).take(SCOPE_KEYS_MAX)
}

fn has(plugin: &Plugin, key: &str) -> bool {
    plugin.manifest.resource_type.scope_dimensions.iter().any(|dimension| dimension.key == key)
}
