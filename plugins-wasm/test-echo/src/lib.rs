//! Returns its parameters, and sends requests unchanged. The plugin uses the generated bindings, so that the tests do
//! not depend on the SDK.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use monstrum_sdk::log::{self, Level};
use monstrum_sdk::wit::monstrum::plugin::{credentials, http, types};
use monstrum_sdk::{Error, Executor, Map, Operations, Request, Value, json, operations};

/// The maximum size of a body that the result contains. Larger bodies are omitted, so that the size limit of a result
/// does not interfere with the size limit of a response.
const BODY_BYTES_MAX: usize = 512 * 1024;

struct Echo;

impl Executor for Echo {
    const OPERATIONS: Operations = operations! {
        "echo.*" => echo,
        "fetch.run" => fetch,
        "flood.run" => flood,
    };
}

monstrum_sdk::export!(Echo);

fn echo(request: &Request) -> Result<Value, Error> {
    Ok(json!({
        "request_id": request.request_id,
        "bot_id": request.bot_id,
        "task_id": request.task_id,
        "operation": request.operation,
        "tool_name": request.tool_name,
        "params": request.params,
        "scope": request.scope.sets(),
        "resource_id": request.resource_id,
        "resource_config": request.resource_config,
        "delegate": request.delegate.as_ref().map(|delegate| json!({
            "allowed_tools": delegate.allowed_tools,
            "scope_constraints": delegate.scope_constraints,
        })),
        "locale": request.locale,
        "deadline_ms": request.deadline_ms,
        "context": request.context,
    }))
}

fn fetch(request: &Request) -> Result<Value, Error> {
    let body = match request.optional_param::<usize>("body_bytes")? {
        Some(size) => Some(vec![b'x'; size]),
        None => request.optional_param::<String>("body")?.map(String::into_bytes),
    };
    let sent = http::send(&http::Request {
        method: request.optional_param("method")?.unwrap_or_else(|| "GET".to_owned()),
        url: request.param("path")?,
        query: pairs(request, "query")?,
        headers: pairs(request, "headers")?,
        body,
        timeout_ms: request.optional_param("timeout_ms")?,
        authenticate: request.optional_param("authenticate")?.unwrap_or(true),
        options: Vec::new(),
    });
    Ok(match sent {
        Ok(response) => {
            let body = String::from_utf8_lossy(&response.body);
            json!({
                "status": response.status,
                "headers": response.headers,
                "body": (body.len() <= BODY_BYTES_MAX).then_some(body),
                "body_bytes": response.body.len(),
            })
        }
        Err(failure) => told(&failure),
    })
}

fn flood(request: &Request) -> Result<Value, Error> {
    let count = |name: &str| Ok::<u32, Error>(request.optional_param(name)?.unwrap_or_default());
    let line = "x".repeat(request.optional_param("log_bytes")?.unwrap_or(16));
    let path: String = request.optional_param("path")?.unwrap_or_else(|| "/".to_owned());
    for number in 0..count("logs")? {
        log::write(Level::Info, &line, &[("number", number.into())]);
    }
    let statuses: BTreeMap<String, u32> = tally((0..count("statuses")?).map(|_| credentials::status()));
    let requests = tally((0..count("requests")?).map(|_| match http::send(&get(&path)) {
        Ok(response) => response.status.to_string(),
        Err(failure) => failure.code,
    }));
    Ok(json!({ "statuses": statuses, "requests": requests }))
}

fn get(path: &str) -> http::Request {
    http::Request {
        method: "GET".to_owned(),
        url: path.to_owned(),
        query: Vec::new(),
        headers: Vec::new(),
        body: None,
        timeout_ms: None,
        authenticate: true,
        options: Vec::new(),
    }
}

fn pairs(request: &Request, name: &str) -> Result<Vec<(String, String)>, Error> {
    let object: Map<String, Value> = request.optional_param(name)?.unwrap_or_default();
    Ok(object.into_iter().map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect())
}

fn tally(answers: impl Iterator<Item = String>) -> BTreeMap<String, u32> {
    answers.fold(BTreeMap::new(), |mut counts, answer| {
        *counts.entry(answer).or_default() += 1;
        counts
    })
}

fn told(failure: &types::Failure) -> Value {
    json!({ "failure": {
        "code": failure.code,
        "message": failure.message,
        "sent": failure.sent,
        "retry_after_ms": failure.retry_after_ms,
    } })
}
