//! What a start does with the start index: it puts unchanged plugins into force without reading them, loads their
//! components in the background, and writes the index for the next start.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;

use futures::future::join_all;
use monstrum_api::plugins::PluginStatus;
use monstrum_guardian::{DimensionModes, PatternSet};
use monstrum_manifest::{Manifest, MatchMode};
use monstrum_runtime::KnownComponent;
use monstrum_store::PluginRow;

use crate::beside;
use crate::plugins::candidate::Reader;
use crate::plugins::component::{PluginComponent, Source};
use crate::plugins::folder::PluginFolder;
use crate::plugins::records::Records;
use crate::plugins::start_index::{IndexedPlugin, StartIndex};
use crate::plugins::version::ReadFiles;
use crate::plugins::{Plugin, Plugins, Tool, Watch, loaded};

impl Plugins {
    /// Uses `index` for this start and the next one.
    #[must_use]
    pub fn with_start_index(mut self, index: StartIndex) -> Plugins {
        self.index = Some(index);
        self
    }

    /// Starts a watch of the plugins folder. Then puts the plugins of the start index into force whose files have not
    /// changed and whose version the database records as the serving version. The scan reads all other plugins.
    pub async fn load_unchanged(self: &Arc<Self>) -> Watch {
        let _one_at_a_time = self.loading.lock().await;
        let plugins = Arc::clone(self);
        let lines = tokio::task::spawn_blocking(move || {
            plugins.index.as_ref().and_then(|index| index.read(&plugins.reader.runtime, &plugins.reader.dir))
        });
        let plugins = Arc::clone(self);
        // The watch comes before any read of a folder, so that it misses no change.
        let watch = tokio::task::spawn_blocking(move || plugins.watch());
        let (lines, watch, records) = tokio::join!(lines, watch, self.records.read());
        let watch = watch.unwrap_or_else(|_| self.watch());
        match (lines, records) {
            (Ok(Some(lines)), Ok(records)) => self.load_lines(&lines, &records).await,
            (_, Err(error)) => tracing::warn!(%error, "cannot use the start index; reading all plugins"),
            (_, Ok(_)) => self.index_is_due.store(true, Ordering::Release),
        }
        watch
    }

    async fn load_lines(&self, lines: &[String], records: &Arc<Records>) {
        let threads = available_parallelism().map_or(1, usize::from);
        let chunks = lines.chunks(lines.len().div_ceil(threads).max(1)).map(|chunk| {
            let (reader, records, chunk) = (self.reader.clone(), Arc::clone(records), chunk.to_vec());
            tokio::task::spawn_blocking(move || -> Vec<Option<Plugin>> {
                chunk.iter().map(|line| reader.unchanged(line, &records)).collect()
            })
        });
        let mut unchanged = 0;
        for plugin in join_all(chunks).await.into_iter().filter_map(Result::ok).flatten().flatten() {
            unchanged += 1;
            for warning in &plugin.warnings {
                tracing::warn!(plugin.name = %plugin.name, %warning, "a plugin was loaded with a warning");
            }
            tracing::info!(
                plugin.name = %plugin.name, plugin.version = %plugin.manifest.version, "a plugin was loaded unchanged"
            );
            let entry = loaded(Arc::new(plugin));
            self.entries.write().insert(entry.name.clone(), entry);
        }
        if unchanged < lines.len() {
            self.index_is_due.store(true, Ordering::Release);
        }
    }

    /// Loads the components and schemas that are not loaded yet, one plugin at a time and on threads of low priority, so
    /// that later calls need not wait for them. Then writes the start index if it is out of date.
    pub async fn load_components(self: &Arc<Self>) {
        for plugin in self.serving() {
            let Some(component) = plugin.component.as_ref().filter(|component| component.ready().is_none()) else {
                continue;
            };
            // The load logs its errors.
            if component.load_beside().await.is_err() {
                if component.failure().is_some() {
                    // The next start must read the plugin again.
                    self.index_is_due.store(true, Ordering::Release);
                }
                continue;
            }
            let prepared = Arc::clone(&plugin);
            let prepared = beside::spawn(move || {
                let faults = prepared.tools.iter().filter_map(|tool| {
                    let (field, why) = tool.prepare().err()?;
                    Some(format!("{field} of tool `{}`: {why}", tool.manifest.name))
                });
                faults.collect::<Vec<_>>()
            });
            for fault in prepared.await.unwrap_or_default() {
                tracing::error!(plugin.name = %plugin.name, fault, "a schema does not compile; calls of the tool fail");
            }
        }
        self.save_start_index().await;
    }

    /// Writes the start index if it does not contain the plugins in force. Waits for a write that is under way.
    pub async fn save_start_index(self: &Arc<Self>) {
        let plugins = Arc::clone(self);
        match beside::spawn(move || plugins.write_start_index()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot write the start index; the next start takes longer"),
            Err(_) => tracing::error!("the task that writes the start index failed"),
        }
    }

    fn write_start_index(&self) -> std::io::Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        // The thread holds the lock, because the caller may be gone before the file is written.
        let _one_at_a_time = self.writing_index.lock();
        if !self.index_is_due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let entries = self.entries();
        let loaded = entries.iter().filter(|entry| entry.status == PluginStatus::Loaded);
        let plugins = loaded.filter_map(|entry| entry.serving.as_deref());
        let lines: Vec<String> = plugins.filter_map(|plugin| self.reader.line(plugin)).collect();
        index.write(&self.reader.runtime, &self.reader.dir, &lines)
    }
}

impl Reader {
    /// Returns the line of a plugin in the start index. Returns `None` if the files of the plugin were not read, or had
    /// changed shortly before.
    fn line(&self, plugin: &Plugin) -> Option<String> {
        let (files, component) = (plugin.files.as_ref()?, plugin.component.as_ref()?);
        let indexed = IndexedPlugin {
            name: plugin.name.clone(),
            opened: files.opened.as_slice().into(),
            manifest_digest: files.manifest_digest.clone(),
            component_digest: component.digest().clone(),
            memory_bytes: self.ceilings.memory_bytes(&plugin.manifest.executor.limits),
            imports: component.imports().into(),
            functions: component.functions().into(),
            warnings: plugin.warnings.as_slice().into(),
            manifest: Cow::Borrowed(&plugin.manifest),
            locales: Cow::Borrowed(&plugin.locales),
        };
        indexed.line()
    }

    /// Returns the plugin of a line if its files have not changed, and if the database records the same version as the
    /// serving version and assigns all its names to it.
    fn unchanged(&self, line: &str, records: &Records) -> Option<Plugin> {
        let indexed: IndexedPlugin<'_> = serde_json::from_str(line).ok()?;
        let IndexedPlugin { name, opened, manifest_digest, component_digest, memory_bytes, .. } = indexed;
        let manifest: Manifest = indexed.manifest.into_owned();
        let is_of_row =
            |row: &PluginRow| row.manifest_digest == manifest_digest && row.component_digest == component_digest;
        let is_recorded = manifest.name == name && records.plugin(&name).is_some_and(is_of_row);
        if !is_recorded || !records.owners.has_all(&manifest) {
            return None;
        }
        if memory_bytes != self.ceilings.memory_bytes(&manifest.executor.limits) {
            return None;
        }
        let path = self.dir.join(name.as_str());
        let folder = PluginFolder::open(&path).ok()?;
        if !folder.is_unchanged(&opened) {
            return None;
        }
        let icon = folder.icon(&manifest.resource_type.icon).ok()?;
        let file = manifest.executor.component.clone();
        let id = opened.iter().find(|one| one.path == file)?.id?;
        let dimensions = &manifest.resource_type.scope_dimensions;
        let tools = manifest.resource_type.tools.iter().map(|tool| Arc::new(Tool::known(tool.clone(), dimensions)));
        let component = Source {
            runtime: self.runtime.clone(),
            store: self.store.clone(),
            known: KnownComponent {
                plugin: name.clone(),
                digest: component_digest,
                capabilities: manifest.executor.capabilities.clone(),
                functions: indexed.functions.into_owned(),
            },
            imports: indexed.imports.into_owned(),
            memory_bytes,
            manifest_digest: manifest_digest.clone(),
            folder: path,
            file,
            id,
        };
        Some(Plugin {
            tools: tools.collect(),
            component: Some(PluginComponent::known(component)),
            locales: indexed.locales.into_owned(),
            icon,
            warnings: indexed.warnings.into_owned(),
            calls: PatternSet::new(MatchMode::Pattern, &manifest.executor.calls),
            dimension_modes: DimensionModes::of(dimensions),
            files: Some(ReadFiles { manifest_digest, opened: opened.into_owned() }),
            name,
            manifest,
        })
    }
}
