//! Calls of tools: what is governed, what is refused, what is stopped, and what stays secret.

mod governed;
mod plugins;
mod scopes;
mod steal;

pub(crate) use steal::pattern;
