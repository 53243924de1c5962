//! The integration tests, in one binary. They come in by the front door, the API and the command line of the real
//! server, and share nothing: every test has ports, folders and a database of its own.

#![forbid(unsafe_code)]

mod architecture;
mod call;
mod canary;
mod cli;
mod crash;
mod dependencies;
mod guides;
mod hostile;
mod http;
mod kit;
mod locked;
mod machines;
mod oauth;
mod packages;
mod postgres;
mod revocation;
mod rollback;
mod rows;
mod sandbox;
mod sandboxes;
mod stable;
mod tamper;
mod telemetry;
mod tenancy;
mod upgrade;
mod vault;
mod world;
