//! Where cargo has put things, and folders as a server wants them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The program `name`, built into the same profile as the program that asks.
pub(crate) fn binary(name: &str) -> Result<PathBuf> {
    let binary = profile_dir()?.join(name);
    if !binary.is_file() {
        bail!("{} is missing; run: cargo xtask test", binary.display());
    }
    Ok(binary)
}

/// The folder into which cargo builds everything.
pub(crate) fn target_dir() -> Result<PathBuf> {
    Ok(profile_dir()?.parent().context("a profile's folder lies in the target folder")?.to_owned())
}

/// `target/debug` or `target/release`. Tests lie in its folder `deps`, programs in itself.
fn profile_dir() -> Result<PathBuf> {
    let program = std::env::current_exe().context("a program does not know where it is")?;
    let folder = program.parent().context("a program lies in a folder")?;
    let is_test = folder.file_name().is_some_and(|name| name == "deps");
    let profile = if is_test { folder.parent().context("the folder deps lies in another")? } else { folder };
    Ok(profile.to_owned())
}

/// A folder that only its owner may write, independent of the umask.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Copies a folder with all that is in it.
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

/// What the repository has of an earlier revision.
pub(crate) fn fixture(revision: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(revision)
}

/// Copies the files of a folder, but not its folders, into one that only its owner may enter.
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
