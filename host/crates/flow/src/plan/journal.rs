//! The rows of a run by step, with the outcomes of the commands of this plan.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::types::{Block, Command, Effect, History, StepError, StepKey, StepRow, StepStatus};
use crate::expr::json_bytes;

/// The number of attempts, and the size of their results.
#[derive(Default)]
pub(super) struct Usage {
    pub(super) count: usize,
    pub(super) bytes: u64,
}

/// The rows of a run.
#[derive(Default)]
pub(super) struct Journal {
    rows: BTreeMap<StepKey, Vec<StepRow>>,
    run_attempt: u32,
    /// The steps of `finally`.
    finally: HashSet<String>,
    /// What the steps have used, with the calls that undo them.
    pub(super) steps: Usage,
    /// What `finally` has used in this attempt of the run.
    pub(super) ending: Usage,
}

impl Journal {
    pub(super) fn of(history: &History, finally: &HashSet<&str>) -> Journal {
        let finally = finally.iter().map(|id| (*id).to_owned()).collect();
        let mut journal = Journal { run_attempt: history.run.attempt, finally, ..Journal::default() };
        for row in &history.rows {
            journal.count(&row.key, row.run_attempt, 1, row.data_bytes);
            journal.rows.entry(row.key.clone()).or_default().push(row.clone());
        }
        journal
    }

    fn count(&mut self, key: &StepKey, run_attempt: u32, count: usize, bytes: u64) {
        let usage = if !self.finally.contains(&key.step) {
            &mut self.steps
        } else if run_attempt == self.run_attempt {
            &mut self.ending
        } else {
            return;
        };
        usage.count += count;
        usage.bytes = usage.bytes.saturating_add(bytes);
    }

    pub(super) fn all(&self, key: &StepKey) -> &[StepRow] {
        self.rows.get(key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StepRow> {
        self.rows.values().flatten()
    }

    /// The attempts of a step in all items, without those that undo it.
    pub(super) fn of_step(&self, step: &str) -> impl Iterator<Item = &StepRow> {
        let first = StepKey { step: step.to_owned(), ..StepKey::default() };
        let step = step.to_owned();
        self.rows
            .range(first..)
            .take_while(move |(key, _)| key.step == step)
            .flat_map(|(_, rows)| rows)
            .filter(|row| !row.key.undo)
    }

    /// Returns the row that says how a step is doing: the last attempt in this attempt of the run, otherwise, if `reuse` is
    /// set, a result of an earlier one that was not undone.
    pub(super) fn current(&self, key: &StepKey, run_attempt: u32, reuse: bool) -> Option<&StepRow> {
        let rows = self.all(key);
        let now = rows.iter().filter(|row| row.run_attempt == run_attempt).max_by_key(|row| row.attempt);
        now.or_else(|| {
            let earlier = rows.iter().filter(|row| row.run_attempt < run_attempt);
            let last = earlier.max_by_key(|row| (row.run_attempt, row.attempt)).filter(|_| reuse)?;
            let is_kept = last.status == StepStatus::Succeeded && !self.is_undone(last, run_attempt);
            is_kept.then_some(last)
        })
    }

    /// Returns whether a result was undone before this attempt of the run.
    pub(super) fn is_undone(&self, row: &StepRow, run_attempt: u32) -> bool {
        let undo = StepKey { undo: true, ..row.key.clone() };
        let undone = |undo: &StepRow| {
            undo.status == StepStatus::Succeeded && (row.run_attempt..run_attempt).contains(&undo.run_attempt)
        };
        self.all(&undo).iter().any(undone)
    }

    /// Returns whether an earlier attempt of the run has tried to undo a result, and may have done so: a second try could
    /// change something again.
    pub(super) fn may_be_undone(&self, row: &StepRow, run_attempt: u32) -> bool {
        let undo = StepKey { undo: true, ..row.key.clone() };
        let may_have = |undo: &StepRow| {
            let is_earlier = (row.run_attempt..run_attempt).contains(&undo.run_attempt);
            is_earlier && undo.may_have_happened && undo.effect == Effect::Write && undo.status != StepStatus::Succeeded
        };
        self.all(&undo).iter().any(may_have)
    }

    pub(super) fn apply(&mut self, command: &Command, run_attempt: u32, now: i64) {
        match command {
            Command::Start { key, attempt, .. }
            | Command::Open { key, attempt, .. }
            | Command::Wait { key, attempt, .. } => {
                let mut row = new_row(key, run_attempt, *attempt, now);
                fill(&mut row, command);
                self.count(key, run_attempt, 1, 0);
                self.rows.entry(key.clone()).or_default().push(row);
            }
            Command::Finish { key, attempt, .. } => {
                let rows = self.rows.entry(key.clone()).or_default();
                let found = rows.iter_mut().find(|row| row.run_attempt == run_attempt && row.attempt == *attempt);
                let is_new = found.is_none();
                let row = match found {
                    Some(row) => row,
                    None => {
                        rows.push(new_row(key, run_attempt, *attempt, now));
                        let last = rows.len() - 1;
                        &mut rows[last]
                    }
                };
                finish(row, command, now);
                let bytes = row.data_bytes;
                self.count(key, run_attempt, usize::from(is_new), bytes);
            }
            Command::Cancel { key, attempt, .. } | Command::Ask { key, attempt } => {
                let rows = self.rows.entry(key.clone()).or_default();
                let found = rows.iter_mut().find(|row| row.run_attempt == run_attempt && row.attempt == *attempt);
                if let Some(row) = found {
                    fill(row, command);
                }
            }
            Command::BeginEnding(_) | Command::EndRun { .. } | Command::SetTimer { .. } => {}
        }
    }
}

fn new_row(key: &StepKey, run_attempt: u32, attempt: u32, now: i64) -> StepRow {
    StepRow { key: key.clone(), run_attempt, attempt, started_at: now, ..StepRow::default() }
}

fn fill(row: &mut StepRow, command: &Command) {
    match command {
        Command::Open { block, .. } => row.block = Some(block.clone()),
        Command::Wait { until, .. } => {
            row.status = StepStatus::Waiting;
            row.until = *until;
        }
        Command::Cancel { .. } => row.cancelling = true,
        Command::Ask { .. } => row.asked = true,
        _ => {}
    }
}

fn finish(row: &mut StepRow, command: &Command, now: i64) {
    let Command::Finish { status, data, error, .. } = command else { return };
    row.status = *status;
    row.data = data.clone();
    row.data_bytes = if data.is_null() { 0 } else { json_bytes(data) };
    row.error = error.clone();
    // What the plan ends as uncertain is a call that it gives up, or the repetition of one that may have had its effect.
    // Everything else that it ends has no effect.
    if *status == StepStatus::Uncertain {
        row.may_have_happened = true;
    } else {
        row.effect = Effect::Read;
    }
    row.ended_at = Some(now);
}

impl History {
    /// Stores the outcome of a command, as a runner does with the rows of its database.
    pub fn apply(&mut self, command: &Command, now: i64) {
        match command {
            Command::BeginEnding(ending) => self.run.ending = Some(ending.clone()),
            Command::EndRun { .. } | Command::SetTimer { .. } => {}
            Command::Start { key, attempt, .. }
            | Command::Open { key, attempt, .. }
            | Command::Wait { key, attempt, .. }
            | Command::Finish { key, attempt, .. }
            | Command::Cancel { key, attempt, .. }
            | Command::Ask { key, attempt } => {
                let run_attempt = self.run.attempt;
                let is_it =
                    |row: &StepRow| row.key == *key && row.run_attempt == run_attempt && row.attempt == *attempt;
                if !self.rows.iter().any(is_it) {
                    self.rows.push(new_row(key, run_attempt, *attempt, now));
                }
                if let Some(row) = self.rows.iter_mut().find(|row| is_it(row)) {
                    fill(row, command);
                    finish(row, command, now);
                }
            }
        }
    }

    /// Ends an attempt that runs or waits, as a runner does when a call has an outcome.
    pub fn end(&mut self, key: &StepKey, status: StepStatus, data: Value, error: Option<StepError>, now: i64) {
        let run_attempt = self.run.attempt;
        let rows = self.rows.iter_mut().filter(|row| row.key == *key && row.run_attempt == run_attempt);
        if let Some(row) = rows.max_by_key(|row| row.attempt) {
            row.status = status;
            row.data_bytes = if data.is_null() { 0 } else { json_bytes(&data) };
            row.data = Arc::new(data);
            row.error = error;
            row.ended_at = Some(now);
        }
    }
}

/// Returns the items of `each` at the index, in every earlier attempt of the run.
pub(super) fn earlier_items(rows: &[StepRow], run_attempt: u32, index: usize) -> impl Iterator<Item = Option<&Value>> {
    rows.iter().filter(move |row| row.run_attempt < run_attempt).filter_map(move |row| match &row.block {
        Some(Block::Each(items)) => Some(items.get(index)),
        _ => None,
    })
}
