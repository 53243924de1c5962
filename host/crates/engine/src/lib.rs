//! Turns: which host runs what, when, and again after a crash.
//!
//! A *key* names an object that takes turns, such as `task/{id}`. A *wake* is the row that says that a key has work. It is
//! written in the transaction of the change that makes the work necessary (`monstrum_store::NewWake`), and then the
//! engine of the process is told about it ([`Engine::signal`]). The engine claims wakes that are due and gives each to the
//! [`Handler`] of its kind, which runs one *turn*. At any time at most one turn of a key runs; every wake leads to a turn
//! that begins after the wake was written; a turn that fails is repeated later. There is no order between keys.
//!
//! This crate has no rights, does no work of its own, and knows only the crates types and store. Handlers are in the
//! crates above.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod handler;
pub mod limits;
mod local;
mod schedule;

pub use local::{Local, LocalOptions, Observer, TurnResult};

pub use handler::{Engine, Handler, Lease, LeaseStart, Turn, TurnError, TurnOutcome};
