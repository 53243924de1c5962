//! Inodes of an image that are kept back.
//!
//! Mounting the layers of a sandbox makes entries in their work folders, so that an image whose inodes are used up could
//! never be mounted again. Some empty files, which no sandbox sees, are removed before the mounts and made again after.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::Path;

/// Where they are in the mounted image.
const FOLDER: &str = "image/spare";
/// Two layers make three entries each at the most.
const FILES: u32 = 16;

/// Gives the inodes back to the image.
pub(super) fn release() -> io::Result<()> {
    let entries = match fs::read_dir(FOLDER) {
        // The image is new, or from before there were any.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// Takes them again, as far as there are any.
pub(super) fn hold() -> io::Result<()> {
    let made = match DirBuilder::new().create(FOLDER) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    let held = made.and_then(|()| {
        (0..FILES).try_for_each(|number| File::create(Path::new(FOLDER).join(number.to_string())).map(drop))
    });
    match held {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        held => held,
    }
}
