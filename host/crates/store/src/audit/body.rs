//! Decoding of rows of version 2 from their canonical text.

use monstrum_types::UtcMillis;
use serde::Deserialize;

use super::first::hash_of_hex;
use super::{AuditKind, AuditRow};
use crate::StoreError;
use crate::db::invalid_column;

/// The canonical text. Fields that a later release adds are ignored.
#[derive(Deserialize)]
struct Body {
    app_id: Option<String>,
    at: Integer,
    bot_id: Option<String>,
    code: Option<String>,
    delegation: Option<String>,
    duration_ms: Option<Integer>,
    flags: Option<String>,
    key_version: Integer,
    kind: String,
    message: Option<String>,
    operation: Option<String>,
    params: Option<String>,
    parent_request_id: Option<String>,
    plugin: Option<String>,
    plugin_digest: Option<String>,
    previous_hash: String,
    request_id: String,
    resource_id: Option<String>,
    rule: Option<String>,
    sequence: Integer,
    started_at: Integer,
    status: Option<String>,
    task_id: Option<String>,
    tool: Option<String>,
    user_id: Option<String>,
    v: i64,
    workspace_id: Option<String>,
    writer: String,
}

/// An integer, which is written as a string if a double cannot represent it exactly.
#[derive(Deserialize)]
#[serde(untagged)]
enum Integer {
    Number(i64),
    Text(String),
}

impl Integer {
    fn value(&self) -> Option<i64> {
        match self {
            Integer::Number(number) => Some(*number),
            Integer::Text(text) => text.parse().ok(),
        }
    }
}

impl AuditRow {
    /// Decodes a row from its canonical text. Does not verify the hash.
    pub(super) fn of_body(body: &str, hash: [u8; 32]) -> Result<AuditRow, StoreError> {
        let malformed = || invalid_column("body", "malformed");
        let body: Body = serde_json::from_str(body).map_err(|_| malformed())?;
        decoded(body, hash).ok_or_else(malformed)
    }
}

fn decoded(body: Body, hash: [u8; 32]) -> Option<AuditRow> {
    (body.v == 2).then_some(())?;
    Some(AuditRow {
        writer: body.writer,
        sequence: body.sequence.value()?,
        kind: AuditKind::from_word(&body.kind)?,
        request_id: body.request_id.parse().ok()?,
        workspace_id: parsed(body.workspace_id)?,
        bot_id: parsed(body.bot_id)?,
        app_id: body.app_id,
        user_id: body.user_id,
        task_id: body.task_id,
        resource_id: parsed(body.resource_id)?,
        tool: body.tool,
        operation: body.operation,
        plugin: body.plugin,
        plugin_digest: body.plugin_digest,
        status: body.status,
        code: body.code,
        message: body.message,
        rule: body.rule,
        params: body.params,
        duration_ms: match body.duration_ms {
            Some(duration) => Some(duration.value()?),
            None => None,
        },
        started_at: UtcMillis(body.started_at.value()?),
        at: UtcMillis(body.at.value()?),
        parent_request_id: parsed(body.parent_request_id)?,
        delegation: body.delegation,
        flags: body.flags,
        key_version: body.key_version.value()?,
        previous_hash: hash_of_hex(&body.previous_hash)?,
        hash,
    })
}

/// Parses an id that may be absent. Returns `None` if the text is malformed.
fn parsed<T: std::str::FromStr>(text: Option<String>) -> Option<Option<T>> {
    match text {
        Some(text) => text.parse().ok().map(Some),
        None => Some(None),
    }
}
