//! Opens the journal of a run. Nothing of a run goes on whose records do not fit.

use std::collections::HashSet;

use monstrum_engine::TurnError;
use monstrum_store::{EndedRunStep, RunRequest, RunRow, RunStepKey, RunStepRow};
use monstrum_types::{ApprovalId, Labels, UtcMillis};
use monstrum_vault::Vault;

use super::failed;
use crate::runs::record::{RunContent, StepContent, open_run, open_step};

/// A run with its journal, as a turn has read it.
pub(super) struct ReadRun {
    pub(super) row: RunRow,
    /// The content as it was read, and as this turn changes it.
    pub(super) read: RunContent,
    pub(super) content: RunContent,
    pub(super) steps: Vec<(RunStepRow, StepContent)>,
}

impl ReadRun {
    /// Opens the records. Fails if another program has edited or deleted one of them: the turn is repeated later, in case the
    /// row is put back, and operators see the error.
    pub(super) fn open(vault: &Vault, row: RunRow, rows: Vec<RunStepRow>) -> Result<ReadRun, TurnError> {
        let read = open_run(vault, &row).map_err(|error| failed(&error))?;
        if read.has_ended {
            let text = "the record of the run says that it has ended, so another program has edited its row";
            return Err(TurnError::Failed(text.to_owned()));
        }
        if u64::try_from(rows.len()).is_ok_and(|count| count < read.attempts) {
            let text = "attempts of the run are missing, so another program has deleted them";
            return Err(TurnError::Failed(text.to_owned()));
        }
        let mut steps = Vec::with_capacity(rows.len());
        let mut keys = HashSet::with_capacity(rows.len());
        for step in rows {
            // A copy under another position would stand for an attempt that was deleted.
            if !keys.insert(step.key().position()) {
                let text = "an attempt of the run is there twice, so another program has copied it";
                return Err(TurnError::Failed(text.to_owned()));
            }
            let content = open_step(vault, &step).map_err(|error| failed(&error))?;
            let is_child = step.task_id == content.task_id && step.child_run_id == content.child_run_id;
            if !is_child || step.approval_id != content.approval_id && content.wait.is_some() {
                let text = "an attempt of the run names another task, run or approval than its record";
                return Err(TurnError::Failed(text.to_owned()));
            }
            steps.push((step, content));
        }
        Ok(ReadRun { row, content: read.clone(), read, steps })
    }

    /// Returns `now`, or the latest time in the journal if that is later: for a run, time does not go back.
    pub(super) fn not_before(&self, now: UtcMillis) -> UtcMillis {
        let of_run = [self.content.started_at, self.content.ending.as_ref().map(|ending| ending.since)];
        let of_steps = self.steps.iter().flat_map(|(row, content)| [Some(row.started_at), content.ended_at]);
        of_run.into_iter().chain(of_steps).flatten().fold(now, UtcMillis::max)
    }

    /// Returns the labels of everything that the run has read.
    pub(super) fn labels(&self) -> Labels {
        let mut labels = self.content.labels.clone().with(&self.row.labels);
        self.steps.iter().for_each(|(_, content)| labels.add(&content.labels));
        labels
    }

    /// Returns whether a person has cancelled the run.
    pub(super) fn is_cancelled(&self) -> bool {
        let asked = self.content.asked.as_deref().and_then(RunRequest::from_word);
        matches!(asked, Some(RunRequest::Cancel | RunRequest::CancelAndUndo))
    }

    /// Returns the questions of attempts that a plan ends. The pending ones become void.
    pub(super) fn voided(&self, ended: &[EndedRunStep]) -> Vec<ApprovalId> {
        let is_ended = |row: &RunStepRow| ended.iter().any(|end| end.key == row.key());
        let waiting = self.steps.iter().filter(|(row, content)| content.wait.is_some() && is_ended(row));
        waiting.filter_map(|(_, content)| content.approval_id).collect()
    }

    /// Returns whether an attempt has a task or a run of its own.
    pub(super) fn has_child(&self, key: &RunStepKey) -> bool {
        let found = self.steps.iter().find(|(row, _)| row.key() == *key);
        found.is_some_and(|(_, content)| has_child(content))
    }

    /// Returns the attempts that have not ended.
    pub(super) fn open_steps(&self) -> impl Iterator<Item = &(RunStepRow, StepContent)> {
        self.steps.iter().filter(|(_, content)| content.ended_at.is_none())
    }
}

pub(super) fn has_child(content: &StepContent) -> bool {
    content.task_id.is_some() || content.child_run_id.is_some()
}

#[cfg(test)]
mod tests {
    use monstrum_types::TaskId;
    use monstrum_vault::MasterKeys;
    use serde_json::json;

    use super::*;
    use crate::runs::record::tests::{run as run_row, step as step_row};
    use crate::runs::record::{seal_run, seal_step};

    fn vault() -> Vault {
        Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap())
    }

    fn sealed(vault: &Vault, content: &RunContent) -> RunRow {
        let mut row = run_row();
        row.sealed = seal_run(vault, &row, content).unwrap();
        row
    }

    fn content() -> RunContent {
        serde_json::from_value(json!({ "input": {}, "attempts": 1 })).unwrap()
    }

    fn attempt(vault: &Vault, run: &RunRow, content: &StepContent) -> RunStepRow {
        let mut row = RunStepRow { task_id: content.task_id, ..step_row(run) };
        row.sealed = seal_step(vault, &row, content).unwrap();
        row
    }

    #[test]
    fn a_run_whose_attempts_were_deleted_does_not_go_on() {
        let vault = vault();
        let run = sealed(&vault, &content());
        let step = attempt(&vault, &run, &StepContent::default());
        assert!(ReadRun::open(&vault, run.clone(), vec![step.clone()]).is_ok());
        assert!(ReadRun::open(&vault, run.clone(), Vec::new()).is_err(), "the step would be done again");
        assert!(ReadRun::open(&vault, run, vec![step.clone(), step]).is_err(), "a copy stands for no other attempt");
    }

    #[test]
    fn a_run_whose_rows_were_edited_does_not_go_on() {
        let vault = vault();
        let run = sealed(&vault, &content());
        let task = StepContent { task_id: Some(TaskId::new()), ..StepContent::default() };
        let step = attempt(&vault, &run, &task);
        assert!(ReadRun::open(&vault, run.clone(), vec![step.clone()]).is_ok());
        let edits = [
            RunStepRow { task_id: Some(TaskId::new()), ..step.clone() },
            RunStepRow { step: "other".to_owned(), ..step.clone() },
            RunStepRow { sealed: run.sealed.clone(), ..step },
        ];
        for edited in edits {
            assert!(ReadRun::open(&vault, run.clone(), vec![edited]).is_err());
        }
        let ended = sealed(&vault, &RunContent { has_ended: true, attempts: 0, ..content() });
        assert!(ReadRun::open(&vault, ended, Vec::new()).is_err(), "only its columns say that it goes on");
    }

    #[test]
    fn time_does_not_go_back_for_a_run() {
        let vault = vault();
        let run = sealed(&vault, &content());
        let ended = StepContent { ended_at: Some(UtcMillis(90)), ..StepContent::default() };
        let step = attempt(&vault, &run, &ended);
        let read = ReadRun::open(&vault, run, vec![step]).unwrap();
        assert_eq!([read.not_before(UtcMillis(80)), read.not_before(UtcMillis(100))], [UtcMillis(90), UtcMillis(100)]);
    }
}
