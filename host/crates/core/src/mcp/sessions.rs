//! The end of sessions that no request uses any more.
//!
//! Servers of earlier revisions keep a session until the client ends it or it expires. This host ends a session that is
//! idle, and the session of a connection that was replaced because the configuration has changed. A right that was taken
//! away is not used again, not even to end a session: the session of a deleted resource is only forgotten.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use monstrum_mcp::client::{SESSION_IDLE_MAX, UnusedSession};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::wire::ResourceWire;
use super::{Access, Link, Mcp};
use crate::policy::Snapshot;

/// The time between two checks for idle sessions.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// The time that a server has to end a session.
const END_MAX: Duration = Duration::from_secs(5);
/// The maximum number of sessions that one check ends at once.
const AT_ONCE: usize = 16;
/// The maximum number of replaced connections that wait for the end of their calls. The sessions of older ones are
/// forgotten; servers drop them when they expire.
const REPLACED_MAX: usize = 1024;

/// Returns the ticks of the checks.
pub(super) fn interval_of_checks() -> Interval {
    let mut ticks = interval(CHECK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Mcp {
    /// Replaces the connections of resources that were deleted or have another URL, network or credential, and of users
    /// whose credential was deleted.
    pub(super) fn replace_links(&self, snapshot: &Snapshot) {
        let mut links = self.links.lock();
        let is_current = |link: &Link| {
            let was = &link.access.resource.row;
            let now = snapshot.resource(was.workspace_id, was.id);
            let now = now.and_then(|now| link.access.renewed(now, snapshot));
            now.is_some_and(|now| link.identity.is_of(&now))
        };
        let replaced = links.extract_if(|_, link| !is_current(link)).map(|(_, link)| link);
        self.replaced.lock().extend(replaced);
    }

    /// Ends the idle sessions, and those of replaced connections that no call uses, in the background.
    pub(super) fn end_unused_sessions(self: &Arc<Self>) {
        let links: Vec<Arc<Link>> = self.links.lock().values().cloned().collect();
        let mut unused = Vec::new();
        for link in links {
            if let Some(session) = link.connection.take_unused_session(SESSION_IDLE_MAX) {
                unused.extend(self.way_to_end(&link).map(|access| (session, access)));
            }
        }
        let mut replaced = self.replaced.lock();
        replaced.retain(|link| {
            if let Some(session) = link.connection.take_unused_session(Duration::ZERO) {
                unused.extend(self.way_to_end(link).map(|access| (session, access)));
            }
            // A call that is running may still create a session.
            link.connection.has_session() || Arc::strong_count(link) > 1
        });
        let surplus = replaced.len().saturating_sub(REPLACED_MAX);
        replaced.drain(..surplus);
        drop(replaced);
        if !unused.is_empty() {
            let mcp = Arc::clone(self);
            self.tasks.spawn(async move { mcp.end_sessions(unused).await });
        }
    }

    async fn end_sessions(&self, unused: Vec<(UnusedSession, Access)>) {
        let ends = stream::iter(unused).map(|(session, access)| async move {
            let id = access.resource.row.id;
            let wire = ResourceWire::new(&self.egress, access, Instant::now() + END_MAX);
            if let Err(error) = session.end(&wire).await {
                tracing::debug!(resource.id = %id, %error, "an MCP server did not end an unused session");
            }
        });
        let all = ends.buffer_unordered(AT_ONCE).for_each(|()| async {});
        self.stop.run_until_cancelled(all).await;
    }

    /// Returns the access that may be used to end a session of `link`: as it is now if the URL is the same, or as it was if
    /// only the URL has changed. A resource that was deleted, or that has lost its network rules or its credential together
    /// with the URL, has no such access.
    fn way_to_end(&self, link: &Link) -> Option<Access> {
        let snapshot = self.policy.load();
        let row = &link.access.resource.row;
        let now = link.access.renewed(snapshot.resource(row.workspace_id, row.id)?, &snapshot)?;
        let (was, is) = (&link.identity, now.identity());
        if is.url == was.url {
            return Some(now);
        }
        (is.network == was.network && is.credential == was.credential).then(|| link.access.clone())
    }
}
