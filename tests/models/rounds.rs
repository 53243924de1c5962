//! Rounds that succeed: what is sent, heard, answered, recorded and charged.

use std::sync::Arc;

use anyhow::{Context, Result};
use monstrum_core::call_types::round::{RoundExchange, RoundOptions};
use monstrum_llm::{FinishReason, Message, Part, ToolChoice};
use monstrum_types::Status;
use serde_json::{Value, json};
use support::LlmReply;

use super::{KEY, Models, SAID, exchange, heard, request, texts};

fn delta(delta: &Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

/// Returns a stream with reasoning, text and two calls.
fn two_calls() -> Vec<Value> {
    vec![
        delta(&json!({"role": "assistant", "reasoning_content": "Two cities, "})),
        delta(&json!({"reasoning_content": "two calls."})),
        delta(&json!({"content": "Let me "})),
        delta(&json!({"content": "look."})),
        delta(&json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather", "arguments": "{\"ci"}}]})),
        delta(&json!({"tool_calls": [{"index": 0, "function": {"arguments": "ty\": \"Oslo\"}"}}]})),
        delta(
            &json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]}),
        ),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    ]
}

fn usage() -> Value {
    let details = json!({"cached_tokens": 40});
    json!({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": details}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_round_with_two_calls_is_heard_answered_recorded_and_charged() -> Result<()> {
    let models = Models::start().await?;
    let mut chunks = two_calls();
    chunks.push(usage());
    models.llm.prepare([LlmReply::stream(&chunks)]);
    let (exchange, mut deltas) = heard();
    let answer = models.run(&exchange).await?;
    assert_eq!(answer.outcome.status, Status::Success, "{:?}", answer.outcome);
    assert_eq!(texts(&mut deltas), ("Let me look.".to_owned(), "Two cities, two calls.".to_owned()));

    let round = exchange.answer().context("the round has no answer")?;
    assert_eq!((round.message.text.as_str(), round.reasoning.as_str()), ("Let me look.", "Two cities, two calls."));
    assert_eq!(round.finish, FinishReason::ToolCalls);
    let calls: Vec<_> = round.message.calls.iter().map(|call| (call.id.as_str(), call.arguments.as_str())).collect();
    assert_eq!(calls, [("a", "{\"city\": \"Oslo\"}"), ("b", "{\"city\": \"Rome\"}")]);
    assert_eq!(round.runnable(&round.message.calls[1])?["city"], "Rome");
    assert_eq!((round.usage.input, round.usage.cached_input, round.usage.output), (100, 40, 20));
    assert!(!round.usage_is_estimated);
    assert_eq!(models.used().await?, [100, 20, 1, 0]);

    let sent = &models.llm.requests()[0];
    assert_eq!((sent.method.as_str(), sent.path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!(sent.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    let body = sent.json();
    assert_eq!((&body["model"], &body["stream"], &body["max_tokens"]), (&json!("small"), &json!(true), &json!(1000)));
    assert_eq!(body["messages"], json!([{"role": "user", "content": SAID}]));
    assert_eq!(body["tools"][0]["function"]["name"], "weather");

    let row = models.api.audit(&answer.request_id.to_string()).await?;
    let recorded = ["tool", "operation", "status", "task_id"].map(|field| row[field].clone());
    assert_eq!(recorded, ["llm_complete", "llm.complete", "success", "task-1"].map(Value::from));
    let params = &row["params"];
    assert_eq!((&params["model"], &params["messages"], &params["tools"]), (&json!("small"), &json!(1), &json!(1)));
    assert_eq!(params["digest"], exchange.params()["digest"]);
    for private in [SAID, "Oslo", "look", KEY] {
        assert!(!row.to_string().contains(private), "{private} is in the audit: {row}");
    }
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_that_is_not_reported_is_estimated() -> Result<()> {
    let models = Models::start().await?;
    models.llm.prepare([LlmReply::stream(&two_calls())]);
    let exchange = exchange();
    models.run(&exchange).await?;
    let round = exchange.answer().context("the round has no answer")?;
    assert!(round.usage_is_estimated);
    // What the model has written: text, reasoning, and the names and arguments of the calls.
    let written = 12 + 22 + 2 * ("weather".len() + "{\"city\": \"Rome\"}".len());
    assert_eq!(round.usage.output, u64::try_from(written.div_ceil(3))?);
    let [input, output, rounds, estimated] = models.used().await?;
    assert_eq!((output, rounds, estimated), (i64::try_from(round.usage.output)?, 1, 1));
    assert!(input > 0 && u64::try_from(input)? == round.usage.input, "{input}");
    models.host.stop().await;
    Ok(())
}

/// The context of the model has 8 000 tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_false_report_of_usage_cannot_use_up_a_budget() -> Result<()> {
    let models = Models::start().await?;
    let mut chunks = two_calls();
    let details = json!({"cached_tokens": 1});
    let usage =
        json!({"prompt_tokens": 1_u64 << 40, "completion_tokens": 1_u64 << 40, "prompt_tokens_details": details});
    chunks.push(json!({"choices": [], "usage": usage}));
    models.llm.prepare([LlmReply::stream(&chunks)]);
    let exchange = exchange();
    models.run(&exchange).await?;
    let round = exchange.answer().context("the round has no answer")?;
    assert!(round.usage_is_estimated);
    assert_eq!((round.usage.input, round.usage.cached_input, round.usage.output), (8000, 1, 8000));
    assert_eq!(models.used().await?, [8000, 8000, 1, 1]);
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_a_document_is_heard_whole() -> Result<()> {
    let models = Models::start().await?;
    let message = json!({"role": "assistant", "content": "At once."});
    let document = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    models.llm.prepare([LlmReply::json(200, &document)]);
    let (exchange, mut deltas) = heard();
    models.run(&exchange).await?;
    assert_eq!(exchange.answer().context("the round has no answer")?.message.text, "At once.");
    assert_eq!(texts(&mut deltas).0, "At once.");
    assert!(exchange.has_sent_delta());
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn options_and_the_configuration_of_the_model_are_sent() -> Result<()> {
    let model = json!({ "parallel_tools": false, "tool_schema": "plain", "extra": { "top_k": 5 } });
    let models = Models::with(&model, &json!({ "key_header": "api-key" })).await?;
    models.llm.prepare([LlmReply::says(&["Yes."])]);
    let mut request = request();
    request.tools[0].parameters = json!({"type": "object", "properties": {}, "$comment": "not plain"});
    request.output_tokens = Some(300);
    request.options = RoundOptions {
        temperature: Some(0.5),
        stop: vec!["END".to_owned()],
        seed: Some(7),
        tool_choice: Some(ToolChoice::Required),
        ..RoundOptions::default()
    };
    let exchange = Arc::new(RoundExchange::new(request, ("small", 1000), None));
    let answer = models.run(&exchange).await?;
    assert_eq!(answer.outcome.status, Status::Success, "{:?}", answer.outcome);
    let sent = &models.llm.requests()[0];
    assert_eq!((sent.header("api-key"), sent.header("authorization")), (Some(KEY), None));
    let body = sent.json();
    let fields = ["temperature", "stop", "seed", "tool_choice", "parallel_tool_calls", "top_k", "max_tokens"];
    let expected = json!([0.5, ["END"], 7, "required", false, 5, 300]);
    assert_eq!(json!(fields.map(|field| body[field].clone())), expected, "{body}");
    assert_eq!(body["tools"][0]["function"]["parameters"].get("$comment"), None);
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_tools_or_images_is_sent_none() -> Result<()> {
    let models = Models::with(&json!({ "tools": false }), &json!({})).await?;
    models.llm.prepare([LlmReply::says(&["Yes."])]);
    models.run(&exchange()).await?;
    assert_eq!(models.llm.requests()[0].json().get("tools"), None);
    let mut request = request();
    let image = Part::Image { media_type: "image/png".to_owned(), base64: "aGk=".to_owned() };
    request.messages = vec![Message::User { parts: vec![image] }];
    let exchange = Arc::new(RoundExchange::new(request, ("small", 1000), None));
    let answer = models.run(&exchange).await?;
    assert_eq!(answer.outcome.message.as_deref(), Some("Invalid parameters: /model: the model does not read images"));
    assert_eq!(models.llm.requests().len(), 1);
    assert_eq!(models.used().await?[2], 1, "the refused round is not charged");
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_the_other_field_gets_it_from_then_on() -> Result<()> {
    let models = Models::start().await?;
    let message = "Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'.";
    let rejection = LlmReply::json(400, &json!({"error": {"message": message}}));
    models.llm.prepare([rejection, LlmReply::says(&["One."]), LlmReply::says(&["Two."])]);
    for _ in 0..2 {
        let answer = models.run(&exchange()).await?;
        assert_eq!(answer.outcome.status, Status::Success, "{:?}", answer.outcome);
    }
    let fields: Vec<_> = models.llm.requests().iter().map(|sent| sent.json().get("max_tokens").is_some()).collect();
    assert_eq!(fields, [true, false, false]);
    models.host.stop().await;
    Ok(())
}

/// The model repeats the key, in pieces of every length.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_model_repeats_over_several_pieces_is_redacted() -> Result<()> {
    let models = Models::start().await?;
    for length in [1, 3, KEY.len() - 1, KEY.len()] {
        let pieces: Vec<&str> = (0..KEY.len()).step_by(length).map(|at| &KEY[at..KEY.len().min(at + length)]).collect();
        let mut chunks = vec![delta(&json!({"content": "The key is "}))];
        chunks.extend(pieces.iter().map(|piece| delta(&json!({"content": piece, "reasoning_content": piece}))));
        let call = |arguments: &str, id: Value| {
            let function = json!({"name": "weather", "arguments": arguments});
            delta(&json!({"tool_calls": [{"index": 0, "id": id, "function": function}]}))
        };
        chunks.push(call("{\"city\": \"", json!("a")));
        chunks.extend(pieces.iter().map(|piece| call(piece, Value::Null)));
        chunks.push(call("\"}", Value::Null));
        chunks.push(delta(&json!({"content": "."})));
        chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
        models.llm.prepare([LlmReply::stream(&chunks)]);
        let (exchange, mut deltas) = heard();
        models.run(&exchange).await?;
        let expected = ("The key is [redacted].".to_owned(), "[redacted]".to_owned());
        assert_eq!(texts(&mut deltas), expected, "in pieces of {length}");
        let round = exchange.answer().context("the round has no answer")?;
        assert_eq!((round.message.text.clone(), round.reasoning.clone()), expected, "in pieces of {length}");
        assert_eq!(round.message.calls[0].arguments.as_str(), "{\"city\": \"[redacted]\"}");
        assert!(!format!("{round:?}").contains(KEY), "{round:?}");
    }
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filtered_or_cut_answer_is_an_answer_whose_calls_do_not_run() -> Result<()> {
    let models = Models::start().await?;
    for (reason, finish) in [("content_filter", FinishReason::ContentFilter), ("length", FinishReason::Length)] {
        let mut chunks = two_calls();
        chunks.pop();
        chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
        models.llm.prepare([LlmReply::stream(&chunks)]);
        let exchange = exchange();
        let answer = models.run(&exchange).await?;
        assert_eq!(answer.outcome.status, Status::Success, "{:?}", answer.outcome);
        let round = exchange.answer().context("the round has no answer")?;
        assert_eq!(round.finish, finish);
        assert!(round.runnable(&round.message.calls[0]).is_err(), "{reason}");
    }
    assert_eq!(models.llm.requests().len(), 2, "neither is tried again");
    models.host.stop().await;
    Ok(())
}
