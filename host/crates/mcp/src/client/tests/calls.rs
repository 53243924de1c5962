use super::*;

fn broken() -> Step {
    Step::Fails(Failure::sent(FailureCode::Protocol, "closed"))
}

/// A call that may change something is sent again only if no byte of it was sent.
#[tokio::test]
async fn only_repeatable_calls_are_sent_again_after_their_connection_broke() {
    let unsent = || Step::Fails(Failure::unsent(FailureCode::Connect, "refused"));
    let cut = || Step::Stream { events: vec![String::new()], ends: true };
    for (step, is_repeatable, attempts) in [
        (broken(), false, 1),
        (broken(), true, 2),
        (cut(), false, 1),
        (cut(), true, 2),
        (unsent(), false, 2),
        (Step::Fails(Failure::sent(FailureCode::Timeout, "late")), true, 1),
        (answer(500, &Value::Null), true, 1),
        (rpc_error(200, -32603), true, 1),
    ] {
        let wire = Script::new(vec![discovered(), step, result(&text_result("a"))]);
        let called = call(&wire, &Connection::default(), is_repeatable).await;
        assert_eq!(wire.methods().len(), 1 + attempts, "{called:?}");
        assert_eq!(called.is_ok(), attempts == 2);
    }
    let wire = Script::new(vec![discovered(), broken(), broken(), result(&text_result("a"))]);
    assert!(call(&wire, &Connection::default(), true).await.is_err(), "there is one second attempt");
}

#[tokio::test]
async fn results_are_read_leniently_and_unknown_blocks_are_dropped() {
    let of = async |value: Value| {
        let wire = Script::new(vec![discovered(), result(&value)]);
        call(&wire, &Connection::default(), false).await
    };
    let text = json!({"type": "text", "text": "a", "annotations": {"priority": 1}});
    let called =
        of(json!({"content": [text, {"type": "hologram"}, {"type": "image"}], "isError": true})).await.unwrap();
    assert_eq!((called.content.len(), called.dropped_blocks, called.is_error), (2, 1, true));
    assert_eq!(called.content[0], text);
    let called = of(json!({"structuredContent": [1], "resultType": "complete"})).await.unwrap();
    assert_eq!((called.structured, called.content.len()), (Some(json!([1])), 0));
    for bad in [json!({}), json!({"content": "a"}), json!({"content": [], "isError": "no"})] {
        assert!(matches!(of(bad.clone()).await, Err(ClientError::Invalid(_))), "{bad}");
    }
    assert!(matches!(of(json!({"content": [], "resultType": "task"})).await, Err(ClientError::Unsupported(_))));
}

#[tokio::test]
async fn a_call_with_a_state_is_continued_at_most_ten_times() {
    let asks = |state: &str| result(&json!({"resultType": "input_required", "requestState": state}));
    let wire = Script::new(vec![discovered(), asks("one"), asks("two"), result(&text_result("a"))]);
    call(&wire, &Connection::default(), false).await.unwrap();
    let states: Vec<Value> = wire.sent()[1..].iter().map(|(_, params)| params["requestState"].clone()).collect();
    assert_eq!(states, [Value::Null, json!("one"), json!("two")]);

    let endless = std::iter::repeat_with(|| asks("again")).take(20);
    let wire = Script::new([discovered()].into_iter().chain(endless).collect());
    let error = call(&wire, &Connection::default(), false).await.unwrap_err();
    assert!(matches!(error, ClientError::TooMuch(_)), "{error}");
    assert_eq!(wire.methods().len(), 11);
}

#[tokio::test]
async fn a_server_that_asks_for_input_gets_none() {
    let elicit = json!({"a": {"method": "elicitation/create", "params": {"message": "your password?"}}});
    for value in [
        json!({"resultType": "input_required", "inputRequests": elicit, "requestState": "s"}),
        json!({"resultType": "input_required"}),
        json!({"resultType": "input_required", "requestState": "x".repeat(300 << 10)}),
    ] {
        let wire = Script::new(vec![discovered(), result(&value)]);
        assert!(call(&wire, &Connection::default(), true).await.is_err());
        assert_eq!(wire.methods(), ["server/discover", "tools/call"]);
    }
}

#[tokio::test]
async fn errors_say_what_the_server_answered() {
    let mut told = Vec::new();
    for step in [
        rpc_error(200, -32602),
        rpc_error(400, -32600),
        answer(500, &json!("oops")),
        answer(302, &Value::Null),
        answer(401, &Value::Null),
        answer(200, &json!([{"jsonrpc": "2.0", "id": "{id}", "result": {}}])),
        answer(200, &json!({"jsonrpc": "2.0", "id": 99, "result": {}})),
        answer(200, &json!({"jsonrpc": "2.0", "id": "{id}", "result": 5})),
    ] {
        let wire = Script::new(vec![discovered(), step]);
        told.push(call(&wire, &Connection::default(), false).await.unwrap_err().to_string());
    }
    assert_eq!(
        told,
        [
            "the MCP server answered with an error (-32602): no",
            "the MCP server answered with an error (-32600): no",
            "the MCP server answered with HTTP status 500",
            "the MCP server answered with HTTP status 302",
            "the MCP server rejected the request as unauthenticated (HTTP 401)",
            "the MCP server sent an invalid answer: a message is not an object; batches are not supported",
            "the MCP server sent an invalid answer: the body is not the answer to the request",
            "the MCP server sent an invalid answer: an answer must have either an object `result` or `error`",
        ]
    );
}

#[tokio::test]
async fn a_long_text_of_an_error_is_shortened() {
    let error = json!({"code": -1, "message": "\u{e9}".repeat(4000)});
    let wire = Script::new(vec![discovered(), answer(200, &json!({"jsonrpc": "2.0", "id": "{id}", "error": error}))]);
    let Err(ClientError::Rpc { message, .. }) = call(&wire, &Connection::default(), false).await else {
        panic!("an error of the server");
    };
    assert_eq!(message.len(), 1024);
}

/// A server of an earlier revision learns of a cancellation by a notification, one of the newest by the closed stream.
#[tokio::test]
async fn a_cancelled_call_is_notified_to_an_earlier_server() {
    let hangs = || Step::Stream { events: Vec::new(), ends: false };
    let mut steps = initialized(Some("s1"), "2025-11-25");
    steps.extend([hangs(), answer(202, &Value::Null)]);
    for (steps, notified) in [(steps, true), (vec![discovered(), hangs()], false)] {
        let (wire, connection, in_flight) = (Script::new(steps), Connection::default(), InFlight::default());
        let (arguments, input_schema) = (Map::new(), Map::new());
        let remote = RemoteCall {
            name: "note",
            arguments: &arguments,
            input_schema: &input_schema,
            is_repeatable: true,
            in_flight: &in_flight,
        };
        assert!(connection.call_tool(&wire, &remote).now_or_never().is_none(), "the server does not answer");
        assert_eq!(in_flight.must_be_cancelled(), notified);
        let calls = wire.methods().len();
        connection.cancel(&wire, &in_flight).await.unwrap();
        assert_eq!(wire.methods().len(), calls + usize::from(notified));
        if notified {
            let (method, params) = wire.sent().pop().unwrap();
            assert_eq!((method.as_str(), &params["requestId"]), ("notifications/cancelled", &json!(3)));
            assert_eq!(wire.last_header("mcp-session-id").as_deref(), Some("s1"));
        }
        connection.cancel(&wire, &in_flight).await.unwrap();
        assert_eq!(wire.methods().len(), calls + usize::from(notified), "a call is cancelled once");
    }
}

#[test]
fn parameters_are_encoded_for_headers() {
    let schema = json!({"properties": {
        "text": {"x-mcp-header": "Text"},
        "count": {"x-mcp-header": "Count"},
        "flag": {"x-mcp-header": "Flag"},
        "absent": {"x-mcp-header": "Absent"},
        "list": {"x-mcp-header": "List"},
        "nested": {"properties": {"id": {"x-mcp-header": "Id"}}},
        "plain": {},
    }});
    let arguments =
        json!({"text": "a\r\nX: y", "count": 5, "flag": true, "list": [1], "nested": {"id": " b"}, "plain": 1});
    let headers =
        super::super::param_headers::param_headers(schema.as_object().unwrap(), arguments.as_object().unwrap());
    let headers: Vec<String> = headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        headers,
        [
            "mcp-param-text: =?base64?YQ0KWDogeQ==?=",
            "mcp-param-count: 5",
            "mcp-param-flag: true",
            "mcp-param-id: =?base64?IGI=?=",
        ]
    );
}
