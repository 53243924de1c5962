//! The calls of a workspace as server-sent events, when they end.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, stream};
use http::HeaderMap;
use monstrum_core::app::App;
use monstrum_core::audit::FeedCursor;
use monstrum_core::operations::audit_feed::{self, CallFeed, CallFeedItem};
use monstrum_core::operations::{OperationError, Operator};
use serde_json::json;

use super::AuditFilter;
use crate::gateway::http::events::wants_events;
use crate::gateway::http::extract::Params;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;
use crate::gateway::http::streams::{StreamPlace, Streams, last_event_id};

/// The maximum number of concurrent streams. All of them share one reader of the database.
const STREAMS_MAX: usize = 64;
/// The maximum number of concurrent streams of one key, so that one key cannot use up the streams of all tenants.
const STREAMS_OF_KEY_MAX: usize = 8;
static STREAMS: LazyLock<Streams> = LazyLock::new(|| Streams::new(STREAMS_OF_KEY_MAX, STREAMS_MAX));
/// The time between two comments that keep an idle connection open. Proxies close connections after 30 s or more.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The time between two checks of the caller's key on a stream without calls.
const KEY_CHECK: Duration = Duration::from_secs(1);

/// Streams calls as they end
///
/// The answer is a stream of server-sent events, which needs `Accept: text/event-stream`. Each call is an event `call`,
/// with the data of an item of `GET /api/audit`. The id of an event is a cursor: a request with this id in the header
/// `Last-Event-ID` continues after the event. The first event has an id only. An event `lost` means that calls were left
/// out, because the client reads too slowly or was away for too long; its `count` is null if their number is unknown. A
/// comment is sent every 15 seconds. The stream ends when the key is deleted or rotated. A server has 64 streams, and a
/// key 8.
#[utoipa::path(get, path = "/api/audit/stream", tag = "audit", params(AuditFilter),
    responses((status = 200, content_type = "text/event-stream", body = String)))]
pub(in crate::gateway) async fn follow(
    app: Host,
    caller: Operator,
    headers: HeaderMap,
    Params(filter): Params<AuditFilter>,
) -> Result<Response, Problem> {
    let filter = filter.check()?;
    if !wants_events(&headers) {
        return Err(Problem::invalid_at("accept", "expected text/event-stream"));
    }
    let cursor: Option<FeedCursor> = last_event_id(&headers)?;
    let place = STREAMS.enter(caller.key)?;
    let feed = audit_feed::follow(&app, &caller, filter, cursor.clone()).await?;
    let begin = cursor.unwrap_or_else(|| feed.cursor());
    let events = Events { app: app.0, caller, feed, begin: Some(begin), has_failed: false, _place: place };
    Ok(Sse::new(events.stream()).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response())
}

struct Events {
    app: Arc<App>,
    caller: Operator,
    feed: CallFeed,
    /// The cursor of the first event.
    begin: Option<FeedCursor>,
    has_failed: bool,
    _place: StreamPlace,
}

impl Events {
    fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut events| async move { Some((Ok(events.next().await?), events)) })
    }

    async fn next(&mut self) -> Option<Event> {
        if let Some(cursor) = self.begin.take() {
            return Some(Event::default().id(cursor.to_string()));
        }
        if self.has_failed {
            return None;
        }
        let item = {
            let mut next = pin!(self.feed.next());
            loop {
                tokio::select! {
                    item = &mut next => break item,
                    // An idle stream must notice the end of its key.
                    () = tokio::time::sleep(KEY_CHECK) => {
                        if !audit_feed::holds_its_key(&self.app, &self.caller) {
                            return None;
                        }
                    }
                }
            }
        };
        // The key may have ended while the stream waited.
        if !audit_feed::holds_its_key(&self.app, &self.caller) {
            return None;
        }
        match item {
            Ok(item) => item.map(event),
            Err(error) => Some(self.failed(error)),
        }
    }

    fn failed(&mut self, error: OperationError) -> Event {
        self.has_failed = true;
        let request = self.caller.request.to_string();
        Event::default().event("error").data(Problem::from(error).text(&request))
    }
}

fn event(item: CallFeedItem) -> Event {
    match item {
        CallFeedItem::Call { call, cursor } => {
            let text = serde_json::to_string(&call).expect("a call is plain JSON");
            Event::default().event("call").id(cursor.to_string()).data(text)
        }
        CallFeedItem::Lost { count } => Event::default().event("lost").data(json!({ "count": count }).to_string()),
    }
}
