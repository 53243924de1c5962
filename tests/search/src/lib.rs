//! The search for secrets in files. It reads the data of regular files and follows no links.
//!
//! This is a separate crate because the dev profile builds it with optimisation. Without optimisation, a loop over
//! every byte of a data folder takes minutes.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// The number of bytes that are read at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Texts that are searched for in one pass.
pub struct Needles {
    needles: Vec<Vec<u8>>,
    /// The needles that begin with each byte, by index.
    by_first_byte: Vec<Vec<usize>>,
    longest: usize,
}

impl Needles {
    /// Creates a search for `needles`.
    ///
    /// # Panics
    /// Panics if a needle is empty, because an empty needle matches everywhere.
    #[must_use]
    pub fn new(needles: Vec<Vec<u8>>) -> Needles {
        let mut by_first_byte = vec![Vec::new(); 256];
        for (index, needle) in needles.iter().enumerate() {
            by_first_byte[usize::from(needle[0])].push(index);
        }
        let longest = needles.iter().map(Vec::len).max().unwrap_or(0);
        Needles { needles, by_first_byte, longest }
    }

    /// Returns the index of a needle that occurs in `bytes`.
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Option<usize> {
        for (at, first) in bytes.iter().enumerate() {
            for index in &self.by_first_byte[usize::from(*first)] {
                if bytes[at..].starts_with(&self.needles[*index]) {
                    return Some(*index);
                }
            }
        }
        None
    }

    /// Like [`Needles::find`], for a file. Reads only the data and skips the holes. A missing file contains no needle.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn find_in_file(&self, path: &Path) -> io::Result<Option<usize>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut end = 0;
        while let Some(start) = data_from(&file, end)? {
            end = seek(&file, SeekFrom::Hole(start))?;
            if let Some(found) = self.find_between(&file, start, end)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find_between(&self, file: &File, mut start: u64, end: u64) -> io::Result<Option<usize>> {
        let overlap = self.longest.saturating_sub(1);
        let mut block = vec![0; BLOCK_BYTES.max(2 * self.longest)];
        let mut kept = 0;
        while start < end {
            let room = (block.len() - kept).min(usize::try_from(end - start).unwrap_or(usize::MAX));
            let read = file.read_at(&mut block[kept..kept + room], start)?;
            if read == 0 {
                break;
            }
            start += u64::try_from(read).expect("a block has a size");
            let filled = kept + read;
            if let Some(found) = self.find(&block[..filled]) {
                return Ok(Some(found));
            }
            // A match may start in this block and end in the next block.
            kept = overlap.min(filled);
            block.copy_within(filled - kept..filled, 0);
        }
        Ok(None)
    }
}

/// Returns the offset of the next data in a file.
fn data_from(file: &File, offset: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the regular files in a folder and its subfolders. The search follows no links, because a link may be broken
/// or lead out of the folder. Entries that disappear during the search are omitted.
///
/// # Errors
/// Fails if a folder cannot be read.
pub fn files_beneath(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            // For a link, this is the type of the link itself.
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn needles() -> Needles {
        Needles::new(vec![b"secret".to_vec(), b"\0s\0e".to_vec(), b"sect".to_vec()])
    }

    #[test]
    fn any_of_them_is_found_anywhere() {
        let needles = needles();
        for (text, found) in [
            (&b"secret"[..], Some(0)),
            (b"a secsecret", Some(0)),
            (b"in\0s\0e", Some(1)),
            (b"a sect", Some(2)),
            (b"a secre", None),
            (b"", None),
        ] {
            assert_eq!(needles.find(text), found, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_file_is_searched_across_its_blocks_and_not_in_its_holes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("image");
        let file = File::create(&path).expect("a file");
        // Reading this many zeros would take minutes.
        file.set_len(1 << 40).expect("a sparse file");
        let needles = needles();
        assert_eq!(needles.find_in_file(&path).expect("it is searched"), None);
        let block = u64::try_from(BLOCK_BYTES).expect("a size");
        for offset in [(1 << 39) + block - 3, (1 << 40) - 6, 0] {
            let filler = vec![b'x'; BLOCK_BYTES];
            file.write_all_at(&filler, offset.saturating_sub(block - 3)).expect("there is room");
            file.write_all_at(b"secret", offset).expect("there is room");
            assert_eq!(needles.find_in_file(&path).expect("it is searched"), Some(0), "at {offset}");
            file.write_all_at(b"------", offset).expect("there is room");
            assert_eq!(needles.find_in_file(&path).expect("it is searched"), None);
        }
        assert_eq!(needles.find_in_file(&folder.path().join("gone")).expect("nothing"), None);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("usr/sbin")).expect("folders");
        std::fs::write(root.join("usr/sbin/program"), "").expect("a file");
        std::fs::write(folder.path().join("outside"), "").expect("a file");
        // The root of a sandbox has such links: internal, broken, and leading outside.
        symlink("usr/sbin", root.join("sbin")).expect("a link");
        symlink("../usr/lib/os-release", root.join("os-release")).expect("a link");
        symlink("../outside", root.join("out")).expect("a link");
        assert_eq!(files_beneath(&root).expect("it is walked"), [root.join("usr/sbin/program")]);
        assert!(files_beneath(&root.join("gone")).expect("nothing").is_empty());
    }
}
