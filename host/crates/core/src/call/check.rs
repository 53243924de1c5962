//! Checks of a call in addition to the decision of the Guardian: whether the parameters match the schema of the tool,
//! and whether the parent call may make the call. This module also predicts the outcome of a call without running it.

use monstrum_egress::Redactor;
use monstrum_guardian::{Asked, AskingGate, ChangeHolder, Decision, Denial, Question, RuleChange, changes_within};
use monstrum_manifest::json_depth;
use monstrum_types::{BindingId, CallOutcome, Code, Effort, InputError, ObjectParams, Overrun, Params, RoleId};
use serde_json::Value;

use crate::call::resolve::{RESOURCE_PARAM, ResolvedCall, Unresolved, find};
use crate::call::session::Session;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::lineage::{CallDigest, Lineage, MadeBy};
use crate::call_types::refusal::{APPROVAL_REQUIRED, NotPermitted, Refusal, refuse};
use crate::checks::pay_for;
use crate::plugins::{Tool, built_in};

/// The predicted outcome of a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    pub allowed: bool,
    /// The gates that ask. If the list is not empty, the call runs only after a person has approved it.
    pub gates: Vec<AskingGate>,
    /// The message that the caller would receive.
    pub message: Option<String>,
    pub rule: Option<String>,
    /// The reason for the decision. It is written for administrators, who can change the rules.
    pub reason: Option<String>,
    pub smallest_change: Option<String>,
    /// The changes of rules that, together, would allow the call. Empty if no such changes are known.
    pub changes: Vec<Suggestion>,
}

/// A change of a rule, and the binding whose rules it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub change: RuleChange,
    pub binding: BindingId,
    /// The role, if the change is made to it.
    pub role: Option<RoleId>,
}

/// Predicts the outcome of a call with the functions that also judge real calls.
pub fn predict(session: &Session, call: &IncomingCall, effort: &Effort) -> Result<Prediction, Overrun> {
    let resolved = match find(session, call, effort) {
        Ok(resolved) => resolved,
        Err(Unresolved::Denied(denial, found)) => {
            let Some(resolved) = found else { return Ok(Prediction::denied(*denial)) };
            let changes = match checked_params(resolved.tool(), call, effort) {
                Ok(params) => suggestions(&resolved, &params, effort)?,
                Err(NotPermitted::Refused(_)) => Vec::new(),
                Err(NotPermitted::Overrun(overrun)) => return Err(overrun),
            };
            let redactor = resolved.binding.resource.credential_source().redactor();
            return Ok(Prediction { changes, ..Prediction::denied(*denial) }.redacted(&redactor));
        }
        Err(Unresolved::Input(outcome, _)) => return Ok(Prediction::unfit(*outcome)),
        Err(Unresolved::Overrun(overrun)) => return Err(overrun),
    };
    let verdict = match checked_params(resolved.tool(), call, effort) {
        Err(NotPermitted::Refused(outcome)) => Prediction::unfit(*outcome),
        Err(NotPermitted::Overrun(overrun)) => return Err(overrun),
        Ok(params) => match resolved.decide(Question::Call(params.members()), effort)? {
            Decision::Allow => Prediction { allowed: true, ..Prediction::default() },
            Decision::Ask(asked) => Prediction::asks(asked),
            Decision::Deny(denial) => {
                let changes = suggestions(&resolved, &params, effort)?;
                let denial = call.language().of_denial(denial, &resolved.plugin.locales);
                Prediction { changes, ..Prediction::denied(denial) }
            }
        },
    };
    Ok(verdict.redacted(&resolved.binding.resource.credential_source().redactor()))
}

/// Returns the changes that would allow the call of a tool that was found.
fn suggestions(resolved: &ResolvedCall, params: &ObjectParams, effort: &Effort) -> Result<Vec<Suggestion>, Overrun> {
    let row = &resolved.binding.row;
    let changes = resolved.with_subject(|subject| changes_within(subject, params.members(), effort))?;
    let suggestion = |change: RuleChange| {
        let role = row.role_id.filter(|_| change.holder == ChangeHolder::Role);
        Suggestion { change, binding: row.id, role }
    };
    Ok(changes.into_iter().map(suggestion).collect())
}

impl Prediction {
    fn asks(asked: Asked) -> Prediction {
        let (message, rule) = (Some(APPROVAL_REQUIRED.to_owned()), Some(asked.rule()));
        Prediction { message, rule, gates: asked.gates, ..Prediction::default() }
    }

    fn denied(denial: Denial) -> Prediction {
        Prediction {
            allowed: false,
            gates: Vec::new(),
            message: Some(denial.message),
            rule: Some(denial.rule),
            reason: Some(denial.reason),
            smallest_change: Some(denial.smallest_change),
            changes: Vec::new(),
        }
    }

    /// Removes the secrets of the resource, which a caller may have put into the parameters.
    fn redacted(self, redactor: &Redactor) -> Prediction {
        let redact = |text: Option<String>| text.map(|text| redactor.redact_text(text));
        // A change with a secret in its entry is not suggested: without the secret, it would not allow the call.
        let is_clean = |entry: &String| redactor.redact_text(entry.clone()) == *entry;
        let is_shown = self.changes.iter().all(|suggestion| is_clean(&suggestion.change.entry));
        let changes = if is_shown { self.changes } else { Vec::new() };
        Prediction {
            message: redact(self.message),
            reason: redact(self.reason),
            smallest_change: redact(self.smallest_change),
            changes,
            ..self
        }
    }

    /// Returns the prediction for a call whose tool the bot may use but whose parameters are invalid.
    fn unfit(outcome: CallOutcome) -> Prediction {
        let reason = Some("the parameters do not satisfy the tool's `input_schema`".to_owned());
        Prediction { message: outcome.message, rule: outcome.rule, reason, ..Prediction::default() }
    }
}

/// The maximum size of the parameters as JSON text, on every interface.
pub const PARAMS_BYTES_MAX: usize = 1 << 20;
/// The maximum nesting depth of parameters, on every interface. Results and manifests have the same limit.
pub const PARAMS_DEPTH_MAX: usize = 64;

/// Rejects parameters that exceed [`PARAMS_BYTES_MAX`] or [`PARAMS_DEPTH_MAX`].
pub fn check_size(params: &Params) -> Result<(), Vec<InputError>> {
    let text = params.text().as_bytes();
    let bytes = text.len();
    let message = if bytes > PARAMS_BYTES_MAX {
        format!("the parameters have {bytes} bytes; at most {PARAMS_BYTES_MAX} are allowed")
    } else if json_depth(text) > PARAMS_DEPTH_MAX {
        format!("nested more than {PARAMS_DEPTH_MAX} levels deep")
    } else {
        return Ok(());
    };
    Err(vec![InputError { path: String::new(), message }])
}

/// Validates parameters. Returns the validation errors, or the parameters with defaults filled in. The returned
/// parameters do not include the name of the resource.
pub fn check_params(
    tool: &Tool,
    params: &Params,
    effort: &Effort,
) -> Result<Result<ObjectParams, Vec<InputError>>, Overrun> {
    pay_for(params.value(), effort)?;
    if let Err(faults) = check_size(params) {
        return Ok(Err(faults));
    }
    match params.value() {
        Value::Object(members) if members.contains_key(RESOURCE_PARAM) => {
            let mut members = members.clone();
            members.shift_remove(RESOURCE_PARAM);
            tool.input.check(&Params::new(Value::Object(members)), effort)
        }
        _ => tool.input.check(params, effort),
    }
}

/// Validates the parameters of a call against the schema of `tool`, and fills in its defaults.
pub fn checked_params(tool: &Tool, call: &IncomingCall, effort: &Effort) -> Result<ObjectParams, NotPermitted> {
    check_params(tool, call.params(), effort)?.map_err(|faults| NotPermitted::invalid(&faults))
}

/// The maximum depth of child calls.
pub const DEPTH_MAX: u8 = 8;

/// Checks that the caller (a plugin, a bot or the import `sandbox`) may call this tool. Returns an error if the depth
/// exceeds [`DEPTH_MAX`]. For a tool that the caller may not call, returns the same refusal as for an unknown tool.
pub fn check_lineage(
    lineage: &Lineage,
    session: &Session,
    call: &IncomingCall,
    effort: &Effort,
) -> Result<(), NotPermitted> {
    if lineage.depth > DEPTH_MAX {
        return Err(limit(format!("the call is nested more than {DEPTH_MAX} levels deep")).into());
    }
    match &lineage.made_by {
        MadeBy::Bot => {}
        MadeBy::SandboxImport => {
            if !built_in::SANDBOX_TOOLS.contains(&call.tool()) {
                return Err(hidden(
                    call,
                    "executor.capabilities",
                    "the import `sandbox` allows only the sandbox tools",
                )
                .into());
            }
        }
        MadeBy::Plugin { binding, calls } => {
            if !calls.matches_within(call.tool(), effort)? {
                let reason = "the calling plugin's manifest does not name the tool";
                return Err(hidden(call, "executor.calls", reason).into());
            }
            // The current policy applies, not the policy that was in force when the parent call started.
            let caller = session.bindings().find(|present| present.row.id == *binding);
            let is_allowed = caller.map(|caller| caller.allows_call(call.tool(), effort)).transpose()?;
            if is_allowed != Some(true) {
                let reason = "the binding of the calling plugin does not name the tool";
                return Err(hidden(call, "binding.allow_calls", reason).into());
            }
        }
    }
    Ok(())
}

/// Refuses a call that is identical to one of its ancestors.
pub fn check_new(lineage: &Lineage, digest: CallDigest) -> Result<(), Refusal> {
    if lineage.ancestors.contains(&digest) {
        return Err(limit("the call is identical to one of its ancestors".to_owned()));
    }
    Ok(())
}

fn limit(message: String) -> Refusal {
    Box::new(CallOutcome::error(Code::Limit, message).by_rule("nesting"))
}

fn hidden(call: &IncomingCall, rule: &str, reason: &str) -> Refusal {
    let (rule, reason) = (rule.to_owned(), reason.to_owned());
    refuse(Denial { rule, reason, ..Denial::unknown_tool(call.tool()) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call_types::refusal::invalid_params;

    #[test]
    fn parameters_have_one_limit_of_depth() {
        let nested = |levels: usize| Params::new((0..levels).fold(json!(1), |inner, _| json!([inner])));
        assert_eq!(check_size(&nested(64)), Ok(()));
        let faults = check_size(&nested(65)).unwrap_err();
        assert_eq!(invalid_params(&faults).message.unwrap(), "Invalid parameters: nested more than 64 levels deep");
    }
}
