//! The newest calls, and the stream with which the script of the page adds each call when it ends.

use std::time::Duration;

use askama::Template;
use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::response::{IntoResponse, Response};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use monstrum_core::console_sessions;
use monstrum_types::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::gateway::console::Console;
use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::{Filter, STATUSES, Selection, Tabs};
use crate::gateway::console::visit::Visit;

/// The end of the path of the stream. A request for it does not keep the session alive.
pub(in crate::gateway::console) const EVENTS: &str = "/activity/live/events";

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The time between two checks of the session of an open stream.
const SESSION_CHECK: Duration = Duration::from_secs(2);
/// The event that tells the script that the session has ended, so that the script does not connect again.
pub(super) const OVER: &str = "event: over\ndata: {}\n\n";

#[derive(Template)]
#[template(path = "console/activity_live.html")]
struct LivePage {
    frame: Frame,
    tabs: Tabs,
    selection: Selection,
    /// The path of the stream.
    stream: String,
    /// The path of this page with its filter.
    refresh: String,
}

impl LivePage {
    /// Returns the words of the script as JSON.
    fn script_words(&self) -> String {
        let frame = &self.frame;
        let statuses = STATUSES.into_iter().chain(["running", "interrupted"]).map(|status| {
            let shown = json!({ "class": page::class_of(status), "word": frame.word("status", status) });
            (status.to_owned(), shown)
        });
        let words = json!({
            "connecting": frame.t("live.connecting"),
            "live": frame.t("live.live"),
            "paused": frame.t("live.paused"),
            "lost": frame.t("live.lost"),
            "refused": frame.t("live.refused"),
            "over": frame.t("live.over"),
            "left_out": frame.t("live.left_out"),
            "left_out_some": frame.t("live.left_out_some"),
            "pause": frame.t("live.pause"),
            "resume": frame.t("live.resume"),
            "ms": frame.t("call.ms"),
            "statuses": Map::from_iter(statuses),
        });
        words.to_string()
    }
}

/// Shows the newest calls. Without a script, the page has a link that reads it again.
pub(in crate::gateway::console) async fn show(visit: Visit, Query(mut filter): Query<Filter>) -> Page {
    if !filter.request.is_empty() {
        return Ok(page::see_other(&visit.to(&format!("activity/{}", segment(filter.request.trim())))));
    }
    filter.cursor.clear();
    let stream = with_query(&visit.to("activity/live/events"), &filter.parameters());
    let refresh = with_query(&visit.to("activity/live"), &filter.parameters());
    let (frame, selection) = tokio::join!(
        visit.frame("activity", visit.words().text("activity.title")),
        Selection::read(&visit, filter, "activity/live"),
    );
    let tabs = Tabs::of(&visit, "live");
    Ok(page::render(&LivePage { frame, tabs, selection: selection?, stream, refresh }))
}

/// Streams the calls that a filter selects, as the API does with the key of the session. The stream continues after the
/// event that the header `Last-Event-ID` or, for a script that opens a new stream, the parameter `cursor` names. A stream
/// that begins anew starts with the newest calls of the list, so that no call between the page and the stream is missing.
pub(in crate::gateway::console) async fn events(
    visit: Visit,
    Query(filter): Query<Filter>,
    headers: HeaderMap,
) -> Page {
    check_site(&headers)?;
    let last = match headers.get(LAST_EVENT_ID) {
        Some(last) => Some(last.clone()),
        None if filter.cursor.is_empty() => None,
        None => Some(HeaderValue::from_str(&filter.cursor).map_err(|_| Failure::not_found())?),
    };
    let is_new = last.is_none();
    let mut sent = vec![(header::ACCEPT, HeaderValue::from_static("text/event-stream"))];
    sent.extend(last.map(|last| (LAST_EVENT_ID, last)));
    let calls = visit.client.stream(&with_query("/api/audit/stream", &filter.parameters()), &sent).await?;
    // The list is read after the stream has begun.
    let first = if is_new { Some(newest(&visit, &filter).await?) } else { None };
    passed_on(&visit, calls.into_body().into_data_stream().boxed(), first)
}

/// Refuses a stream to pages of other sites. They could not read it, but they could use up the places of the key.
pub(super) fn check_site(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get(SEC_FETCH_SITE) {
        Some(site) if site != "same-origin" => Err(Failure::foreign()),
        Some(_) | None => Ok(()),
    }
}

/// The events of a stream of the API.
pub(super) type Events = BoxStream<'static, Result<Bytes, axum::Error>>;

/// Passes a stream of the API on, after `first`. The stream also ends with the session.
pub(super) fn passed_on(visit: &Visit, events: Events, first: Option<Bytes>) -> Result<Response, Failure> {
    let Some(secret) = visit.secret().cloned() else { return Err(Failure::not_found()) };
    let mut check = interval_at(Instant::now() + SESSION_CHECK, SESSION_CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let feed = Feed { console: visit.console.clone(), secret, events, first, check, has_ended: false };
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((kind, Body::from_stream(feed.stream())).into_response())
}

/// Returns the newest calls as events, oldest first.
async fn newest(visit: &Visit, filter: &Filter) -> Result<Bytes, Failure> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Value>,
    }
    let mut parameters = filter.parameters().to_vec();
    parameters.push(("limit", "50"));
    let list = visit.client.get::<List>(&with_query("/api/audit", &parameters)).await?;
    let events = list.items.iter().rev().map(|call| format!("event: call\ndata: {call}\n\n"));
    Ok(events.collect::<String>().into())
}

/// The stream of the API, which also ends with the session.
struct Feed {
    console: Console,
    secret: Secret,
    events: Events,
    first: Option<Bytes>,
    check: Interval,
    has_ended: bool,
}

/// Whether a session can go on with its stream.
enum Lives {
    Yes,
    /// The session has ended.
    No,
    /// The database cannot be read, so the stream ends. The browser connects again.
    Unknown,
}

impl Feed {
    fn stream(self) -> impl Stream<Item = Result<Bytes, axum::Error>> {
        stream::unfold(self, |mut feed| async move { Some((feed.next().await?, feed)) })
    }

    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        if self.has_ended {
            return None;
        }
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Some(Ok(first));
        }
        loop {
            let chunk = tokio::select! {
                biased;
                _ = self.check.tick() => None,
                chunk = self.events.next() => Some(chunk),
            };
            let is_at_end = match chunk {
                Some(Some(chunk)) => return Some(chunk),
                Some(None) => true,
                None => false,
            };
            match self.lives().await {
                Lives::Yes if !is_at_end => {}
                Lives::Yes | Lives::Unknown => return None,
                Lives::No => {
                    self.has_ended = true;
                    return Some(Ok(Bytes::from_static(OVER.as_bytes())));
                }
            }
        }
    }

    async fn lives(&mut self) -> Lives {
        let visit = console_sessions::Visit::Quiet;
        match self.console.app.console_sessions.find(self.secret.expose(), visit).await {
            Ok(Some(_)) => Lives::Yes,
            Ok(None) => Lives::No,
            Err(error) => {
                tracing::error!(%error, "the session of a stream of the console cannot be read");
                Lives::Unknown
            }
        }
    }
}
