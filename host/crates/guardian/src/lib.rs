//! The policy decisions: which bot may call which tool with which parameters.
//!
//! One function, [`decide()`], decides for the tool list, the call and the access check, so that their results always
//! agree. Only this crate creates a [`Permit`], which contains the checked parameters. This crate performs no I/O.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod change;
mod consent;
pub mod decide;
mod denial;
pub mod gates;
pub mod matching;
pub mod permit;
pub mod policy;
mod values;

pub use change::{ChangeAction, ChangeHolder, RuleChange, changes_within};
pub use consent::{CallContext, Consent};
pub use decide::{Decision, Question, Subject, VALUE_BYTES_MAX, decide, decide_within};
pub use denial::{Denial, Violation};
pub use gates::{Approver, Asked, AskingGate, Gate, GateAction, Gates, NO_GATES, may_ask};
pub use matching::{
    Glob, PathPattern, PatternList, PatternSet, compiled_bytes_max, escape_glob, match_any, match_any_path, match_glob,
    match_path,
};
pub use permit::{Authorized, CallFacts, PendingPermit, Permit, authorize, authorize_check, authorize_function};
pub use policy::{
    BindingRules, Delegation, DelegationRules, DimensionModes, Grant, GrantSource, RoleRules, ScopeConstraints,
    SetSource, ToolRules,
};
