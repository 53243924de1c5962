//! The bodies of requests.

use std::str::FromStr;

use monstrum_llm::estimate::RequestSize;
use monstrum_llm::request::check_extra;
use monstrum_llm::{
    Arguments, AssistantMessage, Message, Origin, OutputField, Part, Request, RequestError, Tool, ToolCall, ToolChoice,
    ToolSchema,
};
use monstrum_types::ResourceId;
use serde_json::{Map, Value, json};

use crate::recordings::recording;
use crate::support::{origin, read};

fn call(id: &str, arguments: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: "f".to_owned(),
        arguments: Arguments::new(arguments.to_owned()),
        extra: Map::new(),
        function_extra: Map::new(),
    }
}

fn assistant(calls: Vec<ToolCall>) -> Message {
    Message::Assistant(AssistantMessage { calls, ..AssistantMessage::default() })
}

fn result(id: &str) -> Message {
    Message::Tool { call_id: id.to_owned(), text: "r".to_owned() }
}

fn written(messages: &[Message], to: &Origin) -> Value {
    let body = Request::new(to, messages, 10, &Map::new()).body().unwrap();
    serde_json::from_slice::<Value>(&body).unwrap()["messages"].take()
}

fn refusal(messages: &[Message]) -> String {
    Request::new(&origin("m"), messages, 10, &Map::new()).body().unwrap_err().to_string()
}

#[test]
fn a_request_without_options_has_few_fields() {
    let body = Request::new(&origin("m"), &[Message::user("hi")], 99, &Map::new()).body().unwrap();
    let expected = json!({
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 99,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    assert_eq!(String::from_utf8(body).unwrap(), expected.to_string());
}

#[test]
fn a_request_with_all_options_has_all_fields() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "string", "format": "uri"}}, "title": "T"});
    let tools = [Tool { name: "f", description: "d", parameters: &schema }];
    let stop = ["END".to_owned()];
    let (format, extra) = (json!({"type": "json_object"}), json!({"top_k": 4, "thinking": {"type": "enabled"}}));
    let (to, extra) = (origin("m"), extra.as_object().unwrap());
    let messages = [Message::System { text: "s".to_owned() }, Message::user("hi")];
    let mut request = Request {
        tools: &tools,
        tool_choice: Some(ToolChoice::Required),
        parallel_tool_calls: Some(false),
        output_field: OutputField::MaxCompletionTokens,
        stream: false,
        temperature: Some(0.5),
        top_p: Some(1.0),
        stop: &stop,
        seed: Some(-1),
        response_format: Some(&format),
        reasoning_effort: Some("low"),
        ..Request::new(&to, &messages, 99, extra)
    };
    let function = |parameters: &Value| json!({"name": "f", "description": "d", "parameters": parameters});
    let mut expected = json!({
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": function(&schema)}],
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "max_completion_tokens": 99,
        "stream": false,
        "temperature": 0.5,
        "top_p": 1.0,
        "stop": ["END"],
        "seed": -1,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "top_k": 4,
        "thinking": {"type": "enabled"},
    });
    assert_eq!(String::from_utf8(request.body().unwrap()).unwrap(), expected.to_string());

    request.tool_schema = ToolSchema::Plain;
    let plain = json!({"type": "object", "properties": {"x": {"type": "string"}}});
    expected["tools"][0]["function"] = function(&plain);
    assert_eq!(serde_json::from_slice::<Value>(&request.body().unwrap()).unwrap(), expected);

    // Without tools, the fields about them are errors for some servers.
    request.tools = &[];
    let body: Value = serde_json::from_slice(&request.body().unwrap()).unwrap();
    assert!(["tools", "tool_choice", "parallel_tool_calls"].iter().all(|name| body.get(name).is_none()), "{body}");
}

#[test]
fn extra_cannot_name_a_field_of_the_host() {
    for field in ["model", "messages", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n"]
    {
        let extra = json!({"top_k": 1, field: 1});
        let extra = extra.as_object().unwrap();
        let expected =
            format!("`extra` of the model cannot have the field `{field}`, which the host writes itself; remove it");
        assert_eq!(check_extra(extra).unwrap_err().to_string(), expected);
        let body = Request::new(&origin("m"), &[], 10, extra).body();
        assert!(matches!(body, Err(RequestError::OwnField { field: named }) if named == field));
    }
    assert!(check_extra(json!({"top_k": 1}).as_object().unwrap()).is_ok());
}

#[test]
fn every_field_of_the_host_is_refused_in_extra() {
    let (schema, format, stop) = (json!({}), json!({"type": "text"}), ["s".to_owned()]);
    let tools = [Tool { name: "f", description: "", parameters: &schema }];
    let (to, empty) = (origin("m"), Map::new());
    for output_field in [OutputField::MaxTokens, OutputField::MaxCompletionTokens] {
        let request = Request {
            tools: &tools,
            tool_choice: Some(ToolChoice::Auto),
            parallel_tool_calls: Some(true),
            output_field,
            temperature: Some(0.0),
            top_p: Some(0.0),
            stop: &stop,
            seed: Some(0),
            response_format: Some(&format),
            reasoning_effort: Some("low"),
            ..Request::new(&to, &[], 1, &empty)
        };
        let body: Map<String, Value> = serde_json::from_slice(&request.body().unwrap()).unwrap();
        assert_eq!(body.len(), 14);
        for (name, value) in body {
            assert!(check_extra(&Map::from_iter([(name.clone(), value)])).is_err(), "{name}");
        }
    }
}

#[test]
fn numbers_that_json_cannot_express_are_refused() {
    let (to, extra) = (origin("m"), Map::new());
    let request = Request { temperature: Some(f64::NAN), ..Request::new(&to, &[], 10, &extra) };
    assert_eq!(request.body().unwrap_err().to_string(), "`temperature` of the request is not a finite number");
}

#[test]
fn messages_are_written_as_the_reference_says() {
    let image = Part::Image { media_type: "image/png".to_owned(), base64: "iVBO".to_owned() };
    let messages = [
        Message::User { parts: vec![Part::Text { text: "look".to_owned() }, image] },
        assistant(vec![call("a", r#"{"x": 1}"#), call("b", "{\"x\":")]),
        result("b"),
        result("a"),
        Message::Assistant(AssistantMessage { text: "done".to_owned(), ..AssistantMessage::default() }),
        Message::Assistant(AssistantMessage::default()),
    ];
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}});
    let expected = json!([
        {"role": "user", "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
        ]},
        // Arguments that are invalid become an empty object.
        {"role": "assistant", "content": null, "tool_calls": [call("a", r#"{"x": 1}"#), call("b", "{}")]},
        {"role": "tool", "tool_call_id": "b", "content": "r"},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": ""},
    ]);
    assert_eq!(written(&messages, &origin("m")), expected);
}

#[test]
fn kept_fields_go_back_to_the_same_model_of_the_same_resource_only() {
    let message = read(recording("gemini")).unwrap().message;
    let results = [result("jm4owj31"), result("k8ppq2x0")];
    let history = [&[Message::Assistant(message)], results.as_slice()].concat();
    let signature = "EjQKMgEMOdbHJChLX75Q+/==";

    let same = written(&history, &origin("m"));
    assert_eq!(same[0]["tool_calls"][0]["extra_content"], json!({"google": {"thought_signature": signature}}));
    assert_eq!(same[0]["tool_calls"][0]["function"]["name"], "get_weather");

    let other_resource =
        Origin { resource: ResourceId::from_str("0198c0de-0000-7000-8000-000000000002").unwrap(), ..origin("m") };
    for other in [origin("m2"), other_resource] {
        let text = written(&history, &other).to_string();
        assert!(!text.contains(signature) && !text.contains("extra_content"), "{text}");
    }
}

#[test]
fn kept_fields_of_a_message_go_back_as_they_came() {
    let message = read(recording("openrouter")).unwrap().message;
    let history = [Message::Assistant(message), result("toolu_01Aa")];
    let expected = json!({
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "toolu_01Aa", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Zürich\"}"}}],
        "reasoning": "The city is given.",
        "reasoning_details": [{"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "text": "The city is given.", "signature": "ErUBCkYIBxgCIkDx"}],
    });
    assert_eq!(written(&history, &origin("m"))[0], expected);
}

#[test]
fn kept_fields_never_replace_fields_of_the_host() {
    let forged =
        json!({"role": "system", "content": "x", "tool_calls": [], "id": "z", "function": {}, "name": "g", "index": 3});
    let forged = forged.as_object().unwrap();
    let call = ToolCall { extra: forged.clone(), function_extra: forged.clone(), ..call("a", "{}") };
    let message =
        AssistantMessage { origin: Some(origin("m")), text: "t".to_owned(), calls: vec![call], extra: forged.clone() };
    let written = written(&[Message::Assistant(message), result("a")], &origin("m"));
    assert_eq!((&written[0]["role"], &written[0]["content"]), (&json!("assistant"), &json!("t")));
    let call = &written[0]["tool_calls"][0];
    assert_eq!((&call["id"], &call["function"]["name"], call.get("index")), (&json!("a"), &json!("f"), None));

    let without_calls =
        AssistantMessage { origin: Some(origin("m")), extra: forged.clone(), ..AssistantMessage::default() };
    let written = self::written(&[Message::Assistant(without_calls)], &origin("m"));
    assert_eq!(written[0].get("tool_calls"), None);
}

#[test]
fn a_call_without_its_result_is_refused() {
    let user = Message::user("hi");
    let open = assistant(vec![call("a", "{}"), call("b", "{}")]);
    let message = "messages[1] has the call `b`, but its result does not follow";
    assert_eq!(refusal(&[user.clone(), open.clone(), result("a")]), message);
    assert_eq!(refusal(&[user.clone(), open.clone(), result("a"), user.clone(), result("b")]), message);
    let message = "messages[1] is a result of the call `a`, which no assistant message before it has open";
    assert_eq!(refusal(&[user, result("a")]), message);
    let twice = [open, result("a"), result("a")];
    assert_eq!(refusal(&twice), message.replace("[1]", "[2]"));
}

#[test]
fn messages_survive_being_stored() {
    for name in ["gemini", "openrouter", "deepseek"] {
        let message = Message::Assistant(read(recording(name)).unwrap().message);
        let stored = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&stored).unwrap(), message);
    }
}

#[test]
fn images_count_by_their_number() {
    let image = Part::Image { media_type: "image/png".to_owned(), base64: "A".repeat(1_000_000) };
    let messages = [Message::User { parts: vec![Part::Text { text: "x".repeat(30) }, image.clone(), image] }];
    let (to, extra) = (origin("m"), Map::new());
    let request = Request::new(&to, &messages, 10, &extra);
    assert_eq!(request.size(), RequestSize { text_bytes: 30, images: 2 });
    let schema = json!({"description": "y".repeat(500)});
    let tools = [Tool { name: "f", description: "", parameters: &schema }];
    let size = Request { tools: &tools, ..request }.size();
    assert!((530..700).contains(&size.text_bytes), "{size:?}");
}
