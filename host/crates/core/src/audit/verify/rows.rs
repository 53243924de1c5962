//! Checks the rows of a chain one after another, and reports each problem.

use std::collections::BTreeMap;

use monstrum_store::{AuditRow, ScannedRow, UnreadableRow};

use super::{Findings, KeyRing};
use crate::audit::chain::Position;
use crate::audit::heads::Head;

/// The check of a chain.
pub(super) struct ChainCheck<'a> {
    found: &'a mut Findings,
    writer: &'a str,
    /// The last archived row, or the row of the head after which rows are verified.
    start: Position,
    /// The sequence number of the next row.
    expected: i64,
    /// The hash of the last row; `None` after a row that is missing or cannot be read.
    previous: Option<[u8; 32]>,
    /// The heads of the rows that are not checked yet.
    pub(super) heads: BTreeMap<i64, Head>,
}

impl<'a> ChainCheck<'a> {
    pub(super) fn new(
        found: &'a mut Findings,
        writer: &'a str,
        start: Position,
        mut heads: BTreeMap<i64, Head>,
    ) -> ChainCheck<'a> {
        let expected = start.sequence.saturating_add(1);
        let of_later_rows = heads.split_off(&expected);
        let of_start = heads.remove(&start.sequence);
        if start.sequence > 0 && of_start.is_some_and(|head| head.hash != hex::encode(start.hash)) {
            found.add(
                writer,
                start.sequence,
                "the last row before the checked rows differs from the row that a signed head covers",
            );
        }
        ChainCheck { found, writer, start, expected, previous: Some(start.hash), heads: of_later_rows }
    }

    /// Returns the last row, or `None` if it cannot be read.
    pub(super) fn position(&self) -> Option<Position> {
        self.previous.map(|hash| Position { sequence: self.expected - 1, hash })
    }

    /// Skips the rows up to `end`, which another check has found to be unchanged.
    pub(super) fn skip_to(&mut self, end: Position) {
        self.found.rows += end.sequence.abs_diff(self.expected - 1);
        self.expected = end.sequence + 1;
        self.previous = Some(end.hash);
        self.heads = self.heads.split_off(&self.expected);
    }

    /// Checks the next row in the database.
    pub(super) fn add(&mut self, row: Result<AuditRow, UnreadableRow>, seal: &Seal) {
        self.found.rows += 1;
        let sequence = match &row {
            Ok(row) => Some(row.sequence),
            Err(unreadable) => unreadable.sequence,
        };
        if let Some(sequence) = sequence.filter(|sequence| self.start.sequence > 0 && *sequence <= self.start.sequence)
        {
            return self.found.add(self.writer, sequence, "the row was archived, but it is in the database again");
        }
        match row {
            Ok(row) => self.add_readable(&row, seal),
            Err(unreadable) => {
                let sequence = unreadable.sequence.unwrap_or(self.expected);
                self.found.add(self.writer, sequence, format!("the row cannot be read: {}", unreadable.what));
                self.heads.remove(&sequence);
                self.expected = sequence + 1;
                self.previous = None;
            }
        }
    }

    fn add_readable(&mut self, row: &AuditRow, seal: &Seal) {
        let ChainCheck { found, writer, .. } = self;
        if row.sequence != self.expected {
            found.add(writer, self.expected, gap(self.expected, row.sequence));
            self.previous = None;
        }
        // After a gap, the previous hash in the row is not checked, so that one missing row causes only one problem.
        if self.previous.is_some_and(|previous| previous != row.previous_hash) {
            found.add(writer, row.sequence, "the row does not follow the previous row");
        }
        if let Some(what) = seal.problem() {
            found.add(writer, row.sequence, what);
        }
        if self.heads.remove(&row.sequence).is_some_and(|head| head.hash != hex::encode(row.hash)) {
            found.add(writer, row.sequence, "the row differs from the row that a signed head covers");
        }
        self.expected = row.sequence + 1;
        self.previous = Some(row.hash);
    }

    /// Reports missing rows at the end. Returns the sequence number of the last row.
    pub(super) fn end(self) -> i64 {
        if let Some(last) = self.heads.keys().next_back() {
            self.found.add(
                self.writer,
                *last,
                format!("a signed head covers rows up to {last}, but the last rows are missing"),
            );
        }
        self.expected - 1
    }
}

/// Describes the missing rows from `expected` up to the row before `sequence`.
pub(in crate::audit) fn gap(expected: i64, sequence: i64) -> String {
    match sequence - 1 {
        last if last == expected => format!("row {expected} is missing"),
        last => format!("rows {expected} to {last} are missing"),
    }
}

/// The result of checking the hash of a row.
pub(in crate::audit) enum Seal {
    Whole,
    Altered,
    NoKey,
}

impl Seal {
    /// Returns the problem with the row, if there is one.
    pub(in crate::audit) fn problem(&self) -> Option<&'static str> {
        match self {
            Seal::Whole => None,
            Seal::Altered => Some("the row was changed after it was written"),
            Seal::NoKey => Some("the row names an audit key that does not exist"),
        }
    }
}

/// Checks the hashes of `rows`. The hash of a row that cannot be read counts as altered.
pub(super) async fn check_seals(
    keys: &KeyRing,
    rows: Vec<Result<ScannedRow, UnreadableRow>>,
) -> Vec<(Result<AuditRow, UnreadableRow>, Seal)> {
    let keys = keys.clone();
    let check = move |scanned: Result<ScannedRow, UnreadableRow>| {
        let seal = scanned.as_ref().map_or(Seal::Altered, |scanned| seal(&keys, scanned));
        (scanned.map(|scanned| scanned.row), seal)
    };
    let checked = tokio::task::spawn_blocking(move || rows.into_iter().map(check).collect()).await;
    checked.expect("checking hashes does not panic")
}

/// Checks the hash of a row.
pub(in crate::audit) fn seal(keys: &KeyRing, ScannedRow { row, canonical, contradiction }: &ScannedRow) -> Seal {
    if contradiction.is_some() {
        return Seal::Altered;
    }
    match u32::try_from(row.key_version).ok().and_then(|version| keys.get(&version)) {
        None => Seal::NoKey,
        Some(keys) if keys.verify_mac(&row.previous_hash, canonical, &row.hash) => Seal::Whole,
        Some(_) => Seal::Altered,
    }
}
