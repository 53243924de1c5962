//! An index of the bots that a change of a role, a resource or a binding affects.

use std::hash::Hash;

use monstrum_types::{BindingId, BotId, ResourceId, RoleId};

use super::Bot;

/// The bots of each role, resource and binding.
#[derive(Clone, Default)]
pub(super) struct Bound {
    roles: imbl::HashMap<RoleId, imbl::HashSet<BotId>>,
    resources: imbl::HashMap<ResourceId, imbl::HashSet<BotId>>,
    bindings: imbl::HashMap<BindingId, BotId>,
}

impl Bound {
    /// Returns the bots with a binding that has this role.
    pub(super) fn of_role(&self, role: RoleId) -> impl Iterator<Item = &BotId> {
        self.roles.get(&role).into_iter().flatten()
    }

    /// Returns the bots with a binding to this resource.
    pub(super) fn of_resource(&self, resource: ResourceId) -> impl Iterator<Item = &BotId> {
        self.resources.get(&resource).into_iter().flatten()
    }

    /// Returns the bot of a binding.
    pub(super) fn bot_of(&self, binding: BindingId) -> Option<BotId> {
        self.bindings.get(&binding).copied()
    }

    /// Adds the bindings of a bot.
    pub(super) fn add(&mut self, bot: &Bot) {
        let id = bot.row.id;
        for (binding, resource, role) in bot.references() {
            self.bindings.insert(binding, id);
            self.resources.entry(resource).or_default().insert(id);
            if let Some(role) = role {
                self.roles.entry(role).or_default().insert(id);
            }
        }
    }

    /// Removes the bindings of a bot. The bindings must be the same as when the bot was added.
    pub(super) fn remove(&mut self, bot: &Bot) {
        for (binding, resource, role) in bot.references() {
            self.bindings.remove(&binding);
            forget(&mut self.resources, &resource, bot.row.id);
            if let Some(role) = role {
                forget(&mut self.roles, &role, bot.row.id);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> String {
        format!("{} roles, {} resources, {} bindings", self.roles.len(), self.resources.len(), self.bindings.len())
    }
}

fn forget<Id: Hash + Eq + Clone>(bots: &mut imbl::HashMap<Id, imbl::HashSet<BotId>>, id: &Id, bot: BotId) {
    let Some(of_id) = bots.get_mut(id) else { return };
    of_id.remove(&bot);
    if of_id.is_empty() {
        bots.remove(id);
    }
}
