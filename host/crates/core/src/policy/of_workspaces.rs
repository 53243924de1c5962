//! Objects by workspace and id, whose maps snapshots share.

use std::sync::Arc;

use monstrum_types::WorkspaceId;

/// Objects that belong to workspaces.
#[derive(Clone)]
pub(super) struct OfWorkspaces<I, T> {
    /// The workspace of each object, because a deletion names only the id.
    workspaces: imbl::HashMap<I, WorkspaceId>,
    objects: imbl::HashMap<WorkspaceId, imbl::OrdMap<I, Arc<T>>>,
}

impl<I, T> Default for OfWorkspaces<I, T> {
    fn default() -> Self {
        OfWorkspaces { workspaces: imbl::HashMap::default(), objects: imbl::HashMap::default() }
    }
}

impl<I: Copy + Ord + std::hash::Hash, T> OfWorkspaces<I, T> {
    /// Returns the objects of a workspace, in the order of their ids.
    pub(super) fn of_workspace(&self, workspace: WorkspaceId) -> impl Iterator<Item = &Arc<T>> {
        self.objects.get(&workspace).into_iter().flat_map(imbl::OrdMap::values)
    }

    /// Returns the object with this id in the workspace.
    pub(super) fn get(&self, workspace: WorkspaceId, id: I) -> Option<&Arc<T>> {
        self.objects.get(&workspace)?.get(&id)
    }

    /// Replaces the object with this id by another one, or removes it.
    pub(super) fn set(&mut self, id: I, object: Option<(WorkspaceId, T)>) {
        if let Some(workspace) = self.workspaces.remove(&id)
            && let Some(known) = self.objects.get_mut(&workspace)
        {
            known.remove(&id);
            if known.is_empty() {
                self.objects.remove(&workspace);
            }
        }
        if let Some((workspace, object)) = object {
            self.workspaces.insert(id, workspace);
            self.objects.entry(workspace).or_default().insert(id, Arc::new(object));
        }
    }
}
