//! Serves one socket: the hello, the messages of the agent, the heartbeat, and the end.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Sink, SinkExt, Stream, StreamExt};
use monstrum_types::{ResourceId, WorkspaceId};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::connection::{Connection, HEARTBEAT, Outgoing, ToolDigest};
use super::protocol::{self, Close, Fault, Hello, Message, Offered, OfferedTool, Refused, SUBPROTOCOL, ToolState};
use super::{CONNECTIONS_MAX, RECONNECT_AFTER_MS, RemoteAgents, SocketPlace};
use crate::beside::in_place;
use crate::call_types::incoming::CallerKey;
use crate::meters;
use crate::pins::{DeclaredTool, Definitions, PinnedTool, ServerInfo};
use crate::plugins::{built_in, remote};
use crate::policy::Resource;

/// The time within which an agent says hello.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// The time limit for sending the last frames and receiving the peer's close frame.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The maximum size of a frame that is parsed beside other tasks of its thread.
const READ_IN_PLACE_BYTES_MAX: usize = 16 << 10;
/// The interval at which time limits are checked. Together with the merging of renewals, the tools of an agent vanish less
/// than a second after its time limit.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of pings and pongs before the hello.
const PINGS_BEFORE_HELLO_MAX: usize = 100;

/// An item that the socket has received.
#[derive(Debug)]
pub enum Incoming {
    Text(String),
    /// A ping or a pong, which shows that the peer is there.
    Alive,
    /// The peer breaks a rule of RFC 6455 or of the protocol below the messages.
    Broken(Close),
}

/// The key with which an agent has connected.
#[derive(Clone, Copy, Debug)]
pub struct AgentKey {
    pub key: CallerKey,
    pub workspace: WorkspaceId,
    pub resource: ResourceId,
}

/// The refusal of a hello: the error that the agent receives, and the close.
struct NotEntered(Fault, Close);

/// A connection that takes calls. Dropping it ends the connection and removes it, even if the task that serves the socket
/// panics: a connection without a task would hold its calls until they time out.
struct Entered<'a> {
    agents: &'a RemoteAgents,
    connection: Arc<Connection>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // Only the first end of a connection counts.
        self.connection.end(Close::Lost);
        self.agents.remove(&self.connection);
    }
}

impl RemoteAgents {
    /// Serves a socket until it ends. The socket counts among the sockets of its resource until then.
    pub async fn serve<I, O>(self: Arc<Self>, place: SocketPlace, agent: AgentKey, incoming: I, outgoing: O)
    where
        I: Stream<Item = Incoming> + Unpin,
        O: Sink<Outgoing> + Unpin,
    {
        let serve = self.tasks.track_future(self.run(agent, incoming, outgoing));
        serve.await;
        drop(place);
    }

    async fn run<I, O>(&self, agent: AgentKey, mut incoming: I, mut outgoing: O)
    where
        I: Stream<Item = Incoming> + Unpin,
        O: Sink<Outgoing> + Unpin,
    {
        // The subscription precedes the hello, so that no change of the key is missed.
        let mut renewals = self.policy.renewals();
        let entered = match self.hello(&mut incoming).await {
            Ok(hello) => self.enter(agent, &hello).await,
            Err(refused) => Err(refused),
        };
        let (entered, states) = match entered {
            Ok(entered) => entered,
            Err(NotEntered(fault, close)) => {
                tracing::debug!(resource.id = %agent.resource, fault.code, "the hello of an agent was refused");
                let told = async {
                    let told = outgoing.send(Outgoing::Text(protocol::error(&fault))).await;
                    if told.is_ok() && outgoing.send(Outgoing::Close(close)).await.is_ok() {
                        drain(&mut incoming).await;
                    }
                };
                // The socket is closed without a code if the peer does not read in time.
                drop(timeout(CLOSE_MAX, told).await);
                return;
            }
        };
        let connection = Arc::clone(&entered.connection);
        tracing::info!(resource.id = %agent.resource, agent.name = connection.name, agent.version = connection.version,
            connection.id, "an agent has connected");
        connection.send(protocol::welcome(&connection.id, HEARTBEAT.as_secs(), &states), Instant::now());
        let mut writing = pin!(write(&connection, &mut outgoing));
        let mut is_written = false;
        let close = tokio::select! {
            close = self.follow(agent, &connection, states, &mut incoming, &mut renewals) => close,
            () = &mut writing => {
                is_written = true;
                connection.close().unwrap_or(Close::Lost)
            }
        };
        connection.end(close);
        drop(entered);
        tracing::info!(resource.id = %agent.resource, connection.id, close.code = close.code(), "an agent has disconnected");
        let finish = async {
            if !is_written {
                writing.await;
            }
            drain(&mut incoming).await;
        };
        if close != Close::Lost {
            // The socket is closed without a code if the peer does not read in time.
            drop(timeout(CLOSE_MAX, finish).await);
        }
    }

    /// Waits for the hello.
    async fn hello(&self, incoming: &mut (impl Stream<Item = Incoming> + Unpin)) -> Result<Hello, NotEntered> {
        let violation = |fault| NotEntered(fault, Close::Violation("the first message is not a valid hello"));
        let first = async {
            for _ in 0..PINGS_BEFORE_HELLO_MAX {
                match incoming.next().await {
                    Some(Incoming::Alive) => {}
                    other => return other,
                }
            }
            Some(Incoming::Alive)
        };
        let first = tokio::select! {
            first = timeout(HELLO_MAX, first) => first,
            () = self.stopping.cancelled() => {
                return Err(NotEntered(Fault::new("restart", Close::Restart.reason()), Close::Restart));
            }
        };
        match first {
            Err(_) => Err(violation(Fault::new("hello_expected", "no hello arrived within 10 s"))),
            Ok(None) => Err(violation(Fault::new("hello_expected", "the socket was closed before the hello"))),
            Ok(Some(Incoming::Broken(close))) => Err(NotEntered(Fault::new("invalid_frame", close.reason()), close)),
            Ok(Some(Incoming::Alive)) => Err(violation(Fault::new("hello_expected", "the first message is no hello"))),
            Ok(Some(Incoming::Text(text))) => match read(&text) {
                Ok(Message::Hello(hello)) => Ok(hello),
                Ok(_) => Err(violation(Fault::new("hello_expected", "the first message is no hello"))),
                Err(Refused::Answer(fault)) => Err(violation(fault)),
                Err(Refused::Close(close)) => Err(NotEntered(Fault::new("invalid_frame", close.reason()), close)),
            },
        }
    }

    /// Declares the tools of an agent and adds its connection. Returns the connection and the states of the tools.
    async fn enter(&self, agent: AgentKey, hello: &Hello) -> Result<(Entered<'_>, Vec<ToolState>), NotEntered> {
        let declaring = Arc::clone(&self.groups.lock().entry(agent.resource).or_default().declaring);
        let _turn = declaring.lock().await;
        let Some(resource) = self.resource(agent) else {
            return Err(NotEntered(Fault::new("revoked", Close::Revoked.reason()), Close::Revoked));
        };
        let tools = digests(&hello.offered);
        let is_replaced =
            |other: &Arc<Connection>| other.instance == hello.instance || (hello.replace && !other.offers(&tools));
        let others = self.connections(agent.resource);
        let mut kept = others.iter().filter(|other| !is_replaced(other));
        if kept.clone().any(|other| !other.offers(&tools)) {
            let why = "another agent with other tools is connected";
            let message = format!("{why}; connect with `replace`: true to take over");
            return Err(NotEntered(Fault::new("tools_differ", message), Close::Conflict(why)));
        }
        if kept.nth(CONNECTIONS_MAX - 1).is_some() {
            let why = "the resource has 8 connections";
            return Err(NotEntered(Fault::new("too_many_connections", why), Close::TryLater(why)));
        }
        let pinned = self
            .record(&resource, &hello.offered, &tools, true)
            .await
            .map_err(|fault| NotEntered(fault, Close::TryLater("the tools could not be stored")))?;
        let id = uuid::Uuid::now_v7().to_string();
        let place = (agent.workspace, agent.resource);
        let connection = Arc::new(Connection::new(id, place, hello, Instant::now()));
        connection.set_tools(tools.clone());
        let entered = Entered { agents: self, connection: Arc::clone(&connection) };
        let replaced = {
            let mut groups = self.groups.lock();
            let group = groups.entry(agent.resource).or_default();
            let (replaced, kept) = std::mem::take(&mut group.connections).into_iter().partition(is_replaced);
            group.connections = kept;
            group.connections.push(connection);
            group.freed.notify_waiters();
            self.policy.set_present(agent.resource, true);
            self.presence.notify_one();
            self.unshared.notify_one();
            let replaced: Vec<Arc<Connection>> = replaced;
            replaced
        };
        for other in replaced {
            if other.instance == hello.instance {
                other.end(Close::Conflict("the same instance has connected again"));
            } else {
                other.retire();
            }
        }
        if others.is_empty() {
            self.note(&resource, hello).await;
        }
        Ok((entered, states(&pinned, &hello.offered)))
    }

    /// Stores what the first agent of a resource says about itself, for display.
    async fn note(&self, resource: &Resource, hello: &Hello) {
        let now = Instant::now();
        if !self.groups.lock().get_mut(&resource.row.id).is_some_and(|group| group.may_note(now)) {
            return;
        }
        let server = json!({"name": hello.name, "version": hello.version});
        let info = ServerInfo { server, protocol: SUBPROTOCOL.to_owned() };
        if let Err(error) = self.pins.discovered(&resource.row, Ok(info)).await {
            tracing::warn!(resource.id = %resource.row.id, %error, "the name of an agent could not be stored");
        }
    }

    /// Returns the resource of the agent, or `None` if the key or the resource was deleted or changed.
    fn resource(&self, agent: AgentKey) -> Option<Arc<Resource>> {
        let snapshot = self.policy.load();
        let holds = snapshot.key_hash(agent.key.id) == Some(&agent.key.hash);
        let resource = snapshot.resource(agent.workspace, agent.resource)?;
        (holds && resource.row.resource_type.as_str() == built_in::AGENT).then(|| Arc::clone(resource))
    }

    fn connections(&self, resource: ResourceId) -> Vec<Arc<Connection>> {
        self.groups.lock().get(&resource).map(|group| group.connections.clone()).unwrap_or_default()
    }

    /// Pins the offered tools, which have these digests.
    async fn record(
        &self,
        resource: &Resource,
        offered: &Offered,
        tools: &HashMap<String, ToolDigest>,
        is_hello: bool,
    ) -> Result<Vec<PinnedTool>, Fault> {
        if !self.groups.lock().entry(resource.row.id).or_default().count(tools, is_hello, Instant::now()) {
            return Err(Fault::new("too_many_changes", "the tools of the resource change too often; try again later"));
        }
        let definitions = match resource.config.get("definitions").and_then(|value| value.as_str()) {
            Some("review") => Definitions::Review,
            Some("trusted") => Definitions::Trusted,
            _ => Definitions::First,
        };
        let declared = offered.tools.iter().map(declared).collect();
        self.pins.record(resource, declared, definitions).await.map_err(|error| {
            tracing::error!(resource.id = %resource.row.id, %error, "the tools of an agent could not be stored");
            Fault::new("unavailable", "the tools could not be stored; try again later")
        })
    }

    /// Processes what arrives until the connection ends. Returns the reason.
    async fn follow(
        &self,
        agent: AgentKey,
        connection: &Arc<Connection>,
        mut told: Vec<ToolState>,
        incoming: &mut (impl Stream<Item = Incoming> + Unpin),
        renewals: &mut tokio::sync::watch::Receiver<()>,
    ) -> Close {
        let mut ping = interval(HEARTBEAT);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ping.reset();
        let mut check = interval(CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = self.resource(agent);
        loop {
            tokio::select! {
                item = incoming.next() => {
                    connection.heard(Instant::now());
                    let handled = match item {
                        None => return Close::Lost,
                        Some(Incoming::Broken(close)) => return close,
                        Some(Incoming::Alive) => connection.count(Instant::now()),
                        Some(Incoming::Text(text)) => self.receive(agent, connection, &mut told, &text).await,
                    };
                    if let Err(close) = handled {
                        return close;
                    }
                }
                _ = ping.tick() => connection.ping(Instant::now()),
                _ = check.tick() => {
                    if let Some(close) = connection.overdue(Instant::now()) {
                        return close;
                    }
                }
                Ok(()) = renewals.changed() => {
                    let Some(resource) = self.resource(agent) else { return Close::Revoked };
                    if !seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &resource)) {
                        self.tell(connection, &resource, &mut told).await;
                        seen = Some(resource);
                    }
                }
                () = self.stopping.cancelled(), if !connection.is_leaving() => {
                    connection.leave(RECONNECT_AFTER_MS, Instant::now());
                }
                () = self.closing.cancelled() => return Close::Restart,
                close = connection.ended() => return close,
            }
        }
    }

    /// Processes a message.
    async fn receive(
        &self,
        agent: AgentKey,
        connection: &Arc<Connection>,
        told: &mut Vec<ToolState>,
        text: &str,
    ) -> Result<(), Close> {
        let now = Instant::now();
        let fault = match read(text) {
            Ok(Message::Result { id, ended }) => {
                if connection.finish(&id, ended) {
                    // The host limits the number of calls, so their results count against no other limit.
                    return Ok(());
                }
                meters::agent_frame_dropped("result");
                return connection.count(now);
            }
            Ok(Message::Progress { id, message }) => {
                if !connection.progress(&id, message, now) {
                    meters::agent_frame_dropped("progress");
                }
                return connection.count(now);
            }
            Ok(Message::Tools(offered)) => {
                connection.count(now)?;
                match self.replace_tools(agent, connection, &offered).await {
                    Ok(states) => {
                        connection.send(protocol::welcome(&connection.id, HEARTBEAT.as_secs(), &states), now);
                        *told = states;
                        return Ok(());
                    }
                    Err(fault) => fault,
                }
            }
            Ok(Message::Hello(_)) => Fault::new("unexpected_hello", "the agent has already said hello"),
            Err(Refused::Answer(fault)) => fault,
            Err(Refused::Close(close)) => return Err(close),
        };
        connection.send(protocol::error(&fault), now);
        connection.count(now)
    }

    /// Replaces the tools of a connection. Calls that run continue.
    async fn replace_tools(
        &self,
        agent: AgentKey,
        connection: &Arc<Connection>,
        offered: &Offered,
    ) -> Result<Vec<ToolState>, Fault> {
        let declaring = Arc::clone(&self.groups.lock().entry(agent.resource).or_default().declaring);
        let _turn = declaring.lock().await;
        let resource = self.resource(agent).ok_or_else(|| Fault::new("revoked", Close::Revoked.reason()))?;
        let tools = digests(offered);
        let others = self.connections(agent.resource);
        if !others.iter().any(|other| Arc::ptr_eq(other, connection)) {
            return Err(Fault::new("replaced", "another agent serves the resource"));
        }
        if others.iter().any(|other| !Arc::ptr_eq(other, connection) && !other.offers(&tools)) {
            return Err(Fault::new("tools_differ", "another agent with other tools is connected"));
        }
        let pinned = self.record(&resource, offered, &tools, false).await?;
        connection.set_tools(tools);
        Ok(states(&pinned, offered))
    }

    /// Tells the agent the states of its tools if they have changed.
    async fn tell(&self, connection: &Connection, resource: &Resource, told: &mut Vec<ToolState>) {
        let pinned = match self.pins.of(&resource.row).await {
            Ok(pinned) => pinned,
            Err(error) => {
                tracing::warn!(resource.id = %resource.row.id, %error, "the states of an agent's tools cannot be read");
                return;
            }
        };
        let states: Vec<ToolState> = told.iter().map(|before| of_tool(&pinned, before)).collect();
        if states != *told {
            connection.send(protocol::welcome(&connection.id, HEARTBEAT.as_secs(), &states), Instant::now());
            *told = states;
        }
    }
}

/// Reads a frame. While a large frame is parsed, the other tasks of this thread move to another thread.
fn read(text: &str) -> Result<Message, Refused> {
    in_place(text.len() > READ_IN_PLACE_BYTES_MAX, || protocol::read(text))
}

/// Writes the frames of a connection to its socket. Returns after the last frame, or when the socket fails.
async fn write(connection: &Connection, outgoing: &mut (impl Sink<Outgoing> + Unpin)) {
    while let Some(frame) = connection.next().await {
        if outgoing.send(frame).await.is_err() {
            return;
        }
    }
}

/// Reads until the peer closes the socket. A socket that is closed before all its bytes are read is reset, and the peer
/// might lose the code.
async fn drain(incoming: &mut (impl Stream<Item = Incoming> + Unpin)) {
    while let Some(Incoming::Text(_) | Incoming::Alive) = incoming.next().await {}
}

fn declared(tool: &OfferedTool) -> DeclaredTool {
    let OfferedTool { name, definition, effect } = tool.clone();
    DeclaredTool { original_name: name, definition, effect_hint: effect }
}

/// Returns the digests of the tools. While a long list is hashed, the other tasks of this thread move to another thread.
fn digests(offered: &Offered) -> HashMap<String, ToolDigest> {
    let digest = |tool: &OfferedTool| (tool.name.clone(), remote::definition_hash(&tool.definition));
    in_place(offered.bytes > READ_IN_PLACE_BYTES_MAX, || offered.tools.iter().map(digest).collect())
}

/// Returns the states of the offered tools.
fn states(pinned: &[PinnedTool], offered: &Offered) -> Vec<ToolState> {
    let unknown = |name: &str, reason: &str| ToolState {
        name: name.to_owned(),
        full_name: None,
        status: "invalid".to_owned(),
        reason: Some(reason.to_owned()),
    };
    let tools = offered.tools.iter().map(|tool| of_tool(pinned, &unknown(&tool.name, "the tool was not stored")));
    let faults = offered.faults.iter().map(|fault| unknown(&fault.name, &fault.reason));
    tools.chain(faults).collect()
}

/// Returns the state of a tool; the state `before` if the tool has no pin.
fn of_tool(pinned: &[PinnedTool], before: &ToolState) -> ToolState {
    match pinned.iter().find(|tool| tool.original_name == before.name) {
        Some(tool) => ToolState {
            name: before.name.clone(),
            full_name: Some(tool.name.to_string()),
            status: tool.status.as_str().to_owned(),
            reason: tool.reason.clone(),
        },
        None => before.clone(),
    }
}
