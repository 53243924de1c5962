//! The inputs and answers of the HTTP API, with their descriptions for OpenAPI.
//!
//! These types are plain data. For every interface, operations accept the inputs and return the answers. The audit
//! records changes in the same form. Deserialization checks only the JSON types of an input; the operation that
//! accepts the input validates everything else.

#![forbid(unsafe_code)]

pub mod audit;
pub mod bindings;
pub mod bots;
pub mod credentials;
pub mod export;
pub mod import;
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
