//! The reasons why a call does not run.

use monstrum_guardian::{Asked, Denial};
use monstrum_types::{CallOutcome, Code, InputError, Overrun, Status};

/// The outcome of a call that a stage has refused. The outcome is boxed, because it is rare and large.
pub type Refusal = Box<CallOutcome>;

/// The reason why a stage has stopped a call.
#[derive(Debug)]
pub enum NotPermitted {
    Refused(Refusal),
    /// The check exceeded the limit of steps for the thread on which it ran.
    Overrun(Overrun),
}

impl NotPermitted {
    /// Creates the refusal for parameters that do not match their schema.
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

/// Converts a denial by the Guardian into the outcome of the call.
pub fn refuse(denial: Denial) -> Refusal {
    Box::new(CallOutcome::failure(denial.status, denial.code(), denial.message).by_rule(denial.rule))
}

/// The message to a caller whose call a person must approve.
pub const APPROVAL_REQUIRED: &str = "a person must approve this call";

/// Returns the outcome of a call for which gates ask.
pub fn approval_required(asked: &Asked) -> Refusal {
    let outcome = CallOutcome::failure(Status::ApprovalRequired, Code::Approval, APPROVAL_REQUIRED);
    Box::new(outcome.by_rule(asked.rule()))
}

/// Returns the outcome for parameters that do not match their schema. The message lists each error with its JSON
/// pointer.
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
