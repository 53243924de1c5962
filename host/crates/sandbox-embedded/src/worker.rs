//! The worker: a process in the sandbox that carries out file functions with the view and rights of the sandbox.
//!
//! Because of this view, a path can never lead to files of the host. In addition, the kernel resolves every path
//! beneath the workspace and follows no magic links, and the worker opens only regular files.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use monstrum_sandbox::{ArchiveLimits, EntryKind, LIST_ENTRIES_MAX, SPARSE_BYTES_MAX, SandboxError, WORKSPACE};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

mod archive;
mod paths;

/// A file function. Paths are relative to the workspace.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Operation {
    List {
        path: String,
    },
    /// Describes an entry. For a link, describes the link itself.
    Stat {
        path: String,
    },
    /// Describes the target of a path.
    Target {
        path: String,
    },
    Read {
        path: String,
    },
    /// Writes the content of the second descriptor.
    Write {
        path: String,
    },
    Mkdir {
        path: String,
    },
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Archive {
        path: String,
        limits: ArchiveLimits,
    },
}

/// A part of an answer: its kind, its length as four little-endian bytes, and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// The content is an [`Entry`].
    Entry = b'e',
    Bytes = b'b',
    /// The content is a [`FileError`]. This part is the last part of a failed answer.
    Error = b'f',
    /// The last part of a complete answer.
    End = b'.',
}

impl Part {
    /// Returns the kind with this byte.
    pub(crate) fn of(byte: u8) -> Option<Part> {
        [Part::Entry, Part::Bytes, Part::Error, Part::End].into_iter().find(|part| *part as u8 == byte)
    }
}

/// The maximum length of a part.
pub(crate) const PART_BYTES_MAX: usize = 64 << 10;
/// The maximum depth of folders that are removed at once. A shell command can remove deeper folders.
const REMOVE_DEPTH_MAX: usize = 512;

/// An entry of a folder.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub name: String,
    pub kind: EntryKind,
    pub size: u64,
    pub modified_ms: i64,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileErrorKind {
    NotFound,
    Invalid,
    Exhausted,
    Unavailable,
}

/// A failed file function.
#[derive(Debug, Serialize, Deserialize)]
pub struct FileError {
    pub kind: FileErrorKind,
    pub message: String,
}

impl FileError {
    fn new(kind: FileErrorKind, message: impl Into<String>) -> FileError {
        FileError { kind, message: message.into() }
    }
}

impl From<FileError> for SandboxError {
    fn from(error: FileError) -> SandboxError {
        match error.kind {
            FileErrorKind::NotFound => SandboxError::NotFound(error.message),
            FileErrorKind::Invalid => SandboxError::Invalid(error.message),
            FileErrorKind::Exhausted => SandboxError::Exhausted(error.message),
            FileErrorKind::Unavailable => SandboxError::unavailable(error.message),
        }
    }
}

impl From<Errno> for FileError {
    fn from(error: Errno) -> FileError {
        let (kind, message) = match error {
            Errno::NOENT => (FileErrorKind::NotFound, "no such file or folder".to_owned()),
            Errno::XDEV => (FileErrorKind::Invalid, format!("the path leaves {WORKSPACE}")),
            Errno::LOOP => (
                FileErrorKind::Invalid,
                "the path contains a symbolic link that cannot be followed (for example a loop)".to_owned(),
            ),
            Errno::NOTDIR => (FileErrorKind::Invalid, "a part of the path is not a folder".to_owned()),
            Errno::ISDIR => (FileErrorKind::Invalid, "the path is a folder".to_owned()),
            Errno::NOTEMPTY | Errno::EXIST => (
                FileErrorKind::Invalid,
                "an entry with this name already exists, or the folder is not empty".to_owned(),
            ),
            Errno::NAMETOOLONG => (FileErrorKind::Invalid, "a name in the path is too long".to_owned()),
            Errno::NXIO | Errno::NODEV => (FileErrorKind::Invalid, "the path is not a regular file".to_owned()),
            Errno::INVAL => (FileErrorKind::Invalid, "the path is not valid".to_owned()),
            Errno::NOSPC | Errno::DQUOT => (FileErrorKind::Exhausted, "the disk of the sandbox is full".to_owned()),
            Errno::NOMEM => (FileErrorKind::Exhausted, "the sandbox is out of memory".to_owned()),
            Errno::BUSY => (FileErrorKind::Invalid, "the file or folder is in use".to_owned()),
            Errno::ACCESS | Errno::PERM => {
                (FileErrorKind::Invalid, "the sandbox denies access to the file or folder".to_owned())
            }
            other => (FileErrorKind::Unavailable, format!("the file system of the sandbox failed: {other}")),
        };
        FileError { kind, message }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> FileError {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => FileError::new(FileErrorKind::Unavailable, error.to_string()),
        }
    }
}

/// Carries out one file function, writes the answer, and returns the exit code.
pub(crate) fn run(operation: &[u8], descriptors: &[OwnedFd]) -> i32 {
    let Some((answer, content)) = descriptors.split_first() else { return 1 };
    let Ok(operation) = serde_json::from_slice(operation) else { return 1 };
    let mut answer = AnswerWriter { to: BufWriter::with_capacity(PART_BYTES_MAX, RawWriter(answer.as_fd())) };
    let ended = match carry_out(&operation, content, &mut answer) {
        Ok(()) => answer.part(Part::End, &[]),
        Err(error) => {
            let error = serde_json::to_vec(&error).expect("errors can be written as JSON");
            answer.part(Part::Error, &error)
        }
    };
    i32::from(ended.and_then(|()| answer.to.flush()).is_err())
}

/// A writer that divides an answer into parts.
struct AnswerWriter<'a> {
    to: BufWriter<RawWriter<'a>>,
}

/// A plain writer to a descriptor. A `File` would take ownership of the descriptor.
struct RawWriter<'a>(BorrowedFd<'a>);

impl Write for RawWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AnswerWriter<'_> {
    fn part(&mut self, part: Part, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).expect("a part is short");
        self.to.write_all(&[part as u8])?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(bytes)
    }

    fn entry(&mut self, name: &str, stat: &Stat) -> io::Result<()> {
        let found = serde_json::to_vec(&found(name, stat)).expect("entries can be written as JSON");
        self.part(Part::Entry, &found)
    }
}

/// Sends the written bytes as parts of the answer.
impl Write for AnswerWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = &bytes[..bytes.len().min(PART_BYTES_MAX)];
        self.part(Part::Bytes, now)?;
        Ok(now.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn carry_out(operation: &Operation, content: &[OwnedFd], answer: &mut AnswerWriter<'_>) -> Result<(), FileError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let workspace = openat(CWD, WORKSPACE, flags, Mode::empty())?;
    let workspace = workspace.as_fd();
    match operation {
        Operation::List { path } => list(&found_at(workspace, path, OFlags::RDONLY | OFlags::DIRECTORY)?, answer),
        Operation::Stat { path } => either(path, |path| {
            let (folder, name) = parent(workspace, path, false)?;
            Ok(answer.entry(&paths::text(&name), &statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW)?)?)
        }),
        Operation::Target { path } => {
            let target = found_at(workspace, path, OFlags::PATH)?;
            Ok(answer.entry(path.rsplit('/').next().unwrap_or_default(), &fstat(&target)?)?)
        }
        Operation::Read { path } => {
            let opened = found_at(workspace, path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
            let (mut file, stat) = regular(opened)?;
            check_holes(&stat)?;
            answer.entry(path.rsplit('/').next().unwrap_or_default(), &stat)?;
            let mut piece = vec![0; PART_BYTES_MAX];
            loop {
                match file.read(&mut piece)? {
                    0 => return Ok(()),
                    length => answer.part(Part::Bytes, &piece[..length])?,
                }
            }
        }
        Operation::Write { path } => {
            let content = content
                .first()
                .ok_or_else(|| FileError::new(FileErrorKind::Unavailable, "the file content is missing"))?;
            write(workspace, path.as_bytes(), content)
        }
        Operation::Mkdir { path } => folders(workspace, path.as_bytes()).map(drop),
        Operation::Remove { path } => either(path, |path| {
            let (folder, name) = parent(workspace, path, false)?;
            remove(folder.as_fd(), &name, 0)
        }),
        Operation::Rename { from, to } => either(from, |from| {
            let (from_folder, from_name) = parent(workspace, from, false)?;
            let (to_folder, to_name) = parent(workspace, to.as_bytes(), true)?;
            Ok(renameat(&from_folder, &*from_name, &to_folder, &*to_name)?)
        }),
        Operation::Archive { path, limits } => {
            let folder = found_at(workspace, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            archive::write(workspace, &folder, *limits, answer)
        }
    }
}

/// Calls `tried` with a path as it is. If no entry has this name, calls `tried` again with the escaped bytes of the
/// path decoded.
fn either<T>(path: &str, mut tried: impl FnMut(&[u8]) -> Result<T, FileError>) -> Result<T, FileError> {
    match (tried(path.as_bytes()), paths::bytes(path)) {
        (Err(FileError { kind: FileErrorKind::NotFound, .. }), Some(bytes)) => tried(&bytes),
        (answer, _) => answer,
    }
}

fn found_at(workspace: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, FileError> {
    either(path, |path| paths::open(workspace, path, flags))
}

fn regular(file: OwnedFd) -> Result<(File, Stat), FileError> {
    let stat = fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file.into(), stat)),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(FileError::new(FileErrorKind::Invalid, "the path is not a regular file")),
    }
}

/// Rejects large sparse files, because reading their holes costs the host time but costs the sandbox no disk space.
fn check_holes(stat: &Stat) -> Result<(), FileError> {
    let (bytes, stored) = (stat.st_size.unsigned_abs(), stat.st_blocks.unsigned_abs().saturating_mul(512));
    if bytes <= SPARSE_BYTES_MAX || stored >= bytes {
        return Ok(());
    }
    let message =
        format!("a sparse file must not exceed {} GiB to be read; this file has {bytes} bytes", SPARSE_BYTES_MAX >> 30);
    Err(FileError::new(FileErrorKind::Exhausted, message))
}

/// Opens the parent folder of a path, and creates the folder if `make` is set. Returns the folder and the last name of
/// the path.
fn parent(workspace: BorrowedFd<'_>, path: &[u8], make: bool) -> Result<(OwnedFd, Vec<u8>), FileError> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    if matches!(name, b"" | b"." | b"..") {
        return Err(FileError::new(FileErrorKind::Invalid, "the path does not name an entry of a folder"));
    }
    let folder = if make {
        folders(workspace, above)?
    } else {
        paths::open(workspace, above, OFlags::PATH | OFlags::DIRECTORY)?
    };
    Ok((folder, name.to_vec()))
}

/// Opens a folder and creates the missing folders of its path.
fn folders(workspace: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, FileError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match paths::open(workspace, path, flags) {
        Err(FileError { kind: FileErrorKind::NotFound, .. }) => {}
        opened => return opened,
    }
    let (above, name) = parent(workspace, path, true)?;
    match mkdirat(&above, &*name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => paths::open(workspace, path, flags),
        Err(error) => Err(error.into()),
    }
}

fn list(folder: &OwnedFd, answer: &mut AnswerWriter<'_>) -> Result<(), FileError> {
    let mut entries = 0;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        entries += 1;
        if entries > LIST_ENTRIES_MAX {
            let message = format!("the folder has more than {LIST_ENTRIES_MAX} entries");
            return Err(FileError::new(FileErrorKind::Exhausted, message));
        }
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => answer.entry(&paths::text(name), &stat)?,
            // The entry was removed during the listing.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn found(name: &str, stat: &Stat) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        _ => EntryKind::Other,
    };
    let size = if kind == EntryKind::File { stat.st_size.unsigned_abs() } else { 0 };
    let modified_ms = stat.st_mtime.saturating_mul(1000).saturating_add(stat.st_mtime_nsec.cast_signed() / 1_000_000);
    Entry { name: name.to_owned(), kind, size, modified_ms }
}

/// Writes to a temporary file and renames it.
fn write(workspace: BorrowedFd<'_>, path: &[u8], content: &OwnedFd) -> Result<(), FileError> {
    let (folder, name) = parent(workspace, path, true)?;
    let mode = match statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => return Err(Errno::ISDIR.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => stat.st_mode & 0o777,
        Ok(_) => 0o644,
        Err(Errno::NOENT) => 0o644,
        Err(error) => return Err(error.into()),
    };
    let beside = format!(".monstrum-{}", rustix::process::getpid().as_raw_nonzero());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let written = match openat(&folder, &beside, flags, Mode::from_raw_mode(mode)) {
        // A killed worker has left this file behind.
        Err(Errno::EXIST) => {
            unlinkat(&folder, &beside, AtFlags::empty())?;
            openat(&folder, &beside, flags, Mode::from_raw_mode(mode))
        }
        opened => opened,
    };
    let copied = copy(content, written?.into()).and_then(|()| Ok(renameat(&folder, &beside, &folder, &*name)?));
    if copied.is_err() {
        unlinkat(&folder, &beside, AtFlags::empty())?;
    }
    copied
}

fn copy(content: &OwnedFd, mut to: File) -> Result<(), FileError> {
    let mut piece = vec![0; PART_BYTES_MAX];
    let mut at = 0;
    loop {
        match rustix::io::pread(content, &mut piece[..], at)? {
            0 => return Ok(()),
            length => {
                to.write_all(&piece[..length])?;
                at += length as u64;
            }
        }
    }
}

fn remove(folder: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), FileError> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed?),
    }
    if depth == REMOVE_DEPTH_MAX {
        return Err(FileError::new(
            FileErrorKind::Exhausted,
            format!(
                "the folders are nested more than {REMOVE_DEPTH_MAX} levels deep; remove them with a shell command"
            ),
        ));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = openat(folder, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&inner)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            remove(inner.as_fd(), name, depth + 1)?;
        }
    }
    Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}
