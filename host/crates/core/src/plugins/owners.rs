//! The owners of resource types and tool names, and the names that a version would take from other plugins.
//!
//! The table `owners` determines the owners, so the order in which folders are read has no effect. A plugin owns the
//! names of its first serving version. A version of another plugin that uses such a name waits for approval by a root
//! key. A tool name becomes free when the owner's serving version no longer has it. A resource type stays with its
//! owner even after an uninstall, because credentials were saved for this type.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use monstrum_manifest::{ClaimedNames, Manifest, claimed_names};
use monstrum_store::{OwnedKind, OwnedName, OwnerRow, Store, StoreError};
use monstrum_types::{PluginName, ResourceTypeId, ToolName, UtcMillis};

use crate::plugins::Plugin;

/// The owners of all names at one point in time.
#[derive(Default)]
pub struct Owners(BTreeMap<OwnedName, OwnerRow>);

impl Owners {
    /// Reads the owners from the database.
    pub async fn read(store: &Store) -> Result<Owners, StoreError> {
        Ok(Owners::new(store.owners().await?))
    }

    /// Creates the owners from rows.
    pub fn new(rows: Vec<OwnerRow>) -> Owners {
        Owners(rows.into_iter().map(|row| (row.name.clone(), row)).collect())
    }

    /// Returns the owner of a resource type.
    pub fn of_type(&self, id: &ResourceTypeId) -> Option<&OwnerRow> {
        self.0.get(&type_name(id))
    }

    /// Returns all plugins that own a name.
    pub(super) fn plugins(&self) -> HashSet<&str> {
        self.0.values().map(|row| row.plugin.as_str()).collect()
    }

    /// Returns the names in a manifest that belong to other plugins. The resource type comes first.
    pub(super) fn taken_by(&self, manifest: &Manifest) -> Vec<OwnerRow> {
        let rows = names(manifest).into_iter().filter_map(|name| self.0.get(&name));
        rows.filter(|row| row.plugin != manifest.name).cloned().collect()
    }

    /// Returns whether `plugin` may serve. A plugin must not serve if one of its names belongs to another plugin.
    pub fn permit(&self, plugin: &Plugin) -> bool {
        self.taken_by(&plugin.manifest).is_empty()
    }

    /// Returns whether every name in a manifest belongs to its plugin.
    pub(super) fn has_all(&self, manifest: &Manifest) -> bool {
        names(manifest).iter().all(|name| self.0.get(name).is_some_and(|row| row.plugin == manifest.name))
    }

    /// Assigns the free names of a manifest to its plugin, as a server start does when it loads the plugin.
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

/// Returns the names that a plugin with this manifest owns when it serves. The resource type comes first. The result
/// does not include the tools of single resources, because their names start with the name of the resource.
pub(super) fn names(manifest: &Manifest) -> Vec<OwnedName> {
    let resource_type = &manifest.resource_type;
    let tools = resource_type.tools.iter().map(|tool| tool_name(&tool.name));
    std::iter::once(type_name(&resource_type.id)).chain(tools).collect()
}

/// Describes the names that a version takes from other plugins. Returns a sentence for each type, and a sentence for
/// the tools of each plugin.
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

/// Returns the plugins that lose names.
pub(super) fn losers(takes: &[OwnerRow]) -> BTreeSet<&PluginName> {
    takes.iter().map(|row| &row.plugin).collect()
}

/// Fills the table `owners` in a database that was created before this table existed. Does nothing in any other
/// database.
///
/// A name belongs to the plugin whose recorded serving version has it. If several plugins have such a version, the name
/// belongs to the plugin that first stored a version with it. The rows of the database must be verified, because this
/// function relies on them.
pub async fn fill(store: &Store) -> Result<(), StoreError> {
    if !store.owners_are_due().await? {
        return Ok(());
    }
    // The plugin that first stored each name. If the times are equal, the first plugin in the order of names wins.
    let mut first: BTreeMap<OwnedName, (UtcMillis, PluginName)> = BTreeMap::new();
    for row in store.plugins().await? {
        let serving = store.plugin_version(&row.name, &row.manifest_digest, &row.component_digest).await?;
        let Some(serving) = serving.and_then(|stored| claimed_names(&stored.manifest)) else {
            tracing::error!(plugin.name = %row.name, "the stored version has no resource type, so the plugin owns no \
                                                      names");
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
        tracing::info!(names = rows.len(), "the table of name owners was filled");
    }
    Ok(())
}

fn owned(names: &ClaimedNames) -> BTreeSet<OwnedName> {
    std::iter::once(type_name(&names.resource_type)).chain(names.tools.iter().map(tool_name)).collect()
}
