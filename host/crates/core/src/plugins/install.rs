//! Installs and removes plugins while the server runs.
//!
//! The loaded version is always the verified version. The host writes a package next to its final place, and reads and
//! assesses the package there in the same way as at a server start. A single rename then puts the folder in its final
//! place. A power cut at any point leaves either the old folder or the new folder.

use std::collections::BTreeMap;
use std::path::Path;

use monstrum_manifest::Manifest;
use monstrum_store::{BoundRow, StoreError};
use monstrum_types::{PluginName, ResourceTypeId};
use semver::Version;

use crate::plugins::TrustedTypes;
use crate::plugins::folder::PluginFolder;
use crate::plugins::folder::staging::{self, StageError, Staged};
use crate::plugins::owners::Owners;
use crate::plugins::version::parse_stored;
use crate::plugins::{Entry, LoadError, Plugins};

/// The maximum number of bindings that an error names.
const BOUND_NAMED_MAX: u32 = 10;

/// The files of a plugin that will be installed.
pub struct Package {
    /// The manifest among the files.
    pub manifest: Manifest,
    /// The files by their validated relative paths.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// The result of an install.
pub struct Installed {
    pub entry: Entry,
    /// Whether the install replaced a folder of the same name.
    pub replaced: bool,
}

/// The reason why a plugin was not installed. The previous version is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(
        "plugin `{plugin}`: version {version} is older than the recorded version {recorded} and may be a replay; \
         to install it anyway, use --allow-downgrade"
    )]
    Older { plugin: PluginName, version: Version, recorded: String },
    #[error(
        "the package is signed by {key}, which is trusted for the resource types {} but not for `{id}`, and plugin \
         `{plugin}` does not own `{id}`; to trust the key for more types, run `monstrum trust add --type`",
        globs.iter().map(|glob| format!("`{glob}`")).collect::<Vec<_>>().join(", ")
    )]
    UntrustedType { plugin: PluginName, id: ResourceTypeId, key: String, globs: Vec<String> },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error("the installation was interrupted; try again")]
    Interrupted,
}

/// The reason why a plugin was not removed.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    #[error("the plugin does not exist")]
    Absent,
    #[error("plugin `{plugin}` is still bound; delete these bindings first: {}", list(.bound))]
    Bound { plugin: String, bound: Vec<BoundRow> },
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Stage(#[from] StageError),
    #[error("the removal was interrupted; try again")]
    Interrupted,
}

fn list(bound: &[BoundRow]) -> String {
    let each = bound
        .iter()
        .map(|row| format!("resource `{}` to bot `{}` in workspace `{}`", row.resource, row.bot, row.workspace));
    let mut text = each.collect::<Vec<_>>().join(", ");
    if bound.len() >= BOUND_NAMED_MAX as usize {
        text.push_str(", and possibly more");
    }
    text
}

impl Plugins {
    /// Installs a package and replaces an existing version. The caller must verify the origin of the package. `trusted`
    /// contains the types for which the package's key may install a plugin that does not own its type.
    pub async fn install(
        &self,
        package: Package,
        trusted: &TrustedTypes,
        allow_downgrade: bool,
    ) -> Result<Installed, InstallError> {
        let _one_at_a_time = self.loading.lock().await;
        let Package { manifest, files } = package;
        let (name, version) = (manifest.name.clone(), manifest.version.clone());
        if !allow_downgrade {
            self.check_not_older(&name, &version).await?;
        }
        self.check_type(&name, &manifest.resource_type.id, trusted).await?;
        let (dir, plugin) = (self.reader.dir.clone(), name.clone());
        let staged = tokio::task::spawn_blocking(move || Staged::write(&dir, &plugin, &files));
        let staged = staged.await.map_err(|_| InstallError::Interrupted)??;
        let began = self.reader.clock.now();
        // Errors must show the plugin's name instead of the hidden folder.
        let folder = PluginFolder::open_as(staged.path(), Path::new(name.as_str())).map_err(LoadError::from)?;
        let candidate = self.reader.read_from(name.as_str(), folder, began).await?;
        let assessment = self.assess(&candidate, &Owners::default()).await?;
        self.keep(&candidate, &assessment).await?;
        let plugin = name.clone();
        let placed = tokio::task::spawn_blocking(move || staged.put_in_place(&plugin));
        let replaced = placed.await.map_err(|_| InstallError::Interrupted)??;
        // The next server start would load this version, so the running server must load it too.
        let entry = self.settle(candidate, assessment).await?;
        tracing::info!(plugin.name = %name, plugin.version = %version, replaced, "a plugin was installed");
        self.entries.write().insert(name.to_string(), entry.clone());
        Ok(Installed { entry, replaced })
    }

    /// Removes a plugin. The records of the plugin stay in the database, so that a later install can be compared with
    /// them.
    pub async fn uninstall(&self, name: &str) -> Result<(), UninstallError> {
        let _one_at_a_time = self.loading.lock().await;
        let is_plain = name.parse::<PluginName>().is_ok() || self.entry(name).is_some();
        if !is_plain {
            return Err(UninstallError::Absent);
        }
        // If another plugin has taken over the type, its resources do not belong to this plugin.
        let owners = Owners::read(&self.store).await?;
        let is_own = |id: &ResourceTypeId| owners.of_type(id).is_some_and(|row| row.plugin.as_str() == name);
        if let Some(resource_type) = self.type_of(name).await?.filter(is_own) {
            let bound = self.store.bound(&resource_type, BOUND_NAMED_MAX).await?;
            if !bound.is_empty() {
                return Err(UninstallError::Bound { plugin: name.to_owned(), bound });
            }
        }
        let (dir, folder) = (self.reader.dir.clone(), name.to_owned());
        let removed = tokio::task::spawn_blocking(move || staging::remove(&dir, &folder));
        let removed = removed.await.map_err(|_| UninstallError::Interrupted)??;
        let known = self.entries.write().remove(name).is_some();
        if !removed && !known {
            return Err(UninstallError::Absent);
        }
        tracing::info!(plugin.name = name, "a plugin was removed");
        Ok(())
    }

    /// Rejects a version that is older than the recorded version or than a version that waits for approval. The
    /// signature of an old package stays valid, although a later version may have fixed vulnerabilities of that
    /// package.
    async fn check_not_older(&self, name: &PluginName, version: &Version) -> Result<(), InstallError> {
        let recorded = self.store.plugin(name).await.map_err(LoadError::from)?.map(|row| row.version);
        let pending = self.entry(name.as_str()).and_then(|entry| entry.pending);
        let pending = pending.map(|pending| pending.plugin.manifest.version.to_string());
        for recorded in recorded.into_iter().chain(pending) {
            let is_older = recorded.parse::<Version>().map_or(true, |known| version.cmp_precedence(&known).is_lt());
            if is_older {
                let (plugin, version) = (name.clone(), version.clone());
                return Err(InstallError::Older { plugin, version, recorded });
            }
        }
        Ok(())
    }

    /// Checks that the plugin owns its resource type or that the package's key is trusted for this type. An update of
    /// the plugin that owns the type needs only a key that is trusted for the plugin's name.
    async fn check_type(
        &self,
        plugin: &PluginName,
        id: &ResourceTypeId,
        trusted: &TrustedTypes,
    ) -> Result<(), InstallError> {
        let owners = Owners::read(&self.store).await.map_err(LoadError::from)?;
        if owners.of_type(id).is_some_and(|row| row.plugin == *plugin) || trusted.include(id) {
            return Ok(());
        }
        let TrustedTypes { key, globs } = trusted.clone();
        Err(InstallError::UntrustedType { plugin: plugin.clone(), id: id.clone(), key, globs })
    }

    /// Returns the resource type of the serving version. If the plugin does not serve, returns the resource type of the
    /// recorded version.
    async fn type_of(&self, name: &str) -> Result<Option<ResourceTypeId>, StoreError> {
        if let Some(serving) = self.entry(name).and_then(|entry| entry.serving) {
            return Ok(Some(serving.manifest.resource_type.id.clone()));
        }
        let Ok(name) = name.parse::<PluginName>() else { return Ok(None) };
        let Some(row) = self.store.plugin(&name).await? else { return Ok(None) };
        let stored = self.store.plugin_version(&name, &row.manifest_digest, &row.component_digest).await?;
        let Some(stored) = stored else { return Ok(None) };
        Ok(parse_stored(stored.manifest).await.ok().map(|manifest| manifest.resource_type.id))
    }
}
