//! Who shares what: whether one workspace or several use a plugin, and the host.

use std::collections::HashMap;

use monstrum_types::{PluginName, WorkspaceId};

use crate::fair_queue::Share;
use crate::plugins::built_in;
use crate::policy::Bot;

/// The workspaces that use something.
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

/// The users of each plugin and of the host, as the bindings say. A binding counts whether or not it is enabled, since
/// it may be at any moment.
#[derive(Default)]
pub(super) struct Sharing {
    plugins: HashMap<PluginName, Users>,
    host: Option<Users>,
}

impl Sharing {
    /// What the bindings of `bots` say.
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
        // A sandbox takes no room of a plugin.
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

    /// What one workspace may hold of the room of a plugin.
    pub(super) fn of_plugin(&self, plugin: &PluginName) -> Share {
        share(self.plugins.get(plugin))
    }

    /// What one workspace may hold of the room of the host.
    pub(super) fn of_host(&self) -> Share {
        share(self.host.as_ref())
    }
}

fn share(users: Option<&Users>) -> Share {
    if users == Some(&Users::Several) { Share::Part } else { Share::Whole }
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
        assert_eq!((sharing.of_plugin(github), sharing.of_host()), (Share::Whole, Share::Whole));
        for (plugin, workspace) in [(github, one), (github, one), (jira, other), (sandbox, one), (sandbox, other)] {
            sharing.note(plugin, workspace);
        }
        let of_plugins = plugins.each_ref().map(|plugin| sharing.of_plugin(plugin));
        assert_eq!((of_plugins, sharing.of_host()), ([Share::Whole; 3], Share::Part));
        sharing.note(github, other);
        assert_eq!((sharing.of_plugin(github), sharing.of_plugin(jira)), (Share::Part, Share::Whole));
    }
}
