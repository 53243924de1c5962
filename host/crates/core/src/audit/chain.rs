//! The chain of a writer. Each row contains its sequence number, the hash of the previous row, and its own hash.

use std::collections::HashMap;
use std::sync::Arc;

use monstrum_store::{AuditKind, AuditRow, ChainedRow, ScanFrom, Store, StoreError, StoreRow};
use monstrum_types::RequestId;
use monstrum_vault::AuditKeys;

use super::anchors::Anchors;
use super::verify::KeyRing;

/// The previous hash in the first row of a chain.
pub(super) const GENESIS: [u8; 32] = [0; 32];

/// The number of rows that are read at a time.
const SCAN_ROWS: u32 = 1000;

/// The maximum memory in bytes that is kept for the texts of rows between batches. It is enough for a batch of rows of
/// usual size.
const BODIES_BYTES_KEPT: usize = 1 << 20;

/// The end of a chain: its last row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The sequence number of the last row; 0 for an empty chain.
    pub sequence: i64,
    pub hash: [u8; 32],
}

/// The chain of one writer, and the keys with which its hashes are computed.
pub struct Chain {
    writer: String,
    keys: Arc<AuditKeys>,
    position: Position,
    head_sequence: Option<i64>,
    /// The sequence numbers of the rows `started` of this run whose calls have not ended.
    open: HashMap<RequestId, i64>,
    /// The concatenated texts of the rows of a batch, and the position where each text ends. Later batches reuse the
    /// memory.
    bodies: String,
    ends: Vec<usize>,
}

impl Chain {
    /// Reads the end of the chain of `writer` from the database, to continue it there.
    pub async fn resume(store: &Store, writer: String, keys: Arc<AuditKeys>) -> Result<Chain, StoreError> {
        let position = position(store, &writer, &keys).await?;
        let (open, bodies, ends) = (HashMap::new(), String::new(), Vec::new());
        Ok(Chain { writer, keys, position, head_sequence: None, open, bodies, ends })
    }

    /// Reads the end of the chain from the database again, because a commit that returned an error may have happened.
    /// Returns the rows in the database that were not known to be committed.
    pub async fn catch_up(&mut self, store: &Store) -> Result<Vec<AuditRow>, StoreError> {
        let found = position(store, &self.writer, &self.keys).await?;
        let known = self.position.sequence;
        if found.sequence < known {
            tracing::error!(known, found = found.sequence, "the database has lost audit rows that it had committed");
        }
        let mut written = Vec::new();
        let mut next = Some(ScanFrom::Version2(known + 1)).filter(|_| known < found.sequence);
        while let Some(from) = next {
            let page = store.scan(&self.writer, from, SCAN_ROWS).await?;
            // Unreadable rows are skipped, because this process cannot have written them.
            written.extend(page.rows.into_iter().flatten().map(|scanned| scanned.row));
            next = page.next;
        }
        self.position = found;
        self.note(&written);
        Ok(written)
    }

    /// Records which calls the committed rows start and end.
    pub fn note(&mut self, rows: &[AuditRow]) {
        for row in rows {
            match row.kind {
                AuditKind::Started => _ = self.open.entry(row.request_id).or_insert(row.sequence),
                AuditKind::Finished | AuditKind::Interrupted => _ = self.open.remove(&row.request_id),
            }
        }
    }

    /// Returns the sequence number of the oldest row `started` whose call has not ended, or of the next row if all
    /// calls have ended.
    pub fn open_from(&self) -> i64 {
        self.open.values().copied().min().unwrap_or(self.position.sequence + 1)
    }

    /// The writer of the chain.
    pub fn writer(&self) -> &str {
        &self.writer
    }

    /// The current end of the chain.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The keys with which the hashes are computed.
    pub fn keys(&self) -> &Arc<AuditKeys> {
        &self.keys
    }

    /// Appends `rows` as the next links of the chain, and writes `with`, in one transaction. Returns, for each item of
    /// `with`, whether it was written. An error does not change the end of this chain in memory.
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
        self.note(rows);
        Ok(written)
    }

    /// Links `rows` to the end of the chain and writes their texts to `bodies`. Returns the end of the chain after
    /// `rows` are committed.
    fn link(&mut self, rows: &mut [AuditRow]) -> Position {
        let Chain { writer, keys, bodies, ends, position, .. } = self;
        bodies.clear();
        // The memory for an unusually long text must not be kept.
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

    /// The number of rows that no head covers yet.
    pub fn rows_since_head(&self) -> i64 {
        self.position.sequence - self.head_sequence.unwrap_or(0)
    }

    /// Whether no head covers the last row yet.
    pub fn wants_head(&self) -> bool {
        self.head_sequence != Some(self.position.sequence)
    }

    /// Records that a head for the current end of the chain is on disk.
    pub fn head_signed(&mut self) {
        self.head_sequence = Some(self.position.sequence);
    }
}

/// Reads the end of the chain of `writer` from the database. If all its rows were archived, its anchor is the end.
async fn position(store: &Store, writer: &str, keys: &Arc<AuditKeys>) -> Result<Position, StoreError> {
    if let Some(last) = store.last(writer).await? {
        return Ok(Position { sequence: last.sequence, hash: last.hash });
    }
    let anchors = Anchors::read(store, &KeyRing::from([(keys.version(), Arc::clone(keys))])).await?;
    Ok(anchors.end(writer))
}
