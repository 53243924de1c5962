//! `/mcp/{bot}`: the tools of a bot for clients of the Model Context Protocol.
//!
//! `monstrum-mcp` speaks the protocol. This module authenticates requests, as the rest of the API does, and adds what
//! the stateless library lacks for clients that begin with `initialize`: signed session ids, cancellation and a stream
//! of changes.

mod changes;
mod hosts;
mod offer;
mod request_state;
mod running;
mod session;
mod token;

use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt as _;
use monstrum_core::app::App;
use monstrum_core::beside::in_place;
use monstrum_core::operations::tools;
use monstrum_mcp::{Delivery, Initialize, Message, Method};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::config::{McpHost, McpOrigin, PublicUrl};
use crate::gateway::http::extract::{Id, whole_body_of};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};
use crate::gateway::http::streams::Streams;
use hosts::AllowedHosts;
use offer::BotOffer;
use request_state::RequestStates;
use running::{Running, RunningCall};
use session::{SESSION, Session, Sessions};

pub(super) use hosts::guard;
pub(super) use token::{__path_metadata, metadata};

/// The path of the route.
const PATH: &str = "/mcp/{bot}";
/// The path of the metadata of a bot as a protected resource.
const METADATA_PATH: &str = "/.well-known/oauth-protected-resource/mcp/{id}";
/// The maximum size of a message. Parameters may have up to 1 MiB; the rest is room for other content.
const BODY_BYTES_MAX: usize = 10 << 20;
/// The maximum size of a message that is parsed beside other tasks of its thread. The library parses a message several
/// times.
const PARSED_IN_PLACE_BYTES_MAX: usize = 16 << 10;
/// The time limit above which a tool's answer may be a stream of events.
const LONG_CALL: Duration = Duration::from_secs(30);
/// The maximum number of open streams of one key. A key usually belongs to one application with a few processes.
const STREAMS_OF_KEY_MAX: usize = 64;
/// The maximum number of open streams on this host. Each change of a bot's permissions makes its streams list the
/// tools.
const STREAMS_MAX: usize = 1_000;
/// The header with the revision of a request.
const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// The settings of the route.
#[derive(Clone, Debug)]
pub struct McpOptions {
    /// The address on which the server listens.
    pub address: SocketAddr,
    pub public_url: Option<PublicUrl>,
    /// Further host names by which clients may reach the route.
    pub hosts: Vec<McpHost>,
    /// The origins of browser pages that may use the route.
    pub origins: Vec<McpOrigin>,
    /// Ends open streams when the server stops.
    pub stop: CancellationToken,
}

/// The state of the route.
pub(crate) struct Mcp {
    allowed: AllowedHosts,
    sessions: Sessions,
    request_states: Arc<RequestStates>,
    running: Running,
    streams: Streams,
    stop: CancellationToken,
}

impl Mcp {
    pub(super) fn new(app: &App, options: McpOptions) -> Mcp {
        let McpOptions { address, public_url, hosts, origins, stop } = options;
        Mcp {
            allowed: AllowedHosts { address, public_url, hosts, origins },
            sessions: Sessions::new(&app.vault.derive("mcp sessions")),
            request_states: Arc::new(RequestStates::new(&app.vault.derive("mcp request states"))),
            running: Running::default(),
            streams: Streams::new(STREAMS_OF_KEY_MAX, STREAMS_MAX),
            stop,
        }
    }
}

/// A request by a caller that may use the bot in the path. This is checked before the body is read.
pub(super) struct BotRequest {
    mcp: Arc<Mcp>,
    offer: BotOffer,
    session: Option<Session>,
}

impl FromRequestParts<HttpState> for BotRequest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let Id(name) = Id::<String>::from_request_parts(parts, state).await?;
        let caller = token::caller(parts, state, &name).await?;
        let bot = tools::bot_called(&state.app, &caller, &name)?;
        let Ok(InLanguage(language)) = InLanguage::from_request_parts(parts, state).await;
        let mcp = Arc::clone(&state.mcp);
        let now = state.app.clock.now();
        let session = mcp.sessions.of_request(&parts.headers, &caller, bot.row.id, now)?;
        let (app, stop) = (Arc::clone(&state.app), mcp.stop.clone());
        let (id, name, seen) = (bot.row.id, bot.row.name.clone(), Arc::downgrade(&bot));
        let request_states = Arc::clone(&mcp.request_states);
        let offer = BotOffer { app, caller, bot: id, name, seen, language, request_states, is_large: false, stop };
        Ok(BotRequest { mcp, offer, session })
    }
}

/// Answers a message of the Model Context Protocol
///
/// The revisions 2026-07-28, 2025-11-25, 2025-06-18 and 2025-03-26 are supported, over Streamable HTTP. The bot is
/// named by its id or its name. The answer is a JSON-RPC message, or a stream of events for calls that take long.
#[utoipa::path(post, path = "/mcp/{bot}", tag = "mcp", params(("bot" = String, Path)), request_body = Object,
    responses((status = 200, body = Object), (status = 202, description = "A notification or a response was accepted"),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn post(visit: BotRequest, app: Host, request: Request) -> Result<Response, Problem> {
    let BotRequest { mcp, mut offer, session } = visit;
    let (mut parts, body) = request.into_parts();
    let body = whole_body_of(body, BODY_BYTES_MAX).await?;
    offer.is_large = is_large(&body);
    let message = match in_place(offer.is_large, || Message::read(&body)) {
        Ok(message) => message,
        Err(unreadable) => return Ok((StatusCode::BAD_REQUEST, Json(unreadable.to_json())).into_response()),
    };
    if let Some(session) = &session
        && !message.has_revision
    {
        complete(&mut parts, session);
    }
    let (method, id) = (message.method.clone(), message.id.as_ref().map(Value::to_string));
    let may_wait = message.may_wait;
    let opens_urls = session.as_ref().is_some_and(|session| session.opens_urls);
    let request = monstrum_mcp::Request { parts, body, message, opens_urls };
    match method {
        Method::Cancelled(cancelled) => {
            if let Some(session) = session {
                mcp.running.cancel(session.nonce, cancelled);
            }
            Ok(StatusCode::ACCEPTED.into_response())
        }
        Method::Initialize(client) => initialize(&mcp, &app, offer, request, client).await,
        Method::Listen => {
            let place = mcp.streams.enter(offer.caller.key)?;
            let response = respond(offer, request, Delivery::Json).await?;
            Ok(held(response, place, CancellationToken::new()))
        }
        Method::Call(tool) => {
            let is_long = may_wait || tools::may_exceed(&app, &offer.caller, offer.bot, &tool, LONG_CALL);
            let delivery = if is_long { Delivery::Stream } else { Delivery::Json };
            let running = session.zip(id).map(|(session, id)| mcp.running.enter(session.nonce, id));
            call(offer, request, delivery, running).await
        }
        Method::List | Method::Other => Ok(respond(offer, request, Delivery::Json).await?.map(Body::new)),
    }
}

/// Streams notifications about changes of the tool list, for clients that have a session
#[utoipa::path(get, path = "/mcp/{bot}", tag = "mcp", params(("bot" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(super) async fn listen(visit: BotRequest) -> Result<Response, Problem> {
    use monstrum_mcp::Offer as _;
    let BotRequest { mcp, offer, session } = visit;
    if session.is_none() {
        let mut response = Problem::method_not_allowed().into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return Ok(response);
    }
    let place = mcp.streams.enter(offer.caller.key)?;
    Ok(held(monstrum_mcp::list_changes(offer.changes()), place, CancellationToken::new()))
}

/// Answers a message. The first step parses the body, for which the other tasks of this thread move to another thread if
/// the body is large.
async fn respond(
    offer: BotOffer,
    request: monstrum_mcp::Request,
    delivery: Delivery,
) -> Result<http::Response<monstrum_mcp::Body>, Problem> {
    let mut is_much = is_large(&request.body);
    let mut answer = pin!(monstrum_mcp::respond(offer, request, delivery));
    let answer = poll_fn(|context| in_place(std::mem::take(&mut is_much), || answer.as_mut().poll(context)));
    Ok(answer.await?)
}

fn is_large(body: &Bytes) -> bool {
    body.len() > PARSED_IN_PLACE_BYTES_MAX
}

/// Adds the revision of the session to a request without one. Clients of early revisions do not send it.
fn complete(parts: &mut Parts, session: &Session) {
    if let Ok(revision) = HeaderValue::from_str(&session.revision) {
        parts.headers.entry(REVISION).or_insert(revision);
    }
}

/// Answers `initialize`, with a session id if the client and the server agree on a revision.
async fn initialize(
    mcp: &Mcp,
    app: &App,
    offer: BotOffer,
    request: monstrum_mcp::Request,
    client: Initialize,
) -> Result<Response, Problem> {
    let (caller, bot) = (offer.caller.clone(), offer.bot);
    let response = respond(offer, request, Delivery::Json).await?;
    let (parts, body) = response.into_parts();
    let body = match body.collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(never) => match never {},
    };
    let answer: Option<Value> = serde_json::from_slice(&body).ok();
    let revision = answer.as_ref().and_then(|answer| answer.pointer("/result/protocolVersion")?.as_str());
    let mut response = Response::from_parts(parts, Body::from(body));
    if let Some(revision) = revision {
        let id = mcp.sessions.issue(&caller, bot, revision, client.opens_urls, app.clock.now())?;
        response.headers_mut().insert(SESSION, id);
    }
    Ok(response)
}

/// Answers a call. A cancelled call gets no JSON-RPC answer, because its client no longer waits for one.
async fn call(
    offer: BotOffer,
    request: monstrum_mcp::Request,
    delivery: Delivery,
    running: Option<RunningCall>,
) -> Result<Response, Problem> {
    let Some(running) = running else {
        return Ok(respond(offer, request, delivery).await?.map(Body::new));
    };
    let cancelled = running.cancelled.clone();
    tokio::select! {
        response = respond(offer, request, delivery) => Ok(held(response?, running, cancelled)),
        () = cancelled.cancelled() => Ok(StatusCode::ACCEPTED.into_response()),
    }
}

/// Keeps `guard` until the response is sent. A cancellation ends the response.
fn held<G: Send + 'static>(
    response: http::Response<monstrum_mcp::Body>,
    guard: G,
    cancelled: CancellationToken,
) -> Response {
    let is_stream = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !is_stream {
        return response.map(Body::new);
    }
    response.map(|body| {
        let chunks = body.into_data_stream().take_until(cancelled.cancelled_owned());
        Body::from_stream(chunks.map(move |chunk: Result<Bytes, std::convert::Infallible>| {
            let _held = &guard;
            chunk
        }))
    })
}
