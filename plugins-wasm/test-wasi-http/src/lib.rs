//! Sends requests through `wasi:http`, so that the tests of the plugin interface `http` also run with `wasi:http`. The
//! plugin has the same parameters and results as `test-echo`, and uses the failure codes of the plugin interface.

#![cfg(target_arch = "wasm32")]
#![forbid(unsafe_code)]

mod outgoing;

use std::collections::BTreeMap;

use monstrum_sdk::{Error, Executor, Map, Operations, Request, Value, json, operations};
use outgoing::{Asked, Failed, Pending};

/// The maximum size of a body that the result contains. Larger bodies are omitted, so that the size limit of a result
/// does not interfere with the size limit of a response.
const BODY_BYTES_MAX: usize = 512 * 1024;

struct Fetch;

impl Executor for Fetch {
    const OPERATIONS: Operations = operations! { "fetch.run" => fetch, "flood.run" => flood };
}

monstrum_sdk::export!(Fetch);

fn fetch(request: &Request) -> Result<Value, Error> {
    let body = match request.optional_param::<usize>("body_bytes")? {
        Some(size) => Some(vec![b'x'; size]),
        None => request.optional_param::<String>("body")?.map(String::into_bytes),
    };
    let asked = Asked {
        method: request.optional_param("method")?.unwrap_or_else(|| "GET".to_owned()),
        url: url(request, &pairs(request, "query")?)?,
        headers: pairs(request, "headers")?,
        body,
        timeout_ms: request.optional_param("timeout_ms")?,
        trailer: request.optional_param("trailer")?,
    };
    Ok(match outgoing::begin(&asked).and_then(Pending::answer) {
        Ok(answer) => {
            let body = String::from_utf8_lossy(&answer.body);
            json!({
                "status": answer.status,
                "headers": answer.headers,
                "body": (body.len() <= BODY_BYTES_MAX).then_some(body),
                "body_bytes": answer.body.len(),
            })
        }
        Err(Failed { code, message }) => json!({ "failure": { "code": code, "message": message } }),
    })
}

fn flood(request: &Request) -> Result<Value, Error> {
    let fields = outgoing::many_fields(request.optional_param("fields")?.unwrap_or_default());
    fields.map_err(|failed| Error::message(failed.message))?;
    let asked = Asked {
        method: "GET".to_owned(),
        url: url(request, &[])?,
        headers: Vec::new(),
        body: None,
        timeout_ms: None,
        trailer: None,
    };
    let count: usize = request.optional_param("requests")?.unwrap_or_default();
    let pending: Vec<Result<Pending, Failed>> = (0..count).map(|_| outgoing::begin(&asked)).collect();
    if request.optional_param("forsake")?.unwrap_or(false) {
        return Ok(json!({ "begun": pending.len() }));
    }
    // Read all heads before the first body, so that the host must hold all responses at once.
    let heads: Vec<_> = pending.into_iter().map(|pending| pending.and_then(Pending::head)).collect();
    let mut ends = BTreeMap::<String, u32>::new();
    for head in heads {
        let end = match head.and_then(outgoing::Head::read) {
            Ok(answer) => answer.status.to_string(),
            Err(failed) => failed.code.to_owned(),
        };
        *ends.entry(end).or_default() += 1;
    }
    Ok(json!(ends))
}

/// Returns the URL that the host would build from the same parameters.
fn url(request: &Request, query: &[(String, String)]) -> Result<String, Error> {
    let path: String = request.optional_param("path")?.unwrap_or_else(|| "/".to_owned());
    let mut url = if path.contains("://") {
        path
    } else {
        let base = request.resource_config["api_base"].as_str().unwrap_or_default();
        format!("{}{path}", base.strip_suffix('/').unwrap_or(base))
    };
    for (name, value) in query {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str(&format!("{}={}", encoded(name), encoded(value)));
    }
    Ok(url)
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn pairs(request: &Request, name: &str) -> Result<Vec<(String, String)>, Error> {
    let object: Map<String, Value> = request.optional_param(name)?.unwrap_or_default();
    Ok(object.into_iter().map(|(name, value)| (name, value.as_str().unwrap_or_default().to_owned())).collect())
}
