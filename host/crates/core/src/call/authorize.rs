//! Third stage: the Guardian judges the call and issues a permit.
//!
//! If gates ask for the call, the stage looks for a consent among the grants of the snapshot. The rows of the snapshot
//! have been verified, so a row of the database that was changed by another program is not a consent.

use monstrum_guardian::{Authorized, CallContext, CallFacts, PendingPermit, Permit, authorize};
use monstrum_types::{Digest, Effort, ObjectParams, Overrun};

use crate::approvals::{content_digest, definition};
use crate::call::resolve::ResolvedCall;
use crate::call::session::Session;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::links::Link;
use crate::call_types::refusal::{NotPermitted, refuse};
use crate::checks::pay_for_object;

/// The number of steps charged for each byte of attached content, which is hashed once.
const CONTENT_BYTE_STEPS: u64 = 4;

/// The result of judging a call that no rule denies.
#[expect(clippy::large_enum_variant, reason = "most calls are permitted, and a box would cost each an allocation")]
pub enum Judged {
    Permitted(Permit),
    /// Gates ask for the call, and no person has approved it yet.
    Asks(Box<AskingPermit>),
}

/// A permit that waits for a person, and the digests under which the call is approved.
pub struct AskingPermit {
    pub pending: Box<PendingPermit>,
    /// The digest that identifies the call.
    pub digest: Digest,
    /// The digest of what the call runs.
    pub definition: Digest,
}

/// Requests a permit for this call with these parameters. Returns the permit, the permit that waits for a person, or the
/// refusal of the Guardian.
pub fn permit(
    call: &IncomingCall,
    session: &Session,
    resolved: &ResolvedCall,
    params: ObjectParams,
    effort: &Effort,
) -> Result<Judged, NotPermitted> {
    let workspace = session.bot.row.workspace_id;
    let facts = CallFacts {
        request_id: call.request_id(),
        workspace,
        bot: Some(session.bot.row.id),
        binding: Some(resolved.binding.row.id),
        resource: Some(resolved.binding.row.resource_id),
        plugin: resolved.plugin.name.clone(),
        plugin_digest: resolved.plugin.digest().cloned(),
        params,
    };
    let pending = match resolved.with_subject(|subject| authorize(subject, facts, effort))? {
        Ok(Authorized::Permitted(permit)) => return Ok(Judged::Permitted(permit)),
        Ok(Authorized::Asks(pending)) => pending,
        Err(denial) => return Err(refuse(call.language().of_denial(denial, &resolved.plugin.locales)).into()),
    };
    let context = context(call, resolved, effort)?;
    pay_for_object(pending.call().params.members(), effort)?;
    let digest = pending.digest(&context);
    let pending = match session.snapshot.grants().consent(workspace, &digest, session.now) {
        None => pending,
        Some(consent) => match pending.with_consent(&consent, &context) {
            Ok(permit) => return Ok(Judged::Permitted(permit)),
            Err(pending) => pending,
        },
    };
    Ok(Judged::Asks(Box::new(AskingPermit { pending, digest, definition: context.definition })))
}

/// Returns the properties of the call that a person approves, in addition to its facts.
fn context<'a>(call: &'a IncomingCall, resolved: &ResolvedCall, effort: &Effort) -> Result<CallContext<'a>, Overrun> {
    let delegations = call.links().iter().filter_map(Link::delegation);
    let content = call.attachments().content.as_deref();
    effort.spend(CONTENT_BYTE_STEPS.saturating_mul(content.map_or(0, <[u8]>::len) as u64))?;
    Ok(CallContext {
        user: call.user(),
        links: delegations.map(|link| (link.binding, link.from, link.to)).collect(),
        attached: content.map(content_digest),
        definition: definition(resolved.tool(), &resolved.binding.resource, effort)?,
    })
}
