//! Reproducible packing: the same files always produce the same bytes.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::archive::{Archive, ArchiveError};
use crate::limits::{FILE_BYTES_MAX, FILES_MAX, UNPACKED_BYTES_MAX};

/// The reason why files could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The files exceed a limit.
    #[error(
        "the package is too large; at most {FILES_MAX} files, {FILE_BYTES_MAX} bytes per file and {UNPACKED_BYTES_MAX} bytes \
         in total are allowed"
    )]
    TooMuch,
    /// The archive could not be written.
    #[error("failed to write the archive")]
    Zip(#[source] zip::result::ZipError),
    /// The packed archive would be rejected at installation.
    #[error(transparent)]
    Refused(#[from] ArchiveError),
}

/// Packs files into a package. `files` maps the path of each file to its content.
///
/// # Errors
///
/// Fails if the files exceed a limit, or if installation would reject the package.
pub fn pack(files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>, PackError> {
    let in_all: usize = files.values().map(Vec::len).sum();
    let is_large = files.values().any(|content| content.len() > FILE_BYTES_MAX);
    if files.len() > FILES_MAX || is_large || in_all > UNPACKED_BYTES_MAX {
        return Err(PackError::TooMuch);
    }
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .last_modified_time(DateTime::default())
        .unix_permissions(0o644);
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, content) in files {
        writer.start_file(path.as_str(), options).map_err(PackError::Zip)?;
        writer.write_all(content).map_err(|error| PackError::Zip(error.into()))?;
    }
    let package = writer.finish().map_err(PackError::Zip)?.into_inner();
    Archive::read(&package)?;
    Ok(package)
}
