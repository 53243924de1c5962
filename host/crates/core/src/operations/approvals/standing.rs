//! How an approval stands for a caller that wants to repeat its call.

use std::pin::pin;

use monstrum_store::{ApprovalRow, ApprovalStatus};
use monstrum_types::{ApprovalId, BotId, CallOutcome, Code, Status, UtcMillis};
use tokio::time::{Instant, sleep_until};

use crate::app::App;
use crate::call::consent::denied;
use crate::call_types::refusal::APPROVAL_REQUIRED;
use crate::operations::{Caller, OperationError, tools};

/// How an approval stands.
#[derive(Debug)]
pub enum Standing {
    /// The call can be made. The pipeline judges it again, and the approval permits it only if it is the approved call.
    Ready,
    /// No person has decided yet.
    Pending(CallOutcome),
    /// The approval permits no call any more.
    Ended(CallOutcome),
}

/// Waits up to `wait_s` seconds until the approval is decided, and returns how it stands. The caller must have checked
/// that the approval is of a call of this bot by `caller`.
pub async fn standing(
    app: &App,
    caller: &Caller,
    bot: BotId,
    id: ApprovalId,
    wait_s: u32,
) -> Result<Standing, OperationError> {
    tools::may_use(app, caller, bot)?;
    let until = Instant::now() + tools::approval_wait(wait_s)?;
    let mut renewals = app.policy.renewals();
    let mut expired = pin!(caller.expired(&*app.clock));
    let mut decided = pin!(app.approvals.decided(caller.workspace, id));
    loop {
        if !caller.is_known(&app.policy.load(), app.clock.now()) {
            // The pipeline refuses the call and records the refusal.
            return Ok(Standing::Ready);
        }
        tokio::select! {
            () = &mut decided => break,
            () = &mut expired => {}
            renewed = renewals.changed() => if renewed.is_err() { break },
            () = sleep_until(until) => break,
            () = app.approvals.closed() => break,
        }
    }
    let row = app.store.approval(caller.workspace, id).await?;
    let Some(row) = row.filter(|row| row.bot_id == bot) else {
        return Ok(ended("the approval of this call no longer exists; call the tool again", "approval.gone"));
    };
    Ok(match of(&row, app.clock.now()) {
        Standing::Pending(outcome) => Standing::Pending(outcome.awaiting(app.approvals.awaited(&row))),
        standing => standing,
    })
}

fn of(row: &ApprovalRow, now: UtcMillis) -> Standing {
    match row.status {
        ApprovalStatus::Pending | ApprovalStatus::Approved if !row.is_open(now) => expired(),
        ApprovalStatus::Pending => {
            Standing::Pending(CallOutcome::failure(Status::ApprovalRequired, Code::Approval, APPROVAL_REQUIRED))
        }
        ApprovalStatus::Approved => Standing::Ready,
        ApprovalStatus::Denied => Standing::Ended(*denied(row)),
        ApprovalStatus::Used => {
            let by = row.request_id.map(|request| format!(" by the call {request}")).unwrap_or_default();
            let message = format!("the approval was used{by} and permits no other call; call the tool again");
            ended(message, "approval.used")
        }
        ApprovalStatus::Expired => expired(),
        ApprovalStatus::Void => {
            let message = "the approval is void, because the tool, its plugin or its resource has changed; call the \
                           tool again";
            ended(message, "approval.void")
        }
    }
}

fn expired() -> Standing {
    ended("the approval of this call has expired; call the tool again", "approval.expired")
}

fn ended(message: impl Into<String>, rule: &str) -> Standing {
    Standing::Ended(CallOutcome::failure(Status::PermissionDenied, Code::Denied, message).by_rule(rule))
}

#[cfg(test)]
mod tests {
    use monstrum_store::ApprovalKind;
    use monstrum_types::{Digest, ResourceId, WorkspaceId};
    use serde_json::json;

    use super::*;

    const EXPIRY: UtcMillis = UtcMillis(1_700_000_000_000);

    fn row(status: ApprovalStatus) -> ApprovalRow {
        let digest = |character: &str| format!("sha256:{}", character.repeat(64)).parse::<Digest>().unwrap();
        ApprovalRow {
            id: ApprovalId::new(),
            workspace_id: WorkspaceId::new(),
            kind: ApprovalKind::Call,
            digest: digest("a"),
            definition: digest("b"),
            status,
            bot_id: BotId::new(),
            app_id: None,
            user_id: None,
            tool: Some("tool".to_owned()),
            resource_id: Some(ResourceId::new()),
            operation: Some("run".to_owned()),
            effect: Some("write".to_owned()),
            links: json!([]),
            labels: json!([]),
            gates: json!([]),
            approvers: json!([]),
            allow_starter: false,
            asked_key: None,
            asked_task: None,
            request_id: None,
            created_at: EXPIRY.plus_ms(-1_000),
            expires_at: EXPIRY,
            decided_by: None,
            decided_at: None,
            note: Some("not now".to_owned()),
            ended_at: None,
            changed_at: EXPIRY,
            run_id: None,
            run_step: None,
            item: None,
            targets: None,
            starters: None,
        }
    }

    #[test]
    fn only_an_approved_approval_that_has_not_expired_lets_a_call_be_made() {
        let told = |status, now| match of(&row(status), now) {
            Standing::Ready => "ready".to_owned(),
            Standing::Pending(outcome) => format!("pending {:?}", outcome.status),
            Standing::Ended(outcome) => format!("ended {}", outcome.rule.unwrap_or_default()),
        };
        let before = EXPIRY.plus_ms(-1);
        for (status, now, expected) in [
            (ApprovalStatus::Approved, before, "ready"),
            (ApprovalStatus::Approved, EXPIRY, "ended approval.expired"),
            (ApprovalStatus::Pending, before, "pending ApprovalRequired"),
            (ApprovalStatus::Pending, EXPIRY, "ended approval.expired"),
            (ApprovalStatus::Denied, before, "ended approval.denied"),
            (ApprovalStatus::Used, before, "ended approval.used"),
            (ApprovalStatus::Expired, before, "ended approval.expired"),
            (ApprovalStatus::Void, before, "ended approval.void"),
        ] {
            assert_eq!(told(status, now), expected, "{status:?}");
        }
    }
}
