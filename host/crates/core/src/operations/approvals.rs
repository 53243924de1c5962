//! Approvals: lists them, shows them, and records the decisions of people.

mod shown;
mod standing;
mod steps;

pub use standing::{Standing, standing};
pub use steps::{AskStepError, StepAsk, StepCall, StepConsent, StepRun, ask_step, check_step, step_consent};

use std::sync::Arc;

use monstrum_api::approvals::{Approval, ApprovalList, Decision, DecisionInput};
use monstrum_guardian::Approver;
use monstrum_store::{ApprovalDecision, ApprovalFilter, ApprovalKind, ApprovalRow, ApprovalStatus, KeyKind, Page};
use monstrum_types::{ApprovalId, Digest, KeyId, ResourceId, UtcMillis};
use serde::Deserialize as _;
use serde_json::json;

use super::change::Change;
use super::{OperationError, Person, Reviewer};
use crate::app::App;
use crate::approvals::{ApprovalError, definition, shown as recorded, targets_of};
use crate::checks::Unchecked;
use crate::policy::Binding;
use shown::{full, short};

/// The maximum size of a note in bytes.
const NOTE_BYTES_MAX: usize = 1 << 10;

/// Lists the approvals that the caller may see and that match `filter`, without large parameters.
pub async fn list(
    app: &App,
    caller: &Reviewer,
    filter: ApprovalFilter,
    page: &Page<ApprovalId>,
) -> Result<ApprovalList, OperationError> {
    let Some(filter) = visible(caller, filter) else {
        return Ok(ApprovalList { items: Vec::new(), next_cursor: None });
    };
    let listed = app.store.approvals(caller.workspace, filter, page).await?;
    let mut items = Vec::with_capacity(listed.items.len());
    for row in listed.items {
        items.push(view(app, caller, row).await?);
    }
    Ok(ApprovalList { items, next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
}

/// Returns up to `limit` approvals that wait for a decision. The oldest are first.
pub(super) async fn waiting(app: &App, caller: &Person, limit: u32) -> Result<Vec<ApprovalRow>, OperationError> {
    let filter = ApprovalFilter { status: Some(ApprovalStatus::Pending), kind: None, bot: None };
    let mut rows = app.store.approvals(caller.workspace, filter, &Page::first(limit)).await?.items;
    let now = app.clock.now();
    rows.retain(|row| row.is_open(now));
    Ok(rows)
}

/// Returns the approvals that the caller may see, that match `filter`, and that have changed after `after`, in the order
/// of their changes. Each approval has the time of its last change.
pub async fn changed(
    app: &App,
    caller: &Reviewer,
    filter: ApprovalFilter,
    after: UtcMillis,
    limit: u32,
) -> Result<Vec<(UtcMillis, Approval)>, OperationError> {
    let Some(filter) = visible(caller, filter) else { return Ok(Vec::new()) };
    let rows = app.store.approvals_changed(caller.workspace, filter, after, limit).await?;
    let mut changed = Vec::with_capacity(rows.len());
    for row in rows {
        changed.push((row.changed_at, view(app, caller, row).await?));
    }
    Ok(changed)
}

/// Returns the time of the last change of an approval in the caller's workspace.
pub async fn last_change(app: &App, caller: &Reviewer) -> Result<UtcMillis, OperationError> {
    Ok(app.store.last_approval_change(caller.workspace).await?)
}

/// Returns whether the key of the caller still exists and is unchanged.
pub fn holds_its_key(app: &App, caller: &Reviewer) -> bool {
    caller.is_known(&app.policy.load(), app.clock.now())
}

/// Shows an approval with the parameters of its call.
pub async fn show(app: &App, caller: &Reviewer, id: ApprovalId) -> Result<Approval, OperationError> {
    let row = get(app, caller, id).await?;
    if caller.kind == KeyKind::Bot {
        return Ok(short(row));
    }
    let params = app.approvals.params(&row).await.map_err(unavailable)?;
    Ok(full(app, row, params))
}

/// Reads an approval that the caller may see.
pub async fn get(app: &App, caller: &Reviewer, id: ApprovalId) -> Result<ApprovalRow, OperationError> {
    let row = app.store.approval(caller.workspace, id).await?;
    let row = row.filter(|row| caller.kind != KeyKind::Bot || caller.bot == Some(row.bot_id));
    row.ok_or_else(|| OperationError::not_found("approval"))
}

/// Reads an approval that the caller may decide. An interface calls this function before it reads an input.
pub async fn undecided(app: &App, caller: &Reviewer, id: ApprovalId) -> Result<ApprovalRow, OperationError> {
    let row = get(app, caller, id).await?;
    may_decide(caller, &row)?;
    check_starters(app, caller, &row).await?;
    Ok(row)
}

/// Refuses the keys that decided what a task or a run does whose calls have no key, such as a task of a schedule.
async fn check_starters(app: &App, caller: &Reviewer, row: &ApprovalRow) -> Result<(), OperationError> {
    let Some(task) = row.asked_task.as_deref().filter(|_| row.asked_key.is_none() && !row.allow_starter) else {
        return Ok(());
    };
    let mut starters = match (task.parse(), app.calls.executor.tasks()) {
        (Ok(task), Some(tasks)) => tasks.starters(row.workspace_id, task).await,
        _ => None,
    };
    if let (None, Ok(run)) = (&starters, task.parse()) {
        starters = app.emitter.starters_of_run(row.workspace_id, run).await;
    }
    match starters {
        Some(keys) if !keys.contains(&caller.key) => Ok(()),
        Some(_) => {
            let message = "the key that started the run, or that made or changed what starts the task or the run, cannot \
                           decide about its calls";
            Err(OperationError::forbidden(message))
        }
        None => Err(OperationError::forbidden("it is not known which keys may not decide about this call")),
    }
}

/// Accepts the keys of the approvers, and root keys. The key that made the call is accepted only if every gate accepts
/// it, and the keys that started the run of a step only if the step accepts them. Bot keys are never accepted.
fn may_decide(caller: &Reviewer, row: &ApprovalRow) -> Result<(), OperationError> {
    let approver = match caller.kind {
        KeyKind::Root => None,
        KeyKind::Admin => Some(Approver::Admin),
        KeyKind::Operator => Some(Approver::Operator),
        KeyKind::Approver => Some(Approver::Approver),
        KeyKind::Bot => return Err(OperationError::forbidden("a bot key cannot decide about approvals")),
        KeyKind::Agent => return Err(OperationError::forbidden("an agent key cannot decide about approvals")),
    };
    // Approvers that cannot be read accept root keys only.
    let approvers: Vec<Approver> = serde_json::from_value(row.approvers.clone()).unwrap_or_default();
    if approver.is_some_and(|approver| !approvers.contains(&approver)) {
        return Err(OperationError::forbidden(match row.kind {
            ApprovalKind::Call => "the gates of this call do not accept a decision with this kind of key",
            ApprovalKind::Step => "the workflow does not accept a decision with this kind of key",
        }));
    }
    if row.kind == ApprovalKind::Step && !row.allow_starter {
        // Starters that cannot be read accept no key.
        let starters = row.starters.as_ref().and_then(|starters| Vec::<KeyId>::deserialize(starters).ok());
        if starters.is_none_or(|starters| starters.contains(&caller.key)) {
            let message = "a key that started the run, or that made or changed its trigger or schedule, cannot decide \
                           about this step";
            return Err(OperationError::forbidden(message));
        }
    }
    if row.asked_key == Some(caller.key) && !row.allow_starter {
        return Err(OperationError::forbidden("the key that made the call cannot decide about it"));
    }
    Ok(())
}

/// Records the decision of a person about an approval that [`undecided`] has returned.
pub async fn decide(
    app: &App,
    caller: &Reviewer,
    row: ApprovalRow,
    input: DecisionInput,
) -> Result<Approval, OperationError> {
    may_decide(caller, &row)?;
    check_starters(app, caller, &row).await?;
    let note = input.note.as_deref().filter(|note| !note.is_empty());
    if note.is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
        return Err(OperationError::invalid_at("/note", format!("must have at most {NOTE_BYTES_MAX} bytes")));
    }
    let digest: Digest = input
        .digest
        .parse()
        .map_err(|_| OperationError::invalid_at("/digest", "expected the `digest` of the approval"))?;
    if digest != row.digest {
        return Err(OperationError::conflict("the digest is not the digest of this approval; read the approval again"));
    }
    if row.status != ApprovalStatus::Pending {
        return Err(OperationError::conflict(format!("the approval is {}, not pending", row.status.as_str())));
    }
    if !row.is_open(app.clock.now()) {
        return Err(OperationError::conflict("the approval has expired"));
    }
    if let Some(change) = changed_since(app, &row).await? {
        step(app, caller, &row, ApprovalDecision::Void, None).await?;
        return Err(OperationError::conflict(change));
    }
    let decision = match input.decision {
        Decision::Approve => ApprovalDecision::Approve,
        Decision::Deny => ApprovalDecision::Deny,
    };
    let decided = step(app, caller, &row, decision, note).await?;
    let params = app.approvals.params(&decided).await.map_err(unavailable)?;
    Ok(full(app, decided, params))
}

/// Records a decision in the audit, makes it, and brings it into force.
async fn step(
    app: &App,
    caller: &Reviewer,
    row: &ApprovalRow,
    decision: ApprovalDecision,
    note: Option<&str>,
) -> Result<ApprovalRow, OperationError> {
    let (what, status) = match decision {
        ApprovalDecision::Approve => ("approval.approve", ApprovalStatus::Approved),
        ApprovalDecision::Deny => ("approval.deny", ApprovalStatus::Denied),
        ApprovalDecision::Void => ("approval.void", ApprovalStatus::Void),
    };
    let after = json!({ "id": row.id, "status": status.as_str(), "decided_by": caller.key, "note": note });
    let decide = async {
        let decided = app.approvals.decide(row, decision, caller.key, note).await?;
        decided.ok_or_else(|| OperationError::conflict("the approval is no longer pending"))
    };
    let mut change = Change::new(what, &row.id).of_bot(row.bot_id);
    if let Some(resource) = row.resource_id {
        change = change.of_resource(resource);
    }
    let change = change.from(&recorded(row)).to(&after);
    let decided = match (decision, row.kind) {
        // Only the approval of a call changes the policy.
        (ApprovalDecision::Approve, ApprovalKind::Call) => change.apply(app, caller, decide).await,
        _ => change.record(app, caller, decide).await,
    };
    app.approvals.notify(row.id);
    let task = row.asked_task.as_deref().and_then(|task| task.parse().ok());
    if let (Ok(_), Some(task), Some(tasks)) = (&decided, task, app.calls.executor.tasks()) {
        tasks.approval_was_decided(row.workspace_id, task);
    }
    decided
}

/// Returns why there is nothing left to decide: something that the calls run has changed, or the run has ended.
async fn changed_since(app: &App, row: &ApprovalRow) -> Result<Option<&'static str>, OperationError> {
    match row.kind {
        ApprovalKind::Call => {
            let message = "the tool, its plugin or its resource has changed since the call was made, so the approval is \
                           void; the caller must repeat the call";
            let (Some(tool), Some(resource)) = (&row.tool, row.resource_id) else { return Ok(Some(message)) };
            let is_same = definition_now(app, row, tool, resource).await?.as_ref() == Some(&row.definition);
            Ok((!is_same).then_some(message))
        }
        ApprovalKind::Step => {
            let run = match row.run_id {
                Some(run) => app.store.run(row.workspace_id, run).await?,
                None => None,
            };
            if run.is_none_or(|run| run.ended_at.is_some()) {
                return Ok(Some("the run has ended, so the approval is void"));
            }
            let message = "a tool, its plugin or its resource has changed since the step asked, so the approval is void; \
                           the run asks again";
            let Some(targets) = targets_of(row) else { return Ok(Some(message)) };
            for target in targets {
                let now = definition_now(app, row, &target.tool, target.resource_id).await?;
                if now.as_ref() != Some(&target.definition) {
                    return Ok(Some(message));
                }
            }
            Ok(None)
        }
    }
}

/// Returns the digest of what a call would run now, or `None` if the bot no longer has the tool on this resource.
async fn definition_now(
    app: &App,
    row: &ApprovalRow,
    tool: &str,
    resource_id: ResourceId,
) -> Result<Option<Digest>, OperationError> {
    let snapshot = app.policy.load();
    let Ok(tool) = tool.parse() else { return Ok(None) };
    let (workspace, bot_id) = (row.workspace_id, row.bot_id);
    let now = app.clock.now();
    let current = app.calls.ask(workspace, bot_id, move |effort| {
        let Some(bot) = snapshot.bot(workspace, bot_id) else { return Ok(None) };
        let is_bound = |binding: &&Arc<Binding>| binding.row.resource_id == resource_id && binding.is_active(now);
        let Some(binding) = bot.bindings.iter().find(is_bound) else { return Ok(None) };
        let resource = &binding.resource;
        let declared = snapshot.tool(&tool).filter(|(owner, _)| owner.name == resource.plugin.name);
        let tool = match declared {
            Some((_, tool)) => Some(tool),
            None => resource.tool(&tool, effort)?,
        };
        tool.map(|tool| definition(tool, resource, effort)).transpose()
    });
    current.await.map_err(|unchecked| match unchecked {
        Unchecked::Busy => OperationError::Busy("the server is busy checking other calls; try again".to_owned()),
        Unchecked::Overrun(_) => OperationError::Timeout("the check of the approval timed out; try again".to_owned()),
    })
}

/// Restricts a filter to the approvals that the caller may see. Returns `None` if there are none.
fn visible(caller: &Reviewer, filter: ApprovalFilter) -> Option<ApprovalFilter> {
    if caller.kind != KeyKind::Bot {
        return Some(filter);
    }
    let own = caller.bot?;
    filter.bot.is_none_or(|bot| bot == own).then_some(ApprovalFilter { bot: Some(own), ..filter })
}

/// Returns an approval as an item of a list.
async fn view(app: &App, caller: &Reviewer, row: ApprovalRow) -> Result<Approval, OperationError> {
    if caller.kind == KeyKind::Bot {
        return Ok(short(row));
    }
    let params = app.approvals.listed_params(&row).await.map_err(unavailable)?;
    Ok(full(app, row, params))
}

fn unavailable(error: ApprovalError) -> OperationError {
    match error {
        ApprovalError::Store(error) => error.into(),
        ApprovalError::Audit(_) => OperationError::unavailable("the audit cannot be written; try again"),
        ApprovalError::Full => OperationError::Busy(error.to_string()),
        ApprovalError::Vault(error) => OperationError::internal(error),
        error @ (ApprovalError::Event(_) | ApprovalError::Cause(_)) => OperationError::internal(error),
    }
}
