//! The operations of the API, with one file for each resource. All interfaces run the same operations. HTTP is the only
//! interface so far.
//!
//! An operation accepts the caller, whose right is part of its type ([`Admin`], [`Operator`], …), and an input. The
//! operation checks the input, records the change in the audit, makes the change, and brings it into force. The
//! interface shows the result.

pub mod access;
pub mod agents;
pub mod approvals;
pub mod attention;
pub mod audit;
pub mod audit_feed;
pub mod bindings;
pub mod bots;
pub mod budgets;
mod caller;
pub mod calls;
pub mod change;
pub mod console;
pub mod conversations;
pub mod credentials;
pub mod deliveries;
pub mod demo;
mod error;
pub mod events;
pub mod export;
mod gates;
pub mod import;
mod input;
pub mod keys;
mod list;
pub mod me;
pub mod narrow;
pub mod oauth;
pub mod oauth_discovery;
pub mod oauth_providers;
pub mod packages;
pub mod pins;
pub mod platform;
mod platform_events;
pub mod plugins;
mod precondition;
pub mod registry;
pub mod resource_types;
pub mod resources;
pub mod roles;
mod rules;
pub mod sandbox_files;
pub mod sandboxes;
mod scope_warnings;
pub mod search;
pub mod stats;
pub mod subscriptions;
pub mod tokens;
pub mod tools;
pub mod trust;
pub mod user_credentials;
pub mod wakes;
pub mod webhooks;
pub mod workspaces;

pub use caller::{Admin, AgentCaller, Caller, KeyHolder, Operator, Person, Reviewer, Root};
pub use error::OperationError;
pub use gates::check_task_labels;
pub use input::{InputErrors, json_pointer, shape_error};
pub use precondition::{Expected, Replacing};
