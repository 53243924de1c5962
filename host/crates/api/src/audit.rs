//! Recorded calls and changes, and the result of a verification.

use monstrum_types::{BotId, KeyId, RequestId, ResourceId, UtcMillis};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;

/// A call as it was recorded.
#[derive(Serialize, ToSchema)]
pub struct AuditedCall {
    pub request_id: RequestId,
    pub bot_id: Option<BotId>,
    pub task_id: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// As it was asked for, whether there is such a tool or not; null for what the file routes of sandboxes have read.
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub plugin: Option<String>,
    /// SHA-256 of the component that ran.
    pub plugin_digest: Option<String>,
    /// The caller's, or `running`, or `interrupted`.
    pub status: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    /// The rule that refused the call.
    pub rule: Option<String>,
    /// Redacted; large ones as `{digest, bytes, first}`.
    #[schema(value_type = Object)]
    pub params: Value,
    pub duration_ms: Option<i64>,
    pub started_at: UtcMillis,
    pub finished_at: Option<UtcMillis>,
    pub parent_request_id: Option<RequestId>,
    #[schema(value_type = Object)]
    pub delegation: Value,
}

/// A call with the events of its writer's chain.
#[derive(Serialize, ToSchema)]
pub struct AuditedCallWithEvents {
    #[serde(flatten)]
    pub call: AuditedCall,
    pub events: Vec<AuditEvent>,
}

/// One row of a chain.
#[derive(Serialize, ToSchema)]
pub struct AuditEvent {
    pub sequence: i64,
    /// The node whose chain it belongs to.
    pub writer: String,
    /// `started`, `finished` or `interrupted`.
    pub kind: String,
    pub at: UtcMillis,
    pub status: Option<String>,
    pub code: Option<String>,
    /// `output_mismatch`: the result does not match the tool's `output_schema`.
    pub flags: Option<String>,
    /// The version of the audit key.
    pub key_version: i64,
    /// The hash of the row before it, hex.
    pub previous_hash: String,
    pub hash: String,
}

/// The result of a verification of the audit.
#[derive(Serialize, ToSchema)]
pub struct Report {
    /// No problem was found.
    pub valid: bool,
    /// How many rows were checked.
    pub rows: u64,
    pub problems: Vec<AuditProblem>,
}

/// A row or a signed head that differs from what was written.
#[derive(Serialize, ToSchema)]
pub struct AuditProblem {
    /// The writer of the chain; empty for the file of heads.
    pub writer: String,
    /// The sequence of the row; the number of the line for the file of heads.
    pub sequence: i64,
    pub what: String,
}

/// A change of what is permitted.
#[derive(Serialize, ToSchema)]
pub struct AuditedChange {
    pub request_id: RequestId,
    /// The API key that asked; null for an offline command.
    #[schema(value_type = Option<KeyId>)]
    pub key_id: Value,
    #[schema(value_type = String)]
    pub key_kind: Value,
    /// What was done to what, such as `role.update`.
    pub change: Option<String>,
    /// The id or the name of what was changed.
    #[schema(value_type = String)]
    pub object: Value,
    pub bot_id: Option<BotId>,
    pub resource_id: Option<ResourceId>,
    /// `success`, `error`, `running` or `interrupted`: only the first was made for certain.
    pub status: Option<String>,
    pub message: Option<String>,
    /// As the API shows it; null for what was new.
    #[schema(value_type = Object)]
    pub before: Value,
    /// Null for what was deleted.
    #[schema(value_type = Object)]
    pub after: Value,
    pub started_at: UtcMillis,
    pub finished_at: Option<UtcMillis>,
}

lists! {
    AuditedCall => AuditList "A page of calls, newest first.",
    AuditedChange => AuditedChangeList "A page of changes, newest first.",
}
