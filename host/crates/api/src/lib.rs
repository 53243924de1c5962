//! The inputs and answers of the HTTP API, with their descriptions for OpenAPI.
//!
//! Plain data: operations take the inputs and return the answers, whichever interface runs them, and the audit records
//! changes in the same form. An input is checked by the operation that takes it, except for its JSON types.

#![forbid(unsafe_code)]

pub mod audit;
pub mod bindings;
pub mod bots;
pub mod credentials;
pub mod keys;
pub mod list;
pub mod oauth;
pub mod oauth_providers;
pub mod packages;
pub mod patch;
pub mod platform;
pub mod plugins;
pub mod registry;
pub mod resource_types;
pub mod resources;
pub mod roles;
pub mod sandbox_files;
pub mod sandboxes;
pub mod tools;
pub mod trust;
pub mod workspaces;
