//! Checks the rows of a chain on all processors.
//!
//! The rows are split into spans. Threads check the spans in any order, and the results are then linked in order. Only
//! the spans before the first span that has a problem count as checked. The caller checks all later rows one after
//! another, and reports their problems.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::available_parallelism;

use monstrum_store::{ScanFrom, SpanScanner, Store, StoreError};
use parking_lot::Mutex;

use super::KeyRing;
use crate::audit::chain::Position;
use crate::audit::heads::Head;
use crate::beside;

/// The number of rows of a span. The check of a span takes some milliseconds, so that all threads end at about the same
/// time.
const SPAN_ROWS: usize = 4096;

/// The hashes at both ends of a span whose rows are unchanged.
#[derive(Clone, Copy)]
struct Checked {
    /// The hash of the row before the first row.
    previous: [u8; 32],
    last: [u8; 32],
}

/// Checks the rows of version 2 of a chain after `start`. Checks nothing if the first row with a sequence number of at
/// least `from` does not directly follow `start`, or if the database is not SQLite. Returns the last row up to which
/// the chain is unchanged, or `start` if nothing was checked.
pub(super) async fn check(
    store: &Store,
    keys: &KeyRing,
    writer: &str,
    (start, from): (Position, i64),
    heads: &BTreeMap<i64, Head>,
) -> Result<Position, StoreError> {
    let first = start.sequence.saturating_add(1);
    let in_place = store.scan(writer, ScanFrom::Version2(from), 1).await?.rows.into_iter().next();
    let begins_there = matches!(in_place, Some(Ok(row)) if row.row.sequence == first);
    let last = store.last_of_version_2(writer).await?;
    let Some(rows) = last.filter(|_| begins_there).and_then(|last| last.checked_sub(start.sequence)) else {
        return Ok(start);
    };
    let spans = usize::try_from(rows).unwrap_or(usize::MAX).div_ceil(SPAN_ROWS);
    let mut scanners = Vec::new();
    for _ in 0..available_parallelism().map_or(1, usize::from).min(spans) {
        match store.span_scanner().await {
            Ok(scanner) => scanners.extend(scanner),
            Err(error) => tracing::debug!(%error, "cannot open a connection for the verification; using fewer threads"),
        }
    }
    if scanners.is_empty() {
        return Ok(start);
    }
    let hashes = heads.range(first..).map(|(sequence, head)| (*sequence, head.hash.clone())).collect();
    let work = Work {
        keys: keys.clone(),
        writer: writer.to_owned(),
        heads: hashes,
        rows: (first, start.sequence + rows),
        next: AtomicUsize::new(0),
        is_doubtful: AtomicBool::new(false),
        checked: Mutex::new(BTreeMap::new()),
    };
    let checked = beside::spawn(move || work.run(scanners)).await.expect("checking rows does not panic");
    Ok(linked(start, &checked))
}

/// Links the checked spans that follow `start` without a gap. Returns the last row of the last linked span, or `start`
/// if no span follows it.
fn linked(start: Position, checked: &BTreeMap<i64, (i64, Checked)>) -> Position {
    let mut at = start;
    while let Some((last, span)) = checked.get(&(at.sequence + 1))
        && span.previous == at.hash
    {
        at = Position { sequence: *last, hash: span.last };
    }
    at
}

/// The spans of a chain. Each thread repeatedly checks the next unchecked span.
struct Work {
    keys: KeyRing,
    writer: String,
    /// The hashes of signed heads.
    heads: BTreeMap<i64, String>,
    /// The first and the last row.
    rows: (i64, i64),
    next: AtomicUsize,
    /// Whether a problem was found in a span. The remaining spans are then not checked.
    is_doubtful: AtomicBool,
    /// The checked spans by the sequence number of their first row, each with the sequence number of its last row.
    checked: Mutex<BTreeMap<i64, (i64, Checked)>>,
}

impl Work {
    fn run(self, scanners: Vec<SpanScanner>) -> BTreeMap<i64, (i64, Checked)> {
        std::thread::scope(|scope| {
            for scanner in scanners {
                // The threads inherit the low priority of this thread.
                scope.spawn(|| self.check_spans(scanner));
            }
        });
        self.checked.into_inner()
    }

    fn check_spans(&self, mut scanner: SpanScanner) {
        while !self.is_doubtful.load(Ordering::Relaxed)
            && let Some((first, last)) = self.span(self.next.fetch_add(1, Ordering::Relaxed))
        {
            match self.check_span(&mut scanner, first, last) {
                Some(checked) => drop(self.checked.lock().insert(first, (last, checked))),
                None => self.is_doubtful.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Returns the first and the last row of a span, or `None` after the last span.
    fn span(&self, number: usize) -> Option<(i64, i64)> {
        let offset = i64::try_from(number.checked_mul(SPAN_ROWS)?).ok()?;
        let first = self.rows.0.checked_add(offset).filter(|first| *first <= self.rows.1)?;
        Some((first, self.rows.1.min(first.saturating_add(SPAN_ROWS as i64 - 1))))
    }

    /// Checks the rows of a span. Returns `None` if a row is missing, was changed, or cannot be read.
    fn check_span(&self, scanner: &mut SpanScanner, first: i64, last: i64) -> Option<Checked> {
        let mut heads = self.heads.range(first..=last).peekable();
        let (mut previous, mut at) = (None, None);
        let all = scanner.all(&self.writer, (first, last), |row| {
            previous.get_or_insert(row.previous_hash);
            let follows = at.is_none_or(|hash| hash == row.previous_hash);
            let keys = self.keys.get(&row.key_version);
            let is_whole = keys.is_some_and(|keys| keys.verify_mac(&row.previous_hash, row.body, row.hash));
            let head = heads.next_if(|(sequence, _)| **sequence == row.sequence);
            let is_signed = head.is_none_or(|(_, hash)| *hash == hex::encode(row.hash));
            at = Some(*row.hash);
            follows && is_whole && is_signed
        });
        match all {
            Ok(true) => Some(Checked { previous: previous?, last: at? }),
            Ok(false) => None,
            Err(error) => {
                tracing::debug!(%error, "cannot read audit rows in parallel; reading them again one after another");
                None
            }
        }
    }
}
