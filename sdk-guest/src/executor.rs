//! Execution of a call in a fixed order: finds the handler, runs the hooks and the handler, and converts the handler's
//! error to an outcome.

use serde_json::Value;

use crate::error::Error;
use crate::functions::Functions;
use crate::glob;
use crate::outcome::{Outcome, ScopeViolation};
use crate::request::Request;

/// A handler of an operation.
pub type Handler = fn(&Request) -> Result<Value, Error>;

/// The operations of an executor, each with its handler. Created by [`operations!`](crate::operations!).
#[derive(Clone, Copy, Debug)]
pub struct Operations(&'static [(&'static str, Handler)]);

impl Operations {
    /// Creates operations from pairs of a key and a handler. A key may be a glob.
    #[must_use]
    pub const fn new(pairs: &'static [(&'static str, Handler)]) -> Self {
        Operations(pairs)
    }

    /// Returns the handler whose key equals the operation. If no key equals it, returns the handler of the first
    /// matching glob.
    #[must_use]
    pub fn find(&self, operation: &str) -> Option<Handler> {
        let same = self.0.iter().find(|(key, _)| *key == operation);
        same.or_else(|| self.0.iter().find(|(key, _)| glob::matches(key, operation))).map(|(_, handler)| *handler)
    }

    /// Returns the keys, in order of declaration.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(key, _)| *key)
    }
}

/// The implementation of a plugin's tools.
///
/// ```
/// use monstrum_sdk::{Error, Executor, Operations, Outcome, Request, ScopeViolation, Value, operations};
///
/// struct Hosts;
///
/// impl Executor for Hosts {
///     const OPERATIONS: Operations = operations! { "host.ping" => ping };
///
///     fn pre_execute(&self, request: &Request) -> Option<Outcome> {
///         request.resource_id.is_none().then(|| Outcome::Error("no resource".to_owned()))
///     }
///
///     fn validate_scope(&self, request: &Request) -> Result<(), ScopeViolation> {
///         match request.param::<u16>("port") {
///             Ok(22) => Err(ScopeViolation::new("Port 22 is not authorized")),
///             _ => Ok(()),
///         }
///     }
///
///     fn handle_error(&self, _: &Request, error: Error) -> Outcome {
///         Outcome::Error(format!("ping failed: {error}"))
///     }
/// }
///
/// fn ping(request: &Request) -> Result<Value, Error> {
///     Ok(request.param("port")?)
/// }
///
/// use monstrum_sdk::testing::Call;
///
/// assert_eq!(Call::new("hosts_ping", "host.ping").run(&Hosts).error(), "no resource");
/// let call = || Call::new("hosts_ping", "host.ping").with(|request| request.resource_id = Some("r".to_owned()));
/// assert_eq!(call().param("port", 22).run(&Hosts).scope_violation(), "Port 22 is not authorized");
/// assert_eq!(call().run(&Hosts).error(), "ping failed: parameter 'port': is required");
/// ```
pub trait Executor {
    /// The operations of the plugin.
    const OPERATIONS: Operations;

    /// The functions for infrastructure code; see [`functions`](macro@crate::functions). A plugin with functions ends
    /// with `export!(MyPlugin with functions)`.
    const FUNCTIONS: Functions = Functions::new(&[]);

    /// Runs first, after the handler was found. If this method returns an outcome, the call ends with that outcome.
    fn pre_execute(&self, request: &Request) -> Option<Outcome> {
        let _ = request;
        None
    }

    /// Runs second, to check limits that the manifest's scope dimensions cannot express. The host has already checked
    /// the scope dimensions.
    ///
    /// # Errors
    /// Returns a violation if the parameters are outside the authorized scope.
    fn validate_scope(&self, request: &Request) -> Result<(), ScopeViolation> {
        let _ = request;
        Ok(())
    }

    /// Converts a handler's error to the outcome of the call. The default is an [`Outcome::Error`] with the text of the
    /// error. Scope violations are not passed to this method, so that a plugin cannot convert them to another outcome.
    fn handle_error(&self, request: &Request, error: Error) -> Outcome {
        let _ = request;
        error.into()
    }
}

/// Runs one call. [`export!`](crate::export!) and [`testing`](crate::testing) call this function.
pub fn execute<E: Executor>(executor: &E, request: &Request) -> Outcome {
    let Some(handler) = E::OPERATIONS.find(&request.operation) else {
        return Outcome::Error(format!("Unknown operation: {}", request.operation));
    };
    if let Some(outcome) = executor.pre_execute(request) {
        return outcome;
    }
    if let Err(violation) = executor.validate_scope(request) {
        return Outcome::ScopeViolation(violation.0);
    }
    match handler(request) {
        Ok(data) => Outcome::Success(data),
        Err(Error::Scope(violation)) => Outcome::ScopeViolation(violation.0),
        Err(error) => executor.handle_error(request, error),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::json;

    use super::*;
    use crate::operations;
    use crate::testing::Call;

    thread_local! {
        static STEPS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    fn step(name: &'static str) {
        STEPS.with_borrow_mut(|steps| steps.push(name));
    }

    /// Records each step. A parameter with the name of a step ends the call at that step.
    struct Traced;

    impl Executor for Traced {
        const OPERATIONS: Operations = operations! {
            "thing.*" => |_| Ok(json!("glob")),
            "thing.read" => |request| {
                step("handler");
                match request.optional_param::<String>("handler")?.as_deref() {
                    Some("violation") => Err(ScopeViolation::new("late").into()),
                    Some(text) => Err(Error::message(text)),
                    None => Ok(json!("same")),
                }
            },
            "thing.r*" => |_| Ok(json!("later glob")),
        };

        fn pre_execute(&self, request: &Request) -> Option<Outcome> {
            step("pre_execute");
            request.params.contains_key("pre_execute").then(|| Outcome::Success(json!("short")))
        }

        fn validate_scope(&self, request: &Request) -> Result<(), ScopeViolation> {
            step("validate_scope");
            if request.params.contains_key("validate_scope") { Err(ScopeViolation::new("outside")) } else { Ok(()) }
        }

        fn handle_error(&self, _: &Request, error: Error) -> Outcome {
            step("handle_error");
            Outcome::Error(format!("handled: {error}"))
        }
    }

    fn outcome_and_steps(operation: &str, parameter: Option<(&str, &str)>) -> (Outcome, Vec<&'static str>) {
        let mut call = Call::new("thing", operation);
        if let Some((name, value)) = parameter {
            call = call.param(name, value);
        }
        let outcome = call.run(&Traced).outcome;
        (outcome, STEPS.take())
    }

    #[test]
    fn the_steps_run_in_order() {
        let cases = [
            (None, Outcome::Success(json!("same")), vec!["pre_execute", "validate_scope", "handler"]),
            (Some(("pre_execute", "")), Outcome::Success(json!("short")), vec!["pre_execute"]),
            (
                Some(("validate_scope", "")),
                Outcome::ScopeViolation("outside".to_owned()),
                vec!["pre_execute", "validate_scope"],
            ),
            (
                Some(("handler", "broken")),
                Outcome::Error("handled: broken".to_owned()),
                vec!["pre_execute", "validate_scope", "handler", "handle_error"],
            ),
            (
                Some(("handler", "violation")),
                Outcome::ScopeViolation("late".to_owned()),
                vec!["pre_execute", "validate_scope", "handler"],
            ),
        ];
        for (parameter, outcome, steps) in cases {
            assert_eq!(outcome_and_steps("thing.read", parameter), (outcome, steps));
        }
    }

    #[test]
    fn an_unknown_operation_runs_no_hook() {
        let expected = Outcome::Error("Unknown operation: other.read".to_owned());
        assert_eq!(outcome_and_steps("other.read", Some(("pre_execute", ""))), (expected, vec![]));
    }

    #[test]
    fn the_same_name_takes_precedence_over_globs() {
        assert_eq!(outcome_and_steps("thing.rename", None).0, Outcome::Success(json!("glob")));
        assert_eq!(outcome_and_steps("thing.read", None).0, Outcome::Success(json!("same")));
    }
}
