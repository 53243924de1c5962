//! Versions that were read from their folders but have not been assessed yet.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use futures::stream::{self, Stream, StreamExt as _};
use monstrum_manifest::Manifest;
use monstrum_runtime::Runtime;
use monstrum_store::{PluginRow, PluginVersionRow, Store};
use monstrum_types::{Clock, PluginName, UtcMillis};
use serde_json::json;

use super::Ceilings;
use super::version::{LoadError, Plugin, ReadFiles, build, parse, parse_stored, sha256};
use crate::beside::in_place;
use crate::plugins::folder::{COMPONENT_BYTES_MAX, FolderError, MANIFEST, MANIFEST_BYTES_MAX, PluginFolder};

/// A version that was read from its folder.
pub(super) struct Candidate {
    pub(super) plugin: Arc<Plugin>,
    pub(super) stored: PluginVersionRow,
}

impl Candidate {
    pub(super) fn row(&self) -> PluginRow {
        PluginRow {
            name: self.stored.plugin.clone(),
            version: self.stored.version.clone(),
            manifest_digest: self.stored.manifest_digest.clone(),
            component_digest: self.stored.component_digest.clone(),
            updated_at: self.stored.created_at,
        }
    }
}

/// Reads versions from plugin folders.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) dir: PathBuf,
    pub(super) runtime: Runtime,
    pub(super) store: Store,
    pub(super) ceilings: Ceilings,
    pub(super) clock: Arc<dyn Clock>,
}

impl Reader {
    /// Reads the version in the folder `name`.
    pub(super) async fn read(&self, name: &str) -> Result<Candidate, LoadError> {
        let began = self.clock.now();
        self.read_from(name, PluginFolder::open(&self.dir.join(name))?, began).await
    }

    /// Reads the version of plugin `name` from a folder that was opened after the time `began`.
    pub(super) async fn read_from(
        &self,
        name: &str,
        folder: PluginFolder,
        began: UtcMillis,
    ) -> Result<Candidate, LoadError> {
        let text = folder.text(MANIFEST, MANIFEST_BYTES_MAX)?;
        let manifest = self.manifest(name, &text).await?;
        if manifest.name.as_str() != name {
            return Err(LoadError::Name { folder: name.to_owned(), name: manifest.name });
        }
        // This block reads, hashes and copies large files. `in_place` moves the other tasks of the worker to another
        // thread.
        let read = in_place(true, || {
            let locale_files = folder.locales(&manifest.locales_dir)?;
            let component = folder.bytes(&manifest.executor.component, COMPONENT_BYTES_MAX)?;
            let icon = folder.icon(&manifest.resource_type.icon)?;
            let opened = folder.opened(began);
            Ok::<_, FolderError>((json!(locale_files), locale_files, component.clone(), component, icon, opened))
        });
        let (locales, locale_files, to_build, component, icon, opened) = read?;
        let mut plugin = build(&self.runtime, self.ceilings, manifest, locale_files, to_build).await?;
        plugin.icon = icon;
        let manifest_digest = sha256(text.as_bytes());
        let component_digest = plugin.digest().cloned().unwrap_or_else(|| sha256(&component));
        plugin.files = opened.map(|opened| ReadFiles { manifest_digest: manifest_digest.clone(), opened });
        let stored = PluginVersionRow {
            plugin: plugin.name.clone(),
            version: plugin.manifest.version.to_string(),
            manifest_digest,
            component_digest,
            manifest: text,
            component,
            locales,
            created_at: self.clock.now(),
        };
        Ok(Candidate { plugin: Arc::new(plugin), stored })
    }

    /// Parses the manifest in `text` of a version of plugin `name`. If the text is the manifest of the recorded serving
    /// version, the manifest may exceed limits that were introduced later.
    async fn manifest(&self, name: &str, text: &str) -> Result<Manifest, LoadError> {
        let refused = match parse(text.to_owned()).await {
            Err(refused @ LoadError::Manifest(_)) => refused,
            other => return other,
        };
        let Ok(name) = name.parse::<PluginName>() else { return Err(refused) };
        match self.store.plugin(&name).await? {
            Some(recorded) if recorded.manifest_digest == sha256(text.as_bytes()) => {
                parse_stored(text.to_owned()).await
            }
            _ => Err(refused),
        }
    }

    /// Reads the versions in the folders `names`, in this order and on all processors. Each component stays in memory
    /// until its version is used. Therefore the number of versions that are read ahead is at most the number of
    /// processors plus one.
    pub(super) fn read_all(
        &self,
        names: Vec<String>,
    ) -> impl Stream<Item = (String, Result<Candidate, LoadError>)> + use<> {
        let at_once = available_parallelism().map_or(1, usize::from) + 1;
        let reader = self.clone();
        let read = move |name: String| {
            let reader = reader.clone();
            async move {
                let folder = name.clone();
                let read = tokio::spawn(async move { reader.read(&folder).await }).await;
                let read = read.unwrap_or_else(|_| {
                    tracing::error!(plugin.name = name, "the task that reads a plugin failed");
                    Err(LoadError::Unexpected)
                });
                (name, read)
            }
        };
        stream::iter(names).map(read).buffered(at_once)
    }
}
