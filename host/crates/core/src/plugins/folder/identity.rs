//! The identity of the files of a plugin's folder: whether a file is still the file that was read.
//!
//! The kernel sets the time of the last change (ctime) of a file, and no program can set it back. A program that cannot
//! write the folder therefore cannot change a file without changing its identity.

use monstrum_types::UtcMillis;
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

/// The age that a change must have before a read, so that a later change gets another time. Kernels advance the time of
/// files at least every 10 ms.
const SETTLED_AFTER_MS: i64 = 50;
/// The same age on file systems that record whole seconds, of which FAT records every second one.
const SETTLED_AFTER_COARSE_MS: i64 = 2_000;

/// The identity of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    inode: u64,
    bytes: i64,
    changed_s: i64,
    changed_ns: u32,
}

impl FileId {
    pub(super) fn of(stat: &Stat) -> FileId {
        let changed_ns = u32::try_from(stat.st_ctime_nsec).unwrap_or(0);
        FileId { inode: stat.st_ino, bytes: stat.st_size, changed_s: stat.st_ctime, changed_ns }
    }

    /// Returns whether a change after `now` would give the file another identity.
    fn is_settled(&self, now: UtcMillis) -> bool {
        let age_ms = if self.changed_ns == 0 { SETTLED_AFTER_COARSE_MS } else { SETTLED_AFTER_MS };
        let changed_ms = self.changed_s.saturating_mul(1000).saturating_add(i64::from(self.changed_ns / 1_000_000));
        changed_ms.saturating_add(age_ms) < now.0
    }
}

/// A file or folder that was opened in a plugin's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// The path in the plugin's folder, which is empty for the folder itself.
    pub(crate) path: String,
    pub(super) is_folder: bool,
    /// The identity, or `None` if the path did not exist.
    pub(crate) id: Option<FileId>,
}

impl Opened {
    /// Returns whether a change after `now` would be detected.
    pub(super) fn is_settled(&self, now: UtcMillis) -> bool {
        self.id.is_none_or(|id| id.is_settled(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recent_change_is_not_settled() {
        let id = |changed_s, changed_ns| FileId { inode: 7, bytes: 8, changed_s, changed_ns };
        let now = UtcMillis(1_800_000_010_000);
        for (id, is_settled) in [
            (id(1_800_000_009, 949_000_000), true),
            (id(1_800_000_009, 951_000_000), false),
            (id(1_800_000_011, 1), false),
            (id(1_800_000_008, 0), false),
            (id(1_800_000_007, 0), true),
        ] {
            assert_eq!(id.is_settled(now), is_settled, "{id:?}");
        }
    }
}
