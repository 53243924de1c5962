//! The questions of steps: each is an approval, which the turn of the run writes with the attempt that asks.

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_core::approvals::{StepDecision, step_decision};
use monstrum_core::call_types::links::{Link, NarrowLink};
use monstrum_core::operations::approvals::{AskStepError, StepAsk, StepCall, StepRun, ask_step};
use monstrum_engine::TurnError;
use monstrum_flow::StepError;
use monstrum_store::{ApprovalKind, ApprovalRow, NewApproval, RunRow, RunStepRow, StoreError};
use monstrum_types::{ApprovalId, UtcMillis, with_causes};
use serde_json::Value;

use super::record::{RunContent, StepContent, TargetContent, WaitContent};

/// The time for which a question stays open whose attempt has no end.
const EXPIRES_MS: i64 = 24 * 3_600_000;

/// What becomes of an attempt that asks.
pub enum Decided {
    /// The attempt ends: a person has decided, or the time is over.
    Ended(Result<Value, StepError>),
    /// A call has changed while a person was to decide, so the attempt asks again.
    AsksAgain,
}

/// Makes the approval for which an attempt asks. `asked` is the number of those for which the turn asks already.
///
/// # Errors
///
/// The outer error repeats the turn; with the inner one, the attempt has failed.
pub async fn ask(
    app: &App,
    (run, content_of_run): (&RunRow, &RunContent),
    (row, content): (&RunStepRow, &StepContent),
    asked: usize,
    now: UtcMillis,
) -> Result<Result<NewApproval, StepError>, TurnError> {
    let Some(WaitContent::Approval { text, targets, by, allow_starter }) = &content.wait else {
        return Ok(Err(StepError::new("unavailable", "the step asks nothing")));
    };
    let narrow = content_of_run.narrow.as_ref().map(|narrow| Link::Narrow(NarrowLink::new(narrow)));
    let of_run = StepRun {
        workspace: run.workspace_id,
        bot: run.bot_id,
        workflow: run.workflow_id,
        run: run.id,
        attempt: row.run_attempt,
        item: &row.item,
        links: narrow.into_iter().collect::<Arc<[Link]>>(),
        labels: &content_of_run.labels,
        starters: &content_of_run.starters,
        cause: content_of_run.cause,
    };
    let targets: Vec<StepCall<'_>> = targets.iter().map(call_of).collect();
    let ask = StepAsk {
        step: &row.step,
        attempt: row.attempt,
        text,
        targets: &targets,
        by,
        allow_starter: *allow_starter,
        expires_at: content.wait_until.unwrap_or_else(|| now.plus_ms(EXPIRES_MS)),
        asked,
    };
    match ask_step(app, &of_run, &ask).await {
        Ok(new) => Ok(Ok(new)),
        Err(AskStepError::Refused { code, message }) => Ok(Err(StepError::new(code, message))),
        Err(error @ (AskStepError::Busy | AskStepError::Approval(_))) => Err(TurnError::Failed(with_causes(&error))),
    }
}

fn call_of(target: &TargetContent) -> StepCall<'_> {
    let TargetContent { step, tool, resource, params } = target;
    StepCall { step, tool, resource: resource.as_deref(), params }
}

/// Returns what becomes of an attempt that asks; `None` until a person has decided.
///
/// # Errors
///
/// The database failed.
pub async fn decided(
    app: &App,
    run: &RunRow,
    (row, content): (&RunStepRow, &StepContent),
    now: UtcMillis,
) -> Result<Option<Decided>, StoreError> {
    let approval = match content.approval_id {
        Some(id) => app.store.approval(run.workspace_id, id).await?,
        None => None,
    };
    Ok(decided_by(run, row, approval.as_ref(), now))
}

fn decided_by(run: &RunRow, row: &RunStepRow, approval: Option<&ApprovalRow>, now: UtcMillis) -> Option<Decided> {
    // A row that another program has edited is not found.
    let Some(approval) = approval.filter(|approval| is_of(run, row, approval)) else {
        let error = StepError::new("denied", "the approval of this step cannot be read");
        return Some(Decided::Ended(Err(error)));
    };
    let decision = step_decision(approval, now);
    if let Some(data) = decision.data() {
        return Some(Decided::Ended(Ok(data)));
    }
    if let Some((code, message)) = decision.failure() {
        return Some(Decided::Ended(Err(StepError::new(code, message))));
    }
    (decision == StepDecision::Void).then_some(Decided::AsksAgain)
}

fn is_of(run: &RunRow, row: &RunStepRow, approval: &ApprovalRow) -> bool {
    approval.kind == ApprovalKind::Step
        && approval.run_id == Some(run.id)
        && approval.run_step.as_deref() == Some(row.step.as_str())
        && approval.item.as_deref().unwrap_or_default() == row.item
}

/// Returns those of the approvals that are open, so that they become void: no attempt waits for them any more. Those whose
/// time is over expire by themselves.
///
/// # Errors
///
/// The database failed.
pub async fn open_ones(
    app: &App,
    run: &RunRow,
    ids: &[ApprovalId],
    now: UtcMillis,
) -> Result<Vec<ApprovalRow>, StoreError> {
    let mut open = Vec::new();
    for id in ids {
        let approval = app.store.approval(run.workspace_id, *id).await?;
        let is_pending = |row: &ApprovalRow| step_decision(row, now) == StepDecision::Pending;
        open.extend(approval.filter(|row| row.run_id == Some(run.id) && is_pending(row)));
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use monstrum_store::ApprovalStatus;
    use monstrum_types::{Digest, KeyId, ResourceId};
    use serde_json::json;

    use super::*;
    use crate::runs::record::tests::{run as run_row, step as step_row};

    fn approval(run: &RunRow, row: &RunStepRow, status: ApprovalStatus) -> ApprovalRow {
        let digest: Digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        ApprovalRow {
            id: ApprovalId::new(),
            workspace_id: run.workspace_id,
            kind: ApprovalKind::Step,
            digest: digest.clone(),
            definition: digest,
            status,
            bot_id: run.bot_id,
            app_id: None,
            user_id: None,
            tool: None,
            resource_id: None,
            operation: None,
            effect: None,
            links: json!([]),
            labels: json!([]),
            gates: json!([]),
            approvers: json!([]),
            allow_starter: true,
            asked_key: None,
            asked_task: None,
            request_id: None,
            created_at: UtcMillis(1),
            expires_at: UtcMillis(100),
            decided_by: Some(KeyId::new()),
            decided_at: Some(UtcMillis(50)),
            note: None,
            ended_at: Some(UtcMillis(50)),
            changed_at: UtcMillis(50),
            run_id: Some(run.id),
            run_step: Some(row.step.clone()),
            item: Some(row.item.clone()),
            targets: Some(json!([])),
            starters: Some(json!([])),
        }
    }

    fn told(decided: Option<Decided>) -> String {
        match decided {
            None => "waits".to_owned(),
            Some(Decided::AsksAgain) => "asks again".to_owned(),
            Some(Decided::Ended(Ok(_))) => "succeeded".to_owned(),
            Some(Decided::Ended(Err(error))) => error.code,
        }
    }

    #[test]
    fn a_decision_ends_an_attempt_or_lets_it_ask_again() {
        let run = run_row();
        let row = step_row(&run);
        for (status, now, expected) in [
            (ApprovalStatus::Pending, 99, "waits"),
            (ApprovalStatus::Pending, 100, "timeout"),
            (ApprovalStatus::Approved, 999, "succeeded"),
            (ApprovalStatus::Denied, 99, "denied"),
            (ApprovalStatus::Expired, 99, "timeout"),
            (ApprovalStatus::Void, 99, "asks again"),
        ] {
            let approval = approval(&run, &row, status);
            assert_eq!(told(decided_by(&run, &row, Some(&approval), UtcMillis(now))), expected, "{status:?}");
        }
    }

    #[test]
    fn the_approval_of_something_else_is_no_answer() {
        let run = run_row();
        let row = step_row(&run);
        let edits: [fn(&mut ApprovalRow); 4] = [
            |approval| (approval.kind, approval.resource_id) = (ApprovalKind::Call, Some(ResourceId::new())),
            |approval| approval.run_id = Some(monstrum_types::RunId::new()),
            |approval| approval.run_step = Some("other".to_owned()),
            |approval| approval.item = None,
        ];
        for edit in edits {
            let mut approval = approval(&run, &row, ApprovalStatus::Approved);
            edit(&mut approval);
            assert_eq!(told(decided_by(&run, &row, Some(&approval), UtcMillis(60))), "denied", "{approval:?}");
        }
        assert_eq!(told(decided_by(&run, &row, None, UtcMillis(60))), "denied");
    }
}
