//! One chain a writer: each row carries a sequence number, the hash of the row before it, and its own.

use std::sync::Arc;

use monstrum_store::{AuditRow, Store, StoreError};
use monstrum_vault::AuditKeys;

/// What the first row of a chain has as the hash before it.
pub(super) const GENESIS: [u8; 32] = [0; 32];

/// Rows read at a time.
const SCAN_ROWS: u32 = 1000;

/// Where a chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Of the last row; 0 before the first.
    pub sequence: i64,
    pub hash: [u8; 32],
}

/// The chain of one writer, and the keys that it is made with.
pub struct Chain {
    writer: String,
    keys: Arc<AuditKeys>,
    position: Position,
    head_sequence: Option<i64>,
}

impl Chain {
    /// Takes the chain of `writer` up where the database has it.
    pub async fn resume(store: &Store, writer: String, keys: Arc<AuditKeys>) -> Result<Chain, StoreError> {
        let position = position(store, &writer).await?;
        Ok(Chain { writer, keys, position, head_sequence: None })
    }

    /// Looks again where the database stands, since a commit that failed may have happened all the same; the rows that it
    /// has and that were not known to be committed.
    pub async fn catch_up(&mut self, store: &Store) -> Result<Vec<AuditRow>, StoreError> {
        let found = position(store, &self.writer).await?;
        let known = self.position.sequence;
        if found.sequence < known {
            tracing::error!(known, found = found.sequence, "the database has lost rows of the audit that it had taken");
        }
        let mut written = Vec::new();
        let mut next = Some(known + 1).filter(|first| *first <= found.sequence);
        while let Some(first) = next {
            let page = store.scan(&self.writer, first, SCAN_ROWS).await?;
            // What cannot be read is not a row of ours.
            written.extend(page.rows.into_iter().flatten());
            next = page.next;
        }
        self.position = found;
        Ok(written)
    }

    /// Whose chain it is.
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// Where it stands.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The keys that it is made with.
    pub fn keys(&self) -> &AuditKeys {
        &self.keys
    }

    /// `rows` as the next links, and where the chain stands once they are committed.
    pub fn extend(&self, rows: &[AuditRow]) -> (Vec<AuditRow>, Position) {
        let mut position = self.position;
        let chained = rows.iter().map(|row| {
            let mut row = row.clone();
            row.writer.clone_from(&self.writer);
            row.sequence = position.sequence + 1;
            row.key_version = i64::from(self.keys.version());
            row.previous_hash = position.hash;
            row.hash = self.keys.mac(&position.hash, &row.canonical());
            position = Position { sequence: row.sequence, hash: row.hash };
            row
        });
        (chained.collect(), position)
    }

    /// The rows up to `position` are committed.
    pub fn advance(&mut self, position: Position) {
        self.position = position;
    }

    /// How many rows no head covers yet.
    pub fn rows_since_head(&self) -> i64 {
        self.position.sequence - self.head_sequence.unwrap_or(0)
    }

    /// Whether the last head is of another row than the last.
    pub fn wants_head(&self) -> bool {
        self.head_sequence != Some(self.position.sequence)
    }

    /// A head for the present position is on disk.
    pub fn head_signed(&mut self) {
        self.head_sequence = Some(self.position.sequence);
    }
}

/// Where the database has the chain of `writer`.
async fn position(store: &Store, writer: &str) -> Result<Position, StoreError> {
    Ok(match store.last(writer).await? {
        Some(last) => Position { sequence: last.sequence, hash: last.hash },
        None => Position { sequence: 0, hash: GENESIS },
    })
}
