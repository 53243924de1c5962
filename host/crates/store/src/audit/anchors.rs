//! Anchors of archived rows, and the deletion of these rows.
//!
//! An anchor says where the chain of a writer begins in the database after its first rows were archived. This crate stores
//! anchors and does not verify their signatures.

use monstrum_types::UtcMillis;

use super::UnreadableRow;
use crate::db::{FromRow, args, from_row, retry};
use crate::{Store, StoreError};

/// A row of `audit_anchors`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnchorRow {
    /// The writer of the chain.
    pub writer: String,
    /// The sequence number of the first archived row.
    pub first_sequence: i64,
    /// The hash of the row before the first archived row; all zeros at the beginning of the chain.
    pub previous_hash: [u8; 32],
    pub last_sequence: i64,
    pub last_hash: [u8; 32],
    /// The time of the last archived row.
    pub last_at: UtcMillis,
    /// The number of archived rows.
    pub rows: i64,
    /// The SHA-256 digest of the archive's manifest.
    pub manifest_digest: [u8; 32],
    pub archived_at: UtcMillis,
    /// The version of the audit keys that signed the anchor.
    pub key_version: i64,
    /// The signature in hex digits.
    pub signature: String,
}

from_row! {
    AnchorRow {
        writer, first_sequence, previous_hash, last_sequence, last_hash, last_at, rows, manifest_digest, archived_at,
        key_version, signature,
    }
}

const ALL: &str = "select writer, first_sequence, previous_hash, last_sequence, last_hash, last_at, rows, \
    manifest_digest, archived_at, key_version, signature from audit_anchors order by writer, last_sequence";
const INSERT: &str = "insert into audit_anchors (writer, first_sequence, previous_hash, last_sequence, last_hash, \
    last_at, rows, manifest_digest, archived_at, key_version, signature) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const DELETE_1: &str = "delete from audit_events where writer = $1 and sequence <= $2";
const DELETE_2: &str = "delete from audit_rows where writer = $1 and sequence <= $2";

impl Store {
    /// Returns all anchors, by writer and sequence number. An anchor that cannot be decoded is returned as an
    /// `UnreadableRow` in its place.
    pub async fn anchors(&self) -> Result<Vec<Result<AnchorRow, UnreadableRow>>, StoreError> {
        let rows = self.db.read().await?.fetch(ALL, args![]).await?;
        let decoded = rows.iter().map(|row| {
            AnchorRow::from_row(row)
                .map_err(|error| UnreadableRow { sequence: row.get("last_sequence").ok(), what: error.to_string() })
        });
        Ok(decoded.collect())
    }

    /// Inserts an anchor and deletes the rows that it covers, in one transaction. Fails without changes if the number
    /// of deleted rows differs from the number in the anchor.
    pub async fn replace_with_anchor(&self, anchor: &AnchorRow) -> Result<(), StoreError> {
        let AnchorRow { writer, first_sequence, last_sequence, last_at, rows, archived_at, key_version, .. } = anchor;
        let [previous, last, manifest] =
            [&anchor.previous_hash, &anchor.last_hash, &anchor.manifest_digest].map(hex::encode);
        retry!(async {
            let mut session = self.db.write().await?;
            let values = args![
                writer,
                *first_sequence,
                &previous,
                *last_sequence,
                &last,
                *last_at,
                *rows,
                &manifest,
                *archived_at,
                *key_version,
                &anchor.signature
            ];
            // The anchor is inserted first, because the triggers permit only the deletion of rows that an anchor
            // covers.
            session.run(INSERT, values).await?;
            let mut deleted = 0;
            for delete in [DELETE_1, DELETE_2] {
                deleted += session.run(delete, args![writer, *last_sequence]).await?;
            }
            if i64::try_from(deleted).ok() != Some(*rows) {
                let what =
                    format!("audit: found {deleted} rows of {writer} up to row {last_sequence}, expected {rows}");
                return Err(StoreError::Corrupt { what });
            }
            session.commit().await
        })
    }
}
