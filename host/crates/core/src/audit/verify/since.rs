//! Verifies the rows after a signed head. The rows up to the head are not checked.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use monstrum_api::audit::{AuditHeadPlace, Report};
use monstrum_store::Store;

use super::{
    Findings, KeyRing, Start, VerifyError, check_chain, check_heads_of_policy, check_policy_rows, check_signature,
    report,
};
use crate::audit::anchors::Anchors;
use crate::audit::chain::Position;
use crate::audit::heads::{self, HEADS_FILE, Head, Newest};
use crate::audit::rollback::holds;

/// The head after which rows are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinceHead {
    /// The newest head.
    Latest,
    /// The newest head of this row or of an earlier row, in the chain of the newest head.
    Row(i64),
}

impl FromStr for SinceHead {
    type Err = String;

    fn from_str(text: &str) -> Result<SinceHead, String> {
        match text.parse() {
            _ if text == "latest" => Ok(SinceHead::Latest),
            Ok(row) if row >= 0 => Ok(SinceHead::Row(row)),
            _ => Err("expected `latest` or the sequence number of a row".to_owned()),
        }
    }
}

impl fmt::Display for SinceHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinceHead::Latest => f.write_str("latest"),
            SinceHead::Row(row) => row.fmt(f),
        }
    }
}

/// The heads that a verification since a head uses.
#[derive(Default)]
struct Chosen {
    /// The head after which rows are verified.
    since: Option<Head>,
    /// Newer heads of the same chain.
    later: Vec<Head>,
}

/// Verifies the rows after a signed head.
pub(super) async fn verify(
    store: &Store,
    keys: &KeyRing,
    data_dir: &Path,
    anchors: &Anchors,
    since: SinceHead,
) -> Result<Report, VerifyError> {
    let mut found = Findings { rows: 0, problems: Vec::new() };
    let Chosen { since: head, later } = match since {
        SinceHead::Latest => newest(&mut found, keys, data_dir)?,
        SinceHead::Row(row) => of_row(&mut found, keys, data_dir, row)?,
    };
    let newest = later.iter().chain(&head).max_by_key(|head| head.sequence);
    let (generation, row_key) = (
        newest.and_then(|head| head.policy_generation).unwrap_or_default(),
        newest.and_then(|head| head.row_key_version),
    );
    check_heads_of_policy(&mut found, store, generation, row_key).await?;
    found.problems.extend(anchors.problems.iter().cloned());
    let mut place = None;
    if let Some(head) = head {
        found.problems.extend(anchors.beyond_head(&head.writer, newest_sequence(&head, &later)));
        if !holds(store, keys, &head).await? {
            found.add(&head.writer, head.sequence, "the row that a signed head covers is missing or was replaced");
        }
        let end = anchors.end(&head.writer);
        let at_head = Position { sequence: head.sequence, hash: hash_of(&head) };
        let after = if end.sequence > head.sequence { end } else { at_head };
        let start = Start { after, from: after.sequence.saturating_add(1) };
        let later = later.into_iter().map(|head| (head.sequence, head)).collect();
        check_chain(&mut found, store, keys, (&head.writer, start), later).await?;
        place = Some(AuditHeadPlace { writer: head.writer, sequence: after.sequence });
    }
    check_policy_rows(&mut found, store).await?;
    Ok(report(found, anchors, place))
}

fn newest_sequence(head: &Head, later: &[Head]) -> i64 {
    later.iter().map(|head| head.sequence).fold(head.sequence, i64::max)
}

/// Returns the hash in a head. If the text is not a hash, returns a value that no row follows, so that the verification
/// reports the next row.
fn hash_of(head: &Head) -> [u8; 32] {
    let mut hash = [0; 32];
    match hex::decode_to_slice(&head.hash, &mut hash) {
        Ok(()) => hash,
        Err(_) => [0xff; 32],
    }
}

/// Finds the newest head. Only the end of the file is read.
fn newest(found: &mut Findings, keys: &KeyRing, data_dir: &Path) -> Result<Chosen, VerifyError> {
    let since = match heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        Newest::Signed(head) => Some(head),
        Newest::Absent => {
            found.add("", 0, format!("{HEADS_FILE} is missing or contains no head"));
            None
        }
        Newest::OtherKeys => {
            found.add("", 0, format!("none of the newest heads in {HEADS_FILE} is signed by this host"));
            None
        }
    };
    Ok(Chosen { since, later: Vec::new() })
}

/// Finds the newest head of `row` or of an earlier row. Older heads are not checked.
fn of_row(found: &mut Findings, keys: &KeyRing, data_dir: &Path, row: i64) -> Result<Chosen, VerifyError> {
    let mut chosen = Chosen::default();
    let lines = heads::read(&data_dir.join(HEADS_FILE))?.unwrap_or_default();
    for line in lines.into_iter().rev() {
        let head = match line {
            Ok(head) => head,
            Err(number) => {
                found.add("", number as i64, format!("line {number} of {HEADS_FILE} is not a head"));
                continue;
            }
        };
        if !check_signature(found, keys, &head)
            || chosen.later.first().is_some_and(|newest| newest.writer != head.writer)
        {
            continue;
        }
        if head.sequence <= row {
            chosen.since = Some(head);
            return Ok(chosen);
        }
        chosen.later.push(head);
    }
    found.add("", 0, format!("{HEADS_FILE} contains no signed head for row {row} or an earlier row"));
    Ok(chosen)
}
