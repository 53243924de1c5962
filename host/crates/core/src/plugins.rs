//! The plugins of a host. This module scans the plugins folder, loads plugins, and replaces old versions with new ones.
//!
//! A version serves only after its manifest, policy rules, schemas and component have been checked. If a version fails
//! to load, the previous version still serves, and the API, the CLI and the log show the error. A version that requests
//! more permissions than the previous version, or a name that belongs to another plugin, waits until a root key
//! approves it. Every version is stored, so that the old version still serves after a restart.

pub mod built_in;
pub mod bundled;
mod candidate;
mod ceilings;
mod component;
pub mod folder;
mod install;
pub mod owners;
pub mod packages;
mod permission_diff;
mod records;
pub mod registry;
pub mod remote;
mod start;
mod start_index;
mod trusted_types;
mod version;
mod version_diff;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use monstrum_api::plugins::PluginStatus;
use monstrum_manifest::Manifest;
use monstrum_runtime::Runtime;
use monstrum_store::{OwnedKind, OwnerRow, PluginRow, Store, StoreError};
use monstrum_types::{Clock, Digest, PluginName, ToolName, with_causes};
use parking_lot::{Mutex, RwLock};

pub use ceilings::Ceilings;
pub use component::PluginComponent;
pub use install::{InstallError, Installed, Package, UninstallError};
pub use remote::RemoteTool;
pub use start_index::{START_INDEX_FILE, StartIndex};
pub use trusted_types::TrustedTypes;
pub use version::{LoadError, Plugin, Tool, build};
pub use version_diff::VersionDiff;
pub use watch::Watch;

use crate::beside::in_place;
use crate::plugins::candidate::{Candidate, Reader};
use crate::plugins::folder::{FolderError, check_plugins_dir, staging};
use crate::plugins::owners::Owners;
use crate::plugins::permission_diff::{RetiredTool, permission_diff};
use crate::plugins::records::RecordReader;
use crate::plugins::version::{parse_stored, sha256};

/// The sentence of a permission diff whose previous version cannot be read.
const UNREADABLE: &str = "the previous version can no longer be read, so the versions cannot be compared";

/// The state of one plugin.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    pub status: PluginStatus,
    pub error: Option<String>,
    /// The version that serves.
    pub serving: Option<Arc<Plugin>>,
    /// The version that waits for approval by a root key.
    pub pending: Option<Pending>,
    /// Whether the host retries the load. The value is true if the database, and not the plugin, caused the failure.
    pub is_to_retry: bool,
}

impl Entry {
    /// Returns a copy in which a plugin has failed if its component could not be loaded at its first use.
    fn observed(&self) -> Entry {
        let entry = self.clone();
        match entry.serving.as_ref().and_then(|serving| serving.failure()).map(ToString::to_string) {
            Some(error) if entry.status == PluginStatus::Loaded => {
                Entry { status: PluginStatus::Failed, error: Some(error), ..entry }
            }
            _ => entry,
        }
    }
}

/// A version that waits for approval.
#[derive(Clone)]
pub struct Pending {
    pub plugin: Arc<Plugin>,
    /// The permissions that the version requests in addition to those of the serving version, one sentence each.
    pub added: Vec<String>,
    /// The names that an approval takes from other plugins.
    takes: Vec<OwnerRow>,
    row: PluginRow,
}

impl Pending {
    /// Returns the SHA-256 of the component.
    pub fn digest(&self) -> &Digest {
        &self.row.component_digest
    }

    /// Returns the SHA-256 of the manifest.
    pub fn manifest_digest(&self) -> &Digest {
        &self.row.manifest_digest
    }
}

/// The reason why a version was not approved.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    #[error("no version of this plugin waits for approval")]
    NothingPending,
    #[error("the version that waits for approval has a different {what}: `{found}`; review the version again")]
    OtherDigest { what: &'static str, found: Digest },
    #[error("other plugins now own names of this version ({}); review the plugin again", owners.join("; "))]
    OtherOwners { owners: Vec<String> },
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The comparison of a version with the recorded version and with the owners of its names.
struct Assessment {
    /// Whether the version is recorded as the serving version.
    is_recorded: bool,
    /// Whether the plugin owns all names in the version.
    owns_all: bool,
    /// The sentences about the version: one for each permission that the version requests in addition to those of the
    /// recorded version, and one for each group of names that the version takes from other plugins.
    added: Vec<String>,
    /// The names that the version takes from other plugins.
    takes: Vec<OwnerRow>,
}

/// All plugins of this host.
pub struct Plugins {
    reader: Reader,
    store: Store,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// A lock that is held during a load, so that only the assessed version comes into force.
    loading: tokio::sync::Mutex<()>,
    records: RecordReader,
    /// The built-in plugins of the platform.
    built_in: Vec<Arc<Plugin>>,
    index: Option<StartIndex>,
    /// Whether the index does not contain the plugins in force.
    index_is_due: AtomicBool,
    writing_index: Mutex<()>,
}

impl Plugins {
    /// Creates the set of plugins in the folder `dir`, which must exist. Does not load any plugin.
    pub fn new(
        dir: &Path,
        runtime: Runtime,
        store: Store,
        clock: Arc<dyn Clock>,
        ceilings: Ceilings,
    ) -> Result<Plugins, FolderError> {
        check_plugins_dir(dir)?;
        let dir = dir.canonicalize().map_err(|source| FolderError::Read { path: dir.to_owned(), source })?;
        let reader = Reader { dir, runtime, store: store.clone(), ceilings, clock };
        let (entries, loading) = (RwLock::default(), tokio::sync::Mutex::default());
        let records = RecordReader::new(store.clone());
        Ok(Plugins {
            reader,
            store,
            entries,
            loading,
            records,
            built_in: built_in::all(),
            index: None,
            index_is_due: AtomicBool::new(false),
            writing_index: Mutex::default(),
        })
    }

    /// Returns the folder of the plugins.
    pub fn dir(&self) -> &Path {
        &self.reader.dir
    }

    /// Removes the leftovers of interrupted installs and loads every plugin folder that [`Plugins::load_unchanged`] has
    /// not loaded. Loads the plugins that own a name before all other plugins. Each of the two groups is sorted by name. If a plugin fails to load, the scan
    /// continues with the next plugin.
    pub async fn scan(&self) -> Result<(), FolderError> {
        let _one_at_a_time = self.loading.lock().await;
        self.records.begin_scan().await;
        let scanned = self.scan_alone().await;
        self.records.end_scan().await;
        scanned
    }

    async fn scan_alone(&self) -> Result<(), FolderError> {
        let mut names = self.names()?;
        names.retain(|name| !self.entries.read().contains_key(name));
        let names = self.owners_first(names).await;
        let dir = &self.reader.dir;
        staging::clear_leftovers(dir).map_err(|source| FolderError::Read { path: dir.clone(), source })?;
        let mut versions = pin!(self.reader.read_all(names));
        while let Some((name, version)) = versions.next().await {
            self.take(&name, version).await;
        }
        Ok(())
    }

    /// Returns the names of the plugin folders.
    fn names(&self) -> Result<Vec<String>, FolderError> {
        let dir = &self.reader.dir;
        check_plugins_dir(dir)?;
        let read = |source| FolderError::Read { path: dir.clone(), source };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(read)? {
            let entry = entry.map_err(read)?;
            if is_plugin_folder(&entry).map_err(read)? {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Moves the plugins that own a name to the front, because a new version of such a plugin may free the name of a
    /// tool. If the database cannot be read, the order does not matter, because no version can be assessed.
    async fn owners_first(&self, mut names: Vec<String>) -> Vec<String> {
        if names.is_empty() {
            return names;
        }
        match self.records.read().await {
            Ok(records) => {
                let owners = records.owners.plugins();
                names.sort_by_key(|name| !owners.contains(name.as_str()));
            }
            Err(error) => tracing::warn!(%error, "failed to read the owners of resource types and tools"),
        }
        names
    }

    /// Loads the folder `name` again. If the folder does not exist, returns `None`, and the plugin no longer serves.
    pub async fn load(&self, name: &str) -> Option<Entry> {
        let _one_at_a_time = self.loading.lock().await;
        self.load_alone(name).await
    }

    /// Loads the folder `name`. The caller must hold `loading`.
    async fn load_alone(&self, name: &str) -> Option<Entry> {
        let is_plain = Path::new(name).file_name().is_some_and(|file| file == name);
        if !is_plain || self.reader.dir.join(name).symlink_metadata().is_err() {
            self.entries.write().remove(name);
            return None;
        }
        let version = self.reader.read(name).await;
        Some(self.take(name, version).await)
    }

    /// Updates plugin `name` with the version in its folder.
    async fn take(&self, name: &str, version: Result<Candidate, LoadError>) -> Entry {
        let admitted = match version {
            Ok(candidate) => self.admit(candidate).await,
            Err(error) => Err(error),
        };
        let entry = match admitted {
            Ok(entry) => {
                if entry.serving.as_ref().is_some_and(|serving| serving.files.is_some()) {
                    self.index_is_due.store(true, Ordering::Release);
                }
                entry
            }
            Err(error) => {
                tracing::error!(plugin.name = name, error = %with_causes(&error), "failed to load a plugin");
                self.failed(name, &error).await
            }
        };
        self.entries.write().insert(name.to_owned(), entry.clone());
        entry
    }

    /// Brings the waiting version into force. The version is the one that was read and shown, even if the folder has
    /// changed since then. The digests, if given, must match this version.
    pub async fn approve(
        &self,
        name: &str,
        digest: Option<&Digest>,
        manifest_digest: Option<&Digest>,
    ) -> Result<Entry, ApproveError> {
        let _one_at_a_time = self.loading.lock().await;
        let Some(Pending { plugin, added, takes, row }) = self.entry(name).and_then(|entry| entry.pending) else {
            return Err(ApproveError::NothingPending);
        };
        for (what, meant, found) in
            [("digest", digest, &row.component_digest), ("manifest_digest", manifest_digest, &row.manifest_digest)]
        {
            if meant.is_some_and(|meant| meant != found) {
                return Err(ApproveError::OtherDigest { what, found: found.clone() });
            }
        }
        let row = PluginRow { updated_at: self.reader.clock.now(), ..row };
        let names = owners::names(&plugin.manifest);
        let refused = self.store.serve_plugin(&row, &names, &takes).await.map_err(LoadError::from)?;
        if !refused.is_empty() {
            return Err(ApproveError::OtherOwners { owners: owners::sentences(&refused) });
        }
        tracing::info!(plugin.name = name, plugin.version = row.version, grows = ?added, "a plugin was approved");
        let entry = loaded(plugin);
        self.entries.write().insert(name.to_owned(), entry.clone());
        self.index_is_due.store(true, Ordering::Release);
        // Plugins that lost a name must stop serving, so their folders are loaded again.
        for loser in owners::losers(&takes) {
            if self.entry(loser.as_str()).is_some() {
                self.load_alone(loser.as_str()).await;
            }
        }
        Ok(entry)
    }

    /// Starts a watch of the plugins folder.
    fn watch(&self) -> Watch {
        Watch::new(&self.reader.dir)
    }

    /// Returns all plugins, sorted by name.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.read().values().map(Entry::observed).collect()
    }

    /// Returns all serving versions, including the built-in plugins.
    pub fn serving(&self) -> Vec<Arc<Plugin>> {
        let entries = self.entries.read();
        self.built_in.iter().chain(entries.values().filter_map(|entry| entry.serving.as_ref())).cloned().collect()
    }

    /// Returns the plugin with this name.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        self.entries.read().get(name).map(Entry::observed)
    }

    /// Assesses every version in the plugins folder in the same way as a server start, but stores nothing in the
    /// database.
    pub async fn examine(&self) -> Result<(), FolderError> {
        let _one_at_a_time = self.loading.lock().await;
        let names = self.owners_first(self.names()?).await;
        // The names that a server start would claim are claimed only in memory.
        let mut claimed = Owners::default();
        let mut versions = pin!(self.reader.read_all(names));
        while let Some((name, version)) = versions.next().await {
            let judged = match version {
                Ok(candidate) => self.assess(&candidate, &claimed).await.map(|assessment| (candidate, assessment)),
                Err(error) => Err(error),
            };
            let entry = match judged {
                Ok((candidate, assessment)) => {
                    if assessment.added.is_empty() {
                        claimed.claim(&candidate.plugin.manifest, self.reader.clock.now());
                    }
                    self.entry_of(&name, candidate, assessment).await
                }
                Err(error) => self.failed(&name, &error).await,
            };
            self.entries.write().insert(name, entry);
        }
        Ok(())
    }

    /// Compares a version with the recorded version, and with the owners of its names in the database and in `more`.
    async fn assess(&self, candidate: &Candidate, more: &Owners) -> Result<Assessment, LoadError> {
        let (row, manifest) = (candidate.row(), &candidate.plugin.manifest);
        let records = self.records.read().await?;
        let owners = &records.owners;
        let takes = match owners.taken_by(manifest) {
            takes if takes.is_empty() => more.taken_by(manifest),
            takes => takes,
        };
        let recorded = records.plugin(&row.name);
        let is_recorded = recorded.is_some_and(|recorded| is_same_version(recorded, &row));
        let mut added = owners::sentences(&takes);
        if !is_recorded {
            // A first version has no previous version. If it takes a type from another plugin, it is compared with the
            // version of that plugin.
            let taken_type = takes.iter().find(|taken| taken.name.kind == OwnedKind::Type);
            let before = match (recorded, taken_type) {
                (None, Some(taken)) => records.plugin(&taken.plugin),
                (recorded, _) => recorded,
            };
            if let Some(before) = before {
                added.extend(self.permission_diff(before, manifest).await?);
            }
        }
        Ok(Assessment { is_recorded, owns_all: owners.has_all(manifest), added, takes })
    }

    /// Assesses and stores a version, and brings it into force if it needs no approval.
    async fn admit(&self, candidate: Candidate) -> Result<Entry, LoadError> {
        let assessment = self.assess(&candidate, &Owners::default()).await?;
        self.keep(&candidate, &assessment).await?;
        self.settle(candidate, assessment).await
    }

    /// Stores a new version. The serving version stays the same.
    async fn keep(&self, candidate: &Candidate, assessment: &Assessment) -> Result<(), LoadError> {
        if !assessment.is_recorded {
            self.store.insert_plugin_version(&candidate.stored).await?;
        }
        Ok(())
    }

    /// Brings a version into force, or makes it wait for approval.
    async fn settle(&self, candidate: Candidate, mut assessment: Assessment) -> Result<Entry, LoadError> {
        let (name, version) = (candidate.plugin.name.to_string(), &candidate.stored.version);
        if assessment.added.is_empty() && !(assessment.is_recorded && assessment.owns_all) {
            let names = owners::names(&candidate.plugin.manifest);
            // Another host on the same database may have claimed a name since the assessment.
            let served = self.store.serve_plugin(&candidate.row(), &names, &[]).await;
            self.records.forget().await;
            assessment.takes = served?;
            assessment.added = owners::sentences(&assessment.takes);
        }
        let added = &assessment.added;
        if added.is_empty() {
            tracing::info!(plugin.name = name, plugin.version = version, "a plugin was loaded");
            for warning in &candidate.plugin.warnings {
                tracing::warn!(plugin.name = name, %warning, "a plugin was loaded with a warning");
            }
        } else {
            tracing::warn!(plugin.name = name, plugin.version = version, grows = ?added, "a plugin needs approval");
        }
        Ok(self.entry_of(&name, candidate, assessment).await)
    }

    async fn entry_of(&self, name: &str, candidate: Candidate, assessment: Assessment) -> Entry {
        if assessment.added.is_empty() {
            return loaded(candidate.plugin);
        }
        let row = candidate.row();
        let Assessment { added, takes, .. } = assessment;
        let pending = Some(Pending { plugin: candidate.plugin, added, takes, row });
        let (status, serving) = (PluginStatus::NeedsApproval, self.before(name).await);
        Entry { name: name.to_owned(), status, error: None, serving, pending, is_to_retry: false }
    }

    async fn failed(&self, name: &str, error: &LoadError) -> Entry {
        let is_to_retry = matches!(error, LoadError::Store(_));
        let (status, error) = (PluginStatus::Failed, Some(error.to_string()));
        let (name, serving) = (name.to_owned(), self.before(name).await);
        Entry { name, status, error, serving, pending: None, is_to_retry }
    }

    /// Returns the permissions that `manifest` requests in addition to those of the recorded serving version.
    async fn permission_diff(&self, row: &PluginRow, manifest: &Manifest) -> Result<Vec<String>, LoadError> {
        let Some(serving) = self.stored_manifest(row).await? else {
            return Ok(vec![UNREADABLE.to_owned()]);
        };
        let retired = self.retired_tools(&row.name, &serving).await?;
        let added = permission_diff(&serving, manifest, &retired);
        Ok(added.into_iter().map(|difference| difference.text).collect())
    }

    /// Returns the manifest of a recorded version, or `None` if it can no longer be read.
    async fn stored_manifest(&self, row: &PluginRow) -> Result<Option<Manifest>, StoreError> {
        let stored = self.store.plugin_version(&row.name, &row.manifest_digest, &row.component_digest).await?;
        match stored {
            Some(stored) => Ok(parse_stored(stored.manifest).await.ok()),
            None => Ok(None),
        }
    }

    /// Returns the tools of stored versions that `serving` no longer has, each as in the newest version with this tool.
    async fn retired_tools(
        &self,
        name: &PluginName,
        serving: &Manifest,
    ) -> Result<BTreeMap<ToolName, RetiredTool>, StoreError> {
        let mut retired = BTreeMap::new();
        for stored in self.store.plugin_manifests(name).await? {
            let Ok(manifest) = parse_stored(stored.text).await else { continue };
            let tools = manifest.resource_type.tools.iter();
            retired.extend(tools.map(|tool| (tool.name.clone(), RetiredTool::from(tool))));
        }
        retired.retain(|name, _| !serving.resource_type.tools.iter().any(|tool| tool.name == *name));
        Ok(retired)
    }

    /// Returns the version that serves while the version in the folder cannot: the current version or, after a server
    /// start, the recorded version. Returns `None` if a name of that version now belongs to another plugin.
    async fn before(&self, name: &str) -> Option<Arc<Plugin>> {
        let serving = self.entry(name).and_then(|entry| entry.serving);
        if let Some(serving) = serving.filter(|serving| serving.failure().is_none()) {
            return match self.records.read().await {
                Ok(records) if !records.owners.permit(&serving) => None,
                // If the database cannot be read, the policy uses the owners that it has already loaded.
                _ => Some(serving),
            };
        }
        match self.restore(name).await {
            Ok(plugin) => plugin,
            Err(error) => {
                tracing::error!(plugin.name = name, error = %with_causes(&error), "failed to load the stored version");
                None
            }
        }
    }

    async fn restore(&self, name: &str) -> Result<Option<Arc<Plugin>>, LoadError> {
        let Ok(name) = name.parse::<PluginName>() else { return Ok(None) };
        let records = self.records.read().await?;
        let Some(row) = records.plugin(&name) else { return Ok(None) };
        let stored = self.store.plugin_version(&name, &row.manifest_digest, &row.component_digest).await?;
        let Some(stored) = stored else { return Ok(None) };
        let is_whole = in_place(true, || {
            sha256(stored.manifest.as_bytes()) == row.manifest_digest
                && sha256(&stored.component) == row.component_digest
        });
        if !is_whole {
            return Err(LoadError::Altered { plugin: name });
        }
        let manifest = parse_stored(stored.manifest).await?;
        let taken = records.owners.taken_by(&manifest);
        if !taken.is_empty() {
            return Err(LoadError::Taken { plugin: name, owners: owners::sentences(&taken) });
        }
        let locales = serde_json::from_value(stored.locales).map_err(|error| LoadError::Locales(error.to_string()))?;
        let plugin = build(&self.reader.runtime, self.reader.ceilings, manifest, locales, stored.component).await?;
        Ok(Some(Arc::new(plugin)))
    }

    /// Returns the plugins whose assessment is outdated under `owners`, because another host has moved or freed a name.
    pub fn judged_by_others(&self, owners: &Owners) -> Vec<String> {
        let entries = self.entries.read();
        let outdated = entries.values().filter(|entry| {
            let loses = entry.serving.as_ref().is_some_and(|serving| !owners.permit(serving));
            let pending = entry.pending.as_ref();
            loses || pending.is_some_and(|pending| owners.taken_by(&pending.plugin.manifest) != pending.takes)
        });
        outdated.map(|entry| entry.name.clone()).collect()
    }
}

/// Returns whether an entry of the plugins folder is a plugin. A link counts as a plugin, so that the load rejects the
/// link with an error that names it. Hidden entries and files do not count.
fn is_plugin_folder(entry: &std::fs::DirEntry) -> std::io::Result<bool> {
    let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
    Ok(!is_hidden && !entry.file_type()?.is_file())
}

fn is_same_version(a: &PluginRow, b: &PluginRow) -> bool {
    a.manifest_digest == b.manifest_digest && a.component_digest == b.component_digest
}

fn loaded(plugin: Arc<Plugin>) -> Entry {
    let name = plugin.name.to_string();
    Entry { name, status: PluginStatus::Loaded, error: None, serving: Some(plugin), pending: None, is_to_retry: false }
}
