//! A package, unpacked in memory.

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

/// The files of a package by their paths. Every path is relative and plain, and none is another's folder.
#[derive(Debug)]
pub struct Archive {
    files: BTreeMap<String, Vec<u8>>,
    folder: Option<String>,
}

/// Why bytes are no package.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// It is over the limit before anything is unpacked.
    #[error("the package has {bytes} bytes; at most {PACKAGE_BYTES_MAX} are allowed")]
    PackageTooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It is something else, or was damaged on its way.
    #[error("the package is not a ZIP archive: {0}")]
    NotZip(&'static str),
    /// It uses the extension for large archives, which no package needs.
    #[error("the package uses ZIP64, which readers understand differently; pack it with `monstrum plugin pack`")]
    Zip64,
    /// Its records contradict each other, or leave room for more than they name.
    #[error("the package could be read in two ways: {0}; pack it with `monstrum plugin pack`")]
    Layout(&'static str),
    /// More entries than are allowed.
    #[error("the package has {entries} entries; at most {ENTRIES_MAX} are allowed")]
    TooManyEntries {
        /// How many there are.
        entries: usize,
    },
    /// More files than are allowed.
    #[error("the package has more than {FILES_MAX} files")]
    TooManyFiles,
    /// All files together are over the limit.
    #[error("the package unpacks to more than {UNPACKED_BYTES_MAX} bytes")]
    UnpackedTooLarge,
    /// An entry is not what a package may hold.
    #[error("the package's entry `{name}` {fault}")]
    Entry {
        /// Its name, escaped and cut.
        name: String,
        /// What is wrong with it.
        fault: Fault,
    },
    /// The name of an entry is none that a file may have.
    #[error("the package's entry `{name}` {fault}")]
    Name {
        /// The name, escaped and cut.
        name: String,
        /// What is wrong with it.
        fault: NameFault,
    },
    /// There is no manifest.
    #[error("the package holds no {MANIFEST}, neither at its top nor in one folder that holds everything")]
    NoManifest,
}

/// What is wrong with an entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It needs a password.
    #[error("is encrypted")]
    Encrypted,
    /// Its sizes stand behind its data, where not every reader looks.
    #[error("was written as a stream, with its sizes behind its data; pack it with `monstrum plugin pack`")]
    Streamed,
    /// It is marked by a bit that is not known.
    #[error("has flags that are not known")]
    Flags,
    /// It is compressed by something other than deflate.
    #[error("is compressed by method {0}; only deflate is read")]
    Method(u16),
    /// It has the field of the extension for large archives.
    #[error("uses ZIP64, which readers understand differently")]
    Zip64,
    /// It has a field by which some readers see something else.
    #[error("has an extra field that could give it another name or content")]
    Extra,
    /// A symbolic link, a device, or something that is a file and a folder.
    #[error("is neither a plain file nor a plain folder")]
    Special,
    /// Its sizes cannot be.
    #[error("has sizes that contradict each other")]
    Size,
    /// It is over the limit.
    #[error("is too large: a file has {FILE_BYTES_MAX} bytes at most, {MANIFEST} {MANIFEST_BYTES_MAX}")]
    TooLarge,
    /// Its data are not where the directory says.
    #[error("does not lie where the directory says")]
    Outside,
    /// The two records of it differ.
    #[error("is described in two ways by the two records that it has")]
    Disagrees,
    /// What comes out is not what was announced.
    #[error("is damaged: what it unpacks to is not what its records say")]
    Damaged,
}

/// What is wrong with a name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// It begins at the root of a file system.
    #[error("has an absolute path")]
    Absolute,
    /// It has a `..` or the like.
    #[error("has a path with an empty part, `.` or `..`")]
    Part,
    /// It has a backslash.
    #[error("has a backslash in its path; the parts of a path stand between `/`")]
    Backslash,
    /// It has a NUL.
    #[error("has a NUL in its path")]
    Nul,
    /// It has a character that not every system takes.
    #[error("has a path with characters that are not plain ASCII")]
    Character,
    /// A part begins or ends with a space, or ends with a dot.
    #[error("has a part with a space or dot at its edge, which some systems drop")]
    Edge,
    /// It is empty or too long.
    #[error("has an empty path, or one of more than {PATH_BYTES_MAX} bytes")]
    Length,
    /// It lies too deep.
    #[error("lies deeper than {DEPTH_MAX} folders")]
    Depth,
    /// It is there twice.
    #[error("is there twice")]
    Twice,
    /// Another one differs only in case.
    #[error("differs from `{other}` only in the case of its letters")]
    Case {
        /// The other one.
        other: String,
    },
    /// Something is a file and a folder.
    #[error("makes a file and a folder of `{path}`")]
    FileAndFolder {
        /// What is both.
        path: String,
    },
}

impl Archive {
    /// Unpacks a package.
    ///
    /// # Errors
    ///
    /// If it is not an archive that every reader understands alike, or is over a limit.
    pub fn read(package: &[u8]) -> Result<Archive, ArchiveError> {
        if package.len() > PACKAGE_BYTES_MAX {
            return Err(ArchiveError::PackageTooLarge { bytes: package.len() });
        }
        let entries = layout::entries(package)?;
        let mut names = Names::default();
        let mut paths = Vec::with_capacity(entries.len());
        for entry in &entries {
            let path = names.take(&entry.name, entry.is_folder);
            paths.push(path.map_err(|fault| ArchiveError::Name { name: shown(&entry.name), fault })?);
        }
        if entries.iter().filter(|entry| !entry.is_folder).count() > FILES_MAX {
            return Err(ArchiveError::TooManyFiles);
        }
        let mut reader = ZipArchive::new(Cursor::new(package))
            .map_err(|_| ArchiveError::Layout("the library that unpacks it does not read it as we do"))?;
        if reader.len() != entries.len() {
            return Err(ArchiveError::Layout("the library that unpacks it counts other entries"));
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

    /// The files by their paths.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// The same, taken over.
    #[must_use]
    pub fn into_files(self) -> BTreeMap<String, Vec<u8>> {
        self.files
    }

    /// The bytes of `monstrum.yaml`.
    #[must_use]
    pub fn manifest(&self) -> &[u8] {
        &self.files[MANIFEST]
    }

    /// The folder in which everything lay, where the archive was made of the folder itself and not of what is in it.
    #[must_use]
    pub fn folder(&self) -> Option<&str> {
        self.folder.as_deref()
    }

    /// The files as the plugin's folder has them.
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
                Err(ArchiveError::Entry { name: MANIFEST.to_owned(), fault: Fault::TooLarge })
            }
            Some(_) => Ok(archive),
        }
    }
}

/// The content of one file. The limits are on what really comes out, whatever the records say.
fn unpack(
    reader: &mut ZipArchive<Cursor<&[u8]>>,
    index: usize,
    entry: &layout::Entry,
    path: &str,
    room: usize,
) -> Result<Vec<u8>, ArchiveError> {
    let fault = |fault| ArchiveError::Entry { name: shown(&entry.name), fault };
    let is_manifest = path == MANIFEST;
    let bytes_max = if is_manifest { MANIFEST_BYTES_MAX } else { FILE_BYTES_MAX };
    if entry.bytes > bytes_max {
        return Err(fault(Fault::TooLarge));
    }
    if entry.bytes > room {
        return Err(ArchiveError::UnpackedTooLarge);
    }
    let file = reader.by_index(index).map_err(|_| fault(Fault::Damaged))?;
    if file.name_raw() != entry.name {
        return Err(fault(Fault::Disagrees));
    }
    let mut content = Vec::new();
    let limit = u64::try_from(entry.bytes).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut content).map_err(|_| fault(Fault::Damaged))?;
    if content.len() == entry.bytes { Ok(content) } else { Err(fault(Fault::Damaged)) }
}
