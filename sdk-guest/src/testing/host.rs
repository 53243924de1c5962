//! The host functions of a test. Each thread has its own host, because a test runs on one thread.

use std::cell::RefCell;

use percent_encoding::utf8_percent_encode;
use serde_json::Value;

use super::sandbox::Sandbox;
use super::{Answer, Line, Sent, ToolAnswer, ToolCall};
use crate::http::RESERVED;
use crate::log::Level;
use crate::wit::monstrum::plugin::{events, http as wire, sandbox, tools, types};

/// The prepared answers, and the recorded requests.
#[derive(Default)]
pub(super) struct Host {
    pub(super) answers: Vec<Answer>,
    pub(super) tools: Vec<ToolAnswer>,
    pub(super) sandbox: Sandbox,
    pub(super) credential_status: String,
    pub(super) requests: Vec<Sent>,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) log: Vec<Line>,
    pub(super) events: Vec<(String, Value)>,
    pub(super) subscriptions: Vec<events::Subscription>,
    /// The number of subscriptions that were made.
    pub(super) subscribed: usize,
}

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

pub(super) fn prepare(host: Host) {
    HOST.set(Some(host));
}

/// Ends the test's use of the host. Returns the recorded requests, tool calls and log lines, and the unused answers.
pub(super) fn finish() -> Host {
    HOST.take().expect("a call prepares its host before it runs")
}

/// Formats answers as a list for a panic message.
pub(super) fn list(answers: &[Answer]) -> String {
    answers.iter().map(|answer| format!("  {} {}\n", answer.method, answer.url)).collect()
}

pub(crate) fn send(request: &wire::Request) -> Result<wire::Response, types::Failure> {
    with(|host| {
        let sent = sent(request);
        let found = host.answers.iter().position(|answer| serves(answer, &sent));
        let Some(found) = found else {
            panic!(
                "unexpected request {} {}; the remaining answers are:\n{}",
                sent.method,
                sent.url,
                list(&host.answers)
            );
        };
        host.requests.push(sent);
        host.answers.remove(found).result
    })
}

/// Formats tools as a list for a panic message.
pub(super) fn list_tools(answers: &[ToolAnswer]) -> String {
    answers.iter().map(|answer| format!("  {}\n", answer.tool)).collect()
}

pub(crate) fn call_tool(tool: &str, params: &str) -> Result<String, tools::ToolFailure> {
    let params = serde_json::from_str(params).expect("the parameters are written by this crate, as JSON");
    with(|host| {
        let Some(found) = host.tools.iter().position(|answer| answer.tool == tool) else {
            panic!("unexpected call of {tool}; the remaining answers are:\n{}", list_tools(&host.tools));
        };
        host.tool_calls.push(ToolCall { tool: tool.to_owned(), params });
        host.tools.remove(found).result
    })
}

pub(crate) fn sandbox_exec(command: &str, timeout_s: Option<u32>) -> Result<sandbox::ExecResult, types::Failure> {
    with(|host| host.sandbox.exec(command, timeout_s))
}

pub(crate) fn sandbox_list(path: &str) -> Result<Vec<sandbox::Entry>, types::Failure> {
    with(|host| host.sandbox.entries(path))
}

pub(crate) fn sandbox_read(path: &str) -> Result<Vec<u8>, types::Failure> {
    with(|host| host.sandbox.read(path))
}

pub(crate) fn sandbox_write(path: &str, content: &[u8]) -> Result<(), types::Failure> {
    with(|host| host.sandbox.write(path, content.to_vec()))
}

pub(crate) fn emit(name: &str, data: &str) -> Result<String, types::Failure> {
    let data = serde_json::from_str(data).expect("the data is written by this crate, as JSON");
    with(|host| {
        host.events.push((name.to_owned(), data));
        Ok(format!("event-{}", host.events.len()))
    })
}

pub(crate) fn subscribe(pattern: &str, instruction: &str) -> Result<String, types::Failure> {
    with(|host| {
        host.subscribed += 1;
        let id = format!("subscription-{}", host.subscribed);
        host.subscriptions.push(events::Subscription {
            id: id.clone(),
            pattern: pattern.to_owned(),
            instruction: instruction.to_owned(),
            active: true,
            created_at: "2026-01-01T00:00:00.000Z".to_owned(),
        });
        Ok(id)
    })
}

pub(crate) fn unsubscribe(id: &str) -> Result<bool, types::Failure> {
    with(|host| {
        let before = host.subscriptions.len();
        host.subscriptions.retain(|subscription| subscription.id != id);
        Ok(host.subscriptions.len() < before)
    })
}

pub(crate) fn subscriptions() -> Result<Vec<events::Subscription>, types::Failure> {
    with(|host| Ok(host.subscriptions.clone()))
}

pub(crate) fn credential_status() -> String {
    with(|host| host.credential_status.clone())
}

pub(crate) fn write_log(level: Level, message: &str, fields: &str) {
    let fields = if fields.is_empty() { Ok(Value::Null) } else { serde_json::from_str(fields) };
    let fields = fields.expect("the fields are written by this crate, as JSON");
    with(|host| host.log.push(Line { level, message: message.to_owned(), fields }));
}

fn with<T>(act: impl FnOnce(&mut Host) -> T) -> T {
    HOST.with_borrow_mut(|host| match host {
        Some(host) => act(host),
        None => panic!("outside a component, host functions can be called only within `testing::Call::run`"),
    })
}

fn serves(answer: &Answer, sent: &Sent) -> bool {
    let url = if answer.url.contains('?') { sent.url.as_str() } else { sent.url.split('?').next().unwrap_or_default() };
    answer.method == sent.method && answer.url == url
}

fn sent(request: &wire::Request) -> Sent {
    let mut url = request.url.clone();
    for (name, value) in &request.query {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.extend(utf8_percent_encode(name, RESERVED));
        url.push('=');
        url.extend(utf8_percent_encode(value, RESERVED));
    }
    Sent {
        method: request.method.clone(),
        url,
        query: request.query.clone(),
        headers: request.headers.clone(),
        body: request.body.clone().unwrap_or_default(),
        authenticate: request.authenticate,
        timeout_ms: request.timeout_ms,
    }
}
