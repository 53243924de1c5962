//! The end of a run: steps are stopped, then undone, then `finally` runs.

use std::sync::Arc;

use serde_json::Value;

use super::Planner;
use super::frame::Frame;
use super::types::{
    Block, Command, ENDING_MS_MAX, ENDING_STOP_MS_MAX, Ending, RunEnd, StepError, StepKey, StepRow, StepStatus,
};
use super::walk::ListState;
use crate::model::ToolUse;

impl<'d> Planner<'d> {
    /// Continues the end of the run.
    pub(super) fn end(&mut self) {
        let Some(ending) = self.ending.clone() else { return };
        let definition = self.definition;
        let is_stopping = self.stop(&definition.steps, &Frame::root(true));
        let end = ending.since.saturating_add(ENDING_MS_MAX);
        if end <= self.now {
            return if is_stopping { self.leave() } else { self.give_up(&ending) };
        }
        self.wake_at(end);
        if is_stopping || (ending.undo && self.undo_next()) {
            return;
        }
        if let Some(error) = self.excess(0) {
            if !self.stop(&definition.finally, &Frame::root(false)) {
                self.end_run(&ending, Some(error));
            }
            return;
        }
        match self.list(&definition.finally, &Frame::root(false)) {
            ListState::Open => {}
            ListState::Done => self.end_run(&ending, None),
            ListState::Failed(error) => self.end_run(&ending, Some(error)),
        }
    }

    /// Ends the attempts that did not stop in time. Nobody knows whether they have their effect.
    fn leave(&mut self) {
        let is_open =
            |row: &&StepRow| row.run_attempt == self.run.attempt && row.status.is_active() && row.block.is_none();
        for row in self.journal.iter().filter(is_open).cloned().collect::<Vec<_>>() {
            let error = StepError::new("timeout", "the step did not stop in time");
            self.finish(&row.key, row.attempt, StepStatus::Uncertain, Value::Null, Some(error));
        }
    }

    /// Ends a run whose end takes too long.
    fn give_up(&mut self, ending: &Ending) {
        let definition = self.definition;
        let mut is_active = self.stop(&definition.finally, &Frame::root(false));
        let undoing = self.journal.iter().filter(|row| row.key.undo && row.status.is_active());
        for row in undoing.cloned().collect::<Vec<_>>() {
            is_active = true;
            if !row.cancelling {
                self.push(Command::Cancel { key: row.key, attempt: row.attempt, timed_out: true });
            }
        }
        if is_active {
            let end = ending.since.saturating_add(ENDING_MS_MAX + ENDING_STOP_MS_MAX);
            if end <= self.now {
                return self.leave();
            }
            self.wake_at(end);
        } else {
            let error = StepError::new("timeout", "undoing and `finally` did not end in time");
            self.end_run(ending, Some(error));
        }
    }

    /// Undoes the newest step that is not undone, and returns whether there is one. A step that an earlier attempt of the run
    /// may have undone is left to people.
    fn undo_next(&mut self) -> bool {
        for (row, undo) in self.undoable() {
            let key = StepKey { undo: true, ..row.key.clone() };
            match self.journal.current(&key, self.run.attempt, false).map(|undo| undo.status) {
                None if self.journal.may_be_undone(&row, self.run.attempt) => {}
                None => {
                    let frame = Frame::of_item(&row.key.item).with_values(self.items_around(&row));
                    self.undo(undo, &key, &frame);
                    return true;
                }
                Some(status) if status.is_active() => return true,
                Some(_) => {}
            }
        }
        false
    }

    /// The steps that succeeded and have `undo`, the newest first.
    fn undoable(&self) -> Vec<(StepRow, &'d ToolUse)> {
        let mut found: Vec<(StepRow, &'d ToolUse)> = Vec::new();
        let is_step = |row: &&StepRow| !row.key.undo && !self.finally.contains(row.key.step.as_str());
        for row in self.journal.iter().filter(is_step) {
            let Some(undo) = self.steps.get(row.key.step.as_str()).and_then(|step| step.undo.as_ref()) else {
                continue;
            };
            let has_result = |row: &StepRow| matches!(row.status, StepStatus::Succeeded | StepStatus::Undone);
            let mut results = self.journal.all(&row.key).iter().filter(|row| has_result(row));
            let is_last = results.all(|other| (other.run_attempt, other.attempt) <= (row.run_attempt, row.attempt));
            if has_result(row) && is_last && !self.journal.is_undone(row, self.run.attempt) {
                found.push((row.clone(), undo));
            }
        }
        // Rows that ended in the same millisecond are undone in the reverse order of their names.
        found.sort_by(|(left, _), (right, _)| (right.ended_at, &right.key).cmp(&(left.ended_at, &left.key)));
        found
    }

    /// The items of the list of `each` in which a step stands.
    fn items_around(&self, done: &StepRow) -> Option<Arc<Vec<Value>>> {
        let key = &done.key;
        let outer = key.item.rsplit_once('.').map_or("", |(outer, _)| outer);
        if key.item.is_empty() {
            return None;
        }
        let holds = |row: &&StepRow| {
            let step = self.steps.get(row.key.step.as_str());
            row.run_attempt <= done.run_attempt
                && row.key.item == outer
                && step.is_some_and(|step| inside(step, &key.step))
        };
        let rows = self.journal.iter().filter(holds).filter_map(|row| match &row.block {
            Some(Block::Each(items)) => Some((row.run_attempt, row.attempt, items)),
            _ => None,
        });
        rows.max_by_key(|(run_attempt, attempt, _)| (*run_attempt, *attempt)).map(|(_, _, items)| items.clone())
    }

    fn end_run(&mut self, ending: &Ending, late: Option<StepError>) {
        let run_attempt = self.run.attempt;
        let last = |row: &&StepRow| {
            let rows = self.journal.all(&row.key);
            row.run_attempt == run_attempt
                && rows.iter().all(|other| other.run_attempt != run_attempt || other.attempt <= row.attempt)
        };
        let rows: Vec<&StepRow> = self.journal.iter().filter(last).collect();
        let uncertain = rows.iter().filter(|row| row.status == StepStatus::Uncertain && !row.key.undo);
        let uncertain: Vec<StepKey> = uncertain.map(|row| row.key.clone()).collect();
        let mut undo_failed: Vec<StepKey> = Vec::new();
        if ending.undo {
            for (row, _) in self.undoable() {
                let undo = StepKey { undo: true, ..row.key.clone() };
                let undone = self.journal.current(&undo, run_attempt, false);
                if undone.is_none_or(|undone| undone.status != StepStatus::Succeeded) {
                    undo_failed.push(row.key);
                }
            }
        }
        let failed = late.or_else(|| {
            let first = undo_failed.first()?;
            Some(StepError { at: Some(first.clone()), ..StepError::new("undo_failed", "a step could not be undone") })
        });
        let status = if failed.is_some() { RunEnd::Failed } else { ending.status };
        self.has_ended = true;
        self.push(Command::EndRun {
            status,
            output: ending.output.clone().filter(|_| status == RunEnd::Completed),
            error: ending.error.clone().or(failed),
            uncertain,
            undo_failed,
        });
    }
}

/// Returns whether a step stands inside another one, but not in an `each` inside that.
fn inside(outer: &crate::model::Step, id: &str) -> bool {
    outer
        .inner()
        .into_iter()
        .flatten()
        .any(|step| step.id == id || (!matches!(step.kind, crate::model::StepKind::Each(_)) && inside(step, id)))
}
