//! Rows of version 1, in `audit_events`: one column for each field.

use super::AuditRow;
use crate::StoreError;
use crate::db::{ColumnValue, FromRow, Row};

/// The columns of the table.
macro_rules! columns {
    () => {
        "writer, sequence, kind, request_id, workspace_id, bot_id, task_id, resource_id, tool, operation, plugin, \
         plugin_digest, status, code, message, rule, params, duration_ms, started_at, at, parent_request_id, \
         delegation, flags, key_version, previous_hash, hash"
    };
}
pub(super) use columns;

/// Decodes the named columns. Rows of version 1 have no user.
macro_rules! decoded {
    ($row:ident, $($column:ident),+ $(,)?) => {
        AuditRow { $($column: $row.get(stringify!($column))?,)+ app_id: None, user_id: None }
    };
}

impl FromRow for AuditRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(decoded!(
            row,
            writer,
            sequence,
            kind,
            request_id,
            workspace_id,
            bot_id,
            task_id,
            resource_id,
            tool,
            operation,
            plugin,
            plugin_digest,
            status,
            code,
            message,
            rule,
            params,
            duration_ms,
            started_at,
            at,
            parent_request_id,
            delegation,
            flags,
            key_version,
            previous_hash,
            hash,
        ))
    }
}

/// A hash. Only 64 lower-case hex digits are valid, so each hash has exactly one spelling.
impl ColumnValue for [u8; 32] {
    fn read(row: &Row, column: &'static str) -> Result<Option<Self>, StoreError> {
        row.parse(column, hash_of_hex)
    }
}

/// Decodes a hash from 64 lower-case hex digits.
pub(super) fn hash_of_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    (!text.bytes().any(|byte| byte.is_ascii_uppercase())).then_some(bytes)
}
