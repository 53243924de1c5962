//! The plugins that serve: scanning the folder, loading, replacing one version by the next.
//!
//! A version is whole or not there: manifest, policy rules, schemas and component are checked before it serves. One that
//! fails leaves the version before it serving, and its error is kept for the API, the CLI and the log. One that asks for
//! more than the version before it waits until a root key approves it; every version is stored, so that the old one
//! serves on even after a start.

mod growth;
mod install;
mod version;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use monstrum_manifest::Manifest;
use monstrum_runtime::Runtime;
use monstrum_store::{PluginRow, PluginVersionRow, Store, StoreError};
use monstrum_types::{Clock, Digest, PluginName, ToolName};
use serde::Serialize;
use utoipa::ToSchema;

pub use install::{InstallError, Installed, Package, UninstallError};
pub use version::{LoadError, Plugin, Tool, build};

use crate::config::Ceilings;
use crate::plugin_folder::{
    COMPONENT_BYTES_MAX, FolderError, MANIFEST, MANIFEST_BYTES_MAX, PluginFolder, check_plugins_dir, staging,
};
use crate::plugins::growth::growth;
use crate::plugins::version::{sha256, with_causes};

/// Whether a plugin serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// The version in the folder serves.
    Loaded,
    /// The version in the folder could not be loaded; the one before it, if any, serves on.
    Failed,
    /// The version in the folder asks for more than the one before it, which serves on.
    NeedsApproval,
}

/// What is known of one plugin.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    pub status: PluginStatus,
    pub error: Option<String>,
    /// The version that serves.
    pub serving: Option<Arc<Plugin>>,
    /// The version that waits for a root key.
    pub pending: Option<Pending>,
}

/// A version that grew.
#[derive(Clone)]
pub struct Pending {
    pub plugin: Arc<Plugin>,
    /// What it asks for beyond the version that serves, a sentence each.
    pub grows: Vec<String>,
    row: PluginRow,
}

/// Why a version was not approved.
#[derive(Debug, thiserror::Error)]
pub enum ApproveError {
    #[error("no version of this plugin waits for approval")]
    NothingPending,
    #[error("the version that waits for approval has digest `{found}`")]
    OtherDigest { found: Digest },
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// A version as it was read from its folder.
struct Candidate {
    plugin: Arc<Plugin>,
    stored: PluginVersionRow,
}

impl Candidate {
    fn row(&self) -> PluginRow {
        PluginRow {
            name: self.stored.plugin.clone(),
            version: self.stored.version.clone(),
            manifest_digest: self.stored.manifest_digest.clone(),
            component_digest: self.stored.component_digest.clone(),
            updated_at: self.stored.created_at,
        }
    }
}

/// A version that could serve, judged by the one that does.
struct Judged {
    plugin: Arc<Plugin>,
    row: PluginRow,
    grows: Vec<String>,
    /// It is the one on record as serving.
    is_recorded: bool,
}

/// Every plugin of this host.
pub struct Plugins {
    dir: PathBuf,
    runtime: Runtime,
    store: Store,
    clock: Arc<dyn Clock>,
    ceilings: Ceilings,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// One load at a time, so that two plugins cannot both take one tool name.
    loading: tokio::sync::Mutex<()>,
}

impl Plugins {
    /// Nothing is loaded yet. `dir` must exist.
    pub fn new(
        dir: &Path,
        runtime: Runtime,
        store: Store,
        clock: Arc<dyn Clock>,
        ceilings: Ceilings,
    ) -> Result<Plugins, FolderError> {
        check_plugins_dir(dir)?;
        let dir = dir.canonicalize().map_err(|source| FolderError::Read { path: dir.to_owned(), source })?;
        let (entries, loading) = (RwLock::default(), tokio::sync::Mutex::default());
        Ok(Plugins { dir, runtime, store, clock, ceilings, entries, loading })
    }

    /// Loads every folder that holds a manifest, in the order of their names. One that fails stops no other. What an
    /// install that was cut off has left behind goes first.
    pub async fn scan(&self) -> Result<(), FolderError> {
        check_plugins_dir(&self.dir)?;
        let read = |source| FolderError::Read { path: self.dir.clone(), source };
        staging::clear_leftovers(&self.dir).map_err(read)?;
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(read)? {
            let entry = entry.map_err(read)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') && !entry.file_type().map_err(read)?.is_file() {
                names.push(name);
            }
        }
        names.sort();
        for name in names {
            self.load(&name).await;
        }
        Ok(())
    }

    /// Loads the folder `name` anew. `None`: there is no such folder, and whatever it held serves no more.
    pub async fn load(&self, name: &str) -> Option<Entry> {
        let _one_at_a_time = self.loading.lock().await;
        let path = self.dir.join(name);
        let is_plain = Path::new(name).file_name().is_some_and(|file| file == name);
        if !is_plain || path.symlink_metadata().is_err() {
            self.write().remove(name);
            return None;
        }
        let entry = match self.turn(name, &path).await {
            Ok(entry) => entry,
            Err(error) => {
                tracing::error!(plugin.name = name, error = %with_causes(&error), "plugin not loaded");
                let (status, error) = (PluginStatus::Failed, Some(error.to_string()));
                Entry { name: name.to_owned(), status, error, serving: self.before(name).await, pending: None }
            }
        };
        self.write().insert(name.to_owned(), entry.clone());
        Some(entry)
    }

    /// Puts the version that waits in force: the one that was read and shown, whatever the folder holds by now.
    pub async fn approve(&self, name: &str, digest: Option<&Digest>) -> Result<Entry, ApproveError> {
        let _one_at_a_time = self.loading.lock().await;
        let Some(Pending { plugin, grows, row }) = self.entry(name).and_then(|entry| entry.pending) else {
            return Err(ApproveError::NothingPending);
        };
        if digest.is_some_and(|digest| *digest != plugin.digest) {
            return Err(ApproveError::OtherDigest { found: plugin.digest.clone() });
        }
        self.check_unique(&plugin)?;
        let row = PluginRow { updated_at: self.clock.now(), ..row };
        self.store.put_plugin(&row).await.map_err(LoadError::from)?;
        tracing::info!(plugin.name = name, plugin.version = row.version, ?grows, "plugin approved");
        let entry = loaded(plugin);
        self.write().insert(name.to_owned(), entry.clone());
        Ok(entry)
    }

    /// Every plugin by name.
    pub fn entries(&self) -> Vec<Entry> {
        self.read_entries().values().cloned().collect()
    }

    /// One plugin.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        self.read_entries().get(name).cloned()
    }

    /// Reads the folder and judges what it holds by the version that serves.
    async fn turn(&self, name: &str, path: &Path) -> Result<Entry, LoadError> {
        let candidate = self.read(name, PluginFolder::open(path)?).await?;
        let judged = self.judge(candidate).await?;
        self.settle(judged).await
    }

    /// Judges a version and stores it. Nothing that serves changes.
    async fn judge(&self, candidate: Candidate) -> Result<Judged, LoadError> {
        self.check_unique(&candidate.plugin)?;
        let (plugin, row) = (Arc::clone(&candidate.plugin), candidate.row());
        let recorded = self.store.plugin(&row.name).await?;
        let is_recorded = recorded.as_ref().is_some_and(|recorded| is_same_version(recorded, &row));
        let grows = match recorded {
            Some(recorded) if !is_recorded => self.growth(&recorded, &plugin.manifest).await?,
            // The first version of a plugin is the operator's own doing: there is nothing that it could exceed.
            Some(_) | None => Vec::new(),
        };
        if !is_recorded {
            self.store.insert_plugin_version(&candidate.stored).await?;
        }
        Ok(Judged { plugin, row, grows, is_recorded })
    }

    /// Lets a version serve, or wait for approval.
    async fn settle(&self, judged: Judged) -> Result<Entry, LoadError> {
        let Judged { plugin, row, grows, is_recorded } = judged;
        let name = plugin.name.as_str();
        if grows.is_empty() {
            if !is_recorded {
                self.store.put_plugin(&row).await?;
            }
            tracing::info!(plugin.name = name, plugin.version = row.version, "plugin loaded");
            for warning in &plugin.warnings {
                tracing::warn!(plugin.name = name, %warning, "plugin");
            }
            return Ok(loaded(plugin));
        }
        tracing::warn!(plugin.name = name, plugin.version = row.version, ?grows, "plugin needs approval");
        let (status, serving) = (PluginStatus::NeedsApproval, self.before(name).await);
        let name = name.to_owned();
        Ok(Entry { name, status, error: None, serving, pending: Some(Pending { plugin, grows, row }) })
    }

    async fn read(&self, name: &str, folder: PluginFolder) -> Result<Candidate, LoadError> {
        let text = folder.text(MANIFEST, MANIFEST_BYTES_MAX)?;
        let manifest = monstrum_manifest::parse(MANIFEST, &text)?;
        if manifest.name.as_str() != name {
            return Err(LoadError::Name { folder: name.to_owned(), name: manifest.name });
        }
        let locale_files = folder.locales(&manifest.locales_dir)?;
        let component = folder.bytes(&manifest.executor.component, COMPONENT_BYTES_MAX)?;
        let locales = serde_json::json!(locale_files);
        let icon = folder.icon(&manifest.resource_type.icon)?;
        let mut plugin = build(&self.runtime, self.ceilings, manifest, locale_files, component.clone()).await?;
        plugin.icon = icon;
        let stored = PluginVersionRow {
            plugin: plugin.name.clone(),
            version: plugin.manifest.version.to_string(),
            manifest_digest: sha256(text.as_bytes()),
            component_digest: plugin.digest.clone(),
            manifest: text,
            component,
            locales,
            created_at: self.clock.now(),
        };
        Ok(Candidate { plugin: Arc::new(plugin), stored })
    }

    /// What `manifest` asks for beyond the version that is on record as serving.
    async fn growth(&self, row: &PluginRow, manifest: &Manifest) -> Result<Vec<String>, LoadError> {
        let serving = self.store.plugin_version(&row.name, &row.manifest_digest, &row.component_digest).await?;
        let Some(serving) = serving.and_then(|stored| monstrum_manifest::parse(MANIFEST, &stored.manifest).ok()) else {
            return Ok(vec!["the version that served cannot be read any more, so nothing can be compared".to_owned()]);
        };
        let retired = self.retired_tools(&row.name, &serving).await?;
        Ok(growth(&serving, manifest, &retired))
    }

    /// The tools that stored versions had and `serving` has no more, with the operation of the newest that had it.
    async fn retired_tools(
        &self,
        name: &PluginName,
        serving: &Manifest,
    ) -> Result<BTreeMap<ToolName, String>, StoreError> {
        let mut retired = BTreeMap::new();
        for text in self.store.plugin_manifests(name).await? {
            let Ok(manifest) = monstrum_manifest::parse(MANIFEST, &text) else { continue };
            let tools = manifest.resource_type.tools.into_iter();
            retired.extend(tools.map(|tool| (tool.name, tool.operation)));
        }
        retired.retain(|name, _| !serving.resource_type.tools.iter().any(|tool| tool.name == *name));
        Ok(retired)
    }

    /// What serves on while the folder's version does not: the version that serves now or, after a start, the one on
    /// record.
    async fn before(&self, name: &str) -> Option<Arc<Plugin>> {
        if let Some(serving) = self.entry(name).and_then(|entry| entry.serving) {
            return Some(serving);
        }
        match self.restore(name).await {
            Ok(plugin) => plugin,
            Err(error) => {
                tracing::error!(plugin.name = name, error = %with_causes(&error), "the stored version cannot serve");
                None
            }
        }
    }

    async fn restore(&self, name: &str) -> Result<Option<Arc<Plugin>>, LoadError> {
        let Ok(name) = name.parse::<PluginName>() else { return Ok(None) };
        let Some(row) = self.store.plugin(&name).await? else { return Ok(None) };
        let stored = self.store.plugin_version(&name, &row.manifest_digest, &row.component_digest).await?;
        let Some(stored) = stored else { return Ok(None) };
        let is_whole = sha256(stored.manifest.as_bytes()) == row.manifest_digest
            && sha256(&stored.component) == row.component_digest;
        if !is_whole {
            return Err(LoadError::Altered { plugin: name });
        }
        let manifest = monstrum_manifest::parse(MANIFEST, &stored.manifest)?;
        let locales = serde_json::from_value(stored.locales).map_err(|error| LoadError::Locales(error.to_string()))?;
        let plugin = build(&self.runtime, self.ceilings, manifest, locales, stored.component).await?;
        self.check_unique(&plugin)?;
        Ok(Some(Arc::new(plugin)))
    }

    /// The name of a tool or type belongs to whoever has it first.
    fn check_unique(&self, plugin: &Plugin) -> Result<(), LoadError> {
        let entries = self.read_entries();
        for other in entries.values().filter_map(|entry| entry.serving.as_ref()) {
            if other.name == plugin.name {
                continue;
            }
            let id = &plugin.manifest.resource_type.id;
            if other.manifest.resource_type.id == *id {
                return Err(LoadError::TypeTaken { id: id.to_string(), owner: other.name.clone() });
            }
            let taken = |tool: &&Tool| other.tools.iter().any(|theirs| theirs.manifest.name == tool.manifest.name);
            if let Some(tool) = plugin.tools.iter().find(taken) {
                let tool = tool.manifest.name.clone();
                return Err(LoadError::ToolTaken { tool, owner: other.name.clone() });
            }
        }
        Ok(())
    }

    fn read_entries(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<String, Entry>> {
        self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Entry>> {
        self.entries.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn is_same_version(a: &PluginRow, b: &PluginRow) -> bool {
    a.manifest_digest == b.manifest_digest && a.component_digest == b.component_digest
}

fn loaded(plugin: Arc<Plugin>) -> Entry {
    let name = plugin.name.to_string();
    Entry { name, status: PluginStatus::Loaded, error: None, serving: Some(plugin), pending: None }
}
