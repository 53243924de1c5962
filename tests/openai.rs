//! `/v1`: bots for clients of the OpenAI API, with a scripted model and the tools of the plugin `github`.

mod chat;
mod client_tools;
mod clients;
mod connections;
mod errors;
mod repeats;
mod responses;

use anyhow::{Context, Result, ensure};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use support::{Api, LlmReply};

use crate::tasks::{Tasks, create, list};
use crate::world::text;

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Returns a request with one message of the user.
pub(crate) fn ask(said: &str) -> Value {
    json!({ "model": "tester", "messages": [{ "role": "user", "content": said }] })
}

/// Returns the same request as a stream.
pub(crate) fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    body
}

pub(crate) fn post(api: &Api, path: &str, body: &Value) -> RequestBuilder {
    api.request(Method::POST, path).json(body)
}

/// Returns an answer of a model that says something and asks for two calls.
pub(crate) fn looks() -> LlmReply {
    let calls = [("github_list_issues", list()), ("github_create_issue", create("From a client"))];
    let call = |(index, (name, params)): (usize, (&str, Value))| {
        let function = json!({ "name": name, "arguments": params.to_string() });
        json!({ "index": index, "id": format!("call_{index}"), "type": "function", "function": function })
    };
    let calls: Vec<Value> = calls.into_iter().enumerate().map(call).collect();
    let asked = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls }, "finish_reason": "tool_calls" }] });
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12 } });
    LlmReply::stream(&[LlmReply::piece("Let me "), LlmReply::piece("look."), asked, usage])
}

/// Returns an answer of a model's server that is an error.
pub(crate) fn broken() -> LlmReply {
    LlmReply::json(400, &json!({ "error": { "message": "it broke" } }))
}

/// Returns the data of the events of a stream, in their order.
pub(crate) async fn events(response: Response) -> Result<Vec<String>> {
    ensure!(response.status() == 200, "{response:?}");
    let kind = response.headers().get("content-type").context("a type")?.to_str()?;
    ensure!(kind == "text/event-stream", "{kind}");
    ensure!(response.headers().get("x-accel-buffering").is_some_and(|value| value == "no"));
    let body = response.text().await?;
    Ok(body.lines().filter_map(|line| line.strip_prefix("data:")).map(|data| data.trim().to_owned()).collect())
}

/// Returns the text of the chunks of a chat completion.
pub(crate) fn said(chunks: &[Value]) -> String {
    chunks.iter().map(|chunk| text(&chunk["choices"][0]["delta"]["content"])).collect()
}

/// Returns the task of an answer.
pub(crate) async fn task_of(tasks: &Tasks, id: &Value) -> Result<Value> {
    let id = text(id);
    let task = id.split_once(['-', '_']).context("the id has no prefix")?.1;
    let (status, task) = tasks.api().get(&format!("/api/tasks/{task}")).await?;
    ensure!(status == 200, "{status} {task}");
    Ok(task)
}

/// Returns the number of issues that were created.
pub(crate) fn created(tasks: &Tasks) -> usize {
    tasks.world.github.requests().iter().filter(|request| request.method == "POST").count()
}
