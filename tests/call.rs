//! Calls of tools: governed calls, rejected calls, stopped calls, and the protection of secrets.

pub(crate) mod budget;
mod ceilings;
mod configured;
mod content;
mod delegation;
mod gates;
mod governed;
mod jira;
mod nested;
mod owners;
mod permission_diff;
mod platform;
pub(crate) mod plugins;
mod reload;
mod scopes;
mod shares;
mod start_index;
mod steal;

pub(crate) use steal::pattern;
