//! Requests to webhooks: a request that knows the secret of its webhook makes an event.
//!
//! Nothing but the size of a body is told to a sender whose request is not authentic. The body and the headers come from
//! outside: they become the data of the event, and start nothing by themselves.

use std::sync::Arc;

use bytes::Bytes;
use monstrum_egress::{Redactor, SearchBudget};
use monstrum_store::{EventRow, Receipt, ReceivedEvent, WebhookRow};
use monstrum_types::{EventId, JsonText, Secret, UtcMillis};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::super::OperationError;
use super::header_names;
use crate::app::App;
use crate::beside::Beside;
use crate::call_types::call_secrets::{CallSecrets, SharedRedactors};
use crate::emitter::EmitError;
use crate::events::{CustomName, EventError, EventLinks, EventName, NewEvent};
use crate::operations::events::of_emission;
use crate::policy::Snapshot;
use crate::webhooks::{Authenticated, RequestHeaders};

/// The maximum size of the body of a request: the data of an event, less some room for headers.
pub const BODY_BYTES_MAX: usize = 60 << 10;
/// The maximum depth of a body. Parsers of JSON read at least 128 levels, and templates nest the data of events.
const DEPTH_MAX: usize = 64;
/// The maximum size of a body that is parsed on the serving thread, which takes less than half a millisecond.
const PARSED_IN_PLACE_BYTES_MAX: usize = 16 << 10;
/// The maximum length of the value of a header in an event. Longer values are cut.
const HEADER_VALUE_BYTES_MAX: usize = 256;
/// The time for which a repeated request makes no second event.
const REPEATED_MS: i64 = 24 * 60 * 60 * 1000;
/// The number of times that a request is authenticated, in case its webhook changes meanwhile.
const ATTEMPTS_MAX: usize = 3;

/// What became of an authentic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The request has made this event.
    Made(EventId),
    /// An earlier request with the same value of the header has made this event.
    Repeated(EventId),
}

/// Makes an event of a request to the webhook with this id.
///
/// # Errors
///
/// The webhook is unknown or the request is not authentic, which the error does not tell apart. The webhook has had too
/// many requests, or the body is not JSON.
pub async fn receive(app: &App, id: &str, headers: &RequestHeaders, body: &Bytes) -> Result<Received, OperationError> {
    let mut is_admitted = false;
    for _ in 0..ATTEMPTS_MAX {
        // If the policy is stale, the webhook may already have been deleted.
        if app.policy.is_stale() {
            return Err(OperationError::unavailable("the webhooks could not be read; try again"));
        }
        let snapshot = app.policy.load();
        let row = id.parse().ok().and_then(|id| snapshot.webhooks().of_id(id)).cloned();
        let authenticated = app.webhooks.authenticate(&app.vault, row.as_deref(), headers, body);
        let (Some(row), Some(authenticated)) = (row, authenticated) else { return Err(refused()) };
        if !is_admitted {
            app.webhooks.admit(row.id).map_err(|retry_after| OperationError::RateLimited {
                message: "the webhook has had too many requests; try again later".to_owned(),
                retry_after,
            })?;
            is_admitted = true;
        }
        let Authenticated { secret, mac } = authenticated;
        let now = app.clock.now();
        let receipt = receipt(&row, headers, &mac, now);
        let data = json!({ "body": parsed(body).await?, "headers": kept(&row, headers) });
        let mut data = redacted(&snapshot, &row, secret, &data).await?;
        cut_headers(&mut data);
        let event = event(app, &row, data)?;
        match app.store.receive_event(&row, &event, receipt.as_ref()).await? {
            ReceivedEvent::Inserted => {
                app.emitter.signal(&event);
                tracing::debug!(webhook.id = %row.id, event.id = %event.id, "a webhook made an event");
                return Ok(Received::Made(event.id));
            }
            ReceivedEvent::Repeated(first) => return Ok(Received::Repeated(first)),
            // Another host has changed the webhook, or another program has edited its row.
            ReceivedEvent::Changed => app.policy.renew_if_behind().await?,
        }
    }
    Err(refused())
}

/// Returns the error for each request that is not authentic.
fn refused() -> OperationError {
    OperationError::Unauthenticated("the webhook is unknown, or the signature or the token is wrong".to_owned())
}

/// Parses a body. A large one is parsed on another thread.
async fn parsed(body: &Bytes) -> Result<Value, OperationError> {
    static BODIES: Beside = Beside::new();
    if body.len() <= PARSED_IN_PLACE_BYTES_MAX {
        return parse(body);
    }
    let body = body.clone();
    BODIES.run(move || parse(&body)).await.map_err(OperationError::internal)?
}

fn parse(body: &[u8]) -> Result<Value, OperationError> {
    let body: Value = serde_json::from_slice(body)
        .map_err(|error| OperationError::invalid_at("", format!("expected a JSON body: {error}")))?;
    if depth(&body) > DEPTH_MAX {
        return Err(OperationError::invalid_at("", format!("the body may be at most {DEPTH_MAX} levels deep")));
    }
    Ok(body)
}

/// Returns the number of nested lists and objects. The parser has limited it.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
        _ => 0,
    }
}

/// Returns the headers of a request that become part of the event, by name in lower case.
fn kept(row: &WebhookRow, headers: &RequestHeaders) -> Value {
    let kept = header_names(row)
        .into_iter()
        .filter_map(|name| Some((name.to_ascii_lowercase(), Value::String(headers.joined(&name)?))));
    Value::Object(kept.collect::<Map<String, Value>>())
}

/// Cuts long values of headers. Secrets must be redacted before: a secret that was cut would not be found.
fn cut_headers(data: &mut Value) {
    let headers = data.get_mut("headers").and_then(Value::as_object_mut);
    for value in headers.into_iter().flat_map(Map::values_mut) {
        if let Value::String(text) = value {
            text.truncate(text.floor_char_boundary(HEADER_VALUE_BYTES_MAX));
        }
    }
}

/// Returns what identifies a repeated request. A webhook whose signature identifies its requests makes one event of each
/// body: the signature can be written in several ways, so the HMAC itself counts.
fn receipt(row: &WebhookRow, headers: &RequestHeaders, mac: &[u8; 32], now: UtcMillis) -> Option<Receipt> {
    let header = row.dedupe_header.as_deref()?;
    let is_signature = row.signature_header.as_deref().is_some_and(|name| name.eq_ignore_ascii_case(header));
    let value = if is_signature { hex::encode(mac) } else { headers.joined(header)? };
    let mut request = Sha256::new();
    for part in [header.to_ascii_lowercase().as_bytes(), b"\0", value.as_bytes()] {
        request.update(part);
    }
    Some(Receipt { request: hex::encode(request.finalize()), since: now.plus_ms(-REPEATED_MS) })
}

/// Removes the secret of the webhook, and the credentials that the bot uses, from the data of an event.
async fn redacted(
    snapshot: &Snapshot,
    row: &WebhookRow,
    secret: Secret,
    data: &Value,
) -> Result<Value, OperationError> {
    let shared = match row.bot_id {
        Some(bot) => snapshot.redactors_of(row.workspace_id, bot, None),
        None => SharedRedactors::default(),
    };
    let secrets = CallSecrets::new(Some(shared));
    secrets.redact_with(Arc::new(Redactor::new([secret])));
    let text = JsonText::from(data);
    let bytes = text.as_str().len();
    let budget = Arc::new(SearchBudget::default());
    let search = secrets.search(bytes, &budget, move |redactors, watch| {
        redactors.iter().try_fold(text, |text, redactor| redactor.redact_json_watched(text, watch))
    });
    // Data that could not be searched is not stored.
    let searched = search.await.map_err(|withheld| OperationError::unavailable(withheld.message()))?;
    Ok(searched.value())
}

fn event(app: &App, row: &WebhookRow, data: Value) -> Result<EventRow, OperationError> {
    let event_type = EventName::Custom(CustomName::new(&row.event).map_err(OperationError::internal)?);
    let event = NewEvent {
        workspace_id: row.workspace_id,
        event_type,
        source_type: "webhook",
        source_id: row.id.to_string(),
        bot_id: row.bot_id,
        links: EventLinks::default(),
        cause: None,
        data,
    };
    app.emitter.row(event).map_err(|error| match error {
        // A number can be shorter in the body than in the data, such as 1e15.
        EmitError::Event(EventError::TooLarge { .. }) => OperationError::OverLimit(error.to_string()),
        error => of_emission(error),
    })
}

#[cfg(test)]
mod tests {
    use monstrum_store::WebhookKind;
    use monstrum_types::{WebhookId, WorkspaceId};

    use super::*;

    fn row(headers: &[&str], dedupe_header: Option<&str>) -> WebhookRow {
        WebhookRow {
            id: WebhookId::new(),
            workspace_id: WorkspaceId::new(),
            name: "n".to_owned(),
            event: "e".to_owned(),
            bot_id: None,
            kind: WebhookKind::HmacSha256,
            signature_header: Some("X-Signature".to_owned()),
            signature_prefix: Some(String::new()),
            headers: json!(headers),
            dedupe_header: dedupe_header.map(str::to_owned),
            created_at: UtcMillis(0),
            updated_at: UtcMillis(0),
            secret_created_at: UtcMillis(0),
            sealed: String::new(),
        }
    }

    fn sent(headers: &[(&str, &str)]) -> RequestHeaders {
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn bodies_are_json_of_limited_depth() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(parse(b"5").is_ok() && parse(br#"{"a":[{}]}"#).is_ok());
        for levels in [DEPTH_MAX + 1, 127, 128, 10_000] {
            assert!(parse(nested(levels).as_bytes()).is_err(), "{levels}");
        }
        for bad in [&b""[..], b"{", b"a=b", b"\xff", b"{} {}"] {
            assert!(parse(bad).is_err());
        }
    }

    #[test]
    fn only_listed_headers_are_kept() {
        let long = "x".repeat(300);
        let headers = sent(&[("x-event", "push"), ("x-long", &long), ("x-other", "o"), ("X-Two", "a"), ("x-two", "b")]);
        let kept = kept(&row(&["X-Event", "x-long", "X-Two", "x-absent"], None), &headers);
        assert_eq!(kept, json!({ "x-event": "push", "x-long": long, "x-two": "a, b" }));
        let mut data = json!({ "body": long, "headers": kept });
        cut_headers(&mut data);
        let cut = json!({ "x-event": "push", "x-long": "x".repeat(256), "x-two": "a, b" });
        assert_eq!(data, json!({ "body": long, "headers": cut }));
    }

    #[test]
    fn a_receipt_is_that_of_its_header() {
        let now = UtcMillis(REPEATED_MS + 5);
        let of = |row: &WebhookRow, value: &str, mac: u8| receipt(row, &sent(&[("x-id", value)]), &[mac; 32], now);
        let by_id = row(&[], Some("X-Id"));
        assert_eq!(of(&by_id, "a", 1), of(&by_id, "a", 2));
        assert_ne!(of(&by_id, "a", 1), of(&by_id, "b", 1));
        assert_eq!(of(&by_id, "a", 1).unwrap().since, UtcMillis(5));
        assert_eq!(receipt(&by_id, &sent(&[]), &[1; 32], now), None, "a request without the header");
        assert_eq!(of(&row(&[], None), "a", 1), None);
        let by_signature = row(&[], Some("x-signature"));
        assert_eq!(of(&by_signature, "a", 1), of(&by_signature, "b", 1));
        assert_ne!(of(&by_signature, "a", 1), of(&by_signature, "a", 2));
    }
}
