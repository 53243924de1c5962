//! Verifies the audit: reads every chain, checks every hash and every head, and detects missing rows that a head
//! covers. A chain whose first rows were archived begins at its anchor.

mod ahead;
mod rows;
mod since;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monstrum_api::audit::{AuditHeadPlace, AuditProblem, Report};
use monstrum_store::{ScanFrom, ScanPage, Store, StoreError};
use monstrum_vault::AuditKeys;

use super::anchors::Anchors;
use super::chain::Position;
use super::heads::{self, HEADS_FILE, Head, HeadsError};
use super::rollback::{Rollback, retired_row_key};

pub(super) use rows::{gap, seal};
pub use since::SinceHead;

use rows::{ChainCheck, check_seals};

/// The number of rows that are read at a time.
const PAGE_ROWS: u32 = 1000;
/// The maximum number of reported problems. A single problem makes the audit invalid.
const PROBLEMS_MAX: usize = 1000;
/// The maximum number of attempts if rows are archived during a verification. A host archives rows once a day, so few
/// attempts are enough.
const ATTEMPTS_MAX: u32 = 5;

/// The error if the verification cannot be completed.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("the audit cannot be read")]
    Store(#[from] StoreError),
    #[error("the heads cannot be read")]
    Heads(#[from] HeadsError),
    #[error("the archive {} cannot be read", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
}

/// The audit keys by version.
pub type KeyRing = BTreeMap<u32, Arc<AuditKeys>>;

/// Verifies the policy rows and all chains in `store` against the heads in `data_dir`. With a head, verifies only the rows
/// after it in its chain; the time then depends only on the number of these rows.
pub async fn verify(
    store: &Store,
    keys: &KeyRing,
    data_dir: &Path,
    since: Option<SinceHead>,
) -> Result<Report, VerifyError> {
    // A verification is repeated if rows were archived during it, because these rows would be reported as missing.
    let mut attempt = 1;
    loop {
        let anchors = Anchors::read(store, keys).await?;
        let report = match since {
            None => verify_after(store, keys, data_dir, &anchors).await?,
            Some(since) => since::verify(store, keys, data_dir, &anchors, since).await?,
        };
        if attempt == ATTEMPTS_MAX || Anchors::read(store, keys).await? == anchors {
            return Ok(report);
        }
        attempt += 1;
    }
}

/// Verifies all chains after their anchors.
async fn verify_after(
    store: &Store,
    keys: &KeyRing,
    data_dir: &Path,
    anchors: &Anchors,
) -> Result<Report, VerifyError> {
    let mut found = Findings { rows: 0, problems: Vec::new() };
    found.problems.extend(anchors.problems.iter().cloned());
    // The heads are read first, so that rows that are written during the verification are newer than the heads.
    let mut heads: BTreeMap<String, BTreeMap<i64, Head>> = BTreeMap::new();
    let (mut policy_generation, mut row_key_version) = (0, None);
    match heads::read(&data_dir.join(HEADS_FILE))? {
        None => found.add("", 0, format!("{HEADS_FILE} is missing")),
        Some(lines) => {
            for line in lines {
                match line {
                    Ok(head) => {
                        if check_signature(&mut found, keys, &head) {
                            policy_generation = policy_generation.max(head.policy_generation.unwrap_or(0));
                            row_key_version = row_key_version.max(head.row_key_version);
                            heads.entry(head.writer.clone()).or_default().insert(head.sequence, head);
                        }
                    }
                    Err(number) => found.add("", number as i64, format!("line {number} of {HEADS_FILE} is not a head")),
                }
            }
        }
    }
    check_heads_of_policy(&mut found, store, policy_generation, row_key_version).await?;
    // The rows are counted before the chains are read, so that rows that are written during the verification cannot
    // cause a problem.
    let stored = u64::try_from(store.count_events().await?).unwrap_or_default();
    let mut writers = match store.writers().await {
        Err(StoreError::Corrupt { what }) => {
            found.add("", 0, what);
            Vec::new()
        }
        writers => writers?,
    };
    // If several hosts share a database, each host has only the heads of its own chain. The file of such a host
    // contains at least one head.
    let may_lack_heads = store.is_shared() && !heads.is_empty();
    writers.extend(heads.keys().chain(anchors.writers()).cloned());
    writers.sort();
    writers.dedup();
    for writer in writers {
        let of_writer = heads.remove(&writer);
        let lacks_heads = of_writer.is_none() && !may_lack_heads;
        if let Some((head, _)) = of_writer.as_ref().and_then(|heads| heads.last_key_value()) {
            found.problems.extend(anchors.beyond_head(&writer, *head));
        }
        let start = Start { after: anchors.end(&writer), from: i64::MIN };
        let last = check_chain(&mut found, store, keys, (&writer, start), of_writer.unwrap_or_default()).await?;
        // A host signs its first head when it starts, before it writes its first row.
        if lacks_heads && last > 0 {
            found.add(&writer, last, format!("{HEADS_FILE} contains no head of this chain"));
        }
    }
    if found.rows < stored {
        found.add("", 0, format!("{} rows belong to no chain", stored - found.rows));
    }
    check_policy_rows(&mut found, store).await?;
    Ok(report(found, anchors, None))
}

/// Compares the policy in the database with the state that heads record.
async fn check_heads_of_policy(
    found: &mut Findings,
    store: &Store,
    generation: i64,
    row_key_version: Option<u32>,
) -> Result<(), StoreError> {
    let sealed = store.sealed_generations().await?;
    if sealed < generation {
        found.add("", 0, Rollback::PolicyBehind { signed: generation, found: sealed }.to_string());
    }
    if let Some(retired) = retired_row_key(store, row_key_version) {
        found.add("", 0, retired.to_string());
    }
    Ok(())
}

/// Checks the policy rows. A host keeps the MACs and seals valid with each change, so a problem here was caused by
/// another program.
async fn check_policy_rows(found: &mut Findings, store: &Store) -> Result<(), StoreError> {
    let rows = store.verify_rows().await?;
    for what in rows.problems() {
        found.add("", 0, what);
    }
    Ok(())
}

struct Findings {
    rows: u64,
    problems: Vec<AuditProblem>,
}

impl Findings {
    fn add(&mut self, writer: &str, sequence: i64, what: impl Into<String>) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(AuditProblem { writer: writer.to_owned(), sequence, what: what.into() });
        }
    }
}

fn report(found: Findings, anchors: &Anchors, since_head: Option<AuditHeadPlace>) -> Report {
    let Findings { rows, problems } = found;
    let archived_rows = Some(anchors.rows()).filter(|rows| *rows > 0);
    Report { valid: problems.is_empty(), rows, archived_rows, since_head, problems }
}

/// Returns whether this host signed a head. Reports a problem if it did not.
fn check_signature(found: &mut Findings, keys: &KeyRing, head: &Head) -> bool {
    let is_signed = keys.get(&head.key_version).is_some_and(|keys| head.is_signed_by(keys));
    if !is_signed {
        found.add(&head.writer, head.sequence, format!("a head in {HEADS_FILE} is not signed by this host"));
    }
    is_signed
}

/// Where the check of a chain begins.
#[derive(Clone, Copy)]
struct Start {
    /// The row before the first checked row.
    after: Position,
    /// The smallest sequence number that is read.
    from: i64,
}

/// Checks the rows of a chain after `start`. Returns the sequence number of its last row.
async fn check_chain(
    found: &mut Findings,
    store: &Store,
    keys: &KeyRing,
    (writer, start): (&str, Start),
    heads: BTreeMap<i64, Head>,
) -> Result<i64, StoreError> {
    let mut chain = ChainCheck::new(found, writer, start.after, heads);
    check_pages(&mut chain, store, keys, writer, ScanFrom::Version1(start.from)).await?;
    // Several threads check the rows of version 2 first. The rows from the first problem on are then checked one after
    // another.
    let mut from = start.from;
    if let Some(at) = chain.position() {
        let end = ahead::check(store, keys, writer, (at, from), &chain.heads).await?;
        if end != at {
            chain.skip_to(end);
            from = end.sequence + 1;
        }
    }
    check_pages(&mut chain, store, keys, writer, ScanFrom::Version2(from)).await?;
    Ok(chain.end())
}

/// Checks the rows of one version from `from` on.
async fn check_pages(
    chain: &mut ChainCheck<'_>,
    store: &Store,
    keys: &KeyRing,
    writer: &str,
    from: ScanFrom,
) -> Result<(), StoreError> {
    let mut fetched = Some(store.scan(writer, from, PAGE_ROWS).await?);
    while let Some(ScanPage { rows, next }) = fetched {
        let next = next.filter(|next| std::mem::discriminant(next) == std::mem::discriminant(&from));
        // The hashes of this page are checked on another thread while the database reads the next page.
        let read_ahead = async {
            match next {
                Some(next) => store.scan(writer, next, PAGE_ROWS).await.map(Some),
                None => Ok(None),
            }
        };
        let (seals, read) = tokio::join!(check_seals(keys, rows), read_ahead);
        fetched = read?;
        for (row, seal) in seals {
            chain.add(row, &seal);
        }
    }
    Ok(())
}
