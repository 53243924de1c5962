//! Folders with the permissions that a server requires, and the folders of fixtures.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Creates a folder that only its owner may write to, regardless of the umask.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot create the folder {}", path.display()))
}

/// Copies a folder with all its content.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    make_dir(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .and_then(|_| fs::set_permissions(&target, Permissions::from_mode(0o644)))
                .with_context(|| format!("cannot copy to {}", target.display()))?;
        }
    }
    Ok(())
}

/// Returns the repository's fixture of an earlier revision.
pub(crate) fn fixture(revision: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(revision)
}

/// Copies the files of a folder, but not its subfolders, into a folder that only its owner may enter.
pub(crate) fn copy_private(from: &Path, to: &Path) -> Result<()> {
    make_dir(to)?;
    fs::set_permissions(to, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let target = to.join(entry.file_name());
            fs::copy(entry.path(), &target)
                .and_then(|_| fs::set_permissions(&target, Permissions::from_mode(0o600)))
                .with_context(|| format!("cannot copy to {}", target.display()))?;
        }
    }
    Ok(())
}
