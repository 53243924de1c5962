//! Verifies the archive. It checks the signatures of manifests, the digests of files and the hashes of rows, that the
//! segments of a chain are consecutive, and that each segment matches its anchor in the database.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use monstrum_api::audit::AuditProblem;
use monstrum_store::{AnchorRow, Store};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::lines::Line;
use super::manifest::{ArchivedFile, Manifest, SUFFIX};
use crate::audit::anchors::Anchors;
use crate::audit::chain::{GENESIS, Position};
use crate::audit::rollback::has_row;
use crate::audit::verify::{KeyRing, VerifyError, gap};
use crate::beside;

/// The maximum length of a line. The parameters of a call are limited to a few KiB. The states in the row of a change
/// are limited by the maximum size of a request.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of reported problems of a segment.
const PROBLEMS_MAX: usize = 1000;

/// The result of verifying an archive.
#[derive(Debug, Serialize)]
pub struct ArchiveReport {
    /// Whether no problem was found.
    pub valid: bool,
    /// The number of checked segments.
    pub segments: u64,
    /// The number of checked rows.
    pub rows: u64,
    pub problems: Vec<AuditProblem>,
}

/// The result of verifying one segment.
pub(super) struct CheckedSegment {
    /// The manifest, if this host signed it.
    manifest: Option<Manifest>,
    rows: u64,
    pub(super) problems: Vec<AuditProblem>,
}

/// Verifies segments. Each path is a manifest, or a folder whose manifests are all verified.
pub async fn verify_archive(store: &Store, keys: &KeyRing, paths: &[PathBuf]) -> Result<ArchiveReport, VerifyError> {
    let mut report = ArchiveReport { valid: false, segments: 0, rows: 0, problems: Vec::new() };
    let mut chains: BTreeMap<String, Vec<Manifest>> = BTreeMap::new();
    for path in manifests(paths)? {
        let keys = keys.clone();
        let checked = beside::spawn(move || segment(&path, &keys)).await;
        let CheckedSegment { manifest, rows, problems } = checked.expect("checking a segment does not panic");
        report.segments += 1;
        report.rows += rows;
        report.problems.extend(problems);
        if let Some(manifest) = manifest {
            chains.entry(manifest.writer.clone()).or_default().push(manifest);
        }
    }
    let mut anchors = Anchors::read(store, keys).await?;
    report.problems.append(&mut anchors.problems);
    for (writer, mut segments) in chains {
        segments.sort_by_key(|segment| (segment.first_sequence, segment.last_sequence));
        check_order(&mut report.problems, &segments, anchors.of(&writer));
        for segment in &segments {
            check_anchor(&mut report.problems, store, segment, anchors.of(&writer)).await?;
        }
    }
    report.valid = report.problems.is_empty();
    Ok(report)
}

/// Returns the manifests in `paths`, and the manifests in the folders in `paths`.
fn manifests(paths: &[PathBuf]) -> Result<Vec<PathBuf>, VerifyError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let fail = |source| VerifyError::Folder { path: path.clone(), source };
        for entry in std::fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?.path();
            if entry.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(SUFFIX)) {
                found.push(entry);
            }
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Checks that the segments of a chain are consecutive, and that the first segment follows the previous anchor or
/// begins the chain.
fn check_order(problems: &mut Vec<AuditProblem>, segments: &[Manifest], anchors: &[AnchorRow]) {
    let mut add = |segment: &Manifest, sequence, what| {
        problems.push(AuditProblem { writer: segment.writer.clone(), sequence, what });
    };
    let mut before: Option<&Manifest> = None;
    for segment in segments {
        let first = segment.first_sequence;
        let previous = match before {
            Some(before) if before.last_sequence + 1 == first => Some(before.last_hash.clone()),
            Some(before) if before.last_sequence + 1 < first => {
                add(
                    segment,
                    first,
                    format!("{} between two segments of the archive", gap(before.last_sequence + 1, first)),
                );
                None
            }
            // The segments overlap, because an interrupted command and a later command with an earlier date have
            // archived the same rows.
            Some(_) => None,
            None if first == 1 => Some(hex::encode(GENESIS)),
            None => {
                let anchor = anchors.iter().find(|anchor| anchor.last_sequence + 1 == first);
                if anchor.is_none() {
                    add(segment, first, format!("the database has no anchor for the rows before row {first}"));
                }
                anchor.map(|anchor| hex::encode(anchor.last_hash))
            }
        };
        if previous.is_some_and(|previous| previous != segment.previous_hash) {
            let what = format!("{}: the segment does not follow the previous segment or anchor", segment.file_name());
            add(segment, first, what);
        }
        before = before.filter(|before| before.last_sequence > segment.last_sequence).or(Some(segment));
    }
}

/// Checks that the anchor of a segment names its manifest. A segment without an anchor was written by an interrupted
/// command, so its rows must still be in the database.
async fn check_anchor(
    problems: &mut Vec<AuditProblem>,
    store: &Store,
    segment: &Manifest,
    anchors: &[AnchorRow],
) -> Result<(), VerifyError> {
    let anchor = anchors.iter().find(|anchor| anchor.last_sequence == segment.last_sequence);
    let what = match anchor {
        Some(anchor) if anchor.manifest_digest == segment.digest() => None,
        Some(_) => Some("the manifest is not the manifest that the anchor in the database names"),
        None if has_row(store, &segment.writer, segment.last_sequence, &segment.last_hash).await? => None,
        None => Some("the database contains neither an anchor for the segment nor its rows"),
    };
    if let Some(what) = what {
        let what = format!("{}: {what}", segment.file_name());
        problems.push(AuditProblem { writer: segment.writer.clone(), sequence: segment.last_sequence, what });
    }
    Ok(())
}

/// Verifies the manifest at `path` and its files.
pub(super) fn segment(path: &Path, keys: &KeyRing) -> CheckedSegment {
    let manifest = match Manifest::read(path, keys) {
        Ok(manifest) => manifest,
        Err(what) => {
            let what = format!("{}: {what}", path.display());
            let problems = vec![AuditProblem { writer: String::new(), sequence: 0, what }];
            return CheckedSegment { manifest: None, rows: 0, problems };
        }
    };
    let mut previous = [0; 32];
    // A `previous_hash` that is not a hash is reported below.
    let is_hash = hex::decode_to_slice(&manifest.previous_hash, &mut previous).is_ok();
    let at = Position { sequence: manifest.first_sequence - 1, hash: previous };
    let mut rows = Rows { manifest: &manifest, keys, at, count: 0, problems: Vec::new() };
    if !is_hash {
        rows.add(
            path,
            manifest.first_sequence,
            "the manifest does not contain the hash of the row before its first row",
        );
    }
    if path.file_name().is_none_or(|name| name != manifest.file_name().as_str()) {
        rows.add(path, manifest.first_sequence, "the file contains the manifest of another segment");
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    for file in &manifest.files {
        rows.read_file(folder, file);
    }
    let is_complete = rows.at.sequence == manifest.last_sequence
        && hex::encode(rows.at.hash) == manifest.last_hash
        && rows.count == manifest.rows;
    if !is_complete && rows.problems.is_empty() {
        rows.add(path, manifest.last_sequence, "the files do not contain exactly the rows that the manifest lists");
    }
    let Rows { count, problems, .. } = rows;
    CheckedSegment { manifest: Some(manifest), rows: count, problems }
}

/// The fields of a row that are compared with the position of the row in the segment.
#[derive(Deserialize)]
struct Place {
    v: u8,
    writer: String,
    sequence: i64,
    key_version: u32,
}

/// The state of the verification of a segment's rows.
struct Rows<'a> {
    manifest: &'a Manifest,
    keys: &'a KeyRing,
    /// The last row that was read.
    at: Position,
    count: u64,
    problems: Vec<AuditProblem>,
}

impl Rows<'_> {
    fn add(&mut self, path: &Path, sequence: i64, what: &str) {
        if self.problems.len() < PROBLEMS_MAX {
            let what = format!("{}: {what}", path.display());
            self.problems.push(AuditProblem { writer: self.manifest.writer.clone(), sequence, what });
        }
    }

    fn read_file(&mut self, folder: &Path, file: &ArchivedFile) {
        let path = folder.join(&file.name);
        if file.name.contains('/') {
            return self.add(&path, file.first_sequence, "the manifest names a file outside its own folder");
        }
        match digest_of(&path) {
            Err(error) => {
                return self.add(&path, file.first_sequence, &format!("the file cannot be read: {error}"));
            }
            Ok(found) if found != (file.bytes, file.sha256.clone()) => {
                self.add(
                    &path,
                    file.first_sequence,
                    "the file was changed: its size or digest differs from the manifest",
                );
            }
            Ok(_) => {}
        }
        if let Err(error) = self.read_rows(&path) {
            let sequence = self.at.sequence + 1;
            self.add(&path, sequence, &format!("the rows from {sequence} on cannot be read: {error}"));
        }
    }

    fn read_rows(&mut self, path: &Path) -> std::io::Result<()> {
        let mut reader = BufReader::new(zstd::stream::read::Decoder::new(File::open(path)?)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            self.read_row(path, line.strip_suffix(b"\n").unwrap_or(&line));
        }
    }

    fn read_row(&mut self, path: &Path, line: &[u8]) {
        let expected = self.at.sequence + 1;
        self.count += 1;
        let parts = Line::read(line);
        let place = parts.as_ref().and_then(|line| serde_json::from_slice::<Place>(line.row).ok());
        let (Some(line), Some(place)) = (parts, place) else {
            self.at.sequence = expected;
            return self.add(path, expected, "the line is not a valid row");
        };
        let keys = self.keys.get(&place.key_version);
        let problem = match () {
            () if place.sequence != expected || place.writer != self.manifest.writer || !matches!(place.v, 1 | 2) => {
                Some(format!("expected row {expected} of this chain, in a known format"))
            }
            () if line.previous_hash != self.at.hash => Some("the row does not follow the previous row".to_owned()),
            () if keys.is_none() => Some("the row names an audit key that does not exist".to_owned()),
            () if !keys.is_some_and(|keys| keys.verify_mac(&line.previous_hash, line.row, &line.hash)) => {
                Some("the row was changed after it was written".to_owned())
            }
            () => None,
        };
        if let Some(what) = problem {
            self.add(path, expected, &what);
        }
        self.at = Position { sequence: place.sequence.max(expected), hash: line.hash };
    }
}

/// Returns the size and the digest of a file.
fn digest_of(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let (mut hasher, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, hex::encode(hasher.finalize())));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
}
