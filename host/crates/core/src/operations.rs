//! What can be done from outside, one file a resource. Every interface runs these operations: HTTP today, others later.
//!
//! An operation takes the caller, whose right is part of its type ([`Admin`], [`Operator`], …), and an input. It checks the
//! input, records the change in the audit, makes it, and brings it into force. Its result is what the interface shows.

pub mod audit;
pub mod bindings;
pub mod bots;
mod caller;
pub mod calls;
mod change;
pub mod conversations;
pub mod credentials;
mod error;
mod input;
pub mod keys;
mod list;
pub mod oauth;
pub mod oauth_providers;
pub mod packages;
pub mod platform;
pub mod plugins;
pub mod registry;
pub mod resource_types;
pub mod resources;
pub mod roles;
mod rules;
pub mod sandbox_files;
pub mod sandboxes;
mod scope_warnings;
pub mod tools;
pub mod trust;
pub mod workspaces;

pub use caller::{Admin, Caller, Operator, Root};
pub use error::OperationError;
pub use input::InputErrors;
