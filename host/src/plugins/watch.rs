//! Notices what happens in the plugins folder: which plugins are new there, have changed or are gone.
//!
//! It looks again and again and compares what it sees, because not every file system tells of changes. A plugin that is
//! being copied looks different each time; it is left alone until it has looked the same for a while.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a plugin must have looked the same. Copying a file touches it again within a fraction of this.
const SETTLED_AFTER: Duration = Duration::from_secs(1);
/// What is looked at in one plugin. A plugin has a dozen files; a source tree that was dropped in has thousands.
const FILES_MAX: usize = 2000;
/// Folders within folders: translations are one deep.
const DEPTH_MAX: usize = 4;

/// How a plugin's folder looks from outside: names, sizes, times and owners of everything in it.
type Look = u64;

/// What was seen in the plugins folder.
pub struct Watch {
    dir: PathBuf,
    /// What serves, or has been tried.
    taken: BTreeMap<String, Look>,
    /// What is different, and since when it looks as it does; None is gone.
    changing: BTreeMap<String, (Option<Look>, Instant)>,
}

impl Watch {
    /// Takes what is in `dir` now for known. Call it before the folder is read, so that no change falls in between.
    pub fn new(dir: &Path) -> Watch {
        Watch { dir: dir.to_owned(), taken: look_at(dir).unwrap_or_default(), changing: BTreeMap::new() }
    }

    /// Lets a plugin count as one that has changed, because it could not be taken.
    pub fn forget(&mut self, name: &str) {
        self.taken.remove(name);
    }

    /// Looks again: the plugins that have changed and come to rest, by name. Each is told once.
    pub fn look(&mut self, now: Instant) -> io::Result<Vec<String>> {
        let seen = look_at(&self.dir)?;
        let names = seen.keys().chain(self.taken.keys());
        let different = names.filter(|name| seen.get(*name) != self.taken.get(*name));
        let changing = different.map(|name| {
            let look = seen.get(name).copied();
            let since = match self.changing.get(name) {
                Some((before, since)) if *before == look => *since,
                _ => now,
            };
            (name.clone(), (look, since))
        });
        self.changing = changing.collect();
        let at_rest = |(_, since): &(Option<Look>, Instant)| now.duration_since(*since) >= SETTLED_AFTER;
        let settled = self.changing.extract_if(.., |_, change| at_rest(change));
        let mut names = Vec::new();
        for (name, (look, _)) in settled {
            match look {
                Some(look) => self.taken.insert(name.clone(), look),
                None => self.taken.remove(&name),
            };
            names.push(name);
        }
        Ok(names)
    }
}

fn look_at(dir: &Path) -> io::Result<BTreeMap<String, Look>> {
    let mut looks = BTreeMap::new();
    for entry in dir.read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if super::is_plugin_folder(&entry)? {
            let mut hasher = DefaultHasher::new();
            let mut left = FILES_MAX;
            describe(&entry.path(), 0, &mut left, &mut hasher);
            looks.insert(name, hasher.finish());
        }
    }
    Ok(looks)
}

/// What cannot be looked at is a part of how it looks: it may have been removed this moment.
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
    fn what_has_changed_and_come_to_rest_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("github");
        fs::create_dir(&plugin).unwrap();
        fs::write(plugin.join("monstrum.yaml"), "name: github").unwrap();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut watch = Watch::new(dir.path());
        assert_eq!(watch.look(at(0)).unwrap(), NONE);
        assert_eq!(watch.look(at(10)).unwrap(), NONE);

        fs::write(plugin.join("monstrum.yaml"), "name: github, version: 2").unwrap();
        assert_eq!(watch.look(at(11)).unwrap(), NONE);
        assert_eq!(watch.look(at(12)).unwrap(), ["github"]);
        assert_eq!(watch.look(at(13)).unwrap(), NONE);

        watch.forget("github");
        assert_eq!(watch.look(at(13)).unwrap(), NONE);
        assert_eq!(watch.look(at(14)).unwrap(), ["github"]);

        fs::remove_dir_all(&plugin).unwrap();
        assert_eq!(watch.look(at(15)).unwrap(), NONE);
        assert_eq!(watch.look(at(16)).unwrap(), ["github"]);
        assert_eq!(watch.look(at(17)).unwrap(), NONE);
    }

    #[test]
    fn a_folder_that_is_being_copied_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(dir.path());
        let plugin = dir.path().join("slow");
        fs::create_dir(&plugin).unwrap();
        for step in 0..20_u64 {
            fs::write(plugin.join("plugin.wasm"), vec![0; 1 + step as usize]).unwrap();
            assert_eq!(watch.look(start + Duration::from_millis(900 * step)).unwrap(), NONE, "{step}");
        }
        assert_eq!(watch.look(start + Duration::from_millis(900 * 19 + 1000)).unwrap(), ["slow"]);
    }

    #[test]
    fn hidden_folders_and_files_are_no_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(dir.path());
        fs::create_dir(dir.path().join(".staged")).unwrap();
        fs::write(dir.path().join("notes.txt"), "").unwrap();
        assert_eq!(watch.look(start).unwrap(), NONE);
        assert_eq!(watch.look(start + SETTLED_AFTER * 2).unwrap(), NONE);
    }

    #[test]
    fn a_folder_that_cannot_be_read_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        fs::create_dir_all(plugins.join("github")).unwrap();
        let start = Instant::now();
        let mut watch = Watch::new(&plugins);
        fs::rename(&plugins, dir.path().join("away")).unwrap();
        assert!(watch.look(start).is_err());
        fs::rename(dir.path().join("away"), &plugins).unwrap();
        assert_eq!(watch.look(start + SETTLED_AFTER * 2).unwrap(), NONE);
    }
}
