//! The events of a workspace as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use http::HeaderMap;
use monstrum_core::app::App;
use monstrum_core::operations::Operator;
use monstrum_core::operations::events::{self, EventsInput};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::gateway::http::problem::Problem;
use crate::gateway::http::streams::{StreamPlace, Streams, last_event_id};

/// The maximum number of concurrent streams. Each stream reads the database once a second.
const STREAMS_MAX: usize = 256;
/// The maximum number of concurrent streams of one key, so that one key cannot use up the streams of all tenants.
const STREAMS_OF_KEY_MAX: usize = 16;
static STREAMS: LazyLock<Streams> = LazyLock::new(|| Streams::new(STREAMS_OF_KEY_MAX, STREAMS_MAX));
/// The interval at which the database is read. Events that this host dispatches are read at once.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Returns a stream of the events after the one that the client has received last, or of all events from now on. The stream
/// ends when the key is deleted or rotated, and when the server stops.
pub(super) async fn events(
    app: Arc<App>,
    caller: Operator,
    input: EventsInput,
    headers: &HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, Problem> {
    let place = STREAMS.enter(caller.key)?;
    // The subscription precedes the first read, so that no event is missed.
    let dispatches = app.emitter.dispatches();
    let after = match last_event_id(headers)? {
        None => events::last(&app, &caller).await?,
        Some(sequence) => sequence,
    };
    let queued = VecDeque::new();
    let events = Events { app, caller, input, after, dispatches, queued, has_failed: false, _place: place };
    let events = stream::unfold(events, |mut events| async move { Some((Ok(events.next().await?), events)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

struct Events {
    app: Arc<App>,
    caller: Operator,
    input: EventsInput,
    /// The position of the last event that was read.
    after: i64,
    dispatches: Receiver<()>,
    queued: VecDeque<Event>,
    has_failed: bool,
    _place: StreamPlace,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Some(event);
            }
            if self.has_failed || !events::holds_its_key(&self.app, &self.caller) {
                return None;
            }
            match events::after(&self.app, &self.caller, &self.input, self.after).await {
                Ok((found, last)) => {
                    let has_read = last > self.after;
                    self.after = last;
                    self.queued.extend(found.iter().map(event));
                    if has_read {
                        continue;
                    }
                }
                Err(error) => {
                    self.has_failed = true;
                    let request = self.caller.request.to_string();
                    return Some(Event::default().event("error").data(Problem::from(error).text(&request)));
                }
            }
            tokio::select! {
                // Whether an event was dispatched or the interval has ended, the database is read again.
                _ = timeout(READ_INTERVAL, self.dispatches.changed()) => {}
                () = self.app.approvals.closed() => return None,
            }
        }
    }
}

fn event(event: &monstrum_api::events::Event) -> Event {
    let text = serde_json::to_string(event).expect("an event is plain JSON");
    let sequence = event.sequence.unwrap_or_default();
    Event::default().event("event").id(sequence.to_string()).data(text)
}
