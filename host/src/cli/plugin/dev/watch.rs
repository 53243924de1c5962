//! Detects saved files by polling the sources a few times a second. Polling works on every file system without support
//! from the operating system, and the folder of a plugin is small.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The interval of polling.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The time for which files must be unchanged before a save counts as complete. Editors and checkouts write several
/// files one after the other.
const QUIET: Duration = Duration::from_millis(200);
/// The maximum number of watched files. Plugins have fewer source files. Further files are ignored.
const FILES_MAX: usize = 10_000;
/// Files and folders that builds write and that are not watched.
const BUILT: [&str; 4] = ["target", "plugin.wasm", "bindings.rs", "Cargo.lock"];

/// The modification time and the length of each file.
type Files = BTreeMap<PathBuf, (SystemTime, u64)>;

/// The state of a plugin's sources at the last poll.
pub(super) struct Watch {
    dir: PathBuf,
    seen: Files,
}

impl Watch {
    pub(super) fn new(dir: &Path) -> Watch {
        Watch { dir: dir.to_owned(), seen: files(dir) }
    }

    /// Waits until the files differ from the last poll and have been unchanged for a moment. Saves between the last
    /// poll and this call also count.
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

/// Lists the watched files. Omits a file that another process deletes during the listing.
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
            // This does not follow symbolic links, which could form a cycle.
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
