//! Functions for tests, some of which misbehave.

#![forbid(unsafe_code)]

use monstrum_sdk::wit::monstrum::plugin::http;
use monstrum_sdk::{
    Error, Executor, Failure, Functions, Operations, Request, Value, credentials, functions, json, operations,
};

struct Plugin;

impl Executor for Plugin {
    const OPERATIONS: Operations = operations! { "functions.get" => get };
    const FUNCTIONS: Functions = functions! {
        "echo" => echo,
        "fetch" => get,
        "fail" => |_| Err(Error::message("an error on purpose")),
        "spin" => spin,
        "crash" => crash,
    };
}

monstrum_sdk::export!(Plugin with functions);

fn echo(request: &Request) -> Result<Value, Error> {
    Ok(json!({ "params": request.params, "credential": format!("{:?}", credentials::status()) }))
}

/// Uses the generated bindings, so that the URL is sent unchanged.
fn get(request: &Request) -> Result<Value, Error> {
    let response = http::send(&http::Request {
        method: "GET".to_owned(),
        url: request.param("path")?,
        query: Vec::new(),
        headers: Vec::new(),
        body: None,
        timeout_ms: None,
        authenticate: true,
        options: Vec::new(),
    });
    let response = response.map_err(Failure::from)?;
    if response.status != 200 {
        let body = String::from_utf8_lossy(&response.body).into_owned();
        return Err(Error::Http { status: response.status, body });
    }
    Ok(serde_json::from_slice(&response.body)?)
}

fn spin(_: &Request) -> Result<Value, Error> {
    let mut n = 1_u64;
    while n != 0 {
        n = std::hint::black_box(n | 1);
    }
    Ok(json!(n))
}

fn crash(_: &Request) -> Result<Value, Error> {
    std::process::abort()
}
