//! Third stage: asks the Guardian for a permit.

use monstrum_guardian::{CallFacts, Denial, Permit, authorize};
use monstrum_types::{CallOutcome, Effort};
use serde_json::{Map, Value};

use crate::call::{IncomingCall, Refusal, Unjudged};
use crate::session::Session;
use crate::tools::ResolvedCall;

/// A permit for exactly this call with exactly these parameters, or the refusal.
pub fn permit(
    call: &IncomingCall,
    session: &Session,
    resolved: &ResolvedCall,
    params: Map<String, Value>,
    effort: &Effort,
) -> Result<Permit, Unjudged> {
    let facts = CallFacts {
        request_id: call.request_id,
        workspace: session.bot.row.workspace_id,
        bot: Some(session.bot.row.id),
        binding: Some(resolved.binding.row.id),
        resource: Some(resolved.binding.row.resource_id),
        plugin: resolved.plugin.name.clone(),
        plugin_digest: resolved.plugin.digest().cloned(),
        params,
    };
    let permitted = resolved.with_subject(|subject| authorize(subject, facts, effort))?;
    permitted.map_err(|denial| refuse(call.language.of_denial(denial, &resolved.plugin.locales)).into())
}

/// A denial as the end of a call.
pub fn refuse(denial: Denial) -> Refusal {
    Box::new(CallOutcome::failure(denial.status, denial.code(), denial.message).by_rule(denial.rule))
}
