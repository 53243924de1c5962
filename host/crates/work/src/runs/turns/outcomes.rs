//! Ends the attempts whose task, run, event or decision has come, before a turn plans.

use monstrum_engine::{Turn, TurnError};
use monstrum_flow::{StepError, StepStatus};
use monstrum_store::{EndedRunStep, RunStepRow};
use monstrum_types::{Labels, UtcMillis};
use serde_json::Value;

use super::read::{ReadRun, has_child};
use super::{RunTurns, failed};
use crate::runs::approvals;
use crate::runs::children::ChildEnd;
use crate::runs::progress::ended;
use crate::runs::record::{StepContent, WaitContent};
use crate::runs::waits::Waits;

/// How an attempt ends.
struct Outcome {
    status: StepStatus,
    data: Value,
    error: Option<StepError>,
    labels: Labels,
    /// Whether the attempt may have had an effect outside of the host.
    may_have_happened: bool,
}

impl RunTurns {
    /// Ends attempts in the journal that was read. Returns their ends, which are written with the plan.
    pub(super) async fn outcomes(
        &self,
        turn: &Turn,
        run: &mut ReadRun,
        now: UtcMillis,
    ) -> Result<Vec<EndedRunStep>, TurnError> {
        let mut ends = Vec::new();
        for index in 0..run.steps.len() {
            let (row, content) = &run.steps[index];
            if content.ended_at.is_some() {
                continue;
            }
            let Some(outcome) = self.outcome(run, row, content, now).await? else { continue };
            let (row, content) = &mut run.steps[index];
            outcome.write(content, now);
            let end = ended(&self.app.vault, turn.claim(), (row, content), now).map_err(|error| failed(&error))?;
            (row.status, row.ended_at) = (end.status, Some(now));
            row.code.clone_from(&end.code);
            row.sealed.clone_from(&end.sealed);
            ends.push(end);
        }
        Ok(ends)
    }

    /// Returns how an attempt ends, if it does now.
    async fn outcome(
        &self,
        run: &ReadRun,
        row: &RunStepRow,
        content: &StepContent,
        now: UtcMillis,
    ) -> Result<Option<Outcome>, TurnError> {
        if has_child(content) {
            return Ok(self.children.ended(row, content).await?.map(Outcome::of_child));
        }
        match &content.wait {
            None | Some(WaitContent::Time) => Ok(None),
            Some(WaitContent::Event { .. }) => {
                Ok(self.waits.found(&run.row, row, content).await?.map(Outcome::of_event))
            }
            Some(WaitContent::Approval { .. }) => {
                let decided = approvals::decided(&self.app, &run.row, content, now).await;
                Ok(decided.map_err(|error| failed(&error))?.map(Outcome::of_decision))
            }
        }
    }
}

impl Outcome {
    fn of_child(end: ChildEnd) -> Outcome {
        let ChildEnd { status, data, error, labels } = end;
        // A task or a run makes calls of its own, and nothing tells here which of them have had an effect.
        let may_have_happened = status != StepStatus::Succeeded;
        Outcome { status, data, error, labels, may_have_happened }
    }

    fn of_event(event: Value) -> Outcome {
        let (status, labels) = (StepStatus::Succeeded, Waits::labels());
        Outcome { status, data: event, error: None, labels, may_have_happened: false }
    }

    fn of_decision(decision: Result<Value, StepError>) -> Outcome {
        let (status, data, error) = match decision {
            Ok(data) => (StepStatus::Succeeded, data, None),
            Err(error) => (StepStatus::Failed, Value::Null, Some(error)),
        };
        Outcome { status, data, error, labels: Labels::none(), may_have_happened: false }
    }

    fn write(self, content: &mut StepContent, now: UtcMillis) {
        let Outcome { status, data, error, labels, may_have_happened } = self;
        (content.status, content.data, content.error) = (status, data, error);
        (content.may_have_happened, content.ended_at) = (may_have_happened, Some(now));
        content.labels.add(&labels);
        if !may_have_happened {
            content.effect = Some("read".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(outcome: Outcome) -> StepContent {
        let mut content = StepContent::default();
        outcome.write(&mut content, UtcMillis(7));
        assert_eq!(content.ended_at, Some(UtcMillis(7)));
        content
    }

    #[test]
    fn the_end_of_an_attempt_is_recorded_with_what_it_has_read() {
        let labels: Labels = ["customer".to_owned()].into_iter().collect();
        let failed = ChildEnd {
            status: StepStatus::Failed,
            data: Value::Null,
            error: Some(StepError::new("budget", "no tokens are left")),
            labels: labels.clone(),
        };
        let content = written(Outcome::of_child(failed));
        // A task that has failed may have changed something, so nothing repeats it.
        assert_eq!((content.may_have_happened, &content.effect, content.labels), (true, &None, labels));
        let event = written(Outcome::of_event(json!({ "data": 1 })));
        assert_eq!((event.status, event.labels.names()), (StepStatus::Succeeded, vec!["untrusted".to_owned()]));
        let denied = written(Outcome::of_decision(Err(StepError::new("denied", "no"))));
        assert_eq!((denied.status, denied.error.unwrap().code), (StepStatus::Failed, "denied".to_owned()));
        assert!(!denied.may_have_happened);
    }
}
