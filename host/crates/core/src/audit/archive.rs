//! The archive of the audit. It writes the oldest rows of a chain to files with a signed manifest, and replaces the
//! rows in the database with a signed anchor.
//!
//! A segment is a range of consecutive rows of one chain. It consists of compressed files and a signed manifest in the
//! same folder. The files are complete and on disk before the transaction that inserts the anchor and deletes the rows.
//! If the process is killed before this transaction, the next run writes the same files again. Only rows that a signed
//! head covers are archived. The start of a call without an end is not archived, so that the next start of the server
//! can mark the call as interrupted.

mod check;
mod cut;
mod files;
mod lines;
mod manifest;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use monstrum_api::audit::AuditProblem;
use monstrum_store::{AnchorRow, Store, StoreError};
use monstrum_types::UtcMillis;
use serde_json::{Value, json};

use super::anchors::{self, Anchors};
use super::chain::Position;
use super::heads::{self, HEADS_FILE, HeadsError};
use super::rollback::holds;
use super::verify::KeyRing;
use crate::beside;

pub use check::{ArchiveReport, verify_archive};
pub use manifest::{ArchivedFile, Manifest};

use cut::{Cut, Limit, Pages};
use files::{Compressed, Part};
use lines::Line;
use manifest::{SUFFIX, stem};

/// The folder of the archive in the data folder, unless the operator names another one.
pub const ARCHIVE_FOLDER: &str = "audit-archive";
/// The operation in the audit row of an archived segment.
pub const ARCHIVE_OPERATION: &str = "audit.archive";

/// The number of rows after which a segment ends. SQLite needs about a second to delete this many rows, and writes no
/// other row during the deletion.
const SEGMENT_ROWS: u64 = 50_000;

/// The error if rows cannot be archived. The rows are then still in the database.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the audit cannot be read or written")]
    Store(#[from] StoreError),
    #[error("the heads of the audit cannot be read")]
    Heads(#[from] HeadsError),
    #[error("cannot write the archive {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the audit failed verification at row {sequence} of {writer}: {what}")]
    NotAsWritten { writer: String, sequence: i64, what: String },
    #[error("{} already exists with different rows, from another state of the database", path.display())]
    OtherRows { path: PathBuf },
    #[error("the segment {} failed verification after it was written: {what}", path.display())]
    Unsound { path: PathBuf, what: String },
    #[error("a task that writes the archive was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// One run of the archive. [`Archive::open`] determines which rows may be archived.
pub struct Archive<'a> {
    store: &'a Store,
    keys: &'a KeyRing,
    folder: PathBuf,
    before: UtcMillis,
    segment_rows: u64,
    /// For each chain that may have rows to archive, the last row that a signed head covers.
    heads: Vec<(String, i64)>,
}

impl<'a> Archive<'a> {
    /// Opens the archive in `folder` for rows that are older than `before` and that the heads in `data_dir` cover.
    /// Fails if an anchor is not valid, or if the newest head of a chain does not match the database.
    pub async fn open(
        store: &'a Store,
        keys: &'a KeyRing,
        data_dir: &Path,
        folder: &Path,
        before: UtcMillis,
    ) -> Result<Archive<'a>, ArchiveError> {
        let anchors = Anchors::read(store, keys).await?;
        if let Some(AuditProblem { writer, sequence, what }) = anchors.problems.into_iter().next() {
            return Err(ArchiveError::NotAsWritten { writer, sequence, what });
        }
        let mut newest = BTreeMap::new();
        for head in heads::read(&data_dir.join(HEADS_FILE))?.unwrap_or_default().into_iter().flatten().rev() {
            let is_known = newest.contains_key(&head.writer);
            if !is_known && keys.get(&head.key_version).is_some_and(|keys| head.is_signed_by(keys)) {
                newest.insert(head.writer.clone(), head);
            }
        }
        for head in newest.values() {
            if !holds(store, keys, head).await? {
                let what = "the database does not match the newest signed head".to_owned();
                let (writer, sequence) = (head.writer.clone(), head.sequence);
                return Err(ArchiveError::NotAsWritten { writer, sequence, what });
            }
        }
        let heads = newest.into_values().map(|head| (head.writer, head.sequence)).collect();
        files::create_folder(folder)?;
        Ok(Archive { store, keys, folder: folder.to_owned(), before, segment_rows: SEGMENT_ROWS, heads })
    }

    /// Writes the files of the next segment. The caller then records the segment in the audit and calls
    /// [`Segment::delete_rows`]. Returns `None` if no more rows can be archived.
    pub async fn next(&mut self) -> Result<Option<Segment>, ArchiveError> {
        while let Some((writer, head)) = self.heads.last().cloned() {
            let after = Anchors::read(self.store, self.keys).await?.end(&writer);
            let written = self.written_already(&writer, after)?;
            let limit = Limit { before: self.before, head, rows: self.segment_rows, written: &written };
            match cut::find(self.store, self.keys, &writer, after, &limit).await? {
                Some(cut) => return self.write(&writer, cut).await.map(Some),
                None => drop(self.heads.pop()),
            }
        }
        Ok(None)
    }

    /// Finds the signed manifests of segments that begin directly after `after`. Returns the sequence number and the
    /// hash of the last row of each segment.
    fn written_already(&self, writer: &str, after: Position) -> Result<BTreeMap<i64, String>, ArchiveError> {
        let fail = |source| ArchiveError::Write { path: self.folder.clone(), source };
        let prefix = format!("{writer}-{:012}-", after.sequence + 1);
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(&self.folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name();
            let is_named = name.to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(SUFFIX));
            // A manifest that this host did not sign is overwritten.
            if is_named && let Ok(manifest) = Manifest::read(&entry.path(), self.keys) {
                found.insert(manifest.last_sequence, manifest.last_hash);
            }
        }
        Ok(found)
    }

    /// Writes the file and the manifest of a segment, and verifies both.
    async fn write(&self, writer: &str, cut: Cut) -> Result<Segment, ArchiveError> {
        let Cut { after, last, first_at, last_at } = cut;
        let first = after.sequence + 1;
        let manifest = |files| Manifest {
            v: 1,
            writer: writer.to_owned(),
            first_sequence: first,
            last_sequence: last.sequence,
            previous_hash: hex::encode(after.hash),
            last_hash: hex::encode(last.hash),
            rows: (last.sequence - after.sequence).unsigned_abs(),
            first_at,
            last_at,
            files,
            key_version: 0,
            signature: String::new(),
        };
        // If the existing segment was written from a lost state of the database, it must not be overwritten, because it
        // may contain the only copy of its rows.
        let path = self.folder.join(manifest(Vec::new()).file_name());
        if Manifest::read(&path, self.keys).is_ok_and(|existing| existing.last_hash != hex::encode(last.hash)) {
            return Err(ArchiveError::OtherRows { path });
        }
        files::remove_parts(&self.folder, writer)?;
        let name = format!("{}.jsonl.zst", stem(writer, first, last.sequence));
        let part = self.write_rows(writer, cut, &name).await?;
        let (bytes, sha256) = part.written();
        let file =
            ArchivedFile { name: name.clone(), first_sequence: first, last_sequence: last.sequence, bytes, sha256 };
        let (_, newest_keys) = self.keys.last_key_value().expect("an open database has audit keys");
        let manifest = manifest(vec![file]).signed(newest_keys);
        let (folder, keys, to_write) = (self.folder.clone(), self.keys.clone(), manifest.clone());
        beside::spawn(move || {
            part.put_in_place(&folder, &name)?;
            let mut part = Part::create(&folder, &to_write.file_name())?;
            std::io::Write::write_all(&mut part, &to_write.to_bytes())
                .map_err(|source| ArchiveError::Write { path: folder.join(to_write.file_name()), source })?;
            part.put_in_place(&folder, &to_write.file_name())?;
            match check::segment(&path, &keys).problems.into_iter().next() {
                Some(AuditProblem { what, .. }) => Err(ArchiveError::Unsound { path, what }),
                None => Ok(()),
            }
        })
        .await??;
        Ok(Segment { manifest })
    }

    async fn write_rows(&self, writer: &str, cut: Cut, name: &str) -> Result<Part, ArchiveError> {
        let mut file = Compressed::create(&self.folder, name)?;
        let mut pages = Pages::new(self.store, writer);
        let mut text = Vec::new();
        while let Some(page) = pages.next().await? {
            text.clear();
            let mut is_last = false;
            // The rows were readable when the segment was determined. The verification of the segment detects rows that
            // are missing now.
            for scanned in page.into_iter().flatten() {
                is_last = scanned.row.sequence > cut.last.sequence;
                if is_last {
                    break;
                }
                let (hash, previous_hash) = (scanned.row.hash, scanned.row.previous_hash);
                Line { hash, previous_hash, row: &scanned.canonical }.write(&mut text);
            }
            let lines = std::mem::take(&mut text);
            (file, text) = beside::spawn(move || file.write(&lines).map(|()| (file, lines))).await??;
            if is_last {
                break;
            }
        }
        beside::spawn(move || file.finish()).await?
    }
}

/// A segment whose files are on disk and whose rows are still in the database.
pub struct Segment {
    pub manifest: Manifest,
}

impl Segment {
    /// Returns the description of the segment for the audit and for the output of the command.
    pub fn summary(&self) -> Value {
        let Manifest { writer, first_sequence, last_sequence, rows, last_hash, files, .. } = &self.manifest;
        json!({
            "writer": writer,
            "first_sequence": first_sequence,
            "last_sequence": last_sequence,
            "rows": rows,
            "last_hash": last_hash,
            "manifest": self.manifest.file_name(),
            "manifest_sha256": hex::encode(self.manifest.digest()),
            "files": files,
        })
    }

    /// Replaces the rows in the database with an anchor.
    pub async fn delete_rows(&self, store: &Store, keys: &KeyRing, now: UtcMillis) -> Result<(), ArchiveError> {
        let Manifest { writer, first_sequence, last_sequence, last_at, rows, .. } = &self.manifest;
        let hash = |text: &str| {
            let mut hash = [0; 32];
            hex::decode_to_slice(text, &mut hash).expect("this module has encoded it");
            hash
        };
        let anchor = AnchorRow {
            writer: writer.clone(),
            first_sequence: *first_sequence,
            previous_hash: hash(&self.manifest.previous_hash),
            last_sequence: *last_sequence,
            last_hash: hash(&self.manifest.last_hash),
            last_at: *last_at,
            rows: i64::try_from(*rows).unwrap_or(i64::MAX),
            manifest_digest: self.manifest.digest(),
            archived_at: now,
            key_version: 0,
            signature: String::new(),
        };
        let (_, newest_keys) = keys.last_key_value().expect("an open database has audit keys");
        Ok(store.replace_with_anchor(&anchors::signed(anchor, newest_keys)).await?)
    }
}

#[cfg(test)]
mod tests;
