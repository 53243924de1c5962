//! The resources of type `agent` that have a connected agent. The others have no tools.

use monstrum_types::ResourceId;
use parking_lot::Mutex;

/// The resources with an agent at this host, and those with an agent at another host of the database.
#[derive(Default)]
pub(super) struct Presence(Mutex<Places>);

#[derive(Default)]
struct Places {
    here: imbl::HashSet<ResourceId>,
    elsewhere: imbl::HashSet<ResourceId>,
    /// The resources in either set. Copies share it, so that a renewal sees at once whether it has changed.
    all: imbl::HashSet<ResourceId>,
}

impl Presence {
    pub(super) fn set_here(&self, resource: ResourceId, is_present: bool) {
        let mut places = self.0.lock();
        let Places { here, elsewhere, all } = &mut *places;
        if is_present && here.insert(resource).is_none() {
            all.insert(resource);
        } else if !is_present && here.remove(&resource).is_some() && !elsewhere.contains(&resource) {
            all.remove(&resource);
        }
    }

    pub(super) fn set_elsewhere(&self, resources: imbl::HashSet<ResourceId>) {
        let mut places = self.0.lock();
        let Places { here, elsewhere, all } = &mut *places;
        *all = here.clone().union(resources.clone());
        *elsewhere = resources;
    }

    /// Returns the resources that have an agent at any host.
    pub(super) fn all(&self) -> imbl::HashSet<ResourceId> {
        self.0.lock().all.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(resources: &[ResourceId]) -> imbl::HashSet<ResourceId> {
        resources.iter().copied().collect()
    }

    #[test]
    fn a_resource_has_an_agent_if_any_host_has_one() {
        let (one, other) = (ResourceId::new(), ResourceId::new());
        let presence = Presence::default();
        presence.set_here(one, true);
        presence.set_elsewhere(set(&[one, other]));
        assert_eq!(presence.all(), set(&[one, other]));
        presence.set_here(one, false);
        assert_eq!(presence.all(), set(&[one, other]), "the other host still has an agent");
        assert!(presence.all().ptr_eq(&presence.all()), "nothing has changed");
        presence.set_here(other, true);
        presence.set_elsewhere(set(&[]));
        assert_eq!(presence.all(), set(&[other]));
        presence.set_here(other, false);
        assert!(presence.all().is_empty());
    }
}
