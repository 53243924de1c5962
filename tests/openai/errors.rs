//! Errors in the form of OpenAI.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use support::LlmReply;

use super::{CHAT, ask, broken, created, events, looks, post, streamed};
use crate::http::workspace;
use crate::tasks::Tasks;

/// Returns the status, the type, the code and the field of an error, whose form is checked.
async fn refused(request: RequestBuilder) -> Result<String> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    let body: Value = response.json().await?;
    let error = body["error"].as_object().with_context(|| format!("{status} {body}"))?;
    let mut fields: Vec<&str> = error.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["code", "message", "param", "type"], "{body}");
    assert_eq!(body.as_object().map(serde_json::Map::len), Some(1), "{body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    let [kind, code, param] = ["type", "code", "param"].map(|field| error[field].as_str().unwrap_or("-"));
    Ok(format!("{status} {kind} {code} {param}"))
}

#[tokio::test]
async fn every_error_has_the_form_of_openai() -> Result<()> {
    let tasks = Tasks::start().await?;
    let api = tasks.api();
    let idle = api.bot("idle").await?;
    let of_idle = api.with_key(&api.new_key("bot", Some(&idle)).await?);
    let approver = api.with_key(&api.new_key("approver", None).await?);
    let foreign = workspace(api, "foreign").await?;
    let nobody = api.with_key("");
    let unknown = api.with_key("mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    let with = |field: &str, value: Value| {
        let mut body = ask("Hi");
        body[field] = value;
        body
    };
    let tool = json!([{ "type": "function", "function": { "name": "look" } }]);
    let result = json!([{ "role": "tool", "tool_call_id": "c", "content": "1" }]);
    let raw = |body: &str| api.request(Method::POST, CHAT).body(body.to_owned());
    let requests = [
        ("no key", post(&nobody, CHAT, &ask("Hi"))),
        ("unknown key", post(&unknown, CHAT, &ask("Hi"))),
        ("approver key", post(&approver, CHAT, &ask("Hi"))),
        ("unknown path", api.request(Method::POST, "/v1/embeddings")),
        ("unknown path without a key", nobody.request(Method::GET, "/v1")),
        ("wrong method", api.request(Method::GET, CHAT)),
        ("unknown model", post(api, CHAT, &with("model", json!("absent")))),
        ("another workspace", post(&foreign, CHAT, &ask("Hi"))),
        ("the bot of another key", post(&of_idle, CHAT, &ask("Hi"))),
        ("a bot without a model", post(&of_idle, CHAT, &with("model", json!("idle")))),
        ("no JSON", raw("{garbage")),
        ("no object", raw("[]")),
        ("empty", raw("")),
        ("too large", raw(&json!({ "model": "x".repeat(6 << 20) }).to_string())),
        ("no messages", post(api, CHAT, &with("messages", json!([])))),
        ("unknown role", post(api, CHAT, &with("messages", json!([{ "role": "boss", "content": "x" }])))),
        ("a result without its call", post(api, CHAT, &with("messages", result))),
        ("two answers", post(api, CHAT, &with("n", json!(2)))),
        ("a wrong type", post(api, CHAT, &with("stream", json!("yes")))),
        ("tools of a client", post(api, CHAT, &with("tools", tool.clone()))),
        ("functions of a client", post(api, CHAT, &with("functions", tool))),
        ("temperature", post(api, CHAT, &with("temperature", json!(3)))),
        ("idempotency key", post(api, CHAT, &ask("Hi")).header("idempotency-key", "a b")),
        ("a response", api.request(Method::GET, "/v1/responses/resp_none")),
    ];
    let mut table = Vec::new();
    for (what, request) in requests {
        table.push(format!("{what}: {}", refused(request).await.context(what)?));
    }
    assert_snapshot!(table.join("\n"), @"
    no key: 401 invalid_request_error invalid_api_key -
    unknown key: 401 invalid_request_error invalid_api_key -
    approver key: 403 permission_error forbidden -
    unknown path: 404 invalid_request_error not_found -
    unknown path without a key: 404 invalid_request_error not_found -
    wrong method: 405 invalid_request_error method_not_allowed -
    unknown model: 404 invalid_request_error model_not_found model
    another workspace: 404 invalid_request_error model_not_found model
    the bot of another key: 404 invalid_request_error model_not_found model
    a bot without a model: 400 invalid_request_error no_model model
    no JSON: 400 invalid_request_error - -
    no object: 400 invalid_request_error - -
    empty: 400 invalid_request_error - -
    too large: 413 invalid_request_error too_large -
    no messages: 400 invalid_request_error - messages
    unknown role: 400 invalid_request_error - messages[0].role
    a result without its call: 400 invalid_request_error - messages
    two answers: 400 invalid_request_error - n
    a wrong type: 400 invalid_request_error - stream
    tools of a client: 400 invalid_request_error - tools
    functions of a client: 400 invalid_request_error - functions
    temperature: 400 invalid_request_error - temperature
    idempotency key: 400 invalid_request_error - Idempotency-Key
    a response: 404 invalid_request_error response_not_found id
    ");
    assert!(tasks.llm.requests().is_empty() && created(&tasks) == 0);
    let (_, listed) = api.get("/api/tasks").await?;
    assert_eq!(listed["items"], json!([]), "no refused request has started a task");
    Ok(())
}

#[tokio::test]
async fn a_model_that_fails_ends_the_stream_with_an_error() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([broken(), looks(), broken(), broken()]);
    let data = events(post(tasks.api(), CHAT, &streamed(ask("Hi"))).send().await?).await?;
    let last: Value = serde_json::from_str(data.last().context("no events")?)?;
    assert_eq!(last["error"]["code"], "upstream_error", "{data:?}");
    assert!(!data.iter().any(|data| data == "[DONE]"), "{data:?}");
    // The text before the failure was sent. An issue was created, so a repetition could create another.
    let data = events(post(tasks.api(), CHAT, &streamed(ask("Look."))).send().await?).await?;
    let last: Value = serde_json::from_str(data.last().context("no events")?)?;
    assert_eq!(last["error"]["code"], "task_failed", "{data:?}");
    assert!(data.iter().any(|data| data.contains("look.")), "{data:?}");
    assert_eq!(refused(post(tasks.api(), CHAT, &ask("Hi"))).await?, "502 upstream_error upstream_error -");
    Ok(())
}

#[tokio::test]
async fn a_bot_without_tokens_has_no_quota() -> Result<()> {
    let tasks = Tasks::start().await?;
    let bot = format!("/api/bots/{}", tasks.world.bot);
    let (status, changed) = tasks.api().patch(&bot, &json!({ "monthly_token_budget": 1 })).await?;
    assert_eq!(status, 200, "{changed}");
    tasks.llm.prepare([LlmReply::says(&["Hi."])]);
    assert_eq!(refused(post(tasks.api(), CHAT, &ask("Hi"))).await?, "429 insufficient_quota insufficient_quota -");
    assert!(tasks.llm.requests().is_empty());
    Ok(())
}
