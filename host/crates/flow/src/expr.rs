//! Expressions: CEL between `${{` and `}}`.
//!
//! The crate `cel` parses. The evaluator is ours, because an expression is hostile text: the crate's own evaluator has no
//! budget, copies values, and gives the members of a map in an order that differs between processes, while a plan must be
//! the same wherever it is made. Here every operation is charged before it runs, data is borrowed, and maps keep their
//! order. There is no clock, no randomness and no I/O.

mod compile;
mod eval;
mod functions;
mod meter;
mod operators;
mod scope;
mod template;
mod value;

pub use compile::{EXPRESSION_BYTES_MAX, EXPRESSION_DEPTH_MAX, EXPRESSION_REFERENCES_MAX, reserved_words};
pub use compile::{Expression, StepField, StepUse};
pub(crate) use eval::time_ms;
pub(crate) use meter::{Budget, Meter};
pub use meter::{ITEMS_MAX, PLAN_STEPS_MAX, RESULT_BYTES_MAX, STEPS_MAX, VALUE_BYTES_MAX};
pub use scope::{Scope, StepView};
pub(crate) use template::{Known, json_bytes};
pub use template::{Piece, Template};

/// The error of an expression. The step that contains the expression fails with the code `expression`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("in `{source_text}`: {message}")]
pub struct ExpressionError {
    /// The text of the expression.
    pub source_text: String,
    /// What failed.
    pub message: String,
}

#[cfg(test)]
mod tests;
