//! The transactions of a run's turn.

use monstrum_types::{ApprovalId, Labels, RunId, UtcMillis};

use super::steps::{EndedRunStep, OF_RUN, RESEAL, RunStepKey, RunStepRow, RunStepStop, STOP};
use super::{RunRow, RunStatus, run_columns, select_runs};
use crate::db::{Arg, args, retry, values};
use crate::rows::{Change, Scope, change};
use crate::wakes::{AfterTurn, NewWake, WakeClaim, confirm_claim, end_turn};
use crate::{EventRow, NewApproval, Store, StoreError};

/// What a turn of a run writes, all or nothing.
#[derive(Clone, Debug)]
pub struct RunProgress<'a> {
    /// The run as the turn has read it.
    pub read: &'a RunRow,
    /// The time of the turn.
    pub now: UtcMillis,
    pub status: RunStatus,
    pub code: Option<&'a str>,
    pub labels: &'a Labels,
    pub started_at: Option<UtcMillis>,
    pub deadline_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
    pub sealed: &'a str,
    /// The ends of attempts that no call ends.
    pub ended: Vec<EndedRunStep>,
    /// The attempts that are to stop.
    pub stopped: Vec<(RunStepKey, RunStepStop)>,
    /// Attempts whose records are replaced, with the records that the turn has read and the new ones.
    pub resealed: Vec<(RunStepKey, String, String)>,
    /// New attempts.
    pub steps: Vec<RunStepRow>,
    /// The wakes of the steps that begin.
    pub wakes: Vec<NewWake>,
    pub events: Vec<EventRow>,
    /// The approvals that steps ask for.
    pub approvals: Vec<NewApproval>,
    /// The approvals for which no step waits any more. Those that are pending become void.
    pub void: Vec<ApprovalId>,
    /// The time of the next turn of the run.
    pub next: Option<UtcMillis>,
}

const OF_TURN: &str = select_runs!("where id = $1 and workspace_id = $2 and ended_at is null");
const PROGRESS: &str = "\
    update runs set status = $2, code = $3, labels = $4, started_at = $5, deadline_at = $6, ended_at = $7, sealed = $8 \
    where id = $1 and ended_at is null and sealed = $9";

impl Store {
    /// Begins a turn of a run: returns the run with its journal, or `None` if it has ended or does not exist. Fails with
    /// [`StoreError::LostClaim`] if the claim was replaced.
    pub async fn begin_run_turn(
        &self,
        claim: &WakeClaim,
        id: RunId,
    ) -> Result<Option<(RunRow, Vec<RunStepRow>)>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            confirm_claim(&mut session, claim).await?;
            let run: Option<RunRow> = session.one(OF_TURN, args![id, claim.workspace_id]).await?;
            let Some(run) = run else { return Ok(None) };
            let steps: Vec<RunStepRow> = session.all(OF_RUN, args![id]).await?;
            session.commit().await?;
            Ok(Some((run, steps)))
        })
    }

    /// Writes what a turn of a run has decided, and ends the turn. Fails with
    /// [`StoreError::ChangedMeanwhile`] and writes nothing if the run has ended or changed meanwhile, or an attempt that is to end or
    /// to stop: the turn then has to decide again.
    pub async fn advance_run(&self, claim: &WakeClaim, progress: &RunProgress<'_>) -> Result<AfterTurn, StoreError> {
        // The seal precedes the wakes, as in the transaction of a decision.
        let scope = [Scope::from(progress.read.workspace_id)];
        let has_approvals = !progress.approvals.is_empty() || !progress.void.is_empty();
        let scopes: &[Scope] = if has_approvals { &scope } else { &[] };
        change!(self, scopes, |change| self.write_progress(&mut change, claim, progress).await)
    }

    async fn write_progress(
        &self,
        change: &mut Change<'_>,
        claim: &WakeClaim,
        progress: &RunProgress<'_>,
    ) -> Result<AfterTurn, StoreError> {
        let session = &mut change.session;
        confirm_claim(session, claim).await?;
        let RunProgress { read, status, code, labels, started_at, deadline_at, ended_at, sealed, .. } = progress;
        let values = args![
            read.id,
            status.as_str(),
            *code,
            *labels,
            *started_at,
            *deadline_at,
            *ended_at,
            *sealed,
            &read.sealed,
        ];
        let mut is_current = session.run(PROGRESS, values).await? > 0;
        for end in &progress.ended {
            let (sql, values) = end.statement();
            is_current = is_current && session.run(sql, &values).await? > 0;
        }
        for (key, stop) in &progress.stopped {
            let mut values = key.values();
            values.extend(values![stop.as_str()]);
            is_current = is_current && session.run(STOP, &values).await? > 0;
        }
        for (key, before, after) in &progress.resealed {
            let mut values: Vec<Arg<'_>> = key.values();
            values.extend(values![before, after]);
            is_current = is_current && session.run(RESEAL, &values).await? > 0;
        }
        if !is_current {
            return Err(StoreError::ChangedMeanwhile);
        }
        for step in &progress.steps {
            step.insert(session).await?;
        }
        for event in &progress.events {
            event.insert(session).await?;
        }
        for approval in &progress.approvals {
            change.insert_step_approval(approval).await?;
        }
        for id in &progress.void {
            change.void_pending(progress.read.workspace_id, *id, progress.now).await?;
        }
        let session = &mut change.session;
        for wake in &progress.wakes {
            let wake = self.timed(session, wake).await?;
            wake.write(session).await?;
        }
        end_turn(session, claim, progress.next).await
    }
}
