//! Signed heads: how far the chain of a writer had come at a moment, kept in a file outside the database, so that a tail
//! cut off the database is found.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use monstrum_types::UtcMillis;
use monstrum_vault::AuditKeys;
use serde::{Deserialize, Serialize};

use super::chain::Chain;
use super::verify::KeyRing;

/// The file in the data folder.
pub const HEADS_FILE: &str = "audit-heads.log";
/// A head is signed after this many rows, besides every 10 s (architecture).
pub(super) const ROWS_PER_HEAD: i64 = 1000;
/// A head has about 330 bytes; a line of more is not one.
const LINE_BYTES_MAX: u64 = 4096;
/// How much of the end of the file is searched for the newest head: some 200 of them.
const NEWEST_BYTES_MAX: u64 = 64 << 10;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct HeadsError {
    path: PathBuf,
    what: &'static str,
    #[source]
    source: std::io::Error,
}

/// What of the policy a head is signed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyState {
    /// The sum of the generations of all policy seals.
    pub generation: i64,
    /// The version of the oldest row key under which rows are valid.
    pub row_key_version: Option<u32>,
}

/// One line of the file. Lines of older versions stay valid: version 1 is from before policy rows were authenticated, and
/// version 2 from before their key could be rotated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    v: u8,
    pub writer: String,
    pub sequence: i64,
    pub hash: String,
    /// The sum of the generations of all policy seals, from version 2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_generation: Option<i64>,
    /// The version of the oldest row key under which rows were valid, from version 3 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_key_version: Option<u32>,
    pub at: UtcMillis,
    pub key_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    signature: String,
}

impl Head {
    /// What is signed: the line without its signature.
    fn signed_bytes(&self) -> Vec<u8> {
        let unsigned = Head { signature: String::new(), ..self.clone() };
        serde_json::to_vec(&unsigned).expect("plain strings and numbers")
    }

    /// Whether `keys` signed it.
    pub(super) fn is_signed_by(&self, keys: &AuditKeys) -> bool {
        let mut signature = [0; 64];
        let known = (self.v, self.policy_generation, self.row_key_version);
        matches!(known, (1, None, None) | (2, Some(_), None) | (3, Some(_), Some(_)))
            && hex::decode_to_slice(&self.signature, &mut signature).is_ok()
            && keys.verify_head(&self.signed_bytes(), &signature)
    }
}

/// The file, open for appending.
pub struct Heads {
    path: PathBuf,
    file: File,
    /// What the last head that this run signed says of the policy.
    policy: Option<PolicyState>,
    /// What the newest head of an earlier run says of it. No head says less.
    floor: i64,
}

impl Heads {
    /// Opens the file, making it if need be, and ends a line that a crash left half written. `keys` are those by which the
    /// heads of earlier runs were signed.
    pub fn open(path: &Path, keys: &KeyRing) -> Result<Heads, HeadsError> {
        let floor = match newest(path, keys)? {
            Newest::Signed(head) => head.policy_generation.unwrap_or(0),
            Newest::Absent | Newest::OtherKeys => 0,
        };
        let fail = |what| move |source| HeadsError { path: path.to_owned(), what, source };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path).map_err(fail("open"))?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(fail("read"))?;
        if content.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n").map_err(fail("write"))?;
        }
        Ok(Heads { path: path.to_owned(), file, policy: None, floor })
    }

    /// Signs where `chain` and the policy stand, unless the last head says so already.
    pub fn sign(&mut self, chain: &mut Chain, policy: PolicyState, now: UtcMillis) -> Result<(), HeadsError> {
        let policy = PolicyState { generation: policy.generation.max(self.floor), ..policy };
        if !chain.wants_head() && self.policy == Some(policy) {
            return Ok(());
        }
        let position = chain.position();
        let mut head = Head {
            v: if policy.row_key_version.is_some() { 3 } else { 2 },
            writer: chain.writer().to_owned(),
            sequence: position.sequence,
            hash: hex::encode(position.hash),
            policy_generation: Some(policy.generation),
            row_key_version: policy.row_key_version,
            at: now,
            key_version: chain.keys().version(),
            signature: String::new(),
        };
        head.signature = hex::encode(chain.keys().sign_head(&head.signed_bytes()));
        let mut line = serde_json::to_vec(&head).expect("plain strings and numbers");
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        written.map_err(|source| HeadsError { path: self.path.clone(), what: "append", source })?;
        chain.head_signed();
        self.policy = Some(policy);
        Ok(())
    }

    /// Whether the last head was signed for another state of the policy.
    pub fn lacks_policy(&self, generation: i64) -> bool {
        self.policy.is_none_or(|signed| signed.generation != generation.max(self.floor))
    }
}

/// The newest head of a file.
#[derive(Debug)]
pub(super) enum Newest {
    /// The file is missing or has no head.
    Absent,
    /// There are heads, and none of the newest was signed by these keys.
    OtherKeys,
    Signed(Head),
}

/// Finds the newest head that `keys` signed, among the last lines of the file.
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
    // A line that a crash cut off has no end, and a tail that begins within a line does not parse there.
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

/// A line of the file: a head, or the number of a line that is not one.
pub(super) type Line = Result<Head, usize>;

/// Reads every line. `None`: the file is missing.
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
        // A line cut by a crash never was a head: it is not counted, and nothing was promised by it.
        if line != b"\n" && line.ends_with(b"\n") {
            lines.push(serde_json::from_slice(&line).map_err(|_| number));
        }
    }
    Ok(Some(lines))
}
