//! The policy in force: keys, bots, bindings and plugins, in one immutable snapshot behind one atomic swap.
//!
//! A call loads the snapshot once and uses it until the call ends, so the call never sees a part of a change. If the
//! renewal of the snapshot fails after a change, the old snapshot is stale: no new call runs until a renewal succeeds.
//!
//! The assembly of a snapshot compiles no patterns and schemas. They are compiled when a decision first needs them, so
//! neither a revocation nor a start waits for the patterns of other tenants. A new snapshot reuses the unchanged
//! objects of the previous snapshot, together with their compiled patterns and schemas.

pub mod api_key;
mod assemble;
mod binding;
mod bound;
mod budgets;
mod grants;
pub mod key_uses;
mod of_workspaces;
pub mod pattern_limits;
mod presence;
mod remote_tools;
mod resource;
pub mod row_seals;
mod sharing;
mod subscriptions;
mod switch;
mod triggers;
mod user_credentials;
pub mod verification;
mod webhooks;

pub use binding::{Binding, PackedBinding};
pub use budgets::Budgets;
pub use grants::Grants;
pub use remote_tools::ServedTools;
pub use resource::{NetworkRules, Resource};
pub use subscriptions::{Subscription, Subscriptions};
pub use triggers::{Trigger, Triggers};
pub use user_credentials::UserCredential;
pub use webhooks::Webhooks;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use monstrum_guardian::{Gates, RoleRules, match_glob};
use monstrum_store::{BindingRow, BotRow, KeyKind, KeyRow, ResourceRow, RoleRow, Store, StoreError, VerifiedPolicy};
use monstrum_types::{
    BindingId, BotId, CredentialId, KeyId, PluginName, ResourceId, ResourceTypeId, RoleId, ToolName, UtcMillis,
    WorkspaceId,
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::beside::FreedBeside;
use crate::call_types::incoming::TokenUser;
use crate::credentials::{Issuer, Refresher};
use crate::fair_queue::Share;
use crate::plugins::owners::Owners;
use crate::plugins::{Plugin, Plugins, Tool, built_in};
use crate::policy::bound::Bound;
use crate::policy::key_uses::LastUse;
use crate::policy::pattern_limits::{PatternBytes, compiled_bytes, lists_of_binding, lists_of_bot};
use crate::policy::presence::Presence;
use crate::policy::remote_tools::RemoteTools;
use crate::policy::sharing::Sharing;
use crate::policy::user_credentials::UserCredentials;
use crate::policy::verification::{Reported, Verification};

/// The minimum time for which the names of changed rows are kept. A host reads them at a much shorter interval.
const CHANGES_KEPT: Duration = Duration::from_secs(3_600);

/// An API key.
#[derive(Clone, Debug)]
pub struct Key {
    pub id: KeyId,
    pub kind: KeyKind,
    pub name: Arc<str>,
    /// The workspace of the key, or `None` for a root key.
    pub workspace: Option<WorkspaceId>,
    pub bot: Option<BotId>,
    /// The resource of an agent key.
    pub resource: Option<ResourceId>,
    /// The last use of the key, which successive snapshots share.
    pub last_use: Arc<LastUse>,
}

impl Key {
    /// Returns whether the key has the rights of an admin of the workspace.
    pub fn administers(&self, workspace: WorkspaceId) -> bool {
        match self.kind {
            KeyKind::Root => true,
            KeyKind::Admin => self.workspace == Some(workspace),
            KeyKind::Operator | KeyKind::Approver | KeyKind::Bot | KeyKind::Agent => false,
        }
    }
}

/// A bot and its bindings.
pub struct Bot {
    pub row: BotRow,
    /// The gates of the bot. If they are unreadable, they deny every call, and all bindings are dormant.
    pub gates: Gates,
    pub bindings: Vec<Arc<Binding>>,
    /// The bindings that grant nothing, because no plugin serves the type of their resource or a row is unreadable.
    pub dormant: Vec<BindingRow>,
}

impl Bot {
    /// Returns whether users of access tokens with this subject may use the bot.
    pub fn admits(&self, subject: &str) -> bool {
        let patterns = self.row.mcp_subjects.as_ref().and_then(Value::as_array).into_iter().flatten();
        patterns.filter_map(Value::as_str).any(|pattern| match_glob(subject, pattern))
    }

    /// Returns whether a binding of the bot has this role.
    pub fn has_role(&self, role: RoleId) -> bool {
        self.bindings.iter().any(|binding| binding.row.role_id == Some(role))
            || self.dormant.iter().any(|binding| binding.role_id == Some(role))
    }

    /// Returns whether an active binding of the bot grants it this resource.
    pub fn is_bound_to(&self, resource: ResourceId, now: UtcMillis) -> bool {
        self.bindings.iter().any(|binding| binding.row.resource_id == resource && binding.is_active(now))
    }

    /// Returns the binding with this id if it belongs to the bot and is active at `now`.
    pub fn binding(&self, id: BindingId, now: UtcMillis) -> Option<&Arc<Binding>> {
        self.bindings.iter().find(|binding| binding.row.id == id && binding.is_active(now))
    }

    /// Returns the bindings of the bot that grant something and have a row. The binding that the bot's switch grants has
    /// no row.
    fn stored_bindings(&self) -> impl Iterator<Item = &PackedBinding> {
        self.bindings.iter().filter(|binding| binding.resource.is_stored).map(|binding| &binding.row)
    }

    /// Returns the rows of all bindings of the bot.
    fn rows(&self) -> impl Iterator<Item = BindingRow> {
        self.stored_bindings().map(PackedBinding::unpacked).chain(self.dormant.iter().cloned())
    }

    /// Returns the ids of all bindings of the bot, of their resources and of their roles.
    fn references(&self) -> impl Iterator<Item = (BindingId, ResourceId, Option<RoleId>)> {
        let bound = self.stored_bindings().map(|row| (row.id, row.resource_id, row.role_id));
        bound.chain(self.dormant.iter().map(|row| (row.id, row.resource_id, row.role_id)))
    }

    /// Returns the maximum memory, in bytes, of the compiled patterns of the bot's gates and bindings. The sum includes
    /// dormant bindings, because a plugin may later serve the type of their resource.
    fn pattern_bytes(&self) -> u64 {
        let bound = self.bindings.iter().map(|binding| binding.pattern_bytes);
        let dormant = self.dormant.iter().map(|row| compiled_bytes(lists_of_binding(row)));
        let of_gates = compiled_bytes(lists_of_bot(&self.row));
        bound.chain(dormant).fold(of_gates, u64::saturating_add)
    }
}

/// A role, shared by all bindings to it.
pub struct Role {
    pub row: RoleRow,
    /// The maximum memory of the role's compiled patterns, in bytes.
    pattern_bytes: u64,
    /// The rules of the role, or `None` if the stored lists are unreadable. Bindings with such a role grant nothing.
    pub rules: Option<RoleRules>,
}

fn is_same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

/// A tool that a manifest declares, and the plugin that serves it.
type ServedTool = (Arc<Plugin>, Arc<Tool>);

/// The policy in force at one point in time. Successive snapshots share unchanged objects.
#[derive(Clone, Default)]
pub struct Snapshot {
    pub generation: i64,
    /// The result of the verification of the rows against their seals.
    pub verification: Verification,
    keys: imbl::HashMap<[u8; 32], Key>,
    key_hashes: imbl::HashMap<KeyId, [u8; 32]>,
    workspaces: Arc<HashMap<String, WorkspaceId>>,
    default_workspace: Option<WorkspaceId>,
    bots: imbl::HashMap<BotId, Arc<Bot>>,
    bots_by_name: imbl::HashMap<(WorkspaceId, String), BotId>,
    roles: imbl::HashMap<RoleId, Arc<Role>>,
    resources: imbl::HashMap<ResourceId, Arc<Resource>>,
    /// The resource of each credential.
    credential_owners: imbl::HashMap<CredentialId, ResourceId>,
    user_credentials: UserCredentials,
    bound: Bound,
    /// The issuer of OAuth tokens for each resource type in each workspace.
    issuers: Arc<HashMap<(WorkspaceId, ResourceTypeId), Issuer>>,
    /// The issuer of OAuth tokens for each resource that has an OAuth provider of its own.
    resource_issuers: Arc<HashMap<ResourceId, Issuer>>,
    types: Arc<HashMap<ResourceTypeId, Arc<Plugin>>>,
    tools: Arc<HashMap<ToolName, ServedTool>>,
    /// The built-in plugin for sandboxes, or `None` if it does not serve.
    sandbox: Option<Arc<Plugin>>,
    sharing: Sharing,
    owners: Arc<Owners>,
    patterns: PatternBytes,
    grants: Grants,
    budgets: Budgets,
    webhooks: Webhooks,
    subscriptions: Subscriptions,
    triggers: Triggers,
    remote_tools: RemoteTools,
    /// The resources of type `agent` that have a connected agent. The others have no tools.
    present: imbl::HashSet<ResourceId>,
}

impl Snapshot {
    /// Returns the approvals that permit a call now.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns the maximum memory of the compiled patterns of a workspace, in bytes.
    pub fn pattern_bytes(&self, workspace: WorkspaceId) -> u64 {
        self.patterns.of(workspace)
    }

    /// Returns the key whose text has this SHA-256.
    pub fn key(&self, hash: &[u8; 32]) -> Option<&Key> {
        self.keys.get(hash)
    }

    /// Returns the hash of a key's text, or `None` if the key was deleted. A rotation of the key changes its hash.
    pub fn key_hash(&self, id: KeyId) -> Option<&[u8; 32]> {
        self.key_hashes.get(&id)
    }

    /// Returns all keys.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.values()
    }

    /// Returns the id of each key, its workspace, and its last use as recorded on this host.
    pub fn key_uses(&self) -> impl Iterator<Item = (Option<WorkspaceId>, KeyId, &LastUse)> {
        self.keys().map(|key| (key.workspace, key.id, key.last_use.as_ref()))
    }

    /// Returns the time of the key's last use: the later of the time recorded on this host and the time in `row`.
    pub fn last_use(&self, row: &KeyRow) -> Option<UtcMillis> {
        let noted = key_hash(row).and_then(|hash| self.key(&hash)?.last_use.at());
        noted.max(row.last_used_at)
    }

    /// Returns the workspace with this name or id.
    pub fn workspace(&self, name_or_id: &str) -> Option<WorkspaceId> {
        self.workspaces.get(name_or_id).copied()
    }

    /// Returns the workspace for requests of root keys that name no workspace, or `None` if its row is not authentic.
    pub fn known_default_workspace(&self) -> Option<WorkspaceId> {
        self.default_workspace
    }

    /// Returns the workspace for requests of root keys that name no workspace.
    pub fn default_workspace(&self) -> WorkspaceId {
        self.default_workspace.expect("the workspace `default` is created together with the database")
    }

    /// Returns the bindings of this workspace that use this role.
    pub fn bindings_of_role(&self, workspace: WorkspaceId, role: RoleId) -> impl Iterator<Item = &Arc<Binding>> {
        let bots = self.bound.of_role(role).filter_map(move |bot| self.bot(workspace, *bot));
        bots.flat_map(|bot| &bot.bindings).filter(move |binding| binding.row.role_id == Some(role))
    }

    /// Returns the bot with this id, if it belongs to this workspace.
    pub fn bot(&self, workspace: WorkspaceId, id: BotId) -> Option<&Arc<Bot>> {
        self.bots.get(&id).filter(|bot| bot.row.workspace_id == workspace)
    }

    /// Returns the bot with this id in any workspace.
    pub fn bot_of_any_workspace(&self, id: BotId) -> Option<&Arc<Bot>> {
        self.bots.get(&id)
    }

    /// Returns the bots of this workspace.
    pub fn bots(&self, workspace: WorkspaceId) -> impl Iterator<Item = &Arc<Bot>> {
        self.bots.values().filter(move |bot| bot.row.workspace_id == workspace)
    }

    /// Returns whether a bot of any workspace has a sandbox.
    pub fn uses_sandboxes(&self) -> bool {
        self.bots.values().any(|bot| bot.row.use_agent_sandbox)
    }

    /// Returns the roles of this workspace.
    pub fn roles(&self, workspace: WorkspaceId) -> impl Iterator<Item = &Arc<Role>> {
        self.roles.values().filter(move |role| role.row.workspace_id == workspace)
    }

    /// Returns whether the user of an access token may use its bot at `now`.
    pub fn admits(&self, workspace: WorkspaceId, user: &TokenUser, now: UtcMillis) -> bool {
        now < user.expires_at && self.bot(workspace, user.bot).is_some_and(|bot| bot.admits(&user.subject))
    }

    /// Returns the bot to which a resource of the built-in type `bot` refers.
    pub fn bot_behind(&self, resource: &Resource) -> Option<&Arc<Bot>> {
        if resource.row.resource_type.as_str() != built_in::BOT {
            return None;
        }
        // The lookup uses only the id, because another bot may get the name of this bot later.
        let id = resource.config.get(built_in::BOT)?.as_str()?.parse().ok()?;
        self.bot(resource.row.workspace_id, id)
    }

    /// Returns the bot of this workspace with this id or name.
    pub fn bot_called(&self, workspace: WorkspaceId, id_or_name: &str) -> Option<&Arc<Bot>> {
        let by_id = id_or_name.parse().ok().and_then(|id| self.bot(workspace, id));
        by_id.or_else(|| self.bot(workspace, *self.bots_by_name.get(&(workspace, id_or_name.to_owned()))?))
    }

    /// Returns the resource with this id, if it belongs to this workspace and a plugin serves its type.
    pub fn resource(&self, workspace: WorkspaceId, id: ResourceId) -> Option<&Arc<Resource>> {
        self.resources.get(&id).filter(|resource| resource.row.workspace_id == workspace)
    }

    /// Returns all resources whose type a plugin serves.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// Returns the current issuer of OAuth tokens for a resource.
    pub fn issuer(&self, resource: &ResourceRow) -> Option<&Issuer> {
        let of_type = || self.issuers.get(&(resource.workspace_id, resource.resource_type.clone()));
        self.resource_issuers.get(&resource.id).or_else(of_type)
    }

    /// Returns the key with this id.
    pub fn key_of_id(&self, id: KeyId) -> Option<&Key> {
        self.key_hash(id).and_then(|hash| self.key(hash))
    }

    /// Returns the plugin that serves a resource type.
    pub fn resource_type(&self, id: &ResourceTypeId) -> Option<&Arc<Plugin>> {
        self.types.get(id)
    }

    /// Returns all plugins that serve a resource type, sorted by the id of the type.
    pub fn resource_types(&self) -> Vec<&Arc<Plugin>> {
        let mut plugins: Vec<_> = self.types.values().collect();
        plugins.sort_by(|a, b| a.manifest.resource_type.id.cmp(&b.manifest.resource_type.id));
        plugins
    }

    /// Returns the owners of resource types and tool names.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Returns the tool of this name that a manifest declares, and the plugin that serves it.
    pub fn tool(&self, name: &ToolName) -> Option<&ServedTool> {
        self.tools.get(name)
    }

    /// Returns the share of a plugin's call slots that `workspace` may use.
    pub fn share_of_plugin(&self, plugin: &PluginName, workspace: WorkspaceId) -> Share {
        self.sharing.of_plugin(plugin, workspace)
    }

    /// Returns the share of the host's call slots that `workspace` may use.
    pub fn share_of_host(&self, workspace: WorkspaceId) -> Share {
        self.sharing.of_host(workspace)
    }
}

/// The current snapshot and its renewal.
pub struct Policy {
    snapshot: ArcSwap<Snapshot>,
    store: Store,
    refresher: Arc<Refresher>,
    plugins: Arc<Plugins>,
    stale: AtomicBool,
    reported: Reported,
    /// The sender that notifies subscribers of each new snapshot.
    renewals: tokio::sync::watch::Sender<()>,
    /// The number of requested renewals.
    requested: AtomicU64,
    /// The state after the last renewal. It is locked during a renewal, so that the result of an older read never
    /// replaces the result of a newer read.
    renewing: tokio::sync::Mutex<Renewed>,
    /// A generation, and a time at which it was current. See [`Policy::forget_changes`].
    noted_generation: Mutex<Option<(Instant, i64)>>,
    /// The resources of type `agent` that have a connected agent now. See [`Policy::set_present`].
    present: Presence,
}

/// The state after the last renewal.
#[derive(Default)]
struct Renewed {
    /// The number of completed renewal requests.
    requests: u64,
    /// The state to which the next renewal applies changes, or `None` if the next renewal must read all rows.
    base: Option<Base>,
}

/// The verified rows and the plugins of the current snapshot.
struct Base {
    verified: VerifiedPolicy,
    serving: Vec<Arc<Plugin>>,
}

impl Base {
    fn serves(&self, serving: &[Arc<Plugin>]) -> bool {
        self.serving.len() == serving.len() && self.serving.iter().zip(serving).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl Policy {
    /// Reads and assembles the first snapshot.
    pub async fn open(store: Store, refresher: Arc<Refresher>, plugins: Arc<Plugins>) -> Result<Policy, StoreError> {
        let policy = Policy {
            snapshot: ArcSwap::default(),
            store,
            refresher,
            plugins,
            stale: AtomicBool::new(true),
            reported: Reported::default(),
            renewals: tokio::sync::watch::Sender::new(()),
            requested: AtomicU64::new(0),
            renewing: tokio::sync::Mutex::default(),
            noted_generation: Mutex::default(),
            present: Presence::default(),
        };
        policy.renew().await?;
        Ok(policy)
    }

    /// Returns the current snapshot.
    pub fn load(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Returns a receiver that gets a notification for each later snapshot.
    pub fn renewals(&self) -> tokio::sync::watch::Receiver<()> {
        self.renewals.subscribe()
    }

    /// Returns whether the snapshot may be older than the database.
    pub fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Records whether an agent is connected to this host for the resource. The next renewal adds or removes the tools of
    /// the resource; the caller must request it.
    pub fn set_present(&self, resource: ResourceId, is_present: bool) {
        self.present.set_here(resource, is_present);
    }

    /// Records the resources for which an agent is connected to another host, like [`Policy::set_present`].
    pub fn set_present_elsewhere(&self, resources: imbl::HashSet<ResourceId>) {
        self.present.set_elsewhere(resources);
    }

    /// Replaces the snapshot with a snapshot of the current database and plugins. The caller must renew the snapshot
    /// after every change. New calls use the old snapshot until the new snapshot is assembled. If the renewal fails,
    /// the snapshot is stale and no new call runs.
    pub async fn renew(&self) -> Result<(), StoreError> {
        let turn = self.requested.fetch_add(1, Ordering::AcqRel) + 1;
        let mut renewed = self.renewing.lock().await;
        if renewed.requests >= turn {
            // Another renewal began after this change and has included it.
            return Ok(());
        }
        let requested = self.requested.load(Ordering::Acquire);
        match self.assemble(&mut renewed.base).await {
            Ok(snapshot) => {
                self.reported.report(&self.store, &snapshot.verification);
                let before = self.snapshot.swap(Arc::new(snapshot));
                // The old snapshot may be large, and this is usually the last reference to the old snapshot.
                drop(FreedBeside::new(before, true));
                self.renewals.send_replace(());
                self.stale.store(false, Ordering::Release);
                renewed.requests = requested;
                Ok(())
            }
            Err(error) => {
                self.stale.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Assembles the snapshot on a blocking thread. Applies the rows that have changed since the current snapshot.
    /// Reads all rows if the changes are not completely known.
    async fn assemble(&self, base: &mut Option<Base>) -> Result<Snapshot, StoreError> {
        let (serving, refresher, before) = (self.plugins.serving(), Arc::clone(&self.refresher), self.load());
        let present = self.present.all();
        // `take` leaves `None`, so that the next renewal reads all rows if this renewal fails.
        if let Some(base_before) = base.take().filter(|base| base.serves(&serving) && before.verification.is_whole())
            && let Some((changes, verified)) = self.store.changes_since(&base_before.verified).await?
        {
            let snapshot = beside(move || assemble::changed(changes, present, &refresher, &before)).await?;
            *base = Some(Base { verified, serving });
            return Ok(snapshot);
        }
        let mut rows = self.store.snapshot().await?;
        let verified = std::mem::take(&mut rows.verified);
        let plugins = serving.clone();
        let snapshot = beside(move || assemble::snapshot(rows, present, &plugins, &refresher, &before)).await?;
        *base = Some(Base { verified, serving });
        Ok(snapshot)
    }

    /// Deletes the names of changed rows that are older than an hour. A host that has not read these names reads all
    /// rows at its next renewal. The caller must call this function regularly.
    pub async fn forget_changes(&self) -> Result<(), StoreError> {
        let now = Instant::now();
        let current = self.load().generation;
        let due = {
            let mut noted = self.noted_generation.lock();
            match *noted {
                Some((at, _)) if now.duration_since(at) < CHANGES_KEPT => return Ok(()),
                _ => noted.replace((now, current)),
            }
        };
        if let Some((_, number)) = due {
            self.store.forget_changes(number).await?;
        }
        Ok(())
    }

    /// Makes the next renewal read all rows.
    async fn distrust(&self) {
        self.renewing.lock().await.base = None;
    }

    /// Renews the snapshot if it lacks a change of a cancelled handler or of another process.
    pub async fn renew_if_behind(&self) -> Result<(), StoreError> {
        let generation = self.store.generation().await;
        let generation = generation.inspect_err(|_| self.stale.store(true, Ordering::Release))?;
        if self.is_stale() || generation != self.load().generation {
            self.renew().await?;
        }
        // The report includes rows that were rejected outside a renewal, in reads of single rows.
        self.reported.report(&self.store, &self.load().verification);
        Ok(())
    }

    /// Renews the snapshot if a seal differs from the seal that verified the snapshot. A host does not rely only on the
    /// generation in `settings`, because that row has no MAC.
    pub async fn renew_if_seals_differ(&self) -> Result<(), StoreError> {
        let before = self.load();
        let seals = self.store.seal_generations().await?;
        if before.verification.is_of(&seals) {
            return Ok(());
        }
        // The usual reason is a committed change that this snapshot does not contain yet.
        self.renew().await?;
        if !self.load().verification.has_reached(&seals, &before.verification) {
            self.distrust().await;
            self.renew().await?;
        }
        Ok(())
    }
}

/// Runs `assemble` on a blocking thread.
async fn beside(assemble: impl FnOnce() -> Snapshot + Send + 'static) -> Result<Snapshot, StoreError> {
    tokio::task::spawn_blocking(assemble).await.map_err(|error| StoreError::Unavailable {
        what: "failed to assemble the policy".to_owned(),
        source: Box::new(error),
    })
}

fn key_hash(row: &KeyRow) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(&row.hash, &mut hash).ok()?;
    Some(hash)
}
