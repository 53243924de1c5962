//! `/api/events` and `/api/deliveries`: what happened in a workspace, and what it has started.

mod stream;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use monstrum_api::events::{EmittedEvent, EventList, EventWithDeliveries, NewEvent};
use monstrum_core::operations::events::{self, EventsInput};
use monstrum_core::operations::{InputErrors, Operator};
use monstrum_store::EventFilter;
use monstrum_types::{BotId, EventId, UtcMillis};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::{Answer, Created};
use crate::gateway::http::events::wants_events;
use crate::gateway::http::extract::{Id, Input, PageQuery, Params};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

/// The header with the cursor of a page whose body has none.
const NEXT_CURSOR: HeaderName = HeaderName::from_static("monstrum-next-cursor");
/// The name of the format of `CloudEvents`, and its media type: one JSON object a line.
const CLOUD_EVENTS: &str = "cloudevents";
const JSON_LINES: &str = "application/jsonl";

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// A glob over the types of the events, such as `task.*`. By default, events of every type are listed.
    event_type: Option<String>,
    /// The kind of the objects that the events are about, such as `task`.
    source_type: Option<String>,
    /// The bot that the events belong to.
    #[param(value_type = Option<BotId>)]
    bot_id: Option<String>,
    /// The earliest time, which is included.
    #[param(value_type = Option<UtcMillis>)]
    since: Option<String>,
    /// The latest time, which is not included.
    #[param(value_type = Option<UtcMillis>)]
    until: Option<String>,
    /// `cloudevents` for lines of `CloudEvents` 1.0 in JSON in place of a list. The cursor of the next page is then in the
    /// header `Monstrum-Next-Cursor`.
    format: Option<String>,
}

/// Lists events, newest first
///
/// A page can have fewer events than its limit although there are more, if few match: follow `next_cursor` until it is null.
///
/// With `Accept: text/event-stream`, the answer is a stream with an event `event` for each event that is dispatched from now
/// on, in the order of their sequences. The id of an event is its sequence: a request with this id in the header
/// `Last-Event-ID` continues after it.
#[utoipa::path(get, path = "/api/events", tag = "events", params(EventQuery, PageQuery),
    responses((status = 200, content((EventList = "application/json"), (String = "application/jsonl"),
        (String = "text/event-stream")))))]
pub(super) async fn list(
    app: Host,
    caller: Operator,
    headers: HeaderMap,
    Params(query): Params<EventQuery>,
    Params(page): Params<PageQuery>,
) -> Result<Response, Problem> {
    let (input, is_lines) = query.input()?;
    if wants_events(&headers) {
        return Ok(stream::events(app.0, caller, input, &headers).await?.into_response());
    }
    let listed = events::list(&app, &caller, &input, &page.page()?).await?;
    if !is_lines {
        return Ok(Json(listed).into_response());
    }
    let lines: String = listed.items.iter().map(|event| events::cloud_event(event) + "\n").collect();
    let mut response = ([(header::CONTENT_TYPE, JSON_LINES)], lines).into_response();
    if let Some(cursor) = listed.next_cursor {
        let cursor = HeaderValue::from_str(&cursor).map_err(|error| Problem::internal(&error))?;
        response.headers_mut().insert(NEXT_CURSOR, cursor);
    }
    Ok(response)
}

/// Emits an event
///
/// The event has the type `custom.{name}` and starts tasks of the bots that subscribe to it. Without `bot_id`, it is an event
/// of the platform. The status is 429 if the bot or the workspace emits too many events.
#[utoipa::path(post, path = "/api/events", tag = "events", request_body = NewEvent,
    responses((status = 201, body = EmittedEvent)))]
pub(super) async fn emit(app: Host, caller: Operator, Input(new): Input<NewEvent>) -> Created<EmittedEvent> {
    Ok((StatusCode::CREATED, Json(events::emit(&app, &caller, new).await?)))
}

/// Shows an event with its deliveries
#[utoipa::path(get, path = "/api/events/{id}", tag = "events", params(("id" = EventId, Path)),
    responses((status = 200, body = EventWithDeliveries)))]
pub(super) async fn show(app: Host, caller: Operator, Id(id): Id<EventId>) -> Answer<EventWithDeliveries> {
    Ok(Json(events::show(&app, &caller, id).await?))
}

impl EventQuery {
    /// Returns what the events have to match, and whether lines are asked for.
    fn input(self) -> Result<(EventsInput, bool), Problem> {
        let mut errors = InputErrors::default();
        let (id, time) = ("the id of a bot", "a time such as 2026-11-21T22:21:49Z");
        let filter = EventFilter {
            source_type: self.source_type,
            bot: parsed(&mut errors, "bot_id", self.bot_id, id),
            since: parsed(&mut errors, "since", self.since, time),
            until: parsed(&mut errors, "until", self.until, time),
        };
        if self.format.as_deref().is_some_and(|format| format != CLOUD_EVENTS) {
            errors.add("format", format!("expected `{CLOUD_EVENTS}`"));
        }
        errors.check()?;
        let input = EventsInput { event_type: self.event_type, filter };
        input.check()?;
        Ok((input, self.format.is_some()))
    }
}

/// Parses a filter. Adds an error that says what was expected.
fn parsed<T: std::str::FromStr>(errors: &mut InputErrors, name: &str, text: Option<String>, what: &str) -> Option<T> {
    let parsed = text.map(|text| text.parse().ok());
    if parsed.as_ref().is_some_and(Option::is_none) {
        errors.add(name, format!("expected {what}"));
    }
    parsed.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query() -> EventQuery {
        EventQuery { event_type: None, source_type: None, bot_id: None, since: None, until: None, format: None }
    }

    #[test]
    fn filters_are_parsed_or_refused() {
        let since = Some("2026-11-21T23:21:49.123+01:00".to_owned());
        let (input, is_lines) = EventQuery { since, ..query() }.input().unwrap();
        assert_eq!(input.filter.since.unwrap().to_string(), "2026-11-21T22:21:49.123Z");
        assert!(!is_lines);
        assert!(EventQuery { format: Some("cloudevents".to_owned()), ..query() }.input().unwrap().1);
        let bad = || Some("x".to_owned());
        for query in [
            EventQuery { bot_id: bad(), ..query() },
            EventQuery { since: bad(), ..query() },
            EventQuery { until: bad(), ..query() },
            EventQuery { format: bad(), ..query() },
            EventQuery { event_type: Some("x".repeat(257)), ..query() },
        ] {
            assert_eq!(query.input().unwrap_err().status, StatusCode::UNPROCESSABLE_ENTITY);
        }
    }
}
