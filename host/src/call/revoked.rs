//! What was allowed when a call began may be taken back while it runs. Each new snapshot is asked again, and a call that it
//! would refuse ends there and then, with all calls below it.
//!
//! Asked is about the key, the bot, the binding, the roles and scopes and every link of a delegation. The version of the
//! plugin stays the one that runs: calls in flight finish on it.

use std::sync::Arc;
use std::time::Duration;

use monstrum_guardian::{Decision, Denial, Question};
use monstrum_types::{CallOutcome, Clock, Code, Effort};

use crate::authorize::refuse;
use crate::call::{Calls, IncomingCall, Refusal, Unjudged};
use crate::checks::{Unchecked, in_place};
use crate::policy::Snapshot;
use crate::session::Session;
use crate::tools::ResolvedCall;

/// Waits until what permitted the call by `judged_by` no longer does, and says so in the words of a refusal. Never ends
/// otherwise. Without a bot only the key is asked about.
pub(super) async fn revoked(
    calls: &Arc<Calls>,
    call: &Arc<IncomingCall>,
    resolved: Option<&ResolvedCall>,
    judged_by: &Arc<Snapshot>,
) -> Refusal {
    let clock = calls.clock.as_ref();
    // Before the snapshot is looked at, so that no change falls between the two.
    let mut renewals = calls.policy.renewals();
    let mut snapshot = Arc::clone(judged_by);
    let mut is_judged = true;
    loop {
        let present = calls.policy.load();
        is_judged &= Arc::ptr_eq(&snapshot, &present);
        snapshot = present;
        if !call.holds_its_key(&snapshot) {
            return of_key(call);
        }
        if let Some(resolved) = resolved.filter(|_| !is_judged) {
            let mut judged = std::pin::pin!(judged(calls, &snapshot, call, resolved));
            // It may wait for its turn, and the key is watched meanwhile.
            let judged = loop {
                tokio::select! {
                    judged = &mut judged => break judged,
                    Ok(()) = renewals.changed() => {
                        if !call.holds_its_key(&calls.policy.load()) {
                            return of_key(call);
                        }
                    }
                }
            };
            if let Err(refusal) = judged {
                return refusal;
            }
            if !Arc::ptr_eq(&snapshot, &calls.policy.load()) {
                is_judged = false;
                continue;
            }
        }
        is_judged = tokio::select! {
            renewed = renewals.changed() => {
                if renewed.is_err() {
                    // The policy outlives its calls.
                    std::future::pending::<()>().await;
                }
                true
            }
            () = expiry(&snapshot, clock, call, resolved) => false,
        };
    }
}

/// The decision once more, by `snapshot`: in place if it needs little. Where it comes to no end, the call ends, since
/// nothing permits it any more.
async fn judged(
    calls: &Arc<Calls>,
    snapshot: &Arc<Snapshot>,
    call: &Arc<IncomingCall>,
    resolved: &ResolvedCall,
) -> Result<(), Refusal> {
    let judged = judge(snapshot, calls.clock.as_ref(), call, resolved, &in_place());
    match judged {
        Ok(()) => return Ok(()),
        Err(Unjudged::Refused(refusal)) => return Err(refusal),
        Err(Unjudged::Overrun(_)) => {}
    }
    let (snapshot, clock, asker) = (Arc::clone(snapshot), Arc::clone(&calls.clock), calls.asker(call));
    let request_id = call.request_id;
    let (call, resolved) = (Arc::clone(call), resolved.clone());
    let judged =
        calls.checks.beside(asker, move |effort| match judge(&snapshot, clock.as_ref(), &call, &resolved, effort) {
            Ok(()) => Ok(Ok(())),
            Err(Unjudged::Refused(refusal)) => Ok(Err(refusal)),
            Err(Unjudged::Overrun(overrun)) => Err(overrun),
        });
    judged.await.map_err(|unchecked: Unchecked| {
        tracing::warn!(call.id = %request_id, ?unchecked, "a running call could not be checked again");
        let message =
            "the permissions changed while the call ran, and it could not be checked again; it may have had effects";
        Box::new(CallOutcome::error(Code::Interrupted, message).by_rule("revoked.check"))
    })?
}

fn judge(
    snapshot: &Arc<Snapshot>,
    clock: &dyn Clock,
    call: &IncomingCall,
    resolved: &ResolvedCall,
    effort: &Effort,
) -> Result<(), Unjudged> {
    let session = Session::of(Arc::clone(snapshot), clock.now(), call)?;
    if let Some(lineage) = &call.under {
        lineage.check(&session, call, effort)?;
    }
    let row = &resolved.binding.row;
    let Some(binding) = session.bot.binding(row.id, session.now) else {
        // Its plugin is not there at the moment, which is no change of what is permitted.
        if session.bot.dormant.contains(row) && resolved.binding.is_active(session.now) {
            return Ok(());
        }
        return Err(taken_back(call, "binding", "the binding is gone, disabled or expired").into());
    };
    if Arc::ptr_eq(binding, &resolved.binding) && resolved.is_under(&session.delegation) {
        // Nothing of what judged the call has changed.
        return Ok(());
    }
    let resolved = resolved.by(binding, &session);
    let params = resolved.checked_params(call, effort)?;
    match resolved.decide(Question::Call(&params), effort)? {
        Decision::Allow => Ok(()),
        Decision::Deny(denial) => Err(refuse(call.language.of_denial(denial, &resolved.plugin.locales)).into()),
    }
}

/// Ends when the next binding on which the call stands does. Without one that expires, never.
async fn expiry(snapshot: &Snapshot, clock: &dyn Clock, call: &IncomingCall, resolved: Option<&ResolvedCall>) {
    let links = call.under.as_ref().map_or(&[][..], |lineage| &lineage.links);
    let now = clock.now();
    let of_links = links
        .iter()
        .filter_map(|link| snapshot.bot(call.workspace, link.from)?.binding(link.binding, now)?.row.expires_at);
    let bot = call.bot.and_then(|bot| snapshot.bot(call.workspace, bot));
    let own = bot.zip(resolved).and_then(|(bot, resolved)| bot.binding(resolved.binding.row.id, now));
    match own.and_then(|binding| binding.row.expires_at).into_iter().chain(of_links).min() {
        Some(end) => {
            let left = u64::try_from(end.0.saturating_sub(now.0)).unwrap_or_default();
            // At least a moment, so that clocks that disagree do not make this a busy loop.
            tokio::time::sleep(Duration::from_millis(left.max(1))).await;
        }
        None => std::future::pending().await,
    }
}

/// The refusal of a call whose key is gone.
pub(super) fn of_key(call: &IncomingCall) -> Refusal {
    taken_back(call, "key", "the key under which the call came is gone")
}

fn taken_back(call: &IncomingCall, what: &str, reason: &str) -> Refusal {
    let (rule, reason) = (format!("revoked.{what}"), reason.to_owned());
    refuse(Denial { rule, reason, ..Denial::unknown_tool(&call.tool) })
}
