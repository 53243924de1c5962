//! Whether an author has saved something: the sources are looked at a few times a second. That needs nothing of the
//! system and works on every file system, and a plugin's folder is small.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How soon a save is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Editors and checkouts save several files one after the other; this long nothing must have changed.
const QUIET: Duration = Duration::from_millis(200);
/// More files than the sources of a plugin have; the others are not looked at.
const FILES_MAX: usize = 10_000;
/// Files that builds write, not the author.
const BUILT: [&str; 4] = ["target", "plugin.wasm", "bindings.rs", "Cargo.lock"];

/// When each file was written, and how long it is.
type Files = BTreeMap<PathBuf, (SystemTime, u64)>;

/// The sources of a plugin, as they were when they were looked at last.
pub(super) struct Watch {
    dir: PathBuf,
    seen: Files,
}

impl Watch {
    pub(super) fn new(dir: &Path) -> Watch {
        Watch { dir: dir.to_owned(), seen: files(dir) }
    }

    /// Waits until something else is there than before, and has been for a moment. A save that came meanwhile counts.
    pub(super) async fn changed(&mut self) {
        loop {
            let found = files(&self.dir);
            if found != self.seen {
                self.seen = found;
                self.settled().await;
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn settled(&mut self) {
        loop {
            tokio::time::sleep(QUIET).await;
            let found = files(&self.dir);
            if found == self.seen {
                return;
            }
            self.seen = found;
        }
    }
}

/// A file that goes while it is looked at is one that is not there.
fn files(dir: &Path) -> Files {
    let mut found = Files::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            if is_hidden || BUILT.iter().any(|built| name == *built) || found.len() >= FILES_MAX {
                continue;
            }
            // Of the entry itself: a link could lead round in a circle.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if let Ok(written) = metadata.modified() {
                found.insert(entry.path(), (written, metadata.len()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_save_is_noticed_and_a_build_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), name).unwrap();
        std::fs::create_dir_all(folder.path().join("target/release")).unwrap();
        write("monstrum.yaml");
        let mut watch = Watch::new(folder.path());
        write("target/release/a.wasm");
        write("plugin.wasm");
        write(".swp");
        assert!(tokio::time::timeout(LOOK_EVERY * 2, watch.changed()).await.is_err(), "nothing was saved");
        write("lib.rs");
        watch.changed().await;
        std::fs::remove_file(folder.path().join("lib.rs")).unwrap();
        watch.changed().await;
    }
}
