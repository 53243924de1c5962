//! The language of workflows: documents, expressions, and the plan of a run.
//!
//! This crate is pure: it performs no file or network I/O, has no database, and does not read the clock.

#![forbid(unsafe_code)]

mod expr;
mod fault;
mod model;
mod node;
mod parse;
mod place;
pub use expr::*;
pub use fault::{FAULTS_MAX, Fault};
pub use model::*;
pub use place::fault_at;
mod validate;
pub use validate::{Checked, KnownTool, check};
mod plan;
pub use plan::plan;
pub use plan::types::*;
