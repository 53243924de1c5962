//! Anchors. An anchor records where a chain begins in the database after its first rows were archived.
//!
//! A program that can write to the database can insert an anchor and delete rows. An anchor is therefore valid only if
//! it is signed with the key that signs the heads of the audit.

use std::collections::BTreeMap;
use std::path::Path;

use monstrum_api::audit::AuditProblem;
use monstrum_store::{AnchorRow, AuditRow, ScanFrom, Store, StoreError};
use monstrum_types::UtcMillis;
use monstrum_vault::AuditKeys;
use serde::Serialize;

use super::chain::{GENESIS, Position};
use super::heads::{self, HEADS_FILE, Newest};
use super::rollback::RollbackError;
use super::verify::{KeyRing, gap};

/// The signed fields of an anchor. A change of a field or of the order of the fields makes existing signatures invalid.
#[derive(Serialize)]
struct Signed<'a> {
    v: u8,
    writer: &'a str,
    first_sequence: i64,
    previous_hash: String,
    last_sequence: i64,
    last_hash: String,
    last_at: UtcMillis,
    rows: i64,
    manifest_digest: String,
    archived_at: UtcMillis,
    key_version: i64,
}

fn signed_bytes(row: &AnchorRow) -> Vec<u8> {
    let signed = Signed {
        v: 1,
        writer: &row.writer,
        first_sequence: row.first_sequence,
        previous_hash: hex::encode(row.previous_hash),
        last_sequence: row.last_sequence,
        last_hash: hex::encode(row.last_hash),
        last_at: row.last_at,
        rows: row.rows,
        manifest_digest: hex::encode(row.manifest_digest),
        archived_at: row.archived_at,
        key_version: row.key_version,
    };
    serde_json::to_vec(&signed).expect("plain strings and numbers")
}

/// Returns the anchor with its signature.
pub(super) fn signed(row: AnchorRow, keys: &AuditKeys) -> AnchorRow {
    let row = AnchorRow { key_version: i64::from(keys.version()), ..row };
    AnchorRow { signature: hex::encode(keys.sign_anchor(&signed_bytes(&row))), ..row }
}

fn is_signed(row: &AnchorRow, keys: &KeyRing) -> bool {
    let mut signature = [0; 64];
    let keys = u32::try_from(row.key_version).ok().and_then(|version| keys.get(&version));
    hex::decode_to_slice(&row.signature, &mut signature).is_ok()
        && keys.is_some_and(|keys| keys.verify_anchor(&signed_bytes(row), &signature))
}

/// The anchors of a database.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Anchors {
    /// The signed anchors of each writer, by sequence number.
    signed: BTreeMap<String, Vec<AnchorRow>>,
    /// A problem for each anchor that is not signed, cannot be read, or does not follow the previous anchor.
    pub problems: Vec<AuditProblem>,
}

impl Anchors {
    /// Reads and checks all anchors.
    pub async fn read(store: &Store, keys: &KeyRing) -> Result<Anchors, StoreError> {
        let mut anchors = Anchors::default();
        for row in store.anchors().await? {
            match row {
                Ok(row) if is_signed(&row, keys) => anchors.add(row),
                Ok(row) => {
                    let what = format!("the anchor of rows up to {} is not signed by this host", row.last_sequence);
                    anchors.problem(&row.writer, row.last_sequence, what);
                }
                Err(row) => {
                    let what = format!("an anchor cannot be read: {}", row.what);
                    anchors.problem("", row.sequence.unwrap_or_default(), what);
                }
            }
        }
        Ok(anchors)
    }

    /// Adds a signed anchor. Adds a problem if the anchor does not follow the previous anchor.
    fn add(&mut self, row: AnchorRow) {
        let AnchorRow { first_sequence: first, last_sequence: last, .. } = row;
        let end = self.end(&row.writer);
        let expected = end.sequence.saturating_add(1);
        let what = match first {
            _ if first > expected => {
                Some(format!("the anchor of archived rows {expected} to {} is missing", first - 1))
            }
            _ if first < expected || row.previous_hash != end.hash => {
                Some(format!("the anchor of rows {first} to {last} does not follow the previous anchor"))
            }
            _ => None,
        };
        if let Some(what) = what {
            self.problem(&row.writer, last, what);
        }
        self.signed.entry(row.writer.clone()).or_default().push(row);
    }

    fn problem(&mut self, writer: &str, sequence: i64, what: String) {
        self.problems.push(AuditProblem { writer: writer.to_owned(), sequence, what });
    }

    /// Returns the last archived row of a chain. The rows of the chain in the database follow it.
    pub(super) fn end(&self, writer: &str) -> Position {
        let last = self.of(writer).last();
        last.map_or(Position { sequence: 0, hash: GENESIS }, |row| Position {
            sequence: row.last_sequence,
            hash: row.last_hash,
        })
    }

    /// Returns the signed anchors of a chain.
    pub(super) fn of(&self, writer: &str) -> &[AnchorRow] {
        self.signed.get(writer).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the writers that have a signed anchor.
    pub(super) fn writers(&self) -> impl Iterator<Item = &String> {
        self.signed.keys()
    }

    /// Returns the number of archived rows.
    pub fn rows(&self) -> u64 {
        self.signed.values().flatten().map(|row| u64::try_from(row.rows).unwrap_or_default()).sum()
    }

    /// Returns the time of the newest archived row.
    pub fn archived_until(&self) -> Option<UtcMillis> {
        self.signed.values().flatten().map(|row| row.last_at).max()
    }

    /// Returns a problem if the anchors of a chain cover rows after row `head`, which is the last row that a signed
    /// head covers.
    pub(super) fn beyond_head(&self, writer: &str, head: i64) -> Option<AuditProblem> {
        let end = self.end(writer).sequence;
        let what =
            || format!("an anchor covers rows up to {end}, but the last signed head covers rows only up to {head}");
        (end > head).then(|| AuditProblem { writer: writer.to_owned(), sequence: end, what: what() })
    }
}

/// Finds anchors that this host did not sign or that do not follow one another, and rows that are missing at the
/// beginning of a chain. Unlike a verification, this function reads only the first row of each chain.
pub async fn find_anchor_problems(
    store: &Store,
    keys: &KeyRing,
    data_dir: &Path,
) -> Result<Vec<AuditProblem>, RollbackError> {
    // A server may archive rows at the same time. The rows are therefore read before the anchors, and the anchors
    // before the head.
    let mut first = BTreeMap::new();
    let mut writers: Vec<String> = Anchors::read(store, keys).await?.writers().cloned().collect();
    if let Newest::Signed(head) = heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        writers.push(head.writer);
    }
    for writer in writers {
        if let Some(row) = first_row(store, &writer).await? {
            first.insert(writer, row.sequence);
        }
    }
    let mut anchors = Anchors::read(store, keys).await?;
    let mut problems = std::mem::take(&mut anchors.problems);
    for (writer, sequence) in first {
        let expected = anchors.end(&writer).sequence.saturating_add(1);
        if sequence > expected {
            problems.push(AuditProblem { writer, sequence: expected, what: gap(expected, sequence) });
        }
    }
    if let Newest::Signed(head) = heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        problems.extend(anchors.beyond_head(&head.writer, head.sequence));
    }
    Ok(problems)
}

/// Returns the time of the oldest row in the database, in the chain of the newest head.
pub async fn oldest_row(store: &Store, keys: &KeyRing, data_dir: &Path) -> Result<Option<UtcMillis>, RollbackError> {
    match heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        Newest::Signed(head) => Ok(first_row(store, &head.writer).await?.map(|row| row.at)),
        Newest::Absent | Newest::OtherKeys => Ok(None),
    }
}

/// Returns the first row of a chain in the database, or `None` if the chain has no rows or the row cannot be read. A
/// verification reports a row that cannot be read.
async fn first_row(store: &Store, writer: &str) -> Result<Option<AuditRow>, StoreError> {
    let mut next = Some(ScanFrom::START);
    while let Some(from) = next {
        let page = store.scan(writer, from, 1).await?;
        if let Some(row) = page.rows.into_iter().next() {
            return Ok(row.ok().map(|scanned| scanned.row));
        }
        next = page.next;
    }
    Ok(None)
}
