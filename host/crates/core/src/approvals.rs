//! Approvals: people decide about single calls for which gates ask, and about steps of workflows.
//!
//! This module owns the life of an approval: it is asked for, decided, used by one call, or expires. Each step is one
//! transaction of the store, and the audit records the step as a change before it is made. Whether a call needs an
//! approval is the decision of the Guardian, and whether a caller may decide is checked by `operations`.

mod asking;
mod definition;
mod expiry;
mod steps;
mod url;
mod waiting;

pub use self::url::ApprovalUrl;
pub use asking::Asking;
pub use definition::{content_digest, definition};
pub use steps::{
    AskingStep, STEP_PARAMS_BYTES_MAX, STEP_TEXT_BYTES_MAX, StepDecision, StepPosition, StepQuestion, StepTarget,
    StepTargetParts, step_decision, targets_of,
};

use std::sync::Arc;

use monstrum_store::{
    ApprovalDecision, ApprovalKind, ApprovalRow, AskedApproval, EventRow, PendingMax, Store, StoreError, UsedApproval,
};
use monstrum_types::{
    ApprovalId, AwaitedApproval, Clock, Code, Digest, JsonText, KeyId, RequestId, UtcMillis, WorkspaceId, with_causes,
};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::audit::{self, AuditUnavailable, Auditor};
use crate::call_types::task_step::Origin;
use crate::emitter::{Emitter, UnknownCause};
use crate::events::{EventError, EventLinks, EventType, NewEvent, seal};
use crate::policy::Policy;

/// The maximum numbers of pending approvals. A person cannot read more than this, and a bot that repeats itself with
/// other parameters must not hide the approvals of other bots.
const PENDING_MAX: PendingMax = PendingMax { of_bot: 100, of_workspace: 1_000 };
/// The number of notifications that a receiver may lag behind. A receiver that misses some of them reads the rows.
const CHANGES_KEPT: usize = 256;
/// The maximum number of attempts to ask. An attempt fails only if the last approval of the call has just expired.
const ASKED_MAX: usize = 3;
/// The maximum size of parameters in lists, in bytes. A page of 1,000 approvals then has a few MiB, and most parameters are
/// smaller. A sealed record of this size has less than 8 KiB.
const LISTED_PARAMS_BYTES_MAX: usize = 4 << 10;

/// An error of a step of an approval.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    #[error("the audit cannot be written")]
    Audit(#[from] AuditUnavailable),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the parameters of the call cannot be sealed or unsealed")]
    Vault(#[from] VaultError),
    #[error("the event of the approval cannot be made")]
    Event(#[from] EventError),
    #[error("the event of the approval cannot be made")]
    Cause(#[from] UnknownCause),
    #[error("the bot or the workspace has too many pending approvals")]
    Full,
}

/// The approvals of this host.
pub struct Approvals {
    store: Store,
    vault: Arc<Vault>,
    auditor: Auditor,
    policy: Arc<Policy>,
    emitter: Arc<Emitter>,
    clock: Arc<dyn Clock>,
    url: Option<ApprovalUrl>,
    /// The sender that notifies subscribers of each step on this host.
    changes: broadcast::Sender<ApprovalId>,
    closing: CancellationToken,
}

/// The call that uses an approval.
pub struct Use<'a> {
    pub workspace: WorkspaceId,
    pub approval: ApprovalId,
    pub digest: &'a Digest,
    pub request: RequestId,
    /// The generation at which the rows of the workspace were verified for the judgement of the call.
    pub generation: i64,
}

/// The parameters of a call that an approval is about, or a [`StepQuestion`].
#[derive(Debug)]
pub enum Params {
    Whole(JsonText),
    /// The parameters are left out of a list.
    Omitted,
    /// The parameters were deleted some time after the end of the approval.
    Deleted,
}

impl Approvals {
    /// Creates the approvals of a host. `url` is the address at which people decide.
    pub fn new(
        store: Store,
        vault: Arc<Vault>,
        auditor: Auditor,
        policy: Arc<Policy>,
        emitter: Arc<Emitter>,
        clock: Arc<dyn Clock>,
        url: Option<ApprovalUrl>,
    ) -> Approvals {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        Approvals { store, vault, auditor, policy, emitter, clock, url, changes, closing: CancellationToken::new() }
    }

    /// Returns what emits the events of this host.
    pub fn emitter(&self) -> &Arc<Emitter> {
        &self.emitter
    }

    /// Returns the approval of a call if it is pending, approved or denied and has not expired.
    pub async fn find(&self, workspace: WorkspaceId, digest: &Digest) -> Result<Option<ApprovalRow>, StoreError> {
        self.store.approval_of_call(workspace, digest, self.clock.now()).await
    }

    /// Asks for an approval of a call. Returns the approval that the call has now. `params` are the parameters as the
    /// approver reads them, without secrets.
    pub async fn ask(&self, asking: &Asking<'_>, params: &str) -> Result<ApprovalRow, ApprovalError> {
        for _ in 0..ASKED_MAX {
            let row = asking.row(ApprovalId::new(), self.clock.now());
            let sealed = self.vault.seal(params.as_bytes(), place_of(&row))?.to_string();
            let change = change("approval.ask", &row, asking.key, Value::Null, shown(&row));
            let requested = self.requested(&row, asking.origin).await?;
            let asked = self.store.ask_approval(&row, &sealed, Some(&requested), PENDING_MAX);
            let is_done = |asked: &AskedApproval| matches!(asked, AskedApproval::New(_));
            match self.recorded(change, asked, is_done).await? {
                AskedApproval::New(row) => {
                    self.notify(row.id);
                    self.emitter.signal(&requested);
                    return Ok(row);
                }
                AskedApproval::Known(row) => return Ok(row),
                AskedApproval::Due(row) => {
                    self.expire(&row).await?;
                }
                AskedApproval::Full => return Err(ApprovalError::Full),
            }
        }
        Err(ApprovalError::Store(StoreError::ChangedMeanwhile))
    }

    /// Returns the event that reports a new approval.
    async fn requested(&self, row: &ApprovalRow, origin: Option<Origin>) -> Result<EventRow, ApprovalError> {
        let cause = match origin {
            Some(origin) => self.emitter.cause_of(row.workspace_id, origin).await?,
            None => None,
        };
        let (run_id, task_id) = match origin.and_then(Origin::run) {
            Some(run) => (Some(run), None),
            None => (None, row.asked_task.clone()),
        };
        let event = NewEvent {
            workspace_id: row.workspace_id,
            event_type: EventType::ApprovalRequested.into(),
            source_type: "bot",
            source_id: row.bot_id.to_string(),
            bot_id: Some(row.bot_id),
            links: EventLinks { task_id, run_id, ..EventLinks::default() },
            cause,
            data: json!({
                "approval_id": row.id,
                "kind": row.kind.as_str(),
                "text": format!("a call of `{}` waits for a decision", row.tool.as_deref().unwrap_or_default()),
                "expires_at": row.expires_at,
            }),
        };
        Ok(seal(&self.vault, event, self.clock.now())?)
    }

    /// Records a decision. The caller must record the change in the audit and, for the approval of a call, renew the policy
    /// before it calls [`Approvals::notify`]. Returns the new row, or `None` if the approval is no longer pending.
    pub async fn decide(
        &self,
        row: &ApprovalRow,
        decision: ApprovalDecision,
        by: KeyId,
        note: Option<&str>,
    ) -> Result<Option<ApprovalRow>, StoreError> {
        let decided = self.store.decide_approval(row, decision, by, note, self.clock.now()).await?;
        Ok(decided.map(|(row, wakes)| {
            self.emitter.signal_wakes(&wakes);
            row
        }))
    }

    /// Uses an approval for one call. After a success, the policy no longer contains its grant.
    pub async fn use_up(&self, used: &Use<'_>) -> Result<UsedApproval, ApprovalError> {
        let Use { workspace, approval, digest, request, generation } = *used;
        // The comparison saves a record of an attempt that is bound to fail.
        if self.policy.load().verification.generation_of(workspace) != Some(generation) {
            return Ok(UsedApproval::Behind);
        }
        let Some(row) = self.store.approval(workspace, approval).await? else { return Ok(UsedApproval::Lost) };
        let after = json!({ "id": approval, "status": "used", "request_id": request });
        let change = change("approval.use", &row, None, shown(&row), after);
        let using = self.store.use_approval(workspace, (approval, digest), request, generation, self.clock.now());
        let result = self.recorded(change, using, |result| *result == UsedApproval::Used).await?;
        if result == UsedApproval::Used {
            self.renew().await;
            self.notify(approval);
        }
        Ok(result)
    }

    /// Notifies subscribers on this host that an approval has changed.
    pub fn notify(&self, id: ApprovalId) {
        // The error means that nothing is subscribed.
        drop(self.changes.send(id));
    }

    /// Ends all waits for decisions, because the host shuts down.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Waits until the host shuts down.
    pub async fn closed(&self) {
        self.closing.cancelled().await;
    }

    /// Returns a receiver that gets the id of each approval that changes on this host from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<ApprovalId> {
        self.changes.subscribe()
    }

    /// Returns the URL at which a person decides about an approval, if the host has one.
    pub fn url(&self, workspace: WorkspaceId, id: ApprovalId) -> Option<String> {
        self.url.as_ref().map(|url| url.of(workspace, id))
    }

    /// Returns what a caller learns about an approval that its call waits for.
    pub fn awaited(&self, row: &ApprovalRow) -> AwaitedApproval {
        AwaitedApproval { id: row.id, url: self.url(row.workspace_id, row.id), expires_at: row.expires_at }
    }

    /// Returns the parameters of an approval.
    pub async fn params(&self, row: &ApprovalRow) -> Result<Params, ApprovalError> {
        let sealed = self.store.approval_params(row.workspace_id, row.id).await?;
        sealed.map_or(Ok(Params::Deleted), |sealed| self.unsealed(row, &sealed).map(Params::Whole))
    }

    /// Returns the parameters of an approval for a list, which leaves out large ones.
    pub async fn listed_params(&self, row: &ApprovalRow) -> Result<Params, ApprovalError> {
        let sealed = self.store.small_approval_params(row.workspace_id, row.id).await?;
        let Some(sealed) = sealed else { return Ok(Params::Deleted) };
        if sealed.is_empty() {
            return Ok(Params::Omitted);
        }
        Ok(match self.unsealed(row, &sealed) {
            Ok(params) if params.as_str().len() <= LISTED_PARAMS_BYTES_MAX => Params::Whole(params),
            Ok(_) => Params::Omitted,
            // A record that cannot be read must not hide the other approvals of the list.
            Err(error) => {
                tracing::error!(approval.id = %row.id, cause = %with_causes(&error), "the parameters of an approval \
                    cannot be unsealed");
                Params::Omitted
            }
        })
    }

    fn unsealed(&self, row: &ApprovalRow, sealed: &str) -> Result<JsonText, ApprovalError> {
        let plaintext = self.vault.unseal(&sealed.parse()?, place_of(row))?;
        let what = "it is not JSON";
        let value: Value = serde_json::from_slice(&plaintext).map_err(|_| VaultError::NotSealed { what })?;
        Ok(JsonText::from(&value))
    }

    /// Renews the policy after a grant was deleted. A failure leaves the policy stale, so no new call runs.
    async fn renew(&self) {
        if let Err(error) = self.policy.renew().await {
            tracing::error!(%error, "cannot renew the policy after the end of an approval; retrying");
        }
    }

    /// Records a change, makes it by running `work`, and records the outcome. If the first record cannot be written,
    /// `work` does not run.
    async fn recorded<T>(
        &self,
        change: audit::Change,
        work: impl Future<Output = Result<T, StoreError>>,
        is_done: impl Fn(&T) -> bool,
    ) -> Result<T, ApprovalError> {
        let work = async {
            match work.await {
                Ok(result) if is_done(&result) => Ok(result),
                Ok(result) => Err(Undone::Moved(result)),
                Err(error) => Err(Undone::Failed(error)),
            }
        };
        let (done, closed) = self.auditor.record(change, work, Undone::code).await?;
        closed?;
        match done {
            Ok(result) | Err(Undone::Moved(result)) => Ok(result),
            Err(Undone::Failed(error)) => Err(error.into()),
        }
    }
}

/// The reason why a recorded change was not made.
#[derive(Debug, thiserror::Error)]
enum Undone<T> {
    /// Another step came first.
    #[error("the approval is no longer in the expected state")]
    Moved(T),
    #[error("{0}")]
    Failed(StoreError),
}

impl<T> Undone<T> {
    fn code(&self) -> Code {
        match self {
            Undone::Moved(_) => Code::InvalidParams,
            Undone::Failed(_) => Code::Unavailable,
        }
    }
}

/// Returns the state of an approval as the audit records it. The rows of its call contain the parameters.
pub fn shown(row: &ApprovalRow) -> Value {
    let mut shown = json!({
        "id": row.id,
        "kind": row.kind.as_str(),
        "status": row.status.as_str(),
        "digest": row.digest,
        "definition": row.definition,
        "bot_id": row.bot_id,
        "user": user(row),
        "tool": row.tool,
        "resource_id": row.resource_id,
        "operation": row.operation,
        "links": row.links,
        "gates": row.gates,
        "approvers": row.approvers,
        "allow_starter": row.allow_starter,
        "asked_key": row.asked_key,
        "asked_task": row.asked_task,
        "request_id": row.request_id,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "decided_by": row.decided_by,
        "decided_at": row.decided_at,
        "note": row.note,
    });
    if row.kind == ApprovalKind::Step {
        shown["run_id"] = json!(row.run_id);
        shown["step"] = json!(row.run_step);
        shown["item"] = json!(row.item);
        shown["for"] = json!(row.targets);
        shown["starters"] = json!(row.starters);
    }
    shown
}

/// Returns the user on whose behalf the call is made, as JSON.
fn user(row: &ApprovalRow) -> Value {
    match (&row.app_id, &row.user_id) {
        (Some(app), Some(user)) => json!({ "app_id": app, "user_id": user }),
        _ => Value::Null,
    }
}

fn change(what: &'static str, row: &ApprovalRow, key: Option<KeyId>, before: Value, after: Value) -> audit::Change {
    audit::Change {
        request_id: RequestId::new(),
        workspace: row.workspace_id,
        key,
        key_kind: None,
        what,
        object: row.id.to_string(),
        bot: Some(row.bot_id),
        resource: row.resource_id,
        before,
        after,
    }
}

fn place_of(row: &ApprovalRow) -> AssociatedData {
    place(row.workspace_id, row.id, &row.digest)
}

/// Returns the associated data of the sealed parameters of an approval.
pub fn place(workspace: WorkspaceId, approval: ApprovalId, digest: &Digest) -> AssociatedData {
    AssociatedData::new("approval").with("workspace", &workspace).with("approval", &approval).with("digest", digest)
}

/// Returns the time after which an approval that was asked for at `now` expires.
fn expires_at(now: UtcMillis, expires_s: u32) -> UtcMillis {
    now.plus_ms(i64::from(expires_s).saturating_mul(1_000))
}
