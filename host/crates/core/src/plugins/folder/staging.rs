//! Puts a plugin's folder in place or removes it with a single rename. A reader, and a server that starts after a power
//! cut, thus sees either the old folder or the new folder.
//!
//! A folder is first written under a hidden name next to its final place. Scans ignore hidden names. The folder is on
//! disk before it is renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use monstrum_types::PluginName;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

/// The prefix of folders that are being written.
const STAGED: &str = ".monstrum-staged-";
/// The prefix of folders that are being removed.
const REMOVED: &str = ".monstrum-removed-";
/// The maximum number of attempts to replace a folder that another program changes at the same time.
const ATTEMPTS_MAX: u32 = 8;

/// The reason why a folder was not put in place or removed. The old folder is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the operating system did not provide random numbers")]
    Random(#[source] getrandom::Error),
    #[error("{} is not a folder; remove it first", path.display())]
    InTheWay { path: PathBuf },
    #[error("the file system of {} cannot exchange two folders atomically; use another file system for the \
             plugins", path.display())]
    NoExchange { path: PathBuf },
    #[error("another program keeps changing {}; try again", path.display())]
    Changing { path: PathBuf },
}

/// A folder that is written but not in place. Dropping this value removes the folder.
pub struct Staged {
    plugins_dir: PathBuf,
    path: PathBuf,
    /// The lock on the folder, so that a server that starts during the install does not treat the folder as a leftover.
    _lock: File,
}

impl Staged {
    /// Writes `files` and waits until they are on disk. The caller must validate the paths of the files.
    pub fn write(
        plugins_dir: &Path,
        plugin: &PluginName,
        files: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Staged, StageError> {
        let path = hidden(plugins_dir, STAGED, plugin.as_str())?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StageError::Write { path, source }
        };
        DirBuilder::new().mode(0o755).create(&path).map_err(failed(&path))?;
        let lock = File::open(&path).map_err(failed(&path))?;
        let staged = Staged { plugins_dir: plugins_dir.to_owned(), path, _lock: lock };
        flock(&staged._lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| StageError::Write { path: staged.path.clone(), source: error.into() })?;
        let mut folders = BTreeSet::from([staged.path.clone()]);
        for (name, content) in files {
            let target = staged.path.join(name);
            for folder in target.ancestors().skip(1).take_while(|folder| *folder != staged.path) {
                folders.insert(folder.to_owned());
            }
            let folder = target.parent().unwrap_or(&staged.path);
            DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(failed(folder))?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&target);
            let written = file.and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
            written.map_err(failed(&target))?;
        }
        for folder in folders.iter().rev() {
            sync(folder)?;
        }
        Ok(staged)
    }

    /// Returns the current path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the folder in its place. Returns true if the folder replaced another folder, which is removed.
    pub fn put_in_place(self, plugin: &PluginName) -> Result<bool, StageError> {
        let place = self.plugins_dir.join(plugin.as_str());
        let replaced = self.exchange(&place)?;
        sync(&self.plugins_dir)?;
        Ok(replaced)
    }

    fn exchange(&self, place: &Path) -> Result<bool, StageError> {
        for _ in 0..ATTEMPTS_MAX {
            match renameat_with(CWD, &self.path, CWD, place, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(false),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(refused(error, place)),
            }
            if place.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
                return Err(StageError::InTheWay { path: place.to_owned() });
            }
            match renameat_with(CWD, &self.path, CWD, place, RenameFlags::EXCHANGE) {
                Ok(()) => return Ok(true),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(refused(error, place)),
            }
        }
        Err(StageError::Changing { path: place.to_owned() })
    }
}

impl Drop for Staged {
    /// Deletes the folder with the hidden name. This is a folder that was never put in place, or the replaced folder.
    fn drop(&mut self) {
        delete(&self.path);
    }
}

/// Removes a folder. Returns false if it does not exist.
pub fn remove(plugins_dir: &Path, name: &str) -> Result<bool, StageError> {
    let place = plugins_dir.join(name);
    let aside = hidden(plugins_dir, REMOVED, name)?;
    match renameat_with(CWD, &place, CWD, &aside, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        Err(error) => return Err(refused(error, &place)),
    }
    sync(plugins_dir)?;
    delete(&aside);
    Ok(true)
}

/// Removes leftovers of interrupted installs and removals.
pub fn clear_leftovers(plugins_dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(plugins_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(STAGED) && !name.starts_with(REMOVED) {
            continue;
        }
        // Another process that uses the same plugins folder may be writing to this entry.
        let is_held = entry.file_type()?.is_dir()
            && File::open(entry.path())
                .is_ok_and(|folder| flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK));
        if !is_held {
            delete(&entry.path());
        }
    }
    Ok(())
}

/// Returns an unused hidden name in the plugins folder.
fn hidden(plugins_dir: &Path, kind: &str, name: &str) -> Result<PathBuf, StageError> {
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random).map_err(StageError::Random)?;
    Ok(plugins_dir.join(format!("{kind}{name}-{}", hex::encode(random))))
}

fn refused(error: Errno, place: &Path) -> StageError {
    match error {
        Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV => {
            StageError::NoExchange { path: place.to_owned() }
        }
        other => StageError::Write { path: place.to_owned(), source: other.into() },
    }
}

fn sync(folder: &Path) -> Result<(), StageError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| StageError::Write { path: folder.to_owned(), source })
}

/// Deletes a folder. If the deletion fails, the next start retries it.
fn delete(path: &Path) {
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "failed to delete a leftover folder; the next start of the \
                                                            server retries");
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> BTreeMap<String, Vec<u8>> {
        let file = |path: &str| (path.to_owned(), text.as_bytes().to_vec());
        BTreeMap::from([file("monstrum.yaml"), file("locales/en-US.json"), file("locales/deep/er.txt")])
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_is_put_in_place_whole_and_the_one_before_it_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let plugin = "github".parse().unwrap();
        for (text, replaced) in [("one", false), ("two", true)] {
            let staged = Staged::write(home.path(), &plugin, &files(text)).unwrap();
            assert_eq!(staged.put_in_place(&plugin).unwrap(), replaced);
            let file = home.path().join("github/locales/deep/er.txt");
            assert_eq!(std::fs::read_to_string(file).unwrap(), text);
            assert_eq!(names(home.path()), ["github"]);
        }
        assert!(remove(home.path(), "github").unwrap());
        assert!(!remove(home.path(), "github").unwrap());
        assert_eq!(names(home.path()), [""; 0]);
    }

    #[test]
    fn an_unplaced_folder_is_removed_and_an_obstacle_stays() {
        let home = tempfile::tempdir().unwrap();
        let plugin = "github".parse().unwrap();
        drop(Staged::write(home.path(), &plugin, &files("one")).unwrap());
        assert_eq!(names(home.path()), [""; 0]);
        std::os::unix::fs::symlink("/", home.path().join("github")).unwrap();
        let refused = Staged::write(home.path(), &plugin, &files("one")).unwrap().put_in_place(&plugin);
        assert!(matches!(refused, Err(StageError::InTheWay { .. })));
        assert_eq!(names(home.path()), ["github"]);
    }

    #[test]
    fn leftovers_are_removed_unless_they_are_in_use() {
        let home = tempfile::tempdir().unwrap();
        let plugin = "github".parse().unwrap();
        for name in [".monstrum-staged-a-1", ".monstrum-removed-b-2", ".git", "github"] {
            std::fs::create_dir(home.path().join(name)).unwrap();
            std::fs::write(home.path().join(name).join("file"), "x").unwrap();
        }
        let staged = Staged::write(home.path(), &plugin, &files("one")).unwrap();
        clear_leftovers(home.path()).unwrap();
        let staged_name = staged.path().file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(names(home.path()), [".git", &staged_name, "github"]);
    }
}
