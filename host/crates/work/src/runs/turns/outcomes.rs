//! Ends the attempts whose task, run, event or decision has come, before a turn plans.

use monstrum_engine::{Turn, TurnError};
use monstrum_flow::{StepError, StepStatus};
use monstrum_store::{EndedRunStep, NewApproval, RunStepKey, RunStepRow};
use monstrum_types::{Labels, UtcMillis};
use serde_json::Value;

use super::read::{ReadRun, has_child};
use super::{RunTurns, failed};
use crate::runs::approvals::{self, Decided};
use crate::runs::children::ChildEnd;
use crate::runs::progress::ended;
use crate::runs::record::{RunContent, StepContent, WaitContent, seal_step};
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

/// An attempt that asks again, because a call has changed since it asked.
pub(super) struct AskingAgain {
    pub(super) key: RunStepKey,
    pub(super) new: NewApproval,
    /// The record of the attempt before and afterwards.
    pub(super) record: (String, String),
}

/// What becomes of an attempt that has not ended.
enum Standing {
    Waits,
    Ends(Outcome),
    AsksAgain(Box<AskingAgain>),
}

impl RunTurns {
    /// Ends attempts in the journal that was read. Returns their ends, which are written with the plan, and the attempts that
    /// ask again.
    pub(super) async fn outcomes(
        &self,
        turn: &Turn,
        run: &mut ReadRun,
        now: UtcMillis,
    ) -> Result<(Vec<EndedRunStep>, Vec<AskingAgain>), TurnError> {
        let (mut ends, mut asking) = (Vec::new(), Vec::new());
        for index in 0..run.steps.len() {
            let (row, content) = &run.steps[index];
            if content.ended_at.is_some() {
                continue;
            }
            let outcome = match self.standing(run, (row, content), asking.len(), now).await? {
                Standing::Waits => continue,
                Standing::Ends(outcome) => outcome,
                Standing::AsksAgain(again) => {
                    asking.push(*again);
                    continue;
                }
            };
            let (row, content) = &mut run.steps[index];
            outcome.write(content, now);
            let end = ended(&self.app.vault, turn.claim(), (row, content), now).map_err(|error| failed(&error))?;
            (row.status, row.ended_at) = (end.status, Some(now));
            row.code.clone_from(&end.code);
            row.sealed.clone_from(&end.sealed);
            ends.push(end);
        }
        Ok((ends, asking))
    }

    /// Returns whether an attempt ends now, or asks again. `asked` is the number of those that ask already.
    async fn standing(
        &self,
        run: &ReadRun,
        (row, content): (&RunStepRow, &StepContent),
        asked: usize,
        now: UtcMillis,
    ) -> Result<Standing, TurnError> {
        if has_child(content) {
            let end = self.children.ended(row, content).await?;
            return Ok(Standing::of(end.map(Outcome::of_child)));
        }
        match &content.wait {
            None | Some(WaitContent::Time) => Ok(Standing::Waits),
            Some(WaitContent::Event { .. }) => {
                Ok(Standing::of(self.waits.found(&run.row, row, content).await?.map(Outcome::of_event)))
            }
            Some(WaitContent::Approval { .. }) => {
                match approvals::decided(&self.app, &run.row, (row, content), now).await? {
                    None => Ok(Standing::Waits),
                    Some(Decided::Ended(decision)) => Ok(Standing::Ends(Outcome::of_decision(decision))),
                    Some(Decided::AsksAgain) => self.asks_again(run, (row, content), asked, now).await,
                }
            }
        }
    }

    /// Makes another approval for an attempt that asks.
    async fn asks_again(
        &self,
        run: &ReadRun,
        (row, content): (&RunStepRow, &StepContent),
        asked: usize,
        now: UtcMillis,
    ) -> Result<Standing, TurnError> {
        let of_run = RunContent { labels: run.labels(), ..run.content.clone() };
        match approvals::ask(&self.app, (&run.row, &of_run), (row, content), asked, now).await? {
            Ok(new) => {
                let content = StepContent { approval_id: Some(new.row.id), ..content.clone() };
                let sealed = seal_step(&self.app.vault, row, &content).map_err(|error| failed(&error))?;
                let record = (row.sealed.clone(), sealed);
                Ok(Standing::AsksAgain(Box::new(AskingAgain { key: row.key(), new, record })))
            }
            Err(error) => Ok(Standing::Ends(Outcome::of_decision(Err(error)))),
        }
    }
}

impl Standing {
    fn of(outcome: Option<Outcome>) -> Standing {
        outcome.map_or(Standing::Waits, Standing::Ends)
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
