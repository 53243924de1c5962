use std::time::Duration;

use super::super::SESSION_IDLE_MAX;
use super::*;

#[tokio::test]
async fn the_newest_revision_is_tried_first_and_needs_no_session() {
    let wire = Script::new(vec![discovered(), result(&text_result("a")), result(&text_result("b"))]);
    let connection = Connection::default();
    assert_eq!(call(&wire, &connection, false).await.unwrap().content, [json!({"type": "text", "text": "a"})]);
    call(&wire, &connection, false).await.unwrap();
    assert_eq!(wire.methods(), ["server/discover", "tools/call", "tools/call"]);
    let identity = connection.identity().unwrap();
    assert_eq!((identity.name.as_deref(), identity.revision.as_str()), (Some("notes"), STATELESS));
    assert!(identity.notifies);
    let (_, params) = &wire.sent()[1];
    assert_eq!(params["_meta"]["io.modelcontextprotocol/protocolVersion"], STATELESS);
    assert_eq!(params["_meta"]["io.modelcontextprotocol/clientCapabilities"], json!({}));
    for (name, value) in [
        ("mcp-protocol-version", STATELESS),
        ("mcp-method", "tools/call"),
        ("mcp-name", "note"),
        ("mcp-param-text", "hi"),
    ] {
        assert_eq!(wire.last_header(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(wire.last_header("mcp-session-id"), None);
}

#[tokio::test]
async fn an_earlier_server_gets_initialize_and_keeps_its_session() {
    for revision in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let mut steps = initialized(Some("s1"), revision);
        steps.push(result(&text_result("a")));
        let (wire, connection) = (Script::new(steps), Connection::default());
        call(&wire, &connection, false).await.unwrap();
        assert_eq!(
            wire.methods(),
            ["server/discover", "initialize", "notifications/initialized", "tools/call"],
            "{revision}"
        );
        assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s1"));
        assert_eq!(wire.last_header("mcp-protocol-version").as_deref(), Some(revision));
        // Earlier revisions have neither the metadata nor the headers.
        assert_eq!((wire.last_header("mcp-name"), wire.last_header("mcp-param-text")), (None, None));
        assert_eq!(wire.sent()[3].1.get("_meta"), None);
    }
}

#[tokio::test]
async fn a_revision_that_the_client_does_not_know_is_refused() {
    for revision in ["2024-11-05", "2030-01-01", ""] {
        let wire = Script::new(initialized(None, revision));
        let error = call(&wire, &Connection::default(), false).await.unwrap_err();
        assert!(matches!(error, ClientError::Unsupported(_)), "{revision}: {error}");
    }
    let unknown = result(&json!({"supportedVersions": ["2030-01-01"], "capabilities": {}}));
    let wire = Script::new(vec![unknown]);
    let error = call(&wire, &Connection::default(), false).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported(_)), "{error}");
}

/// An error that says nothing about revisions must not cause a second request.
#[tokio::test]
async fn errors_of_authentication_and_of_the_network_are_not_taken_for_an_earlier_revision() {
    let refused = Failure::unsent(FailureCode::Denied, "not allowed");
    for step in [
        answer(401, &Value::Null),
        answer(403, &Value::Null),
        answer(429, &Value::Null),
        answer(503, &Value::Null),
        rpc_error(400, -32020),
        Step::Fails(refused),
    ] {
        let wire = Script::new(vec![step]);
        call(&wire, &Connection::default(), false).await.unwrap_err();
        assert_eq!(wire.methods(), ["server/discover"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_discover_gets_initialize() {
    let mut steps = initialized(None, "2025-06-18");
    steps[0] = Step::Stream { events: Vec::new(), ends: false };
    steps.push(result(&text_result("a")));
    let wire = Script::new(steps);
    call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!(wire.methods()[1], "initialize");
}

#[tokio::test]
async fn an_ended_session_is_made_anew_once() {
    let gone = || Step::Answer { status: 404, session: None, body: String::new() };
    let mut steps = initialized(Some("s1"), "2025-11-25");
    steps.push(gone());
    steps.extend(initialized(Some("s2"), "2025-11-25"));
    steps.push(result(&text_result("a")));
    let (wire, connection) = (Script::new(steps), Connection::default());
    call(&wire, &connection, false).await.unwrap();
    assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s2"));
    assert_eq!(wire.methods().iter().filter(|method| *method == "initialize").count(), 2);

    let mut steps = initialized(Some("s1"), "2025-11-25");
    steps.push(gone());
    steps.extend(initialized(Some("s2"), "2025-11-25"));
    steps.push(gone());
    let wire = Script::new(steps);
    assert_eq!(call(&wire, &Connection::default(), false).await, Err(ClientError::Status(404)));
    assert_eq!(wire.methods().iter().filter(|method| *method == "tools/call").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_and_an_old_agreement_are_not_used() {
    let mut steps = initialized(Some("s1"), "2025-11-25");
    steps.push(result(&text_result("a")));
    steps.push(result(&text_result("b")));
    steps.extend(initialized(Some("s2"), "2025-11-25"));
    steps.push(result(&text_result("c")));
    let (wire, connection) = (Script::new(steps), Connection::default());
    call(&wire, &connection, false).await.unwrap();
    tokio::time::advance(Duration::from_secs(299)).await;
    call(&wire, &connection, false).await.unwrap();
    assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s1"));
    tokio::time::advance(Duration::from_secs(331)).await;
    call(&wire, &connection, false).await.unwrap();
    assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s2"));

    let wire = Script::new(vec![discovered(), result(&text_result("a")), discovered(), result(&text_result("b"))]);
    let connection = Connection::default();
    call(&wire, &connection, false).await.unwrap();
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    call(&wire, &connection, false).await.unwrap();
    assert_eq!(wire.methods(), ["server/discover", "tools/call", "server/discover", "tools/call"]);
}

#[tokio::test]
async fn calls_at_the_same_time_share_one_agreement() {
    let wire = Script::new(vec![discovered(), result(&text_result("a")), result(&text_result("b"))]);
    let connection = Connection::default();
    let (one, other) = tokio::join!(call(&wire, &connection, false), call(&wire, &connection, false));
    assert!(one.is_ok() && other.is_ok());
    assert_eq!(wire.methods(), ["server/discover", "tools/call", "tools/call"]);
}

#[tokio::test]
async fn a_malformed_session_id_is_refused() {
    for session in ["", "a b", "s\u{e9}", "a\r\nX: y"] {
        let wire = Script::new(initialized(Some(session), "2025-11-25"));
        let error = call(&wire, &Connection::default(), false).await.unwrap_err();
        assert!(matches!(error, ClientError::Invalid(_)), "{session}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unused_session_is_ended_and_another_one_is_created() {
    let mut steps = initialized(Some("s1"), "2025-11-25");
    steps.extend([result(&text_result("a")), answer(200, &Value::Null)]);
    steps.extend(initialized(Some("s2"), "2025-11-25"));
    steps.push(result(&text_result("b")));
    let (wire, connection) = (Script::new(steps), Connection::default());
    call(&wire, &connection, false).await.unwrap();
    tokio::time::advance(Duration::from_secs(299)).await;
    assert!(connection.take_unused_session(SESSION_IDLE_MAX).is_none(), "the session was used 299 s ago");
    tokio::time::advance(Duration::from_secs(1)).await;
    let unused = connection.take_unused_session(SESSION_IDLE_MAX).unwrap();
    assert!(!connection.has_session() && connection.take_unused_session(Duration::ZERO).is_none());
    unused.end(&wire).await.unwrap();
    assert_eq!(wire.methods().last().map(String::as_str), Some("DELETE"));
    for (name, value) in [("mcp-session-id", "s1"), ("mcp-protocol-version", "2025-11-25")] {
        assert_eq!(wire.last_header(name).as_deref(), Some(value));
    }
    call(&wire, &connection, false).await.unwrap();
    assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s2"));
}

/// A running call and an open subscription are uses, however long they last.
#[tokio::test(start_paused = true)]
async fn a_session_in_use_is_not_ended() {
    let silent = || Step::Stream { events: Vec::new(), ends: false };
    let mut steps = initialized(Some("s1"), "2025-11-25");
    steps.extend([silent(), silent()]);
    let (wire, connection) = (Script::new(steps), Connection::default());
    let subscription = connection.subscribe(&wire).await.unwrap();
    {
        let running = call(&wire, &connection, false);
        tokio::pin!(running);
        assert!(running.as_mut().now_or_never().is_none(), "the server does not answer");
        drop(subscription);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(connection.take_unused_session(SESSION_IDLE_MAX).is_none(), "a call is running");
    }
    assert!(connection.take_unused_session(SESSION_IDLE_MAX).is_none(), "the call has just ended");
    assert!(connection.take_unused_session(Duration::ZERO).is_some());

    // Servers without sessions have nothing to end, and some do not let clients end sessions.
    let (wire, connection) = (Script::new(vec![discovered(), result(&text_result("a"))]), Connection::default());
    call(&wire, &connection, false).await.unwrap();
    assert!(!connection.has_session() && connection.take_unused_session(Duration::ZERO).is_none());
    for (status, is_ended) in [(405, true), (404, true), (500, false)] {
        let mut steps = initialized(Some("s1"), "2025-11-25");
        steps.extend([result(&text_result("a")), answer(status, &Value::Null)]);
        let (wire, connection) = (Script::new(steps), Connection::default());
        call(&wire, &connection, false).await.unwrap();
        let ended = connection.take_unused_session(Duration::ZERO).unwrap().end(&wire).await;
        assert_eq!(ended.is_ok(), is_ended, "{status}: {ended:?}");
    }
}
