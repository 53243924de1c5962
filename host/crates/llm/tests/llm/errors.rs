//! Rounds that fail, and what their errors say.

use monstrum_llm::{ProviderError, ReadError};
use serde_json::{Value, json};

use crate::support::{delta, finish, read, reader, stream, with_causes};

fn failure(answer: impl AsRef<[u8]>) -> String {
    with_causes(&read(answer).unwrap_err())
}

fn provider(answer: impl AsRef<[u8]>) -> ProviderError {
    match read(answer) {
        Err(ReadError::Provider(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_end_without_finish_reason_is_a_failed_round() {
    let text = delta(&json!({"content": "half an answ"}));
    let unfinished = "the answer ended after 2 events without `finish_reason`";
    assert_eq!(failure(stream(std::slice::from_ref(&text))), unfinished);
    let empty_reason = json!({"choices": [{"delta": {}, "finish_reason": ""}]});
    assert_eq!(failure(format!("data: {text}\n\ndata: {empty_reason}")), unfinished);
    assert_eq!(failure(""), "the answer ended after 0 events without `finish_reason`");
    assert_eq!(failure("<html>Bad gateway</html>"), "the answer ended after 0 events without `finish_reason`");
    let document = json!({"choices": [{"message": {"content": "a"}, "finish_reason": null}]});
    assert_eq!(failure(document.to_string()), "the answer ended after 0 events without `finish_reason`");
}

#[test]
fn an_error_with_status_200_is_a_failed_round() {
    let error = json!({"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}});
    let expected = "the model's server reported an error: Rate limit reached (rate_limit_exceeded)";
    assert_eq!(failure(error.to_string()), expected);
    assert_eq!(failure(json!([error]).to_string()), expected);
    assert_eq!(
        failure(json!({"error": "model not found"}).to_string()),
        "the model's server reported an error: model not found"
    );
    let own_form = json!({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400});
    assert_eq!(provider(own_form.to_string()).status(), Some(400));
}

#[test]
fn an_error_inside_of_the_stream_is_a_failed_round() {
    let text = delta(&json!({"content": "half"}));
    let error = json!({"error": {"code": 502, "message": "Provider disconnected"},
        "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]});
    let found = provider(stream(&[text.clone(), error.clone(), finish("stop")]));
    assert_eq!((found.message.as_str(), found.status()), ("Provider disconnected", Some(502)));
    assert_eq!(provider(format!("data: {text}\n\ndata: {error}")), found);
    // An error after the end of the answer counts too: the server does not vouch for the answer.
    assert_eq!(provider(stream(&[text.clone(), finish("stop"), error])), found);
    let named = format!("data: {text}\n\nevent: error\ndata: {{\"message\":\"overloaded\"}}\n\n");
    assert_eq!(provider(named).message, "overloaded");
    let plain = format!("data: {text}\n\nevent: error\ndata: out of memory\n\n");
    assert_eq!(provider(plain).message, "out of memory");
    let reason = provider(stream(&[text, finish("error")]));
    assert_eq!(reason.to_string(), "the answer ended with the reason `error` (error)");
}

#[test]
fn an_error_that_is_null_is_not_an_error() {
    for error in [Value::Null, json!(false), json!("")] {
        let chunk = json!({"error": error, "choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]});
        assert_eq!(read(stream(&[chunk])).unwrap().message.text, "a");
    }
}

#[test]
fn a_failed_round_keeps_its_usage_and_takes_nothing_more() {
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}});
    let mut reader = reader();
    reader.push(stream(&[usage, json!({"error": {"message": "m"}})]).as_bytes());
    assert!(reader.is_over());
    assert_eq!(reader.push(stream(&[delta(&json!({"content": "a"}))]).as_bytes()), []);
    assert_eq!(reader.usage().unwrap().input, 5);
    assert!(matches!(reader.finish(), Err(ReadError::Provider(_))));
}

#[test]
fn what_is_not_json_is_named() {
    let text = delta(&json!({"content": "a"}));
    let broken = failure(format!("data: {text}\n\ndata: {{\"a\":x}}\n\n"));
    assert_eq!(
        broken,
        "event 2 of the answer cannot be parsed: the text is not valid JSON: expected value at line 1 column 6"
    );
    assert_eq!(failure("data: \"ping\"\n\n"), "event 1 of the answer is not a JSON object");
    assert_eq!(failure("{\"choices\": ").split(':').next(), Some("event 0 of the answer cannot be parsed"));
    assert_eq!(failure(b"{\"a\": \"\xff\"}").split(':').next(), Some("the answer is not UTF-8"));
}

#[test]
fn a_call_without_a_name_is_a_failed_round() {
    let call = delta(&json!({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]}));
    assert_eq!(failure(stream(&[call, finish("tool_calls")])), "call 0 of the answer names no tool");
}

#[test]
fn bodies_of_refused_requests_are_read() {
    let read = |body: &str| ProviderError::from_body(body.as_bytes()).to_string();
    assert_eq!(
        read(r#"{"error":{"message":"no","type":"invalid_request_error","code":null}}"#),
        "no (invalid_request_error)"
    );
    assert_eq!(read(r#"[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]"#), "bad (400)");
    assert_eq!(read(r#"{"detail":"Not Found"}"#), "Not Found");
    assert_eq!(read(r#"{"message":"Unauthorized","request_id":"1"}"#), "Unauthorized");
    assert_eq!(read(" upstream connect error \n"), "upstream connect error");
    assert_eq!(read(r#"{"error":{"status":7}}"#), r#"{"status":7}"#);
    assert_eq!(ProviderError::from_body("é".repeat(5_000).as_bytes()).message.len(), 2_000);
}

#[test]
fn a_request_over_the_context_is_known() {
    let is_known =
        |error: Value| ProviderError::from_body(json!({"error": error}).to_string().as_bytes()).is_context_length();
    assert!(is_known(json!({"message": "m", "code": "context_length_exceeded"})));
    assert!(is_known(json!({"message": "m", "type": "exceed_context_size_error", "code": 400})));
    assert!(is_known(
        json!({"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"})
    ));
    assert!(is_known(json!({"message": "prompt is too long: 210000 tokens > 200000 maximum"})));
    assert!(!is_known(json!({"message": "invalid tool schema", "code": "invalid_request_error"})));
}
