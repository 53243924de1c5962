//! The sandbox of a test, with its files and the prepared results of commands.

use std::collections::BTreeMap;

use super::Command;
use crate::error::Failure;
use crate::sandbox::ExecResult;
use crate::wit::monstrum::plugin::{sandbox as wire, types};

/// The directory of the files.
const WORKSPACE: &str = "/workspace";
/// The maximum length of a path.
const PATH_BYTES_MAX: usize = 4096;
const ABSENT: &str = "no such file or directory";

/// The files and prepared results, and the recorded commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Sandbox {
    pub(super) answers: Vec<(String, Result<ExecResult, Failure>)>,
    /// The files by their paths relative to the workspace.
    pub(super) files: BTreeMap<String, Vec<u8>>,
    pub(super) commands: Vec<Command>,
}

impl Sandbox {
    pub(super) fn exec(&mut self, command: &str, timeout_s: Option<u32>) -> Result<wire::ExecResult, types::Failure> {
        let Some(found) = self.answers.iter().position(|(known, _)| known == command) else {
            panic!("unexpected command {command}; the remaining results are:\n{}", self.list());
        };
        self.commands.push(Command { command: command.to_owned(), timeout_s });
        let ExecResult { stdout, stderr, exit_code, termination, truncated } =
            self.answers.remove(found).1.map_err(|failure| types::Failure {
                code: failure.code.as_str().to_owned(),
                message: failure.message,
                sent: failure.sent,
                retry_after_ms: failure.retry_after_ms,
            })?;
        // `ExecResult::default()` has an empty termination, which stands for `exited`.
        let termination = if termination.is_empty() { "exited".to_owned() } else { termination };
        Ok(wire::ExecResult { stdout, stderr, exit_code, termination, truncated })
    }

    /// Adds a file to the sandbox.
    pub(super) fn write(&mut self, path: &str, content: Vec<u8>) -> Result<(), types::Failure> {
        let path = relative(path)?;
        if self.is_directory(&path) {
            return Err(invalid(&path, "it is a directory"));
        }
        let mut parents = path.match_indices('/').map(|(end, _)| &path[..end]);
        if parents.any(|parent| self.files.contains_key(parent)) {
            return Err(invalid(&path, "a part of the path is not a directory"));
        }
        self.files.insert(path, content);
        Ok(())
    }

    /// Lists the files and directories that are directly in a directory.
    pub(super) fn entries(&self, folder: &str) -> Result<Vec<wire::Entry>, types::Failure> {
        let folder = relative(folder)?;
        if !self.is_directory(&folder) {
            let is_file = self.files.contains_key(&folder);
            return Err(invalid(&folder, if is_file { "it is not a directory" } else { ABSENT }));
        }
        let mut entries: Vec<wire::Entry> = Vec::new();
        for (path, content) in &self.files {
            let Some(rest) = below(path, &folder) else { continue };
            let (name, kind) = match rest.split_once('/') {
                Some((name, _)) => (name, wire::EntryKind::Directory),
                None => (rest, wire::EntryKind::File),
            };
            if entries.iter().all(|entry| entry.name != name) {
                let size = if kind == wire::EntryKind::File { content.len() } else { 0 };
                let size = u64::try_from(size).unwrap_or(u64::MAX);
                let path = format!("{}/{name}", absolute(&folder));
                entries.push(wire::Entry { name: name.to_owned(), path, kind, size });
            }
        }
        Ok(entries)
    }

    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, types::Failure> {
        let path = relative(path)?;
        let found = self.files.get(&path).cloned();
        found.ok_or_else(|| invalid(&path, if self.is_directory(&path) { "it is a directory" } else { ABSENT }))
    }

    /// Returns whether a path, which is relative to the workspace, is the workspace itself or a directory that contains
    /// a file.
    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.files.keys().any(|file| below(file, path).is_some())
    }

    /// Formats the commands as a list for a panic message.
    pub(super) fn list(&self) -> String {
        self.answers.iter().map(|(command, _)| format!("  {command}\n")).collect()
    }
}

/// Resolves a path, and returns it relative to the workspace.
fn relative(path: &str) -> Result<String, types::Failure> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(failure(format!("the path must be 1 to {PATH_BYTES_MAX} bytes long and must not contain NUL")));
    }
    let leaves = || failure(format!("{path}: leaves {WORKSPACE}"));
    let mut parts = Vec::new();
    let below = match path.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ if path.starts_with('/') => return Err(leaves()),
        _ => path,
    };
    for part in below.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop().ok_or_else(leaves)?;
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// Returns the part of `path` below `directory`, or `None` if `path` is not below `directory`. Both paths are relative
/// to the workspace.
fn below<'p>(path: &'p str, directory: &str) -> Option<&'p str> {
    if directory.is_empty() { Some(path) } else { path.strip_prefix(directory)?.strip_prefix('/') }
}

fn absolute(relative: &str) -> String {
    if relative.is_empty() { WORKSPACE.to_owned() } else { format!("{WORKSPACE}/{relative}") }
}

fn invalid(path: &str, what: &str) -> types::Failure {
    failure(format!("{}: {what}", absolute(path)))
}

/// Returns the failure for an invalid path. `sent` is false, as on the host.
fn failure(message: String) -> types::Failure {
    types::Failure { code: "invalid".to_owned(), message, sent: false, retry_after_ms: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox() -> Sandbox {
        let mut sandbox = Sandbox::default();
        for path in ["a/b/c", "/workspace/a/b/d", "./a/e", "a/../f"] {
            sandbox.write(path, b"x".to_vec()).unwrap();
        }
        sandbox
    }

    #[test]
    fn a_directory_lists_its_files_and_directories_once() {
        let names = |folder: &str| -> Vec<String> {
            let entries = sandbox().entries(folder).unwrap();
            entries.into_iter().map(|entry| format!("{} {}", entry.path, entry.size)).collect()
        };
        for workspace in [".", "/workspace", "/workspace/", "a/.."] {
            assert_eq!(names(workspace), ["/workspace/a 0", "/workspace/f 1"], "{workspace}");
        }
        for folder in ["a", "a/", "/workspace/a"] {
            assert_eq!(names(folder), ["/workspace/a/b 0", "/workspace/a/e 1"], "{folder}");
        }
        assert_eq!(Sandbox::default().entries(".").unwrap().len(), 0);
    }

    #[test]
    fn a_path_names_the_same_file_in_each_form() {
        for path in ["a/b/c", "/workspace/a/b/c", "./a//b/./c", "a/e/../b/c"] {
            assert_eq!(sandbox().read(path).unwrap(), b"x", "{path}");
        }
        assert_eq!(sandbox().files.into_keys().collect::<Vec<_>>(), ["a/b/c", "a/b/d", "a/e", "f"]);
    }

    #[test]
    fn paths_fail_like_those_of_the_host() {
        let is_invalid = |failed: types::Failure, message: &str| {
            let expected = ("invalid", message, false, None);
            assert_eq!((failed.code.as_str(), &*failed.message, failed.sent, failed.retry_after_ms), expected);
        };
        let absent = "/workspace/absent: no such file or directory";
        is_invalid(sandbox().read("absent").unwrap_err(), absent);
        is_invalid(sandbox().entries("absent").unwrap_err(), absent);
        is_invalid(sandbox().entries("a/e").unwrap_err(), "/workspace/a/e: it is not a directory");
        for read in ["a", "."] {
            assert!(sandbox().read(read).unwrap_err().message.ends_with(": it is a directory"), "{read}");
        }
        is_invalid(sandbox().write("a/b", Vec::new()).unwrap_err(), "/workspace/a/b: it is a directory");
        let below_file = "/workspace/f/x: a part of the path is not a directory";
        is_invalid(sandbox().write("f/x", Vec::new()).unwrap_err(), below_file);
        for outside in ["..", "../x", "a/../../x", "/etc/passwd", "/workspaces", "/"] {
            is_invalid(sandbox().read(outside).unwrap_err(), &format!("{outside}: leaves /workspace"));
        }
        for path in ["", "a\0b", &"x".repeat(4097)] {
            is_invalid(
                sandbox().write(path, Vec::new()).unwrap_err(),
                "the path must be 1 to 4096 bytes long and must not contain NUL",
            );
        }
    }
}
