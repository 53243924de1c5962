//! Whether one workspace or several use a plugin, and the host.

use std::collections::HashMap;

use monstrum_types::{PluginName, WorkspaceId};

use crate::fair_queue::Share;
use crate::plugins::built_in;
use crate::policy::Bot;

/// The workspaces that use a plugin or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    One(WorkspaceId),
    Several,
}

impl Users {
    fn with(self, workspace: WorkspaceId) -> Users {
        if self == Users::One(workspace) { self } else { Users::Several }
    }
}

/// The users of each plugin and of the host, by their bindings. A disabled binding counts too, since it may be enabled at
/// any moment.
#[derive(Default)]
pub(super) struct Sharing {
    plugins: HashMap<PluginName, Users>,
    host: Option<Users>,
}

impl Sharing {
    /// The users according to the bindings of `bots`.
    pub(super) fn of<'a>(bots: impl Iterator<Item = &'a Bot>) -> Sharing {
        let mut sharing = Sharing::default();
        for bot in bots {
            for binding in &bot.bindings {
                sharing.note(&binding.resource.plugin.name, bot.row.workspace_id);
            }
        }
        sharing
    }

    fn note(&mut self, plugin: &PluginName, workspace: WorkspaceId) {
        let one = Users::One(workspace);
        self.host = Some(self.host.map_or(one, |users| users.with(workspace)));
        // Calls of the sandbox use no slots of a plugin.
        if plugin.as_str() == built_in::SANDBOX {
            return;
        }
        match self.plugins.get_mut(plugin) {
            Some(users) => *users = users.with(workspace),
            None => {
                self.plugins.insert(plugin.clone(), one);
            }
        }
    }

    /// The share of a plugin's call slots that `workspace` may use.
    pub(super) fn of_plugin(&self, plugin: &PluginName, workspace: WorkspaceId) -> Share {
        share(self.plugins.get(plugin), workspace)
    }

    /// The share of the host's call slots that `workspace` may use.
    pub(super) fn of_host(&self, workspace: WorkspaceId) -> Share {
        share(self.host.as_ref(), workspace)
    }
}

/// Only a sole user may use all slots. A workspace without a binding can still run a plugin, by a credential check or a
/// platform function, and gets the share of an additional user.
fn share(users: Option<&Users>, workspace: WorkspaceId) -> Share {
    if users == Some(&Users::One(workspace)) { Share::Whole } else { Share::Part }
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
            sharing.note(plugin, workspace);
        }
        assert_eq!((sharing.of_plugin(github, one), sharing.of_plugin(jira, other)), (Share::Whole, Share::Whole));
        assert_eq!((sharing.of_host(one), sharing.of_host(other)), (Share::Part, Share::Part));
        sharing.note(github, other);
        assert_eq!((sharing.of_plugin(github, one), sharing.of_plugin(github, other)), (Share::Part, Share::Part));
        assert_eq!(sharing.of_plugin(jira, other), Share::Whole);
    }

    #[test]
    fn a_workspace_without_a_binding_gets_a_part_even_beside_a_sole_user() {
        let (user, without) = (WorkspaceId::new(), WorkspaceId::new());
        let [github, jira] = ["github", "jira"].map(|name| name.parse::<PluginName>().unwrap());
        let mut sharing = Sharing::default();
        assert_eq!((sharing.of_plugin(&github, without), sharing.of_host(without)), (Share::Part, Share::Part));
        sharing.note(&github, user);
        assert_eq!((sharing.of_plugin(&github, without), sharing.of_host(without)), (Share::Part, Share::Part));
        assert_eq!(sharing.of_plugin(&jira, user), Share::Part, "of another plugin");
        assert_eq!((sharing.of_plugin(&github, user), sharing.of_host(user)), (Share::Whole, Share::Whole));
    }
}
