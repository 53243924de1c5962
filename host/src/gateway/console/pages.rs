//! The pages, with one file for each noun.

pub(super) mod activity;
pub(super) mod approvals;
pub(super) mod bind;
pub(super) mod bot;
pub(super) mod bots;
pub(super) mod changes;
pub(super) mod conversations;
pub(super) mod credentials;
pub(super) mod deletion;
pub(super) mod error;
pub(super) mod files;
pub(super) mod home;
pub(super) mod keys;
pub(super) mod live;
pub(super) mod login;
pub(super) mod overview;
pub(super) mod pins;
pub(super) mod plugins;
pub(super) mod resources;
pub(super) mod roles;
pub(super) mod search;
pub(super) mod stats;
pub(super) mod try_tool;
