//! Assembles a snapshot from the rows. Nothing is compiled here, and unchanged objects are taken over from the previous
//! snapshot, so the duration of a change does not depend on the rules of other tenants.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use monstrum_egress::{Network, Scope};
use monstrum_guardian::{
    BindingRules, Delegation, DelegationRules, GrantSource, PatternList, RoleRules, ScopeConstraints, SetSource,
};
use monstrum_manifest::{AuthMethod, Manifest, config_values};
use monstrum_store::{BindingRow, BotRow, CredentialRow, KeyRow, PolicyRows, ResourceRow, RoleRow};
use monstrum_types::{BindingId, BotId, KeyId, PluginName, ResourceId, WorkspaceId};
use serde_json::{Map, Value};

use super::pattern_limits::{compiled_bytes, lists_of_binding, lists_of_role};
use super::sharing::Sharing;
use super::{Binding, Bot, Key, NetworkRules, Resource, Role, Snapshot, key_hash, switch};
use crate::credentials::{HeldCredential, Issuer, Refresher};
use crate::plugins::owners::Owners;
use crate::plugins::{Plugin, built_in};
use crate::policy::key_uses::LastUse;
use crate::policy::verification::Verification;

/// The snapshot of these rows and of the serving plugins.
pub(super) fn snapshot(
    rows: PolicyRows,
    serving: &[Arc<Plugin>],
    refresher: &Arc<Refresher>,
    before: &Snapshot,
) -> Snapshot {
    let verification = Verification::of(&rows);
    let mut snapshot = Snapshot { generation: rows.generation, verification, ..Snapshot::default() };
    for workspace in rows.workspaces {
        if workspace.name == monstrum_store::DEFAULT_WORKSPACE {
            snapshot.default_workspace = Some(workspace.id);
        }
        snapshot.workspaces.insert(workspace.id.to_string(), workspace.id);
        snapshot.workspaces.insert(workspace.name, workspace.id);
    }
    let last_uses: HashMap<KeyId, &Arc<LastUse>> = before.keys().map(|key| (key.id, &key.last_use)).collect();
    snapshot.keys = rows.keys.iter().filter_map(|row| key_entry(row, last_uses.get(&row.id).copied())).collect();
    snapshot.key_hashes = snapshot.keys.iter().map(|(hash, key)| (key.id, *hash)).collect();
    snapshot.owners = Owners::new(rows.owners);
    let sandbox = serve(&mut snapshot, serving);
    snapshot.issuers = rows
        .oauth_providers
        .iter()
        .map(|row| ((row.workspace_id, row.resource_type.clone()), Issuer::of(row)))
        .collect();
    add_resources(&mut snapshot, rows.resources, rows.credentials, refresher, before);
    snapshot.roles = rows.roles.into_iter().map(|row| (row.id, role(row, before))).collect();
    add_bots(&mut snapshot, rows.bots, rows.bindings, sandbox.as_ref(), before);
    snapshot.sharing = Sharing::of(snapshot.bots.values().map(Arc::as_ref));
    snapshot.pattern_bytes = pattern_bytes(&snapshot);
    snapshot
}

/// The most memory of the compiled patterns of each workspace.
fn pattern_bytes(snapshot: &Snapshot) -> HashMap<WorkspaceId, u64> {
    let mut sums: HashMap<WorkspaceId, u64> = HashMap::new();
    let mut add = |workspace: WorkspaceId, bytes: u64| {
        let sum = sums.entry(workspace).or_default();
        *sum = sum.saturating_add(bytes);
    };
    for role in snapshot.roles.values() {
        add(role.row.workspace_id, role.pattern_bytes);
    }
    for bot in snapshot.bots.values() {
        let active = bot.bindings.iter().map(|binding| binding.pattern_bytes);
        // Patterns of dormant bindings are compiled as soon as their plugin serves.
        let dormant = bot.dormant.iter().map(|row| compiled_bytes(lists_of_binding(row)));
        active.chain(dormant).for_each(|bytes| add(bot.row.workspace_id, bytes));
    }
    sums
}

/// Adds the serving plugins, and returns the plugin of the sandbox.
fn serve(snapshot: &mut Snapshot, serving: &[Arc<Plugin>]) -> Option<Arc<Plugin>> {
    let mut sandbox = None;
    for plugin in serving {
        // Another host may have approved a takeover. The plugin that this host loaded before must no longer serve.
        if plugin.component.is_some() && !snapshot.owners.permit(plugin) {
            tracing::debug!(plugin.name = %plugin.name, "another plugin owns a name of this one; it does not serve");
            continue;
        }
        if plugin.name.as_str() == built_in::SANDBOX {
            // The sandbox is not a resource type: it is granted only by the switch of a bot.
            sandbox = Some(Arc::clone(plugin));
        } else {
            snapshot.types.insert(plugin.manifest.resource_type.id.clone(), Arc::clone(plugin));
        }
        for tool in &plugin.tools {
            snapshot.tools.insert(tool.manifest.name.clone(), (Arc::clone(plugin), Arc::clone(tool)));
        }
    }
    sandbox
}

fn add_resources(
    snapshot: &mut Snapshot,
    rows: Vec<ResourceRow>,
    credentials: Vec<CredentialRow>,
    refresher: &Arc<Refresher>,
    before: &Snapshot,
) {
    let mut credentials: HashMap<ResourceId, _> =
        credentials.into_iter().map(|credential| (credential.resource_id, credential)).collect();
    for row in rows {
        let Some(plugin) = snapshot.types.get(&row.resource_type).cloned() else { continue };
        let known = before.resources.get(&row.id);
        let held = known.and_then(|resource| resource.credential.clone());
        let credential = credentials.remove(&row.id).map(|credential| match held {
            Some(held) if held.is_of(&credential) => held,
            _ => Arc::new(HeldCredential::new(credential, Arc::clone(refresher))),
        });
        if let Some(known) = known.filter(|known| known.is_made_of(&row, &plugin, credential.as_ref())) {
            snapshot.resources.insert(row.id, Arc::clone(known));
            continue;
        }
        let legacy_plugin = snapshot.owners.of_type(&row.resource_type).and_then(|owner| owner.legacy_plugin.clone());
        if let Some(resource) = resource(row, plugin, legacy_plugin, credential) {
            snapshot.resources.insert(resource.row.id, Arc::new(resource));
        }
    }
}

fn add_bots(
    snapshot: &mut Snapshot,
    rows: Vec<BotRow>,
    bindings: Vec<BindingRow>,
    sandbox: Option<&Arc<Plugin>>,
    before: &Snapshot,
) {
    let known: HashMap<BindingId, &Arc<Binding>> =
        before.bots.values().flat_map(|bot| &bot.bindings).map(|binding| (binding.row.id, binding)).collect();
    let mut bound: HashMap<BotId, (Vec<Arc<Binding>>, Vec<BindingRow>)> = HashMap::new();
    for row in bindings {
        let (active, dormant) = bound.entry(row.bot_id).or_default();
        match binding(&row, known.get(&row.id).copied(), snapshot) {
            Some(binding) => active.push(binding),
            None => dormant.push(row),
        }
    }
    for row in rows {
        let (mut bindings, dormant) = bound.remove(&row.id).unwrap_or_default();
        bindings.extend(sandbox.and_then(|sandbox| switch::binding(&row, sandbox, &known)));
        snapshot.bots_by_name.insert((row.workspace_id, row.name.clone()), row.id);
        snapshot.bots.insert(row.id, Arc::new(Bot { row, bindings, dormant }));
    }
}

/// `None` if the hash is malformed: no key has it.
fn key_entry(row: &KeyRow, held: Option<&Arc<LastUse>>) -> Option<([u8; 32], Key)> {
    let last_use = held.cloned().unwrap_or_else(|| Arc::new(LastUse::new(row.last_used_at)));
    let key = Key { id: row.id, kind: row.kind, workspace: row.workspace_id, bot: row.bot_id, last_use };
    Some((key_hash(row)?, key))
}

/// `None`, with a log line, if this host cannot read the row. The resource then grants nothing.
fn resource(
    row: ResourceRow,
    plugin: Arc<Plugin>,
    legacy_plugin: Option<PluginName>,
    credential: Option<Arc<HeldCredential>>,
) -> Option<Resource> {
    let config = row.config.as_object().cloned().unwrap_or_default();
    let config = match config_values(&plugin.manifest.resource_type, config) {
        Ok(values) => values,
        Err(faults) => {
            tracing::warn!(resource.id = %row.id, ?faults, "the configuration does not match its type; the resource cannot be used");
            return None;
        }
    };
    let network = match serde_json::from_value::<NetworkRules>(row.network.clone()) {
        Ok(rules) => Network { allow_addresses: rules.allow_addresses, allow_http: rules.allow_http },
        Err(error) => {
            tracing::error!(resource.id = %row.id, %error, "the stored network rules are unreadable; the resource cannot be used");
            return None;
        }
    };
    let config_text = serde_json::to_string(&config).expect("a JSON object has a text");
    let scope = scope(&plugin.manifest, &config, network);
    Some(Resource {
        row,
        plugin,
        legacy_plugin,
        config,
        config_text,
        scope,
        tools: OnceLock::new(),
        credential,
        is_stored: true,
        credential_source: OnceLock::new(),
    })
}

fn scope(manifest: &Manifest, config: &Map<String, Value>, network: Network) -> Scope {
    let api_base = config.get("api_base").and_then(Value::as_str);
    let (executor, methods) = (&manifest.executor, &manifest.resource_type.auth_methods);
    Scope {
        api_base: api_base.and_then(|text| text.parse().ok()),
        egress: executor.egress.clone(),
        inject: methods.iter().flat_map(AuthMethod::inject_rules).collect(),
        audience: methods.iter().flat_map(|method| method.audience(config, executor)).collect(),
        follow_redirects: executor.follow_redirects,
        network,
    }
}

/// The role of this row, from the previous snapshot if the row is unchanged.
fn role(row: RoleRow, before: &Snapshot) -> Arc<Role> {
    if let Some(known) = before.roles.get(&row.id).filter(|known| known.row == row) {
        return Arc::clone(known);
    }
    let grant = serde_json::from_value(serde_json::json!({
        "allowed_operations": row.allowed_operations,
        "allowed_tools": row.allowed_tools,
    }));
    let scopes = serde_json::from_value::<ScopeConstraints>(row.scope_constraints.clone());
    let rules = match (grant, scopes) {
        (Ok(grant), Ok(scopes)) => Some(RoleRules::new(&grant, &scopes)),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(role.id = %row.id, %error, "the stored lists of the role are unreadable; its bindings grant nothing");
            None
        }
    };
    Arc::new(Role { pattern_bytes: compiled_bytes(lists_of_role(&row)), row, rules })
}

/// `None` if the binding grants nothing: the plugin of its resource does not serve, or a row is unreadable.
fn binding(row: &BindingRow, known: Option<&Arc<Binding>>, snapshot: &Snapshot) -> Option<Arc<Binding>> {
    let resource = snapshot.resources.get(&row.resource_id)?;
    let role = match row.role_id {
        Some(role) => Some(snapshot.roles.get(&role)?),
        None => None,
    };
    if let Some(known) = known.filter(|known| known.is_made_of(row, role, resource)) {
        return Some(Arc::clone(known));
    }
    let unreadable = |what: &str, error: &dyn std::fmt::Display| {
        tracing::error!(binding.id = %row.id, %error, "the stored {what} are unreadable; the binding grants nothing");
    };
    let mut grants = Vec::new();
    if let Some(permissions) = &row.permissions {
        let grant = serde_json::from_value(permissions.clone());
        grants.push((GrantSource::Permissions, grant.map_err(|error| unreadable("permissions", &error)).ok()?));
    }
    let scopes = serde_json::from_value::<ScopeConstraints>(row.scope_constraints.clone());
    let sets = [(SetSource::Binding, scopes.map_err(|error| unreadable("scopes", &error)).ok()?)];
    let mut rules = BindingRules::new(&grants, &sets, &resource.plugin.manifest.resource_type.scope_dimensions);
    if let Some(role) = role {
        rules = rules.under(role.rules.as_ref()?);
    }
    let allow_calls = serde_json::from_value::<Vec<String>>(row.allow_calls.clone());
    let allow_calls = PatternList::new(allow_calls.map_err(|error| unreadable("allowed calls", &error)).ok()?);
    let link = row.delegate.clone().map_or(Ok(Delegation::default()), serde_json::from_value);
    let link = Arc::new(DelegationRules::new(&link.map_err(|error| unreadable("delegation", &error)).ok()?));
    let (role, resource) = (role.cloned(), Arc::clone(resource));
    let pattern_bytes = compiled_bytes(lists_of_binding(row));
    Some(Arc::new(Binding { row: row.clone(), role, rules, allow_calls, link, resource, pattern_bytes }))
}

#[cfg(test)]
mod tests;
