//! One chain a writer: each row carries a sequence number, the hash of the row before it, and its own.

use std::sync::Arc;

use monstrum_store::{AuditRow, ChainedRow, ScanFrom, Store, StoreError, StoreRow};
use monstrum_vault::AuditKeys;

/// What the first row of a chain has as the hash before it.
pub(super) const GENESIS: [u8; 32] = [0; 32];

/// Rows read at a time.
const SCAN_ROWS: u32 = 1000;

/// How much memory for texts is kept between batches: enough for a batch of usual rows.
const BODIES_BYTES_KEPT: usize = 1 << 20;

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
    /// The texts of the rows of a batch, one after another, and where each ends. Their memory is used again.
    bodies: String,
    ends: Vec<usize>,
}

impl Chain {
    /// Takes the chain of `writer` up where the database has it.
    pub async fn resume(store: &Store, writer: String, keys: Arc<AuditKeys>) -> Result<Chain, StoreError> {
        let position = position(store, &writer).await?;
        Ok(Chain { writer, keys, position, head_sequence: None, bodies: String::new(), ends: Vec::new() })
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
        // New rows have version 2.
        let mut next = Some(ScanFrom::Version2(known + 1)).filter(|_| known < found.sequence);
        while let Some(from) = next {
            let page = store.scan(&self.writer, from, SCAN_ROWS).await?;
            // What cannot be read is not a row of ours.
            written.extend(page.rows.into_iter().flatten().map(|scanned| scanned.row));
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

    /// Appends `rows` as the next links of the chain, and writes `with`, in one transaction. Returns whether each of
    /// `with` was written. After an error the chain stands where it stood.
    pub async fn append(
        &mut self,
        store: &Store,
        rows: &mut [AuditRow],
        with: &[StoreRow],
    ) -> Result<Vec<bool>, StoreError> {
        let end = self.link(rows);
        let mut from = 0;
        let chained: Vec<_> = rows
            .iter()
            .zip(&self.ends)
            .map(|(row, end)| ChainedRow { row, body: &self.bodies[std::mem::replace(&mut from, *end)..*end] })
            .collect();
        let written = store.append(&chained, with).await?;
        self.position = end;
        Ok(written)
    }

    /// Makes `rows` the next links, with their texts in `bodies`. Returns where the chain stands once they are committed.
    fn link(&mut self, rows: &mut [AuditRow]) -> Position {
        let Chain { writer, keys, bodies, ends, position, .. } = self;
        bodies.clear();
        // A text of unusual length would stay in memory.
        bodies.shrink_to(BODIES_BYTES_KEPT);
        ends.clear();
        let mut end = *position;
        for row in rows {
            row.writer.clone_from(writer);
            row.sequence = end.sequence + 1;
            row.key_version = i64::from(keys.version());
            row.previous_hash = end.hash;
            let from = bodies.len();
            row.write_canonical(bodies);
            row.hash = keys.mac(&row.previous_hash, &bodies.as_bytes()[from..]);
            ends.push(bodies.len());
            end = Position { sequence: row.sequence, hash: row.hash };
        }
        end
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
