//! Calls tools of other plugins once, many times or endlessly, and calls its own tools. The operations `caller.call`
//! and `caller.storm` use the generated bindings, so that their tests do not depend on the SDK.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use monstrum_sdk::wit::monstrum::plugin::tools;
use monstrum_sdk::{Error, Executor, Operations, PluginClient, Request, ToolError, Value, json, operations};

struct Caller;

impl Executor for Caller {
    const OPERATIONS: Operations = operations! {
        "caller.call" => call,
        "caller.join" => join,
        "caller.again" => again,
        "caller.round" => round,
        "caller.deep" => deep,
        "caller.storm" => storm,
    };
}

monstrum_sdk::export!(Caller);

fn call(request: &Request) -> Result<Value, Error> {
    let tool: String = request.param("tool")?;
    let text: Option<String> = request.optional_param("text")?;
    let mut params: Value = request.optional_param("params")?.unwrap_or_else(|| json!({}));
    let numbered = request.optional_param("numbered")?.unwrap_or(false);
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    let (mut ok, mut last) = (0, Value::Null);
    for n in 0..request.optional_param::<u32>("times")?.unwrap_or(1) {
        if numbered {
            params["n"] = json!(n);
        }
        last = match tools::call(&tool, text.as_deref().unwrap_or(&params.to_string())) {
            Ok(data) => {
                ok += 1;
                serde_json::from_str(&data)?
            }
            Err(failure) => {
                *failures.entry(failure.code.clone()).or_default() += 1;
                json!({ "status": failure.status, "code": failure.code, "message": failure.message })
            }
        };
    }
    Ok(json!({ "ok": ok, "failures": failures, "last": last }))
}

fn join(request: &Request) -> Result<Value, Error> {
    let (tool, each): (String, Vec<Value>) = (request.param("tool")?, request.param("each")?);
    let mut joined = String::new();
    for params in each {
        let answer = monstrum_sdk::tools::call_tool(&tool, params)?;
        joined.push_str(answer["body"].as_str().unwrap_or_default());
    }
    Ok(json!(joined))
}

fn again(request: &Request) -> Result<Value, Error> {
    Ok(own("again", &json!(request.params)))
}

fn round(request: &Request) -> Result<Value, Error> {
    Ok(own("again", &json!(request.params)))
}

fn deep(request: &Request) -> Result<Value, Error> {
    let n: f64 = request.param("n")?;
    Ok(own("deep", &json!({ "n": n + 1.0 })))
}

fn own(tool: &str, params: &Value) -> Value {
    match PluginClient::new("test-caller").call(tool, params.clone()) {
        Ok(data) => data,
        Err(ToolError { message, status, code }) => {
            json!({ "status": status, "code": code, "message": message, "params": params })
        }
    }
}

fn storm(_: &Request) -> Result<Value, Error> {
    let mut n = 0_u32;
    loop {
        n = n.wrapping_add(1);
        drop(tools::call("test_echo_open", &json!({ "n": n }).to_string()));
    }
}
