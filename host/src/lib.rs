//! The Monstrum server and command line, on top of `monstrum-core`.

#![forbid(unsafe_code)]

pub mod boot;
pub mod cli;
pub mod config;
pub mod gateway;
pub mod telemetry;
