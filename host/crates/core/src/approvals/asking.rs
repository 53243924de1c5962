//! A call that asks for an approval.

use monstrum_guardian::Asked;
use monstrum_store::{ApprovalKind, ApprovalRow, ApprovalStatus};
use monstrum_types::{ApprovalId, BotId, Digest, KeyId, Labels, ResourceId, UtcMillis, WorkspaceId};
use serde_json::{Value, json};

use crate::call_types::task_step::Origin;

/// The properties of a call that asks for an approval.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub workspace: WorkspaceId,
    pub bot: BotId,
    /// The digest that identifies the call.
    pub digest: &'a Digest,
    /// The digest of what the call runs. See [`definition()`](super::definition()).
    pub definition: &'a Digest,
    /// The app and the user on whose behalf the call is made.
    pub user: Option<(&'a str, &'a str)>,
    pub tool: &'a str,
    pub operation: &'a str,
    pub effect: &'a str,
    pub resource: ResourceId,
    /// The delegations that led to the call, as JSON.
    pub links: &'a Value,
    /// What the gates require.
    pub asked: &'a Asked,
    /// The labels that the call carries; `None` for a call of which the host does not know them.
    pub labels: Option<&'a Labels>,
    /// The task or the run whose call this is.
    pub origin: Option<Origin>,
    /// The id of that task or run.
    pub task: Option<&'a str>,
    /// The key that made the call.
    pub key: Option<KeyId>,
}

impl Asking<'_> {
    /// Returns the row of a new approval.
    pub(super) fn row(&self, id: ApprovalId, now: UtcMillis) -> ApprovalRow {
        ApprovalRow {
            id,
            workspace_id: self.workspace,
            kind: ApprovalKind::Call,
            digest: self.digest.clone(),
            definition: self.definition.clone(),
            status: ApprovalStatus::Pending,
            bot_id: self.bot,
            app_id: self.user.map(|(app, _)| app.to_owned()),
            user_id: self.user.map(|(_, user)| user.to_owned()),
            tool: Some(self.tool.to_owned()),
            resource_id: Some(self.resource),
            operation: Some(self.operation.to_owned()),
            effect: Some(self.effect.to_owned()),
            links: self.links.clone(),
            labels: json!(self.labels.map(Labels::names).unwrap_or_default()),
            gates: json!(self.asked.gates),
            approvers: json!(self.asked.approvers),
            allow_starter: self.asked.allow_starter,
            asked_key: self.key,
            asked_task: self.task.map(str::to_owned),
            request_id: None,
            created_at: now,
            expires_at: super::expires_at(now, self.asked.expires_s),
            decided_by: None,
            decided_at: None,
            note: None,
            ended_at: None,
            changed_at: now,
            run_id: None,
            run_step: None,
            item: None,
            targets: None,
            starters: None,
        }
    }
}
