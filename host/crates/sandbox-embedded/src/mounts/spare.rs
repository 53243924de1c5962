//! Reserved inodes of an image.
//!
//! Mounting the overlays of a sandbox creates entries in their work folders, so that an image without free inodes could
//! never be mounted again. Some empty files, invisible to the sandbox, are removed before the mounts and created again
//! afterwards.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::path::Path;

/// The folder of the reserve in the mounted image.
const FOLDER: &str = "image/spare";
/// The number of reserved inodes: more than the six entries that mounting the two overlays can create.
const FILES: u32 = 16;

/// Frees the reserved inodes.
pub(super) fn free() -> io::Result<()> {
    let entries = match fs::read_dir(FOLDER) {
        // The image is new, or it was created by a version of this program that reserved no inodes.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// Reserves the inodes again, or fewer if the image does not have enough free inodes.
pub(super) fn reserve() -> io::Result<()> {
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
