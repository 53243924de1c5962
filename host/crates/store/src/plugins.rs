//! Plugins: all stored versions, and the active version of each plugin.

use monstrum_types::{Digest, PluginName, UtcMillis};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::db::{args, from_row, values};
use crate::rows::{Scope, Table, authentic, change};
use crate::{Store, StoreError};

/// A row of `plugins`: the active version of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginRow {
    pub name: PluginName,
    pub version: String,
    pub manifest_digest: Digest,
    pub component_digest: Digest,
    pub updated_at: UtcMillis,
}

/// A row of `plugin_versions`.
#[derive(Clone, PartialEq)]
pub struct PluginVersionRow {
    pub plugin: PluginName,
    pub version: String,
    pub manifest_digest: Digest,
    pub component_digest: Digest,
    /// The content of `monstrum.yaml`.
    pub manifest: String,
    /// The WebAssembly component.
    pub component: Vec<u8>,
    /// The translations: a JSON object with one member per language.
    pub locales: Value,
    pub created_at: UtcMillis,
}

/// A summary of a stored plugin version, which omits its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginVersionSummary {
    pub plugin: PluginName,
    pub version: String,
    pub manifest_digest: Digest,
    pub component_digest: Digest,
    /// The SHA-256 digest of the translations as JSON text.
    pub locales_digest: Digest,
    pub created_at: UtcMillis,
}

/// The manifest of a stored plugin version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    /// The content of `monstrum.yaml`.
    pub text: String,
    /// The time when the version was stored.
    pub created_at: UtcMillis,
}

authentic! {
    PluginRow in Plugins("plugins"), select: select, scope: |_| Scope::Instance,
    covered: [name, version, manifest_digest, component_digest, updated_at],
    others: [],
    spec: { key: &["name"] },
}

const BY_NAME: &str = select!("where name = $1");
authentic! {
    PluginVersionSummary in PluginVersions("plugin_versions"), select: select_version, scope: |_| Scope::Instance,
    covered: [plugin, version, manifest_digest, component_digest, locales_digest, created_at],
    others: [],
    spec: {
        key: &["plugin", "manifest_digest", "component_digest"],
        // The host compares these columns with the digests when it reads the content.
        content: &["manifest", "component", "locales"],
    },
}

from_row! {
    PluginVersionRow {
        plugin, version, manifest_digest, component_digest, manifest, component, locales, created_at,
    }
}

from_row! { StoredManifest { text, created_at } }

const VERSIONS: &str = select_version!("where plugin = $1");
const VERSION: &str = select_version!("where plugin = $1 and manifest_digest = $2 and component_digest = $3");
const MANIFEST: &str = "select manifest as text, created_at from plugin_versions \
                        where plugin = $1 and manifest_digest = $2 and component_digest = $3";
const CONTENT: &str = "select plugin, version, manifest_digest, component_digest, manifest, component, locales, \
                       created_at from plugin_versions \
                       where plugin = $1 and manifest_digest = $2 and component_digest = $3";

impl PluginVersionRow {
    fn summary(&self) -> PluginVersionSummary {
        PluginVersionSummary {
            plugin: self.plugin.clone(),
            version: self.version.clone(),
            manifest_digest: self.manifest_digest.clone(),
            component_digest: self.component_digest.clone(),
            locales_digest: digest_of(self.locales.to_string().as_bytes()),
            created_at: self.created_at,
        }
    }
}

impl PluginVersionSummary {
    /// Returns whether a version's content matches its digests.
    fn is_of(&self, content: &PluginVersionRow) -> bool {
        digest_of(content.manifest.as_bytes()) == self.manifest_digest
            && digest_of(&content.component) == self.component_digest
            && digest_of(content.locales.to_string().as_bytes()) == self.locales_digest
    }
}

/// Computes a SHA-256 digest, formatted as `sha256:` followed by 64 hex digits.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    let text = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
    text.parse().expect("a SHA-256 in hex is a digest")
}

impl Store {
    /// Stores a version if it is not stored yet. Does not activate the version. Returns whether the version is new.
    pub async fn insert_plugin_version(&self, row: &PluginVersionRow) -> Result<bool, StoreError> {
        let overwrite = "update plugin_versions set manifest = $4, component = $5, locales = $6, version = $7, \
                         locales_digest = $8, created_at = $9 \
                         where plugin = $1 and manifest_digest = $2 and component_digest = $3";
        let summary = row.summary();
        change!(self, &[Scope::Instance], |change| {
            let key = args![&row.plugin, &row.manifest_digest, &row.component_digest];
            if change.one::<PluginVersionSummary>(VERSION, key).await?.is_some() {
                return Ok(false);
            }
            let args = args![
                &row.plugin,
                &row.manifest_digest,
                &row.component_digest,
                &row.manifest,
                row.component.as_slice(),
                &row.locales,
                &row.version,
                &summary.locales_digest,
                row.created_at,
            ];
            // A row with the same key and a wrong MAC cannot be deleted, because `plugins` may reference it.
            if change.session.run(overwrite, args).await? > 0 {
                change.authenticate(&summary).await?;
                return Ok(true);
            }
            let content = values![&row.manifest, row.component.as_slice(), &row.locales];
            change.insert(&summary, Vec::new(), content).await?;
            Ok(true)
        })
    }

    /// Returns a stored version with its content, or `None` if the version is missing or its content does not match
    /// its digests.
    pub async fn plugin_version(
        &self,
        plugin: &PluginName,
        manifest: &Digest,
        component: &Digest,
    ) -> Result<Option<PluginVersionRow>, StoreError> {
        let versions = self.plugin_versions(plugin).await?;
        let is_wanted = |version: &&PluginVersionSummary| {
            version.manifest_digest == *manifest && version.component_digest == *component
        };
        let Some(version) = versions.iter().find(is_wanted) else { return Ok(None) };
        self.content_of(version).await
    }

    async fn content_of(&self, version: &PluginVersionSummary) -> Result<Option<PluginVersionRow>, StoreError> {
        let key = args![&version.plugin, &version.manifest_digest, &version.component_digest];
        let content: Option<PluginVersionRow> = self.db.one(CONTENT, key).await?;
        let content = content.filter(|content| version.is_of(content));
        if content.is_none() {
            let PluginVersionSummary { plugin, manifest_digest, component_digest, .. } = version;
            self.refuse(Table::PluginVersions, format!("{plugin}/{manifest_digest}/{component_digest}"))?;
        }
        Ok(content)
    }

    /// Returns the stored versions of a plugin, oldest first.
    pub async fn plugin_versions(&self, plugin: &PluginName) -> Result<Vec<PluginVersionSummary>, StoreError> {
        let mut versions: Vec<PluginVersionSummary> = self.verified_instance().await?.take();
        versions.retain(|version| version.plugin == *plugin);
        versions.sort_by(|a, b| {
            (a.created_at, &a.manifest_digest, &a.component_digest).cmp(&(
                b.created_at,
                &b.manifest_digest,
                &b.component_digest,
            ))
        });
        Ok(versions)
    }

    /// Returns the manifests of the stored versions of a plugin, oldest first.
    pub async fn plugin_manifests(&self, plugin: &PluginName) -> Result<Vec<StoredManifest>, StoreError> {
        let mut manifests = Vec::new();
        for PluginVersionSummary { plugin, manifest_digest, component_digest, .. } in
            self.plugin_versions(plugin).await?
        {
            let key = args![&plugin, &manifest_digest, &component_digest];
            let manifest: Option<StoredManifest> = self.db.one(MANIFEST, key).await?;
            match manifest.filter(|manifest| digest_of(manifest.text.as_bytes()) == manifest_digest) {
                Some(manifest) => manifests.push(manifest),
                None => self.refuse(Table::PluginVersions, format!("{plugin}/{manifest_digest}/{component_digest}"))?,
            }
        }
        Ok(manifests)
    }

    /// Returns the plugin with this name.
    pub async fn plugin(&self, name: &PluginName) -> Result<Option<PluginRow>, StoreError> {
        Ok(self.plugins().await?.into_iter().find(|row| row.name == *name))
    }

    /// Returns all plugins, ordered by name.
    pub async fn plugins(&self) -> Result<Vec<PluginRow>, StoreError> {
        Ok(self.verified_instance().await?.take())
    }

    /// Deletes a plugin with all its versions. Returns whether the plugin existed.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| {
            let active = change.delete_found::<PluginRow>(BY_NAME, args![name]).await?;
            let stored = change.delete_found::<PluginVersionSummary>(VERSIONS, args![name]).await?;
            Ok(active + stored > 0)
        })
    }
}
