//! A test kit that runs a plugin's executor natively under `cargo test`, with prepared answers of the upstream.
//!
//! A test prepares a [`Call`], runs it, and checks the [`Run`]: the outcome, the requests and the log. The test fails
//! if a request has no prepared answer or if a prepared answer is unused. The tests do not cover the work of the host,
//! such as authorization, injection of credentials, and redaction.
//!
//! ```
//! use monstrum_sdk::testing::{Answer, Call};
//! # use monstrum_sdk::{Error, Executor, Http, Operations, Request, Value, json, operations};
//! # struct Plugin;
//! # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "status" => status }; }
//! # fn status(request: &Request) -> Result<Value, Error> {
//! #     Http::new(request).base("https://api.example.com").get("/status").json()
//! # }
//!
//! let run = Call::new("example_status", "status")
//!     .answer(Answer::get("https://api.example.com/status").status(503).body("asleep"))
//!     .run(&Plugin);
//! assert_eq!(run.error(), "the upstream answered 503: asleep");
//! ```

mod answer;
pub(crate) mod host;
mod sandbox;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::Failure;
use crate::events::Subscription;
use crate::executor::{Executor, execute};
use crate::functions;
use crate::log::Level;
use crate::outcome::Outcome;
use crate::request::{Request, Scope};
use crate::sandbox::ExecResult;
use crate::wit::monstrum::plugin::tools::ToolFailure;
use host::Host;
use sandbox::Sandbox;

pub use answer::Answer;

/// A tool call to run, with the answers of the host.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is run"]
pub struct Call {
    request: Request,
    answers: Vec<Answer>,
    tools: Vec<ToolAnswer>,
    sandbox: Sandbox,
    credential_status: String,
    is_function: bool,
}

/// The answer of another plugin's tool to one call.
#[derive(Clone, Debug)]
pub(crate) struct ToolAnswer {
    tool: String,
    result: Result<String, ToolFailure>,
}

impl Call {
    /// Creates a call of the tool `tool_name` with the operation `operation`, the ids `test-request`, `test-bot` and
    /// `test-task`, the locale `en-US` and a deadline of 30 s.
    pub fn new(tool_name: &str, operation: &str) -> Self {
        let request = Request {
            request_id: "test-request".to_owned(),
            bot_id: "test-bot".to_owned(),
            task_id: "test-task".to_owned(),
            operation: operation.to_owned(),
            tool_name: tool_name.to_owned(),
            locale: "en-US".to_owned(),
            deadline_ms: 30_000,
            ..Request::default()
        };
        Call {
            request,
            answers: Vec::new(),
            tools: Vec::new(),
            sandbox: Sandbox::default(),
            credential_status: "ready".to_owned(),
            is_function: false,
        }
    }

    /// Creates a call of one of the plugin's [`functions`](mod@crate::functions).
    pub fn function(name: &str) -> Self {
        let request = Request { operation: name.to_owned(), deadline_ms: u32::MAX, ..Request::default() };
        Call { is_function: true, request, ..Call::new("", "") }
    }

    /// Sets a parameter.
    pub fn param(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.request.params.insert(name.to_owned(), value.into());
        self
    }

    /// Sets all parameters.
    pub fn params(mut self, params: Map<String, Value>) -> Self {
        self.request.params = params;
        self
    }

    /// Sets a value of the resource's configuration.
    pub fn config(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.request.resource_config.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a set of scope constraints, which are pairs of a scope key and its patterns.
    pub fn scope(mut self, set: &[(&str, &[&str])]) -> Self {
        let set: BTreeMap<String, Vec<String>> = set
            .iter()
            .map(|(key, patterns)| ((*key).to_owned(), patterns.iter().map(|&pattern| pattern.to_owned()).collect()))
            .collect();
        let sets = self.request.scope.sets().iter().cloned().chain([set]).collect();
        self.request.scope = Scope::new(sets);
        self
    }

    /// Applies `change` to the request, to set fields for which this type has no method.
    pub fn with(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    /// Sets the result of [`credentials::status`](crate::credentials::status). The default is `ready`.
    pub fn credential_status(mut self, status: &str) -> Self {
        self.credential_status = status.to_owned();
        self
    }

    /// Adds an answer of the upstream for one request.
    pub fn answer(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }

    /// Adds the answer to one call of another plugin's tool. `tool` is the full name of the tool.
    pub fn tool(mut self, tool: &str, data: impl Into<Value>) -> Self {
        self.tools.push(ToolAnswer { tool: tool.to_owned(), result: Ok(data.into().to_string()) });
        self
    }

    /// Makes one call of another plugin's tool fail; see [`ToolError`](crate::ToolError).
    pub fn tool_failure(mut self, tool: &str, status: &str, code: &str, message: &str) -> Self {
        let failure = ToolFailure { message: message.to_owned(), status: status.to_owned(), code: code.to_owned() };
        self.tools.push(ToolAnswer { tool: tool.to_owned(), result: Err(failure) });
        self
    }

    /// Adds the result of one command in the [`sandbox`](crate::sandbox). The plugin must send exactly this command.
    pub fn command(mut self, command: &str, result: ExecResult) -> Self {
        self.sandbox.answers.push((command.to_owned(), Ok(result)));
        self
    }

    /// Makes one command in the sandbox fail before it runs.
    pub fn command_failure(mut self, command: &str, failure: Failure) -> Self {
        self.sandbox.answers.push((command.to_owned(), Err(failure)));
        self
    }

    /// Adds a file to the sandbox, which is otherwise empty. The path is absolute and below `/workspace`, or relative to
    /// `/workspace`.
    ///
    /// # Panics
    /// Panics if the sandbox cannot have a file with this path.
    #[track_caller]
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        if let Err(failure) = self.sandbox.write(path, content.into()) {
            panic!("{}", failure.message);
        }
        self
    }

    /// Runs the call with [`execute`].
    ///
    /// # Panics
    /// Panics if a request, a call of a tool or a command has no prepared answer, or if a prepared answer is unused.
    #[track_caller]
    pub fn run<E: Executor>(self, executor: &E) -> Run {
        let Call { request, answers, tools, sandbox, credential_status, is_function } = self;
        host::prepare(Host { answers, tools, sandbox, credential_status, ..Host::default() });
        let outcome = if is_function {
            functions::call(executor, &request).map_or_else(Outcome::Error, Outcome::Success)
        } else {
            execute(executor, &request)
        };
        let Host { answers, tools, sandbox, requests, tool_calls, log, events, subscriptions, .. } = host::finish();
        assert!(answers.is_empty(), "unused answers:\n{}", host::list(&answers));
        assert!(tools.is_empty(), "unused tool answers:\n{}", host::list_tools(&tools));
        assert!(sandbox.answers.is_empty(), "unused command results:\n{}", sandbox.list());
        let subscriptions = subscriptions.into_iter().map(Subscription::from).collect();
        let Sandbox { commands, files, .. } = sandbox;
        Run { outcome, requests, tool_calls, commands, files, events, subscriptions, log }
    }
}

/// The result of a test call.
#[derive(Clone, Debug)]
pub struct Run {
    /// The outcome of the call.
    pub outcome: Outcome,
    /// The requests that were sent, in order.
    pub requests: Vec<Sent>,
    /// The calls of other plugins' tools, in order.
    pub tool_calls: Vec<ToolCall>,
    /// The commands that ran in the sandbox, in order.
    pub commands: Vec<Command>,
    /// The files of the sandbox at the end, by their paths relative to `/workspace`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The names and the data of the [`events`](crate::events) that were emitted, in order.
    pub events: Vec<(String, Value)>,
    /// The subscriptions at the end. There are none at the beginning.
    pub subscriptions: Vec<Subscription>,
    /// The log lines, in order.
    pub log: Vec<Line>,
}

impl Run {
    /// Returns the data of a successful call.
    ///
    /// # Panics
    /// Panics if the call has another outcome.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "a test may only check that the call succeeds")]
    pub fn success(self) -> Value {
        match self.outcome {
            Outcome::Success(data) => data,
            other => panic!("expected a success, got {other:?}"),
        }
    }

    /// Returns the message of an error.
    ///
    /// # Panics
    /// Panics if the call has another outcome.
    #[track_caller]
    #[must_use]
    pub fn error(self) -> String {
        match self.outcome {
            Outcome::Error(message) => message,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// Returns the reason for a scope violation.
    ///
    /// # Panics
    /// Panics if the call has another outcome.
    #[track_caller]
    #[must_use]
    pub fn scope_violation(self) -> String {
        match self.outcome {
            Outcome::ScopeViolation(reason) => reason,
            other => panic!("expected a scope violation, got {other:?}"),
        }
    }
}

/// A request that the plugin has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// The method.
    pub method: String,
    /// The URL, including the encoded query.
    pub url: String,
    /// The query parameters that were added to the URL.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body; empty if there was no body.
    pub body: Vec<u8>,
    /// Whether the host may add the credential.
    pub authenticate: bool,
    /// The timeout in milliseconds.
    pub timeout_ms: Option<u32>,
}

impl Sent {
    /// Returns the value of the first header with this name. Names are case-insensitive.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Parses the body as JSON.
    ///
    /// # Panics
    /// Panics if the body is not JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("the body of {} {} is not JSON: {error}", self.method, self.url),
        }
    }
}

/// A call of another plugin's tool.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The tool's full name.
    pub tool: String,
    /// The parameters.
    pub params: Value,
}

/// A command that ran in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Command {
    /// The command line for bash.
    pub command: String,
    /// The time limit in seconds; `None` for the default.
    pub timeout_s: Option<u32>,
}

/// A line of the plugin's log.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Line {
    /// The severity.
    pub level: Level,
    /// The message.
    pub message: String,
    /// The fields: an object, or `null` if there are none.
    pub fields: Value,
}

#[cfg(test)]
mod tests;
