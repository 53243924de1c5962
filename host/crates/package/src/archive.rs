//! Unpacking of packages in memory.

mod layout;
mod names;

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use zip::ZipArchive;

use crate::MANIFEST;
use crate::archive::layout::shown;
use crate::archive::names::Names;
use crate::limits::{
    DEPTH_MAX, ENTRIES_MAX, FILE_BYTES_MAX, FILES_MAX, MANIFEST_BYTES_MAX, PACKAGE_BYTES_MAX, PATH_BYTES_MAX,
    UNPACKED_BYTES_MAX,
};

/// The files of a package, by path. Paths are relative and contain no `.` or `..`. No path is a parent folder of another
/// path.
#[derive(Debug)]
pub struct Archive {
    files: BTreeMap<String, Vec<u8>>,
    folder: Option<String>,
}

/// The reason for rejecting a package.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The size of the package exceeds the limit.
    #[error("the package has {bytes} bytes; at most {PACKAGE_BYTES_MAX} are allowed")]
    PackageTooLarge {
        /// The size of the package.
        bytes: usize,
    },
    /// The package is not a ZIP archive, or the archive is damaged.
    #[error("the package is not a ZIP archive: {0}")]
    NotZip(&'static str),
    /// The archive uses ZIP64, an extension for large archives that no package needs.
    #[error("the package uses ZIP64, which readers interpret differently; pack it with `monstrum plugin pack`")]
    Zip64,
    /// The archive's records contradict each other, or leave gaps that could contain unlisted bytes.
    #[error("the package is ambiguous: {0}; pack it with `monstrum plugin pack`")]
    Layout(&'static str),
    /// There are too many entries.
    #[error("the package has {entries} entries; at most {ENTRIES_MAX} are allowed")]
    TooManyEntries {
        /// The number of entries.
        entries: usize,
    },
    /// There are too many files.
    #[error("the package has more than {FILES_MAX} files")]
    TooManyFiles,
    /// The total unpacked size of the files exceeds the limit.
    #[error("the package unpacks to more than {UNPACKED_BYTES_MAX} bytes")]
    UnpackedTooLarge,
    /// An entry is not allowed in a package.
    #[error("the package's entry `{name}` {error}")]
    Entry {
        /// The name of the entry, escaped and truncated.
        name: String,
        /// The error.
        error: EntryError,
    },
    /// The name of an entry is not allowed.
    #[error("the package's entry `{name}` {error}")]
    Name {
        /// The name of the entry, escaped and truncated.
        name: String,
        /// The error.
        error: NameError,
    },
    /// The package has no manifest.
    #[error("the package has no {MANIFEST}, neither at the top level nor in a single top-level folder")]
    NoManifest,
}

/// The reason for rejecting an entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The entry is encrypted.
    #[error("is encrypted")]
    Encrypted,
    /// The entry's sizes are stored after its data, where not all readers look for them.
    #[error("was written as a stream, with its sizes after its data; pack it with `monstrum plugin pack`")]
    Streamed,
    /// The entry has unknown flags.
    #[error("has unknown flags")]
    Flags,
    /// The compression method is not supported.
    #[error("is compressed with method {0}; only deflate is supported")]
    Method(u16),
    /// The entry has a ZIP64 extra field.
    #[error("uses ZIP64, which readers interpret differently")]
    Zip64,
    /// The entry has an extra field that makes some readers use another name or other content.
    #[error("has an extra field that could give it another name or content")]
    Extra,
    /// The entry is a symbolic link, a device, or both a file and a folder.
    #[error("is neither a regular file nor a folder")]
    Special,
    /// The entry's sizes contradict each other.
    #[error("has sizes that contradict each other")]
    Size,
    /// The unpacked size of the entry exceeds the limit.
    #[error(
        "is too large: the limit is {FILE_BYTES_MAX} bytes for a file and {MANIFEST_BYTES_MAX} bytes for `{MANIFEST}`"
    )]
    TooLarge,
    /// The offset in the central directory does not point to the entry.
    #[error("is not at the offset in the central directory")]
    Outside,
    /// The local header and the central directory disagree.
    #[error("has a local header that disagrees with the central directory")]
    Disagrees,
    /// The unpacked data does not match the entry's records.
    #[error("is damaged: its data does not unpack to the recorded size and checksum")]
    Damaged,
}

/// The reason for rejecting the name of an entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The path is absolute.
    #[error("has an absolute path")]
    Absolute,
    /// A path component is empty, `.` or `..`.
    #[error("has a path with a component that is empty, `.` or `..`")]
    Part,
    /// The path contains a backslash.
    #[error("has a backslash in its path; use `/` as the path separator")]
    Backslash,
    /// The path contains a NUL byte.
    #[error("has a NUL character in its path")]
    Nul,
    /// The path contains a character that some systems do not allow.
    #[error(
        "has a path with characters that are not allowed: use only printable ASCII characters other than `:*?\"<>|`"
    )]
    Character,
    /// A path component starts or ends with a space, or ends with a dot.
    #[error(
        "has a path component that starts with a space, or ends with a space or a dot; some systems remove these characters"
    )]
    Edge,
    /// The path is empty or too long.
    #[error("has an empty path or a path longer than {PATH_BYTES_MAX} bytes")]
    Length,
    /// The path is nested too deeply.
    #[error("is nested deeper than {DEPTH_MAX} folders")]
    Depth,
    /// The archive contains the path twice.
    #[error("is in the archive twice")]
    Twice,
    /// Two paths differ only in case.
    #[error("differs from `{other}` only in case")]
    Case {
        /// The other path.
        other: String,
    },
    /// The path is used both as a file and as a folder.
    #[error("makes `{path}` both a file and a folder")]
    FileAndFolder {
        /// The path.
        path: String,
    },
}

impl Archive {
    /// Unpacks a package in memory.
    ///
    /// # Errors
    ///
    /// Fails if the archive is malformed or ambiguous, or exceeds a limit.
    pub fn read(package: &[u8]) -> Result<Archive, ArchiveError> {
        if package.len() > PACKAGE_BYTES_MAX {
            return Err(ArchiveError::PackageTooLarge { bytes: package.len() });
        }
        let entries = layout::entries(package)?;
        let mut names = Names::default();
        let mut paths = Vec::with_capacity(entries.len());
        for entry in &entries {
            let path = names.take(&entry.name, entry.is_folder);
            paths.push(path.map_err(|error| ArchiveError::Name { name: shown(&entry.name), error })?);
        }
        if entries.iter().filter(|entry| !entry.is_folder).count() > FILES_MAX {
            return Err(ArchiveError::TooManyFiles);
        }
        let mut reader = ZipArchive::new(Cursor::new(package))
            .map_err(|_| ArchiveError::Layout("the ZIP library cannot read it"))?;
        if reader.len() != entries.len() {
            return Err(ArchiveError::Layout("the ZIP library reads a different number of entries"));
        }
        let mut files = BTreeMap::new();
        let mut room = UNPACKED_BYTES_MAX;
        for (index, (entry, path)) in entries.iter().zip(paths).enumerate().filter(|(_, (entry, _))| !entry.is_folder) {
            let content = unpack(&mut reader, index, entry, &path, room)?;
            room -= content.len();
            files.insert(path, content);
        }
        Archive::rooted(files)
    }

    /// Returns the files by path.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// Converts the archive into a map of its files by path.
    #[must_use]
    pub fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        self.files
    }

    /// Returns the content of `monstrum.yaml`.
    #[must_use]
    pub fn manifest(&self) -> &[u8] {
        &self.files[MANIFEST]
    }

    /// Returns the name of the top-level folder that contains all files. Returns `None` if the files are at the top
    /// level. An archive has such a folder if the plugin's folder was packed rather than its contents.
    #[must_use]
    pub fn folder(&self) -> Option<&str> {
        self.folder.as_deref()
    }

    /// Makes the paths relative to the plugin's folder.
    fn rooted(files: BTreeMap<String, Vec<u8>>) -> Result<Archive, ArchiveError> {
        if files.contains_key(MANIFEST) {
            return Archive::checked(Archive { files, folder: None });
        }
        let mut parts = files.keys().map(|path| path.split_once('/').map(|(folder, _)| folder));
        let folder = parts.next().flatten().map(str::to_owned).ok_or(ArchiveError::NoManifest)?;
        if parts.any(|other| other != Some(folder.as_str())) {
            return Err(ArchiveError::NoManifest);
        }
        let files = files.into_iter().map(|(path, content)| (path[folder.len() + 1..].to_owned(), content)).collect();
        Archive::checked(Archive { files, folder: Some(folder) })
    }

    fn checked(archive: Archive) -> Result<Archive, ArchiveError> {
        match archive.files.get(MANIFEST) {
            None => Err(ArchiveError::NoManifest),
            Some(manifest) if manifest.len() > MANIFEST_BYTES_MAX => {
                Err(ArchiveError::Entry { name: MANIFEST.to_owned(), error: EntryError::TooLarge })
            }
            Some(_) => Ok(archive),
        }
    }
}

/// Unpacks one file. Enforces the limits on the actual output, not only on the sizes in the archive's records.
fn unpack(
    reader: &mut ZipArchive<Cursor<&[u8]>>,
    index: usize,
    entry: &layout::Entry,
    path: &str,
    room: usize,
) -> Result<Vec<u8>, ArchiveError> {
    let entry_error = |error| ArchiveError::Entry { name: shown(&entry.name), error };
    let is_manifest = path == MANIFEST;
    let bytes_max = if is_manifest { MANIFEST_BYTES_MAX } else { FILE_BYTES_MAX };
    if entry.bytes > bytes_max {
        return Err(entry_error(EntryError::TooLarge));
    }
    if entry.bytes > room {
        return Err(ArchiveError::UnpackedTooLarge);
    }
    let file = reader.by_index(index).map_err(|_| entry_error(EntryError::Damaged))?;
    if file.name_raw() != entry.name {
        return Err(entry_error(EntryError::Disagrees));
    }
    let mut content = Vec::new();
    let limit = u64::try_from(entry.bytes).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut content).map_err(|_| entry_error(EntryError::Damaged))?;
    if content.len() == entry.bytes { Ok(content) } else { Err(entry_error(EntryError::Damaged)) }
}
