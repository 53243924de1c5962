//! Finds snapshot files that no test uses any more. Without this check, a reader could believe that a test covers an
//! unused snapshot.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repository::Repository;

/// The folders with sources, which also contain the snapshots.
const FOLDERS: [&str; 4] = ["host", "plugins-wasm", "sdk-guest", "tests"];

/// The snapshots that a run of the tests uses.
pub(crate) struct Snapshots {
    /// A file to which insta writes a line for each snapshot file that a test uses.
    pub(crate) seen: PathBuf,
}

impl Snapshots {
    /// The environment variable in which insta expects the path of the file `seen`.
    pub(crate) const VARIABLE: &str = "INSTA_SNAPSHOT_REFERENCES_FILE";

    /// Creates `seen` as an empty file. Call this function before the tests run.
    pub(crate) fn begin(repository: &Repository) -> Result<Snapshots> {
        let seen = repository.target("snapshots-seen");
        fs::write(&seen, "").with_context(|| format!("cannot write {}", seen.display()))?;
        Ok(Snapshots { seen })
    }

    /// Fails if the repository contains a snapshot file that no test has used.
    pub(crate) fn all_are_seen(&self, repository: &Repository) -> Result<()> {
        let seen = fs::read_to_string(&self.seen).with_context(|| format!("cannot read {}", self.seen.display()))?;
        let mut files = Vec::new();
        for folder in FOLDERS {
            collect(&repository.path(folder), &mut files)?;
        }
        let unseen = unseen(&files, &seen);
        if !unseen.is_empty() {
            bail!("no test uses these snapshot files; delete the files:\n{}", unseen.join("\n"));
        }
        Ok(())
    }
}

fn unseen(files: &[PathBuf], seen: &str) -> Vec<String> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let seen: BTreeSet<PathBuf> = seen.lines().map(|line| real(Path::new(line))).collect();
    files.iter().filter(|file| !seen.contains(&real(file))).map(|file| file.display().to_string()).collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let path = entry.path();
        if entry.file_type().with_context(|| format!("cannot read {}", path.display()))?.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                collect(&path, found)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "snap") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_that_no_test_looks_at_is_named() {
        let files = ["/tests/a.snap", "/tests/b.snap"].map(PathBuf::from);
        assert_eq!(unseen(&files, "/tests/a.snap\n/tests/a.snap\n"), ["/tests/b.snap"]);
        assert_eq!(unseen(&files, "/tests/b.snap\n/tests/a.snap\n"), [""; 0]);
    }
}
