//! Validation of file names in packages: names must be relative paths that have the same meaning on all systems.

use std::collections::BTreeMap;

use super::NameError;
use crate::limits::{DEPTH_MAX, PATH_BYTES_MAX};

/// A path that is already in use, as an entry or as a parent folder of an entry.
struct Taken {
    spelling: String,
    is_folder: bool,
    /// Whether the archive has an entry for the path itself, and not only for files below it.
    is_listed: bool,
}

/// The paths in use, keyed by their lower-case form because some file systems ignore case.
#[derive(Default)]
pub(super) struct Names(BTreeMap<String, Taken>);

impl Names {
    /// Adds the name of an entry and returns its path. The path of a folder has no trailing `/`.
    pub(super) fn take(&mut self, name: &[u8], is_folder: bool) -> Result<String, NameError> {
        let path = check(name, is_folder)?;
        for (at, _) in path.match_indices('/') {
            self.claim(&path[..at], true, false)?;
        }
        self.claim(&path, is_folder, true)?;
        Ok(path)
    }

    fn claim(&mut self, path: &str, is_folder: bool, is_listed: bool) -> Result<(), NameError> {
        // Names are ASCII, so ASCII lower case is complete case folding.
        let folded = path.to_ascii_lowercase();
        let Some(taken) = self.0.get_mut(&folded) else {
            self.0.insert(folded, Taken { spelling: path.to_owned(), is_folder, is_listed });
            return Ok(());
        };
        if taken.spelling != path {
            return Err(NameError::Case { other: taken.spelling.clone() });
        }
        if taken.is_folder != is_folder {
            return Err(NameError::FileAndFolder { path: path.to_owned() });
        }
        if is_listed && taken.is_listed || !is_folder {
            return Err(NameError::Twice);
        }
        taken.is_listed |= is_listed;
        Ok(())
    }
}

fn check(name: &[u8], is_folder: bool) -> Result<String, NameError> {
    if name.is_empty() || name.len() > PATH_BYTES_MAX {
        return Err(NameError::Length);
    }
    if name.contains(&0) {
        return Err(NameError::Nul);
    }
    if name.contains(&b'\\') {
        return Err(NameError::Backslash);
    }
    if name.starts_with(b"/") || name.get(1) == Some(&b':') {
        return Err(NameError::Absolute);
    }
    if name.iter().any(|byte| !(b' '..=b'~').contains(byte) || b":*?\"<>|".contains(byte)) {
        return Err(NameError::Character);
    }
    let text = std::str::from_utf8(name).map_err(|_| NameError::Character)?;
    let path = if is_folder { text.strip_suffix('/').unwrap_or(text) } else { text };
    for part in path.split('/') {
        if matches!(part, "" | "." | "..") {
            return Err(NameError::Part);
        }
        // Some systems drop these characters, so two different names would refer to the same file.
        if part.ends_with(['.', ' ']) || part.starts_with(' ') {
            return Err(NameError::Edge);
        }
    }
    if path.split('/').count() > DEPTH_MAX {
        return Err(NameError::Depth);
    }
    Ok(path.to_owned())
}
