//! The pages, with one file for each noun.

pub(super) mod activity;
pub(super) mod approvals;
pub(super) mod bind;
pub(super) mod bot;
pub(super) mod bots;
pub(super) mod deletion;
pub(super) mod error;
pub(super) mod home;
pub(super) mod login;
pub(super) mod resources;
pub(super) mod stats;
pub(super) mod try_tool;
