//! Tests of requests, of the reader and of the parser of event streams.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod cases;
mod errors;
mod hostile;
mod recordings;
mod requests;
mod sse;
mod support;
