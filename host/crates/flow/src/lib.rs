//! The language of workflows: documents, expressions, and the plan of a run.
//!
//! This crate is pure: it performs no file or network I/O, has no database, and does not read the clock. [`check()`] reads a
//! definition and reports all its faults. [`plan()`] says what a run does next.

#![forbid(unsafe_code)]

mod called;
mod expr;
mod fault;
#[cfg(test)]
mod measure;
mod model;
mod node;
mod outline;
mod parse;
mod place;
mod plan;
mod validate;

pub use called::called_by;
pub use expr::*;
pub use fault::{FAULTS_MAX, Fault};
pub use model::*;
pub use node::DEFINITION_BYTES_MAX;
pub use outline::{BranchLabel, Outline, OutlinedBranch, OutlinedStep, outline};
pub use place::fault_at;
pub use plan::plan;
pub use plan::types::*;
pub use validate::{Checked, KnownTool, check};
