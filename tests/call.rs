//! Calls of tools: what is governed, what is refused, what is stopped, and what stays secret.

mod ceilings;
mod configured;
mod delegation;
mod governed;
mod growth;
mod nested;
mod platform;
mod plugins;
mod reload;
mod scopes;
mod steal;

pub(crate) use steal::pattern;
