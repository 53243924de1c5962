//! Counts the workspaces that use each plugin and the host.

use monstrum_types::{PluginName, WorkspaceId};

use crate::fair_queue::Share;
use crate::plugins::built_in;
use crate::policy::Bot;

/// The workspaces that use a plugin or the host, with the number of their bindings.
type Users = imbl::HashMap<WorkspaceId, usize>;

/// The workspaces that use each plugin and the host, with the number of their bindings. The count includes disabled
/// bindings, because they may be enabled at any time.
#[derive(Clone, Default)]
pub(super) struct Sharing {
    plugins: imbl::HashMap<PluginName, Users>,
    host: Users,
}

impl Sharing {
    /// Counts the bindings of a bot.
    pub(super) fn add(&mut self, bot: &Bot) {
        for binding in &bot.bindings {
            self.count(&binding.resource.plugin.name, bot.row.workspace_id);
        }
    }

    /// Subtracts the bindings of a bot. An earlier call of `add` must have counted these bindings.
    pub(super) fn remove(&mut self, bot: &Bot) {
        for binding in &bot.bindings {
            uncount(&mut self.host, bot.row.workspace_id);
            if let Some(users) = self.plugins.get_mut(&binding.resource.plugin.name) {
                uncount(users, bot.row.workspace_id);
            }
        }
    }

    fn count(&mut self, plugin: &PluginName, workspace: WorkspaceId) {
        *self.host.entry(workspace).or_default() += 1;
        // Calls of sandbox tools use no call slots of a plugin.
        if plugin.as_str() != built_in::SANDBOX {
            *self.plugins.entry(plugin.clone()).or_default().entry(workspace).or_default() += 1;
        }
    }

    /// Returns the share of a plugin's call slots that `workspace` may use.
    pub(super) fn of_plugin(&self, plugin: &PluginName, workspace: WorkspaceId) -> Share {
        share(self.plugins.get(plugin), workspace)
    }

    /// Returns the share of the host's call slots that `workspace` may use.
    pub(super) fn of_host(&self, workspace: WorkspaceId) -> Share {
        share(Some(&self.host), workspace)
    }
}

#[cfg(test)]
impl Sharing {
    /// Returns the users with the number of their bindings, as text.
    pub(super) fn counts(&self) -> String {
        let sorted =
            |users: &Users| users.iter().map(|(id, count)| (*id, *count)).collect::<std::collections::BTreeMap<_, _>>();
        let users = self.plugins.iter().filter(|(_, users)| !users.is_empty());
        let plugins: std::collections::BTreeMap<_, _> = users.map(|(name, users)| (name, sorted(users))).collect();
        format!("{:?} {plugins:?}", sorted(&self.host))
    }
}

/// Returns the share of `workspace`. Only a sole user may use all call slots. A workspace without a binding can run a
/// plugin for a credential check or a platform function, and gets the share that an additional user would get.
fn share(users: Option<&Users>, workspace: WorkspaceId) -> Share {
    let is_sole = users.is_some_and(|users| users.len() == 1 && users.contains_key(&workspace));
    if is_sole { Share::Whole } else { Share::Part }
}

fn uncount(users: &mut Users, workspace: WorkspaceId) {
    match users.get_mut(&workspace) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(users.remove(&workspace)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_shared_once_a_second_workspace_has_a_binding_to_it() {
        let (one, other) = (WorkspaceId::new(), WorkspaceId::new());
        let plugins = ["github", "jira", "sandbox"].map(|name| name.parse::<PluginName>().unwrap());
        let [github, jira, sandbox] = &plugins;
        let mut sharing = Sharing::default();
        for (plugin, workspace) in [(github, one), (github, one), (jira, other), (sandbox, one), (sandbox, other)] {
            sharing.count(plugin, workspace);
        }
        assert_eq!((sharing.of_plugin(github, one), sharing.of_plugin(jira, other)), (Share::Whole, Share::Whole));
        assert_eq!((sharing.of_host(one), sharing.of_host(other)), (Share::Part, Share::Part));
        sharing.count(github, other);
        assert_eq!((sharing.of_plugin(github, one), sharing.of_plugin(github, other)), (Share::Part, Share::Part));
        assert_eq!(sharing.of_plugin(jira, other), Share::Whole);
    }

    #[test]
    fn a_workspace_without_a_binding_gets_a_part_even_beside_a_sole_user() {
        let (user, without) = (WorkspaceId::new(), WorkspaceId::new());
        let [github, jira] = ["github", "jira"].map(|name| name.parse::<PluginName>().unwrap());
        let mut sharing = Sharing::default();
        assert_eq!((sharing.of_plugin(&github, without), sharing.of_host(without)), (Share::Part, Share::Part));
        sharing.count(&github, user);
        assert_eq!((sharing.of_plugin(&github, without), sharing.of_host(without)), (Share::Part, Share::Part));
        assert_eq!(sharing.of_plugin(&jira, user), Share::Part, "the workspace does not use this plugin");
        assert_eq!((sharing.of_plugin(&github, user), sharing.of_host(user)), (Share::Whole, Share::Whole));
    }
}
