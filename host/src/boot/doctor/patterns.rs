//! Reports stored patterns that exceed a limit, because the patterns were saved before the limit was introduced. The
//! patterns stay in force until a user changes them.

use std::collections::BTreeMap;

use monstrum_store::PolicyRows;
use monstrum_types::WorkspaceId;

use super::Findings;
use crate::config::Settings;
use monstrum_core::policy::Policy;
use monstrum_core::policy::pattern_limits::{
    PatternRoom, list_errors, lists_of_binding, lists_of_bot, lists_of_role, scopes_error, scopes_of_binding,
};

/// Reports roles, bindings and workspaces that exceed a limit.
pub(super) fn check(found: &mut Findings, settings: &Settings, rows: &PolicyRows, policy: &Policy) {
    let roles = rows.roles.iter().map(|row| (format!("role {}", row.name), lists_of_role(row)));
    let bots = rows.bots.iter().map(|row| (format!("bot {}", row.name), lists_of_bot(row)));
    let bindings = rows.bindings.iter().map(|row| (format!("binding {}", row.id), lists_of_binding(row)));
    let scopes = rows
        .roles
        .iter()
        .map(|row| (format!("role {}", row.name), vec![("/scope_constraints", &row.scope_constraints)]));
    let scopes = scopes.chain(rows.bindings.iter().map(|row| (format!("binding {}", row.id), scopes_of_binding(row))));
    for (about, sets) in scopes {
        for (path, message) in sets.iter().filter_map(|(path, set)| scopes_error(path, set)) {
            found.weak(
                about.clone(),
                format!("{path}: {message}"),
                "remove constraints; the stored constraints stay in force until they are changed",
            );
        }
    }
    for (about, lists) in roles.chain(bots).chain(bindings) {
        for (path, message) in lists.iter().flat_map(|(path, list)| list_errors(path, list)) {
            let remedy = "shorten the list; the stored list stays in force until it is changed";
            found.weak(about.clone(), format!("{path}: {message}"), remedy);
        }
    }
    let names: BTreeMap<WorkspaceId, &str> = rows.workspaces.iter().map(|row| (row.id, row.name.as_str())).collect();
    let (snapshot, room) = (policy.load(), PatternRoom::new(settings.workspace_patterns_mib));
    for (id, name) in names {
        if let Some(over) = room.over(snapshot.pattern_bytes(id)) {
            found.weak(
                format!("workspace {name}"),
                over.to_string(),
                "delete unnecessary roles and bindings; stored patterns stay in force, but no pattern can be added",
            );
        }
    }
}
