use super::*;

fn events(events: &[Value]) -> Step {
    let events = events.iter().map(|event| event.to_string().replace("\"{id}\"", "{id}")).collect();
    Step::Stream { events, ends: false }
}

fn final_answer() -> Value {
    json!({"jsonrpc": "2.0", "id": "{id}", "result": text_result("a")})
}

fn request(id: &Value, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}})
}

#[tokio::test]
async fn the_answer_is_found_among_other_events() {
    let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}});
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let other = json!({"jsonrpc": "2.0", "id": 99, "result": text_result("of another call")});
    let text = json!({"jsonrpc": "2.0", "id": "1", "result": text_result("an id that is a text")});
    let wire = Script::new(vec![discovered(), events(&[progress, changed, other, text, final_answer()])]);
    let called = call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!((called.content, called.is_list_changed), (vec![json!({"type": "text", "text": "a"})], true));
}

#[tokio::test]
async fn requests_of_an_earlier_server_are_refused_and_pings_are_answered() {
    let mut steps = initialized(Some("s1"), "2025-11-25");
    let requests = [
        request(&json!("p"), "ping"),
        request(&json!(7), "sampling/createMessage"),
        request(&json!(8), "elicitation/create"),
        request(&json!(9), "roots/list"),
    ];
    steps.push(events(&[&requests[..], &[final_answer()]].concat()));
    steps.extend(std::iter::repeat_with(|| answer(202, &Value::Null)).take(4));
    let wire = Script::new(steps);
    call(&wire, &Connection::default(), false).await.unwrap();
    let replies: Vec<String> =
        wire.sent().into_iter().filter(|(method, _)| method == "reply").map(|(_, body)| body.to_string()).collect();
    let refused = |id: u8| {
        let error = "{\"code\":-32601,\"message\":\"the client supports no requests of servers\"}";
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
    };
    assert_eq!(replies, [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#.to_owned(), refused(7), refused(8), refused(9)]);
    assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s1"));
}

#[tokio::test]
async fn a_server_of_the_newest_revision_gets_no_replies() {
    let wire = Script::new(vec![discovered(), events(&[request(&json!(1), "sampling/createMessage"), final_answer()])]);
    call(&wire, &Connection::default(), false).await.unwrap();
    assert_eq!(wire.methods(), ["server/discover", "tools/call"]);
}

#[tokio::test]
async fn a_flood_of_requests_ends_the_call() {
    let mut steps = initialized(None, "2025-11-25");
    let flood: Vec<Value> = (0..20).map(|id| request(&json!(id), "ping")).collect();
    steps.push(events(&flood));
    steps.extend(std::iter::repeat_with(|| answer(202, &Value::Null)).take(20));
    let wire = Script::new(steps);
    let error = call(&wire, &Connection::default(), true).await.unwrap_err();
    assert_eq!(error.to_string(), "the MCP server sent more than 16 requests");
    assert_eq!(wire.methods().iter().filter(|method| *method == "reply").count(), 16);
}

#[tokio::test]
async fn streams_without_an_answer_and_with_garbage_fail() {
    let garbage = Step::Stream { events: vec!["not json".to_owned()], ends: true };
    let mut told = Vec::new();
    for step in [Step::Stream { events: vec![String::new()], ends: true }, garbage] {
        let wire = Script::new(vec![discovered(), step]);
        told.push(call(&wire, &Connection::default(), false).await.unwrap_err().to_string());
    }
    assert_eq!(told[0], "the MCP server closed the stream before its answer");
    assert!(told[1].starts_with("the MCP server sent an invalid answer: an event is not JSON"), "{told:?}");
}

#[tokio::test]
async fn changes_of_the_list_are_read_from_a_subscription() {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    let acknowledged = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"});
    let stream = || Step::Stream {
        events: vec![acknowledged.to_string(), changed.to_string(), changed.to_string()],
        ends: true,
    };
    let mut legacy = initialized(Some("s1"), "2025-11-25");
    legacy.push(stream());
    for (steps, method) in [(vec![discovered(), stream()], "subscriptions/listen"), (legacy, "GET")] {
        let (wire, connection) = (Script::new(steps), Connection::default());
        let mut subscription = connection.subscribe(&wire).await.unwrap();
        assert_eq!(subscription.changed().await, Ok(true));
        assert_eq!(subscription.changed().await, Ok(true));
        assert_eq!(subscription.changed().await, Ok(false), "the stream has ended");
        assert_eq!(wire.methods().last().map(String::as_str), Some(method));
    }
    let wire = Script::new(vec![discovered(), result(&json!({}))]);
    assert!(matches!(Connection::default().subscribe(&wire).await.err(), Some(ClientError::Unsupported(_))));
    let mut legacy = initialized(Some("s1"), "2025-11-25");
    legacy.push(answer(405, &Value::Null));
    let wire = Script::new(legacy);
    assert_eq!(Connection::default().subscribe(&wire).await.err(), Some(ClientError::Status(405)));
}
