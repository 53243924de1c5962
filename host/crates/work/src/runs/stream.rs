//! Follows a run: its steps as they begin, wait and end, and the run as its status changes.
//!
//! The rows are read again and again. An attempt is sent when it has begun and each time that its status has changed. A listener
//! that continues gets the attempts that have not ended, and those that have ended since its position.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::str::FromStr;
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
/// is read before it is written. A position therefore names the attempts that have ended within this time before it.
const OVERLAP_MS: i64 = 5_000;
/// The maximum number of attempts that a position names. Of more, some are sent again to a listener that continues.
const NAMED_MAX: usize = 64;

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

/// Where a listener continues: the time of the latest end that it has received, and which ends just before it has received. As a
/// text, the time and a short hash of each attempt have dots between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPosition {
    at: UtcMillis,
    received: VecDeque<(u32, UtcMillis)>,
}

/// A text is not the position of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the id of an event of a run")]
pub struct InvalidRunPosition;

/// A listener of a run.
pub struct Following {
    runs: Arc<Runs>,
    caller: Caller,
    id: RunId,
    /// What was sent; `None` before the first end.
    position: Option<RunPosition>,
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
    /// Follows a run, from the beginning or from the position of the last event that was received.
    ///
    /// # Errors
    ///
    /// The run does not exist, or the caller may not see it.
    pub async fn follow(
        self: &Arc<Self>,
        caller: Caller,
        id: RunId,
        position: Option<RunPosition>,
    ) -> Result<Following, OperationError> {
        let mut following = Following {
            runs: Arc::clone(self),
            caller,
            id,
            position,
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

impl RunPosition {
    /// Notes that a listener has received the end of an attempt.
    fn receive(position: &mut Option<RunPosition>, attempt: &str, ended_at: UtcMillis) {
        let position = position.get_or_insert_with(|| RunPosition { at: ended_at, received: VecDeque::new() });
        position.at = position.at.max(ended_at);
        position.received.push_back((hash(attempt), ended_at));
        let first = position.at.plus_ms(-OVERLAP_MS);
        position.received.retain(|(_, ended_at)| *ended_at >= first);
        while position.received.len() > NAMED_MAX {
            position.received.pop_front();
        }
    }

    /// Returns whether the end of an attempt was received.
    fn has(&self, head: &RunStepHead) -> bool {
        let Some(ended_at) = head.ended_at.filter(|ended_at| *ended_at <= self.at) else { return false };
        let name = hash(&head.position);
        ended_at < self.at.plus_ms(-OVERLAP_MS) || self.received.iter().any(|(received, _)| *received == name)
    }
}

impl fmt::Display for RunPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at.0)?;
        self.received.iter().try_for_each(|(name, _)| write!(f, ".{name:08x}"))
    }
}

impl FromStr for RunPosition {
    type Err = InvalidRunPosition;

    fn from_str(text: &str) -> Result<Self, InvalidRunPosition> {
        let mut parts = text.split('.');
        let at = parts.next().and_then(|at| at.parse().ok()).map(UtcMillis).ok_or(InvalidRunPosition)?;
        // How long ago these have ended is not known, so they are as late as they can be.
        let name = |name: &str| u32::from_str_radix(name, 16).map(|name| (name, at)).map_err(|_| InvalidRunPosition);
        let received = parts.map(name).collect::<Result<VecDeque<_>, _>>()?;
        if received.len() > NAMED_MAX { Err(InvalidRunPosition) } else { Ok(RunPosition { at, received }) }
    }
}

/// Returns the hash of a name: FNV-1a, the same on each host. Names with the same hash only have to be rare.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl Following {
    /// Returns the position at which a listener continues that has received all events so far.
    #[must_use]
    pub fn position(&self) -> Option<&RunPosition> {
        self.position.as_ref()
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
                if let Some(ended_at) = row.ended_at {
                    // A time in the future would hide the ends before it.
                    let ended_at = ended_at.min(app.clock.now());
                    RunPosition::receive(&mut self.position, &head.position, ended_at);
                }
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
        let since = self.position.as_ref().map_or(UtcMillis(i64::MIN), |position| position.at.plus_ms(-OVERLAP_MS));
        let heads = self.runs.app.store.run_step_heads(self.caller.workspace, self.id, since).await?;
        self.interval = if heads.len() > LONG_RUN_STEPS { LONG_READ_INTERVAL } else { READ_INTERVAL };
        let changed = self.note(heads);
        self.is_over = row.ended_at.is_some();
        let state = Some((row.status, row.attempt));
        if self.state != state && (self.state.is_none() || !self.is_over) {
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
            let is_new = match self.seen.get(&head.position) {
                Some(seen) => *seen != known,
                None => self.position.as_ref().is_none_or(|position| !position.has(&head)),
            };
            if is_new {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn head(position: &str, ended_at: Option<i64>) -> RunStepHead {
        let status = if ended_at.is_some() { RunStepStatus::Succeeded } else { RunStepStatus::Running };
        RunStepHead { position: position.to_owned(), status, ended_at: ended_at.map(UtcMillis) }
    }

    /// A listener that continues misses no end, also one that was written after later ones, and gets none twice.
    #[test]
    fn a_position_knows_what_was_received() {
        let mut position = None;
        for (attempt, ended_at) in [("old", 100), ("a", 90_000), ("b", 91_000)] {
            RunPosition::receive(&mut position, attempt, UtcMillis(ended_at));
        }
        let position: RunPosition = position.unwrap().to_string().parse().unwrap();
        for (head, expected) in [
            (head("old", Some(100)), true),
            (head("a", Some(90_000)), true),
            (head("b", Some(91_000)), true),
            (head("late", Some(90_500)), false),
            (head("next", Some(91_001)), false),
            (head("runs", None), false),
            // A person has resolved the attempt since.
            (head("a", Some(99_000)), false),
        ] {
            assert_eq!(position.has(&head), expected, "{head:?}");
        }
    }

    #[test]
    fn a_position_names_a_bounded_number_of_attempts() {
        let mut position = None;
        for number in 0..=NAMED_MAX {
            RunPosition::receive(&mut position, &number.to_string(), UtcMillis(5));
        }
        let position = position.unwrap();
        assert_eq!(position.received.len(), NAMED_MAX);
        assert!(!position.has(&head("0", Some(5))) && position.has(&head("1", Some(5))));
        let text = position.to_string();
        assert_eq!(text.parse::<RunPosition>().unwrap().to_string(), text);
        for bad in ["", "x", "5.x", "5.", ".5", &format!("{text}.00000000")] {
            assert!(bad.parse::<RunPosition>().is_err(), "{bad}");
        }
    }
}
