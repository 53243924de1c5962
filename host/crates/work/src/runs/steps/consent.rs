//! The approvals that a call needs because `approve` steps of its workflow name it.

use monstrum_core::operations::approvals::{AskStepError, StepCall, StepConsent, StepRun, step_consent};
use monstrum_engine::TurnError;
use monstrum_flow::StepStatus;
use monstrum_types::{ApprovalId, AwaitedApproval, Labels, with_causes};

use super::decisions::StepEnd;
use super::{StepTurn, failed, links_of};
use crate::runs::record::{StepContent, open_step};

/// Whether the call of an attempt has the approvals that it needs.
pub(super) enum Consent {
    Given,
    /// The call differs from what was approved, and a person is asked again.
    Waits(AwaitedApproval),
    Refused(StepEnd),
}

/// What a question in the journal says about the call of a later step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    /// The question was skipped, so no person was asked.
    LeftOut,
    Approved(ApprovalId),
    /// The question has no answer that permits the call.
    Open,
}

impl StepTurn<'_> {
    /// Compares the call with what people have approved.
    pub(super) async fn consent(&self) -> Result<Consent, TurnError> {
        let (app, attempt) = (&self.turns.app, &self.attempt);
        let mut questions = Vec::new();
        for step in &attempt.content.approved_by {
            match self.question(step).await? {
                Question::LeftOut => {}
                Question::Approved(approval) => questions.push(approval),
                Question::Open => {
                    let message = format!("the question `{step}` has not approved this call");
                    return Ok(Consent::Refused(StepEnd::refused("denied", &message)));
                }
            }
        }
        if questions.is_empty() {
            return Ok(Consent::Given);
        }
        let (run, content) = (&attempt.run, &attempt.run_content);
        let labels: Labels = content.labels.clone().with(&attempt.content.labels_before);
        let of_run = StepRun {
            workspace: run.workspace_id,
            bot: run.bot_id,
            workflow: run.workflow_id,
            run: run.id,
            attempt: attempt.row.run_attempt,
            item: &attempt.row.item,
            links: links_of(content),
            labels: &labels,
            starters: &content.starters,
            cause: content.cause,
        };
        let call = StepCall {
            step: &attempt.row.step,
            tool: &attempt.called.tool,
            resource: attempt.called.resource.as_deref(),
            params: &attempt.called.params,
        };
        match step_consent(app, &of_run, &questions, &call).await {
            Ok(StepConsent::Given) => Ok(Consent::Given),
            Ok(StepConsent::Waits(row)) => Ok(Consent::Waits(app.approvals.awaited(&row))),
            Ok(StepConsent::Refused { code, message }) | Err(AskStepError::Refused { code, message }) => {
                Ok(Consent::Refused(StepEnd::refused(code, &message)))
            }
            Err(error @ (AskStepError::Busy | AskStepError::Approval(_))) => {
                Err(TurnError::Failed(with_causes(&error)))
            }
        }
    }

    /// Reads what the attempt of a question says that belongs to the same attempt of the run, and to the same item.
    async fn question(&self, step: &str) -> Result<Question, TurnError> {
        let (app, row) = (&self.turns.app, &self.attempt.row);
        let asked = app.store.latest_run_step(row.workspace_id, row.run_id, step, &row.item).await?;
        let Some(asked) = asked else { return Ok(Question::Open) };
        let content = open_step(&app.vault, &asked).map_err(|error| failed(&error))?;
        Ok(said(asked.run_attempt == row.run_attempt, &content))
    }
}

fn said(is_of_this_attempt: bool, content: &StepContent) -> Question {
    match (content.status, content.approval_id) {
        (StepStatus::Skipped, _) if is_of_this_attempt => Question::LeftOut,
        (StepStatus::Succeeded, Some(approval)) if is_of_this_attempt => Question::Approved(approval),
        _ => Question::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_approved_question_of_this_attempt_of_the_run_permits_a_call() {
        let approval = ApprovalId::new();
        let content = |status, approval_id| StepContent { status, approval_id, ..StepContent::default() };
        let approved = content(StepStatus::Succeeded, Some(approval));
        assert_eq!(said(true, &approved), Question::Approved(approval));
        assert_eq!(said(false, &approved), Question::Open, "people have approved calls of another attempt");
        assert_eq!(said(true, &content(StepStatus::Skipped, None)), Question::LeftOut);
        for status in [StepStatus::Waiting, StepStatus::Failed, StepStatus::Cancelled, StepStatus::Running] {
            assert_eq!(said(true, &content(status, Some(approval))), Question::Open, "{status:?}");
        }
        assert_eq!(said(true, &content(StepStatus::Succeeded, None)), Question::Open);
    }
}
