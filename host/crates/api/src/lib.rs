//! The requests and responses of the HTTP API, with their descriptions for OpenAPI.
//!
//! These types are plain data. Operations accept the requests and return the responses, regardless of the interface
//! that calls them. The audit records changes in the same format. Deserialization checks only the JSON types of a
//! request. The operation that accepts the request validates everything else.

#![forbid(unsafe_code)]

pub mod access;
pub mod approvals;
pub mod attention;
pub mod audit;
pub mod bindings;
pub mod bots;
pub mod budgets;
pub mod console;
pub mod credentials;
pub mod demo;
pub mod events;
pub mod export;
pub mod gates;
pub mod import;
pub mod keys;
pub mod list;
pub mod me;
pub mod oauth;
pub mod oauth_providers;
pub mod packages;
pub mod patch;
pub mod pins;
pub mod platform;
pub mod plugins;
pub mod registry;
pub mod resource_types;
pub mod resources;
pub mod roles;
pub mod runs;
pub mod sandbox_files;
pub mod sandboxes;
pub mod schedules;
pub mod search;
pub mod sessions;
pub mod subscriptions;
pub mod tasks;
pub mod tools;
pub mod trust;
pub mod wakes;
pub mod webhooks;
pub mod workflows;
pub mod workspaces;
