//! First stage: the calling bot, and the policy snapshot that applies to the whole call.

use std::sync::Arc;

use monstrum_guardian::{DelegationRules, Denial};
use monstrum_types::{CallOutcome, Code, Labels, UtcMillis, WorkspaceId};

use crate::call_types::incoming::IncomingCall;
use crate::call_types::links::{DelegationLink, Link};
use crate::call_types::refusal::{Refusal, refuse};
use crate::policy::{Binding, Bot, Policy, Snapshot};

/// A bot, and the policy snapshot by which its call is judged.
pub struct Session {
    pub snapshot: Arc<Snapshot>,
    pub bot: Arc<Bot>,
    pub now: UtcMillis,
    /// The rules of the delegations under which the bot acts, outermost first. The list is empty if the bot acts for
    /// itself.
    pub delegation: Arc<[Arc<DelegationRules>]>,
    /// The labels that the call carries.
    pub labels: Labels,
}

impl Session {
    /// Opens a session with the current snapshot. Refuses the call if the snapshot may be older than the database.
    pub fn open(policy: &Policy, now: UtcMillis, call: &IncomingCall) -> Result<Session, Refusal> {
        if policy.is_stale() {
            let message = "the permissions could not be loaded; try again";
            return Err(Box::new(CallOutcome::error(Code::Unavailable, message)));
        }
        Session::of(policy.load(), now, call)
    }

    /// Opens a session with a given snapshot.
    pub fn of(snapshot: Arc<Snapshot>, now: UtcMillis, call: &IncomingCall) -> Result<Session, Refusal> {
        let Some(bot) = call.bot().and_then(|bot| snapshot.bot(call.workspace(), bot)).cloned() else {
            return Err(refuse(Denial::unknown_tool(call.tool())));
        };
        let Some(delegation) = in_force(&snapshot, call.workspace(), now, call.links()) else {
            let (rule, reason) =
                ("delegation".to_owned(), "a delegation of this call is no longer in force".to_owned());
            return Err(refuse(Denial { rule, reason, ..Denial::unknown_tool(call.tool()) }));
        };
        let labels = call.labels().carried().clone();
        Ok(Session { snapshot, bot, now, delegation, labels })
    }

    /// Returns the bindings that are enabled and not expired.
    pub fn bindings(&self) -> impl Iterator<Item = &Arc<Binding>> {
        self.bot.bindings.iter().filter(|binding| binding.is_active(self.now))
    }
}

/// Returns the current rules of the links, or `None` if a delegation no longer connects its bot to the next bot.
pub fn in_force(
    snapshot: &Snapshot,
    workspace: WorkspaceId,
    now: UtcMillis,
    links: &[Link],
) -> Option<Arc<[Arc<DelegationRules>]>> {
    let rules = links.iter().map(|link| match link {
        Link::Narrow(link) => Some(Arc::clone(link.rules())),
        Link::Delegation(link) => {
            let binding = snapshot.bot(workspace, link.from)?.binding(link.binding, now)?;
            let target = snapshot.bot_behind(&binding.resource)?;
            (target.row.id == link.to).then(|| Arc::clone(&binding.link))
        }
    });
    rules.collect()
}

/// Returns the time at which the first of the delegations expires.
pub fn links_expire_at(
    snapshot: &Snapshot,
    workspace: WorkspaceId,
    now: UtcMillis,
    links: &[Link],
) -> Option<UtcMillis> {
    let delegations = links.iter().filter_map(Link::delegation);
    let expiries =
        delegations.filter_map(|link| snapshot.bot(workspace, link.from)?.binding(link.binding, now)?.row.expires_at);
    expiries.min()
}

/// Returns the links with the current constraints of their delegations, for the audit.
pub fn current(snapshot: &Snapshot, workspace: WorkspaceId, now: UtcMillis, links: &[Link]) -> Arc<[Link]> {
    let current = |link: &DelegationLink| {
        let binding = snapshot.bot(workspace, link.from)?.binding(link.binding, now)?;
        binding.row.unpacked().delegate
    };
    let links = links.iter().map(|link| match link {
        Link::Narrow(_) => link.clone(),
        Link::Delegation(link) => Link::Delegation(DelegationLink { delegate: current(link), ..link.clone() }),
    });
    links.collect()
}
