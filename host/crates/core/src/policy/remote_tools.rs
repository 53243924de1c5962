//! The approved tools that come from outside, by resource.

use std::sync::Arc;

use monstrum_store::{Changed, ResourceToolRow};
use monstrum_types::{ResourceId, ResourceToolId};

/// The served tools of one resource, sorted by id.
pub type ServedTools = Arc<Vec<Arc<ResourceToolRow>>>;

/// The served tools of a snapshot. Tools that are not approved, or are declared with another definition, are not in it.
#[derive(Clone, Default)]
pub(super) struct RemoteTools {
    of_resources: imbl::HashMap<ResourceId, ServedTools>,
    owners: imbl::HashMap<ResourceToolId, ResourceId>,
}

impl RemoteTools {
    /// Returns the served tools of a resource.
    pub(super) fn of(&self, resource: ResourceId) -> ServedTools {
        self.of_resources.get(&resource).cloned().unwrap_or_default()
    }

    /// Applies changes of rows. Returns the resources whose served tools may have changed.
    pub(super) fn change(&mut self, rows: Changed<ResourceToolId, ResourceToolRow>) -> Vec<ResourceId> {
        let mut affected = Vec::new();
        for (id, row) in rows {
            let owner = self.owners.remove(&id);
            if let Some(owner) = owner {
                self.edit(owner, |tools| tools.retain(|tool| tool.id != id));
                affected.push(owner);
            }
            if let Some(row) = row.filter(ResourceToolRow::is_served) {
                let resource = row.resource_id;
                self.owners.insert(id, resource);
                self.edit(resource, |tools| {
                    let at = tools.partition_point(|tool| tool.id < id);
                    tools.insert(at, Arc::new(row));
                });
                affected.push(resource);
            }
        }
        affected
    }

    fn edit(&mut self, resource: ResourceId, edit: impl FnOnce(&mut Vec<Arc<ResourceToolRow>>)) {
        let mut tools = self.of_resources.remove(&resource).unwrap_or_default();
        edit(Arc::make_mut(&mut tools));
        if !tools.is_empty() {
            self.of_resources.insert(resource, tools);
        }
    }
}
