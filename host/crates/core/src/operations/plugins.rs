//! The plugins of the instance: the loaded version of each plugin, and the error of a version that cannot be loaded.
//! Changes require a root key.

mod touches;

use monstrum_api::plugins::{Approval, ComparedVersion, Pending, Plugin, PluginDiff, PluginList};
use monstrum_store::Page;
use monstrum_types::PluginName;

use super::change::Change;
use super::list;
use super::{OperationError, Operator, Root};
use crate::app::App;
use crate::plugins::folder::Icon;
use crate::plugins::{ApproveError, Entry, LoadError, VersionDiff};

pub(super) fn view(entry: Entry) -> Plugin {
    let Entry { name, status, error, serving, pending, is_to_retry: _ } = entry;
    let pending = pending.map(|pending| Pending {
        version: pending.plugin.manifest.version.to_string(),
        digest: pending.digest().clone(),
        manifest_digest: pending.manifest_digest().clone(),
        grows: pending.added,
    });
    let plugin = serving.as_deref();
    let manifest = plugin.map(|plugin| &plugin.manifest);
    let component = plugin.and_then(|plugin| plugin.component.as_ref());
    Plugin {
        name,
        version: manifest.map(|manifest| manifest.version.to_string()),
        digest: plugin.and_then(|plugin| plugin.digest().cloned()),
        status,
        description: manifest.map(|manifest| manifest.description.clone()),
        author: manifest.map(|manifest| manifest.author.clone()),
        license: manifest.map(|manifest| manifest.license.clone()),
        tags: manifest.map(|manifest| manifest.tags.clone()).unwrap_or_default(),
        homepage: manifest.and_then(|manifest| manifest.homepage.clone()),
        repository: manifest.and_then(|manifest| manifest.repository.clone()),
        error,
        imports: component.map(|component| component.imports().to_vec()).unwrap_or_default(),
        capabilities: manifest.map(|manifest| manifest.executor.capabilities.clone()).unwrap_or_default(),
        resource_type: manifest.map(|manifest| manifest.resource_type.id.clone()),
        tools: plugin.iter().flat_map(|plugin| &plugin.tools).map(|tool| tool.manifest.name.clone()).collect(),
        functions: component.map(|component| component.functions().to_vec()).unwrap_or_default(),
        warnings: plugin.map(|plugin| plugin.warnings.clone()).unwrap_or_default(),
        pending,
    }
}

/// Lists plugins.
pub async fn list(app: &App, _: &Operator, page: &Page<String>) -> Result<PluginList, OperationError> {
    Ok(list::page_by_name(app.plugins.entries(), page, |entry| &entry.name, view))
}

/// Shows a plugin.
pub async fn show(app: &App, _: &Operator, name: String) -> Result<Plugin, OperationError> {
    let entry = app.plugins.entry(&name).ok_or_else(|| OperationError::not_found("plugin"))?;
    Ok(view(entry))
}

/// Returns the icon of a plugin. Fails if the plugin has no icon.
pub fn icon(app: &App, _: &Operator, name: &str) -> Result<Icon, OperationError> {
    let entry = app.plugins.entry(name).ok_or_else(|| OperationError::not_found("plugin"))?;
    let icon = entry.serving.as_ref().and_then(|plugin| plugin.icon.clone());
    icon.ok_or_else(|| OperationError::not_found("icon"))
}

/// Reloads a plugin's folder. If the new version fails, the previous version stays in force.
pub async fn reload(app: &App, caller: &Root, name: String) -> Result<Plugin, OperationError> {
    // The name becomes a path, so it must be a valid plugin name or a folder that a scan has found.
    if name.parse::<PluginName>().is_err() && app.plugins.entry(&name).is_none() {
        return Err(OperationError::not_found("plugin"));
    }
    let change = Change::new("plugin.reload", &name).from(&app.plugins.entry(&name).map(view));
    let load = async {
        let entry = app.plugins.load(&name).await;
        // Without its folder, the plugin is unloaded here.
        app.changed().await?;
        entry.ok_or_else(|| OperationError::not_found("plugin"))
    };
    let entry = change.record(app, caller, load).await?;
    Ok(view(entry))
}

/// Compares the version that waits for approval with the version before it. Fails if no version waits.
pub async fn diff(app: &App, _: &Root, name: &str) -> Result<PluginDiff, OperationError> {
    let entry = app.plugins.entry(name).ok_or_else(|| OperationError::not_found("plugin"))?;
    let pending = entry.pending.ok_or_else(|| OperationError::NotFound(ApproveError::NothingPending.to_string()))?;
    let VersionDiff { from, to, grows, narrows, tools } = app.plugins.diff(&pending).await?;
    let touches = touches::touches(app, &pending.plugin.manifest).await?;
    let to = ComparedVersion { signed_by: app.packages.signer(&pending), ..to };
    Ok(PluginDiff { from, to, grows, narrows, tools, touches })
}

/// Approves the version that waits for approval and puts it into force.
pub async fn approve(app: &App, caller: &Root, name: String, approval: Approval) -> Result<Plugin, OperationError> {
    let before = app.plugins.entry(&name).ok_or_else(|| OperationError::not_found("plugin"))?;
    // Only the version recorded here may be approved, not a version that arrives later.
    let pending = before.pending.as_ref();
    let approval = Approval {
        digest: approval.digest.or_else(|| pending.and_then(|pending| pending.plugin.digest().cloned())),
        manifest_digest: approval.manifest_digest.or_else(|| pending.map(|pending| pending.manifest_digest().clone())),
    };
    let change = Change::new("plugin.approve", &name).from(&view(before)).to(&approval);
    let approve = async {
        let approved = app.plugins.approve(&name, approval.digest.as_ref(), approval.manifest_digest.as_ref()).await;
        approved.map_err(|error| match error {
            ApproveError::Load(LoadError::Store(error)) => OperationError::from(error),
            refused => OperationError::conflict(refused.to_string()),
        })
    };
    let entry = change.apply(app, caller, approve).await?;
    Ok(view(entry))
}
