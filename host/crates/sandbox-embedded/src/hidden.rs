//! The files in the host's /usr that a sandbox must not see: entries that some users of the host cannot read.
//!
//! The sandbox's root user owns its /usr, so that it can replace files there. It could therefore read files that only
//! root may read on the host. A layer of whiteouts above /usr hides these files. Each start creates the layer from a
//! list. The first start waits for the list. A later start renews a list older than half of [`LIST_AGE_MAX`] in the
//! background, and waits for a new list if the current list is older than [`LIST_AGE_MAX`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use monstrum_sandbox::SandboxError;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{OpenTreeFlags, open_tree};

/// The maximum age of a list that a start uses.
const LIST_AGE_MAX: Duration = Duration::from_secs(300);
/// The maximum number of entries in /usr. No real /usr has more entries. If /usr has more entries, the list is not
/// created and an error is returned.
const ENTRIES_MAX: usize = 5_000_000;
/// The byte that terminates each path in the list file. No path contains this byte.
const TERMINATOR: u8 = 0;

/// The list of one provider, in a file that the init reads.
#[derive(Clone)]
pub(super) struct Hidden {
    file: PathBuf,
    /// The time at which the walk for the current list started.
    made: Arc<tokio::sync::Mutex<Option<Instant>>>,
    is_renewing: Arc<AtomicBool>,
    /// The lock for writing the file.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl Hidden {
    pub(super) fn new(file: PathBuf) -> Hidden {
        Hidden { file, made: Arc::default(), is_renewing: Arc::default(), writing: Arc::default() }
    }

    /// Returns the list file. Waits for a new list if no list exists or the current list is too old.
    pub(super) async fn list(&self) -> Result<PathBuf, SandboxError> {
        let mut made = self.made.lock().await;
        // The time is taken before the walk, because the walk may miss later changes.
        let now = Instant::now();
        match made.map(|at| now - at) {
            Some(age) if age <= LIST_AGE_MAX / 2 => {}
            Some(age) if age <= LIST_AGE_MAX => self.renew(),
            _ => {
                self.make().await?;
                *made = Some(now);
            }
        }
        Ok(self.file.clone())
    }

    /// Renews the list in the background, unless a renewal is already running.
    fn renew(&self) {
        let (this, now) = (self.clone(), Instant::now());
        if this.is_renewing.swap(true, Ordering::Relaxed) {
            return;
        }
        tokio::spawn(async move {
            if this.make().await.is_ok() {
                let mut made = this.made.lock().await;
                *made = (*made).max(Some(now));
            }
            this.is_renewing.store(false, Ordering::Relaxed);
        });
    }

    async fn make(&self) -> Result<(), SandboxError> {
        let _writing = self.writing.lock().await;
        let file = self.file.clone();
        let made = tokio::task::spawn_blocking(move || write(&file)).await;
        made.expect("making a list does not panic").map_err(|error| {
            tracing::error!(%error, "the list of private files in /usr could not be created");
            SandboxError::unavailable(
                "the list of private files in /usr could not be created; see the log of the server for the reason",
            )
        })
    }
}

fn write(file: &Path) -> io::Result<()> {
    // Clones only this mount and not the mounts below it, because sandboxes see only this mount.
    let usr: OwnedFd = open_tree(CWD, "/usr", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let found = find(Path::new(&format!("/proc/self/fd/{}", usr.as_raw_fd())))?;
    let content: Vec<u8> =
        found.iter().flat_map(|path| path.as_os_str().as_bytes().iter().copied().chain([TERMINATOR])).collect();
    let beside = file.with_extension("new");
    fs::write(&beside, content)?;
    fs::rename(&beside, file)
}

/// Returns the entries below a folder that some users cannot read, as sorted relative paths. The entry of a folder
/// covers its contents.
pub(super) fn find(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut folders, mut left) = (Vec::new(), vec![PathBuf::new()], ENTRIES_MAX);
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(root.join(&folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.as_os_str().is_empty() => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            left = left
                .checked_sub(1)
                .ok_or_else(|| io::Error::other(format!("/usr has more than {ENTRIES_MAX} entries")))?;
            let metadata = match entry.metadata() {
                // The entry was removed while the folder was being listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            let path = folder.join(entry.file_name());
            if !is_readable_by_all(&metadata) {
                found.push(path);
            } else if metadata.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_readable_by_all(metadata: &Metadata) -> bool {
    let mode = metadata.permissions().mode();
    // If a user can enter a folder but not list it, the user can still open files in it whose names are known.
    let needed = if metadata.is_dir() { 0o001 } else { 0o004 };
    metadata.is_symlink() || mode & needed == needed
}

/// Creates the whiteouts of all listed entries of `usr` in the empty folder `layer`.
pub(super) fn cover(list: &[u8], usr: &Path, layer: &Path) -> io::Result<()> {
    let mut folders = BTreeSet::new();
    for path in list.split(|byte| *byte == TERMINATOR).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        if make_parents(&path, usr, layer, &mut folders)? {
            mknodat(CWD, layer.join(&path), FileType::CharacterDevice, Mode::empty(), makedev(0, 0))?;
        }
    }
    Ok(())
}

/// Creates the parent folders of a path as they are in `usr`. Returns false if a parent folder no longer exists.
fn make_parents(path: &Path, usr: &Path, layer: &Path, made: &mut BTreeSet<PathBuf>) -> io::Result<bool> {
    let mut folder = PathBuf::new();
    for name in path.parent().into_iter().flat_map(Path::iter).map(OsStr::to_owned) {
        folder.push(name);
        if made.contains(&folder) {
            continue;
        }
        let metadata = match fs::symlink_metadata(usr.join(&folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            metadata => metadata?,
        };
        if !metadata.is_dir() {
            return Ok(false);
        }
        let own = layer.join(&folder);
        DirBuilder::new().mode(0o700).create(&own)?;
        std::os::unix::fs::chown(&own, Some(metadata.uid()), Some(metadata.gid()))?;
        fs::set_permissions(&own, metadata.permissions())?;
        made.insert(folder.clone());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_entries_are_found() {
        let root = tempfile::tempdir().expect("a temporary folder can be made");
        let folder = |path: &str, mode: u32| DirBuilder::new().mode(mode).create(root.path().join(path)).expect("made");
        for (path, mode) in [("open", 0o755), ("closed", 0o750), ("entered", 0o711), ("listed", 0o744)] {
            folder(path, mode);
        }
        folder("open/deep", 0o755);
        let files = ["all", "open/group", "open/deep/own", "closed/all", "entered/own", "entered/all", "listed/all"];
        for path in files {
            let mode = match path.rsplit('/').next() {
                Some("own") => 0o600,
                Some("group") => 0o640,
                _ => 0o644,
            };
            fs::write(root.path().join(path), path).expect("it is written");
            fs::set_permissions(root.path().join(path), fs::Permissions::from_mode(mode)).expect("it is set");
        }
        std::os::unix::fs::symlink("open/group", root.path().join("link")).expect("it is made");
        let found = find(root.path()).expect("it can be walked");
        let paths: Vec<_> = found.iter().map(|path| path.to_str().expect("text")).collect();
        assert_eq!(paths, ["closed", "entered/own", "listed", "open/deep/own", "open/group"]);
        assert!(find(&root.path().join("nothing")).is_err(), "an unreadable folder is not an error");
    }
}
