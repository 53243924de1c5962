//! Detects new, changed and removed plugins in the plugins folder.
//!
//! The watch polls the folder, because not every file system reports changes. A plugin changes between polls while it
//! is copied. The watch reports the plugin after it has been unchanged for a while.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time for which a plugin must be unchanged before it is reported. A program that copies files changes the plugin
/// again within a fraction of this time.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// The maximum number of polled files of one plugin. A plugin has about a dozen files. A copied source tree has
/// thousands.
const FILES_MAX: usize = 2000;
/// The maximum depth of polled folders. The folder of translations is at depth one.
const DEPTH_MAX: usize = 4;

/// A hash of the names, sizes, times, permissions and owners of all entries in a plugin's folder.
type Fingerprint = u64;

/// The last known state of the plugins folder.
pub struct Watch {
    dir: PathBuf,
    /// The reported state of each plugin.
    reported: BTreeMap<String, Fingerprint>,
    /// The plugins that are changing, each with its new state and the time of its last change. The state of a removed
    /// plugin is `None`.
    changing: BTreeMap<String, (Option<Fingerprint>, Instant)>,
}

impl Watch {
    /// Creates a watch with the current state of `dir`. The caller must create the watch before it reads the folder, so
    /// that the watch misses no change.
    pub fn new(dir: &Path) -> Watch {
        Watch { dir: dir.to_owned(), reported: fingerprints(dir).unwrap_or_default(), changing: BTreeMap::new() }
    }

    /// Makes a later poll report the plugin `name` again. The caller uses this function for a plugin that could not be
    /// loaded.
    pub fn forget(&mut self, name: &str) {
        self.reported.remove(name);
    }

    /// Polls the folder and returns the names of the plugins that have changed and are stable again. Each change is
    /// reported once.
    pub fn poll(&mut self, now: Instant) -> io::Result<Vec<String>> {
        let seen = fingerprints(&self.dir)?;
        let names = seen.keys().chain(self.reported.keys());
        let different = names.filter(|name| seen.get(*name) != self.reported.get(*name));
        let changing = different.map(|name| {
            let fingerprint = seen.get(name).copied();
            let since = match self.changing.get(name) {
                Some((before, since)) if *before == fingerprint => *since,
                _ => now,
            };
            (name.clone(), (fingerprint, since))
        });
        self.changing = changing.collect();
        let is_stable = |(_, since): &(Option<Fingerprint>, Instant)| now.duration_since(*since) >= SETTLED_AFTER;
        let settled = self.changing.extract_if(.., |_, change| is_stable(change));
        let mut names = Vec::new();
        for (name, (fingerprint, _)) in settled {
            match fingerprint {
                Some(fingerprint) => self.reported.insert(name.clone(), fingerprint),
                None => self.reported.remove(&name),
            };
            names.push(name);
        }
        Ok(names)
    }
}

fn fingerprints(dir: &Path) -> io::Result<BTreeMap<String, Fingerprint>> {
    let mut found = BTreeMap::new();
    for entry in dir.read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if super::is_plugin_folder(&entry)? {
            let mut hasher = DefaultHasher::new();
            let mut left = FILES_MAX;
            describe(&entry.path(), 0, &mut left, &mut hasher);
            found.insert(name, hasher.finish());
        }
    }
    Ok(found)
}

/// Hashes an entry. If the entry cannot be read, hashes only its path, because the entry may have been removed.
fn describe(path: &Path, depth: usize, left: &mut usize, into: &mut DefaultHasher) {
    path.hash(into);
    let Ok(metadata) = path.symlink_metadata() else { return };
    let kind_and_rights = (metadata.mode(), metadata.uid(), metadata.gid());
    (metadata.ino(), kind_and_rights, metadata.ctime(), metadata.ctime_nsec()).hash(into);
    if !metadata.is_dir() {
        (metadata.size(), metadata.mtime(), metadata.mtime_nsec()).hash(into);
        return;
    }
    if depth == DEPTH_MAX {
        return;
    }
    let Ok(entries) = path.read_dir() else { return };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).take(*left).collect();
    paths.sort();
    *left -= paths.len();
    for path in paths {
        describe(&path, depth + 1, left, into);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const NONE: [&str; 0] = [];

    #[test]
    fn a_stable_change_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("github");
        fs::create_dir(&plugin).unwrap();
        fs::write(plugin.join("monstrum.yaml"), "name: github").unwrap();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watch = Watch::new(dir.path());
        assert_eq!(watch.poll(at(0)).unwrap(), NONE);
        assert_eq!(watch.poll(at(10)).unwrap(), NONE);

        fs::write(plugin.join("monstrum.yaml"), "name: github, version: 2").unwrap();
        assert_eq!(watch.poll(at(11)).unwrap(), NONE);
        assert_eq!(watch.poll(at(12)).unwrap(), ["github"]);
        assert_eq!(watch.poll(at(13)).unwrap(), NONE);

        watch.forget("github");
        assert_eq!(watch.poll(at(13)).unwrap(), NONE);
        assert_eq!(watch.poll(at(14)).unwrap(), ["github"]);

        fs::remove_dir_all(&plugin).unwrap();
        assert_eq!(watch.poll(at(15)).unwrap(), NONE);
        assert_eq!(watch.poll(at(16)).unwrap(), ["github"]);
        assert_eq!(watch.poll(at(17)).unwrap(), NONE);
    }

    #[test]
    fn a_folder_that_is_being_copied_is_not_reported() {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(dir.path());
        let plugin = dir.path().join("slow");
        fs::create_dir(&plugin).unwrap();
        for step in 0..20_u64 {
            fs::write(plugin.join("plugin.wasm"), vec![0; 1 + step as usize]).unwrap();
            assert_eq!(watch.poll(start + Duration::from_millis(900 * step)).unwrap(), NONE, "{step}");
        }
        assert_eq!(watch.poll(start + Duration::from_millis(900 * 19 + 1000)).unwrap(), ["slow"]);
    }

    #[test]
    fn hidden_folders_and_files_are_not_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(dir.path());
        fs::create_dir(dir.path().join(".staged")).unwrap();
        fs::write(dir.path().join("notes.txt"), "").unwrap();
        assert_eq!(watch.poll(start).unwrap(), NONE);
        assert_eq!(watch.poll(start + SETTLED_AFTER * 2).unwrap(), NONE);
    }

    #[test]
    fn a_folder_that_cannot_be_read_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        fs::create_dir_all(plugins.join("github")).unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(&plugins);
        fs::rename(&plugins, dir.path().join("away")).unwrap();
        assert!(watch.poll(start).is_err());
        fs::rename(dir.path().join("away"), &plugins).unwrap();
        assert_eq!(watch.poll(start + SETTLED_AFTER * 2).unwrap(), NONE);
    }
}
