//! Walks lists of steps: what has ended, what goes on, what begins.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::Planner;
use super::frame::{Frame, time_text};
use super::types::{Command, Effect, StepError, StepKey, StepRow, StepStatus};
use crate::model::{OnError, OnUncertain, RETRY_ATTEMPTS_MAX, Step, StepKind};

/// How long a task may take if the step does not say.
const AGENT_TIMEOUT_MS: i64 = 3_600_000;

/// How a list of steps is doing.
#[derive(Debug)]
pub(super) enum ListState {
    /// Something goes on or is still to come.
    Open,
    /// All steps have ended.
    Done,
    /// A step failed, and nothing else goes on.
    Failed(StepError),
}

/// How a step is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has not begun.
    New,
    /// It goes on, or it will be repeated.
    Open,
    /// It has ended, and the steps after it may go on.
    Met,
    /// It has failed.
    Failed(StepError),
}

/// What follows an attempt that failed or is uncertain.
enum Next {
    /// Another attempt at this time.
    Attempt { at: i64, same_request: bool },
    /// A person is asked.
    Ask,
    /// The step has ended.
    End(StepError),
}

impl<'d> Planner<'d> {
    /// Continues a list of steps.
    pub(super) fn list(&mut self, steps: &'d [Step], frame: &Frame) -> ListState {
        if let Some(error) = self.failure(steps, frame) {
            return if self.stop(steps, frame) { ListState::Open } else { ListState::Failed(error) };
        }
        let mut all_met = true;
        // The steps that have ended, as have all that they need: in a retry of the run, a step can keep its result while one
        // before it runs again.
        let mut settled: HashSet<&str> = HashSet::new();
        for index in self.order_of(steps) {
            let step = &steps[index];
            let is_ready = step.needs.iter().all(|need| settled.contains(need.as_str()));
            let progress = match self.progress(step, frame) {
                Progress::New if !is_ready => Progress::New,
                Progress::New => self.begin(step, frame),
                Progress::Open => self.go_on(step, frame),
                ended => ended,
            };
            match progress {
                Progress::Met if is_ready => drop(settled.insert(&step.id)),
                Progress::Met => {}
                Progress::Failed(_) => {
                    // The next walk stops the other steps before anything else begins.
                    self.changed = true;
                    return ListState::Open;
                }
                Progress::New | Progress::Open => all_met = false,
            }
        }
        if all_met { ListState::Done } else { ListState::Open }
    }

    /// Returns the error of the first step of the list that has failed.
    pub(super) fn failure(&self, steps: &'d [Step], frame: &Frame) -> Option<StepError> {
        first_cause(steps.iter().filter_map(|step| match self.progress(step, frame) {
            Progress::Failed(error) => Some(error),
            _ => None,
        }))
    }

    /// Returns the row that says how a step is doing.
    pub(super) fn current(&self, step: &Step, frame: &Frame) -> Option<&StepRow> {
        self.current_at(step, &frame.key(&step.id), frame.reuses())
    }

    /// Returns the row that says how a step is doing, by its key. If `reuse` is set, that can be a result of an earlier
    /// attempt of the run. A `stop` or a decision is not kept, nor is a block with one or with a step that was undone.
    pub(super) fn current_at(&self, step: &Step, key: &StepKey, reuse: bool) -> Option<&StepRow> {
        let row = self.journal.current(key, self.run.attempt, reuse)?;
        let is_kept = row.run_attempt == self.run.attempt || self.is_kept(step, row);
        is_kept.then_some(row)
    }

    /// Returns whether a result of an earlier attempt of the run is kept. Commands do not change this, so a plan looks into
    /// each block once.
    fn is_kept(&self, step: &Step, row: &StepRow) -> bool {
        if runs_anew(step) || step.inner().is_empty() {
            return !runs_anew(step);
        }
        if let Some(is_kept) = self.kept.borrow().get(&row.key) {
            return *is_kept;
        }
        let is_kept = !self.runs_anew_inside(step, row);
        self.kept.borrow_mut().insert(row.key.clone(), is_kept);
        is_kept
    }

    /// Returns whether something inside a block, which succeeded in an earlier attempt of the run, must run again.
    fn runs_anew_inside(&self, block: &Step, row: &StepRow) -> bool {
        block.inner().into_iter().flatten().any(|step| {
            let mut rows = self.journal.of_step(&step.id);
            let is_here = |item: &str| {
                let rest = item.strip_prefix(&row.key.item);
                rest.is_some_and(|rest| row.key.item.is_empty() || rest.is_empty() || rest.starts_with('.'))
            };
            rows.any(|inner| {
                let is_undone = inner.status == StepStatus::Undone || self.journal.is_undone(inner, self.run.attempt);
                let has_ended = inner.status == StepStatus::Succeeded && inner.run_attempt == row.run_attempt;
                (is_undone || (has_ended && runs_anew(step))) && is_here(&inner.key.item)
            }) || self.runs_anew_inside(step, row)
        })
    }

    /// Returns how a step is doing by its rows alone.
    pub(super) fn progress(&self, step: &'d Step, frame: &Frame) -> Progress {
        let key = frame.key(&step.id);
        let Some(row) = self.current(step, frame) else { return Progress::New };
        match row.status {
            StepStatus::Running | StepStatus::Waiting => Progress::Open,
            StepStatus::Succeeded | StepStatus::Skipped | StepStatus::Undone => Progress::Met,
            StepStatus::Failed | StepStatus::Cancelled | StepStatus::Uncertain => match next(step, row) {
                Next::Attempt { .. } | Next::Ask => Progress::Open,
                Next::End(_) if step.on_error == OnError::Continue => Progress::Met,
                Next::End(mut error) => {
                    error.at.get_or_insert(key);
                    Progress::Failed(error)
                }
            },
        }
    }

    /// Begins the first attempt of a step in this attempt of the run.
    fn begin(&mut self, step: &'d Step, frame: &Frame) -> Progress {
        if self.is_held() {
            return Progress::New;
        }
        let key = frame.key(&step.id);
        match step.when.as_ref().map_or(Ok(true), |when| self.holds(when, frame)) {
            Ok(true) => self.attempt(step, frame, 1, false),
            Ok(false) => self.finish(&key, 1, StepStatus::Skipped, Value::Null, None),
            Err(error) => self.fail(&key, 1, error),
        }
        match self.progress(step, frame) {
            // Its time may have to be watched, and the steps of a block begin at once.
            Progress::Open => self.go_on(step, frame),
            ended => ended,
        }
    }

    /// Continues a step that goes on.
    fn go_on(&mut self, step: &'d Step, frame: &Frame) -> Progress {
        let key = frame.key(&step.id);
        let Some(row) = self.current(step, frame).cloned() else { return Progress::New };
        match row.status {
            StepStatus::Running if row.block.is_some() => self.block(step, &row, frame),
            StepStatus::Running => self.watch(step, &row),
            StepStatus::Waiting => self.wait_on(step, &row),
            _ => match next(step, &row) {
                Next::Attempt { at, same_request } if at <= self.now => {
                    if !self.is_held() {
                        self.attempt(step, frame, row.attempt + 1, same_request);
                        if let Some(row) = self.current(step, frame).filter(|row| row.status.is_active()).cloned() {
                            self.watch(step, &row);
                        }
                    }
                }
                Next::Attempt { at, .. } => self.wake_at(at),
                Next::Ask if !row.asked => {
                    if !self.is_held() {
                        self.push(Command::Ask { key, attempt: row.attempt });
                    }
                }
                Next::Ask | Next::End(_) => {}
            },
        }
        self.progress(step, frame)
    }

    /// Stops an attempt whose time is over.
    pub(super) fn watch(&mut self, step: &Step, row: &StepRow) {
        let default = matches!(step.kind, StepKind::Agent(_)).then_some(AGENT_TIMEOUT_MS);
        let Some(timeout) = step.timeout_ms.or(default).filter(|_| !row.key.undo) else { return };
        let end = row.started_at.saturating_add(timeout);
        if row.cancelling {
            return;
        }
        if end <= self.now {
            self.push(Command::Cancel { key: row.key.clone(), attempt: row.attempt, timed_out: true });
        } else {
            self.wake_at(end);
        }
    }

    /// Ends a wait or a question at its time. A call that waits for a person has no time of its own here.
    fn wait_on(&mut self, step: &Step, row: &StepRow) {
        let (until, status) = match &step.kind {
            StepKind::Wait(crate::model::Wait::Event { .. }) => (None, StepStatus::Failed),
            StepKind::Wait(_) => (row.until, StepStatus::Succeeded),
            StepKind::Approve(_) => (row.until, StepStatus::Failed),
            _ => return,
        };
        let timeout = step.timeout_ms.map(|timeout| row.started_at.saturating_add(timeout));
        if let Some(until) = until.filter(|until| timeout.is_none_or(|timeout| *until <= timeout)) {
            if until > self.now {
                return self.wake_at(until);
            }
            let data = time_text(until).filter(|_| status == StepStatus::Succeeded).map_or(Value::Null, Value::String);
            let error = (status == StepStatus::Failed).then(|| StepError::new("timeout", "nobody decided in time"));
            return self.finish(&row.key, row.attempt, status, data, error);
        }
        match timeout {
            Some(timeout) if timeout <= self.now => {
                let error = StepError::new("timeout", "what the step waits for did not happen in time");
                self.fail(&row.key, row.attempt, error);
            }
            Some(timeout) => self.wake_at(timeout),
            None => {}
        }
    }

    /// Stops what goes on in a list, and returns whether something still does.
    pub(super) fn stop(&mut self, steps: &'d [Step], frame: &Frame) -> bool {
        let mut is_active = false;
        for step in steps {
            let key = frame.key(&step.id);
            let Some(row) = self.current(step, frame).filter(|row| row.status.is_active()).cloned() else { continue };
            if row.block.is_some() {
                if self.stop_block(step, &row, frame) {
                    is_active = true;
                } else {
                    self.finish(&key, row.attempt, StepStatus::Cancelled, Value::Null, Some(stopped()));
                }
            } else if row.status == StepStatus::Waiting && matches!(step.kind, StepKind::Wait(_) | StepKind::Approve(_))
            {
                self.finish(&key, row.attempt, StepStatus::Cancelled, Value::Null, Some(stopped()));
            } else {
                is_active = true;
                if !row.cancelling {
                    self.push(Command::Cancel { key, attempt: row.attempt, timed_out: false });
                }
            }
        }
        is_active
    }

    pub(super) fn fail(&mut self, key: &StepKey, attempt: u32, error: StepError) {
        self.finish(key, attempt, StepStatus::Failed, Value::Null, Some(error));
    }

    pub(super) fn finish(
        &mut self,
        key: &StepKey,
        attempt: u32,
        status: StepStatus,
        data: Value,
        error: Option<StepError>,
    ) {
        self.changed = true;
        self.push(Command::Finish { key: key.clone(), attempt, status, data: Arc::new(data), error });
    }
}

/// Returns the first error that is a cause. A step that was stopped is a consequence of another one.
pub(super) fn first_cause(errors: impl Iterator<Item = StepError>) -> Option<StepError> {
    let errors: Vec<StepError> = errors.collect();
    let cause = errors.iter().position(|error| error.code != "cancelled").unwrap_or_default();
    errors.into_iter().nth(cause)
}

fn stopped() -> StepError {
    StepError::new("cancelled", "the step was stopped, because the run goes another way")
}

/// Returns whether a step runs again in each attempt of the run. If a `stop` kept its result, nothing would stop the run;
/// if a question did, a person would have approved calls of an attempt that they do not know.
fn runs_anew(step: &Step) -> bool {
    matches!(step.kind, StepKind::Stop { .. } | StepKind::Approve(_))
}

/// Decides what follows an attempt that failed, was stopped or is uncertain.
fn next(step: &Step, row: &StepRow) -> Next {
    let error = row.error.clone().unwrap_or_else(|| StepError::new(row.status.as_str(), "the step has no result"));
    let ended = row.ended_at.unwrap_or(row.started_at);
    // An expression or a limit gives the same error again.
    let is_final = row.refused || matches!(error.code.as_str(), "expression" | "limit");
    match row.status {
        StepStatus::Uncertain => {
            let error = StepError { code: "uncertain".to_owned(), ..error };
            match step.on_uncertain {
                _ if row.repeat => Next::Attempt { at: ended, same_request: true },
                OnUncertain::Retry if row.attempt < RETRY_ATTEMPTS_MAX && !is_final => {
                    Next::Attempt { at: ended.saturating_add(pause(step, row.attempt)), same_request: true }
                }
                OnUncertain::Ask => Next::Ask,
                OnUncertain::Fail | OnUncertain::Retry => Next::End(error),
            }
        }
        StepStatus::Failed => {
            let is_listed = step.retry.on.is_empty() || step.retry.on.contains(&error.code);
            let is_harmless = !row.may_have_happened || row.effect != Effect::Write;
            let is_final = is_final || row.block.is_some();
            if row.attempt < step.retry.attempts && is_listed && is_harmless && !is_final {
                let at = ended.saturating_add(pause(step, row.attempt));
                return Next::Attempt { at, same_request: row.may_have_happened };
            }
            Next::End(error)
        }
        _ => Next::End(error),
    }
}

/// The pause after an attempt: it doubles with each one.
fn pause(step: &Step, attempt: u32) -> i64 {
    let doubled = 1_i64.checked_shl(attempt.saturating_sub(1)).unwrap_or(i64::MAX);
    step.retry.backoff_ms.saturating_mul(doubled).min(step.retry.backoff_max_ms)
}
