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

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::executor::{Executor, execute};
use crate::log::Level;
use crate::outcome::Outcome;
use crate::request::{Request, Scope};

pub use answer::Answer;

/// One tool call to be run, with what the host would say to it.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is run"]
pub struct Call {
    request: Request,
    answers: Vec<Answer>,
    credential_status: String,
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
        Call { request, answers: Vec::new(), credential_status: "ready".to_owned() }
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

    /// Runs the call by the template of [`execute`].
    ///
    /// # Panics
    /// A request has no answer, or an answer was not asked for.
    #[track_caller]
    pub fn run<E: Executor>(self, executor: &E) -> Run {
        host::prepare(self.answers, self.credential_status);
        let outcome = execute(executor, &self.request);
        let (requests, log, unused) = host::finish();
        assert!(unused.is_empty(), "no request has asked for:\n{}", host::list(&unused));
        Run { outcome, requests, log }
    }
}

/// What a call has done.
#[derive(Clone, Debug)]
pub struct Run {
    /// What the caller gets.
    pub outcome: Outcome,
    /// What was sent, in order.
    pub requests: Vec<Sent>,
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
