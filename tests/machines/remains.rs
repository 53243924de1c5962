//! Searches this machine for remains of sandboxes: control groups, loop devices, processes and image files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};

/// The maximum time for the keepers of a dead server to clean up. Writing to disk takes most of this time.
const GONE_MAX: Duration = Duration::from_secs(90);

/// The folder and the tag that identify the remains of one server.
pub(super) struct Remains {
    folder: PathBuf,
    tag: String,
}

impl Remains {
    pub(super) fn of(data_dir: &Path) -> Remains {
        let folder = data_dir.join("sandbox");
        let tag = fs::read_to_string(folder.join("tag")).expect("the provider has a tag");
        Remains { folder, tag }
    }

    /// Returns a description of each control group, loop device and process that exists now.
    pub(super) fn found(&self) -> Vec<String> {
        let folder = self.folder.to_str().expect("a path that is text");
        let mut found = Vec::new();
        for trees in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/cpu"] {
            let group = Path::new(trees).join(format!("monstrum-{}", self.tag));
            if group.exists() {
                found.push(format!("control group {}", group.display()));
            }
        }
        for device in entries(Path::new("/sys/block")) {
            let file = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
            if file.starts_with(folder) {
                found.push(format!("loop device {} of {}", device.display(), file.trim_end()));
            }
        }
        for process in entries(Path::new("/proc")).filter(|path| path.join("cmdline").exists()) {
            let mounts = fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            let files = entries(&process.join("fd")).filter_map(|fd| fs::read_link(fd).ok());
            let holds_image = files.into_iter().any(|file| file.starts_with(self.folder.join("boxes")));
            if mounts.contains(folder) || holds_image {
                let name = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
                found.push(format!("process {} `{}`", process.display(), name.replace('\0', " ")));
            }
        }
        found
    }

    /// Returns the files of images that are incomplete or partly removed.
    pub(super) fn half_files(&self) -> Vec<PathBuf> {
        let boxes = entries(&self.folder.join("boxes")).flat_map(|folder| entries(&folder).collect::<Vec<_>>());
        boxes.filter(|path| path.extension().is_some()).collect()
    }

    /// Returns the number of images.
    pub(super) fn images(&self) -> usize {
        entries(&self.folder.join("boxes")).map(|folder| entries(&folder).count()).sum()
    }

    /// Waits until no remains are left, and fails after [`GONE_MAX`].
    pub(super) async fn gone(&self) -> Result<()> {
        let until = tokio::time::Instant::now() + GONE_MAX;
        loop {
            let found = self.found();
            if found.is_empty() {
                return Ok(());
            }
            if tokio::time::Instant::now() > until {
                bail!("these remains still exist: {found:#?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Counts the processes on this machine whose arguments end with `marker`.
pub(super) fn marked(marker: &str) -> usize {
    let arguments = entries(Path::new("/proc")).filter_map(|path| fs::read(path.join("cmdline")).ok());
    arguments.filter(|text| String::from_utf8_lossy(text).replace('\0', " ").trim_end().ends_with(marker)).count()
}

/// Returns the entries of a folder. A missing folder has no entries.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
