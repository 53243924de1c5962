//! The transactions of the turn of a step, which runs a call. Like those of the turn of a run, they lock the wake of the run
//! first, then the attempt, then the wake of the step.

use monstrum_types::{ApprovalId, RunId, UtcMillis, WorkspaceId};

use super::steps::{EndedRunStep, RunStepKey, RunStepPhase, RunStepRow, select_steps};
use super::{RunRow, run_columns, select_runs};
use crate::db::{Arg, args, retry, values};
use crate::wakes::{AfterTurn, NewWake, WakeClaim, confirm_claim, end_turn};
use crate::{Store, StoreError};

/// An attempt that waits for an approval without a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedRunStep<'a> {
    pub key: RunStepKey,
    pub approval: ApprovalId,
    /// The record as the turn has read it, and the new one.
    pub before: &'a str,
    pub sealed: &'a str,
    /// The time at which the attempt looks again, if the approval is not decided before.
    pub look_at: UtcMillis,
}

const UNENDED: &str = select_runs!("where id = $1 and workspace_id = $2 and ended_at is null");
const OPEN: &str = select_steps!(
    "where position > $1 and position < $2 and run_id = $3 and workspace_id = $4 and ended_at is null \
     order by position desc limit 1"
);
const PARK: &str = "\
    update run_steps set status = 'waiting', approval_id = $3, sealed = $5 \
    where position = $1 and run_id = $2 and sealed = $4 and ended_at is null";
const CONTINUE: &str = "\
    update run_steps set status = 'running', started_at = started_at + cast($5 as bigint), sealed = $4 \
    where position = $1 and run_id = $2 and sealed = $3 and ended_at is null";
// The update locks the row, so that the decision either sees that the attempt waits, or is seen here.
const IS_PENDING: &str = "\
    update approvals set status = status where workspace_id = $1 and id = $2 and status = 'pending'";

impl Store {
    /// Returns the open attempt of a step, with its run. Returns `None` if the run has ended or does not exist, or if no attempt
    /// is open.
    pub async fn open_step(
        &self,
        workspace: WorkspaceId,
        run: RunId,
        (phase, step, item): (RunStepPhase, &str, &str),
    ) -> Result<Option<(RunRow, RunStepRow)>, StoreError> {
        let mut session = self.db.read().await?;
        let Some(row) = session.one(UNENDED, args![run, workspace]).await? else { return Ok(None) };
        // The positions of all attempts begin with the same text, and `0` follows `/`.
        let attempts = format!("{run}/{phase}/{step}/{item}");
        let (from, to) = (format!("{attempts}/"), format!("{attempts}0"));
        let step: Option<RunStepRow> = session.one(OPEN, args![&from, &to, run, workspace]).await?;
        Ok(step.map(|step| (row, step)))
    }

    /// Ends the turn of an attempt that waits for an approval, and requests the turn of its run. If the approval is no longer
    /// pending, the attempt looks again at once. Returns `None` and writes nothing if the attempt has ended or has changed since
    /// it was read. Fails with [`StoreError::LostClaim`] if the claim was replaced.
    pub async fn park_run_step(
        &self,
        claim: &WakeClaim,
        parked: &ParkedRunStep<'_>,
        wake: &NewWake,
    ) -> Result<Option<AfterTurn>, StoreError> {
        retry!(async {
            let ParkedRunStep { key, approval, before, sealed, look_at } = parked;
            let mut session = self.db.write().await?;
            let is_pending = session.run(IS_PENDING, args![claim.workspace_id, *approval]).await? > 0;
            wake.write(&mut session).await?;
            let mut values: Vec<Arg<'_>> = key.values();
            values.extend(values![*approval, *before, *sealed]);
            if session.run(PARK, &values).await? == 0 {
                return Ok(None);
            }
            let next = if is_pending { *look_at } else { wake.due_at };
            let after = end_turn(&mut session, claim, Some(next)).await?;
            session.commit().await?;
            Ok(Some(after))
        })
    }

    /// Lets an attempt go on that has waited for `waited_ms`, and requests the turn of its run. Without a time, only its record
    /// changes. Returns `false` and writes nothing if the attempt has ended or has changed since it was read. Fails with
    /// [`StoreError::LostClaim`] if the claim was replaced.
    pub async fn continue_run_step(
        &self,
        claim: &WakeClaim,
        key: &RunStepKey,
        (before, sealed): (&str, &str),
        waited_ms: i64,
        wake: &NewWake,
    ) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            wake.write(&mut session).await?;
            let mut values: Vec<Arg<'_>> = key.values();
            values.extend(values![before, sealed, waited_ms]);
            if session.run(CONTINUE, &values).await? == 0 {
                return Ok(false);
            }
            confirm_claim(&mut session, claim).await?;
            session.commit().await?;
            Ok(true)
        })
    }

    /// Ends an attempt that no call ends, and its turn, and requests the turn of its run. An attempt that has ended in the
    /// meantime is left as it is. Fails with [`StoreError::LostClaim`] if the claim was replaced.
    pub async fn end_run_step(
        &self,
        claim: &WakeClaim,
        end: &EndedRunStep,
        wake: &NewWake,
    ) -> Result<AfterTurn, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            wake.write(&mut session).await?;
            let (sql, values) = end.statement();
            session.run(sql, &values).await?;
            let after = end_turn(&mut session, claim, None).await?;
            session.commit().await?;
            Ok(after)
        })
    }
}
