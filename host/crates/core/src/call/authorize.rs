//! Third stage: the Guardian judges the call and issues a permit.

use monstrum_guardian::{Authorized, CallFacts, Permit, authorize};
use monstrum_types::{Effort, ObjectParams};

use crate::call::resolve::ResolvedCall;
use crate::call::session::Session;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::{NotPermitted, approval_required, refuse};

/// Requests a permit for this call with these parameters. Returns the permit or the refusal of the Guardian. A call for
/// which gates ask is refused.
pub fn permit(
    call: &IncomingCall,
    session: &Session,
    resolved: &ResolvedCall,
    params: ObjectParams,
    effort: &Effort,
) -> Result<Permit, NotPermitted> {
    let facts = CallFacts {
        request_id: call.request_id(),
        workspace: session.bot.row.workspace_id,
        bot: Some(session.bot.row.id),
        binding: Some(resolved.binding.row.id),
        resource: Some(resolved.binding.row.resource_id),
        plugin: resolved.plugin.name.clone(),
        plugin_digest: resolved.plugin.digest().cloned(),
        params,
    };
    match resolved.with_subject(|subject| authorize(subject, facts, effort))? {
        Ok(Authorized::Permitted(permit)) => Ok(permit),
        Ok(Authorized::Asks(pending)) => Err(approval_required(pending.asked()).into()),
        Err(denial) => Err(refuse(call.language().of_denial(denial, &resolved.plugin.locales)).into()),
    }
}
