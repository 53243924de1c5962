//! Files of a sandbox, as seen from inside.

use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;

/// The persistent folder. Every path of the file functions is relative to this folder, or absolute and beneath this
/// folder.
pub const WORKSPACE: &str = "/workspace";
/// The largest file that can be read or written in one piece. Larger files are streamed.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// The maximum number of entries in a listing.
pub const LIST_ENTRIES_MAX: usize = 10_000;
/// The maximum size of a sparse file that can be read, equal to the maximum size of an archive. The disk limit of the
/// sandbox bounds all other files.
pub const SPARSE_BYTES_MAX: u64 = 4 << 30;
/// The maximum length of a path, the limit of Linux.
pub const PATH_BYTES_MAX: usize = 4096;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    /// An entry that is neither a file nor a folder: a link, a pipe, a socket or a device.
    Other,
}

/// An entry of a folder. Bytes of a name that are not UTF-8 are written as `\x` and two digits. A path in that form
/// finds the entry again, unless another entry has the escaped form as its real name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    /// The absolute path inside the sandbox.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    /// UTC milliseconds.
    pub modified_ms: i64,
}

/// The limits of an archive. If the archive exceeds a limit, its stream ends with [`SandboxError::Exhausted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveLimits {
    pub depth_max: usize,
    pub entries_max: usize,
    /// Limits the size of all files before compression, and the size of the archive.
    pub bytes_max: u64,
}

impl Default for ArchiveLimits {
    /// Returns limits that a checkout with its dependencies does not exceed, and that stop a hostile tree.
    fn default() -> Self {
        ArchiveLimits { depth_max: 64, entries_max: 100_000, bytes_max: SPARSE_BYTES_MAX }
    }
}

/// A stream of bytes. An error ends the stream, and the bytes before the error are incomplete.
pub type ByteStream = BoxStream<'static, Result<Bytes, SandboxError>>;
