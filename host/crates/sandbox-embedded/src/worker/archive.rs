//! Streams a folder as a ZIP archive. If the folder exceeds the limits before the first byte is sent, the stream
//! consists only of the error.
//!
//! A link to a file in the workspace is packed as that file. A link to a folder that is also packed stays a link. All
//! other links are listed in [`LEFT_OUT`].

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use monstrum_sandbox::{ArchiveLimits, WORKSPACE};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use zip::write::{SimpleFileOptions, StreamWriter, ZipWriter};
use zip::{CompressionMethod, DateTime};

use crate::worker::{AnswerWriter, FileError, FileErrorKind, PART_BYTES_MAX, paths};

/// The minimum size of a file for the ZIP64 form of an entry. This size is below the size limit of the ordinary form,
/// because a file may grow before it is read.
const LARGE_BYTES: u64 = 1 << 31;
/// The flags for opening an entry. Opening follows no links and does not block.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The file that lists the links that are not packed, with the reasons. If the folder has a file of this name, that
/// file is packed instead.
const LEFT_OUT: &str = "LINKS-LEFT-OUT.txt";

/// Writes all entries beneath `folder` in no particular order. Pipes, sockets and devices are skipped.
pub(super) fn write(
    workspace: BorrowedFd<'_>,
    folder: &OwnedFd,
    limits: ArchiveLimits,
    answer: &mut AnswerWriter<'_>,
) -> Result<(), FileError> {
    let links = Links { workspace, root: place(folder)?, left_out: Vec::new() };
    measure(&links, folder, b"", &mut Tally::new(limits), 0)?;
    let to = Counted { to: answer, bytes_left: limits.bytes_max };
    let mut archive = Archive { zip: ZipWriter::new_stream(to), tally: Tally::new(limits), links };
    archive.folder(folder, b"", 0)?;
    archive.list_left_out(folder)?;
    let mut to = archive.zip.finish().map_err(|error| file_error(error.into()))?.into_inner();
    to.flush()?;
    Ok(())
}

/// Counts the entries and bytes of an archive against its limits.
struct Tally {
    limits: ArchiveLimits,
    entries: usize,
    bytes: u64,
}

impl Tally {
    fn new(limits: ArchiveLimits) -> Tally {
        Tally { limits, entries: 0, bytes: 0 }
    }

    fn enter(&self, depth: usize) -> Result<(), FileError> {
        match self.limits.depth_max {
            most if depth > most => Err(too_much(&format!("folders nested more than {most} levels deep"))),
            _ => Ok(()),
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), FileError> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.entries > self.limits.entries_max {
            return Err(too_much(&format!("more than {} entries", self.limits.entries_max)));
        }
        if self.bytes > self.limits.bytes_max {
            return Err(too_much(&format!("files of more than {} bytes", self.limits.bytes_max)));
        }
        Ok(())
    }
}

fn too_much(what: &str) -> FileError {
    FileError::new(FileErrorKind::Exhausted, format!("the folder has {what}, which exceeds the limit of an archive"))
}

/// Resolves links.
struct Links<'a> {
    workspace: BorrowedFd<'a>,
    /// The path of the packed folder, without links.
    root: Vec<u8>,
    /// The lines of [`LEFT_OUT`].
    left_out: Vec<String>,
}

/// The target of a link.
enum LinkTarget {
    File(File, Stat),
    /// A packed folder, by its path relative to the archive.
    Folder(Vec<u8>),
    LeftOut(String),
}

impl Links<'_> {
    /// Resolves a link. `path` is the link's path relative to the archive.
    fn follow(&self, path: &[u8]) -> Result<LinkTarget, FileError> {
        let beneath = self.root.strip_prefix(WORKSPACE.as_bytes()).unwrap_or_default();
        let whole = [beneath.strip_prefix(b"/").unwrap_or(b"."), b"/", path].concat();
        let opened = match paths::open(self.workspace, &whole, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(opened) => opened,
            Err(FileError { kind: FileErrorKind::Unavailable, message }) => {
                return Err(FileError::new(FileErrorKind::Unavailable, message));
            }
            Err(error) => return Ok(LinkTarget::LeftOut(error.message)),
        };
        let stat = fstat(&opened)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => LinkTarget::File(File::from(opened), stat),
            FileType::Directory => {
                let target = place(&opened)?;
                match target.strip_prefix(self.root.as_slice()) {
                    Some(rest) if rest.is_empty() || rest.starts_with(b"/") => {
                        LinkTarget::Folder(rest.strip_prefix(b"/").unwrap_or(rest).to_vec())
                    }
                    _ => LinkTarget::LeftOut("the folder is not part of this archive".to_owned()),
                }
            }
            _ => LinkTarget::LeftOut("the target is neither a file nor a folder".to_owned()),
        })
    }
}

/// Returns the path of an open file with all links resolved.
fn place(opened: &OwnedFd) -> Result<Vec<u8>, Errno> {
    Ok(readlinkat(CWD, format!("/proc/self/fd/{}", opened.as_raw_fd()), Vec::new())?.into_bytes())
}

/// Counts the entries and bytes beneath `folder`. Reads no files.
fn measure(links: &Links<'_>, folder: &OwnedFd, path: &[u8], tally: &mut Tally, depth: usize) -> Result<(), FileError> {
    tally.enter(depth)?;
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let stat = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                tally.count(0)?;
                match openat(folder, name, FLAGS | OFlags::DIRECTORY, Mode::empty()) {
                    // The entry was replaced or removed.
                    Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => {}
                    opened => measure(links, &opened?, &[path, name, b"/"].concat(), tally, depth + 1)?,
                }
            }
            FileType::RegularFile => tally.count(stat.st_size.unsigned_abs())?,
            FileType::Symlink => match links.follow(&[path, name].concat())? {
                LinkTarget::File(_, stat) => tally.count(stat.st_size.unsigned_abs())?,
                LinkTarget::Folder(_) | LinkTarget::LeftOut(_) => tally.count(0)?,
            },
            _ => {}
        }
    }
    Ok(())
}

/// A writer that fails when it exceeds a maximum size.
struct Counted<W> {
    to: W,
    bytes_left: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        let left = self.bytes_left.checked_sub(written as u64);
        self.bytes_left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

struct Archive<'a, W: Write> {
    zip: ZipWriter<StreamWriter<W>>,
    tally: Tally,
    links: Links<'a>,
}

impl<W: Write> Archive<'_, W> {
    /// Packs the entries of a folder. `path` is relative to the archive and ends with `/` unless it is empty.
    fn folder(&mut self, folder: &OwnedFd, path: &[u8], depth: usize) -> Result<(), FileError> {
        self.tally.enter(depth)?;
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let path = [path, name].concat();
            match openat(folder, name, FLAGS, Mode::empty()) {
                Ok(opened) => self.entry(opened, &path, depth)?,
                Err(Errno::LOOP) => self.link(&path)?,
                // The entry is a socket, or it was removed.
                Err(Errno::NXIO | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn entry(&mut self, opened: OwnedFd, path: &[u8], depth: usize) -> Result<(), FileError> {
        let stat = fstat(&opened)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.tally.count(0)?;
                self.zip.add_directory(readable(path), options(&stat)).map_err(|error| file_error(error.into()))?;
                self.folder(&opened, &[path, b"/"].concat(), depth + 1)
            }
            FileType::RegularFile => self.file(File::from(opened), &stat, path),
            _ => Ok(()),
        }
    }

    fn file(&mut self, file: File, stat: &Stat, path: &[u8]) -> Result<(), FileError> {
        let size = stat.st_size.unsigned_abs();
        self.tally.count(size)?;
        self.zip.start_file(readable(path), options(stat)).map_err(|error| file_error(error.into()))?;
        // Bytes that are appended during the read are ignored.
        self.copy(file.take(size))
    }

    fn link(&mut self, path: &[u8]) -> Result<(), FileError> {
        match self.links.follow(path)? {
            LinkTarget::File(file, stat) => self.file(file, &stat, path),
            LinkTarget::Folder(target) => {
                self.tally.count(0)?;
                let up = path.iter().filter(|byte| **byte == b'/').count();
                let target = format!("./{}{}", "../".repeat(up), readable(&target));
                let added = self.zip.add_symlink(readable(path), target, SimpleFileOptions::default());
                added.map_err(|error| file_error(error.into()))
            }
            LinkTarget::LeftOut(why) => {
                self.tally.count(0)?;
                self.links.left_out.push(format!("{}: {why}\n", readable(path)));
                Ok(())
            }
        }
    }

    /// Lists the links that are not packed, unless the folder has a file of that name.
    fn list_left_out(&mut self, folder: &OwnedFd) -> Result<(), FileError> {
        if self.links.left_out.is_empty() || statat(folder, LEFT_OUT, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Ok(());
        }
        let text = self.links.left_out.concat();
        self.zip.start_file(LEFT_OUT, SimpleFileOptions::default()).map_err(|error| file_error(error.into()))?;
        self.zip.write_all(text.as_bytes()).map_err(file_error)
    }

    fn copy(&mut self, mut from: impl io::Read) -> Result<(), FileError> {
        let mut piece = vec![0; PART_BYTES_MAX];
        loop {
            match from.read(&mut piece)? {
                0 => return Ok(()),
                length => self.zip.write_all(&piece[..length]).map_err(file_error)?,
            }
        }
    }
}

fn options(stat: &Stat) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(modified(stat.st_mtime))
        .unix_permissions(stat.st_mode & 0o777)
        .large_file(stat.st_size.unsigned_abs() >= LARGE_BYTES)
}

fn file_error(error: io::Error) -> FileError {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return FileError::new(FileErrorKind::Exhausted, "the archive exceeds the size limit");
    }
    error.into()
}

/// Converts a path to text. Bytes of invalid UTF-8, backslashes and `%` are written as `%` and two digits, so that
/// different names stay different.
fn readable(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        text.push_str(&chunk.valid().replace('%', "%25").replace('\\', "%5C"));
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Converts a time in seconds. Times that the format cannot represent become its earliest date.
fn modified(seconds: i64) -> DateTime {
    let Some(at) = chrono::DateTime::from_timestamp(seconds, 0) else { return DateTime::default() };
    DateTime::try_from(at.naive_utc()).unwrap_or_default()
}
