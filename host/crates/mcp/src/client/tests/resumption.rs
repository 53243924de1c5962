use std::time::Duration;

use tokio::time::Instant;

use super::*;

/// Returns the steps of a server of an earlier revision in which the call begins with these steps.
fn legacy(steps: Vec<Step>) -> Vec<Step> {
    let mut all = initialized(Some("s1"), "2025-11-25");
    all.extend(steps);
    all
}

/// Returns a stream of one event with this id and without data, after which the connection breaks.
fn broken(id: &'static str) -> Step {
    Step::Numbered { events: vec![(id, String::new())], retry_ms: None }
}

/// Returns a stream with the answer to the request `id`.
fn resumed(id: u64) -> Step {
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": text_result("a")});
    Step::Numbered { events: vec![("e9", answer.to_string())], retry_ms: None }
}

/// The messages of [`initialized`] and the call itself.
const BEFORE: usize = 4;

/// A call that may change something reaches the server once, and its result is not lost.
#[tokio::test(start_paused = true)]
async fn a_broken_stream_continues_after_its_last_event() {
    let wire = Script::new(legacy(vec![broken("e1"), broken("e2"), resumed(3)]));
    let called = call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!(called.content, [json!({"type": "text", "text": "a"})]);
    assert_eq!(wire.methods()[BEFORE - 1..], ["tools/call", "GET", "GET"]);
    for (name, value) in [
        ("last-event-id", "e2"),
        ("mcp-session-id", "s1"),
        ("mcp-protocol-version", "2025-11-25"),
        ("accept", "text/event-stream"),
    ] {
        assert_eq!(wire.last_header(name).as_deref(), Some(value));
    }
}

/// A connection that breaks before its first event is resumed at the same place.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_fails_is_repeated_a_few_times() {
    let cut = || Step::Fails(Failure::unsent(FailureCode::Connect, "refused"));
    let empty = || Step::Stream { events: Vec::new(), ends: true };
    let wire = Script::new(legacy(vec![broken("e1"), cut(), empty(), resumed(3)]));
    call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!(wire.last_header("last-event-id").as_deref(), Some("e1"));

    let wire = Script::new(legacy(vec![broken("e1"), cut(), cut(), cut(), resumed(3)]));
    let error = call(&wire, &Connection::default(), false).await.unwrap_err();
    assert!(matches!(error, ClientError::Failed(failure) if failure.sent), "the call may have been carried out");
    assert_eq!(wire.methods().len(), BEFORE + 3);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_the_server_does_not_continue_is_broken() {
    let denied = || Step::Fails(Failure::unsent(FailureCode::Denied, "the network rules have changed"));
    for step in [answer(405, &Value::Null), answer(404, &Value::Null), result(&json!({})), denied()] {
        let wire = Script::new(legacy(vec![broken("e1"), step, resumed(3)]));
        let error = call(&wire, &Connection::default(), false).await.unwrap_err();
        assert!(matches!(error, ClientError::Failed(failure) if failure.sent));
        assert_eq!(wire.methods().len(), BEFORE + 1);
    }
    // A call that can be repeated is sent again.
    let wire = Script::new(legacy(vec![broken("e1"), answer(405, &Value::Null), result(&text_result("a"))]));
    call(&wire, &Connection::default(), true).await.unwrap();
    assert_eq!(wire.methods()[BEFORE - 1..], ["tools/call", "GET", "tools/call"]);
}

/// A stream without event ids cannot be resumed, and revision 2026-07-28 does not provide resumption.
#[tokio::test(start_paused = true)]
async fn streams_without_ids_and_stateless_streams_are_not_resumed() {
    for id in ["", "a b", "e\u{e9}", "e\r\nX: y"] {
        let wire = Script::new(legacy(vec![broken(id), resumed(3)]));
        call(&wire, &Connection::default(), false).await.unwrap_err();
        assert_eq!(wire.methods().len(), BEFORE, "{id:?}");
    }
    let wire = Script::new(vec![discovered(), broken("e1"), resumed(2)]);
    call(&wire, &Connection::default(), false).await.unwrap_err();
    assert_eq!(wire.methods(), ["server/discover", "tools/call"]);
}

/// The server chooses the delay, within limits.
#[tokio::test(start_paused = true)]
async fn the_delay_of_the_server_is_kept_within_limits() {
    for (retry_ms, delay_ms) in [(None, 1000), (Some(5000), 5000), (Some(0), 100), (Some(u64::MAX), 30_000)] {
        let first = Step::Numbered { events: vec![("e1", String::new())], retry_ms };
        let wire = Script::new(legacy(vec![first, resumed(3)]));
        let began = Instant::now();
        call(&wire, &Connection::default(), false).await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_millis(delay_ms), "{retry_ms:?}");
    }
}

/// A server that sends one event for each connection cannot keep the host busy for ever.
#[tokio::test(start_paused = true)]
async fn a_stream_has_a_limited_number_of_connections() {
    let steps = std::iter::repeat_with(|| broken("e1")).take(1000);
    let wire = Script::new(legacy(steps.collect()));
    call(&wire, &Connection::default(), false).await.unwrap_err();
    assert_eq!(wire.methods().len(), BEFORE - 1 + 600);
}

/// A change that happens while a subscription is broken is not lost.
#[tokio::test(start_paused = true)]
async fn a_subscription_is_resumed() {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let missed = Step::Numbered { events: vec![("e2", changed.to_string())], retry_ms: None };
    let wire = Script::new(legacy(vec![broken("e1"), missed, answer(404, &Value::Null)]));
    let connection = Connection::default();
    let mut subscription = connection.subscribe(&wire).await.unwrap();
    assert_eq!(subscription.changed().await, Ok(true));
    assert_eq!(wire.last_header("last-event-id").as_deref(), Some("e1"));
    assert!(subscription.changed().await.is_err(), "the session has ended");
    assert_eq!(wire.last_header("last-event-id").as_deref(), Some("e2"));
}
