//! Why a call does not run.

use monstrum_guardian::Denial;
use monstrum_types::{CallOutcome, Code, InputError, Overrun};

/// The outcome of a call that a stage has refused. Boxed, because it is rare and large.
pub type Refusal = Box<CallOutcome>;

/// Why a stage has not let a call through.
#[derive(Debug)]
pub enum NotPermitted {
    Refused(Refusal),
    /// The check needs more work than it may take where it runs.
    Overrun(Overrun),
}

impl NotPermitted {
    /// Parameters that do not match their schema.
    pub fn invalid(errors: &[InputError]) -> NotPermitted {
        NotPermitted::Refused(Box::new(invalid_params(errors)))
    }
}

impl From<Refusal> for NotPermitted {
    fn from(refusal: Refusal) -> Self {
        NotPermitted::Refused(refusal)
    }
}

impl From<Overrun> for NotPermitted {
    fn from(overrun: Overrun) -> Self {
        NotPermitted::Overrun(overrun)
    }
}

/// A denial by the Guardian as the outcome of the call.
pub fn refuse(denial: Denial) -> Refusal {
    Box::new(CallOutcome::failure(denial.status, denial.code(), denial.message).by_rule(denial.rule))
}

/// The outcome for parameters that do not match their schema: each error with its JSON pointer.
pub fn invalid_params(errors: &[InputError]) -> CallOutcome {
    let listed: Vec<String> = errors
        .iter()
        .map(|error| match error.path.as_str() {
            "" => error.message.clone(),
            path => format!("{path}: {}", error.message),
        })
        .collect();
    CallOutcome::error(Code::InvalidParams, format!("Invalid parameters: {}", listed.join("; "))).by_rule("input")
}
