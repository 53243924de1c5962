//! Recorded calls and changes, and the result of a verification.

use std::collections::BTreeMap;

use monstrum_types::{AppUser, BotId, KeyId, RequestId, ResourceId, UtcMillis};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;

/// A recorded call.
#[derive(Serialize, ToSchema)]
pub struct AuditedCall {
    pub request_id: RequestId,
    pub bot_id: Option<BotId>,
    /// The user on whose behalf the call was made: the user of the access token, or the user of the conversation that the
    /// caller named. Absent for a call without a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<AppUser>,
    pub task_id: Option<String>,
    pub resource_id: Option<ResourceId>,
    /// The name of the tool as the caller sent it, even if no such tool exists. Null for reads through the sandbox file
    /// routes.
    pub tool: Option<String>,
    pub operation: Option<String>,
    pub plugin: Option<String>,
    /// SHA-256 of the component that ran.
    pub plugin_digest: Option<String>,
    /// The status that the caller received, or `running` before the call ends, or `interrupted` if the host stopped
    /// during the call.
    pub status: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    /// The rule that rejected the call.
    pub rule: Option<String>,
    /// The redacted parameters. Large parameters are replaced with `{digest, bytes, first}`.
    #[schema(value_type = Object)]
    pub params: Value,
    pub duration_ms: Option<i64>,
    pub started_at: UtcMillis,
    pub finished_at: Option<UtcMillis>,
    pub parent_request_id: Option<RequestId>,
    #[schema(value_type = Object)]
    pub delegation: Value,
}

/// A recorded call, and its events in the audit chain of the host that ran the call.
#[derive(Serialize, ToSchema)]
pub struct AuditedCallWithEvents {
    #[serde(flatten)]
    pub call: AuditedCall,
    pub events: Vec<AuditEvent>,
}

/// One row of an audit chain.
#[derive(Serialize, ToSchema)]
pub struct AuditEvent {
    pub sequence: i64,
    /// The id of the host that wrote the row. Each host has its own chain.
    pub writer: String,
    /// The kind of the row: `started`, `finished` or `interrupted`.
    pub kind: String,
    pub at: UtcMillis,
    pub status: Option<String>,
    pub code: Option<String>,
    /// A marker: `output_mismatch` if the result does not match the tool's `output_schema`, or `change` if the row
    /// records a change.
    pub flags: Option<String>,
    /// The version of the audit key.
    pub key_version: i64,
    /// The hash of the previous row, in hex.
    pub previous_hash: String,
    pub hash: String,
}

/// The result of a verification of the audit.
#[derive(Debug, Serialize, ToSchema)]
pub struct Report {
    /// Whether the verification found no problems.
    pub valid: bool,
    /// The number of rows that were checked.
    pub rows: u64,
    /// The number of rows that were archived and are not checked here; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived_rows: Option<u64>,
    /// The head after which rows were checked; absent if all rows were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_head: Option<AuditHeadPlace>,
    pub problems: Vec<AuditProblem>,
}

/// A signed head.
#[derive(Debug, Serialize, ToSchema)]
pub struct AuditHeadPlace {
    /// The writer of the chain.
    pub writer: String,
    /// The sequence number of the row before the checked ones.
    pub sequence: i64,
}

/// One problem that the verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuditProblem {
    /// The id of the host that wrote the chain. Empty for a problem that does not belong to a chain.
    pub writer: String,
    /// The sequence number of the row or the signed head, or the line number in the file of audit heads. 0 for other
    /// problems.
    pub sequence: i64,
    pub what: String,
}

/// A recorded change of permissions.
#[derive(Serialize, ToSchema)]
pub struct AuditedChange {
    pub request_id: RequestId,
    /// The API key that requested the change; null for an offline command.
    #[schema(value_type = Option<KeyId>)]
    pub key_id: Value,
    #[schema(value_type = String)]
    pub key_kind: Value,
    /// The type of the object and the action, such as `role.update`.
    pub change: Option<String>,
    /// The id or the name of the object.
    #[schema(value_type = String)]
    pub object: Value,
    pub bot_id: Option<BotId>,
    pub resource_id: Option<ResourceId>,
    /// The status: `success`, `error`, `running` or `interrupted`. Only if the status is `success` is it certain that
    /// the change was made.
    pub status: Option<String>,
    pub message: Option<String>,
    /// The object before the change, as the API returns it. Null if the object was created.
    #[schema(value_type = Object)]
    pub before: Value,
    /// The object after the change. Null if the object was deleted.
    #[schema(value_type = Object)]
    pub after: Value,
    pub started_at: UtcMillis,
    pub finished_at: Option<UtcMillis>,
}

/// A page of calls, newest first, or the calls of a tree, oldest first.
#[derive(Serialize, ToSchema)]
pub struct AuditList {
    pub items: Vec<AuditedCall>,
    /// The cursor for the next page; null on the last page, and for a tree.
    pub next_cursor: Option<String>,
    /// The number of calls that are in the tree but not in `items`; absent if there are none. At most 10000 calls of a
    /// tree are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<u32>,
}

/// Numbers of calls, the largest first.
#[derive(Serialize, ToSchema)]
pub struct CallStats {
    pub items: Vec<CallStat>,
    /// Present if the audit has too many rows: calls that started before this time may be missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_before: Option<UtcMillis>,
    /// Present and true if there are more than 10000 items. The smallest are missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_more: bool,
}

/// The number of calls with the same properties.
#[derive(Serialize, ToSchema)]
pub struct CallStat {
    /// The properties that `by` names, with their values. A value is null if the calls have none.
    pub key: BTreeMap<String, Option<String>>,
    /// The beginning of the bucket. Absent without `bucket`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<UtcMillis>,
    pub calls: u64,
    /// The time at which the newest of these calls started.
    pub last_at: UtcMillis,
}

lists! {
    AuditedChange => AuditedChangeList "A page of changes, newest first.",
}
