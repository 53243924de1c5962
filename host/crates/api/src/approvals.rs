//! Approvals: the decisions of people about single calls, and about steps of workflows.

use monstrum_types::{ApprovalId, BotId, JsonText, KeyId, RequestId, ResourceId, RunId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;

/// An approval. A bot key reads only the fields `id`, `status`, `expires_at` and `note`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Approval {
    Full(Box<FullApproval>),
    Short(ShortApproval),
}

/// An approval as its approvers read it.
#[derive(Serialize, ToSchema)]
pub struct FullApproval {
    pub id: ApprovalId,
    /// `call`: the approval of one call. `step`: the approval of a step of a workflow.
    pub kind: String,
    /// `pending`, `approved`, `denied`, `used`, `expired` or `void`.
    pub status: String,
    /// The SHA-256 that identifies the call or the question. A decision must repeat it.
    pub digest: String,
    pub bot_id: BotId,
    /// The user on whose behalf the call is made, if the caller named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<ApprovalUser>,
    /// The tool of a call. An approval of the kind `step` has `for` in place of one tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<ResourceId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// `read`, `idempotent` or `write`: the effect of the call on the upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// The run whose step asks, for the kind `step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The step that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The items of the blocks around the step, such as `3.0`; absent outside of `each`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// The text of the question, without secrets, and with escapes in place of invisible characters. Absent like `params`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The calls of later steps that a decision approves.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<ApprovalTarget>>,
    /// The parameters of the call, without secrets. Invisible characters are written as escapes such as `\u{202e}`. Absent
    /// if they were deleted, 30 days after the end of the approval, or if `params_omitted` is true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<JsonText>,
    /// True in lists and events in place of parameters and texts of more than 4 KiB. The approval by itself has them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub params_omitted: bool,
    /// The delegations that led to the call, outermost first.
    #[schema(value_type = Vec<Object>)]
    pub links: Value,
    /// The labels that the call of a task or the run of a step carries; empty for other calls, whose labels the server does
    /// not know.
    #[schema(value_type = Vec<String>)]
    pub labels: Value,
    /// The gates that ask, each with its holder and its reason.
    #[schema(value_type = Vec<Object>)]
    pub gates: Value,
    /// The kinds of keys that may decide, in addition to root keys.
    #[schema(value_type = Vec<String>)]
    pub approvers: Value,
    /// Whether the key that made the call, or the keys that started the run, may decide.
    pub allow_starter: bool,
    pub asked_by: AskedBy,
    /// The call that used the approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    pub created_at: UtcMillis,
    pub expires_at: UtcMillis,
    /// The key that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<KeyId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<UtcMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The URL at which a person decides, if the server has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A call of a later step that a decision approves.
#[derive(Serialize, ToSchema)]
pub struct ApprovalTarget {
    /// The step that makes the call.
    pub step: String,
    pub tool: String,
    pub resource_id: ResourceId,
    pub operation: String,
    /// `read`, `idempotent` or `write`: the effect of the call on the upstream.
    pub effect: String,
    /// The parameters of the call, like those of an approval of the kind `call`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<JsonText>,
}

/// An approval as a bot reads it.
#[derive(Serialize, ToSchema)]
pub struct ShortApproval {
    pub id: ApprovalId,
    pub status: String,
    pub expires_at: UtcMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A user of an app.
#[derive(Serialize, ToSchema)]
pub struct ApprovalUser {
    pub app_id: String,
    pub user_id: String,
}

/// The key or the task that made the call. An approval of the kind `step` has neither.
#[derive(Serialize, ToSchema)]
pub struct AskedBy {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<KeyId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
}

/// A decision about an approval.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionInput {
    pub decision: Decision,
    /// The `digest` of the approval that the person has read.
    pub digest: String,
    /// A note of at most 1 KiB. A caller whose call is denied reads the note.
    pub note: Option<String>,
}

/// A decision of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ApprovalDecision)]
pub enum Decision {
    Approve,
    Deny,
}

lists! {
    Approval => ApprovalList "A page of approvals.",
}
