//! Detects a database that is older than its signed heads, for example after a restore of the database alone. An
//! operator can accept the loss.
//!
//! The heads are outside the database, so an attacker who can write to the database can restore an older state of it
//! but cannot change the heads. Only the newest head is compared, because each head covers at least as much as the
//! previous one.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use monstrum_store::{ScanFrom, Store, StoreError};
use monstrum_types::UtcMillis;

use super::anchors::Anchors;
use super::heads::{self, HEADS_FILE, Head, Heads, HeadsError, Newest};
use super::verify::KeyRing;

/// The name of the new file of heads until it replaces the old one.
const NEW_FILE: &str = "audit-heads.log.new";

/// An upper bound for the number of changes that a host makes before the next head covers them.
const UNSIGNED_CHANGES_MAX: i64 = 1 << 20;

/// One way in which the database is older than its newest head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// None of the newest heads was signed with the audit keys of the database.
    OtherKeys,
    /// Audit rows that a head covers are missing.
    RowsMissing { writer: String, signed: i64, found: i64 },
    /// The signed audit row was replaced by another row.
    RowReplaced { writer: String, sequence: i64 },
    /// Changes of the policy that a head covers are missing.
    PolicyBehind { signed: i64, found: i64 },
    /// The rows are authenticated by a row key that a rotation has retired.
    RetiredRowKey { signed: u32, found: u32 },
}

impl fmt::Display for Rollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rollback::OtherKeys => {
                write!(f, "the audit keys of the database signed none of the newest heads in {HEADS_FILE}")
            }
            Rollback::RowsMissing { writer, signed, found } => write!(
                f,
                "the audit of {writer} was signed up to row {signed}, but the database contains rows only up to {found}"
            ),
            Rollback::RowReplaced { writer, sequence } => {
                write!(f, "row {sequence} of the audit of {writer} is not the row that was signed")
            }
            Rollback::PolicyBehind { signed, found } => {
                write!(f, "the policy was signed at generation {signed}, but the database has generation {found}")
            }
            Rollback::RetiredRowKey { signed, found } => write!(
                f,
                "the policy was signed under row key version {signed}, but the database uses version {found}, which \
                 was retired"
            ),
        }
    }
}

/// All ways in which a database is older than its newest head. They are displayed as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackList(pub Vec<Rollback>);

impl fmt::Display for RollbackList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&found.join("; "))
    }
}

/// The error if the database cannot be compared with the heads or the loss cannot be accepted.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    #[error("the audit cannot be read")]
    Store(#[from] StoreError),
    #[error("the heads cannot be used")]
    Heads(#[from] HeadsError),
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Compares the database with the newest head in `data_dir`. The list is empty if the database is not older or if no
/// head exists. A server may be running at the same time, because the head is read first and the database only grows.
pub async fn find_rollback(store: &Store, keys: &KeyRing, data_dir: &Path) -> Result<Vec<Rollback>, RollbackError> {
    let head = match heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        Newest::Absent => return Ok(Vec::new()),
        Newest::OtherKeys => return Ok(vec![Rollback::OtherKeys]),
        Newest::Signed(head) => head,
    };
    let mut found = Vec::new();
    let last = match store.last(&head.writer).await? {
        Some(last) => last.sequence,
        None => Anchors::read(store, keys).await?.end(&head.writer).sequence,
    };
    if last < head.sequence {
        found.push(Rollback::RowsMissing { writer: head.writer.clone(), signed: head.sequence, found: last });
    } else if !holds(store, keys, &head).await? {
        found.push(Rollback::RowReplaced { writer: head.writer.clone(), sequence: head.sequence });
    }
    let generation = store.sealed_generations().await?;
    if let Some(signed) = head.policy_generation.filter(|signed| *signed > generation) {
        found.push(Rollback::PolicyBehind { signed, found: generation });
    }
    found.extend(retired_row_key(store, head.row_key_version));
    Ok(found)
}

/// Returns a finding if the row key of the database is older than the one in a head.
pub(super) fn retired_row_key(store: &Store, signed: Option<u32>) -> Option<Rollback> {
    let (signed, found) = signed.zip(store.row_key_version())?;
    (found < signed).then_some(Rollback::RetiredRowKey { signed, found })
}

/// Returns the version of the row key in the newest head in `data_dir`. Older versions were retired.
pub fn signed_row_key_version(data_dir: &Path, keys: &KeyRing) -> Result<Option<u32>, HeadsError> {
    Ok(match heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        Newest::Absent | Newest::OtherKeys => None,
        Newest::Signed(head) => head.row_key_version,
    })
}

/// Whether the newest head in `data_dir` shows that the rows of the policy were sealed.
pub fn rows_were_sealed(data_dir: &Path, keys: &KeyRing) -> Result<bool, HeadsError> {
    Ok(match heads::newest(&data_dir.join(HEADS_FILE), keys)? {
        Newest::Absent => false,
        // None of the newest heads can be checked with these keys. The safe assumption is that the rows were sealed.
        Newest::OtherKeys => true,
        Newest::Signed(head) => head.policy_generation.is_some_and(|generation| generation > 0),
    })
}

/// Whether the database contains the row that `head` covers, or a signed anchor says that the row was archived.
pub(super) async fn holds(store: &Store, keys: &KeyRing, head: &Head) -> Result<bool, StoreError> {
    if head.sequence == 0 {
        return Ok(true);
    }
    if has_row(store, &head.writer, head.sequence, &head.hash).await? {
        return Ok(true);
    }
    let end = Anchors::read(store, keys).await?.end(&head.writer);
    Ok(match head.sequence.cmp(&end.sequence) {
        Ordering::Less => true,
        Ordering::Equal => hex::encode(end.hash) == head.hash,
        Ordering::Greater => false,
    })
}

/// Returns whether the database contains a row with this sequence number and this hash.
pub(super) async fn has_row(store: &Store, writer: &str, sequence: i64, hash: &str) -> Result<bool, StoreError> {
    for from in [ScanFrom::Version2(sequence), ScanFrom::Version1(sequence)] {
        let found = store.scan(writer, from, 1).await?.rows.into_iter().next().and_then(Result::ok);
        if found.is_some_and(|found| found.row.sequence == sequence && hex::encode(found.row.hash) == hash) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A new file of heads, which does not contain the heads that are newer than the database. The new file has not
/// replaced the old one yet.
pub struct AcceptedLoss {
    data_dir: PathBuf,
    at: UtcMillis,
    signed_generation: i64,
}

impl AcceptedLoss {
    /// Writes the heads that match the database into a new file next to the old one. The caller then records the loss
    /// with [`AcceptedLoss::heads`] and calls [`AcceptedLoss::put_in_place`]. If the process ends before the last step,
    /// the old file is still in place, and only an audit row and raised generations may have been added.
    pub async fn prepare(
        store: &Store,
        keys: &KeyRing,
        data_dir: &Path,
        at: UtcMillis,
    ) -> Result<AcceptedLoss, RollbackError> {
        let policy_generation = store.sealed_generations().await?;
        let (mut kept, mut held_writers, mut signed_generation) = (Vec::new(), BTreeSet::new(), 0);
        let mut lines = heads::read(&data_dir.join(HEADS_FILE))?.unwrap_or_default();
        // The heads are checked from the newest to the oldest. If the database contains the row of a head, it also
        // contains the rows of older heads of that chain.
        while let Some(line) = lines.pop() {
            let Ok(head) = line else { continue };
            let is_ours = keys.get(&head.key_version).is_some_and(|keys| head.is_signed_by(keys));
            let is_ahead = head.policy_generation.is_some_and(|signed| signed > policy_generation)
                || retired_row_key(store, head.row_key_version).is_some();
            if is_ours {
                signed_generation = signed_generation.max(head.policy_generation.unwrap_or(0));
            }
            if is_ours && !is_ahead && (held_writers.contains(&head.writer) || holds(store, keys, &head).await?) {
                held_writers.insert(head.writer.clone());
                kept.push(head);
            }
        }
        let path = data_dir.join(NEW_FILE);
        let written = write_heads(&path, kept.iter().rev());
        written.map_err(|source| RollbackError::Write { path, source })?;
        Ok(AcceptedLoss { data_dir: data_dir.to_owned(), at, signed_generation })
    }

    /// Returns a generation that the policy of the lost state cannot have reached. It exceeds the generation in the
    /// newest head by more than the number of changes that can have followed that head. After the database has this
    /// generation, the lost state counts as older and is rejected.
    pub fn generation_above_loss(&self) -> i64 {
        self.signed_generation.saturating_add(UNSIGNED_CHANGES_MAX)
    }

    /// Opens the new file, so that the heads for the record of the loss can be appended to it.
    pub fn heads(&self, keys: &KeyRing) -> Result<Heads, HeadsError> {
        Heads::open(&self.data_dir.join(NEW_FILE), keys)
    }

    /// Replaces the old file of heads with the new file. The old file is kept under the returned path.
    pub fn put_in_place(self) -> Result<PathBuf, RollbackError> {
        let (new, heads) = (self.data_dir.join(NEW_FILE), self.data_dir.join(HEADS_FILE));
        let kept = self.data_dir.join(format!("audit-heads.superseded-{}.log", self.at.0));
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| RollbackError::Write { path, source }
        };
        std::fs::hard_link(&heads, &kept).map_err(fail(&kept))?;
        std::fs::rename(&new, &heads).map_err(fail(&heads))?;
        File::open(&self.data_dir).and_then(|folder| folder.sync_all()).map_err(fail(&self.data_dir))?;
        Ok(kept)
    }
}

fn write_heads<'a>(path: &Path, heads: impl Iterator<Item = &'a Head>) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut text = Vec::new();
    for head in heads {
        serde_json::to_writer(&mut text, head)?;
        text.push(b'\n');
    }
    file.write_all(&text)?;
    file.sync_all()
}
