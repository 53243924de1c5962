//! Reports tools that come from outside and wait for a decision, discoveries that fail, and plugins with tool names that
//! are now reserved.

use monstrum_manifest::new_reserved_prefix;
use monstrum_store::{ResourceRow, Store, StoreError};
use monstrum_types::{DiscoveryStatus, PinStatus};

use super::Findings;
use monstrum_core::plugins::Plugins;
use monstrum_core::policy::Policy;

/// Reports the resources whose tools come from outside.
pub(super) async fn check(
    found: &mut Findings,
    rows: &[ResourceRow],
    policy: &Policy,
    store: &Store,
) -> Result<(), StoreError> {
    let snapshot = policy.load();
    for row in rows {
        if !snapshot.resource_type(&row.resource_type).is_some_and(|plugin| plugin.has_remote_tools()) {
            continue;
        }
        let about = format!("resource {}", row.name);
        let tools = store.resource_tools(row.workspace_id, row.id).await?;
        let count = |status| tools.iter().filter(|tool| tool.status == status).count();
        let waiting = [(PinStatus::Pending, "new"), (PinStatus::Changed, "changed"), (PinStatus::Invalid, "invalid")];
        let waiting = waiting.map(|(status, word)| (count(status), word));
        let waiting: Vec<String> = waiting
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        if !waiting.is_empty() {
            let what = format!("bots cannot use some of its tools: {}", waiting.join(", "));
            let remedy = format!("review them with `monstrum mcp tools {}`, then approve or reject them", row.name);
            found.weak(about.clone(), what, remedy);
        }
        let discovery = store.discovery(row.workspace_id, row.id).await?;
        if let Some(failed) = discovery.filter(|discovery| discovery.status == DiscoveryStatus::Failed) {
            let what = format!("the last discovery of its tools failed: {}", failed.error.unwrap_or_default());
            let remedy =
                "correct the configuration, the network rules or the credential of the resource, or the server";
            found.broken(about, what, remedy);
        }
    }
    Ok(())
}

/// Reports plugins in force with tool names whose prefix was reserved after they were installed.
pub(super) fn check_prefixes(found: &mut Findings, plugins: &Plugins) {
    for plugin in plugins.serving().into_iter().filter(|plugin| plugin.component.is_some()) {
        let names = plugin.tools.iter().map(|tool| tool.manifest.name.as_str());
        let reserved: Vec<&str> = names.filter(|name| new_reserved_prefix(name).is_some()).collect();
        if !reserved.is_empty() {
            let what = format!("the names of its tools are now reserved for the platform: {}", reserved.join(", "));
            let remedy = "ask the author for a version with other names; a new version with these names is rejected";
            found.weak(format!("plugin {}", plugin.name), what, remedy);
        }
    }
}
