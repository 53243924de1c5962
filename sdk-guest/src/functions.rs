//! Functions for infrastructure code: what a plugin offers beside its tools.
//!
//! A tool is for bots, and goes by roles and scopes. A function is called as `platform.{type}.{function}` under a root key
//! only, by what runs the platform; no bot can reach it. The limits of a call, the rules about where requests may go and
//! the audit are the same. A call may name a resource, whose credential is then used; without one there is none.

use crate::executor::{Executor, Handler};
use crate::request::Request;

/// The functions of a plugin, each with its handler. Made by [`functions!`](crate::functions!).
#[derive(Clone, Copy, Debug)]
pub struct Functions(&'static [(&'static str, Handler)]);

impl Functions {
    /// Functions from pairs of a name, of a-z, 0-9 and `_`, and a handler.
    #[must_use]
    pub const fn new(pairs: &'static [(&'static str, Handler)]) -> Self {
        Functions(pairs)
    }

    /// The names, in the order in which they were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<Handler> {
        self.0.iter().find(|(own, _)| *own == name).map(|(_, handler)| *handler)
    }
}

/// Runs one function; the data, or what went wrong in words. The handler sees a request of which only the parameters are
/// filled in, and the function's name as its operation. [`export!`](crate::export!) and [`testing`](crate::testing) call it.
///
/// # Errors
/// There is no such function, or it failed.
pub fn call<E: Executor>(_: &E, request: &Request) -> Result<serde_json::Value, String> {
    let name = &request.operation;
    let handler = E::FUNCTIONS.find(name).ok_or_else(|| format!("Unknown function: {name}"))?;
    handler(request).map_err(|error| error.to_string())
}
