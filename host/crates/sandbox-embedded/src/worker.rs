//! What works on the files of a sandbox: a process inside of it, with its view and its rights.
//!
//! Whatever a path leads to, it is nothing of the host's. Beyond that, every path is resolved beneath the workspace by the
//! kernel, follows no magic link, and only regular files are opened.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use monstrum_sandbox::{ArchiveLimits, EntryKind, LIST_ENTRIES_MAX, SPARSE_BYTES_MAX, SandboxError, WORKSPACE};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

mod archive;
mod paths;

/// An operation. Paths are relative to the workspace.
#[derive(Debug, Serialize, Deserialize)]
pub enum Operation {
    List {
        path: String,
    },
    /// One entry, of a link the link itself.
    Stat {
        path: String,
    },
    /// What a path leads to.
    Target {
        path: String,
    },
    Read {
        path: String,
    },
    /// The content comes from the second descriptor.
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

/// What follows one another in an answer: a kind, the length as four bytes, the smallest first, and so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// A [`Found`].
    Entry = b'e',
    Bytes = b'b',
    /// A [`Fault`]; nothing follows.
    Fault = b'f',
    /// Nothing follows, and nothing is missing.
    End = b'.',
}

impl Part {
    /// The kind that a byte stands for.
    pub fn of(byte: u8) -> Option<Part> {
        [Part::Entry, Part::Bytes, Part::Fault, Part::End].into_iter().find(|part| *part as u8 == byte)
    }
}

/// The longest part.
pub const PART_BYTES_MAX: usize = 64 << 10;
/// Folders in folders that are removed in one go; a shell can do more.
const REMOVE_DEPTH_MAX: usize = 512;

/// An entry as the worker saw it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    pub name: String,
    pub kind: EntryKind,
    pub size: u64,
    pub modified_ms: i64,
}

/// Why it was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    NotFound,
    Invalid,
    Exhausted,
    Unavailable,
}

/// A fault with its words.
#[derive(Debug, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
    pub message: String,
}

impl Fault {
    fn new(kind: FaultKind, message: impl Into<String>) -> Fault {
        Fault { kind, message: message.into() }
    }
}

impl From<Fault> for SandboxError {
    fn from(fault: Fault) -> SandboxError {
        match fault.kind {
            FaultKind::NotFound => SandboxError::NotFound(fault.message),
            FaultKind::Invalid => SandboxError::Invalid(fault.message),
            FaultKind::Exhausted => SandboxError::Exhausted(fault.message),
            FaultKind::Unavailable => SandboxError::unavailable(fault.message),
        }
    }
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Fault {
        let (kind, message) = match error {
            Errno::NOENT => (FaultKind::NotFound, "there is no such file or folder".to_owned()),
            Errno::XDEV => (FaultKind::Invalid, format!("the path leaves {WORKSPACE}")),
            Errno::LOOP => (FaultKind::Invalid, "the path leads over a link that is not followed".to_owned()),
            Errno::NOTDIR => (FaultKind::Invalid, "a part of the path is no folder".to_owned()),
            Errno::ISDIR => (FaultKind::Invalid, "it is a folder".to_owned()),
            Errno::NOTEMPTY | Errno::EXIST => (FaultKind::Invalid, "there is something in the way".to_owned()),
            Errno::NAMETOOLONG => (FaultKind::Invalid, "a name in the path is too long".to_owned()),
            Errno::NXIO | Errno::NODEV => (FaultKind::Invalid, "it is no regular file".to_owned()),
            Errno::INVAL => (FaultKind::Invalid, "the path cannot be used".to_owned()),
            Errno::NOSPC | Errno::DQUOT => (FaultKind::Exhausted, "the disk of the sandbox is full".to_owned()),
            Errno::NOMEM => (FaultKind::Exhausted, "the memory of the sandbox is used up".to_owned()),
            Errno::BUSY => (FaultKind::Invalid, "it is in use".to_owned()),
            Errno::ACCESS | Errno::PERM => (FaultKind::Invalid, "the sandbox does not permit it".to_owned()),
            other => (FaultKind::Unavailable, format!("the file system of the sandbox failed: {other}")),
        };
        Fault { kind, message }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match Errno::from_io_error(&error) {
            Some(errno) => errno.into(),
            None => Fault::new(FaultKind::Unavailable, error.to_string()),
        }
    }
}

/// Carries out one operation and writes the answer.
pub fn run(operation: &[u8], descriptors: &[OwnedFd]) -> i32 {
    let Some((answer, content)) = descriptors.split_first() else { return 1 };
    let Ok(operation) = serde_json::from_slice(operation) else { return 1 };
    let mut answer = Answer { to: BufWriter::with_capacity(PART_BYTES_MAX, RawWriter(answer.as_fd())) };
    let ended = match carry_out(&operation, content, &mut answer) {
        Ok(()) => answer.part(Part::End, &[]),
        Err(fault) => {
            let fault = serde_json::to_vec(&fault).expect("a fault has nothing that JSON has not");
            answer.part(Part::Fault, &fault)
        }
    };
    i32::from(ended.and_then(|()| answer.to.flush()).is_err())
}

/// Where the parts go.
struct Answer<'a> {
    to: BufWriter<RawWriter<'a>>,
}

/// Not a file: what it writes to belongs to somebody else.
struct RawWriter<'a>(BorrowedFd<'a>);

impl Write for RawWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Answer<'_> {
    fn part(&mut self, part: Part, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).expect("a part is short");
        self.to.write_all(&[part as u8])?;
        self.to.write_all(&length.to_le_bytes())?;
        self.to.write_all(bytes)
    }

    fn entry(&mut self, name: &str, stat: &Stat) -> io::Result<()> {
        let found = serde_json::to_vec(&found(name, stat)).expect("an entry has nothing that JSON has not");
        self.part(Part::Entry, &found)
    }
}

/// Bytes that are written come out as parts.
impl Write for Answer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = &bytes[..bytes.len().min(PART_BYTES_MAX)];
        self.part(Part::Bytes, now)?;
        Ok(now.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn carry_out(operation: &Operation, content: &[OwnedFd], answer: &mut Answer<'_>) -> Result<(), Fault> {
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
            let content = content.first().ok_or_else(|| Fault::new(FaultKind::Unavailable, "no content came"))?;
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

/// Tries a path as it is, and then, where nothing is there, with the bytes of names that are no text.
fn either<T>(path: &str, mut tried: impl FnMut(&[u8]) -> Result<T, Fault>) -> Result<T, Fault> {
    match (tried(path.as_bytes()), paths::bytes(path)) {
        (Err(Fault { kind: FaultKind::NotFound, .. }), Some(bytes)) => tried(&bytes),
        (answer, _) => answer,
    }
}

fn found_at(workspace: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Fault> {
    either(path, |path| paths::open(workspace, path, flags))
}

fn regular(file: OwnedFd) -> Result<(File, Stat), Fault> {
    let stat = fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file.into(), stat)),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Fault::new(FaultKind::Invalid, "it is no regular file")),
    }
}

/// Reading a hole costs the host what it does not cost the sandbox.
fn check_holes(stat: &Stat) -> Result<(), Fault> {
    let (bytes, stored) = (stat.st_size.unsigned_abs(), stat.st_blocks.unsigned_abs().saturating_mul(512));
    if bytes <= SPARSE_BYTES_MAX || stored >= bytes {
        return Ok(());
    }
    let message =
        format!("a file with holes is read up to {} GiB, and this one has {bytes} bytes", SPARSE_BYTES_MAX >> 30);
    Err(Fault::new(FaultKind::Exhausted, message))
}

/// The folder that holds what a path names, and its name there.
fn parent(workspace: BorrowedFd<'_>, path: &[u8], make: bool) -> Result<(OwnedFd, Vec<u8>), Fault> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let (above, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    if matches!(name, b"" | b"." | b"..") {
        return Err(Fault::new(FaultKind::Invalid, "the path names no entry of a folder"));
    }
    let folder = if make {
        folders(workspace, above)?
    } else {
        paths::open(workspace, above, OFlags::PATH | OFlags::DIRECTORY)?
    };
    Ok((folder, name.to_vec()))
}

/// Opens a folder, and makes what is missing on the way.
fn folders(workspace: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Fault> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match paths::open(workspace, path, flags) {
        Err(Fault { kind: FaultKind::NotFound, .. }) => {}
        opened => return opened,
    }
    let (above, name) = parent(workspace, path, true)?;
    match mkdirat(&above, &*name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => paths::open(workspace, path, flags),
        Err(error) => Err(error.into()),
    }
}

fn list(folder: &OwnedFd, answer: &mut Answer<'_>) -> Result<(), Fault> {
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
            return Err(Fault::new(FaultKind::Exhausted, message));
        }
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => answer.entry(&paths::text(name), &stat)?,
            // It is gone by now.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn found(name: &str, stat: &Stat) -> Found {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        _ => EntryKind::Other,
    };
    let size = if kind == EntryKind::File { stat.st_size.unsigned_abs() } else { 0 };
    let modified_ms = stat.st_mtime.saturating_mul(1000).saturating_add(stat.st_mtime_nsec.cast_signed() / 1_000_000);
    Found { name: name.to_owned(), kind, size, modified_ms }
}

/// Into a file beside it, which then takes its place.
fn write(workspace: BorrowedFd<'_>, path: &[u8], content: &OwnedFd) -> Result<(), Fault> {
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
        // Left by one that was ended on its way.
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

fn copy(content: &OwnedFd, mut to: File) -> Result<(), Fault> {
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

fn remove(folder: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Fault> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        removed => return Ok(removed?),
    }
    if depth == REMOVE_DEPTH_MAX {
        return Err(Fault::new(
            FaultKind::Exhausted,
            format!("more than {REMOVE_DEPTH_MAX} folders are in one another"),
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
