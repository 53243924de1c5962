//! Approvals: the decisions of people about single calls, and about steps of workflows.
//!
//! An approval has a row in `approvals`, which records its whole life. While an approval permits a call, it also has a
//! row in `approval_grants`, which the seal of the workspace counts. Each step of an approval is one transaction that
//! locks the seal of the workspace, so only one of several concurrent hosts and calls can perform the step.

mod grants;
mod steps;

use monstrum_types::{ApprovalId, BotId, Digest, KeyId, RequestId, ResourceId, RunId, UtcMillis, WorkspaceId, words};
use serde_json::Value;

pub use grants::GrantRow;
pub use steps::NewApproval;

use crate::db::{Arg, Session, args, values};
use crate::rows::{Scope, authentic, change};
use crate::wakes::NewWake;
use crate::{EventRow, Listed, Page, Store, StoreError};

words! {
    /// The status of an approval.
    pub enum ApprovalStatus {
        /// No person has decided yet.
        Pending = "pending",
        /// A person has approved the call, and the call has not run yet.
        Approved = "approved",
        /// A person has denied the call.
        Denied = "denied",
        /// The call has run.
        Used = "used",
        /// The time limit has passed before the call ran.
        Expired = "expired",
        /// The tool, its component or its resource has changed before a person decided, or a step needs no decision any
        /// more.
        Void = "void",
    }
}

words! {
    /// The kind of an approval.
    pub enum ApprovalKind {
        /// The approval of a call.
        Call = "call",
        /// The approval of a step of a workflow.
        Step = "step",
    }
}

/// A row of `approvals`, without the parameters of the call.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRow {
    pub id: ApprovalId,
    pub workspace_id: WorkspaceId,
    pub kind: ApprovalKind,
    /// The digest that identifies the call or the question.
    pub digest: Digest,
    /// The digest of the tool, its component and its resource, or of those of all calls of a question.
    pub definition: Digest,
    pub status: ApprovalStatus,
    pub bot_id: BotId,
    /// The app and the user on whose behalf the call is made.
    pub app_id: Option<String>,
    pub user_id: Option<String>,
    /// What the call runs; `None` for a step.
    pub tool: Option<String>,
    pub resource_id: Option<ResourceId>,
    pub operation: Option<String>,
    pub effect: Option<String>,
    pub links: Value,
    pub labels: Value,
    pub gates: Value,
    /// The kinds of keys that may decide, in addition to root keys.
    pub approvers: Value,
    pub allow_starter: bool,
    /// The key that made the call.
    pub asked_key: Option<KeyId>,
    /// The task that made the call.
    pub asked_task: Option<String>,
    /// The call that used the approval.
    pub request_id: Option<RequestId>,
    pub created_at: UtcMillis,
    pub expires_at: UtcMillis,
    pub decided_by: Option<KeyId>,
    pub decided_at: Option<UtcMillis>,
    pub note: Option<String>,
    pub ended_at: Option<UtcMillis>,
    /// The time of the last change. Within a workspace, each change has a later time than the change before.
    pub changed_at: UtcMillis,
    /// The run whose step asks; `None` for a call.
    pub run_id: Option<RunId>,
    /// The step that asks.
    pub run_step: Option<String>,
    /// The items of the blocks around the step, such as `3.0`; `None` outside of `each`.
    pub item: Option<String>,
    /// The calls of later steps that are approved, as a JSON list.
    pub targets: Option<Value>,
    /// The keys that started the run, or made what started it, as a JSON list.
    pub starters: Option<Value>,
}

authentic! {
    ApprovalRow in Approvals("approvals"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, kind, digest, definition, status, bot_id, app_id, user_id, tool, resource_id, operation,
        effect, links, labels, gates, approvers, allow_starter, asked_key, asked_task, request_id, created_at,
        expires_at, decided_by, decided_at, note, ended_at, changed_at,
    ],
    optional: [run_id, run_step, item, targets, starters],
    others: [],
    // The sealed record of the parameters authenticates itself.
    spec: { content: &["sealed"], is_counted: false },
}

impl ApprovalRow {
    /// Returns whether the approval is pending or approved at `now`.
    #[must_use]
    pub fn is_open(&self, now: UtcMillis) -> bool {
        self.is_unended() && self.expires_at > now
    }

    /// Returns whether the approval is pending, or approved and not used yet. The approval of a step ends with the decision:
    /// the step has succeeded.
    #[must_use]
    pub fn is_unended(&self) -> bool {
        matches!(self.status, ApprovalStatus::Pending | ApprovalStatus::Approved) && self.ended_at.is_none()
    }

    /// Returns whether a person has denied the call and the denial is in force at `now`.
    #[must_use]
    pub fn is_denied(&self, now: UtcMillis) -> bool {
        self.status == ApprovalStatus::Denied && self.expires_at > now
    }
}

/// The maximum numbers of pending approvals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingMax {
    pub of_bot: i64,
    pub of_workspace: i64,
}

/// The result of asking for an approval.
#[derive(Clone, Debug, PartialEq)]
pub enum AskedApproval {
    /// The row was inserted.
    New(ApprovalRow),
    /// The call has an approval already: it is pending, approved or denied.
    Known(ApprovalRow),
    /// The last approval of the call has expired, but its row is still pending or approved. End it, then ask again.
    Due(ApprovalRow),
    /// The bot or the workspace has too many pending approvals.
    Full,
}

/// The decision of a person, or the discovery that there is nothing left to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalDecision {
    Approve,
    Deny,
    /// The definition of the call has changed.
    Void,
}

/// The result of using an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedApproval {
    /// The approval is used up, and its call may run.
    Used,
    /// The workspace has changed since the caller verified its rows. Verify them again before using the approval.
    Behind,
    /// The approval no longer permits the call.
    Lost,
}

/// A filter for a list of approvals.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApprovalFilter {
    pub status: Option<ApprovalStatus>,
    pub kind: Option<ApprovalKind>,
    pub bot: Option<BotId>,
}

impl ApprovalFilter {
    fn values(self, workspace: WorkspaceId) -> Vec<Arg<'static>> {
        let (status, kind) = (self.status.map(ApprovalStatus::as_str), self.kind.map(ApprovalKind::as_str));
        values![workspace, status, kind, self.bot]
    }
}

macro_rules! matching {
    () => {
        "where workspace_id = $1 and ($2 is null or status = $2) and ($3 is null or kind = $3) \
         and ($4 is null or bot_id = $4)"
    };
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(concat!(matching!(), " and id > $5 order by id limit $6"));
const CHANGED: &str = select!(concat!(matching!(), " and changed_at > $5 order by changed_at limit $6"));
const LATEST_OF_DIGEST: &str =
    select!("where workspace_id = $1 and digest = $2 and kind = 'step' order by created_at desc, id desc limit 1");
const OF_DIGEST: &str = select!(
    "where workspace_id = $1 and digest = $2 and (status in ('pending', 'approved') \
     or (status = 'denied' and expires_at > $3)) order by created_at desc, id desc"
);
const DUE: &str = select!(
    "where status in ('pending', 'approved') and ended_at is null and expires_at <= $1 order by expires_at limit $2"
);
const PENDING_OF_BOT: &str = "select count(*) as value from approvals \
                              where bot_id = $1 and status = 'pending' and expires_at > $2";
const PENDING_OF_WORKSPACE: &str = "select count(*) as value from approvals \
                                    where workspace_id = $1 and status = 'pending' and expires_at > $2";
const LAST_CHANGE: &str = "select coalesce(max(changed_at), 0) as value from approvals where workspace_id = $1";

// The task whose call has asked, and others with the same call. A task that runs has another turn, which finds no work.
const WAKE_TASKS: &str = "\
    insert into wakes (key, workspace_id, due_at, version) \
    select 'task/' || id, workspace_id, cast($3 as bigint), 1 from tasks \
    where workspace_id = $1 and ended_at is null and (waiting_for like 'approval/%' || $2 || '%' or id = $4) \
    order by id \
    on conflict (key) do update set \
    due_at = case when excluded.due_at < wakes.due_at then excluded.due_at else wakes.due_at end, \
    version = wakes.version + 1";

impl Store {
    /// Inserts a pending approval with the event that reports it, unless the call already has an approval that is open or
    /// denied. `sealed` is the record of the parameters. `changed_at` of the row is replaced.
    pub async fn ask_approval(
        &self,
        row: &ApprovalRow,
        sealed: &str,
        requested: Option<&EventRow>,
        max: PendingMax,
    ) -> Result<AskedApproval, StoreError> {
        let (workspace, now) = (row.workspace_id, row.created_at);
        change!(self, &[Scope::from(workspace)], |change| {
            async {
                let known: Vec<ApprovalRow> = change.all(OF_DIGEST, args![workspace, &row.digest, now]).await?;
                if let Some(unended) = known.iter().find(|known| known.is_unended()) {
                    let unended = unended.clone();
                    let is_open = unended.is_open(now);
                    return Ok(if is_open { AskedApproval::Known(unended) } else { AskedApproval::Due(unended) });
                }
                if let Some(denied) = known.into_iter().find(|known| known.is_denied(now)) {
                    return Ok(AskedApproval::Known(denied));
                }
                let of_bot: Option<i64> = change.session.one(PENDING_OF_BOT, args![row.bot_id, now]).await?;
                let of_all: Option<i64> = change.session.one(PENDING_OF_WORKSPACE, args![workspace, now]).await?;
                if of_bot.unwrap_or(i64::MAX) >= max.of_bot || of_all.unwrap_or(i64::MAX) >= max.of_workspace {
                    return Ok(AskedApproval::Full);
                }
                let row =
                    ApprovalRow { changed_at: next_moment(&mut change.session, workspace, now).await?, ..row.clone() };
                change.insert_uncounted(&row, Vec::new(), values![sealed]).await?;
                if let Some(requested) = requested {
                    requested.insert(&mut change.session).await?;
                }
                Ok(AskedApproval::New(row))
            }
            .await
        })
    }

    /// Returns the approval of the call with this digest, if it is open or denied at `now`.
    pub async fn approval_of_call(
        &self,
        workspace: WorkspaceId,
        digest: &Digest,
        now: UtcMillis,
    ) -> Result<Option<ApprovalRow>, StoreError> {
        let known: Vec<ApprovalRow> = self.authentic(OF_DIGEST, args![workspace, digest, now]).await?;
        let open = known.iter().find(|row| row.is_open(now));
        Ok(open.or_else(|| known.iter().find(|row| row.is_denied(now))).cloned())
    }

    /// Returns the approval with this id in the workspace.
    pub async fn approval(&self, workspace: WorkspaceId, id: ApprovalId) -> Result<Option<ApprovalRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns the sealed parameters of an approval, unless they were deleted.
    pub async fn approval_params(&self, workspace: WorkspaceId, id: ApprovalId) -> Result<Option<String>, StoreError> {
        const SEALED: &str =
            "select sealed as value from approvals where workspace_id = $1 and id = $2 and sealed is not null";
        self.db.one(SEALED, args![workspace, id]).await
    }

    /// Returns the sealed parameters of an approval, unless they were deleted. The text is empty in place of a record of
    /// more than 8 KiB, which is not read.
    pub async fn small_approval_params(
        &self,
        workspace: WorkspaceId,
        id: ApprovalId,
    ) -> Result<Option<String>, StoreError> {
        const SEALED: &str = "select case when length(sealed) <= 8192 then sealed else '' end as value from approvals \
                              where workspace_id = $1 and id = $2 and sealed is not null";
        self.db.one(SEALED, args![workspace, id]).await
    }

    /// Returns a page of the approvals in a workspace that match the filter, in the order of their creation.
    pub async fn approvals(
        &self,
        workspace: WorkspaceId,
        filter: ApprovalFilter,
        page: &Page<ApprovalId>,
    ) -> Result<Listed<ApprovalRow, ApprovalId>, StoreError> {
        self.authentic_page(PAGE, filter.values(workspace), page).await
    }

    /// Returns the matching approvals that have changed after `after`, in the order of their last change.
    pub async fn approvals_changed(
        &self,
        workspace: WorkspaceId,
        filter: ApprovalFilter,
        after: UtcMillis,
        limit: u32,
    ) -> Result<Vec<ApprovalRow>, StoreError> {
        let mut values = filter.values(workspace);
        values.push(Arg::from(after));
        self.authentic_up_to(CHANGED, values, limit).await
    }

    /// Returns the time of the last change of an approval in the workspace.
    pub async fn last_approval_change(&self, workspace: WorkspaceId) -> Result<UtcMillis, StoreError> {
        let last: Option<i64> = self.db.one(LAST_CHANGE, args![workspace]).await?;
        Ok(UtcMillis(last.unwrap_or_default()))
    }

    /// Records a decision about a pending approval, and requests turns of the tasks, runs and steps that wait for it. The
    /// approval of a call inserts its grant. Returns the new row with the wakes of runs and steps, or `None` if the approval is
    /// no longer pending or has expired.
    pub async fn decide_approval(
        &self,
        row: &ApprovalRow,
        decision: ApprovalDecision,
        by: KeyId,
        note: Option<&str>,
        now: UtcMillis,
    ) -> Result<Option<(ApprovalRow, Vec<NewWake>)>, StoreError> {
        let (status, ended_at) = match decision {
            // A call uses its approval later.
            ApprovalDecision::Approve => (ApprovalStatus::Approved, (row.kind == ApprovalKind::Step).then_some(now)),
            ApprovalDecision::Deny => (ApprovalStatus::Denied, Some(now)),
            ApprovalDecision::Void => (ApprovalStatus::Void, Some(now)),
        };
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let changed_at = next_moment(&mut change.session, row.workspace_id, now).await?;
                let next = |old: &ApprovalRow| {
                    let is_pending = old.status == ApprovalStatus::Pending && old.is_open(now);
                    (is_pending && old.digest == row.digest && old.kind == row.kind).then(|| ApprovalRow {
                        status,
                        decided_by: Some(by),
                        decided_at: Some(now),
                        note: note.map(str::to_owned),
                        ended_at,
                        changed_at,
                        ..old.clone()
                    })
                };
                let Some(decided) = change.update_uncounted(args![row.id], next).await? else { return Ok(None) };
                if decision == ApprovalDecision::Approve && decided.kind == ApprovalKind::Call {
                    change.insert(&GrantRow::of(&decided), Vec::new(), Vec::new()).await?;
                }
                let values = args![decided.workspace_id, decided.id, now, &decided.asked_task];
                change.session.run(WAKE_TASKS, values).await?;
                let wakes = steps::wake(&mut change.session, &decided, now).await?;
                Ok(Some((decided, wakes)))
            }
            .await
        })
    }

    /// Uses an approval for the call `request`, once. `generation` is the generation at which the caller has verified
    /// the rows of the workspace. A grant that was restored with SQL since then belongs to an older generation.
    pub async fn use_approval(
        &self,
        workspace: WorkspaceId,
        (id, digest): (ApprovalId, &Digest),
        request: RequestId,
        generation: i64,
        now: UtcMillis,
    ) -> Result<UsedApproval, StoreError> {
        let scope = Scope::from(workspace);
        change!(self, &[scope], |change| {
            async {
                if change.generation(scope) != Some(generation) {
                    return Ok(UsedApproval::Behind);
                }
                let grant: Option<GrantRow> = change.one(grants::BY_ID, args![workspace, id]).await?;
                let is_granted = grant.is_some_and(|grant| grant.digest == *digest && grant.expires_at > now);
                let row: Option<ApprovalRow> = change.one(BY_ID, args![workspace, id]).await?;
                let is_approved = |row: &ApprovalRow| {
                    row.status == ApprovalStatus::Approved && row.digest == *digest && row.is_open(now)
                };
                if !is_granted || !row.as_ref().is_some_and(is_approved) {
                    return Ok(UsedApproval::Lost);
                }
                let changed_at = next_moment(&mut change.session, workspace, now).await?;
                let next = |old: &ApprovalRow| {
                    is_approved(old).then(|| ApprovalRow {
                        status: ApprovalStatus::Used,
                        request_id: Some(request),
                        ended_at: Some(now),
                        changed_at,
                        ..old.clone()
                    })
                };
                change.update_uncounted(args![id], next).await?;
                change.delete(args![id], |grant: &GrantRow| grant.workspace_id == workspace).await?;
                Ok(UsedApproval::Used)
            }
            .await
        })
    }

    /// Marks an approval that is still pending or approved as expired, deletes its grant, and requests turns of the runs and
    /// steps that wait for it. Returns their wakes, or `None` if the row had another status than `row`.
    pub async fn expire_approval(&self, row: &ApprovalRow, now: UtcMillis) -> Result<Option<Vec<NewWake>>, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let changed_at = next_moment(&mut change.session, row.workspace_id, now).await?;
                let next = |old: &ApprovalRow| {
                    let is_due = old.is_unended() && old.status == row.status && old.expires_at <= now;
                    is_due.then(|| ApprovalRow {
                        status: ApprovalStatus::Expired,
                        ended_at: Some(now),
                        changed_at,
                        ..old.clone()
                    })
                };
                let Some(expired) = change.update_uncounted(args![row.id], next).await? else { return Ok(None) };
                change.delete(args![row.id], |grant: &GrantRow| grant.workspace_id == row.workspace_id).await?;
                Ok(Some(steps::wake(&mut change.session, &expired, now).await?))
            }
            .await
        })
    }

    /// Returns the approvals that are pending or approved although they expired at or before `now`.
    pub async fn due_approvals(&self, now: UtcMillis, limit: u32) -> Result<Vec<ApprovalRow>, StoreError> {
        self.authentic_up_to(DUE, values![now], limit).await
    }

    /// Deletes the parameters of approvals that ended before `before`. Returns their number.
    pub async fn purge_approval_params(&self, before: UtcMillis) -> Result<u64, StoreError> {
        let sql = "update approvals set sealed = null where sealed is not null and ended_at < $1";
        self.db.run(sql, args![before]).await
    }

    /// Deletes the approvals that ended before `before`. Returns their number.
    pub async fn purge_approvals(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run("delete from approvals where ended_at < $1", args![before]).await
    }
}

/// Returns the time of a change of an approval: now, or later than the last change in the workspace. The seal of the
/// workspace must be locked.
async fn next_moment(session: &mut Session, workspace: WorkspaceId, now: UtcMillis) -> Result<UtcMillis, StoreError> {
    let last: Option<i64> = session.one(LAST_CHANGE, args![workspace]).await?;
    Ok(now.max(UtcMillis(last.unwrap_or_default().saturating_add(1))))
}
