//! The Rust SDK for authors of Monstrum plugins.
//!
//! A plugin is a WebAssembly component that turns tool calls into requests to an upstream service. It implements
//! [`Executor`], lists its operations with [`operations!`] and ends with [`export!`]. Before the plugin runs, the host
//! authorizes the call and validates the parameters. Only the host holds the credential, and adds it to requests to the
//! service. Each call runs in a fresh instance, so a plugin keeps no state between calls.
//!
//! ```
//! use monstrum_sdk::{Error, Executor, Http, Operations, Request, Value, operations, path};
//!
//! struct Tickets;
//!
//! impl Executor for Tickets {
//!     const OPERATIONS: Operations = operations! { "ticket.read" => read };
//! }
//!
//! fn read(request: &Request) -> Result<Value, Error> {
//!     let id: u64 = request.param("id")?;
//!     Http::new(request).base("https://api.example.com").get(path!("/tickets/{}", id)).json()
//! }
//!
//! monstrum_sdk::export!(Tickets);
//!
//! // Under `cargo test` the same executor runs with prepared answers.
//! use monstrum_sdk::json;
//! use monstrum_sdk::testing::{Answer, Call};
//!
//! let run = Call::new("tickets_show", "ticket.read")
//!     .param("id", 7)
//!     .answer(Answer::get("https://api.example.com/tickets/7").json(json!({ "title": "Broken" })))
//!     .run(&Tickets);
//! assert_eq!(run.success(), json!({ "title": "Broken" }));
//! ```

#![warn(missing_docs)]

// The generated code refers to the crate by name, here and in plugins.
extern crate self as monstrum_sdk;

pub mod credentials;
mod error;
pub mod events;
mod executor;
pub mod functions;
pub mod glob;
mod host;
pub mod http;
pub mod log;
mod outcome;
mod request;
pub mod sandbox;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod tools;
pub mod wit;

pub use serde_json::{Map, Value, json};

pub use error::{Error, Failure, FailureCode};
pub use executor::{Executor, Handler, Operations, execute};
pub use functions::Functions;
pub use http::{Http, HttpRequest, HttpResponse, Path};
pub use outcome::{Outcome, RESULT_BYTES_MAX, ScopeViolation};
pub use request::{Delegate, Request, Scope};
pub use tools::{PluginClient, ToolError};

/// Creates the [`Operations`] of an executor from pairs of an operation and its handler.
///
/// A key may be a glob (see [`glob`]). A key that equals the operation takes precedence over globs; otherwise the first
/// matching glob is used.
///
/// ```
/// use monstrum_sdk::{Error, Operations, Request, Value, operations};
///
/// fn read(_: &Request) -> Result<Value, Error> {
///     Ok(Value::Null)
/// }
///
/// const OPERATIONS: Operations = operations! { "issue.read" => read, "repo.*" => read };
/// assert!(OPERATIONS.find("repo.delete").is_some());
/// assert!(OPERATIONS.find("issue.write").is_none());
/// ```
#[macro_export]
macro_rules! operations {
    ($($operation:literal => $handler:expr),* $(,)?) => {
        $crate::Operations::new(&[$(($operation, $handler as $crate::Handler)),*])
    };
}

/// Creates the [`Functions`] of an executor from pairs of a name and its handler; see [`functions`](mod@functions).
///
/// ```
/// use monstrum_sdk::{Error, Executor, Functions, Operations, Request, Value, functions, json, operations};
///
/// struct Tickets;
///
/// impl Executor for Tickets {
///     const OPERATIONS: Operations = operations! {};
///     const FUNCTIONS: Functions = functions! { "double" => double };
/// }
///
/// fn double(request: &Request) -> Result<Value, Error> {
///     Ok(json!(request.param::<i64>("n")? * 2))
/// }
///
/// monstrum_sdk::export!(Tickets with functions);
///
/// use monstrum_sdk::testing::Call;
///
/// assert_eq!(Call::function("double").param("n", 21).run(&Tickets).success(), json!(42));
/// assert_eq!(Call::function("halve").run(&Tickets).error(), "Unknown function: halve");
/// ```
#[macro_export]
macro_rules! functions {
    ($($name:literal => $handler:expr),* $(,)?) => {
        $crate::Functions::new(&[$(($name, $handler as $crate::Handler)),*])
    };
}

/// Exports a value that implements [`Executor`] as the component's executor; use it once in a plugin.
/// `export!(X with functions)` exports its [`functions`](mod@functions) too.
///
/// The exports are compiled for WebAssembly only, so that `cargo test` can link a `cdylib` crate natively.
///
/// ```
/// # use monstrum_sdk::{Executor, Operations, operations};
/// struct Nothing;
///
/// impl Executor for Nothing {
///     const OPERATIONS: Operations = operations! {};
/// }
///
/// monstrum_sdk::export!(Nothing);
/// ```
#[macro_export]
#[rustfmt::skip]
macro_rules! export {
    ($executor:ident) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::wit::exports::monstrum::plugin::executor::Guest for Component {
                fn execute(
                    request: $crate::wit::exports::monstrum::plugin::executor::ExecuteRequest,
                ) -> $crate::wit::exports::monstrum::plugin::executor::ExecuteResult {
                    $crate::__private::execute(&$executor, request)
                }
            }

            $crate::wit::export_guest!(Component with_types_in $crate::wit);
        };

        // Prevents a dead-code warning: a native build does not otherwise use the executor.
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn(&$crate::Request) -> $crate::Outcome = |request| $crate::execute(&$executor, request);
    };
    ($executor:ident with functions) => {
        $crate::export!($executor);

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Component;

            impl $crate::wit::functions::exports::monstrum::plugin::functions::Guest for Component {
                fn names() -> ::std::vec::Vec<::std::string::String> {
                    $crate::__private::function_names(&$executor)
                }

                fn call(
                    name: ::std::string::String,
                    params: ::std::string::String,
                ) -> ::std::result::Result<::std::string::String, ::std::string::String> {
                    $crate::__private::call_function(&$executor, name, &params)
                }
            }

            $crate::wit::functions::export_functions!(Component with_types_in $crate::wit::functions);
        };
    };
}

/// Implementation details of this crate's macros.
#[doc(hidden)]
pub mod __private {
    pub use wit_bindgen::rt;

    use crate::wit::exports::monstrum::plugin::executor::{ExecuteRequest, ExecuteResult};
    use crate::{Executor, Outcome, Request, execute as run};

    /// Returns the names of the functions.
    pub fn function_names<E: Executor>(_: &E) -> Vec<String> {
        E::FUNCTIONS.names().map(str::to_owned).collect()
    }

    /// Calls a function with JSON parameters and returns its result as JSON.
    ///
    /// # Errors
    /// Returns the error message of the call.
    pub fn call_function<E: Executor>(executor: &E, name: String, params: &str) -> Result<String, String> {
        let params = serde_json::from_str(params).map_err(|error| format!("invalid params in the request: {error}"))?;
        // The `functions` interface does not pass the deadline; the host enforces it.
        let request = Request { operation: name, params, deadline_ms: u32::MAX, ..Request::default() };
        crate::functions::call(executor, &request).map(|data| data.to_string())
    }

    /// Runs one call with the types of the WIT interface.
    pub fn execute<E: Executor>(executor: &E, request: ExecuteRequest) -> ExecuteResult {
        match Request::try_from(request) {
            Ok(request) => run(executor, &request).into(),
            Err(error) => Outcome::from(error).into(),
        }
    }
}
