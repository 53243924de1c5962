//! Writes the files of the archive. Each file has a temporary name until it is complete and on disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use zstd::stream::write::Encoder;

use super::ArchiveError;

/// The zstd compression level, a compromise between time and size. At this level, rows are compressed to about a tenth
/// of their size.
const LEVEL: i32 = 6;
/// The suffix of temporary names. They also begin with a dot.
const PART: &str = ".part";

/// Creates the folder, which only its owner can read.
pub(super) fn create_folder(folder: &Path) -> Result<(), ArchiveError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.map_err(|source| ArchiveError::Write { path: folder.to_owned(), source })
}

/// Removes files that an interrupted command left incomplete.
pub(super) fn remove_parts(folder: &Path, writer: &str) -> Result<(), ArchiveError> {
    let fail = |source| ArchiveError::Write { path: folder.to_owned(), source };
    let prefix = format!(".{writer}-");
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let is_part = entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix) && name.ends_with(PART));
        if is_part {
            std::fs::remove_file(entry.path()).map_err(fail)?;
        }
    }
    Ok(())
}

/// A file that is being written. Dropping this value removes the file, unless [`Part::put_in_place`] has renamed it.
pub(super) struct Part {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    bytes: u64,
    is_in_place: bool,
}

impl Part {
    pub(super) fn create(folder: &Path, name: &str) -> Result<Part, ArchiveError> {
        let path = folder.join(format!(".{name}{PART}"));
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(|source| ArchiveError::Write { path: path.clone(), source })?;
        Ok(Part { file, path, hasher: Sha256::new(), bytes: 0, is_in_place: false })
    }

    /// Returns the number of written bytes and their digest.
    pub(super) fn written(&self) -> (u64, String) {
        (self.bytes, hex::encode(self.hasher.clone().finalize()))
    }

    /// Syncs the content to disk, and renames the file to `name`.
    pub(super) fn put_in_place(mut self, folder: &Path, name: &str) -> Result<(), ArchiveError> {
        let path = folder.join(name);
        let placed = self.file.sync_all().and_then(|()| std::fs::rename(&self.path, &path));
        placed.map_err(|source| ArchiveError::Write { path, source })?;
        self.is_in_place = true;
        sync_folder(folder)
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.is_in_place {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove an incomplete archive file");
        }
    }
}

/// A compressed file that is being written.
pub(super) struct Compressed {
    encoder: Encoder<'static, Part>,
    path: PathBuf,
}

impl Compressed {
    pub(super) fn create(folder: &Path, name: &str) -> Result<Compressed, ArchiveError> {
        let part = Part::create(folder, name)?;
        let path = part.path.clone();
        let encoder = Encoder::new(part, LEVEL).and_then(|mut encoder| {
            encoder.include_checksum(true)?;
            Ok(encoder)
        });
        encoder
            .map(|encoder| Compressed { encoder, path: path.clone() })
            .map_err(|source| ArchiveError::Write { path, source })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.encoder.write_all(bytes).map_err(|source| ArchiveError::Write { path: self.path.clone(), source })
    }

    /// Ends the compressed stream.
    pub(super) fn finish(self) -> Result<Part, ArchiveError> {
        let path = self.path;
        self.encoder.finish().map_err(|source| ArchiveError::Write { path, source })
    }
}

/// Syncs the folder, so that the names of its files are on disk.
fn sync_folder(folder: &Path) -> Result<(), ArchiveError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| ArchiveError::Write { path: folder.to_owned(), source })
}
