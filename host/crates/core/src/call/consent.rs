//! The consent of a person: asks for it, waits for it, and uses it up.
//!
//! A call for which gates ask does not run when a person approves it. It is judged again, so an approval overrides no
//! rule that has changed in the meantime.

use std::sync::Arc;
use std::time::Duration;

use monstrum_guardian::Permit;
use monstrum_store::{ApprovalRow, ApprovalStatus, UsedApproval};
use monstrum_types::{AwaitedApproval, CallOutcome, Clock, Code, Status};
use serde_json::json;
use tokio::time::Instant;

use crate::approvals::{ApprovalError, Approvals, Asking, Use};
use crate::call::authorize::AskingPermit;
use crate::call::permitted::{Execution, Target};
use crate::call::revocation::{caller_revoked, is_authentic};
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::links::Link;
use crate::call_types::refusal::{Refusal, approval_required};
use crate::call_types::task_step::TaskStep;
use crate::policy::Policy;

/// The maximum number of judgements of one call. Each judgement after the first follows a change of the workspace or of
/// an approval.
pub(super) const JUDGED_MAX: u32 = 16;
/// The longest wait for a person. Many clients and proxies close a connection without traffic after five minutes.
pub const WAIT_MAX: Duration = Duration::from_secs(300);

/// A call for which gates ask, and what it would run.
pub struct AskingCall {
    pub permit: Box<AskingPermit>,
    pub target: Target,
}

/// Asks people to approve calls.
pub(super) struct Asks<'a> {
    pub approvals: &'a Approvals,
    pub policy: &'a Arc<Policy>,
    pub clock: &'a dyn Clock,
    pub call: &'a IncomingCall,
    pub secrets: &'a CallSecrets,
    /// The time until which the call may wait.
    pub until: Option<Instant>,
}

impl Asks<'_> {
    /// Asks for an approval of the call. Returns when the call must be judged again, or the outcome of a call that
    /// cannot run now.
    pub(super) async fn ask(&self, asking: &AskingCall) -> Result<(), Refusal> {
        let workspace = self.call.workspace();
        let found = self.approvals.find(workspace, &asking.permit.digest).await.map_err(ApprovalError::from);
        let row = match found.map_err(|error| unavailable(&error))? {
            Some(row) => row,
            None => self.ask_anew(asking).await?,
        };
        match row.status {
            ApprovalStatus::Denied => Err(denied(&row)),
            // A person has approved the call after the snapshot was assembled.
            ApprovalStatus::Approved => {
                let renewed = self.policy.renew().await.map_err(ApprovalError::from);
                renewed.map_err(|error| unavailable(&error))
            }
            _ => self.wait(asking, &row).await,
        }
    }

    async fn ask_anew(&self, asking: &AskingCall) -> Result<ApprovalRow, Refusal> {
        let pending = &asking.permit.pending;
        let call = pending.call();
        let (Some(bot), Some(resource)) = (call.bot, call.resource) else {
            return Err(Box::new(CallOutcome::error(Code::Unavailable, "a call without a bot cannot be approved")));
        };
        // The approver must see the call as it would run, except for its secrets.
        let params = self.secrets.redacted_texts(vec![call.params.text().to_owned()]).await;
        let params = params.map_err(|withheld| Box::new(withheld.outcome()))?;
        let delegations: Vec<_> = self.call.links().iter().filter_map(Link::delegation).collect();
        let tool = asking.target.tool();
        let asking = Asking {
            workspace: call.workspace,
            bot,
            digest: &asking.permit.digest,
            definition: &asking.permit.definition,
            user: self.call.user(),
            tool: pending.tool(),
            operation: pending.operation(),
            effect: tool.map_or("write", |tool| tool.manifest.effect.as_str()),
            resource,
            links: &json!(delegations),
            asked: pending.asked(),
            labels: Some(self.call.labels().carried()).filter(|_| self.call.task().is_some()),
            origin: self.call.origin(),
            task: self.call.task().and_then(|_| self.call.task_id()),
            key: self.call.key().map(|key| key.id),
        };
        let text = params.first().map(String::as_str).unwrap_or_default();
        self.approvals.ask(&asking, text).await.map_err(|error| unavailable(&error))
    }

    /// Waits for the decision of a person. Returns the outcome of a call that does not wait, or has waited long enough.
    async fn wait(&self, asking: &AskingCall, row: &ApprovalRow) -> Result<(), Refusal> {
        let required = || {
            let outcome = approval_required(asking.permit.pending.asked());
            Box::new(outcome.awaiting(self.approvals.awaited(row)))
        };
        let Some(until) = self.until.filter(|until| *until > Instant::now()) else { return Err(required()) };
        let step = self.call.task().and_then(|task| task.step.as_deref());
        let _waiting = step.map(|step| WaitingStep::begin(step, &self.approvals.awaited(row)));
        let mut renewals = self.policy.renewals();
        let mut decided = std::pin::pin!(self.approvals.decided(row.workspace_id, row.id));
        let mut expired = std::pin::pin!(async {
            match self.call.token_user() {
                Some(user) => user.expired(self.clock).await,
                None => std::future::pending().await,
            }
        });
        loop {
            let snapshot = self.policy.load();
            if !is_authentic(self.call, &snapshot, self.clock.now()) {
                return Err(caller_revoked(self.call));
            }
            if snapshot.grants().contain(&row.digest) {
                return Ok(());
            }
            tokio::select! {
                () = &mut decided => return Ok(()),
                () = &mut expired => {}
                renewed = renewals.changed() => {
                    if renewed.is_err() {
                        // This branch never runs, because the policy outlives its calls.
                        return Err(required());
                    }
                }
                () = tokio::time::sleep_until(until) => return Err(required()),
                () = self.approvals.closed() => return Err(required()),
            }
        }
    }
}

/// A step of a task that waits until the value is dropped.
struct WaitingStep<'a>(&'a dyn TaskStep);

impl WaitingStep<'_> {
    fn begin<'a>(step: &'a dyn TaskStep, approval: &AwaitedApproval) -> WaitingStep<'a> {
        step.waits(Some(approval));
        WaitingStep(step)
    }
}

impl Drop for WaitingStep<'_> {
    fn drop(&mut self) {
        self.0.waits(None);
    }
}

/// Why a permitted call does not run.
pub(super) enum NotUsed {
    /// The approval was used up by another call, has expired, or must be verified again. The call must be judged again.
    JudgeAgain,
    Refused(Refusal),
}

/// Uses up the approval of a call, if the call has one.
pub(super) async fn use_up(execution: &Execution<'_>, permit: &Permit) -> Result<(), NotUsed> {
    let Some(consent) = permit.consent() else { return Ok(()) };
    let Execution { pipeline, judged_by, .. } = *execution;
    let workspace = permit.workspace();
    let Some(generation) = judged_by.verification.generation_of(workspace) else { return Err(NotUsed::JudgeAgain) };
    let (approval, digest) = (consent.approval, &consent.digest);
    let used = Use { workspace, approval, digest, request: permit.request_id(), generation };
    match pipeline.approvals.use_up(&used).await {
        Ok(UsedApproval::Used) => Ok(()),
        Ok(UsedApproval::Behind | UsedApproval::Lost) => Err(NotUsed::JudgeAgain),
        Err(error) => Err(NotUsed::Refused(unavailable(&error))),
    }
}

/// Returns the outcome of a call that a person has denied.
pub(crate) fn denied(row: &ApprovalRow) -> Refusal {
    let because = row.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
    let message = format!("Permission denied: a person has denied this call{because}");
    let outcome = CallOutcome::failure(Status::PermissionDenied, Code::Denied, message);
    Box::new(outcome.by_rule("approval.denied"))
}

/// Returns the outcome of a call whose approval the host could not handle.
fn unavailable(error: &ApprovalError) -> Refusal {
    Box::new(match error {
        ApprovalError::Full => {
            let message = "too many calls of this bot or workspace wait for approval; try again later";
            CallOutcome::error(Code::Limit, message).by_rule("approval.pending")
        }
        ApprovalError::Audit(_) => CallOutcome::error(Code::Unavailable, "the audit could not be written; try again"),
        error => {
            tracing::error!(%error, "a step of an approval failed");
            CallOutcome::error(Code::Unavailable, "the approvals are not available; try again")
        }
    })
}
