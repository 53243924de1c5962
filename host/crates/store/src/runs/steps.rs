//! The steps of runs: one row for each attempt.

use monstrum_types::{ApprovalId, RequestId, RunId, TaskId, UtcMillis, WakeClaimId, WakeKey, WorkspaceId, words};

use super::RunRow;
use crate::db::{Arg, Session, args, from_row, retry, values};
use crate::wakes::NewWake;
use crate::{Store, StoreError};

words! {
    /// What an attempt is for.
    pub enum RunStepPhase {
        /// To do the step.
        Do = "do",
        /// To undo it.
        Undo = "undo",
    }
}

words! {
    /// The status of an attempt.
    pub enum RunStepStatus {
        Running = "running",
        /// The attempt waits for a time, an event, a person, a task or a run.
        Waiting = "waiting",
        Succeeded = "succeeded",
        Failed = "failed",
        Skipped = "skipped",
        Cancelled = "cancelled",
        /// The call may have had its effect, and nothing repeats it.
        Uncertain = "uncertain",
        Undone = "undone",
    }
}

words! {
    /// Why a run stops an attempt.
    pub enum RunStepStop {
        /// The run goes another way.
        Cancel = "cancel",
        /// The time of the attempt is over.
        Timeout = "timeout",
    }
}

/// The key of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStepKey {
    pub run_id: RunId,
    pub phase: RunStepPhase,
    pub step: String,
    /// The items of the blocks around the step, such as `3.0`; empty outside of `each`.
    pub item: String,
    /// The attempt of the run to which this attempt belongs.
    pub run_attempt: i64,
    /// 1 for the first attempt of the step in this attempt of the run.
    pub attempt: i64,
}

/// A row of `run_steps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStepRow {
    pub run_id: RunId,
    pub phase: RunStepPhase,
    pub step: String,
    pub item: String,
    /// The attempt of the run to which this attempt belongs.
    pub run_attempt: i64,
    pub attempt: i64,
    pub workspace_id: WorkspaceId,
    /// The kind of the step, as definitions name it.
    pub kind: String,
    pub status: RunStepStatus,
    /// The effect of the tool when the attempt was planned.
    pub effect: Option<String>,
    /// Why the attempt failed.
    pub code: Option<String>,
    /// What the attempt has made: a call in the audit, a task, a run, an approval.
    pub request_id: Option<RequestId>,
    pub task_id: Option<TaskId>,
    pub child_run_id: Option<RunId>,
    pub approval_id: Option<ApprovalId>,
    /// Why the run has asked the attempt to stop; `None` if it has not.
    pub stopping: Option<RunStepStop>,
    /// The time until which the attempt waits.
    pub wait_until: Option<UtcMillis>,
    /// The type of the event for which the attempt waits.
    pub wait_event: Option<String>,
    pub started_at: UtcMillis,
    pub ended_at: Option<UtcMillis>,
    /// The parameters and the result: a sealed record in its text form.
    pub sealed: String,
}

from_row! {
    RunStepRow {
        run_id, phase, step, item, run_attempt, attempt, workspace_id, kind, status, effect, code, request_id, task_id,
        child_run_id, approval_id, stopping, wait_until, wait_event, started_at, ended_at, sealed,
    }
}

/// What a person says about an uncertain attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRunStep<'a> {
    /// The run and the attempt as they were read, and their new records.
    pub run: (&'a RunRow, &'a str),
    pub step: (&'a RunStepRow, &'a str),
    pub status: RunStepStatus,
    pub code: Option<&'a str>,
    pub ended_at: UtcMillis,
}

/// The end of an attempt. For a call, it is written in the transaction of its audit row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedRunStep {
    pub key: RunStepKey,
    /// The claim of the wake of the step or of the run. The end is not written if the claim was replaced.
    pub wake: WakeKey,
    pub claim: WakeClaimId,
    pub status: RunStepStatus,
    pub code: Option<String>,
    pub ended_at: UtcMillis,
    pub sealed: String,
}

macro_rules! select_steps {
    ($rest:expr) => {
        concat!(
            "select run_id, phase, step, item, run_attempt, attempt, workspace_id, kind, status, effect, code, \
             request_id, task_id, child_run_id, approval_id, stopping, wait_until, wait_event, started_at, ended_at, sealed \
             from run_steps ",
            $rest
        )
    };
}

pub(super) use select_steps;

pub(super) const OF_RUN: &str = select_steps!("where run_id = $1 order by started_at, position");
const FIRST: &str = select_steps!("where workspace_id = $1 and run_id = $2 order by started_at, position limit $3");
const OPEN: &str = select_steps!("where position = $1 and run_id = $2 and ended_at is null");
const LATEST: &str = select_steps!(
    "where workspace_id = $1 and run_id = $2 and phase = 'do' and step = $3 and item = $4 order by run_attempt desc, attempt desc \
     limit 1"
);
const INSERT: &str = "\
    insert into run_steps (position, run_id, phase, step, item, run_attempt, attempt, workspace_id, kind, status, \
    effect, code, request_id, task_id, child_run_id, approval_id, stopping, wait_until, wait_event, started_at, \
    ended_at, sealed) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)";
const END: &str = "\
    update run_steps set status = $3, code = $4, ended_at = $5, sealed = $6 \
    where position = $1 and run_id = $2 and ended_at is null \
    and exists (select 1 from wakes where key = $7 and claim_id = $8)";
pub(super) const STOP: &str =
    "update run_steps set stopping = $3 where position = $1 and run_id = $2 and ended_at is null";
pub(super) const ASK_AGAIN: &str =
    "update run_steps set approval_id = $3 where position = $1 and run_id = $2 and ended_at is null";
pub(super) const RESEAL: &str = "update run_steps set sealed = $4 where position = $1 and run_id = $2 and sealed = $3";
// The record of the run is replaced as well, so that a turn that has read the attempt before decides again.
const RESOLVE_RUN: &str = "update runs set sealed = $3 where workspace_id = $1 and id = $2 and sealed = $4";
const RESOLVE: &str = "\
    update run_steps set status = $3, code = $4, ended_at = $5, sealed = $6 \
    where position = $1 and run_id = $2 and workspace_id = $7 and sealed = $8";

impl RunStepKey {
    /// Returns the key as one text, in which rows and their locks are ordered.
    #[must_use]
    pub fn position(&self) -> String {
        let RunStepKey { run_id, phase, step, item, run_attempt, attempt } = self;
        format!("{run_id}/{phase}/{step}/{item}/{run_attempt:06}/{attempt:06}")
    }

    /// Returns the parameters that select the row: the first two of a statement.
    pub(super) fn values(&self) -> Vec<Arg<'static>> {
        vec![Arg::Text(Some(self.position().into())), Arg::from(self.run_id)]
    }
}

impl RunStepRow {
    /// Returns the key of the attempt.
    #[must_use]
    pub fn key(&self) -> RunStepKey {
        let RunStepRow { run_id, phase, run_attempt, attempt, .. } = *self;
        RunStepKey { run_id, phase, step: self.step.clone(), item: self.item.clone(), run_attempt, attempt }
    }

    pub(super) async fn insert(&self, session: &mut Session) -> Result<(), StoreError> {
        let position = self.key().position();
        let values = args![
            &position,
            self.run_id,
            self.phase.as_str(),
            &self.step,
            &self.item,
            self.run_attempt,
            self.attempt,
            self.workspace_id,
            &self.kind,
            self.status.as_str(),
            &self.effect,
            &self.code,
            self.request_id,
            self.task_id,
            self.child_run_id,
            self.approval_id,
            self.stopping.map(RunStepStop::as_str),
            self.wait_until,
            &self.wait_event,
            self.started_at,
            self.ended_at,
            &self.sealed,
        ];
        session.run(INSERT, values).await?;
        Ok(())
    }
}

impl EndedRunStep {
    /// Returns the statement that writes the end.
    pub(crate) fn statement(&self) -> (&'static str, Vec<Arg<'_>>) {
        let mut values: Vec<Arg<'_>> = self.key.values();
        values.extend(values![self.status.as_str(), &self.code, self.ended_at, &self.sealed, &self.wake, self.claim]);
        (END, values)
    }

    /// Returns the sort key of the end among the rows of a transaction.
    pub(crate) fn lock_order(&self) -> String {
        self.key.position()
    }
}

impl Store {
    /// Returns the first steps of a run, in the order in which their attempts began.
    pub async fn run_steps(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        limit: u32,
    ) -> Result<Vec<RunStepRow>, StoreError> {
        self.db.all(FIRST, args![workspace, run, i64::from(limit)]).await
    }

    /// Returns an attempt that has not ended.
    pub async fn open_run_step(&self, key: &RunStepKey) -> Result<Option<RunStepRow>, StoreError> {
        self.db.one(OPEN, &key.values()).await
    }

    /// Returns the latest attempt to do a step.
    pub async fn latest_run_step(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        step: &str,
        item: &str,
    ) -> Result<Option<RunStepRow>, StoreError> {
        self.db.one(LATEST, args![workspace, run, step, item]).await
    }

    /// Writes what a person says about an uncertain attempt, and requests the turn of the run. Returns `false` if the run or
    /// the attempt has changed since it was read.
    pub async fn resolve_run_step(&self, said: &ResolvedRunStep<'_>, wake: &NewWake) -> Result<bool, StoreError> {
        let ResolvedRunStep { run: (run, sealed_run), step: (step, sealed_step), status, code, ended_at } = said;
        retry!(async {
            let mut session = self.db.write().await?;
            // The wake comes first, as in the turn of a run.
            wake.write(&mut session).await?;
            if session.run(RESOLVE_RUN, args![run.workspace_id, run.id, *sealed_run, &run.sealed]).await? == 0 {
                return Ok(false);
            }
            let mut values: Vec<Arg<'_>> = step.key().values();
            values.extend(values![status.as_str(), *code, *ended_at, *sealed_step, run.workspace_id, &step.sealed]);
            if step.run_id != run.id || session.run(RESOLVE, &values).await? == 0 {
                return Ok(false);
            }
            session.commit().await?;
            Ok(true)
        })
    }
}
