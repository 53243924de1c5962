//! The Monstrum host: plugins in, governed tool calls out. ARCHITECTURE.md shows the way of a call through these modules.

#![forbid(unsafe_code)]

pub mod app;
pub mod auditor;
pub mod authorize;
pub mod beside;
pub mod boot;
pub mod call;
pub mod checks;
pub mod cli;
pub mod config;
pub mod credentials;
pub mod executor;
pub mod fair_queue;
pub mod gateway;
pub mod lanes;
pub mod language;
pub mod ledger;
pub mod meters;
pub mod oauth;
pub mod plugins;
pub mod policy;
pub mod sandboxes;
pub mod session;
pub mod telemetry;
pub mod tools;
