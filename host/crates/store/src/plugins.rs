//! Plugins: every version that was ever loaded, and which of them serves.

use monstrum_types::{Digest, PluginName, UtcMillis};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{Store, StoreError};

/// A row of `plugins`: which stored version serves.
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
    /// The text of `monstrum.yaml`.
    pub manifest: String,
    /// The bytes of the component.
    pub component: Vec<u8>,
    /// The translations: an object of languages.
    pub locales: Value,
    pub created_at: UtcMillis,
}

/// A stored version without its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginVersionSummary {
    pub plugin: PluginName,
    pub version: String,
    pub manifest_digest: Digest,
    pub component_digest: Digest,
    /// SHA-256 of the text of the translations.
    pub locales_digest: Digest,
    pub created_at: UtcMillis,
}

/// A manifest of a stored version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredManifest {
    /// The text of `monstrum.yaml`.
    pub text: String,
    /// When the version was stored.
    pub created_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "name, version, manifest_digest, component_digest, updated_at, mac"
    };
}

macro_rules! version_columns {
    () => {
        "plugin, version, manifest_digest, component_digest, locales_digest, created_at, mac"
    };
}

const BY_NAME: &str = concat!("select ", columns!(), " from plugins where name = $1");
const VERSIONS: &str = concat!("select ", version_columns!(), " from plugin_versions where plugin = $1");
const VERSION: &str = concat!(
    "select ",
    version_columns!(),
    " from plugin_versions where plugin = $1 and manifest_digest = $2 and component_digest = $3"
);
const MANIFEST: &str = "select manifest, created_at from plugin_versions \
                        where plugin = $1 and manifest_digest = $2 and component_digest = $3";
const CONTENT: &str = "select plugin, version, manifest_digest, component_digest, manifest, component, locales, \
                       created_at from plugin_versions \
                       where plugin = $1 and manifest_digest = $2 and component_digest = $3";

impl FromRow for PluginRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(PluginRow {
            name: row.id("name")?,
            version: row.text("version")?,
            manifest_digest: row.id("manifest_digest")?,
            component_digest: row.id("component_digest")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl FromRow for PluginVersionRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(PluginVersionRow {
            plugin: row.id("plugin")?,
            version: row.text("version")?,
            manifest_digest: row.id("manifest_digest")?,
            component_digest: row.id("component_digest")?,
            manifest: row.text("manifest")?,
            component: row.bytes("component")?,
            locales: row.json("locales")?,
            created_at: row.time("created_at")?,
        })
    }
}

impl FromRow for StoredManifest {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(StoredManifest { text: row.text("manifest")?, created_at: row.time("created_at")? })
    }
}

impl FromRow for PluginVersionSummary {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(PluginVersionSummary {
            plugin: row.id("plugin")?,
            version: row.text("version")?,
            manifest_digest: row.id("manifest_digest")?,
            component_digest: row.id("component_digest")?,
            locales_digest: row.id("locales_digest")?,
            created_at: row.time("created_at")?,
        })
    }
}

impl Authentic for PluginRow {
    const TABLE: Table = Table::Plugins;

    fn scope(&self) -> Scope {
        Scope::Instance
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![&self.name, &self.version, &self.manifest_digest, &self.component_digest, self.updated_at]
    }
}

impl Authentic for PluginVersionSummary {
    const TABLE: Table = Table::PluginVersions;

    fn scope(&self) -> Scope {
        Scope::Instance
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            &self.plugin,
            &self.version,
            &self.manifest_digest,
            &self.component_digest,
            &self.locales_digest,
            self.created_at
        ]
    }
}

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
    /// Whether a content is the one whose digests were recorded.
    fn is_of(&self, content: &PluginVersionRow) -> bool {
        digest_of(content.manifest.as_bytes()) == self.manifest_digest
            && digest_of(&content.component) == self.component_digest
            && digest_of(content.locales.to_string().as_bytes()) == self.locales_digest
    }
}

/// `sha256:` and 64 hex digits.
pub(crate) fn digest_of(bytes: &[u8]) -> Digest {
    let text = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
    text.parse().expect("a SHA-256 in hex is a digest")
}

impl Store {
    /// Stores a version, unless it is stored already; whether it was new. It does not serve until it is told to.
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
            // One whose MAC is wrong stands in its place, and a plugin may refer to it.
            if change.session.run(overwrite, args).await? > 0 {
                change.authenticate(&summary).await?;
                return Ok(true);
            }
            let content = values![&row.manifest, row.component.as_slice(), &row.locales];
            change.insert(&summary, Vec::new(), content).await?;
            Ok(true)
        })
    }

    /// A stored version with its contents, if they are those whose digests were recorded.
    pub async fn plugin_version(
        &self,
        plugin: &PluginName,
        manifest: &Digest,
        component: &Digest,
    ) -> Result<Option<PluginVersionRow>, StoreError> {
        let versions = self.plugin_versions(plugin).await?;
        let is_meant = |version: &&PluginVersionSummary| {
            version.manifest_digest == *manifest && version.component_digest == *component
        };
        let Some(version) = versions.iter().find(is_meant) else { return Ok(None) };
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

    /// The stored versions of a plugin, oldest first.
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

    /// The manifests of the stored versions of a plugin, oldest first.
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

    /// The plugin of this name.
    pub async fn plugin(&self, name: &PluginName) -> Result<Option<PluginRow>, StoreError> {
        Ok(self.plugins().await?.into_iter().find(|row| row.name == *name))
    }

    /// All plugins, by name.
    pub async fn plugins(&self) -> Result<Vec<PluginRow>, StoreError> {
        Ok(self.verified_instance().await?.take())
    }

    /// Forgets a plugin with all its versions; whether there was one.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| {
            let served = change.delete_found::<PluginRow>(BY_NAME, args![name]).await?;
            let stored = change.delete_found::<PluginVersionSummary>(VERSIONS, args![name]).await?;
            Ok(served + stored > 0)
        })
    }
}
