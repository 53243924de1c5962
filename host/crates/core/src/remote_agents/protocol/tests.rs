use serde_json::json;

use super::*;

fn hello(change: impl FnOnce(&mut Value)) -> Result<Message, Refused> {
    let mut hello = json!({
        "type": "hello", "protocol": 1, "name": "lab", "version": "1.4", "instance": "i-1", "concurrency": 8,
        "tools": [{"name": "sum", "description": "Adds.", "input_schema": {"type": "object"}}],
    });
    change(&mut hello);
    read(&hello.to_string())
}

fn fault(read: Result<Message, Refused>) -> (&'static str, String) {
    match read {
        Err(Refused::Answer(Fault { code, message, .. })) => (code, message),
        other => panic!("{other:?}"),
    }
}

fn ended(frame: &str) -> Ended {
    match read(frame) {
        Ok(Message::Result { ended, .. }) => ended,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hello_offers_tools_in_the_spelling_of_the_model_context_protocol() {
    let Ok(Message::Hello(hello)) = hello(|_| {}) else { panic!() };
    assert_eq!((hello.name.as_str(), hello.concurrency, hello.replace), ("lab", 8, false));
    let definition = json!({"name": "sum", "description": "Adds.", "inputSchema": {"type": "object"}});
    assert_eq!(Value::Object(hello.offered.tools[0].definition.clone()), definition);
    assert_eq!(hello.offered.faults, []);
}

#[test]
fn a_hello_has_limits() {
    let cases: [(&str, Value, &str); 7] = [
        ("protocol", json!(2), "unsupported_protocol"),
        ("name", json!(""), "invalid_hello"),
        ("name", json!("a".repeat(129)), "invalid_hello"),
        ("instance", json!("a\u{202e}b"), "invalid_hello"),
        ("concurrency", json!(0), "invalid_hello"),
        ("concurrency", json!(65), "invalid_hello"),
        ("tools", json!({}), "invalid_message"),
    ];
    for (member, value, code) in cases {
        assert_eq!(fault(hello(|hello| hello[member] = value.clone())).0, code, "{member}: {value}");
    }
    assert!(hello(|hello| hello["concurrency"] = json!(64)).is_ok());
}

#[test]
fn a_list_of_tools_has_limits() {
    let tool = |name: String| json!({"name": name, "description": "", "input_schema": {}});
    let list = |count: usize| json!((0..count).map(|index| tool(index.to_string())).collect::<Vec<_>>());
    assert!(hello(|hello| hello["tools"] = list(TOOLS_MAX)).is_ok());
    assert_eq!(fault(hello(|hello| hello["tools"] = list(TOOLS_MAX + 1))).0, "too_many_tools");
    let large = json!([{"name": "a", "description": "x".repeat(TOOLS_BYTES_MAX), "input_schema": {}}]);
    assert_eq!(fault(hello(|hello| hello["tools"] = large)).0, "too_many_tools");
}

#[test]
fn a_tool_that_cannot_be_read_does_not_affect_the_others() {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let tools = format!(
        r#"[{{"name": "a", "description": "A.", "input_schema": {{}}}}, {{"name": "b"}}, 7,
            {{"name": "a", "description": "Again.", "input_schema": {{}}}},
            {{"name": "c", "description": "C.", "input_schema": {{"x": {deep}}}}},
            {{"name": "d", "description": "D.", "input_schema": {{}}, "effect": "none"}}]"#
    );
    let frame = format!(r#"{{"type": "tools", "tools": {tools}}}"#);
    let Ok(Message::Tools(offered)) = read(&frame) else { panic!() };
    assert_eq!(offered.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["a"]);
    let faults: Vec<&str> = offered.faults.iter().map(|fault| fault.name.as_str()).collect();
    assert_eq!(faults, ["b", "#2", "a", "c", "d"]);
    assert!(offered.faults[0].reason.contains("missing field `description`"), "{:?}", offered.faults);
}

#[test]
fn a_frame_is_one_json_object() {
    for text in ["", "x", "[]", "null", "7", "\"hello\"", "{\"type\": \"hello\"", "{\"type\": \"tools\"} {}"] {
        assert!(matches!(read(text), Err(Refused::Close(Close::NotJson))), "{text}");
    }
    for text in ["{}", "{\"type\": null}", "{\"type\": 7}", "{\"type\": \"call\"}"] {
        assert_eq!(fault(read(text)).0, "unknown_type", "{text}");
    }
}

#[test]
fn a_result_ends_its_call_even_if_its_content_is_invalid() {
    let frame = |rest: &str| format!(r#"{{"type": "result", "id": "1", {rest}}}"#);
    let of = |rest: &str| ended(&frame(rest));
    let large = "12345678901234567890.10";
    assert_eq!(
        of(&format!(r#""status": "success", "data": {{"n": {large}}}"#)),
        Ended::Success(JsonText::parse(&format!(r#"{{"n": {large}}}"#)).unwrap())
    );
    assert_eq!(of(r#""status": "success""#), Ended::Success(JsonText::parse("null").unwrap()));
    assert_eq!(of(r#""status": "error", "message": "no""#), Ended::Error("no".to_owned()));
    assert_eq!(of(r#""status": "scope_violation", "message": "no""#), Ended::ScopeViolation("no".to_owned()));
    for rest in [
        r#""status": "error""#,
        r#""status": "error", "message": 7"#,
        r#""status": "success", "data": 1, "message": "both""#,
        r#""status": "approval_required", "message": "no""#,
        r#""status": 7"#,
        r#""status": "success", "data": "\ud800""#,
        r#""data": 1"#,
    ] {
        assert!(matches!(of(rest), Ended::Invalid(_)), "{rest}: {:?}", of(rest));
    }
    let deep = |depth: usize| format!(r#""status": "success", "data": {}{}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(matches!(of(&deep(RESULT_DEPTH_MAX)), Ended::Success(_)));
    assert!(matches!(of(&deep(RESULT_DEPTH_MAX + 1)), Ended::Invalid(_)));
    assert!(matches!(of(&deep(100_000)), Ended::Invalid(_)));
    let long = |bytes: usize| format!(r#""status": "success", "data": "{}""#, "x".repeat(bytes - 2));
    assert!(matches!(of(&long(RESULT_BYTES_MAX)), Ended::Success(_)));
    assert_eq!(of(&long(RESULT_BYTES_MAX + 1)), Ended::TooLarge);
    let Ended::Error(cut) = of(&format!(r#""status": "error", "message": "{}""#, "é".repeat(MESSAGE_BYTES_MAX)))
    else {
        panic!()
    };
    assert_eq!(cut.len(), MESSAGE_BYTES_MAX);
}

#[test]
fn a_result_without_an_id_is_answered() {
    for id in ["null", "7", "{}"] {
        let frame = format!(r#"{{"type": "result", "id": {id}, "status": "success"}}"#);
        assert_eq!(fault(read(&frame)).0, "invalid_message", "{id}");
    }
    assert_eq!(fault(read(r#"{"type": "result", "status": "success"}"#)).0, "invalid_message");
    let long = format!(r#"{{"type": "result", "id": "{}", "status": "success"}}"#, "x".repeat(200));
    assert_eq!(fault(read(&long)).0, "invalid_message");
}

#[test]
fn progress_has_a_form_and_a_limit() {
    let frame = |bytes: usize| json!({"type": "progress", "id": "1", "message": "x".repeat(bytes)}).to_string();
    assert!(matches!(read(&frame(PROGRESS_BYTES_MAX)), Ok(Message::Progress { id, message })
        if id == "1" && message.len() == PROGRESS_BYTES_MAX));
    assert_eq!(fault(read(&frame(PROGRESS_BYTES_MAX + 1))).0, "invalid_message");
    for rest in [r#""id": "1""#, r#""message": "m""#, r#""id": 1, "message": "m""#, r#""id": "1", "message": {}"#] {
        assert_eq!(fault(read(&format!(r#"{{"type": "progress", {rest}}}"#))).0, "invalid_message", "{rest}");
    }
}

/// Two parsers may read a repeated member differently.
#[test]
fn a_frame_that_repeats_a_member_is_not_processed() {
    for frame in [
        r#"{"type": "result", "id": "1", "id": "2", "status": "success"}"#,
        r#"{"type": "result", "id": "1", "status": "success", "data": 1, "data": 2}"#,
        r#"{"type": "progress", "type": "result", "id": "1"}"#,
    ] {
        assert_eq!(fault(read(frame)).0, "invalid_message", "{frame}");
    }
}

#[test]
fn errors_do_not_repeat_a_large_frame() {
    let large = "x".repeat(100_000);
    let tools = json!([{"name": "a", "description": "A.", "input_schema": {}, "effect": large}]);
    let Ok(Message::Hello(said)) = hello(|hello| hello["tools"] = tools) else { panic!() };
    assert!(said.offered.faults[0].reason.len() <= ERROR_BYTES_MAX);
    let (_, message) = fault(hello(|hello| hello["protocol"] = json!(large)));
    assert!(message.len() <= ERROR_BYTES_MAX);
}

#[test]
fn a_call_keeps_the_text_of_its_parameters() {
    let call = OutgoingCall {
        id: "1".to_owned(),
        tool: "sum}".to_owned(),
        params: r#"{"n":1.10,"s":"}{"}"#.to_owned(),
        bot_id: "b".to_owned(),
        bot_name: "tester".to_owned(),
        task_id: "t".to_owned(),
        chat: json!({"app_id": "a"}),
        locale: "en".to_owned(),
        deadline_ms: 60_000,
        listener: None,
    };
    assert_eq!(
        call.frame(),
        r#"{"type":"call","id":"1","tool":"sum}","params":{"n":1.10,"s":"}{"},"bot":{"id":"b","name":"tester"},"task_id":"t","locale":"en","deadline_ms":60000,"chat":{"app_id":"a"}}"#
    );
}
