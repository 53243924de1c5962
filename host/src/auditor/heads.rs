//! Signed heads: how far the chain of a writer had come at a moment, kept in a file outside the database, so that a tail
//! cut off the database is found.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use monstrum_types::UtcMillis;
use monstrum_vault::AuditKeys;
use serde::{Deserialize, Serialize};

use super::chain::Chain;

/// The file in the data folder.
pub const HEADS_FILE: &str = "audit-heads.log";
/// A head is signed after this many rows, besides every 10 s (architecture).
pub const ROWS_PER_HEAD: i64 = 1000;
/// A head has about 330 bytes; a line of more is not one.
const LINE_BYTES_MAX: u64 = 4096;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct HeadsError {
    path: PathBuf,
    what: &'static str,
    #[source]
    source: std::io::Error,
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    v: u8,
    pub writer: String,
    pub sequence: i64,
    pub hash: String,
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
    pub fn is_signed_by(&self, keys: &AuditKeys) -> bool {
        let mut signature = [0; 64];
        self.v == 1
            && hex::decode_to_slice(&self.signature, &mut signature).is_ok()
            && keys.verify_head(&self.signed_bytes(), &signature)
    }
}

/// The file, open for appending.
pub struct Heads {
    path: PathBuf,
    file: File,
}

impl Heads {
    /// Opens the file, making it if need be, and ends a line that a crash left half written.
    pub fn open(path: &Path) -> Result<Heads, HeadsError> {
        let fail = |what| move |source| HeadsError { path: path.to_owned(), what, source };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o600).open(path).map_err(fail("open"))?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(fail("read"))?;
        if content.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n").map_err(fail("write"))?;
        }
        Ok(Heads { path: path.to_owned(), file })
    }

    /// Signs where `chain` stands, unless the last head says so already.
    pub fn sign(&mut self, chain: &mut Chain, now: UtcMillis) -> Result<(), HeadsError> {
        if !chain.wants_head() {
            return Ok(());
        }
        let position = chain.position();
        let mut head = Head {
            v: 1,
            writer: chain.writer().to_owned(),
            sequence: position.sequence,
            hash: hex::encode(position.hash),
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
        Ok(())
    }
}

/// A line of the file: a head, or the number of a line that is not one.
pub type Line = Result<Head, usize>;

/// Reads every line. `None`: there is no file.
pub fn read(path: &Path) -> Result<Option<Vec<Line>>, HeadsError> {
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
