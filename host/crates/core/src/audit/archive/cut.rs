//! Finds the rows of the next segment. Each row is checked as in a verification, so that no manifest is signed for an
//! altered row.

use std::collections::{BTreeMap, HashSet};

use monstrum_store::{AuditKind, AuditRow, ScanFrom, ScannedRow, Store, StoreError, UnreadableRow};
use monstrum_types::{RequestId, UtcMillis};

use super::ArchiveError;
use crate::audit::chain::Position;
use crate::audit::verify::{KeyRing, gap, seal};

/// The number of rows that are read at a time.
const PAGE_ROWS: u32 = 1000;

/// The rows of a chain, page by page.
pub(super) struct Pages<'a> {
    store: &'a Store,
    writer: &'a str,
    next: Option<ScanFrom>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(store: &'a Store, writer: &'a str) -> Pages<'a> {
        Pages { store, writer, next: Some(ScanFrom::START) }
    }

    /// Returns the next page, or `None` after the last page.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Result<ScannedRow, UnreadableRow>>>, StoreError> {
        let Some(from) = self.next.take() else { return Ok(None) };
        let page = self.store.scan(self.writer, from, PAGE_ROWS).await?;
        self.next = page.next;
        Ok(Some(page.rows))
    }
}

/// The limits of a segment.
pub(super) struct Limit<'a> {
    /// The time before which a row must have been written.
    pub before: UtcMillis,
    /// The last row that a signed head covers.
    pub head: i64,
    /// The number of rows after which a segment ends.
    pub rows: u64,
    /// The sequence numbers and hashes of the last rows of segments that begin at the same row and whose manifests
    /// already exist.
    pub written: &'a BTreeMap<i64, String>,
}

/// The rows of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The row before the first row.
    pub after: Position,
    pub last: Position,
    pub first_at: UtcMillis,
    pub last_at: UtcMillis,
}

/// Finds the next segment after `after` within `limit`. A segment ends where no call is open. It is longer than
/// `limit.rows` if a call was open at that row, and it ends earlier where an interrupted command has already written a
/// segment with the same end. Returns `None` if no row can be archived.
pub(super) async fn find(
    store: &Store,
    keys: &KeyRing,
    writer: &str,
    after: Position,
    limit: &Limit<'_>,
) -> Result<Option<Cut>, ArchiveError> {
    let mut search = Search { writer, keys, limit, after, at: after, first_at: None, open: HashSet::new(), cut: None };
    let mut pages = Pages::new(store, writer);
    while let Some(page) = pages.next().await? {
        for scanned in page {
            if search.add(scanned)? {
                return Ok(search.cut);
            }
        }
    }
    Ok(search.cut)
}

struct Search<'a> {
    writer: &'a str,
    keys: &'a KeyRing,
    limit: &'a Limit<'a>,
    after: Position,
    /// The last row that was added.
    at: Position,
    first_at: Option<UtcMillis>,
    /// The calls that have started and not ended.
    open: HashSet<RequestId>,
    cut: Option<Cut>,
}

impl Search<'_> {
    /// Adds a row. Returns whether the search has ended.
    fn add(&mut self, scanned: Result<ScannedRow, UnreadableRow>) -> Result<bool, ArchiveError> {
        let expected = self.at.sequence + 1;
        let scanned = scanned.map_err(|row| self.altered(row.sequence.unwrap_or(expected), &row.what))?;
        let row = &scanned.row;
        let is_beyond = row.sequence > self.limit.head || row.at >= self.limit.before;
        let has_enough =
            self.cut.is_some() && (self.at.sequence - self.after.sequence).unsigned_abs() >= self.limit.rows;
        if is_beyond || has_enough {
            return Ok(true);
        }
        self.check(&scanned)?;
        let AuditRow { sequence, hash, at, request_id, .. } = scanned.row;
        let first_at = *self.first_at.get_or_insert(at);
        self.at = Position { sequence, hash };
        match scanned.row.kind {
            AuditKind::Started => drop(self.open.insert(request_id)),
            AuditKind::Finished | AuditKind::Interrupted => drop(self.open.remove(&request_id)),
        }
        if !self.open.is_empty() {
            return Ok(false);
        }
        self.cut = Some(Cut { after: self.after, last: self.at, first_at, last_at: at });
        // If an interrupted command has already written this segment, the search ends.
        Ok(self.limit.written.get(&sequence).is_some_and(|written| *written == hex::encode(hash)))
    }

    /// Checks that the row is the next row of the chain and was not changed.
    fn check(&self, scanned: &ScannedRow) -> Result<(), ArchiveError> {
        let (row, expected) = (&scanned.row, self.at.sequence + 1);
        if row.sequence > expected {
            return Err(self.altered(expected, &gap(expected, row.sequence)));
        }
        if row.sequence < expected {
            return Err(self.altered(row.sequence, "the row was archived, but it is in the database again"));
        }
        if row.previous_hash != self.at.hash {
            return Err(self.altered(row.sequence, "the row does not follow the previous row"));
        }
        match seal(self.keys, scanned).problem() {
            Some(what) => Err(self.altered(row.sequence, what)),
            None => Ok(()),
        }
    }

    fn altered(&self, sequence: i64, what: &str) -> ArchiveError {
        ArchiveError::NotAsWritten { writer: self.writer.to_owned(), sequence, what: what.to_owned() }
    }
}
