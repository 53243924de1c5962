//! What all handlers share: requests in, one form of errors out, and the API description.

pub(super) mod docs;
pub(super) mod extract;
pub(super) mod idempotency;
pub(super) mod language;
pub(super) mod pace;
pub(super) mod problem;
pub(super) mod queries;
pub(super) mod state;
