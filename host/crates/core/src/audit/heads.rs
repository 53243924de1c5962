//! Signed heads. A head records the end of a writer's chain at one moment. The heads are in a file outside the
//! database, so that a removal of the newest rows from the database is detected.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use monstrum_types::UtcMillis;
use monstrum_vault::AuditKeys;
use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::verify::KeyRing;

/// The name of the file of heads in the data folder.
pub const HEADS_FILE: &str = "audit-heads.log";
/// The number of rows after which a head is signed, in addition to the regular heads every 10 s.
pub(super) const ROWS_PER_HEAD: i64 = 1000;
/// The maximum length of a line. A head has about 330 bytes, so a line that exceeds the limit is not a head.
const LINE_BYTES_MAX: u64 = 4096;
/// The maximum number of bytes at the end of the file that are searched for the newest head. They contain about 200
/// heads.
const NEWEST_BYTES_MAX: u64 = 64 << 10;

/// The error for a file of heads that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct HeadsError {
    path: PathBuf,
    what: &'static str,
    #[source]
    source: std::io::Error,
}

/// The state of the policy that a head records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyState {
    /// The sum of the generations of all policy seals.
    pub generation: i64,
    /// The version of the oldest row key under which rows are valid; `None` if the store has no row key.
    pub row_key_version: Option<u32>,
}

/// One line of the file. Lines of older versions stay valid. Version 1 dates from before policy rows were
/// authenticated, version 2 from before the row key could be rotated, and version 3 from before heads bounded the search
/// for open calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    v: u8,
    pub writer: String,
    pub sequence: i64,
    pub hash: String,
    /// The sum of the generations of all policy seals; since version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_generation: Option<i64>,
    /// The version of the oldest row key under which rows were valid; since version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_key_version: Option<u32>,
    /// The sequence number of the oldest row `started` whose call had not ended, or of the next row if all calls had
    /// ended; since version 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_from: Option<i64>,
    pub at: UtcMillis,
    pub key_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    signature: String,
}

impl Head {
    /// Returns the signed bytes: the line without its signature.
    fn signed_bytes(&self) -> Vec<u8> {
        let unsigned = Head { signature: String::new(), ..self.clone() };
        serde_json::to_vec(&unsigned).expect("plain strings and numbers")
    }

    /// Whether the head was signed with `keys` and has the fields of its version.
    pub(super) fn is_signed_by(&self, keys: &AuditKeys) -> bool {
        let mut signature = [0; 64];
        let known = (self.v, self.policy_generation, self.row_key_version, self.open_from);
        let has_fields_of_version = matches!(
            known,
            (1, None, None, None) | (2, Some(_), None, None) | (3, Some(_), Some(_), None) | (4, Some(_), _, Some(_))
        );
        has_fields_of_version
            && hex::decode_to_slice(&self.signature, &mut signature).is_ok()
            && keys.verify_head(&self.signed_bytes(), &signature)
    }
}

/// The file of heads, open for appending.
pub struct Heads {
    path: PathBuf,
    file: File,
    /// The start of an incomplete line at the end of the file, if a line could not be written completely or removed.
    partial_from: Option<u64>,
    /// The state of the policy in the last head of this run.
    policy: Option<PolicyState>,
    /// The newest head of an earlier run.
    earlier: Option<Head>,
    /// The generation of the policy in the newest head of an earlier run. No new head has a smaller generation.
    floor: i64,
}

impl Heads {
    /// Opens or creates the file, and removes a line that a crash left incomplete. `keys` are the keys with which the
    /// heads of earlier runs were signed.
    pub fn open(path: &Path, keys: &KeyRing) -> Result<Heads, HeadsError> {
        let earlier = match newest(path, keys)? {
            Newest::Signed(head) => Some(head),
            Newest::Absent | Newest::OtherKeys => None,
        };
        let floor = earlier.as_ref().and_then(|head| head.policy_generation).unwrap_or(0);
        let fail = |what| move |source| HeadsError { path: path.to_owned(), what, source };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path).map_err(fail("open"))?;
        let (bytes, whole) = length(&mut file).map_err(fail("read"))?;
        if whole < bytes {
            // An incomplete line was never a valid head. If the next head were appended to it, the result would be an
            // invalid line.
            file.set_len(whole).map_err(fail("truncate"))?;
        }
        Ok(Heads { path: path.to_owned(), file, partial_from: None, policy: None, earlier, floor })
    }

    /// Returns the newest head of an earlier run.
    pub(super) fn earlier(&self) -> Option<&Head> {
        self.earlier.as_ref()
    }

    /// Signs and appends a head for the end of `chain` and the state of the policy, unless the last head already
    /// records both.
    pub fn sign(&mut self, chain: &mut Chain, policy: PolicyState, now: UtcMillis) -> Result<(), HeadsError> {
        let policy = PolicyState { generation: policy.generation.max(self.floor), ..policy };
        if !chain.wants_head() && self.policy == Some(policy) {
            return Ok(());
        }
        let position = chain.position();
        let mut head = Head {
            v: 4,
            writer: chain.writer().to_owned(),
            sequence: position.sequence,
            hash: hex::encode(position.hash),
            policy_generation: Some(policy.generation),
            row_key_version: policy.row_key_version,
            open_from: Some(chain.open_from()),
            at: now,
            key_version: chain.keys().version(),
            signature: String::new(),
        };
        head.signature = hex::encode(chain.keys().sign_head(&head.signed_bytes()));
        let mut line = serde_json::to_vec(&head).expect("plain strings and numbers");
        line.push(b'\n');
        self.append(&line).map_err(|source| HeadsError { path: self.path.clone(), what: "append", source })?;
        chain.head_signed();
        self.policy = Some(policy);
        Ok(())
    }

    /// Appends a line. If it cannot be written completely, for example to a full disk, it is removed again.
    fn append(&mut self, line: &[u8]) -> std::io::Result<()> {
        self.remove_partial()?;
        let end = self.file.metadata()?.len();
        let written = self.file.write_all(line).and_then(|()| self.file.sync_data());
        if written.is_err() {
            self.partial_from = Some(end);
        }
        let removed = self.remove_partial();
        written.and(removed)
    }

    /// Removes a line that was not written completely. If the removal fails, it is repeated before the next head is
    /// appended.
    fn remove_partial(&mut self) -> std::io::Result<()> {
        if let Some(end) = self.partial_from {
            self.file.set_len(end)?;
            self.partial_from = None;
        }
        Ok(())
    }

    /// Whether the last head records a generation of the policy other than `generation`, or this run has not signed a
    /// head yet.
    pub fn lacks_policy(&self, generation: i64) -> bool {
        self.policy.is_none_or(|signed| signed.generation != generation.max(self.floor))
    }
}

/// Returns the length of the file, and its length without an incomplete last line. Reads the file backwards, because a
/// file of many heads takes long to read.
fn length(file: &mut File) -> std::io::Result<(u64, u64)> {
    let bytes = file.metadata()?.len();
    let mut to = bytes;
    let mut block = Vec::new();
    while to > 0 {
        let from = to.saturating_sub(LINE_BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        block.clear();
        file.take(to - from).read_to_end(&mut block)?;
        if let Some(end) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok((bytes, from + end as u64 + 1));
        }
        to = from;
    }
    Ok((bytes, 0))
}

/// The newest head of a file.
#[derive(Debug)]
pub(super) enum Newest {
    /// The file is missing or contains no head.
    Absent,
    /// The file contains heads, but none of the newest heads was signed with these keys.
    OtherKeys,
    Signed(Head),
}

/// Finds the newest head that was signed with `keys`, among the last lines of the file.
pub(super) fn newest(path: &Path, keys: &KeyRing) -> Result<Newest, HeadsError> {
    let fail = |what| move |source| HeadsError { path: path.to_owned(), what, source };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Newest::Absent),
        Err(error) => return Err(fail("open")(error)),
    };
    let bytes = file.metadata().map_err(fail("read"))?.len();
    let from = bytes.saturating_sub(NEWEST_BYTES_MAX);
    file.seek(SeekFrom::Start(from)).map_err(fail("read"))?;
    let mut tail = Vec::new();
    file.take(NEWEST_BYTES_MAX).read_to_end(&mut tail).map_err(fail("read"))?;
    // A line that a crash left incomplete has no line break. If the tail begins in the middle of a line, the remainder
    // of that line cannot be parsed and is skipped.
    let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |end| &tail[..end]);
    let mut newest = Newest::Absent;
    for line in whole.split(|byte| *byte == b'\n').rev() {
        let Ok(head) = serde_json::from_slice::<Head>(line) else { continue };
        if keys.get(&head.key_version).is_some_and(|keys| head.is_signed_by(keys)) {
            return Ok(Newest::Signed(head));
        }
        newest = Newest::OtherKeys;
    }
    Ok(newest)
}

/// A line of the file: a head, or the line number if the line is not a head.
pub(super) type Line = Result<Head, usize>;

/// Reads every line. Returns `None` if the file is missing.
pub(super) fn read(path: &Path) -> Result<Option<Vec<Line>>, HeadsError> {
    let fail = |what| move |source| HeadsError { path: path.to_owned(), what, source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail("open")(error)),
    };
    let mut reader = BufReader::new(file);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(fail("read"))? == 0 {
            break;
        }
        // A line that a crash left incomplete is not an error, because it was never a valid head.
        if line != b"\n" && line.ends_with(b"\n") {
            lines.push(serde_json::from_slice(&line).map_err(|_| number));
        }
    }
    Ok(Some(lines))
}

#[cfg(test)]
mod tests;
