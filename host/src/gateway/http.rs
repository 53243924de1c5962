//! Code that all handlers share: reading requests, the common format of errors, and the API description.

pub(super) mod access;
pub(super) mod answer;
pub(super) mod docs;
pub(super) mod events;
pub(super) mod extract;
pub(super) mod headers;
pub(super) mod idempotency;
pub(super) mod language;
pub(super) mod pace;
pub(super) mod problem;
pub(super) mod queries;
pub(super) mod state;
pub(super) mod streams;
pub(super) mod versions;
