//! A testing kit: a plugin's executor runs natively under `cargo test`, against canned answers of the upstream.
//!
//! A test prepares one [`Call`], runs it, and looks at the [`Run`]: what came out, what was sent, what was logged. A
//! request for which there is no answer fails the test, as does an answer that no request has asked for. What the host
//! does on top, authorising, injecting and redacting, is the host's to test.
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

/// One tool call to be run, with what the host would say to it.
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

/// What a tool of another plugin is to answer, once.
#[derive(Clone, Debug)]
pub(crate) struct ToolAnswer {
    tool: String,
    result: Result<String, ToolFailure>,
}

impl Call {
    /// A call of a tool and the operation that it maps to, with the ids `test-request`, `test-bot` and `test-task`, the
    /// locale `en-US` and 30 s to go.
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

    /// A call of a function, as infrastructure code makes it.
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

    /// Adds a set of constraints, from scope key to patterns.
    pub fn scope(mut self, set: &[(&str, &[&str])]) -> Self {
        let set: BTreeMap<String, Vec<String>> = set
            .iter()
            .map(|(key, patterns)| ((*key).to_owned(), patterns.iter().map(|&pattern| pattern.to_owned()).collect()))
            .collect();
        let sets = self.request.scope.sets().iter().cloned().chain([set]).collect();
        self.request.scope = Scope::new(sets);
        self
    }

    /// Changes anything else of the request.
    pub fn with(mut self, change: impl FnOnce(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    /// What [`credentials::status`](crate::credentials::status) says; `ready` by default.
    pub fn credential_status(mut self, status: &str) -> Self {
        self.credential_status = status.to_owned();
        self
    }

    /// Adds an answer of the upstream, which serves one request.
    pub fn answer(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }

    /// Adds the answer of another plugin's tool, by its full name, which serves one call.
    pub fn tool(mut self, tool: &str, data: impl Into<Value>) -> Self {
        self.tools.push(ToolAnswer { tool: tool.to_owned(), result: Ok(data.into().to_string()) });
        self
    }

    /// Lets one call of another plugin's tool fail; see [`ToolError`](crate::ToolError).
    pub fn tool_failure(mut self, tool: &str, status: &str, code: &str, message: &str) -> Self {
        let failure = ToolFailure { message: message.to_owned(), status: status.to_owned(), code: code.to_owned() };
        self.tools.push(ToolAnswer { tool: tool.to_owned(), result: Err(failure) });
        self
    }

    /// Adds what a command in the [`sandbox`](crate::sandbox) ends with, which serves one command of exactly this text.
    pub fn command(mut self, command: &str, result: ExecResult) -> Self {
        self.sandbox.answers.push((command.to_owned(), Ok(result)));
        self
    }

    /// Lets one command in the sandbox fail before it runs.
    pub fn command_failure(mut self, command: &str, failure: Failure) -> Self {
        self.sandbox.answers.push((command.to_owned(), Err(failure)));
        self
    }

    /// Puts a file into the sandbox, which has no others. Paths are compared as they are written.
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.sandbox.files.insert(path.to_owned(), content.into());
        self
    }

    /// Runs the call by the template of [`execute`].
    ///
    /// # Panics
    /// A request or a call of a tool has no answer, or an answer was not asked for.
    #[track_caller]
    pub fn run<E: Executor>(self, executor: &E) -> Run {
        let Call { request, answers, tools, sandbox, credential_status, is_function } = self;
        host::prepare(Host { answers, tools, sandbox, credential_status, ..Host::default() });
        let outcome = if is_function {
            functions::call(executor, &request).map_or_else(Outcome::Error, Outcome::Success)
        } else {
            execute(executor, &request)
        };
        let Host { answers, tools, sandbox, requests, tool_calls, log, .. } = host::finish();
        assert!(answers.is_empty(), "no request has asked for:\n{}", host::list(&answers));
        assert!(tools.is_empty(), "nobody has called:\n{}", host::list_tools(&tools));
        assert!(sandbox.answers.is_empty(), "nobody has run:\n{}", sandbox.list());
        Run { outcome, requests, tool_calls, commands: sandbox.commands, files: sandbox.files, log }
    }
}

/// What a call has done.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the caller gets.
    pub outcome: Outcome,
    /// What was sent, in order.
    pub requests: Vec<Sent>,
    /// The calls of other plugins' tools, in order.
    pub tool_calls: Vec<ToolCall>,
    /// The commands that ran in the sandbox, in order.
    pub commands: Vec<Command>,
    /// The files of the sandbox at the end.
    pub files: BTreeMap<String, Vec<u8>>,
    /// What was logged, in order.
    pub log: Vec<Line>,
}

impl Run {
    /// The data of a success.
    ///
    /// # Panics
    /// The call ended otherwise.
    #[track_caller]
    #[expect(clippy::must_use_candidate, reason = "that it succeeds may be all that a test wants to know")]
    pub fn success(self) -> Value {
        match self.outcome {
            Outcome::Success(data) => data,
            other => panic!("expected a success, got {other:?}"),
        }
    }

    /// The message of an error.
    ///
    /// # Panics
    /// The call ended otherwise.
    #[track_caller]
    #[must_use]
    pub fn error(self) -> String {
        match self.outcome {
            Outcome::Error(message) => message,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// The reason of a scope violation.
    ///
    /// # Panics
    /// The call ended otherwise.
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
    /// The URL, its query included and encoded.
    pub url: String,
    /// The query parameters that were added to the URL.
    pub query: Vec<(String, String)>,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body; empty where there was none.
    pub body: Vec<u8>,
    /// Whether the host was asked to authenticate.
    pub authenticate: bool,
    /// How long it was allowed to take.
    pub timeout_ms: Option<u32>,
}

impl Sent {
    /// The value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// It is not JSON.
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
    /// What it was given.
    pub params: Value,
}

/// A command for the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Command {
    /// What bash was given.
    pub command: String,
    /// How long it was allowed to take.
    pub timeout_s: Option<u32>,
}

/// A line of the plugin's log.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Line {
    /// How grave it is.
    pub level: Level,
    /// The message.
    pub message: String,
    /// The fields: an object, or `null` where there are none.
    pub fields: Value,
}

#[cfg(test)]
mod tests;
