//! The events of a run as server-sent events.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream;
use http::{HeaderMap, HeaderName};
use monstrum_core::operations::Caller;
use monstrum_types::RunId;
use monstrum_work::runs::{Following, RunEvent, RunPosition, Runs};

use crate::gateway::http::problem::Problem;
use crate::gateway::http::streams::{StreamPlace, Streams, last_event_id};

/// The maximum number of concurrent streams. Each stream reads the database once a second.
const STREAMS_MAX: usize = 256;
/// The maximum number of concurrent streams of one key, so that one key cannot use up the streams of all tenants.
const STREAMS_OF_KEY_MAX: usize = 32;
static STREAMS: LazyLock<Streams> = LazyLock::new(|| Streams::new(STREAMS_OF_KEY_MAX, STREAMS_MAX));
/// The interval of comments in a silent stream, shorter than the time-outs of common proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Tells nginx not to hold events back.
const UNBUFFERED: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");

/// Returns the events of a run, after the one that the client has received last.
pub(super) async fn events(
    runs: Arc<Runs>,
    caller: Caller,
    id: RunId,
    headers: &HeaderMap,
) -> Result<impl IntoResponse + use<>, Problem> {
    let after = last_event_id::<RunPosition>(headers)?;
    let place = STREAMS.enter(caller.key)?;
    let request = caller.request.to_string();
    let following = runs.follow(caller, id, after).await?;
    let events = Events { following, request, has_failed: false, _place: place };
    let events = stream::unfold(events, |mut events| async move {
        events.next().await.map(|event| (Ok::<Event, Infallible>(event), events))
    });
    Ok(([UNBUFFERED], Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))))
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
            Ok(event) => event.map(|event| sent(&event, self.following.position())),
            Err(error) => {
                self.has_failed = true;
                Some(Event::default().event("error").data(Problem::from(error).text(&self.request)))
            }
        }
    }
}

fn sent(event: &RunEvent, position: Option<&RunPosition>) -> Event {
    let text = serde_json::to_string(event).expect("an event of a run is plain JSON");
    let sent = Event::default().event(event.name()).data(text);
    match position {
        Some(position) => sent.id(position.to_string()),
        None => sent,
    }
}
