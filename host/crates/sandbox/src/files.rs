//! Files of a sandbox, as seen from inside of it.

use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;

/// The folder that stays. Every path of the file functions is absolute and beneath it, or relative to it.
pub const WORKSPACE: &str = "/workspace";
/// The largest file that is read or written whole. Larger ones are streamed.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Most entries of one listing.
pub const LIST_ENTRIES_MAX: usize = 10_000;
/// The largest file with holes that is read: as much as an archive holds. Files without holes are as large as the disk
/// of their sandbox at the most.
pub const SPARSE_BYTES_MAX: u64 = 4 << 30;
/// The longest path, the limit of Linux.
pub const PATH_BYTES_MAX: usize = 4096;

/// What an entry of a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    /// A link, a pipe, a socket: what is never followed nor opened.
    Other,
}

/// One entry. Bytes of a name that are not UTF-8 are written as `\x` and two digits, and read again where no entry has that
/// very name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    /// Absolute, inside the sandbox.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    /// UTC milliseconds.
    pub modified_ms: i64,
}

/// What an archive may hold. What is beyond ends the stream with [`SandboxError::Exhausted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveLimits {
    pub depth_max: usize,
    pub entries_max: usize,
    /// Of all files before compression, and of the archive.
    pub bytes_max: u64,
}

impl Default for ArchiveLimits {
    /// A checkout with its dependencies fits; a hostile tree does not run for ever.
    fn default() -> Self {
        ArchiveLimits { depth_max: 64, entries_max: 100_000, bytes_max: SPARSE_BYTES_MAX }
    }
}

/// Bytes as they come. An error ends it: what came before is then not the whole.
pub type ByteStream = BoxStream<'static, Result<Bytes, SandboxError>>;
