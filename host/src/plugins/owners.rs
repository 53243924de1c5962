//! Which plugin a resource type or a tool's name belongs to, and what a version would take from another plugin.
//!
//! The table `owners` decides, not the order in which folders are read. A plugin owns the names of the first version that
//! serves; a version of another plugin that wants one of them waits for a root key. A tool's name is free again when the
//! owner's serving version lacks it. A resource type stays with its owner, also after an uninstall: credentials were
//! given for it.

use std::collections::{BTreeMap, BTreeSet};

use monstrum_manifest::{ClaimedNames, Manifest, claimed_names};
use monstrum_store::{OwnedKind, OwnedName, OwnerRow, Store, StoreError};
use monstrum_types::{PluginName, ResourceTypeId, ToolName, UtcMillis};

use crate::plugins::Plugin;

/// The owners of all names, as they were at one moment.
#[derive(Default)]
pub struct Owners(BTreeMap<OwnedName, OwnerRow>);

impl Owners {
    /// The owners as the database has them.
    pub async fn read(store: &Store) -> Result<Owners, StoreError> {
        Ok(Owners::new(store.owners().await?))
    }

    /// The owners in these rows.
    pub fn new(rows: Vec<OwnerRow>) -> Owners {
        Owners(rows.into_iter().map(|row| (row.name.clone(), row)).collect())
    }

    /// The owner of a resource type.
    pub fn of_type(&self, id: &ResourceTypeId) -> Option<&OwnerRow> {
        self.0.get(&type_name(id))
    }

    /// Whether `plugin` owns any name.
    pub(super) fn has(&self, plugin: &str) -> bool {
        self.0.values().any(|row| row.plugin.as_str() == plugin)
    }

    /// The names in a manifest that belong to other plugins, its type first.
    pub(super) fn taken_by(&self, manifest: &Manifest) -> Vec<OwnerRow> {
        let rows = names(manifest).into_iter().filter_map(|name| self.0.get(&name));
        rows.filter(|row| row.plugin != manifest.name).cloned().collect()
    }

    /// Whether `plugin` may serve: none of its names belongs to another plugin.
    pub fn permit(&self, plugin: &Plugin) -> bool {
        self.taken_by(&plugin.manifest).is_empty()
    }

    /// Whether every name in a manifest belongs to its plugin.
    pub(super) fn has_all(&self, manifest: &Manifest) -> bool {
        names(manifest).iter().all(|name| self.0.get(name).is_some_and(|row| row.plugin == manifest.name))
    }

    /// Lets the plugin of a manifest own the names in it that are free, as a start would.
    pub(super) fn claim(&mut self, manifest: &Manifest, now: UtcMillis) {
        for name in names(manifest) {
            let row =
                OwnerRow { name: name.clone(), plugin: manifest.name.clone(), legacy_plugin: None, created_at: now };
            self.0.entry(name).or_insert(row);
        }
    }
}

fn type_name(id: &ResourceTypeId) -> OwnedName {
    OwnedName { kind: OwnedKind::Type, name: id.to_string() }
}

fn tool_name(name: &ToolName) -> OwnedName {
    OwnedName { kind: OwnedKind::Tool, name: name.to_string() }
}

/// The names that a plugin with this manifest owns once it serves, its type first. Tools of single resources are not
/// among them: their names start with that of the resource.
pub(super) fn names(manifest: &Manifest) -> Vec<OwnedName> {
    let resource_type = &manifest.resource_type;
    let tools = resource_type.tools.iter().map(|tool| tool_name(&tool.name));
    std::iter::once(type_name(&resource_type.id)).chain(tools).collect()
}

/// What a version takes from other plugins, a sentence for each type and for the tools of each plugin.
pub(super) fn sentences(takes: &[OwnerRow]) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut tools: BTreeMap<&PluginName, Vec<String>> = BTreeMap::new();
    for OwnerRow { name, plugin, .. } in takes {
        match name.kind {
            OwnedKind::Type => sentences.push(format!("takes type `{}` from plugin `{plugin}`", name.name)),
            OwnedKind::Tool => tools.entry(plugin).or_default().push(format!("`{}`", name.name)),
        }
    }
    let listed = tools.into_iter().map(|(plugin, tools)| {
        let word = if tools.len() == 1 { "tool" } else { "tools" };
        format!("takes {word} {} from plugin `{plugin}`", tools.join(", "))
    });
    sentences.extend(listed);
    sentences
}

/// The plugins that lose names.
pub(super) fn losers(takes: &[OwnerRow]) -> BTreeSet<&PluginName> {
    takes.iter().map(|row| &row.plugin).collect()
}

/// Fills `owners` in a database from before the table existed. Does nothing in any other database.
///
/// A name belongs to the plugin whose recorded serving version has it. Where several do, it belongs to the plugin that
/// stored a version with the name first. Call this only for a database whose rows are trusted as they are: it believes
/// what the rows of plugins say.
pub async fn fill(store: &Store) -> Result<(), StoreError> {
    if !store.owners_are_due().await? {
        return Ok(());
    }
    // The first to have stored each name. Of two at the same moment the plugin whose name sorts first.
    let mut first: BTreeMap<OwnedName, (UtcMillis, PluginName)> = BTreeMap::new();
    for row in store.plugins().await? {
        let serving = store.plugin_version(&row.name, &row.manifest_digest, &row.component_digest).await?;
        let Some(serving) = serving.and_then(|stored| claimed_names(&stored.manifest)) else {
            tracing::error!(plugin.name = %row.name, "the stored version names no resource type, so it owns nothing");
            continue;
        };
        let wanted = owned(&serving);
        for stored in store.plugin_manifests(&row.name).await? {
            let Some(names) = claimed_names(&stored.text) else { continue };
            for name in owned(&names).intersection(&wanted) {
                let candidate = (stored.created_at, row.name.clone());
                match first.get(name) {
                    Some(known) if *known <= candidate => {}
                    _ => drop(first.insert(name.clone(), candidate)),
                }
            }
        }
    }
    let rows = first.into_iter().map(|(name, (created_at, plugin))| OwnerRow {
        name,
        legacy_plugin: Some(plugin.clone()),
        plugin,
        created_at,
    });
    let rows: Vec<OwnerRow> = rows.collect();
    if store.fill_owners(&rows).await? {
        tracing::info!(names = rows.len(), "the names of plugins have owners now");
    }
    Ok(())
}

fn owned(names: &ClaimedNames) -> BTreeSet<OwnedName> {
    std::iter::once(type_name(&names.resource_type)).chain(names.tools.iter().map(tool_name)).collect()
}
