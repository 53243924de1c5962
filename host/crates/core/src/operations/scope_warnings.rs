//! Warnings about scopes of a role that a resource type does not have. Such scopes are not validation errors, because
//! one role may apply to several types, but a binding of such a type denies every tool. Therefore the caller who saves
//! the role or the binding gets a warning.

use monstrum_manifest::ScopeDimension;
use monstrum_types::{ResourceTypeId, RoleId, WorkspaceId};
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
        let mut resources = snapshot.resources().filter(|resource| resource.row.workspace_id == workspace);
        let mut is_of_resource = || resources.any(|resource| has(resource.dimensions(), key));
        if !serving.iter().any(|plugin| has(of_type(plugin), key)) && !is_of_resource() {
            warnings.push(format!(
                "no loaded resource type has the scope dimension `{key}`: bindings with this role deny every tool"
            ));
            continue;
        }
        let mut types: Vec<&str> = snapshot
            .bindings_of_role(workspace, role)
            .filter(|binding| !has(binding.resource.dimensions(), key))
            .map(|binding| binding.resource.row.resource_type.as_str())
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

/// Returns the warnings for a binding of a resource with these scope dimensions whose role has these scopes.
pub(super) fn of_binding(
    resource_type: &ResourceTypeId,
    dimensions: &[ScopeDimension],
    role: &str,
    constraints: &Value,
) -> Vec<String> {
    let known: Vec<&str> = dimensions.iter().map(|dimension| dimension.key.as_str()).collect();
    let listed = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let unknown = keys(constraints).filter(|key| !known.contains(key));
    let warning = |key: &str| {
        format!(
            "role `{role}` constrains `{key}`, which is not a scope dimension of type `{resource_type}` (known \
             dimensions: {listed}): this binding denies every tool"
        )
    };
    unknown.map(warning).collect()
}

/// Returns the keys of scopes, at most [`SCOPE_KEYS_MAX`]. Rows stored before this limit was introduced may have more.
fn keys(constraints: &Value) -> impl Iterator<Item = &str> {
    constraints.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).take(SCOPE_KEYS_MAX)
}

fn of_type(plugin: &Plugin) -> &[ScopeDimension] {
    &plugin.manifest.resource_type.scope_dimensions
}

fn has(dimensions: &[ScopeDimension], key: &str) -> bool {
    dimensions.iter().any(|dimension| dimension.key == key)
}
