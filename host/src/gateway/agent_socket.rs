//! `/ws/agent`: the WebSocket of remote agents. This module passes frames between the socket and the host, which serves the
//! agent (`remote_agents.rs` of the core).

use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use futures::{SinkExt as _, StreamExt as _};
use http::header;
use http::request::Parts;
use monstrum_core::operations::{AgentCaller, agents};
use monstrum_core::remote_agents::{Close, FRAME_BYTES_MAX, Incoming, Outgoing, SUBPROTOCOL};
use tungstenite::error::CapacityError;

use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};

/// The maximum size of a frame that is read to its end. A larger frame ends the socket while it arrives, and its sender may
/// not receive the reason.
const READ_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// The size of the buffer into which the socket reads. Most frames are smaller, and idle connections keep their buffers.
const READ_BUFFER_BYTES: usize = 4 << 10;
/// The number of unsent bytes at which the socket writes. Each frame is sent at once.
const WRITE_BUFFER_BYTES: usize = 0;
/// The maximum number of unsent bytes: a frame, and answers to the peer's pings.
const WRITE_BUFFER_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

/// A request of an agent to open its socket. Nothing else about the request is read for other callers.
pub(super) struct AgentUpgrade {
    caller: AgentCaller,
    upgrade: WebSocketUpgrade,
}

impl FromRequestParts<HttpState> for AgentUpgrade {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        // Browsers send an origin with each WebSocket. Agents are programs outside browsers.
        if parts.headers.contains_key(header::ORIGIN) {
            return Err(Problem::not_allowed("agents send no header `Origin`"));
        }
        let caller = AgentCaller::from_request_parts(parts, state).await?;
        let upgrade = WebSocketUpgrade::from_request_parts(parts, state).await;
        let upgrade = upgrade.map_err(|rejection| Problem::upgrade_required(rejection.body_text()))?;
        Ok(AgentUpgrade { caller, upgrade })
    }
}

/// Opens the WebSocket of an agent
///
/// The key must be an agent key, and the client must request the subprotocol `monstrum.agent.v1`. docs/agents.md describes
/// the messages.
#[utoipa::path(get, path = "/ws/agent", tag = "agents",
    responses((status = 101, description = "The socket is open"),
        (status = 426, body = ProblemBody, description = "The request does not open a WebSocket"),
        (status = 429, body = ProblemBody, description = "The resource has too many open sockets")))]
pub(super) async fn open(app: Host, AgentUpgrade { caller, upgrade }: AgentUpgrade) -> Result<Response, Problem> {
    let upgrade = upgrade.protocols([SUBPROTOCOL]);
    if upgrade.selected_protocol().is_none() {
        return Err(Problem::upgrade_required(format!("request the subprotocol `{SUBPROTOCOL}`")));
    }
    let (agent, place) = agents::connect(&app, &caller)?;
    let agents = app.agents.clone();
    let upgrade = upgrade
        .max_frame_size(READ_BYTES_MAX)
        .max_message_size(READ_BYTES_MAX)
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .on_failed_upgrade(|error| tracing::debug!(%error, "the socket of an agent could not be opened"));
    Ok(upgrade.on_upgrade(move |socket: WebSocket| async move {
        let (sink, stream) = socket.split();
        let outgoing = std::pin::pin!(sink.with(|out| std::future::ready(Ok::<_, axum::Error>(message(out)))));
        let incoming = std::pin::pin!(stream.filter_map(|item| std::future::ready(received(item))));
        agents.serve(place, agent, incoming, outgoing).await;
    }))
}

fn message(out: Outgoing) -> Message {
    match out {
        Outgoing::Text(text) => Message::text(text),
        Outgoing::Ping => Message::Ping(bytes::Bytes::new()),
        Outgoing::Close(close) => {
            Message::Close(Some(CloseFrame { code: close.code(), reason: close.reason().into() }))
        }
    }
}

/// Converts what the socket has received; `None` for the end of the socket.
fn received(item: Result<Message, axum::Error>) -> Option<Incoming> {
    match item {
        Ok(Message::Text(text)) if text.as_str().len() > FRAME_BYTES_MAX => Some(Incoming::Broken(Close::TooLarge)),
        Ok(Message::Text(text)) => Some(Incoming::Text(text.as_str().to_owned())),
        Ok(Message::Binary(_)) => Some(Incoming::Broken(Close::NotJson)),
        Ok(Message::Ping(_) | Message::Pong(_)) => Some(Incoming::Alive),
        // The stream ends after the peer's close frame, and after an error of the connection.
        Ok(Message::Close(_)) => None,
        Err(error) => match error.into_inner().downcast_ref::<tungstenite::Error>() {
            Some(tungstenite::Error::Capacity(CapacityError::MessageTooLong { .. })) => {
                Some(Incoming::Broken(Close::TooLarge))
            }
            Some(tungstenite::Error::Utf8(_)) => Some(Incoming::Broken(Close::NotJson)),
            _ => Some(Incoming::Broken(Close::Lost)),
        },
    }
}
