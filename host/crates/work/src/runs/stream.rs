//! Follows a run: its steps as they begin, wait and end, and the run as its status changes.
//!
//! The rows are read again and again. An attempt is sent when it has begun and each time that its status has changed. A listener
//! that continues gets the attempts that have not ended, and those that have ended since.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use monstrum_api::runs::{Run, RunStep, RunWait};
use monstrum_core::operations::{Caller, OperationError};
use monstrum_store::{RunRow, RunStatus, RunStepHead, RunStepStatus};
use monstrum_types::{RunId, UtcMillis};
use serde::Serialize;

use super::operations::Runs;

/// The interval at which the rows are read.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// The interval for a run with more attempts than that, so that long journals are read less often.
const LONG_READ_INTERVAL: Duration = Duration::from_secs(5);
const LONG_RUN_STEPS: usize = 1000;
/// The time by which an end can become visible after ends that are later: hosts have clocks of their own, and the time of an end
/// is read before it is written. Ends within it are sent again to a listener that continues.
const OVERLAP_MS: i64 = 5_000;

/// An event of a run.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum RunEvent {
    /// The run, when a listener comes and when its status or its attempt has changed.
    Run(Box<Run>),
    /// An attempt of a step that has begun, waits or has ended.
    Step(Box<RunStep>),
    /// A person has to decide.
    Approval(RunWait),
    /// The run that has ended. It is the last event.
    End(Box<Run>),
}

/// A listener of a run.
pub struct Following {
    runs: Arc<Runs>,
    caller: Caller,
    id: RunId,
    /// The latest end of an attempt that was sent.
    after: UtcMillis,
    /// The attempts that were read last, with what is known of them.
    seen: HashMap<String, (RunStepStatus, Option<UtcMillis>)>,
    /// The attempts that have changed and are not sent yet. Their records are read one by one, because one can have a MiB.
    changed: VecDeque<RunStepHead>,
    queued: VecDeque<RunEvent>,
    /// The status and the attempt of the run that were sent last.
    state: Option<(RunStatus, i64)>,
    asked: HashSet<(String, Option<String>, String, Option<String>)>,
    /// Whether the run had ended before the attempts were read.
    is_over: bool,
    is_ended: bool,
    interval: Duration,
}

impl RunEvent {
    /// Returns the name of the event.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            RunEvent::Run(_) => "run",
            RunEvent::Step(_) => "step",
            RunEvent::Approval(_) => "approval",
            RunEvent::End(_) => "end",
        }
    }
}

impl Runs {
    /// Follows a run. `after` is what [`Following::position`] returned when the last event was received.
    ///
    /// # Errors
    ///
    /// The run does not exist, or the caller may not see it.
    pub async fn follow(
        self: &Arc<Self>,
        caller: Caller,
        id: RunId,
        after: Option<UtcMillis>,
    ) -> Result<Following, OperationError> {
        let mut following = Following {
            runs: Arc::clone(self),
            caller,
            id,
            after: after.unwrap_or(UtcMillis(i64::MIN)),
            seen: HashMap::new(),
            changed: VecDeque::new(),
            queued: VecDeque::new(),
            state: None,
            asked: HashSet::new(),
            is_over: false,
            is_ended: false,
            interval: READ_INTERVAL,
        };
        following.read().await?;
        Ok(following)
    }
}

impl Following {
    /// Returns the position at which a listener continues that has received all events so far.
    #[must_use]
    pub fn position(&self) -> Option<UtcMillis> {
        (self.after.0 > i64::MIN).then_some(self.after)
    }

    /// Waits for the next event. Returns `None` after the end of the run, when the key of the caller is deleted or rotated, and
    /// when the host stops.
    ///
    /// # Errors
    ///
    /// The database failed, or the run was deleted.
    pub async fn next(&mut self) -> Result<Option<RunEvent>, OperationError> {
        loop {
            let app = Arc::clone(&self.runs.app);
            if !self.caller.is_known(&app.policy.load(), app.clock.now()) {
                return Ok(None);
            }
            if let Some(event) = self.queued.pop_front() {
                return Ok(Some(event));
            }
            if let Some(head) = self.changed.pop_front() {
                let row = app.store.run_step_at(self.caller.workspace, self.id, &head.position).await?;
                let Some(row) = row else { continue };
                // A time in the future would hide the ends before it.
                let ended_at = row.ended_at.unwrap_or(self.after).min(app.clock.now());
                self.after = self.after.max(ended_at);
                return Ok(Some(RunEvent::Step(Box::new(self.runs.step(&row)))));
            }
            if self.is_ended {
                return Ok(None);
            }
            if self.is_over {
                self.is_ended = true;
                return Ok(Some(RunEvent::End(Box::new(self.runs.show(&self.caller, self.id).await?))));
            }
            tokio::select! {
                () = tokio::time::sleep(self.interval) => {}
                () = app.approvals.closed() => return Ok(None),
            }
            self.read().await?;
        }
    }

    /// Reads the run and the attempts that may have changed, and queues what is new.
    async fn read(&mut self) -> Result<(), OperationError> {
        // The run is read before the attempts, so that a run that has ended has all of them.
        let row = self.runs.row(&self.caller, self.id).await?;
        let since = self.after.plus_ms(-OVERLAP_MS);
        let heads = self.runs.app.store.run_step_heads(self.caller.workspace, self.id, since).await?;
        self.interval = if heads.len() > LONG_RUN_STEPS { LONG_READ_INTERVAL } else { READ_INTERVAL };
        let changed = self.note(heads);
        self.is_over = row.ended_at.is_some();
        let state = Some((row.status, row.attempt));
        if self.state != state && !self.is_over {
            self.queued.push_back(RunEvent::Run(Box::new(self.runs.view(&row).await?)));
        }
        if changed || self.state != state {
            self.ask(&row).await?;
        }
        self.state = state;
        Ok(())
    }

    /// Notes what is known of the attempts, and queues those that have changed. Returns whether some have.
    fn note(&mut self, heads: Vec<RunStepHead>) -> bool {
        let mut seen = HashMap::with_capacity(heads.len());
        for head in heads {
            let known = (head.status, head.ended_at);
            seen.insert(head.position.clone(), known);
            if self.seen.get(&head.position) != Some(&known) {
                self.changed.push_back(head);
            }
        }
        // Attempts that ended before what was read last do not change any more.
        self.seen = seen;
        !self.changed.is_empty()
    }

    /// Queues what people have to decide, once for each question.
    async fn ask(&mut self, row: &RunRow) -> Result<(), OperationError> {
        if row.ended_at.is_some() {
            return Ok(());
        }
        for wait in self.runs.waits(row).await? {
            let is_question = matches!(wait.kind.as_str(), "approval" | "gate" | "resolve");
            let key = (wait.step.clone(), wait.item.clone(), wait.kind.clone(), wait.id.clone());
            if is_question && self.asked.insert(key) {
                self.queued.push_back(RunEvent::Approval(wait));
            }
        }
        Ok(())
    }
}
