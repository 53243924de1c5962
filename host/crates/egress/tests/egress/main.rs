//! Tests of egress with real servers on the loopback interface.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod addresses;
mod benign;
mod chains;
mod credentials;
mod echoes;
mod encodings;
mod network;
mod order;
mod redaction;
mod redirects;
mod requests;
mod responses;
mod streams;
mod support;
mod transport;
