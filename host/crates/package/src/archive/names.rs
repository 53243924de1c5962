//! Which names the files of a package may have: plain paths that mean one place on every system.

use std::collections::BTreeMap;

use super::NameFault;
use crate::limits::{DEPTH_MAX, PATH_BYTES_MAX};

/// What a path is taken by.
struct Taken {
    spelling: String,
    is_folder: bool,
    /// The archive has an entry of its own for it.
    is_listed: bool,
}

/// The names so far. Two that differ only in case are one: a file system may think so as well.
#[derive(Default)]
pub(super) struct Names(BTreeMap<String, Taken>);

impl Names {
    /// Takes the name of one entry; its path without the `/` at the end of a folder's.
    pub(super) fn take(&mut self, name: &[u8], is_folder: bool) -> Result<String, NameFault> {
        let path = check(name, is_folder)?;
        for (at, _) in path.match_indices('/') {
            self.claim(&path[..at], true, false)?;
        }
        self.claim(&path, is_folder, true)?;
        Ok(path)
    }

    fn claim(&mut self, path: &str, is_folder: bool, is_listed: bool) -> Result<(), NameFault> {
        // Names are ASCII, so this is all of case folding.
        let folded = path.to_ascii_lowercase();
        let Some(taken) = self.0.get_mut(&folded) else {
            self.0.insert(folded, Taken { spelling: path.to_owned(), is_folder, is_listed });
            return Ok(());
        };
        if taken.spelling != path {
            return Err(NameFault::Case { other: taken.spelling.clone() });
        }
        if taken.is_folder != is_folder {
            return Err(NameFault::FileAndFolder { path: path.to_owned() });
        }
        if is_listed && taken.is_listed || !is_folder {
            return Err(NameFault::Twice);
        }
        taken.is_listed |= is_listed;
        Ok(())
    }
}

fn check(name: &[u8], is_folder: bool) -> Result<String, NameFault> {
    if name.is_empty() || name.len() > PATH_BYTES_MAX {
        return Err(NameFault::Length);
    }
    if name.contains(&0) {
        return Err(NameFault::Nul);
    }
    if name.contains(&b'\\') {
        return Err(NameFault::Backslash);
    }
    if name.starts_with(b"/") || name.get(1) == Some(&b':') {
        return Err(NameFault::Absolute);
    }
    if name.iter().any(|byte| !(b' '..=b'~').contains(byte) || b":*?\"<>|".contains(byte)) {
        return Err(NameFault::Character);
    }
    let text = std::str::from_utf8(name).map_err(|_| NameFault::Character)?;
    let path = if is_folder { text.strip_suffix('/').unwrap_or(text) } else { text };
    for part in path.split('/') {
        if matches!(part, "" | "." | "..") {
            return Err(NameFault::Part);
        }
        // Some systems drop them, which makes one name of two.
        if part.ends_with(['.', ' ']) || part.starts_with(' ') {
            return Err(NameFault::Edge);
        }
    }
    if path.split('/').count() > DEPTH_MAX {
        return Err(NameFault::Depth);
    }
    Ok(path.to_owned())
}
