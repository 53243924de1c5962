//! Remote agents: programs that connect over a WebSocket and serve the tools of a resource of type `agent`.
//!
//! This module owns the connections of this host: which agents serve a resource, which of them runs a call, and whether
//! the resource has its tools. It decides nothing about permissions: it receives calls that the pipeline has permitted,
//! and `pins.rs` decides which tools an agent may serve. It knows no WebSocket library; the gateway passes frames.
//!
//! A connection belongs to one host. `sharing.rs` tells the other hosts of the database about it.

mod connection;
mod presence;
mod protocol;
mod serving;
mod sharing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use monstrum_store::Store;
use monstrum_types::ResourceId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::{Answer, Connection, NotTaken, ToolDigest};
use self::sharing::Shared;
use crate::pins::Pins;
use crate::policy::Policy;

pub use connection::Outgoing;
pub use protocol::{Close, Ended, FRAME_BYTES_MAX, OutgoingCall, SUBPROTOCOL};
pub use serving::{AgentKey, Incoming};

/// The maximum number of connections that serve one resource. Eight processes with 64 calls each exceed the calls that a
/// resource may have at once.
const CONNECTIONS_MAX: usize = 8;
/// The maximum number of open sockets of one resource. Besides the connections that serve, this leaves room for
/// connections that have not said hello and for replaced connections that finish their calls.
const SOCKETS_MAX: usize = 3 * CONNECTIONS_MAX;
/// The maximum number of declarations of a resource's tools in [`CHANGES_WINDOW`]. Each is compared with the database, and
/// each change is written to the database and to the audit, and renews the policy of all tenants.
const CHANGES_MAX: u32 = 20;
const CHANGES_WINDOW: Duration = Duration::from_secs(10);
/// The minimum time between two writes of what the agents of a resource say about themselves.
const NOTE_INTERVAL: Duration = Duration::from_secs(10);
/// The maximum time that a call waits for a connection that takes it.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The time limit, at shutdown, for closing the sockets.
const CLOSE_ALL_MAX: Duration = Duration::from_secs(5);
/// The delay after which agents connect again when the server stops.
const RECONNECT_AFTER_MS: u64 = 1_000;

/// The connections of this host.
pub struct RemoteAgents {
    groups: Mutex<HashMap<ResourceId, Group>>,
    policy: Arc<Policy>,
    pins: Arc<Pins>,
    store: Store,
    /// The id of this host.
    node: String,
    /// The resources for which another host has an agent, with the id of that host.
    elsewhere: Mutex<HashMap<ResourceId, String>>,
    /// What this host has told the other hosts, and what it has read about them.
    shared: tokio::sync::Mutex<Shared>,
    /// Wakes the task that tells the other hosts about agents.
    unshared: Notify,
    /// Wakes the task that renews the policy after resources have gained or lost their agents.
    presence: Notify,
    /// Cancelled when the server begins to stop.
    stopping: CancellationToken,
    /// Cancelled when the calls have ended and the sockets are to be closed.
    closing: CancellationToken,
    tasks: TaskTracker,
}

/// The connections of one resource.
#[derive(Default)]
struct Group {
    /// The connections that take calls.
    connections: Vec<Arc<Connection>>,
    /// The number of open sockets.
    sockets: usize,
    /// Wakes the calls that wait for a connection.
    freed: Arc<Notify>,
    /// Held while an agent declares its tools, so that declarations of one resource follow each other.
    declaring: Arc<tokio::sync::Mutex<()>>,
    /// The tools that were declared last.
    declared: HashMap<String, ToolDigest>,
    /// The begin of the current window, and the number of changes in it.
    changes: Option<(Instant, u32)>,
    /// The time at which the name of an agent was last stored.
    noted_at: Option<Instant>,
}

impl Group {
    /// Counts a declaration of these tools. The hello of an agent does not count if it declares the same tools as the last
    /// one, because many agents may connect at once. Returns whether the limit permits the declaration.
    fn count(&mut self, tools: &HashMap<String, ToolDigest>, is_hello: bool, now: Instant) -> bool {
        if is_hello && self.declared == *tools {
            return true;
        }
        let (began, changes) =
            self.changes.filter(|(began, _)| now.duration_since(*began) < CHANGES_WINDOW).unwrap_or((now, 0));
        if changes >= CHANGES_MAX {
            return false;
        }
        self.changes = Some((began, changes + 1));
        self.declared.clone_from(tools);
        true
    }

    /// Returns whether the name of an agent may be stored now, and records that it is.
    fn may_note(&mut self, now: Instant) -> bool {
        if self.noted_at.is_some_and(|at| now.duration_since(at) < NOTE_INTERVAL) {
            return false;
        }
        self.noted_at = Some(now);
        true
    }

    /// Returns whether the group is in use or must remember a limit. An agent that connects again and again must not
    /// begin with new limits.
    fn is_needed(&self, now: Instant) -> bool {
        let is_recent = |at: Instant, window: Duration| now.duration_since(at) < window;
        self.sockets > 0
            || !self.connections.is_empty()
            // A group whose lock is in use must stay, because a second lock would not exclude its holder.
            || Arc::strong_count(&self.declaring) > 1
            || self.changes.is_some_and(|(began, _)| is_recent(began, CHANGES_WINDOW))
            || self.noted_at.is_some_and(|at| is_recent(at, NOTE_INTERVAL))
    }
}

/// The reason why a call has no result of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No agent is connected.
    NoAgent,
    /// The agents are connected to another host, which has this id.
    OtherHost(String),
    /// The connected agents do not offer the tool with the approved definition.
    OtherTools,
    /// All connections are busy.
    Busy,
    /// The connection ended while the agent ran the call, so the call may have had effects.
    Uncertain,
}

/// The place of a socket among the sockets of its resource. Dropping it releases the place.
pub struct SocketPlace {
    agents: Arc<RemoteAgents>,
    resource: ResourceId,
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        let mut groups = self.agents.groups.lock();
        if let Some(group) = groups.get_mut(&self.resource) {
            group.sockets -= 1;
            if !group.is_needed(Instant::now()) {
                groups.remove(&self.resource);
            }
        }
    }
}

/// A started call. Dropping it cancels the call, unless the call has an answer.
struct StartedCall<'a> {
    agents: &'a RemoteAgents,
    connection: Arc<Connection>,
    id: &'a str,
    until: Instant,
}

impl Drop for StartedCall<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let reason = if now >= self.until { "timeout" } else { "cancelled" };
        // This does nothing if the call has an answer.
        self.connection.cancel(self.id, reason, now);
        self.agents.freed(self.connection.resource);
    }
}

impl RemoteAgents {
    /// Creates the set of connections of the host `node`.
    pub fn new(policy: Arc<Policy>, pins: Arc<Pins>, store: Store, node: String) -> RemoteAgents {
        RemoteAgents {
            groups: Mutex::default(),
            policy,
            pins,
            store,
            node,
            elsewhere: Mutex::default(),
            shared: tokio::sync::Mutex::default(),
            unshared: Notify::new(),
            presence: Notify::new(),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Returns whether the server stops. It accepts no new sockets then.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Returns a place for a new socket, or `None` if the resource has too many sockets.
    pub fn place(self: &Arc<Self>, resource: ResourceId) -> Option<SocketPlace> {
        let mut groups = self.groups.lock();
        let group = groups.entry(resource).or_default();
        if group.sockets >= SOCKETS_MAX {
            return None;
        }
        group.sockets += 1;
        Some(SocketPlace { agents: Arc::clone(self), resource })
    }

    /// Runs a call on the connection with the fewest calls. Waits for a connection that takes the call if all are busy.
    /// The call ends at the deadline `until`, which the caller enforces by dropping the future.
    pub async fn call(
        &self,
        resource: ResourceId,
        call: &OutgoingCall,
        digest: &ToolDigest,
        until: Instant,
    ) -> Result<Ended, CallError> {
        let wait_until = (Instant::now() + WAIT_MAX).min(until);
        // The frame may be large, so it is written before the connections are locked.
        let mut frame = Some(call.frame());
        loop {
            let Some(freed) = self.groups.lock().get(&resource).map(|group| Arc::clone(&group.freed)) else {
                return Err(self.not_here(resource));
            };
            // The registration precedes the choice, so that no released connection is missed.
            let mut freed = std::pin::pin!(freed.notified());
            freed.as_mut().enable();
            let (connection, answer) = match self.start(resource, call, digest, &mut frame) {
                Ok(started) => started,
                Err(CallError::Busy) => match tokio::time::timeout_at(wait_until, freed).await {
                    Ok(()) => continue,
                    Err(_) => return Err(CallError::Busy),
                },
                Err(CallError::NoAgent) => return Err(self.not_here(resource)),
                Err(error) => return Err(error),
            };
            let started = StartedCall { agents: self, connection, id: &call.id, until };
            let answer = answer.await.unwrap_or(Answer::Lost);
            drop(started);
            match answer {
                Answer::Ended(ended) => return Ok(ended),
                Answer::Lost => return Err(CallError::Uncertain),
                Answer::NotSent => {}
            }
        }
    }

    /// Returns the reason why no connection of this host serves the resource.
    fn not_here(&self, resource: ResourceId) -> CallError {
        self.elsewhere.lock().get(&resource).cloned().map_or(CallError::NoAgent, CallError::OtherHost)
    }

    /// Starts the call on the connection with the fewest calls that takes it. The frame is taken when it is sent.
    fn start(
        &self,
        resource: ResourceId,
        call: &OutgoingCall,
        digest: &ToolDigest,
        frame: &mut Option<String>,
    ) -> Result<(Arc<Connection>, tokio::sync::oneshot::Receiver<Answer>), CallError> {
        let groups = self.groups.lock();
        let connections = groups.get(&resource).map_or(&[][..], |group| &group.connections);
        let mut why_not = CallError::NoAgent;
        let mut candidates = Vec::with_capacity(connections.len());
        for connection in connections {
            match connection.takes(&call.tool, digest) {
                Ok(()) => candidates.push(connection),
                Err(NotTaken::Full) => why_not = CallError::Busy,
                Err(NotTaken::OtherTools) if why_not == CallError::NoAgent => why_not = CallError::OtherTools,
                Err(NotTaken::OtherTools | NotTaken::Closing) => {}
            }
        }
        let connection = candidates.into_iter().min_by_key(|connection| connection.running()).ok_or(why_not)?;
        match connection.start(call, digest, frame, Instant::now()) {
            Ok(answer) => Ok((Arc::clone(connection), answer)),
            // The connection ended between the two steps, because calls start under the lock of the groups only.
            Err(_) => Err(CallError::Busy),
        }
    }

    /// Wakes the calls that wait for a connection of the resource.
    fn freed(&self, resource: ResourceId) {
        if let Some(group) = self.groups.lock().get(&resource) {
            group.freed.notify_waiters();
        }
    }

    /// Removes a connection that has ended or takes no calls any more.
    fn remove(&self, connection: &Arc<Connection>) {
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(&connection.resource) else { return };
        group.connections.retain(|known| !Arc::ptr_eq(known, connection));
        if group.connections.is_empty() {
            self.policy.set_present(connection.resource, false);
            self.presence.notify_one();
            self.unshared.notify_one();
        }
        group.freed.notify_waiters();
    }

    /// Announces the end of the server to all agents. They take no new calls.
    pub fn announce_end(&self) {
        self.stopping.cancel();
    }

    /// Closes all connections, after their calls have ended or were given up.
    pub async fn shut_down(&self) {
        self.announce_end();
        self.closing.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_ALL_MAX, self.tasks.wait()).await.is_err() {
            tracing::warn!("the shutdown timed out while the connections of agents were closed");
        }
        self.end_sharing().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tools_are_declared_at_most_twenty_times_in_ten_seconds() {
        let mut group = Group::default();
        let tools = |digest: u8| HashMap::from([("sum".to_owned(), [digest; 32])]);
        for digest in 1..=19 {
            assert!(group.count(&tools(digest), digest == 1, Instant::now()));
        }
        assert!(group.count(&tools(19), true, Instant::now()), "another agent with the same tools");
        assert!(group.count(&tools(19), false, Instant::now()), "the same agent again");
        assert!(!group.count(&tools(19), false, Instant::now()));
        assert!(!group.count(&tools(21), true, Instant::now()));
        assert!(group.count(&tools(19), true, Instant::now()), "other agents can still connect");
        tokio::time::advance(CHANGES_WINDOW).await;
        assert!(group.count(&tools(21), false, Instant::now()));
    }

    /// An agent that connects for each change must not get a new limit with each connection.
    #[tokio::test(start_paused = true)]
    async fn a_resource_without_connections_remembers_its_changes() {
        let mut group = Group { sockets: 1, ..Group::default() };
        assert!(group.is_needed(Instant::now()));
        assert!(group.count(&HashMap::from([("sum".to_owned(), [1; 32])]), true, Instant::now()));
        group.sockets = 0;
        assert!(group.is_needed(Instant::now()));
        tokio::time::advance(CHANGES_WINDOW).await;
        assert!(!group.is_needed(Instant::now()));
        assert!(group.may_note(Instant::now()));
        assert!(!group.may_note(Instant::now()), "the name was just stored");
        assert!(group.is_needed(Instant::now()));
        tokio::time::advance(NOTE_INTERVAL).await;
        assert!(!group.is_needed(Instant::now()));
        assert!(group.may_note(Instant::now()));
    }
}
