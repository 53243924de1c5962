//! What is in force: keys, bots, bindings and plugins, in one immutable snapshot behind one atomic swap.
//!
//! A call takes the snapshot once and judges by it to the end, so it never sees half of a change. When a snapshot
//! cannot be renewed after a change, the old one is not trusted any more: no call runs until it is renewed.
//!
//! A snapshot is assembled, not compiled: patterns and schemas that a tenant writes are compiled when a decision first
//! needs them. So a revocation never waits behind another tenant's patterns, and neither does a start. What did not
//! change is taken over from the snapshot before, with everything compiled in it.

pub mod api_key;
mod assemble;
pub mod key_uses;
pub mod pattern_limits;
pub mod row_seals;
mod sharing;
mod switch;
pub mod verification;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use monstrum_egress::Scope;
use monstrum_guardian::{BindingRules, DelegationRules, PatternList, RoleRules};
use monstrum_manifest::{ConfiguredTool, MatchMode, configured_tools, is_own_tool};
use monstrum_store::{BindingRow, BotRow, KeyKind, KeyRow, ResourceRow, RoleRow, Store, StoreError};
use monstrum_types::{
    BindingId, BotId, Effort, KeyId, Overrun, PluginName, ResourceId, ResourceTypeId, RoleId, ToolName, UtcMillis,
    WorkspaceId,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::beside::FreedBeside;
use crate::credentials::{HeldCredential, Issuer, Refresher, ResourceCredential, ServedResource};
use crate::fair_queue::Share;
use crate::plugins::owners::Owners;
use crate::plugins::{Plugin, Plugins, Tool, built_in};
use crate::policy::key_uses::LastUse;
use crate::policy::sharing::Sharing;
use crate::policy::verification::{Told, Verification};

/// Steps to compile the tools that a resource has of its own, whatever its configuration: never done in place.
const TOOLS_STEPS: u64 = 1 << 16;
/// Steps for each byte of the configuration, which names the tools.
const TOOLS_STEPS_PER_BYTE: u64 = 512;

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

/// A role, shared by all bindings to it.
pub struct Role {
    pub row: RoleRow,
    /// What its patterns take at most once they are compiled.
    pattern_bytes: u64,
    /// None where the stored lists are unreadable: its bindings grant nothing.
    pub rules: Option<RoleRules>,
}

/// A resource bound to a bot, with the rules for the plugin that serves its type.
pub struct Binding {
    pub row: BindingRow,
    pub role: Option<Arc<Role>>,
    pub rules: BindingRules,
    /// The tools of other plugins that the resource's plugin may call.
    pub allow_calls: PatternList,
    /// What a bot that is called through this binding may do; without `delegate` it is not narrowed.
    pub link: Arc<DelegationRules>,
    pub resource: Arc<Resource>,
    /// What its own patterns take at most once they are compiled.
    pattern_bytes: u64,
}

impl Binding {
    /// Whether it counts at `now`.
    pub fn is_active(&self, now: UtcMillis) -> bool {
        self.row.enabled && self.row.expires_at.is_none_or(|end| now < end)
    }

    /// Whether making it of these gives the same again.
    fn is_made_of(&self, row: &BindingRow, role: Option<&Arc<Role>>, resource: &Arc<Resource>) -> bool {
        self.row == *row && is_same(self.role.as_ref(), role) && Arc::ptr_eq(&self.resource, resource)
    }

    /// Whether it permits the plugin of its resource to call `tool`.
    pub fn allows_call(&self, tool: &str, effort: &Effort) -> Result<bool, Overrun> {
        self.allow_calls.matches(MatchMode::Pattern, tool, effort)
    }
}

fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// An instance of a resource type whose plugin serves.
pub struct Resource {
    pub row: ResourceRow,
    pub plugin: Arc<Plugin>,
    /// The plugin for which credentials of this type were given that name none.
    pub legacy_plugin: Option<PluginName>,
    /// With the manifest's defaults filled in.
    pub config: Map<String, Value>,
    /// The same as JSON, as plugins get it.
    pub config_text: String,
    /// What its calls may reach.
    pub scope: Scope,
    /// See [`Resource::tools`].
    tools: OnceLock<Vec<Arc<Tool>>>,
    pub credential: Option<Arc<HeldCredential>>,
    /// Whether there is a row of it; a switch of a bot grants what has none.
    is_stored: bool,
    credential_source: OnceLock<Arc<ResourceCredential>>,
}

impl Resource {
    /// Whether making it of these gives the same again. Its tools' schemas and its credential are costly to open anew
    /// with every change of anything.
    fn is_made_of(&self, row: &ResourceRow, plugin: &Arc<Plugin>, credential: Option<&Arc<HeldCredential>>) -> bool {
        let is_same_credential = is_same(self.credential.as_ref(), credential);
        is_same_credential && self.row == *row && Arc::ptr_eq(&self.plugin, plugin)
    }

    /// The id by which others know it; `None` where there is no row that they could ask for.
    pub fn stored_id(&self) -> Option<ResourceId> {
        self.is_stored.then_some(self.row.id)
    }

    /// Its own tools, beside those of its type. The first question compiles their schemas. If one of them does not
    /// compile, there are none.
    pub fn tools(&self, effort: &Effort) -> Result<&[Arc<Tool>], Overrun> {
        if self.tools.get().is_none() {
            effort.spend(TOOLS_STEPS + TOOLS_STEPS_PER_BYTE * self.config_text.len() as u64)?;
        }
        Ok(self.tools.get_or_init(|| {
            self.compile_tools().unwrap_or_else(|why| {
                tracing::error!(resource.id = %self.row.id, why, "a stored tool is not valid; the resource has no tools of its own");
                Vec::new()
            })
        }))
    }

    /// One of its own tools.
    pub fn tool(&self, name: &ToolName, effort: &Effort) -> Result<Option<&Arc<Tool>>, Overrun> {
        // Other tools are none of its own, so their names compile nothing.
        if !is_own_tool(&self.row.name, name) {
            return Ok(None);
        }
        Ok(self.tools(effort)?.iter().find(|tool| tool.manifest.name == *name))
    }

    fn compile_tools(&self) -> Result<Vec<Arc<Tool>>, String> {
        let resource_type = &self.plugin.manifest.resource_type;
        let configured = configured_tools(resource_type, &self.row.name, &self.config);
        let configured = configured.map_err(|faults| format!("{faults:?}"))?;
        configured
            .into_iter()
            .map(|ConfiguredTool { tool, own_name }| {
                let compiled = Tool::compile(tool, own_name, &resource_type.scope_dimensions);
                compiled.map(Arc::new).map_err(|(field, why)| format!("{field}: {why}"))
            })
            .collect()
    }

    /// The credential as egress takes it, opened on first use.
    pub fn credential_source(&self) -> &Arc<ResourceCredential> {
        self.credential_source.get_or_init(|| {
            let served = ServedResource {
                row: &self.row,
                manifest: &self.plugin.manifest,
                config: &self.config,
                network: &self.scope.network,
                legacy_plugin: self.legacy_plugin.as_ref(),
            };
            Arc::new(ResourceCredential::of(served, self.credential.as_deref()))
        })
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
    /// Whether the rows are those that were sealed.
    pub verification: Verification,
    keys: HashMap<[u8; 32], Key>,
    key_hashes: HashMap<KeyId, [u8; 32]>,
    workspaces: HashMap<String, WorkspaceId>,
    default_workspace: Option<WorkspaceId>,
    bots: HashMap<BotId, Arc<Bot>>,
    bots_by_name: HashMap<(WorkspaceId, String), BotId>,
    roles: HashMap<RoleId, Arc<Role>>,
    resources: HashMap<ResourceId, Arc<Resource>>,
    /// Who issues the tokens of a type in a workspace.
    issuers: HashMap<(WorkspaceId, ResourceTypeId), Issuer>,
    types: HashMap<ResourceTypeId, Arc<Plugin>>,
    tools: HashMap<ToolName, (Arc<Plugin>, Arc<Tool>)>,
    sharing: Sharing,
    owners: Owners,
    /// What the patterns of each workspace take at most once they are compiled.
    pattern_bytes: HashMap<WorkspaceId, u64>,
}

impl Snapshot {
    /// What the patterns of a workspace take at most once they are compiled.
    pub fn pattern_bytes(&self, workspace: WorkspaceId) -> u64 {
        self.pattern_bytes.get(&workspace).copied().unwrap_or_default()
    }

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

    /// When each key was last used, as far as this host knows.
    pub fn key_uses(&self) -> impl Iterator<Item = (Option<WorkspaceId>, KeyId, &LastUse)> {
        self.keys().map(|key| (key.workspace, key.id, key.last_use.as_ref()))
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

    /// The workspace in which a root key acts when it names none; `None` where its row is not authentic.
    pub fn known_default_workspace(&self) -> Option<WorkspaceId> {
        self.default_workspace
    }

    /// The workspace in which a root key acts when it names none.
    pub fn default_workspace(&self) -> WorkspaceId {
        self.default_workspace.expect("the workspace `default` is made together with the database")
    }

    /// The bindings of this workspace that have a role.
    pub fn bindings_of_role(&self, workspace: WorkspaceId, role: RoleId) -> impl Iterator<Item = &Arc<Binding>> {
        let bots = self.bots.values().filter(move |bot| bot.row.workspace_id == workspace);
        bots.flat_map(|bot| &bot.bindings).filter(move |binding| binding.row.role_id == Some(role))
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

    /// Which plugin each type and tool belongs to.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// A tool that a manifest declares, and the plugin that serves it.
    pub fn tool(&self, name: &ToolName) -> Option<&(Arc<Plugin>, Arc<Tool>)> {
        self.tools.get(name)
    }

    /// What `workspace` may hold of the room of a plugin.
    pub fn share_of_plugin(&self, plugin: &PluginName, workspace: WorkspaceId) -> Share {
        self.sharing.of_plugin(plugin, workspace)
    }

    /// What `workspace` may hold of the room of the host.
    pub fn share_of_host(&self, workspace: WorkspaceId) -> Share {
        self.sharing.of_host(workspace)
    }
}

/// The present snapshot and how it is renewed.
pub struct Policy {
    snapshot: ArcSwap<Snapshot>,
    store: Store,
    refresher: Arc<Refresher>,
    plugins: Arc<Plugins>,
    stale: AtomicBool,
    told: Told,
    /// Told of each new snapshot.
    renewals: tokio::sync::watch::Sender<()>,
    /// How many renewals have been asked for.
    asked: AtomicU64,
    /// One renewal at a time, so that an older read never replaces a newer one. Of those that were asked for, this many
    /// are done.
    renewing: tokio::sync::Mutex<u64>,
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
            told: Told::default(),
            renewals: tokio::sync::watch::Sender::new(()),
            asked: AtomicU64::new(0),
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

    /// Puts in force what the database and the plugins say now. Call it after every change. Calls go on by the old
    /// snapshot until the new one is there; if it cannot be made, they stop.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let turn = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut done = self.renewing.lock().await;
        if *done >= turn {
            // A renewal that began after this change has put it in force.
            return Ok(());
        }
        let asked = self.asked.load(Ordering::Acquire);
        match self.assemble().await {
            Ok(snapshot) => {
                self.told.tell(&self.store, &snapshot.verification);
                let before = self.snapshot.swap(Arc::new(snapshot));
                // As a rule this is the last one who has it, and it may be large.
                drop(FreedBeside::new(before, true));
                self.renewals.send_replace(());
                self.stale.store(false, Ordering::Release);
                *done = asked;
                Ok(())
            }
            Err(error) => {
                self.stale.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Reads everything and assembles it on a thread that may compute for as long as it takes.
    async fn assemble(&self) -> Result<Snapshot, StoreError> {
        let rows = self.store.snapshot().await?;
        let (serving, refresher, before) = (self.plugins.serving(), Arc::clone(&self.refresher), self.load());
        let assembled =
            tokio::task::spawn_blocking(move || assemble::snapshot(rows, &serving, &refresher, &before)).await;
        assembled.map_err(|error| StoreError::Unavailable {
            what: "the policy could not be assembled".to_owned(),
            source: Box::new(error),
        })
    }

    /// Renews the snapshot if a change was not taken over: its handler was dropped half-way, or another process made it.
    pub async fn renew_if_behind(&self) -> Result<(), StoreError> {
        let generation = self.store.generation().await;
        let generation = generation.inspect_err(|_| self.stale.store(true, Ordering::Release))?;
        if self.is_stale() || generation != self.load().generation {
            self.renew().await?;
        }
        // Rows that were refused where one was read by itself.
        self.told.tell(&self.store, &self.load().verification);
        Ok(())
    }

    /// Renews the snapshot if any seal is not the one that it was judged by. The generation of `settings` is not under a MAC,
    /// so a host does not rely on it alone.
    pub async fn renew_if_seals_differ(&self) -> Result<(), StoreError> {
        if !self.load().verification.is_of(&self.store.seal_generations().await?) {
            self.renew().await?;
        }
        Ok(())
    }
}

fn key_hash(row: &KeyRow) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(&row.hash, &mut hash).ok()?;
    Some(hash)
}
