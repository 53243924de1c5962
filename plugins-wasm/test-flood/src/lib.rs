//! Repeats harmless operations far too often, and reports the results.

#![cfg(target_arch = "wasm32")]
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use monstrum_sdk::log::{self, Level};
use monstrum_sdk::wit::monstrum::plugin::http;
use monstrum_sdk::{Error, Executor, Operations, Request, Value, json, operations};

/// The maximum length of a log line.
const LINE_BYTES: usize = 4096;

/// The number of calls of this instance. A number greater than 1 means that the host has reused the instance.
static CALLS: AtomicU32 = AtomicU32::new(0);

struct Flood;

impl Executor for Flood {
    const OPERATIONS: Operations = operations! { "flood.run" => run };
}

monstrum_sdk::export!(Flood);

fn run(request: &Request) -> Result<Value, Error> {
    let times: usize = request.optional_param("times")?.unwrap_or(1);
    let line = "x".repeat(LINE_BYTES);
    Ok(match request.optional_param::<String>("mode")?.as_deref() {
        Some("log") => json!((0..times).map(|_| log::write(Level::Error, &line, &[])).count()),
        Some("stdout") => json!(print(std::io::stdout().lock(), &line, times)),
        Some("stderr") => json!(print(std::io::stderr().lock(), &line, times)),
        Some("requests") => {
            let get = get(Vec::new(), Vec::new());
            let mut ends = BTreeMap::<String, usize>::new();
            for _ in 0..times {
                *ends.entry(sent(&get)).or_default() += 1;
            }
            json!(ends)
        }
        Some("headers") => json!(sent(&get(many(times), Vec::new()))),
        Some("query") => json!(sent(&get(Vec::new(), many(times)))),
        Some("count") => json!(CALLS.fetch_add(1, Ordering::Relaxed) + 1),
        _ => json!("nothing"),
    })
}

fn print(mut to: impl Write, line: &str, times: usize) -> usize {
    (0..times).take_while(|_| writeln!(to, "{line}").is_ok()).count()
}

fn many(count: usize) -> Vec<(String, String)> {
    (0..count).map(|number| (format!("x-{number}"), "x".to_owned())).collect()
}

fn get(headers: Vec<(String, String)>, query: Vec<(String, String)>) -> http::Request {
    http::Request {
        method: "GET".to_owned(),
        url: "/echo".to_owned(),
        query,
        headers,
        body: None,
        timeout_ms: None,
        authenticate: true,
        options: Vec::new(),
    }
}

fn sent(request: &http::Request) -> String {
    match http::send(request) {
        Ok(response) => response.status.to_string(),
        Err(failure) => failure.code,
    }
}
