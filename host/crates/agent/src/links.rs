//! The links under which the bot of a task acts: as the journal keeps them, and as its calls have them.

use std::sync::Arc;

use monstrum_api::tasks::Narrow;
use monstrum_core::call::session;
use monstrum_core::call_types::links::{DelegationLink, Link, NarrowLink};
use monstrum_core::policy::Snapshot;
use monstrum_types::{BindingId, BotId, UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};

/// A link in the record of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskLink {
    /// A delegation. Its constraints are those of the policy in force.
    Delegation { binding: BindingId, from: BotId, to: BotId },
    /// What the starter of the task has narrowed.
    Narrow(Narrow),
}

impl TaskLink {
    /// Returns the link of a call as the journal keeps it.
    #[must_use]
    pub fn of_call(link: &Link) -> TaskLink {
        match link {
            Link::Delegation(link) => TaskLink::Delegation { binding: link.binding, from: link.from, to: link.to },
            Link::Narrow(link) => TaskLink::Narrow(link.narrow().clone()),
        }
    }

    fn link(&self) -> Link {
        match self {
            TaskLink::Delegation { binding, from, to } => {
                Link::Delegation(DelegationLink { binding: *binding, from: *from, to: *to, delegate: None })
            }
            TaskLink::Narrow(narrow) => Link::Narrow(NarrowLink::new(narrow)),
        }
    }
}

/// The links of a task that runs. What is narrowed is compiled once.
pub(crate) struct LinksOfTask {
    workspace: WorkspaceId,
    links: Vec<Link>,
}

impl LinksOfTask {
    pub(crate) fn new(workspace: WorkspaceId, links: &[TaskLink]) -> LinksOfTask {
        LinksOfTask { workspace, links: links.iter().map(TaskLink::link).collect() }
    }

    /// Returns the links for a call that begins now.
    pub(crate) fn of_call(&self, snapshot: &Snapshot, now: UtcMillis) -> Arc<[Link]> {
        session::current(snapshot, self.workspace, now, &self.links)
    }

    /// Returns whether every delegation is in force.
    pub(crate) fn are_in_force(&self, snapshot: &Snapshot, now: UtcMillis) -> bool {
        session::in_force(snapshot, self.workspace, now, &self.links).is_some()
    }

    /// Returns the time at which the first delegation expires.
    pub(crate) fn expire_at(&self, snapshot: &Snapshot, now: UtcMillis) -> Option<UtcMillis> {
        session::links_expire_at(snapshot, self.workspace, now, &self.links)
    }
}
