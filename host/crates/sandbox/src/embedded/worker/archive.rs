//! A folder as a ZIP, written as it is read. What is too much for one is found out before its first byte, as far as it
//! is there by then.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;
use zip::write::{SimpleFileOptions, StreamWriter, ZipWriter};
use zip::{CompressionMethod, DateTime};

use crate::embedded::worker::{Answer, Fault, FaultKind, PART_BYTES_MAX};
use crate::files::ArchiveLimits;

/// A file from here on needs the larger form of an entry. It may be longer by the time it is read.
const LARGE_BYTES: u64 = 1 << 31;
/// Opens what is there itself, and waits for nobody.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Writes everything beneath `folder`, in no order. Links, and what is neither file nor folder, are left out.
pub fn write(folder: &OwnedFd, limits: ArchiveLimits, answer: &mut Answer<'_>) -> Result<(), Fault> {
    measure(folder, 0, &mut Tally::new(limits))?;
    let to = Counted { to: answer, bytes_left: limits.bytes_max };
    let mut archive = Archive { zip: ZipWriter::new_stream(to), tally: Tally::new(limits) };
    archive.folder(folder, "", 0)?;
    let mut to = archive.zip.finish().map_err(|error| fault(error.into()))?.into_inner();
    to.flush()?;
    Ok(())
}

/// What an archive has, and may have.
struct Tally {
    limits: ArchiveLimits,
    entries: usize,
    bytes: u64,
}

impl Tally {
    fn new(limits: ArchiveLimits) -> Tally {
        Tally { limits, entries: 0, bytes: 0 }
    }

    fn enter(&self, depth: usize) -> Result<(), Fault> {
        match self.limits.depth_max {
            most if depth > most => Err(too_much(&format!("folders more than {most} deep"))),
            _ => Ok(()),
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), Fault> {
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

fn too_much(what: &str) -> Fault {
    Fault::new(FaultKind::Exhausted, format!("the folder has {what}, too much for one archive"))
}

/// Counts everything beneath `folder` without opening its files.
fn measure(folder: &OwnedFd, depth: usize, tally: &mut Tally) -> Result<(), Fault> {
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
                    // Another thing by now, or gone.
                    Err(Errno::LOOP | Errno::NOTDIR | Errno::NOENT) => {}
                    opened => measure(&opened?, depth + 1, tally)?,
                }
            }
            FileType::RegularFile => tally.count(stat.st_size.unsigned_abs())?,
            _ => {}
        }
    }
    Ok(())
}

/// Has an end.
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

struct Archive<W: Write> {
    zip: ZipWriter<StreamWriter<W>>,
    tally: Tally,
}

impl<W: Write> Archive<W> {
    fn folder(&mut self, folder: &OwnedFd, path: &str, depth: usize) -> Result<(), Fault> {
        self.tally.enter(depth)?;
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let opened = match openat(folder, name, FLAGS, Mode::empty()) {
                Ok(opened) => opened,
                // A link, a socket, or gone by now.
                Err(Errno::LOOP | Errno::NXIO | Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            self.entry(opened, &format!("{path}{}", readable(name)), depth)?;
        }
        Ok(())
    }

    fn entry(&mut self, opened: OwnedFd, path: &str, depth: usize) -> Result<(), Fault> {
        let stat = fstat(&opened)?;
        let size = stat.st_size.unsigned_abs();
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(modified(stat.st_mtime))
            .unix_permissions(stat.st_mode & 0o777)
            .large_file(size >= LARGE_BYTES);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                self.tally.count(0)?;
                self.zip.add_directory(path, options).map_err(|error| fault(error.into()))?;
                self.folder(&opened, &format!("{path}/"), depth + 1)
            }
            FileType::RegularFile => {
                self.tally.count(size)?;
                self.zip.start_file(path, options).map_err(|error| fault(error.into()))?;
                // What is written to it meanwhile is not ours to wait for.
                self.copy(File::from(opened).take(size))
            }
            _ => Ok(()),
        }
    }

    fn copy(&mut self, mut from: impl io::Read) -> Result<(), Fault> {
        let mut piece = vec![0; PART_BYTES_MAX];
        loop {
            match from.read(&mut piece)? {
                0 => return Ok(()),
                length => self.zip.write_all(&piece[..length]).map_err(fault)?,
            }
        }
    }
}

fn fault(error: io::Error) -> Fault {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return Fault::new(FaultKind::Exhausted, "the archive became too large");
    }
    error.into()
}

/// A name as text: bytes that are not UTF-8, and what separates folders elsewhere, are written as `%` and two digits.
fn readable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "%5C"));
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// To the second; what lies before 1980 or after 2107 has the format's earliest date.
fn modified(seconds: i64) -> DateTime {
    let Some(at) = chrono::DateTime::from_timestamp(seconds, 0) else { return DateTime::default() };
    DateTime::try_from(at.naive_utc()).unwrap_or_default()
}
