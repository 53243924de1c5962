//! Finds the rows of the next segment. Each row is checked as in a verification, so that no manifest is signed for an
//! altered row.

use std::collections::{BTreeMap, HashMap};

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

/// Finds the next segment after `after` within `limit`. The calls that are open at the end of a segment must have their
/// end in a later row of the database: a start without an end stays in the database, so that the next start of the
/// server can mark the call as interrupted. The segment therefore ends before the first call without an end. It also
/// ends where an interrupted command has already written a segment with the same end. Returns `None` if no row can be
/// archived.
pub(super) async fn find(
    store: &Store,
    keys: &KeyRing,
    writer: &str,
    after: Position,
    limit: &Limit<'_>,
) -> Result<Option<Cut>, ArchiveError> {
    let mut search = Search { writer, keys, limit, after, at: after, rows: None, end: None, open: HashMap::new() };
    let mut pages = Pages::new(store, writer);
    while let Some(page) = pages.next().await? {
        for scanned in page {
            if search.add(scanned)? {
                return Ok(search.cut());
            }
        }
    }
    search.end = search.end.or(search.rows);
    Ok(search.cut())
}

struct Search<'a> {
    writer: &'a str,
    keys: &'a KeyRing,
    limit: &'a Limit<'a>,
    after: Position,
    /// The last row that was added.
    at: Position,
    /// The rows from `after` to `at`. `None` before the first row.
    rows: Option<Cut>,
    /// The longest possible segment. After it is set, the search only looks for the ends of open calls.
    end: Option<Cut>,
    /// The calls that have started and not ended, with the rows before their start.
    open: HashMap<RequestId, Option<Cut>>,
}

impl Search<'_> {
    /// Adds a row. Returns whether the search has ended.
    fn add(&mut self, scanned: Result<ScannedRow, UnreadableRow>) -> Result<bool, ArchiveError> {
        let expected = self.at.sequence + 1;
        let scanned = scanned.map_err(|row| self.altered(row.sequence.unwrap_or(expected), &row.what))?;
        if self.end.is_none() && self.is_at_end(&scanned.row) {
            self.end = self.rows;
            if self.end.is_none() || self.open.is_empty() {
                return Ok(true);
            }
        }
        self.check(&scanned)?;
        let AuditRow { sequence, hash, at, request_id, .. } = scanned.row;
        let before = self.rows;
        self.at = Position { sequence, hash };
        let first_at = before.map_or(at, |rows| rows.first_at);
        self.rows = Some(Cut { after: self.after, last: self.at, first_at, last_at: at });
        match scanned.row.kind {
            AuditKind::Finished | AuditKind::Interrupted => drop(self.open.remove(&request_id)),
            AuditKind::Started if self.end.is_none() => drop(self.open.entry(request_id).or_insert(before)),
            AuditKind::Started => {}
        }
        if self.end.is_none() && self.limit.written.get(&sequence).is_some_and(|last| *last == hex::encode(hash)) {
            self.end = self.rows;
        }
        Ok(self.end.is_some() && self.open.is_empty())
    }

    /// Returns whether the segment must end before `row`.
    fn is_at_end(&self, row: &AuditRow) -> bool {
        let rows = (self.at.sequence - self.after.sequence).unsigned_abs();
        row.sequence > self.limit.head || row.at >= self.limit.before || rows >= self.limit.rows
    }

    /// Returns the longest segment that contains no start of a call without an end.
    fn cut(&self) -> Option<Cut> {
        let sequence = |cut: &Option<Cut>| cut.map_or(self.after.sequence, |cut| cut.last.sequence);
        self.open.values().copied().chain([self.end]).min_by_key(sequence).flatten()
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
