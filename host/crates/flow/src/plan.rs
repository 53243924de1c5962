//! Says what a run does next. A plan depends on the definition, the history and the time alone, so any host can make it, at
//! any moment, and gets the same one.

mod blocks;
mod ending;
mod frame;
mod journal;
mod start;
pub(crate) mod types;
mod walk;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::expr::{Budget, PLAN_STEPS_MAX};
use crate::model::{Definition, Step, StepKind};
use frame::Frame;
use journal::Journal;
use types::{
    Command, ENDING_ATTEMPTS_MAX, ENDING_RESULT_BYTES_MAX, Ending, History, RUN_ATTEMPTS_MAX, RUN_RESULT_BYTES_MAX,
    RunEnd, RunState, StepError, StepKey,
};
use walk::ListState;

/// Plans the next commands of a run. `now` never goes back between two plans of a run.
#[must_use]
pub fn plan(definition: &Definition, history: &History, now: i64) -> Vec<Command> {
    let mut planner = Planner::of(definition, history, now);
    // Each walk that changes something ends at least one step, opens a block, or decides how the run ends.
    loop {
        planner.changed = false;
        planner.walk();
        if !planner.changed || planner.has_ended {
            break;
        }
    }
    if let Some(at) = planner.timer.filter(|_| !planner.has_ended) {
        planner.commands.push(Command::SetTimer { at });
    }
    planner.commands
}

struct Planner<'d> {
    definition: &'d Definition,
    run: &'d RunState,
    ending: Option<Ending>,
    journal: Journal,
    /// The steps that the expressions of this plan have used.
    budget: Budget,
    now: i64,
    commands: Vec<Command>,
    timer: Option<i64>,
    /// Whether another walk may find more to do.
    changed: bool,
    has_ended: bool,
    /// Whether a `stop` has run in this plan.
    has_stopped: bool,
    /// Whether blocks keep their results of earlier attempts of the run.
    kept: RefCell<HashMap<StepKey, bool>>,
    /// In how many lists of `each` a step stands.
    depths: HashMap<&'d str, usize>,
    steps: HashMap<&'d str, &'d Step>,
    /// The steps of `finally`.
    finally: HashSet<&'d str>,
    /// The questions that name a step.
    approvals: HashMap<&'d str, Vec<String>>,
    /// The steps of each list in an order in which each comes after those that it needs.
    orders: HashMap<*const Step, Vec<usize>>,
}

impl<'d> Planner<'d> {
    fn of(definition: &'d Definition, history: &'d History, now: i64) -> Planner<'d> {
        let finally = definition.finally_ids();
        let mut planner = Planner {
            definition,
            run: &history.run,
            ending: history.run.ending.clone(),
            journal: Journal::of(history, &finally),
            budget: Budget::default(),
            now,
            commands: Vec::new(),
            timer: None,
            changed: false,
            has_ended: false,
            has_stopped: false,
            kept: RefCell::default(),
            depths: HashMap::new(),
            steps: HashMap::new(),
            finally,
            approvals: HashMap::new(),
            orders: HashMap::new(),
        };
        planner.index(&definition.steps, 0);
        planner.index(&definition.finally, 0);
        planner
    }

    fn index(&mut self, steps: &'d [Step], depth: usize) {
        self.orders.insert(steps.as_ptr(), order(steps));
        for step in steps {
            self.depths.insert(&step.id, depth);
            self.steps.insert(&step.id, step);
            if let StepKind::Approve(approve) = &step.kind {
                for target in &approve.targets {
                    self.approvals.entry(target).or_default().push(step.id.clone());
                }
            }
            let inner = if matches!(step.kind, StepKind::Each(_)) { depth + 1 } else { depth };
            step.inner().into_iter().for_each(|list| self.index(list, inner));
        }
    }

    fn order_of(&self, steps: &'d [Step]) -> Vec<usize> {
        self.orders.get(&steps.as_ptr()).cloned().unwrap_or_default()
    }

    /// Continues everything that can go on.
    fn walk(&mut self) {
        self.timer = None;
        if self.ending.is_some() {
            return self.end();
        }
        let end = self.run.started_at.saturating_add(self.definition.timeout_ms);
        if let Some(cancel) = self.run.cancel {
            let error = StepError::new("cancelled", "the run was cancelled");
            return self.begin_ending(RunEnd::Cancelled, Some(error), None, cancel.undo);
        }
        if end <= self.now {
            return self.fail_run(StepError::new("timeout", "the run did not end in time"));
        }
        if let Some(error) = self.excess(0) {
            return self.fail_run(error);
        }
        if let Some((key, stop)) = self.stopped_by() {
            return self.stop_run(&key, &stop);
        }
        self.wake_at(end);
        let definition = self.definition;
        let state = self.list(&definition.steps, &Frame::root(true));
        if self.budget.is_spent() && !matches!(state, ListState::Failed(_)) {
            let message = format!("the expressions of the run use more than {PLAN_STEPS_MAX} steps at once");
            return self.fail_run(StepError::new("limit", message));
        }
        match state {
            ListState::Open => {}
            ListState::Failed(error) => self.fail_run(error),
            ListState::Done => {
                let output = definition.output.as_ref().map(|output| self.value(output, &Frame::root(true)));
                match output.transpose() {
                    // A `stop` step can be the last one.
                    _ if self.stopped_by().is_some() => self.changed = true,
                    Ok(output) => self.begin_ending(RunEnd::Completed, None, output, false),
                    // All steps have succeeded, and only the output of the definition is wrong.
                    Err(error) => self.begin_ending(RunEnd::Failed, Some(error), None, false),
                }
            }
        }
    }

    /// Ends the run as a `stop` step says.
    fn stop_run(&mut self, key: &StepKey, stop: &serde_json::Map<String, Value>) {
        let output = stop.get("output").filter(|output| !output.is_null()).cloned();
        if stop.get("status").and_then(Value::as_str) == Some("completed") {
            return self.begin_ending(RunEnd::Completed, None, output, false);
        }
        let message = stop.get("message").and_then(Value::as_str).unwrap_or("the workflow stopped the run");
        let error = StepError { at: Some(key.clone()), ..StepError::new("stopped", message) };
        self.begin_ending(RunEnd::Failed, Some(error), output, true);
    }

    /// Returns which limit the rows of the run exceed with further attempts: one of the steps, or at the end one of `finally`.
    fn excess(&self, further: usize) -> Option<StepError> {
        let (usage, what, count_max, bytes_max) = match self.ending {
            None => (&self.journal.steps, "the run", RUN_ATTEMPTS_MAX, RUN_RESULT_BYTES_MAX),
            Some(_) => (&self.journal.ending, "`finally`", ENDING_ATTEMPTS_MAX, ENDING_RESULT_BYTES_MAX),
        };
        if usage.bytes > bytes_max {
            let message = format!("the records of {what} have more than {} MiB", bytes_max >> 20);
            return Some(StepError::new("limit", message));
        }
        (usage.count.saturating_add(further) > count_max)
            .then(|| StepError::new("limit", format!("{what} has more than {count_max} attempts of steps")))
    }

    fn fail_run(&mut self, error: StepError) {
        self.begin_ending(RunEnd::Failed, Some(error), None, true);
    }

    fn begin_ending(&mut self, status: RunEnd, error: Option<StepError>, output: Option<Value>, undo: bool) {
        let ending = Ending { status, error, output, undo, since: self.now };
        self.ending = Some(ending.clone());
        // What a run used up must not prevent that its steps are undone.
        self.budget = Budget::default();
        self.changed = true;
        self.push(Command::BeginEnding(ending));
    }

    /// Returns whether nothing new starts: the run is paused, a step has stopped it, or it has used up a limit. Only limits
    /// of its own hold back the end of a run.
    fn is_held(&self) -> bool {
        let is_held = self.run.paused || self.has_stopped || self.budget.is_spent();
        (self.ending.is_none() && is_held) || self.excess(0).is_some()
    }

    fn wake_at(&mut self, at: i64) {
        if at > self.now {
            self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
        }
    }

    fn push(&mut self, command: Command) {
        self.journal.apply(&command, self.run.attempt, self.now);
        self.commands.push(command);
    }
}

/// Returns the steps of a list in an order in which each comes after those that it needs.
fn order(steps: &[Step]) -> Vec<usize> {
    let index: HashMap<&str, usize> = steps.iter().enumerate().map(|(at, step)| (step.id.as_str(), at)).collect();
    let needs = |step: &Step| step.needs.iter().filter_map(|need| index.get(need.as_str()).copied()).collect();
    let needs: Vec<Vec<usize>> = steps.iter().map(needs).collect();
    let mut order = Vec::with_capacity(steps.len());
    let mut placed = vec![false; steps.len()];
    while order.len() < steps.len() {
        // A definition that was checked has no circle.
        let Some(next) = (0..steps.len()).find(|at| !placed[*at] && needs[*at].iter().all(|need| placed[*need])) else {
            break;
        };
        placed[next] = true;
        order.push(next);
    }
    order
}

#[cfg(test)]
mod tests;
