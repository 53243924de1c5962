//! Plugins: every version that was ever loaded, and which of them serves.

use monstrum_types::{Digest, PluginName, UtcMillis};
use serde_json::Value;

use crate::db::{FromRow, Row, args};
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

/// Makes a stored version the one that serves.
pub(crate) const PUT: &str = "insert into plugins (name, version, manifest_digest, component_digest, updated_at) \
                              values ($1, $2, $3, $4, $5) on conflict (name) do update set version = excluded.version, \
                              manifest_digest = excluded.manifest_digest, \
                              component_digest = excluded.component_digest, updated_at = excluded.updated_at";

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
            created_at: row.time("created_at")?,
        })
    }
}

impl Store {
    /// Stores a version, unless it is stored already; whether it was new. It does not serve until it is told to.
    pub async fn insert_plugin_version(&self, row: &PluginVersionRow) -> Result<bool, StoreError> {
        let sql = "insert into plugin_versions \
                   (plugin, version, manifest_digest, component_digest, manifest, component, locales, created_at) \
                   values ($1, $2, $3, $4, $5, $6, $7, $8) \
                   on conflict (plugin, manifest_digest, component_digest) do nothing";
        let args = args![
            &row.plugin,
            &row.version,
            &row.manifest_digest,
            &row.component_digest,
            &row.manifest,
            row.component.as_slice(),
            &row.locales,
            row.created_at,
        ];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// A stored version with its contents.
    pub async fn plugin_version(
        &self,
        plugin: &PluginName,
        manifest: &Digest,
        component: &Digest,
    ) -> Result<Option<PluginVersionRow>, StoreError> {
        let sql = "select plugin, version, manifest_digest, component_digest, manifest, component, locales, created_at \
                   from plugin_versions where plugin = $1 and manifest_digest = $2 and component_digest = $3";
        self.db.one(sql, args![plugin, manifest, component]).await
    }

    /// The stored versions of a plugin, oldest first.
    pub async fn plugin_versions(&self, plugin: &PluginName) -> Result<Vec<PluginVersionSummary>, StoreError> {
        let sql = "select plugin, version, manifest_digest, component_digest, created_at from plugin_versions \
                   where plugin = $1 order by created_at, manifest_digest, component_digest";
        self.db.all(sql, args![plugin]).await
    }

    /// The manifests of the stored versions of a plugin, oldest first.
    pub async fn plugin_manifests(&self, plugin: &PluginName) -> Result<Vec<StoredManifest>, StoreError> {
        let sql = "select manifest, created_at from plugin_versions \
                   where plugin = $1 order by created_at, manifest_digest, component_digest";
        self.db.all(sql, args![plugin]).await
    }

    /// The plugin of this name.
    pub async fn plugin(&self, name: &PluginName) -> Result<Option<PluginRow>, StoreError> {
        let sql = "select name, version, manifest_digest, component_digest, updated_at from plugins where name = $1";
        self.db.one(sql, args![name]).await
    }

    /// All plugins, by name.
    pub async fn plugins(&self) -> Result<Vec<PluginRow>, StoreError> {
        let sql = "select name, version, manifest_digest, component_digest, updated_at from plugins order by name";
        self.db.all(sql, args![]).await
    }

    /// Forgets a plugin with all its versions; whether there was one.
    pub async fn delete_plugin(&self, name: &PluginName) -> Result<bool, StoreError> {
        let mut session = self.db.write().await?;
        let served = session.run("delete from plugins where name = $1", args![name]).await?;
        let stored = session.run("delete from plugin_versions where plugin = $1", args![name]).await?;
        if served + stored > 0 {
            session.bump_generation().await?;
        }
        session.commit().await?;
        Ok(served + stored > 0)
    }
}
