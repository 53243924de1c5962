//! The events of a task as server-sent events.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts as _, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{HeaderMap, HeaderName, Method, StatusCode};
use monstrum_agent::{Following, TaskEvent, Tasks};
use monstrum_core::operations::Caller;
use monstrum_types::TaskId;
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;

use crate::gateway::http::events::wants_events;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::HttpState;
use crate::gateway::http::streams::{LAST_EVENT_ID, StreamPlace, Streams};

/// The maximum number of concurrent streams. Each stream reads the database once a second.
const STREAMS_MAX: usize = 1024;
/// The maximum number of concurrent streams of one key. Agents follow many tasks with one key.
const STREAMS_OF_KEY_MAX: usize = 256;
static STREAMS: LazyLock<Streams> = LazyLock::new(|| Streams::new(STREAMS_OF_KEY_MAX, STREAMS_MAX));
/// The interval of comments in a silent stream, shorter than the time-outs of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The maximum size of a new task as JSON: its instruction, with escapes.
const STARTED_BYTES_MAX: usize = 8 << 20;
/// Tells nginx not to hold events back.
const UNBUFFERED: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");

/// Returns the events of a task, after the step that the client has received last.
pub(super) async fn events(
    tasks: Arc<Tasks>,
    caller: Caller,
    id: TaskId,
    headers: &HeaderMap,
    after: Option<&str>,
) -> Result<impl IntoResponse + use<>, Problem> {
    let after = match headers.get(LAST_EVENT_ID) {
        Some(id) => position(LAST_EVENT_ID, id.to_str().ok())?,
        None => self::after(after)?,
    };
    let place = STREAMS.enter(caller.key)?;
    let request = caller.request.to_string();
    let following = tasks.follow(caller, id, after).await?;
    let events = Events { following, request, has_failed: false, _place: place };
    let events = stream::unfold(events, |mut events| async move {
        events.next().await.map(|event| (Ok::<Event, Infallible>(event), events))
    });
    Ok(([UNBUFFERED], Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))))
}

/// Answers requests that start a task with the events of the task, if the client accepts them. The layer is outside of that
/// of `Idempotency-Key`, so that a repeated request follows the task of the first one.
pub(in crate::gateway) fn streamed(starting: OpenApiRouter<HttpState>, state: &HttpState) -> OpenApiRouter<HttpState> {
    starting.route_layer(from_fn_with_state(state.clone(), follow_started))
}

async fn follow_started(State(state): State<HttpState>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST || !wants_events(request.headers()) {
        return next.run(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let caller = match Caller::from_request_parts(&mut parts, &state).await {
        Ok(caller) => caller,
        Err(problem) => return problem.into_response(),
    };
    let answer = next.run(Request::from_parts(parts, body)).await;
    if answer.status() != StatusCode::ACCEPTED {
        return answer;
    }
    match events_of(&state.tasks, caller, answer.into_body()).await {
        Ok(events) => events.into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// Returns the events of the task in an answer.
async fn events_of(tasks: &Arc<Tasks>, caller: Caller, task: Body) -> Result<impl IntoResponse + use<>, Problem> {
    #[derive(Deserialize)]
    struct Started {
        id: TaskId,
    }
    let task = to_bytes(task, STARTED_BYTES_MAX).await.map_err(|error| Problem::internal(&error))?;
    let Started { id } = serde_json::from_slice(&task).map_err(|error| Problem::internal(&error))?;
    events(Arc::clone(tasks), caller, id, &HeaderMap::new(), None).await
}

/// Validates the parameter `after`.
pub(super) fn after(text: Option<&str>) -> Result<i64, Problem> {
    text.map_or(Ok(0), |text| position("after", Some(text)))
}

fn position(name: &str, text: Option<&str>) -> Result<i64, Problem> {
    let position = text.and_then(|text| text.parse().ok()).filter(|position| *position >= 0);
    position.ok_or_else(|| Problem::invalid_at(name, "expected the position of a step"))
}

struct Events {
    following: Following,
    request: String,
    has_failed: bool,
    _place: StreamPlace,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        if self.has_failed {
            return None;
        }
        match self.following.next().await {
            Ok(event) => event.map(|event| sent(&event)),
            Err(error) => {
                self.has_failed = true;
                Some(Event::default().event("error").data(Problem::from(error).text(&self.request)))
            }
        }
    }
}

fn sent(event: &TaskEvent) -> Event {
    let text = serde_json::to_string(event).expect("an event of a task is plain JSON");
    // A result is the text of a plugin, which may have line breaks between its values. They would end a field.
    let text = text.replace(['\r', '\n'], " ");
    let sent = Event::default().event(event.name()).data(text);
    match event.sequence() {
        Some(sequence) => sent.id(sequence.to_string()),
        None => sent,
    }
}
