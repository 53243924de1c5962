//! Calls of misbehaving plugins, and calls that a server rejects, with their expected outcomes.

use anyhow::Result;
use serde_json::{Value, json};
use support::{Api, Server};

use crate::load::Answer;
use crate::scene::{self, Bot, Grant, SUCCESS};
use crate::upstream::{HELD, OK};
use crate::variant;

/// The plugins that only hostile bots use. Hostile bots also use [`FLOODER`].
const PLUGINS: [&str; 4] = ["test-alloc", "test-loop", "test-result", "test-trap"];
const FLOODER: &str = "test-echo-flooder";
const FLOODER_MODEL: &str = "test-echo";

/// One kind of call.
#[derive(Clone)]
pub struct Kind {
    pub name: &'static str,
    pub tool: &'static str,
    pub params: Value,
    pub end: End,
}

/// The expected outcome of a call.
#[derive(Clone, Copy)]
pub enum End {
    Success,
    /// An error with this code.
    Code(&'static str),
}

/// The judgement of a call's outcome.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    AsExpected,
    /// The server had no free capacity for the call, which is not an error.
    Busy,
    Wrong,
}

impl Kind {
    /// Creates a kind of call of `tool` with this expected outcome.
    pub fn new(name: &'static str, tool: &'static str, params: Value, end: End) -> Kind {
        Kind { name, tool, params, end }
    }

    /// Judges whether `answer` has the expected outcome.
    pub fn judge(&self, answer: &Answer<'_>) -> Verdict {
        let has_code = |code: &str| answer.has_status(200) && answer.holds(format!("\"code\":\"{code}\"").as_bytes());
        let is_as_expected = match self.end {
            End::Success => answer.has_status(200) && answer.holds(SUCCESS),
            End::Code(code) => has_code(code),
        };
        match is_as_expected {
            true => Verdict::AsExpected,
            false if answer.has_status(429) || has_code("busy") => Verdict::Busy,
            false => Verdict::Wrong,
        }
    }
}

/// Installs the hostile plugins in the folder of a server that is not running.
pub fn install(server: &Server) -> Result<()> {
    for plugin in PLUGINS {
        server.install(plugin)?;
    }
    variant::install(server, FLOODER_MODEL, FLOODER)
}

/// Creates a bot that may call all hostile plugins.
pub async fn bot(api: &Api, name: &str, upstream: &str) -> Result<Bot> {
    let grants: Vec<Grant<'_>> = PLUGINS.into_iter().chain([FLOODER]).map(Grant::all).collect();
    scene::bot(api, name, upstream, &grants).await
}

/// Returns all kinds of misbehaving calls that end before the time-out, for example because of the limits on fuel or
/// memory.
pub fn kinds() -> Vec<Kind> {
    let kind = |name, tool, params, code| Kind::new(name, tool, params, End::Code(code));
    let crash = |name, mode: &str| kind(name, "test_trap_run", json!({ "mode": mode }), "trap");
    let result = |name, mode: &str, code| kind(name, "test_result_run", json!({ "mode": mode }), code);
    let flood = json!({ "logs": 1_500, "log_bytes": 5_000, "statuses": 5_000, "requests": 60, "path": OK });
    let never_answered = json!({ "path": HELD, "timeout_ms": 1_000 });
    vec![
        kind("endless loop", "test_loop_run", json!({ "mode": "spin" }), "fuel"),
        kind("memory in small pieces", "test_alloc_run", json!({ "chunk_kib": 16 }), "memory"),
        kind("memory at once", "test_alloc_run", json!({ "chunk_kib": 65_536 }), "memory"),
        crash("panic", "panic"),
        crash("abort", "abort"),
        crash("exit", "exit"),
        result("more than 1 MiB returned", "big", "result_too_large"),
        result("200 levels returned", "deep", "bad_result"),
        result("incomplete JSON returned", "invalid", "bad_result"),
        Kind::new("flood of lines and requests", "test_echo_flooder_flood", flood, End::Success),
        Kind::new("upstream that never answers", "test_echo_flooder_fetch", never_answered, End::Success),
    ]
}

/// Returns the kind of call that sleeps until its time-out.
pub fn sleeper() -> Kind {
    Kind::new("endless sleep", "test_loop_run", json!({ "mode": "sleep" }), End::Code("timeout"))
}
