//! Every line of wasmtime: the engine, the limits of a call, the cache of compiled components, what a component may
//! import and what it finds behind its imports.
//!
//! A [`Runtime`] turns the bytes of a component into a [`Component`], which then runs one call at a time in an instance
//! of its own. Whatever a guest does, loops, grows, traps or floods, ends its own call and nothing else. What leaves a
//! guest goes through [`HostCalls`]; this crate itself opens no connection and reads no file but its cache.

#![deny(unsafe_code)]

mod bindings;
mod cache;
mod call;
mod compile;
mod component;
mod engine;
mod error;
mod host;
mod imports;
mod limits;
mod log;
mod result;
mod store;
#[cfg(test)]
mod tests;
mod wasi_http;

pub use bindings::{DelegateConstraints, ExecuteRequest};
pub use call::CallEnd;
pub use component::Component;
pub use engine::{Runtime, RuntimeOptions};
pub use error::{LoadError, RuntimeError};
pub use host::{HOST_CALLS_MAX, HTTP_CALLS_MAX, HostCalls};
pub use imports::COMPONENT_BYTES_MAX;
pub use limits::{CallLimits, MEMORY_BYTES_MAX};
pub use log::{LOG_LINE_BYTES_MAX, LOG_LINES_MAX, LogLevel, LogLine, LogSource};
pub use result::{ExecuteResult, RESULT_BYTES_MAX, RESULT_DEPTH_MAX, Stop, TEXT_BYTES_MAX};
