//! What is in force: keys, bots, bindings and plugins, compiled into one immutable snapshot behind one atomic swap.
//!
//! A call takes the snapshot once and judges by it to the end, so it never sees half of a change. When a snapshot
//! cannot be renewed after a change, the old one is not trusted any more: no call runs until it is renewed.

mod switch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use monstrum_egress::{Network, Scope};
use monstrum_guardian::{
    BindingRules, Delegation, DelegationRules, GrantSource, PatternSet, ScopeConstraints, SetSource,
};
use monstrum_manifest::{AuthMethod, CheckedConfig, ConfiguredTool, Manifest, MatchMode, check_config};
use monstrum_store::{BindingRow, BotRow, KeyKind, KeyRow, PolicyRows, ResourceRow, RoleRow, Store, StoreError};
use monstrum_types::{BindingId, BotId, KeyId, ResourceId, ResourceTypeId, RoleId, ToolName, UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::credentials::{HeldCredential, Issuer, Refresher, ResourceCredential};
use crate::key_uses::LastUse;
use crate::plugins::{Plugin, Plugins, Tool, built_in};

/// A key that exists.
#[derive(Clone, Debug)]
pub struct Key {
    pub id: KeyId,
    pub kind: KeyKind,
    /// `None` for a root key.
    pub workspace: Option<WorkspaceId>,
    pub bot: Option<BotId>,
    /// Outlives the snapshot.
    pub last_use: Arc<LastUse>,
}

impl Key {
    /// Whether it may do what an admin of the workspace may.
    pub fn administers(&self, workspace: WorkspaceId) -> bool {
        match self.kind {
            KeyKind::Root => true,
            KeyKind::Admin => self.workspace == Some(workspace),
            KeyKind::Operator | KeyKind::Bot => false,
        }
    }
}

/// A bot and what it may use.
pub struct Bot {
    pub row: BotRow,
    pub bindings: Vec<Arc<Binding>>,
    /// Bindings that grant nothing because their plugin does not serve at present, or for what cannot be read.
    pub dormant: Vec<BindingRow>,
}

impl Bot {
    /// One of its bindings, if it counts at `now`.
    pub fn binding(&self, id: BindingId, now: UtcMillis) -> Option<&Arc<Binding>> {
        self.bindings.iter().find(|binding| binding.row.id == id && binding.is_active(now))
    }
}

/// A resource bound to a bot, with the rules compiled against the plugin that serves its type.
pub struct Binding {
    pub row: BindingRow,
    pub rules: BindingRules,
    /// The tools of other plugins that the resource's plugin may call.
    pub allow_calls: PatternSet,
    /// What a bot that is called through this binding may do; without `delegate` it is not narrowed.
    pub link: Arc<DelegationRules>,
    pub resource: Arc<Resource>,
}

impl Binding {
    /// Whether it counts at `now`.
    pub fn is_active(&self, now: UtcMillis) -> bool {
        self.row.enabled && self.row.expires_at.is_none_or(|end| now < end)
    }
}

/// An instance of a resource type whose plugin serves.
pub struct Resource {
    pub row: ResourceRow,
    pub plugin: Arc<Plugin>,
    /// With the manifest's defaults filled in.
    pub config: Map<String, Value>,
    /// The same as JSON, as plugins get it.
    pub config_text: String,
    /// What its calls may reach.
    pub scope: Scope,
    /// Its own tools, beside those of its type.
    pub tools: Vec<Arc<Tool>>,
    pub credential: Option<Arc<HeldCredential>>,
    /// Whether there is a row of it; a switch of a bot grants what has none.
    is_stored: bool,
    door: OnceLock<Arc<ResourceCredential>>,
}

impl Resource {
    /// Whether making it of these gives the same again. Its tools' schemas and its credential are costly to open anew
    /// with every change of anything.
    fn is_made_of(&self, row: &ResourceRow, plugin: &Arc<Plugin>, credential: Option<&Arc<HeldCredential>>) -> bool {
        let same_credential = match (&self.credential, credential) {
            (Some(held), Some(now)) => Arc::ptr_eq(held, now),
            (None, None) => true,
            _ => false,
        };
        same_credential && self.row == *row && Arc::ptr_eq(&self.plugin, plugin)
    }

    /// The id by which others know it; `None` where there is no row that they could ask for.
    pub fn stored_id(&self) -> Option<ResourceId> {
        self.is_stored.then_some(self.row.id)
    }

    /// One of its own tools.
    pub fn tool(&self, name: &ToolName) -> Option<&Arc<Tool>> {
        self.tools.iter().find(|tool| tool.manifest.name == *name)
    }

    /// The credential as egress takes it, opened on first use.
    pub fn credential_source(&self) -> &Arc<ResourceCredential> {
        self.door.get_or_init(|| Arc::new(ResourceCredential::of(self)))
    }
}

/// What an operator opens for a resource beyond public https.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRules {
    /// Address ranges (CIDR) that may be connected to although they are not public.
    #[schema(value_type = Vec<String>)]
    pub allow_addresses: Vec<IpNet>,
    /// Whether `http://` may be used; loopback is no exception.
    pub allow_http: bool,
}

/// Everything in force at one moment.
#[derive(Default)]
pub struct Snapshot {
    pub generation: i64,
    keys: HashMap<[u8; 32], Key>,
    key_hashes: HashMap<KeyId, [u8; 32]>,
    workspaces: HashMap<String, WorkspaceId>,
    default_workspace: Option<WorkspaceId>,
    bots: HashMap<BotId, Arc<Bot>>,
    bots_by_name: HashMap<(WorkspaceId, String), BotId>,
    resources: HashMap<ResourceId, Arc<Resource>>,
    /// Who issues the tokens of a type in a workspace.
    issuers: HashMap<(WorkspaceId, ResourceTypeId), Issuer>,
    types: HashMap<ResourceTypeId, Arc<Plugin>>,
    tools: HashMap<ToolName, (Arc<Plugin>, Arc<Tool>)>,
}

impl Snapshot {
    /// The key with this SHA-256.
    pub fn key(&self, hash: &[u8; 32]) -> Option<&Key> {
        self.keys.get(hash)
    }

    /// What a key is at present; another once it was rotated, nothing once it is gone.
    pub fn key_hash(&self, id: KeyId) -> Option<&[u8; 32]> {
        self.key_hashes.get(&id)
    }

    /// Every key.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.values()
    }

    /// When this key was last used, as far as this host knows.
    pub fn last_use(&self, row: &KeyRow) -> Option<UtcMillis> {
        let noted = key_hash(row).and_then(|hash| self.key(&hash)?.last_use.at());
        noted.max(row.last_used_at)
    }

    /// The workspace of this name or id.
    pub fn workspace(&self, name_or_id: &str) -> Option<WorkspaceId> {
        self.workspaces.get(name_or_id).copied()
    }

    /// The workspace in which a root key acts when it names none.
    pub fn default_workspace(&self) -> WorkspaceId {
        self.default_workspace.expect("the store makes the default workspace when it is opened")
    }

    /// A bot of this workspace.
    pub fn bot(&self, workspace: WorkspaceId, id: BotId) -> Option<&Arc<Bot>> {
        self.bots.get(&id).filter(|bot| bot.row.workspace_id == workspace)
    }

    /// The bot that a resource of the built-in type stands for.
    pub fn bot_behind(&self, resource: &Resource) -> Option<&Arc<Bot>> {
        if resource.row.resource_type.as_str() != built_in::BOT {
            return None;
        }
        // By its id alone: a name may come to mean another bot.
        let id = resource.config.get(built_in::BOT)?.as_str()?.parse().ok()?;
        self.bot(resource.row.workspace_id, id)
    }

    /// The bot of this workspace with this id or name.
    pub fn bot_called(&self, workspace: WorkspaceId, id_or_name: &str) -> Option<&Arc<Bot>> {
        let by_id = id_or_name.parse().ok().and_then(|id| self.bot(workspace, id));
        by_id.or_else(|| self.bot(workspace, *self.bots_by_name.get(&(workspace, id_or_name.to_owned()))?))
    }

    /// A resource of this workspace whose plugin serves.
    pub fn resource(&self, workspace: WorkspaceId, id: ResourceId) -> Option<&Arc<Resource>> {
        self.resources.get(&id).filter(|resource| resource.row.workspace_id == workspace)
    }

    /// Every resource whose plugin serves.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// Who issues the tokens for a resource at present.
    pub fn issuer(&self, resource: &ResourceRow) -> Option<&Issuer> {
        self.issuers.get(&(resource.workspace_id, resource.resource_type.clone()))
    }

    /// A key, whatever its text is at present.
    pub fn key_of_id(&self, id: KeyId) -> Option<&Key> {
        self.key_hash(id).and_then(|hash| self.key(hash))
    }

    /// The plugin that serves a resource type.
    pub fn resource_type(&self, id: &ResourceTypeId) -> Option<&Arc<Plugin>> {
        self.types.get(id)
    }

    /// Every plugin that serves, by the id of its type.
    pub fn resource_types(&self) -> Vec<&Arc<Plugin>> {
        let mut plugins: Vec<_> = self.types.values().collect();
        plugins.sort_by(|a, b| a.manifest.resource_type.id.cmp(&b.manifest.resource_type.id));
        plugins
    }

    /// A tool that a manifest declares, and the plugin that serves it.
    pub fn tool(&self, name: &ToolName) -> Option<&(Arc<Plugin>, Arc<Tool>)> {
        self.tools.get(name)
    }
}

/// The present snapshot and how it is renewed.
pub struct Policy {
    snapshot: ArcSwap<Snapshot>,
    store: Store,
    refresher: Arc<Refresher>,
    plugins: Arc<Plugins>,
    stale: AtomicBool,
    /// Told of each new snapshot.
    renewals: tokio::sync::watch::Sender<()>,
    /// One renewal at a time, so that an older read never replaces a newer one.
    renewing: tokio::sync::Mutex<()>,
}

impl Policy {
    /// Reads and compiles the first snapshot.
    pub async fn open(store: Store, refresher: Arc<Refresher>, plugins: Arc<Plugins>) -> Result<Policy, StoreError> {
        let policy = Policy {
            snapshot: ArcSwap::default(),
            store,
            refresher,
            plugins,
            stale: AtomicBool::new(true),
            renewals: tokio::sync::watch::Sender::new(()),
            renewing: tokio::sync::Mutex::default(),
        };
        policy.renew().await?;
        Ok(policy)
    }

    /// The present snapshot.
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Tells of each snapshot that comes into force from now on.
    pub fn renewals(&self) -> tokio::sync::watch::Receiver<()> {
        self.renewals.subscribe()
    }

    /// Whether the snapshot may lag behind the database.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Compiles what the database and the plugins say now and puts it in force. Call it after every change. Calls go on
    /// by the old snapshot until the new one is there; if it cannot be made, they stop.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.renewing.lock().await;
        let renewed = self.store.snapshot().await.map(|rows| {
            let compiled = compile(rows, &self.plugins, &self.refresher, &self.load());
            self.snapshot.store(Arc::new(compiled));
            self.renewals.send_replace(());
        });
        self.stale.store(renewed.is_err(), Ordering::Release);
        renewed
    }

    /// Renews the snapshot if a change was not taken over: its handler was dropped half-way, or another process made it.
    pub async fn renew_if_behind(&self) -> Result<(), StoreError> {
        let generation = self.store.generation().await;
        let generation = generation.inspect_err(|_| self.stale.store(true, Ordering::Release))?;
        if self.is_stale() || generation != self.load().generation {
            self.renew().await?;
        }
        Ok(())
    }
}

fn compile(rows: PolicyRows, plugins: &Plugins, refresher: &Arc<Refresher>, before: &Snapshot) -> Snapshot {
    let mut snapshot = Snapshot { generation: rows.generation, ..Snapshot::default() };
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
    let mut sandbox = None;
    for plugin in plugins.serving() {
        if plugin.name.as_str() == built_in::SANDBOX {
            // No type of which there could be resources: its one grant is the switch of a bot.
            sandbox = Some(Arc::clone(&plugin));
        } else {
            snapshot.types.insert(plugin.manifest.resource_type.id.clone(), Arc::clone(&plugin));
        }
        for tool in &plugin.tools {
            snapshot.tools.insert(tool.manifest.name.clone(), (Arc::clone(&plugin), Arc::clone(tool)));
        }
    }
    snapshot.issuers = rows
        .oauth_providers
        .iter()
        .map(|row| ((row.workspace_id, row.resource_type.clone()), Issuer::of(row)))
        .collect();
    let mut credentials: HashMap<ResourceId, _> =
        rows.credentials.into_iter().map(|credential| (credential.resource_id, credential)).collect();
    for row in rows.resources {
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
        if let Some(resource) = compile_resource(row, plugin, credential) {
            snapshot.resources.insert(resource.row.id, Arc::new(resource));
        }
    }
    let roles: HashMap<RoleId, RoleRow> = rows.roles.into_iter().map(|role| (role.id, role)).collect();
    let mut bindings: HashMap<BotId, (Vec<Arc<Binding>>, Vec<BindingRow>)> = HashMap::new();
    for row in rows.bindings {
        let (active, dormant) = bindings.entry(row.bot_id).or_default();
        // A binding of a resource whose plugin does not serve grants nothing.
        let resource = snapshot.resources.get(&row.resource_id);
        match resource.and_then(|resource| compile_binding(row.clone(), &roles, resource)) {
            Some(binding) => active.push(Arc::new(binding)),
            None => dormant.push(row),
        }
    }
    for row in rows.bots {
        let (mut bindings, dormant) = bindings.remove(&row.id).unwrap_or_default();
        bindings.extend(sandbox.as_ref().and_then(|sandbox| switch::binding(&row, sandbox)).map(Arc::new));
        snapshot.bots_by_name.insert((row.workspace_id, row.name.clone()), row.id);
        snapshot.bots.insert(row.id, Arc::new(Bot { row, bindings, dormant }));
    }
    snapshot
}

/// `None` for a hash that is none: nobody holds that key.
fn key_entry(row: &KeyRow, held: Option<&Arc<LastUse>>) -> Option<([u8; 32], Key)> {
    let last_use = held.cloned().unwrap_or_else(|| Arc::new(LastUse::new(row.last_used_at)));
    let key = Key { id: row.id, kind: row.kind, workspace: row.workspace_id, bot: row.bot_id, last_use };
    Some((key_hash(row)?, key))
}

fn key_hash(row: &KeyRow) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(&row.hash, &mut hash).ok()?;
    Some(hash)
}

/// `None`, with a line in the log, for a row that this host cannot read: it then permits nothing.
fn compile_resource(
    row: ResourceRow,
    plugin: Arc<Plugin>,
    credential: Option<Arc<HeldCredential>>,
) -> Option<Resource> {
    let resource_type = &plugin.manifest.resource_type;
    let config = row.config.as_object().cloned().unwrap_or_default();
    let CheckedConfig { values: config, tools } = match check_config(resource_type, &row.name, config) {
        Ok(checked) => checked,
        Err(faults) => {
            tracing::warn!(resource.id = %row.id, ?faults, "the configuration does not fit its type; nothing may use it");
            return None;
        }
    };
    let network = match serde_json::from_value::<NetworkRules>(row.network.clone()) {
        Ok(rules) => Network { allow_addresses: rules.allow_addresses, allow_http: rules.allow_http },
        Err(error) => {
            tracing::error!(resource.id = %row.id, %error, "the stored network rules are unreadable; nothing may use it");
            return None;
        }
    };
    let mut compiled = Vec::with_capacity(tools.len());
    for ConfiguredTool { tool, own_name } in tools {
        match Tool::compile(tool, own_name, &resource_type.scope_dimensions) {
            Ok(tool) => compiled.push(Arc::new(tool)),
            Err((field, why)) => {
                tracing::error!(resource.id = %row.id, field, why, "a stored tool does not compile; nothing may use it");
                return None;
            }
        }
    }
    let config_text = serde_json::to_string(&config).expect("a JSON object has a text");
    let scope = scope(&plugin.manifest, &config, network);
    let (tools, door) = (compiled, OnceLock::new());
    Some(Resource { row, plugin, config, config_text, scope, tools, credential, is_stored: true, door })
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

fn compile_binding(row: BindingRow, roles: &HashMap<RoleId, RoleRow>, resource: &Arc<Resource>) -> Option<Binding> {
    let unreadable = |what: &str, error: &dyn std::fmt::Display| {
        tracing::error!(binding.id = %row.id, %error, "the stored {what} are unreadable; the binding grants nothing");
    };
    let mut grants = Vec::new();
    let mut sets = Vec::new();
    if let Some(role) = row.role_id {
        let role = roles.get(&role)?;
        let grant = serde_json::from_value(serde_json::json!({
            "allowed_operations": role.allowed_operations,
            "allowed_tools": role.allowed_tools,
        }));
        grants.push((GrantSource::Role, grant.map_err(|error| unreadable("role's lists", &error)).ok()?));
        sets.push((SetSource::Role, constraints(&role.scope_constraints, |error| unreadable("role's scopes", error))?));
    }
    if let Some(permissions) = &row.permissions {
        let grant = serde_json::from_value(permissions.clone());
        grants.push((GrantSource::Permissions, grant.map_err(|error| unreadable("permissions", &error)).ok()?));
    }
    sets.push((SetSource::Binding, constraints(&row.scope_constraints, |error| unreadable("scopes", error))?));
    let dimensions = &resource.plugin.manifest.resource_type.scope_dimensions;
    let rules = BindingRules::new(&grants, &sets, dimensions);
    let allow_calls = serde_json::from_value::<Vec<String>>(row.allow_calls.clone());
    let allow_calls = allow_calls.map_err(|error| unreadable("allowed calls", &error)).ok()?;
    let allow_calls = PatternSet::new(MatchMode::Pattern, allow_calls);
    let link = row.delegate.clone().map_or(Ok(Delegation::default()), serde_json::from_value);
    let link = link.map_err(|error| unreadable("delegation", &error)).ok()?;
    let link = Arc::new(DelegationRules::new(&link));
    Some(Binding { row, rules, allow_calls, link, resource: Arc::clone(resource) })
}

fn constraints(value: &Value, unreadable: impl Fn(&serde_json::Error)) -> Option<ScopeConstraints> {
    serde_json::from_value(value.clone()).map_err(|error| unreadable(&error)).ok()
}
