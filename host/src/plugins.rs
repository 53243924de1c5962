//! The plugins that serve: scanning the folder, loading, replacing one version by the next.
//!
//! A version is whole or not there: manifest, policy rules, schemas and component are checked before it serves. One that
//! fails leaves the version before it serving, and its error is kept for the API, the CLI and the log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use monstrum_guardian::ToolRules;
use monstrum_manifest::{InputSchema, Locales, Manifest, OutputSchema, Tool as ToolManifest};
use monstrum_runtime::{Component, Runtime};
use monstrum_store::{PluginRow, PluginVersionRow, Store, StoreError};
use monstrum_types::{Clock, Digest, PluginName, ToolName};
use serde::Serialize;
use sha2::Digest as _;
use utoipa::ToSchema;

use crate::plugin_folder::{
    COMPONENT_BYTES_MAX, FolderError, MANIFEST, MANIFEST_BYTES_MAX, PluginFolder, check_plugins_dir,
};

/// One version of a plugin, ready to serve.
pub struct Plugin {
    pub name: PluginName,
    pub manifest: Manifest,
    /// SHA-256 of the component.
    pub digest: Digest,
    pub component: Component,
    pub tools: Vec<Tool>,
    pub locales: Locales,
    pub warnings: Vec<String>,
}

/// A tool with everything about it compiled.
pub struct Tool {
    pub manifest: ToolManifest,
    pub rules: ToolRules,
    pub input: InputSchema,
    pub output: Option<OutputSchema>,
}

/// Whether a plugin serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// The version in the folder serves.
    Loaded,
    /// The version in the folder could not be loaded; the one before it, if any, serves on.
    Failed,
}

/// What is known of one plugin.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    pub status: PluginStatus,
    pub error: Option<String>,
    /// The version that serves.
    pub serving: Option<Arc<Plugin>>,
}

/// Why a version cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{}", with_causes(.0))]
    Folder(#[from] FolderError),
    #[error("{0}")]
    Manifest(#[from] monstrum_manifest::ManifestErrors),
    #[error("{MANIFEST}: name: expected `{folder}`, as the folder is called, found `{name}`")]
    Name { folder: String, name: PluginName },
    #[error("locales: {0}")]
    Locales(String),
    #[error("{MANIFEST}: resource_type.tools[{index}].{field}: {why}")]
    Schema { index: usize, field: &'static str, why: String },
    #[error("{}", with_causes(.0))]
    Component(#[from] monstrum_runtime::LoadError),
    #[error("tool `{tool}` exists already, in plugin `{owner}`")]
    ToolTaken { tool: ToolName, owner: PluginName },
    #[error("resource type `{id}` exists already, in plugin `{owner}`")]
    TypeTaken { id: String, owner: PluginName },
    #[error("the version could not be stored: {}", with_causes(.0))]
    Store(#[from] StoreError),
}

fn sha256(bytes: &[u8]) -> Digest {
    let hash = sha2::Sha256::digest(bytes);
    format!("sha256:{}", hex::encode(hash)).parse().expect("64 lower-case hex digits")
}

/// An error and its causes in one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

/// Every plugin of this host.
pub struct Plugins {
    dir: PathBuf,
    runtime: Runtime,
    store: Store,
    clock: Arc<dyn Clock>,
    entries: RwLock<BTreeMap<String, Entry>>,
    /// One load at a time, so that two plugins cannot both take one tool name.
    loading: tokio::sync::Mutex<()>,
}

impl Plugins {
    /// Nothing is loaded yet. `dir` must exist.
    pub fn new(dir: &Path, runtime: Runtime, store: Store, clock: Arc<dyn Clock>) -> Result<Plugins, FolderError> {
        check_plugins_dir(dir)?;
        let dir = dir.canonicalize().map_err(|source| FolderError::Read { path: dir.to_owned(), source })?;
        Ok(Plugins { dir, runtime, store, clock, entries: RwLock::default(), loading: tokio::sync::Mutex::default() })
    }

    /// Loads every folder that holds a manifest, in the order of their names. One that fails stops no other.
    pub async fn scan(&self) -> Result<(), FolderError> {
        check_plugins_dir(&self.dir)?;
        let read = |source| FolderError::Read { path: self.dir.clone(), source };
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
        let before = self.entry(name).and_then(|entry| entry.serving);
        let entry = match self.read(name, &path).await {
            Ok(plugin) => {
                tracing::info!(plugin.name = name, plugin.version = %plugin.manifest.version, "plugin loaded");
                for warning in &plugin.warnings {
                    tracing::warn!(plugin.name = name, %warning, "plugin");
                }
                Entry { name: name.to_owned(), status: PluginStatus::Loaded, error: None, serving: Some(plugin) }
            }
            Err(error) => {
                tracing::error!(plugin.name = name, error = %with_causes(&error), "plugin not loaded");
                let error = Some(error.to_string());
                Entry { name: name.to_owned(), status: PluginStatus::Failed, error, serving: before }
            }
        };
        self.write().insert(name.to_owned(), entry.clone());
        Some(entry)
    }

    /// Every plugin by name.
    pub fn entries(&self) -> Vec<Entry> {
        self.read_entries().values().cloned().collect()
    }

    /// One plugin.
    pub fn entry(&self, name: &str) -> Option<Entry> {
        self.read_entries().get(name).cloned()
    }

    async fn read(&self, name: &str, path: &Path) -> Result<Arc<Plugin>, LoadError> {
        let folder = PluginFolder::open(path)?;
        let text = folder.text(MANIFEST, MANIFEST_BYTES_MAX)?;
        let manifest = monstrum_manifest::parse(MANIFEST, &text)?;
        if manifest.name.as_str() != name {
            return Err(LoadError::Name { folder: name.to_owned(), name: manifest.name });
        }
        let locale_files = folder.locales(&manifest.locales_dir)?;
        let bytes = folder.bytes(&manifest.executor.component, COMPONENT_BYTES_MAX)?;
        let plugin = build(&self.runtime, manifest, locale_files.clone(), bytes.clone()).await?;
        self.check_unique(&plugin)?;
        self.record(&plugin, text, bytes, &locale_files).await?;
        Ok(Arc::new(plugin))
    }

    /// Stores the version, so that what once served can be looked at, and served again, when the folder has changed.
    async fn record(
        &self,
        plugin: &Plugin,
        manifest: String,
        component: Vec<u8>,
        locale_files: &BTreeMap<String, String>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let version = PluginVersionRow {
            plugin: plugin.name.clone(),
            version: plugin.manifest.version.to_string(),
            manifest_digest: sha256(manifest.as_bytes()),
            component_digest: plugin.digest.clone(),
            manifest,
            component,
            locales: serde_json::json!(locale_files),
            created_at: now,
        };
        let serving = PluginRow {
            name: plugin.name.clone(),
            version: version.version.clone(),
            manifest_digest: version.manifest_digest.clone(),
            component_digest: version.component_digest.clone(),
            updated_at: now,
        };
        self.store.insert_plugin_version(&version).await?;
        self.store.put_plugin(&serving).await
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

/// Compiles a manifest and its component into something that can serve. `monstrum plugin validate` uses it as well.
pub async fn build(
    runtime: &Runtime,
    manifest: Manifest,
    locale_files: BTreeMap<String, String>,
    component: Vec<u8>,
) -> Result<Plugin, LoadError> {
    let locales = Locales::load(locale_files).map_err(|error| LoadError::Locales(error.to_string()))?;
    let dimensions = &manifest.resource_type.scope_dimensions;
    let mut tools = Vec::with_capacity(manifest.resource_type.tools.len());
    for (index, tool) in manifest.resource_type.tools.iter().enumerate() {
        let schema = |field, why| LoadError::Schema { index, field, why };
        let input = InputSchema::compile(&tool.input_schema).map_err(|why| schema("input_schema", why))?;
        let output = tool.output_schema.as_ref().map(OutputSchema::compile).transpose();
        let output = output.map_err(|why| schema("output_schema", why))?;
        let rules = ToolRules::new(tool.name.clone(), tool.operation.clone(), dimensions, |path| input.declares(path));
        tools.push(Tool { manifest: tool.clone(), rules, input, output });
    }
    let memory_bytes = crate::executor::memory_bytes(&manifest.executor);
    let component = runtime.load(&manifest.name, component, &manifest.executor.capabilities, memory_bytes).await?;
    Ok(Plugin {
        name: manifest.name.clone(),
        digest: component.digest().clone(),
        warnings: monstrum_manifest::warnings(&manifest, monstrum_guardian::match_glob),
        manifest,
        component,
        tools,
        locales,
    })
}
