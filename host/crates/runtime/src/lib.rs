//! The only crate that uses wasmtime. The crate contains the engine, the limits of a call, the cache of compiled
//! components, and the check of a component's imports.
//!
//! A [`Runtime`] loads the bytes of a component as a [`Component`], which runs each call in a fresh instance. A guest
//! that loops, exhausts memory, traps or floods its log ends only its own call. Guests access the outside only through
//! [`HostCalls`]. This crate opens no connections and reads no files except its cache.

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
pub use component::{Component, KnownComponent};
pub use engine::{Runtime, RuntimeOptions};
pub use error::{LoadError, RuntimeError};
pub use host::{HOST_CALLS_MAX, HTTP_CALLS_MAX, HostCalls};
pub use imports::COMPONENT_BYTES_MAX;
pub use limits::{CallLimits, MEMORY_BYTES_MAX};
pub use log::{LOG_LINE_BYTES_MAX, LOG_LINES_MAX, LogLevel, LogLine, LogSource};
pub use result::{ExecuteResult, RESULT_BYTES_MAX, RESULT_DEPTH_MAX, StopReason, TEXT_BYTES_MAX};
