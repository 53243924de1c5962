//! Revocation: a running call ends when the policy no longer permits it, and its child calls end with it.
//!
//! Each new policy snapshot is compared with the snapshot that permitted the call: the key, the bot, the binding, the
//! roles and scopes, and every delegation. The version of the plugin is not compared, because a running call keeps the
//! version with which it started.

use std::sync::Arc;
use std::time::Duration;

use monstrum_guardian::{Decision, Denial, Question};
use monstrum_types::{CallOutcome, Clock, Code, Effort, UtcMillis};

use crate::call::check::{check_lineage, checked_params};
use crate::call::resolve::ResolvedCall;
use crate::call::session::{Session, links_expire_at};
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::{NotPermitted, Refusal, refuse};
use crate::checks::{Asker, Checks, Unchecked, in_place};
use crate::policy::{Policy, Snapshot};

/// The parts of the pipeline that are needed to judge a running call again.
#[derive(Clone)]
pub(super) struct Judges {
    pub policy: Arc<Policy>,
    pub checks: Arc<Checks>,
    pub clock: Arc<dyn Clock>,
    /// The time limit of one check. Each check has the full time limit, because a call may run longer than this limit.
    pub longest_check: Duration,
    /// Whether a person has approved the call, so that it continues although gates ask.
    pub is_approved: bool,
}

/// Waits until the policy no longer permits the call, and returns the refusal. The function never returns while the
/// call is permitted. `judged_by` is the snapshot that permitted the call. For a call without a bot, the function
/// watches only the key and the access token.
pub(super) async fn revoked(
    judges: &Judges,
    call: &Arc<IncomingCall>,
    resolved: Option<&ResolvedCall>,
    judged_by: &Arc<Snapshot>,
) -> Refusal {
    let clock = judges.clock.as_ref();
    // The subscription precedes the loading of the snapshot, so that no change is missed.
    let mut renewals = judges.policy.renewals();
    let mut snapshot = Arc::clone(judged_by);
    let mut is_judged = true;
    loop {
        let present = judges.policy.load();
        is_judged &= Arc::ptr_eq(&snapshot, &present);
        snapshot = present;
        if !is_authentic(call, &snapshot, clock.now()) {
            return caller_revoked(call);
        }
        if let Some(resolved) = resolved.filter(|_| !is_judged) {
            let mut judged = std::pin::pin!(judged(judges, &snapshot, call, resolved));
            // The check may wait for a thread. This loop watches the key during the wait.
            let judged = loop {
                tokio::select! {
                    judged = &mut judged => break judged,
                    Ok(()) = renewals.changed() => {
                        if !is_authentic(call, &judges.policy.load(), clock.now()) {
                            return caller_revoked(call);
                        }
                    }
                }
            };
            if let Err(refusal) = judged {
                return refusal;
            }
            if !Arc::ptr_eq(&snapshot, &judges.policy.load()) {
                is_judged = false;
                continue;
            }
        }
        is_judged = tokio::select! {
            renewed = renewals.changed() => {
                if renewed.is_err() {
                    // This branch never runs, because the policy outlives its calls.
                    std::future::pending::<()>().await;
                }
                true
            }
            () = expiry(&snapshot, clock, call, resolved) => false,
        };
    }
}

/// Judges the call again by `snapshot`. A small check runs in place. If the check cannot be completed, returns a
/// refusal, because no current decision permits the call.
async fn judged(
    judges: &Judges,
    snapshot: &Arc<Snapshot>,
    call: &Arc<IncomingCall>,
    resolved: &ResolvedCall,
) -> Result<(), Refusal> {
    let is_approved = judges.is_approved;
    let judged = judge((snapshot, judges.clock.as_ref()), call, resolved, is_approved, &in_place());
    match judged {
        Ok(()) => return Ok(()),
        Err(NotPermitted::Refused(refusal)) => return Err(refusal),
        Err(NotPermitted::Overrun(_)) => {}
    }
    let asker = Asker::of(call, snapshot.share_of_host(call.workspace()), judges.longest_check);
    let (snapshot, clock) = (Arc::clone(snapshot), Arc::clone(&judges.clock));
    let request_id = call.request_id();
    let (call, resolved) = (Arc::clone(call), resolved.clone());
    let judged = judges.checks.beside(asker, move |effort| {
        match judge((&snapshot, clock.as_ref()), &call, &resolved, is_approved, effort) {
            Ok(()) => Ok(Ok(())),
            Err(NotPermitted::Refused(refusal)) => Ok(Err(refusal)),
            Err(NotPermitted::Overrun(overrun)) => Err(overrun),
        }
    });
    judged.await.map_err(|unchecked: Unchecked| {
        tracing::warn!(call.id = %request_id, ?unchecked, "failed to check a running call again");
        let message =
            "the permissions changed while the call ran, and a new check failed; the call may have had effects";
        Box::new(CallOutcome::error(Code::Interrupted, message).by_rule("revoked.check"))
    })?
}

fn judge(
    (snapshot, clock): (&Arc<Snapshot>, &dyn Clock),
    call: &IncomingCall,
    resolved: &ResolvedCall,
    is_approved: bool,
    effort: &Effort,
) -> Result<(), NotPermitted> {
    let session = Session::of(Arc::clone(snapshot), clock.now(), call)?;
    if let Some(lineage) = call.lineage() {
        check_lineage(lineage, &session, call, effort)?;
    }
    let row = &resolved.binding.row;
    let Some(binding) = session.bot.binding(row.id, session.now) else {
        // The snapshot lacks the binding because the plugin is not loaded. The permissions have not changed.
        if session.bot.dormant.iter().any(|dormant| row.is_of(dormant))
            && resolved.binding.is_active(session.now)
            && resolved.is_gated_by(&session.bot.gates)
        {
            return Ok(());
        }
        return Err(revoked_by(call, "binding", "the binding was deleted or disabled, or has expired").into());
    };
    if Arc::ptr_eq(binding, &resolved.binding)
        && resolved.is_delegated_by(&session.delegation)
        && resolved.is_gated_by(&session.bot.gates)
    {
        // The rules that permitted the call have not changed.
        return Ok(());
    }
    let resolved = resolved.with_rules_of(binding, &session);
    let params = checked_params(resolved.tool(), call, effort)?;
    match resolved.decide(Question::Call(params.members()), effort)? {
        Decision::Allow => Ok(()),
        Decision::Ask(_) if is_approved => Ok(()),
        Decision::Ask(_) => Err(revoked_by(call, "gate", "a gate that applies to the call was added").into()),
        Decision::Deny(denial) => Err(refuse(call.language().of_denial(denial, &resolved.plugin.locales)).into()),
    }
}

/// Waits until a binding that permits the call or the access token of the call expires. The function never returns if
/// neither expires.
async fn expiry(snapshot: &Snapshot, clock: &dyn Clock, call: &IncomingCall, resolved: Option<&ResolvedCall>) {
    let now = clock.now();
    let of_links = links_expire_at(snapshot, call.workspace(), now, call.links());
    let bot = call.bot().and_then(|bot| snapshot.bot(call.workspace(), bot));
    let own = bot.zip(resolved).and_then(|(bot, resolved)| bot.binding(resolved.binding.row.id, now));
    let of_token = call.token_user().map(|user| user.expires_at);
    match own.and_then(|binding| binding.row.expires_at).into_iter().chain(of_links).chain(of_token).min() {
        Some(end) => {
            let left = u64::try_from(end.0.saturating_sub(now.0)).unwrap_or_default();
            // The wait is at least 1 ms, so that a difference between `clock` and the clock of the timer does not cause
            // a busy loop.
            tokio::time::sleep(Duration::from_millis(left.max(1))).await;
        }
        None => std::future::pending().await,
    }
}

/// Returns whether the key of the call still exists and is unchanged, and the user of its access token is still
/// admitted. Returns true for a call without a key and without a token.
pub(super) fn is_authentic(call: &IncomingCall, snapshot: &Snapshot, now: UtcMillis) -> bool {
    call.key().is_none_or(|key| snapshot.key_hash(key.id) == Some(&key.hash))
        && call.token_user().is_none_or(|user| snapshot.admits(call.workspace(), user, now))
}

/// Returns the refusal of a call that is no longer authentic.
pub(super) fn caller_revoked(call: &IncomingCall) -> Refusal {
    match call.token_user() {
        Some(_) => revoked_by(call, "token", "the access token has expired, or the bot no longer admits its user"),
        None => revoked_by(call, "key", "the key of this call was deleted or rotated"),
    }
}

fn revoked_by(call: &IncomingCall, what: &str, reason: &str) -> Refusal {
    let (rule, reason) = (format!("revoked.{what}"), reason.to_owned());
    refuse(Denial { rule, reason, ..Denial::unknown_tool(call.tool()) })
}
