//! Turns the commands of a plan into the rows that a turn of a run writes in one transaction.
//!
//! This module starts nothing: the caller writes the wakes, tasks, runs, events and approvals of what begins in the same
//! transaction.

use std::collections::HashMap;

use monstrum_flow::{Block, Command, Definition, Ending, RunEnd, StepError, StepKey, StepStatus, Work};
use monstrum_store::{
    EndedRunStep, RunRow, RunStatus, RunStepKey, RunStepPhase, RunStepRow, RunStepStatus, RunStepStop, WakeClaim,
};
use monstrum_types::{RequestId, UtcMillis};
use monstrum_vault::Vault;
use serde_json::Value;

use super::record::{
    BlockContent, EndingContent, RecordError, RunContent, StepContent, WaitContent, WorkContent, seal_step,
};

/// What a turn of a run writes.
#[derive(Debug)]
pub struct Progress {
    pub status: RunStatus,
    /// The new content of the run.
    pub content: RunContent,
    /// New attempts, which are not sealed yet.
    pub steps: Vec<(RunStepRow, StepContent)>,
    /// Attempts that end without a call.
    pub ended: Vec<EndedRunStep>,
    /// Attempts that are to stop.
    pub stopped: Vec<(RunStepKey, RunStepStop)>,
    /// Attempts with a new record.
    pub resealed: Vec<(RunStepKey, String, String)>,
    /// The attempts that begin something outside of the plan.
    pub started: Vec<StartedStep>,
    /// The attempts about which a person is asked.
    pub asked: Vec<RunStepKey>,
    /// Whether the plan has a command other than a timer.
    pub is_step: bool,
    /// The time of the next turn, if nothing happens before.
    pub next: Option<UtcMillis>,
}

/// An attempt that begins something outside of the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct StartedStep {
    pub key: RunStepKey,
    pub work: Work,
}

/// A plan does not fit the rows of its run.
#[derive(Debug, thiserror::Error)]
pub enum ProgressError {
    #[error("the plan changes an attempt that does not exist")]
    NoAttempt,
    #[error("the plan repeats a call that has no request id")]
    NoRequest,
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A run as its turn has read it.
#[derive(Clone, Copy)]
struct Read<'a> {
    run: &'a RunRow,
    steps: &'a [(RunStepRow, StepContent)],
}

struct Writer<'a> {
    vault: &'a Vault,
    read: Read<'a>,
    claim: &'a WakeClaim,
    kinds: HashMap<&'a str, &'static str>,
    now: UtcMillis,
    progress: Progress,
}

/// Turns the commands of a plan into rows. `steps` are the attempts of the run, with their contents.
///
/// # Errors
///
/// The plan does not fit the rows, or a record cannot be sealed.
pub fn progress(
    vault: &Vault,
    claim: &WakeClaim,
    definition: &Definition,
    (run, content, steps): (&RunRow, &RunContent, &[(RunStepRow, StepContent)]),
    commands: Vec<Command>,
    now: UtcMillis,
) -> Result<Progress, ProgressError> {
    let mut kinds = HashMap::new();
    definition.walk(&mut |step| {
        kinds.insert(step.id.as_str(), step.kind.name());
    });
    let progress = Progress {
        status: run.status,
        content: RunContent { started_at: Some(content.started_at.unwrap_or(now)), ..content.clone() },
        steps: Vec::new(),
        ended: Vec::new(),
        stopped: Vec::new(),
        resealed: Vec::new(),
        started: Vec::new(),
        asked: Vec::new(),
        is_step: commands.iter().any(|command| !matches!(command, Command::SetTimer { .. })),
        next: None,
    };
    let read = Read { run, steps };
    let mut writer = Writer { vault, read, claim, kinds, now, progress };
    for command in commands {
        writer.apply(command)?;
    }
    let mut progress = writer.progress;
    progress.status = progress.status_of(steps);
    Ok(progress)
}

/// Returns the end of an attempt, whose content says how it ended.
///
/// # Errors
///
/// The content cannot be sealed.
pub(super) fn ended(
    vault: &Vault,
    claim: &WakeClaim,
    (row, content): (&RunStepRow, &StepContent),
    now: UtcMillis,
) -> Result<EndedRunStep, RecordError> {
    Ok(EndedRunStep {
        key: row.key(),
        wake: claim.key.clone(),
        claim: claim.id,
        status: column(content.status),
        code: content.error.as_ref().map(|error| error.code.clone()),
        ended_at: now,
        sealed: seal_step(vault, row, content)?,
    })
}

impl Progress {
    /// Returns the status of the run. `steps` are the attempts that the turn has read.
    pub(super) fn status_of(&self, steps: &[(RunStepRow, StepContent)]) -> RunStatus {
        match &self.content.ending {
            Some(ending) if self.content.has_ended => match ending.status {
                RunEnd::Completed => RunStatus::Completed,
                RunEnd::Failed => RunStatus::Failed,
                RunEnd::Cancelled => RunStatus::Cancelled,
            },
            Some(ending) if ending.undo => RunStatus::Undoing,
            _ if self.has_running(steps) => RunStatus::Running,
            _ if self.content.asked.as_deref() == Some("pause") => RunStatus::Paused,
            _ => RunStatus::Waiting,
        }
    }

    /// Returns whether a call runs. A task or a run of a step runs by itself, and the run waits for it.
    fn has_running(&self, steps: &[(RunStepRow, StepContent)]) -> bool {
        let ended = |row: &RunStepRow| self.ended.iter().any(|end| end.key == row.key());
        steps.iter().filter(|(row, _)| !ended(row)).chain(&self.steps).any(|(_, content)| {
            let is_call = matches!(content.work, Some(WorkContent::Tool { .. }));
            is_call && content.status == StepStatus::Running && content.ended_at.is_none()
        })
    }
}

/// Makes an attempt one that has failed before it could begin anything.
pub(super) fn fail((row, content): &mut (RunStepRow, StepContent), error: StepError, now: UtcMillis) {
    (row.status, row.code, row.ended_at) = (RunStepStatus::Failed, Some(error.code.clone()), Some(now));
    (row.wait_until, row.wait_event) = (None, None);
    content.status = StepStatus::Failed;
    content.effect = Some("read".to_owned());
    content.ended_at = Some(now);
    content.error = Some(error);
}

impl<'a> Writer<'a> {
    fn apply(&mut self, command: Command) -> Result<(), ProgressError> {
        match command {
            Command::Start { key, attempt, work, same_request, approved_by } => {
                let request_id = match (&work, same_request) {
                    (Work::Tool { .. }, false) => Some(RequestId::new()),
                    (Work::Tool { .. }, true) => Some(self.request_before(&key).ok_or(ProgressError::NoRequest)?),
                    (Work::Agent { .. } | Work::Workflow { .. } | Work::Emit { .. }, _) => None,
                };
                let row = RunStepRow { request_id, ..self.row(&key, attempt) };
                self.progress.started.push(StartedStep { key: row.key(), work: work.clone() });
                let work = Some(WorkContent::from(work));
                let content = StepContent { work, approved_by, repeats: same_request, ..StepContent::default() };
                self.progress.steps.push((row, content));
            }
            Command::Open { key, attempt, block } => {
                let block = Some(content_of(block));
                self.progress.steps.push((self.row(&key, attempt), StepContent { block, ..StepContent::default() }));
            }
            Command::Wait { key, attempt, wait, until } => {
                let wait_until = until.map(UtcMillis);
                let row = RunStepRow { status: RunStepStatus::Waiting, wait_until, ..self.row(&key, attempt) };
                let (status, wait) = (StepStatus::Waiting, Some(WaitContent::from(wait)));
                self.progress.steps.push((row, StepContent { status, wait_until, wait, ..StepContent::default() }));
            }
            Command::Finish { key, attempt, status, data, error } => {
                self.end(&key, attempt, (status, Value::clone(&data), error))?;
            }
            Command::Cancel { key, attempt, timed_out } => {
                let stop = if timed_out { RunStepStop::Timeout } else { RunStepStop::Cancel };
                let (row, _) = self.known(&key, attempt).ok_or(ProgressError::NoAttempt)?;
                self.progress.stopped.push((row.key(), stop));
            }
            Command::Ask { key, attempt } => {
                let is_it = |row: &RunStepRow| is_of(row, &key) && row.attempt == i64::from(attempt);
                if let Some((row, content)) = self.progress.steps.iter_mut().find(|(row, _)| is_it(row)) {
                    content.asked = true;
                    self.progress.asked.push(row.key());
                    return Ok(());
                }
                let (row, content) = self.known(&key, attempt).ok_or(ProgressError::NoAttempt)?;
                let asked = StepContent { asked: true, ..content.clone() };
                let sealed = seal_step(self.vault, row, &asked)?;
                self.progress.resealed.push((row.key(), row.sealed.clone(), sealed));
                self.progress.asked.push(row.key());
            }
            Command::BeginEnding(ending) => self.progress.content.ending = Some(stored(ending)),
            Command::EndRun { status, output, error, uncertain, undo_failed } => {
                let undo = self.progress.content.ending.as_ref().is_some_and(|ending| ending.undo);
                let ending = EndingContent { status, error, output, undo, since: self.now };
                self.progress.content.ending = Some(ending);
                self.progress.content.has_ended = true;
                (self.progress.content.uncertain, self.progress.content.undo_failed) = (uncertain, undo_failed);
            }
            Command::SetTimer { at } => self.progress.next = Some(UtcMillis(at)),
        }
        Ok(())
    }

    /// Ends an attempt: one of this plan, one that the turn has read, or a new one that never began.
    fn end(
        &mut self,
        key: &StepKey,
        attempt: u32,
        (status, data, error): (StepStatus, Value, Option<StepError>),
    ) -> Result<(), ProgressError> {
        let (now, run_attempt) = (self.now, self.read.run.attempt);
        // What the plan ends as uncertain is a call that it gives up, or the repetition of one that may have had its effect.
        // Everything else that it ends has no effect.
        let is_uncertain = status == StepStatus::Uncertain;
        let of_step = |content: &StepContent| StepContent {
            status,
            data,
            error: error.clone(),
            effect: if is_uncertain { content.effect.clone() } else { Some("read".to_owned()) },
            may_have_happened: is_uncertain,
            ended_at: Some(now),
            ..content.clone()
        };
        let code = error.as_ref().map(|error| error.code.clone());
        let is_it = |row: &RunStepRow| is_of(row, key) && row.attempt == i64::from(attempt);
        if let Some((row, content)) = self.progress.steps.iter_mut().find(|(row, _)| is_it(row)) {
            *content = of_step(content);
            (row.status, row.code, row.ended_at) = (column(status), code, Some(now));
            return Ok(());
        }
        let known = self.read.steps.iter().find(|(row, _)| is_it(row) && row.run_attempt == run_attempt);
        if let Some((row, content)) = known {
            self.progress.ended.push(ended(self.vault, self.claim, (row, &of_step(content)), now)?);
            return Ok(());
        }
        let row = RunStepRow { status: column(status), code, ended_at: Some(now), ..self.row(key, attempt) };
        let content = of_step(&StepContent::default());
        self.progress.steps.push((row, content));
        Ok(())
    }

    fn row(&self, key: &StepKey, attempt: u32) -> RunStepRow {
        let kind = if key.undo { "tool" } else { self.kinds.get(key.step.as_str()).copied().unwrap_or("tool") };
        RunStepRow {
            run_id: self.read.run.id,
            phase: if key.undo { RunStepPhase::Undo } else { RunStepPhase::Do },
            step: key.step.clone(),
            item: key.item.clone(),
            run_attempt: self.read.run.attempt,
            attempt: i64::from(attempt),
            workspace_id: self.read.run.workspace_id,
            kind: kind.to_owned(),
            status: RunStepStatus::Running,
            effect: None,
            code: None,
            request_id: None,
            task_id: None,
            child_run_id: None,
            approval_id: None,
            stopping: None,
            wait_until: None,
            wait_event: None,
            started_at: self.now,
            ended_at: None,
            sealed: String::new(),
        }
    }

    fn known(&self, key: &StepKey, attempt: u32) -> Option<&'a (RunStepRow, StepContent)> {
        let (run_attempt, attempt) = (self.read.run.attempt, i64::from(attempt));
        let is_it = |row: &RunStepRow| is_of(row, key) && row.attempt == attempt && row.run_attempt == run_attempt;
        self.read.steps.iter().find(|(row, _)| is_it(row))
    }

    /// Returns the request id of the last attempt of a step that has one. A repetition that could not begin has none.
    fn request_before(&self, key: &StepKey) -> Option<RequestId> {
        let earlier = self.read.steps.iter().map(|(row, _)| row).filter(|row| is_of(row, key));
        let calls = earlier.filter(|row| row.request_id.is_some() && row.run_attempt == self.read.run.attempt);
        calls.max_by_key(|row| row.attempt)?.request_id
    }
}

fn is_of(row: &RunStepRow, key: &StepKey) -> bool {
    row.step == key.step && row.item == key.item && (row.phase == RunStepPhase::Undo) == key.undo
}

fn content_of(block: Block) -> BlockContent {
    match block {
        Block::Choose(branch) => BlockContent::Choose(branch),
        Block::Parallel => BlockContent::Parallel,
        Block::Each(items) => BlockContent::Each(items.as_ref().clone()),
    }
}

fn stored(ending: Ending) -> EndingContent {
    let Ending { status, error, output, undo, since } = ending;
    EndingContent { status, error, output, undo, since: UtcMillis(since) }
}

pub(super) fn column(status: StepStatus) -> RunStepStatus {
    match status {
        StepStatus::Running => RunStepStatus::Running,
        StepStatus::Waiting => RunStepStatus::Waiting,
        StepStatus::Succeeded => RunStepStatus::Succeeded,
        StepStatus::Failed => RunStepStatus::Failed,
        StepStatus::Skipped => RunStepStatus::Skipped,
        StepStatus::Cancelled => RunStepStatus::Cancelled,
        StepStatus::Uncertain => RunStepStatus::Uncertain,
        StepStatus::Undone => RunStepStatus::Undone,
    }
}

#[cfg(test)]
mod tests;
