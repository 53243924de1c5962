//! Functions for infrastructure code, which a plugin may provide besides its tools.
//!
//! Tools are for bots and subject to roles and scopes. Functions are for the operators of the platform, who call them
//! as `platform.{type}.{function}` with a root key; bots cannot call them. The limits of a call, the egress rules and
//! the audit are the same as for tools. A call can name a resource to use the credential of that resource; otherwise,
//! the call has no credential.

use crate::executor::{Executor, Handler};
use crate::request::Request;

/// The functions of a plugin, each with its handler. Created by [`functions!`](crate::functions!).
#[derive(Clone, Copy, Debug)]
pub struct Functions(&'static [(&'static str, Handler)]);

impl Functions {
    /// Creates functions from pairs of a name and a handler. A name consists of a-z, 0-9 and `_`.
    #[must_use]
    pub const fn new(pairs: &'static [(&'static str, Handler)]) -> Self {
        Functions(pairs)
    }

    /// Returns the names, in order of declaration.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }

    pub(crate) fn find(&self, name: &str) -> Option<Handler> {
        self.0.iter().find(|(own, _)| *own == name).map(|(_, handler)| *handler)
    }
}

/// Runs the function that `request.operation` names. Among the other fields of the request, only `params` has a
/// meaningful value. [`export!`](crate::export!) and [`testing`](crate::testing) call this function.
///
/// # Errors
/// Returns the error message if the function does not exist or fails.
pub fn call<E: Executor>(_: &E, request: &Request) -> Result<serde_json::Value, String> {
    let name = &request.operation;
    let handler = E::FUNCTIONS.find(name).ok_or_else(|| format!("Unknown function: {name}"))?;
    handler(request).map_err(|error| error.to_string())
}
