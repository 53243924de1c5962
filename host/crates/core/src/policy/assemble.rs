//! Assembles a snapshot from the rows. This module compiles no patterns and schemas, and reuses the unchanged objects
//! of the previous snapshot. Therefore the duration of a change does not depend on the rules of other tenants.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use monstrum_egress::{Network, Scope};
use monstrum_guardian::{
    BindingRules, Delegation, DelegationRules, DimensionModes, Gate, Gates, GrantSource, PatternList, RoleRules,
    ScopeConstraints, SetSource,
};
use monstrum_manifest::{Manifest, ScopeDimension, ToolDiscovery, config_dimensions, config_values};
use monstrum_store::{
    BindingRow, BotRow, Changed, CredentialRow, KeyRow, PolicyChanges, PolicyRows, ResourceRow, RoleRow,
};
use monstrum_types::{BindingId, BotId, CredentialId, InputError, KeyId, PluginName, ResourceId, RoleId};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::pattern_limits::{compiled_bytes, lists_of_binding, lists_of_role};
use super::{
    Binding, Bot, Key, NetworkRules, PackedBinding, Resource, Role, ServedTools, Snapshot, is_same, key_hash, switch,
};
use crate::credentials::{HeldCredential, Issuer, Refresher, Subject};
use crate::plugins::owners::Owners;
use crate::plugins::{Plugin, built_in};
use crate::policy::key_uses::LastUse;
use crate::policy::verification::Verification;

/// Assembles a snapshot from all rows and the serving plugins. `present` has the resources with a connected agent.
pub(super) fn snapshot(
    rows: PolicyRows,
    present: imbl::HashSet<ResourceId>,
    serving: &[Arc<Plugin>],
    refresher: &Arc<Refresher>,
    before: &Snapshot,
) -> Snapshot {
    let verification = Verification::of(&rows);
    let mut next = Snapshot { generation: rows.generation, verification, present, ..Snapshot::default() };
    let mut workspaces = HashMap::new();
    for workspace in rows.workspaces {
        if workspace.name == monstrum_store::DEFAULT_WORKSPACE {
            next.default_workspace = Some(workspace.id);
        }
        workspaces.insert(workspace.id.to_string(), workspace.id);
        workspaces.insert(workspace.name, workspace.id);
    }
    next.workspaces = Arc::new(workspaces);
    next.owners = Arc::new(Owners::new(rows.owners));
    serve(&mut next, serving);
    let (of_resources, of_types): (Vec<_>, Vec<_>) =
        rows.oauth_providers.iter().partition(|row| row.resource_id.is_some());
    let of_types = of_types.into_iter();
    let issuers = of_types.map(|row| ((row.workspace_id, row.resource_type.clone()), Issuer::of(row)));
    next.issuers = Arc::new(issuers.collect());
    let of_resources = of_resources.into_iter();
    let issuers = of_resources.filter_map(|row| Some((row.resource_id?, Issuer::of(row))));
    next.resource_issuers = Arc::new(issuers.collect());
    let changes = PolicyChanges {
        keys: rows.keys.into_iter().map(|row| (row.id, Some(row))).collect(),
        roles: rows.roles.into_iter().map(|row| (row.id, Some(row))).collect(),
        bots: rows.bots.into_iter().map(|row| (row.id, Some(row))).collect(),
        resources: rows.resources.into_iter().map(|row| (row.id, Some(row))).collect(),
        credentials: rows.credentials.into_iter().map(|row| (row.id, Some(row))).collect(),
        bindings: rows.bindings.into_iter().map(|row| (row.id, Some(row))).collect(),
        grants: rows.grants.into_iter().map(|row| (row.id, Some(row))).collect(),
        resource_tools: rows.resource_tools.into_iter().map(|row| (row.id, Some(row))).collect(),
        budgets: rows.budgets.into_iter().map(|row| (row.id, Some(row))).collect(),
        webhooks: rows.webhooks.into_iter().map(|row| (row.id, Some(row))).collect(),
        subscriptions: rows.subscriptions.into_iter().map(|row| (row.id, Some(row))).collect(),
        workflows: rows.workflows.into_iter().map(|row| (row.id, Some(row))).collect(),
        workflow_triggers: rows.workflow_triggers.into_iter().map(|row| (row.id, Some(row))).collect(),
        ..PolicyChanges::default()
    };
    Assembly { next, before, refresher }.with(changes)
}

/// Applies these changes to the snapshot `before`. The serving plugins stay the same. The duration depends only on the
/// number of changes.
pub(super) fn changed(
    changes: PolicyChanges,
    present: imbl::HashSet<ResourceId>,
    refresher: &Arc<Refresher>,
    before: &Snapshot,
) -> Snapshot {
    let verification = before.verification.after(&changes);
    let next = Snapshot { generation: changes.generation, verification, present, ..before.clone() };
    Assembly { next, before, refresher }.with(changes)
}

/// Adds the serving plugins.
fn serve(snapshot: &mut Snapshot, serving: &[Arc<Plugin>]) {
    let (mut types, mut tools) = (HashMap::new(), HashMap::new());
    for plugin in serving {
        // Another host may have approved a version of another plugin that takes names from this plugin. The version
        // that this host has loaded must then not serve.
        if plugin.component.is_some() && !snapshot.owners.permit(plugin) {
            tracing::debug!(plugin.name = %plugin.name, "the plugin does not serve, because another plugin owns one of \
                                                         its names");
            continue;
        }
        if plugin.name.as_str() == built_in::SANDBOX {
            // The sandbox is not a resource type, because only the switch of a bot grants it.
            snapshot.sandbox = Some(Arc::clone(plugin));
        } else {
            types.insert(plugin.manifest.resource_type.id.clone(), Arc::clone(plugin));
        }
        for tool in &plugin.tools {
            tools.insert(tool.manifest.name.clone(), (Arc::clone(plugin), Arc::clone(tool)));
        }
    }
    (snapshot.types, snapshot.tools) = (Arc::new(types), Arc::new(tools));
}

/// A snapshot in progress, to which changes are applied.
struct Assembly<'a> {
    next: Snapshot,
    /// The snapshot whose unchanged objects are reused.
    before: &'a Snapshot,
    refresher: &'a Arc<Refresher>,
}

impl Assembly<'_> {
    /// Applies these changes and returns the snapshot.
    fn with(mut self, changes: PolicyChanges) -> Snapshot {
        let PolicyChanges {
            keys,
            roles,
            bots,
            resources,
            credentials,
            bindings,
            grants,
            resource_tools,
            budgets,
            webhooks,
            subscriptions,
            workflows,
            workflow_triggers,
            ..
        } = changes;
        self.change_keys(keys);
        self.next.grants.change(grants);
        self.next.budgets.change(budgets);
        self.next.webhooks.change(webhooks);
        self.next.subscriptions.change(subscriptions);
        self.next.triggers.change(workflows, workflow_triggers);
        let mut affected: BTreeSet<BotId> = bots.keys().copied().collect();
        for (id, row) in roles {
            self.change_role(id, row);
            affected.extend(self.next.bound.of_role(id));
        }
        let mut retooled = self.next.remote_tools.change(resource_tools);
        let (present, before) = (&self.next.present, &self.before.present);
        if !present.ptr_eq(before) {
            retooled.extend(present.iter().filter(|id| !before.contains(*id)));
            retooled.extend(before.iter().filter(|id| !present.contains(*id)));
        }
        for id in self.change_resources(resources, credentials, retooled) {
            affected.extend(self.next.bound.of_resource(id));
        }
        let mut rows: HashMap<BotId, Changed<BindingId, BindingRow>> = HashMap::new();
        for (id, row) in bindings {
            let bot = row.as_ref().map(|row| row.bot_id).or_else(|| self.next.bound.bot_of(id));
            if let Some(bot) = bot {
                rows.entry(bot).or_default().insert(id, row);
            }
        }
        affected.extend(rows.keys());
        self.change_bots(affected, bots, rows);
        self.next
    }

    fn change_keys(&mut self, rows: Changed<KeyId, KeyRow>) {
        for (id, row) in rows {
            if let Some(hash) = self.next.key_hashes.remove(&id) {
                self.next.keys.remove(&hash);
            }
            let last_use = self.before.key_of_id(id).map(|key| &key.last_use);
            if let Some((hash, key)) = row.and_then(|row| key_entry(&row, last_use)) {
                self.next.key_hashes.insert(id, hash);
                self.next.keys.insert(hash, key);
            }
        }
    }

    fn change_role(&mut self, id: RoleId, row: Option<RoleRow>) {
        if let Some(gone) = self.next.roles.remove(&id) {
            self.next.patterns.remove(gone.row.workspace_id, gone.pattern_bytes);
        }
        if let Some(row) = row {
            let role = role(row, self.before);
            self.next.patterns.add(role.row.workspace_id, role.pattern_bytes);
            self.next.roles.insert(id, role);
        }
    }

    /// Applies changes of resources and credentials, and of the tools of the resources `retooled`. Returns the resources
    /// whose object was created, replaced or removed.
    fn change_resources(
        &mut self,
        mut rows: Changed<ResourceId, ResourceRow>,
        credentials: Changed<CredentialId, CredentialRow>,
        retooled: Vec<ResourceId>,
    ) -> Vec<ResourceId> {
        let mut affected: BTreeSet<ResourceId> = rows.keys().copied().chain(retooled).collect();
        let (mut of_resource, mut deleted) = (HashMap::new(), HashSet::new());
        for (id, credential) in credentials {
            match credential {
                Some(credential) => match Subject::of_row(&credential) {
                    Some(Subject::Shared) => {
                        affected.insert(credential.resource_id);
                        of_resource.insert(credential.resource_id, credential);
                    }
                    Some(user) => {
                        let (refresher, before) = (self.refresher, &self.before.user_credentials);
                        self.next.user_credentials.insert(user, credential, refresher, before);
                    }
                    None => tracing::error!(credential.id = %id, "a credential is not used: its subject is unknown"),
                },
                // The credentials of users are not part of their resource.
                None if self.next.user_credentials.remove(id) => {}
                None => {
                    deleted.insert(id);
                    affected.extend(self.next.credential_owners.get(&id));
                }
            }
        }
        let mut changed = Vec::new();
        for id in affected {
            let known = self.next.resources.remove(&id);
            let held = known.as_ref().and_then(|known| known.credential.clone());
            if let Some(held) = &held {
                self.next.credential_owners.remove(&held.row.id);
            }
            let row = rows.remove(&id).unwrap_or_else(|| known.as_ref().map(|known| known.row.clone()));
            let credential = match of_resource.remove(&id) {
                Some(credential) => Some(self.held(credential, id)),
                None => held.filter(|held| !deleted.contains(&held.row.id)),
            };
            let resource = row.and_then(|row| self.resource(row, credential));
            if let Some(resource) = &resource {
                let held = resource.credential.as_ref();
                self.next.credential_owners.extend(held.map(|held| (held.row.id, id)));
                self.next.resources.insert(id, Arc::clone(resource));
            }
            if !is_same(known.as_ref(), resource.as_ref()) {
                changed.push(id);
            }
        }
        changed
    }

    /// Returns the credential of this row. Reuses an unchanged credential of the previous snapshot.
    fn held(&self, row: CredentialRow, resource: ResourceId) -> Arc<HeldCredential> {
        let known = self.before.resources.get(&resource).and_then(|known| known.credential.as_ref());
        match known.filter(|held| held.is_of(&row)) {
            Some(held) => Arc::clone(held),
            None => Arc::new(HeldCredential::new(row, Arc::clone(self.refresher))),
        }
    }

    /// Returns the resource of this row, or `None` if no plugin serves its type or the row is unreadable. Reuses an
    /// unchanged resource of the previous snapshot.
    fn resource(&self, row: ResourceRow, credential: Option<Arc<HeldCredential>>) -> Option<Arc<Resource>> {
        let plugin = self.next.types.get(&row.resource_type)?;
        let known = self.before.resources.get(&row.id);
        // An agent runs the calls itself, so its tools are there only while it is connected.
        let is_served = plugin.name.as_str() != built_in::AGENT || self.next.present.contains(&row.id);
        let served = if is_served { self.next.remote_tools.of(row.id) } else { ServedTools::default() };
        if let Some(known) = known.filter(|known| known.is_made_of(&row, plugin, credential.as_ref(), &served)) {
            return Some(Arc::clone(known));
        }
        let owner = self.next.owners.of_type(&row.resource_type);
        let legacy_plugin = owner.and_then(|owner| owner.legacy_plugin.clone());
        resource(row, Arc::clone(plugin), legacy_plugin, credential, served).map(Arc::new)
    }

    /// Assembles the bots whose rows or bindings have changed.
    fn change_bots(
        &mut self,
        affected: BTreeSet<BotId>,
        mut rows: Changed<BotId, BotRow>,
        mut bindings: HashMap<BotId, Changed<BindingId, BindingRow>>,
    ) {
        // All old names are removed before new names are added, because the new name of a bot may be the old name of
        // another bot.
        let mut changed = Vec::with_capacity(affected.len());
        for id in affected {
            let known = self.next.bots.remove(&id);
            if let Some(known) = &known {
                self.next.bots_by_name.remove(&(known.row.workspace_id, known.row.name.clone()));
                self.next.bound.remove(known);
                self.next.sharing.remove(known);
                self.next.patterns.remove(known.row.workspace_id, known.pattern_bytes());
            }
            let row = rows.remove(&id).unwrap_or_else(|| known.as_ref().map(|known| known.row.clone()));
            if let Some(row) = row {
                let mut stored: BTreeMap<BindingId, BindingRow> =
                    known.iter().flat_map(|known| known.rows()).map(|row| (row.id, row)).collect();
                for (id, row) in bindings.remove(&id).unwrap_or_default() {
                    match row {
                        Some(row) => drop(stored.insert(id, row)),
                        None => drop(stored.remove(&id)),
                    }
                }
                changed.push((row, stored));
            }
        }
        for (row, stored) in changed {
            let bot = self.bot(row, stored);
            self.next.bots_by_name.insert((bot.row.workspace_id, bot.row.name.clone()), bot.row.id);
            self.next.bound.add(&bot);
            self.next.sharing.add(&bot);
            self.next.patterns.add(bot.row.workspace_id, bot.pattern_bytes());
            self.next.bots.insert(bot.row.id, Arc::new(bot));
        }
    }

    fn bot(&self, row: BotRow, stored: BTreeMap<BindingId, BindingRow>) -> Bot {
        let before = self.before.bots.get(&row.id);
        let known: HashMap<BindingId, &Arc<Binding>> =
            before.iter().flat_map(|bot| &bot.bindings).map(|binding| (binding.row.id, binding)).collect();
        let (mut bindings, mut dormant) = (Vec::new(), Vec::new());
        let gates = match bot_gates(&row, before) {
            Ok(gates) => gates,
            Err(error) => {
                tracing::error!(bot.id = %row.id, %error, "a bot has no tools, because its `gates` are unreadable");
                return Bot { row, gates: Gates::unreadable(), bindings, dormant: stored.into_values().collect() };
            }
        };
        for row in stored.into_values() {
            match binding(&row, known.get(&row.id).copied(), &self.next) {
                Some(binding) => bindings.push(binding),
                None => dormant.push(row),
            }
        }
        let sandbox = self.next.sandbox.as_ref();
        bindings.extend(sandbox.and_then(|sandbox| switch::binding(&row, sandbox, &known)));
        Bot { row, gates, bindings, dormant }
    }
}

/// Returns the key of this row with its hash, or `None` if the hash is malformed and therefore matches no key.
fn key_entry(row: &KeyRow, held: Option<&Arc<LastUse>>) -> Option<([u8; 32], Key)> {
    let last_use = held.cloned().unwrap_or_else(|| Arc::new(LastUse::new(row.last_used_at)));
    let (id, kind, workspace) = (row.id, row.kind, row.workspace_id);
    let name = row.name.as_str().into();
    let key = Key { id, kind, name, workspace, bot: row.bot_id, resource: row.resource_id, last_use };
    Some((key_hash(row)?, key))
}

/// Assembles a resource. If this host cannot read the row, logs an error and returns `None`. Bindings to such a
/// resource grant nothing.
fn resource(
    row: ResourceRow,
    plugin: Arc<Plugin>,
    legacy_plugin: Option<PluginName>,
    credential: Option<Arc<HeldCredential>>,
    served_tools: ServedTools,
) -> Option<Resource> {
    let config = row.config.as_object().cloned().unwrap_or_default();
    let config = match config_values(&plugin.manifest.resource_type, config) {
        Ok(values) => values,
        Err(faults) => {
            let id = row.id;
            tracing::warn!(resource.id = %id, ?faults, "a resource is unusable: its configuration is invalid");
            return None;
        }
    };
    let own_dimensions = match own_dimensions(&plugin, &config) {
        Ok(own) => own,
        Err(faults) => {
            let id = row.id;
            tracing::warn!(resource.id = %id, ?faults, "a resource is unusable: its scope dimensions are invalid");
            return None;
        }
    };
    let network = match serde_json::from_value::<NetworkRules>(row.network.clone()) {
        Ok(rules) => Network { allow_addresses: rules.allow_addresses, allow_http: rules.allow_http },
        Err(error) => {
            let id = row.id;
            tracing::error!(resource.id = %id, %error, "a resource is unusable: its network rules are unreadable");
            return None;
        }
    };
    let config_text = serde_json::to_string(&config).expect("a JSON object can be serialized as text");
    let scope = scope(&plugin.manifest, &config, network);
    Some(Resource {
        row,
        plugin,
        legacy_plugin,
        config,
        config_text,
        scope,
        own_dimensions,
        served_tools,
        tools: OnceLock::new(),
        credential,
        is_stored: true,
        credential_source: OnceLock::new(),
    })
}

/// Returns the scope dimensions that the configuration of a resource defines; `None` if its type defines them.
fn own_dimensions(
    plugin: &Plugin,
    config: &Map<String, Value>,
) -> Result<Option<(Vec<ScopeDimension>, DimensionModes)>, Vec<InputError>> {
    if plugin.manifest.resource_type.tool_discovery != ToolDiscovery::Dynamic {
        return Ok(None);
    }
    let own = config_dimensions(config)?;
    let modes = DimensionModes::of(&own);
    Ok(Some((own, modes)))
}

fn scope(manifest: &Manifest, config: &Map<String, Value>, network: Network) -> Scope {
    let (executor, resource_type) = (&manifest.executor, &manifest.resource_type);
    let (methods, api_base) = (&resource_type.auth_methods, resource_type.base_url(config).and_then(Value::as_str));
    Scope {
        api_base: api_base.and_then(|text| text.parse().ok()),
        egress: executor.egress.clone(),
        inject: methods.iter().flat_map(|method| method.inject_rules_for(resource_type, config)).collect(),
        audience: methods.iter().flat_map(|method| method.audience(resource_type, config, executor)).collect(),
        follow_redirects: executor.follow_redirects,
        network,
    }
}

/// Returns the role of this row. Reuses an unchanged role of the previous snapshot.
fn role(row: RoleRow, before: &Snapshot) -> Arc<Role> {
    if let Some(known) = before.roles.get(&row.id).filter(|known| known.row == row) {
        return Arc::clone(known);
    }
    let grant = serde_json::from_value(serde_json::json!({
        "allowed_operations": row.allowed_operations,
        "allowed_tools": row.allowed_tools,
    }));
    let scopes = serde_json::from_value::<ScopeConstraints>(row.scope_constraints.clone());
    let rules = match (grant, scopes, gates(row.gates.as_ref())) {
        (Ok(grant), Ok(scopes), Ok(gates)) => Some(RoleRules::new(&grant, &scopes).with_gates(&gates)),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
            tracing::error!(role.id = %row.id, %error, "a role is unreadable, so its bindings grant nothing");
            None
        }
    };
    Arc::new(Role { pattern_bytes: compiled_bytes(lists_of_role(&row)), row, rules })
}

/// Returns the gates of a bot. Reuses unchanged gates of the previous snapshot.
fn bot_gates(row: &BotRow, before: Option<&Arc<Bot>>) -> Result<Gates, serde_json::Error> {
    let gates = gates(row.gates.as_ref())?;
    let known = before.filter(|known| known.row.gates == row.gates);
    Ok(known.map_or_else(|| Gates::new(&gates), |known| known.gates.clone()))
}

/// Reads the gates of a row.
fn gates(stored: Option<&Value>) -> Result<Vec<Gate>, serde_json::Error> {
    stored.map_or(Ok(Vec::new()), Vec::deserialize)
}

impl Snapshot {
    /// Returns the binding that this row would be if it were saved. Returns `None` if it would grant nothing, because no
    /// plugin serves the type of its resource.
    pub fn drafted(&self, row: &BindingRow) -> Option<Arc<Binding>> {
        binding(row, None, self)
    }
}

/// Assembles a binding. Returns `None` if the binding grants nothing, because no plugin serves the type of its resource
/// or a row is unreadable.
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
        tracing::error!(binding.id = %row.id, %error, "a binding grants nothing, because its {what} is unreadable");
    };
    let mut grants = Vec::new();
    if let Some(permissions) = &row.permissions {
        let grant = serde_json::from_value(permissions.clone());
        grants.push((GrantSource::Permissions, grant.map_err(|error| unreadable("`permissions`", &error)).ok()?));
    }
    let scopes = serde_json::from_value::<ScopeConstraints>(row.scope_constraints.clone());
    let sets = [(SetSource::Binding, scopes.map_err(|error| unreadable("`scope_constraints`", &error)).ok()?)];
    let gates = gates(row.gates.as_ref()).map_err(|error| unreadable("`gates`", &error)).ok()?;
    let mut rules = BindingRules::new(&grants, &sets, resource.dimension_modes()).with_gates(&gates);
    if let Some(role) = role {
        rules = rules.under(role.rules.as_ref()?);
    }
    let allow_calls = serde_json::from_value::<Vec<String>>(row.allow_calls.clone());
    let allow_calls = PatternList::new(allow_calls.map_err(|error| unreadable("`allow_calls`", &error)).ok()?);
    let link = row.delegate.clone().map_or(Ok(Delegation::default()), serde_json::from_value);
    let link = DelegationRules::shared(&link.map_err(|error| unreadable("`delegate`", &error)).ok()?);
    let (role, resource) = (role.cloned(), Arc::clone(resource));
    let pattern_bytes = compiled_bytes(lists_of_binding(row));
    Some(Arc::new(Binding { row: PackedBinding::of(row), role, rules, allow_calls, link, resource, pattern_bytes }))
}

#[cfg(test)]
mod tests;
