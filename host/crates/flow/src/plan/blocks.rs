//! Steps that contain steps.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Planner;
use super::frame::Frame;
use super::journal::earlier_items;
use super::types::{Block, STEP_RESULT_BYTES_MAX, StepError, StepRow, StepStatus};
use super::walk::{ListState, Progress, first_cause};
use crate::expr::json_bytes;
use crate::model::{Each, OnError, Step, StepKind};

impl<'d> Planner<'d> {
    /// Continues a block that is open.
    pub(super) fn block(&mut self, step: &'d Step, row: &StepRow, frame: &Frame) {
        if self.is_late(step, row) {
            if !self.is_done(step, row, frame) {
                if !self.stop_block(step, row, frame) {
                    let error = StepError::new("timeout", "the steps of the block did not end in time");
                    self.fail(&row.key, row.attempt, error);
                }
                return;
            }
        } else if let Some(timeout) = step.timeout_ms {
            self.wake_at(row.started_at.saturating_add(timeout));
        }
        match (&step.kind, &row.block) {
            (StepKind::Choose(branches), Some(Block::Choose(index))) => {
                let Some(branch) = branches.get(*index) else { return };
                match self.list(&branch.steps, frame) {
                    ListState::Open => {}
                    ListState::Done => {
                        self.finish(&row.key, row.attempt, StepStatus::Succeeded, json!({"branch": index}), None);
                    }
                    ListState::Failed(error) => self.fail(&row.key, row.attempt, error),
                }
            }
            (StepKind::Parallel(branches), Some(Block::Parallel)) => self.parallel(branches, row, frame),
            (StepKind::Each(each), Some(Block::Each(items))) => self.each(each, &items.clone(), row, frame),
            _ => {}
        }
    }

    fn is_late(&self, step: &Step, row: &StepRow) -> bool {
        step.timeout_ms.is_some_and(|timeout| row.started_at.saturating_add(timeout) <= self.now)
    }

    /// Returns whether all steps inside an open block have ended well.
    fn is_done(&self, step: &'d Step, row: &StepRow, frame: &Frame) -> bool {
        let is_met =
            |steps: &'d [Step], frame: &Frame| steps.iter().all(|step| self.progress(step, frame) == Progress::Met);
        match (&step.kind, &row.block) {
            (StepKind::Choose(branches), Some(Block::Choose(index))) => {
                branches.get(*index).is_none_or(|branch| is_met(&branch.steps, frame))
            }
            (StepKind::Parallel(branches), _) => branches.iter().all(|(_, steps)| is_met(steps, frame)),
            (StepKind::Each(each), Some(Block::Each(items))) => {
                (0..items.len()).all(|index| is_met(&each.steps, &self.item_frame(row, items, index, frame)))
            }
            _ => true,
        }
    }

    fn parallel(&mut self, branches: &'d [(String, Vec<Step>)], row: &StepRow, frame: &Frame) {
        let (mut failed, mut all_done) = (Vec::new(), true);
        for (_, steps) in branches {
            match self.list(steps, frame) {
                ListState::Open => all_done = false,
                ListState::Done => {}
                ListState::Failed(error) => failed.push(error),
            }
        }
        if let Some(error) = first_cause(failed.into_iter()) {
            let mut is_active = false;
            for (_, steps) in branches {
                is_active |= self.stop(steps, frame);
            }
            if !is_active {
                self.fail(&row.key, row.attempt, error);
            }
        } else if all_done {
            self.finish(&row.key, row.attempt, StepStatus::Succeeded, json!({}), None);
        }
    }

    fn each(&mut self, each: &'d Each, items: &Arc<Vec<Value>>, row: &StepRow, frame: &Frame) {
        let mut open = 0;
        let mut ended: Vec<Option<StepError>> = Vec::new();
        for index in 0..items.len() {
            let inner = self.item_frame(row, items, index, frame);
            if open >= each.concurrency && self.is_new(&each.steps, &inner) {
                break;
            }
            match self.list(&each.steps, &inner) {
                ListState::Open => open += 1,
                ListState::Done => ended.push(None),
                ListState::Failed(error) if each.on_item_error == OnError::Continue => ended.push(Some(error)),
                ListState::Failed(_) => return self.fail_each(each, items, row, frame),
            }
        }
        if ended.len() < items.len() {
            return;
        }
        let mut list = Vec::with_capacity(items.len());
        for (index, failed) in ended.into_iter().enumerate() {
            let inner = self.item_frame(row, items, index, frame);
            match failed.map_or_else(|| self.collected(each, &inner), Err) {
                Ok(data) => list.push(json!({"status": "succeeded", "data": data, "error": null})),
                Err(error) if each.on_item_error == OnError::Continue => {
                    let error = json!({"code": error.code, "message": error.message});
                    list.push(json!({"status": "failed", "data": null, "error": error}));
                }
                Err(error) => return self.fail(&row.key, row.attempt, error),
            }
        }
        let data = Value::Array(list);
        if json_bytes(&data) > STEP_RESULT_BYTES_MAX {
            let error = StepError::new("limit", "the results of all items have more than 1 MiB; use `collect`");
            return self.fail(&row.key, row.attempt, error);
        }
        self.finish(&row.key, row.attempt, StepStatus::Succeeded, data, None);
    }

    /// Returns whether an item is still to begin in this attempt of the run. Results that it has kept do not count, unless
    /// they are all of it.
    fn is_new(&self, steps: &'d [Step], frame: &Frame) -> bool {
        let has_begun = |step: &Step| {
            let rows = self.journal.all(&frame.key(&step.id));
            rows.iter().any(|row| row.run_attempt == self.run.attempt)
        };
        !steps.iter().any(has_begun) && steps.iter().any(|step| self.progress(step, frame) != Progress::Met)
    }

    /// Stops the other items, and fails the block when nothing goes on.
    fn fail_each(&mut self, each: &'d Each, items: &Arc<Vec<Value>>, row: &StepRow, frame: &Frame) {
        let mut is_active = false;
        for index in 0..items.len() {
            is_active |= self.stop(&each.steps, &self.item_frame(row, items, index, frame));
        }
        let errors =
            (0..items.len()).filter_map(|index| self.failure(&each.steps, &self.item_frame(row, items, index, frame)));
        if let (Some(error), false) = (first_cause(errors), is_active) {
            self.fail(&row.key, row.attempt, error);
        }
    }

    /// The data of an item that ended well.
    fn collected(&self, each: &'d Each, frame: &Frame) -> Result<Value, StepError> {
        if let Some(collect) = &each.collect {
            return self.expression(collect, frame);
        }
        let row = each.steps.last().and_then(|step| self.current(step, frame));
        Ok(row.map_or(Value::Null, |row| (*row.data).clone()))
    }

    /// The place of an item. Results of earlier attempts of the run count only if it was the same item each time.
    pub(super) fn item_frame(&self, row: &StepRow, items: &Arc<Vec<Value>>, index: usize, frame: &Frame) -> Frame {
        let mut earlier = earlier_items(self.journal.all(&row.key), self.run.attempt, index);
        let is_same = earlier.all(|item| item == items.get(index));
        frame.item(items, index, is_same)
    }

    /// Stops what goes on inside a block, and returns whether something still does.
    pub(super) fn stop_block(&mut self, step: &'d Step, row: &StepRow, frame: &Frame) -> bool {
        match (&step.kind, &row.block) {
            (StepKind::Choose(branches), Some(Block::Choose(index))) => {
                branches.get(*index).is_some_and(|branch| self.stop(&branch.steps, frame))
            }
            (StepKind::Parallel(branches), _) => {
                let mut is_active = false;
                for (_, steps) in branches {
                    is_active |= self.stop(steps, frame);
                }
                is_active
            }
            (StepKind::Each(each), Some(Block::Each(items))) => {
                let items = items.clone();
                let mut is_active = false;
                for index in 0..items.len() {
                    is_active |= self.stop(&each.steps, &self.item_frame(row, &items, index, frame));
                }
                is_active
            }
            _ => false,
        }
    }
}
