//! Tests of the guardian's public functions.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod changes;
mod delegation;
mod fnmatch;
mod gates;
mod hostile;
mod path_properties;
mod paths;
mod permits;
mod properties;
mod roles;
mod scopes;
mod support;
