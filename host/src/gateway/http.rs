//! What all handlers share: requests in, one form of errors out, and the API description.

pub mod docs;
pub mod extract;
pub mod idempotency;
pub mod language;
pub mod pace;
pub mod problem;
pub mod queries;
pub mod state;
