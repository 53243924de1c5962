//! Approvals of steps of workflows: asked for in the transaction of the turn of a run, and answered with the wakes of the
//! run and of the step that waits.
//!
//! Transactions lock the seal of the workspace before the wakes, so that a turn and a decision cannot wait for each other.

use monstrum_types::{ApprovalId, BotId, Digest, UtcMillis, WorkspaceId};

use super::{
    ApprovalKind, ApprovalRow, ApprovalStatus, LATEST_OF_DIGEST, PENDING_OF_BOT, PENDING_OF_WORKSPACE, PendingMax,
    next_moment,
};
use crate::db::{Session, args, values};
use crate::rows::{Change, Scope, change};
use crate::wakes::{DueWake, NewWake};
use crate::{EventRow, Store, StoreError};

/// A new approval of a step, with everything that is written with it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewApproval {
    /// The row, which is pending. `changed_at` is replaced.
    pub row: ApprovalRow,
    /// The text of the question and the parameters of the calls: a sealed record in its text form.
    pub sealed: String,
    /// The event that reports the approval.
    pub requested: EventRow,
    /// The maximum numbers of pending approvals.
    pub max: PendingMax,
}

// A step with a call waits itself; another one waits in the turns of its run, which has a wake of its own below.
const WAKE_STEPS: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select distinct 'step/' || run_id || '/' || step || case when item = '' then '' else '/' || item end \
    || case when phase = 'undo' then '/undo' else '' end, workspace_id, cast($3 as bigint), 1 from run_steps \
    where workspace_id = $1 and approval_id = $2 and ended_at is null and kind = 'tool' order by 1 \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 where wakes.workspace_id = excluded.workspace_id \
    returning key, workspace_id, due_at";
const WAKE_RUN: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'run/' || id, workspace_id, cast($3 as bigint), 1 from runs \
    where workspace_id = $1 and id = $2 and ended_at is null \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1 where wakes.workspace_id = excluded.workspace_id \
    returning key, workspace_id, due_at";

/// Requests turns of the run whose step has asked, and of the steps whose calls wait for the approval. Returns the wakes.
pub(super) async fn wake(session: &mut Session, row: &ApprovalRow, now: UtcMillis) -> Result<Vec<NewWake>, StoreError> {
    let mut due: Vec<DueWake> = Vec::new();
    if let Some(run) = row.run_id {
        due = session.all(WAKE_RUN, args![row.workspace_id, run, now]).await?;
    }
    let of_steps: Vec<DueWake> = session.all(WAKE_STEPS, args![row.workspace_id, row.id, now]).await?;
    due.extend(of_steps);
    let wakes =
        due.into_iter().map(|DueWake { key, workspace_id, due_at }| NewWake { key, workspace_id, due_at, claim: None });
    Ok(wakes.collect())
}

impl Change<'_> {
    /// Inserts a new approval of a step with its event. Fails with [`StoreError::ChangedMeanwhile`] if the bot or the
    /// workspace has too many pending approvals.
    pub(crate) async fn insert_step_approval(&mut self, new: &NewApproval) -> Result<(), StoreError> {
        let (workspace, now) = (new.row.workspace_id, new.row.created_at);
        let of_bot: Option<i64> = self.session.one(PENDING_OF_BOT, args![new.row.bot_id, now]).await?;
        let of_all: Option<i64> = self.session.one(PENDING_OF_WORKSPACE, args![workspace, now]).await?;
        if of_bot.unwrap_or(i64::MAX) >= new.max.of_bot || of_all.unwrap_or(i64::MAX) >= new.max.of_workspace {
            return Err(StoreError::ChangedMeanwhile);
        }
        let changed_at = next_moment(&mut self.session, workspace, now).await?;
        let row = ApprovalRow { changed_at, ..new.row.clone() };
        self.insert_uncounted(&row, Vec::new(), values![&new.sealed]).await?;
        new.requested.insert(&mut self.session).await?;
        Ok(())
    }

    /// Makes an approval of a step void if it is still pending, because its run does not wait for it any more.
    pub(crate) async fn void_pending(
        &mut self,
        workspace: WorkspaceId,
        id: ApprovalId,
        now: UtcMillis,
    ) -> Result<(), StoreError> {
        let changed_at = next_moment(&mut self.session, workspace, now).await?;
        let next = |old: &ApprovalRow| {
            let is_pending = old.kind == ApprovalKind::Step && old.status == ApprovalStatus::Pending;
            (is_pending && old.workspace_id == workspace).then(|| ApprovalRow {
                status: ApprovalStatus::Void,
                ended_at: Some(now),
                changed_at,
                ..old.clone()
            })
        };
        self.update_uncounted(args![id], next).await?;
        Ok(())
    }
}

impl Store {
    /// Returns how many further approvals of a bot may be pending.
    pub async fn room_for_approvals(
        &self,
        workspace: WorkspaceId,
        bot: BotId,
        max: PendingMax,
        now: UtcMillis,
    ) -> Result<i64, StoreError> {
        let of_bot: Option<i64> = self.db.one(PENDING_OF_BOT, args![bot, now]).await?;
        let of_all: Option<i64> = self.db.one(PENDING_OF_WORKSPACE, args![workspace, now]).await?;
        let left = |max: i64, pending: Option<i64>| max.saturating_sub(pending.unwrap_or(i64::MAX)).max(0);
        Ok(left(max.of_bot, of_bot).min(left(max.of_workspace, of_all)))
    }

    /// Returns the newest approval of a step with this digest, in any status.
    pub async fn step_approval(
        &self,
        workspace: WorkspaceId,
        digest: &Digest,
    ) -> Result<Option<ApprovalRow>, StoreError> {
        self.authentic_one(LATEST_OF_DIGEST, args![workspace, digest]).await
    }

    /// Makes the approval of a step void that has been approved, because the call that it approves has changed. Returns
    /// whether it had been approved until then.
    pub async fn void_step_approval(&self, row: &ApprovalRow, now: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let changed_at = next_moment(&mut change.session, row.workspace_id, now).await?;
                let next = |old: &ApprovalRow| {
                    let is_approved = old.kind == ApprovalKind::Step && old.status == ApprovalStatus::Approved;
                    (is_approved && old.digest == row.digest).then(|| ApprovalRow {
                        status: ApprovalStatus::Void,
                        ended_at: Some(now),
                        changed_at,
                        ..old.clone()
                    })
                };
                Ok(change.update_uncounted(args![row.id], next).await?.is_some())
            }
            .await
        })
    }
}
