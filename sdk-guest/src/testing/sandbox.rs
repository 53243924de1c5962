//! The sandbox of a test, with its files and the prepared results of commands.

use std::collections::BTreeMap;

use super::Command;
use crate::error::Failure;
use crate::sandbox::ExecResult;
use crate::wit::monstrum::plugin::{sandbox as wire, types};

/// The files and prepared results, and the recorded commands.
#[derive(Clone, Debug, Default)]
pub(super) struct Sandbox {
    pub(super) answers: Vec<(String, Result<ExecResult, Failure>)>,
    pub(super) files: BTreeMap<String, Vec<u8>>,
    pub(super) commands: Vec<Command>,
}

impl Sandbox {
    pub(super) fn exec(&mut self, command: &str, timeout_s: Option<u32>) -> Result<wire::ExecResult, types::Failure> {
        let Some(found) = self.answers.iter().position(|(known, _)| known == command) else {
            panic!("unexpected command {command}; the answers left are:\n{}", self.list());
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

    /// Lists the files and directories that are directly in a directory.
    pub(super) fn entries(&self, folder: &str) -> Vec<wire::Entry> {
        let prefix = match folder.trim_end_matches('/') {
            "" | "." => String::new(),
            folder => format!("{folder}/"),
        };
        let mut entries: Vec<wire::Entry> = Vec::new();
        for (path, content) in &self.files {
            let Some(rest) = path.strip_prefix(&prefix) else { continue };
            let (name, kind) = match rest.split_once('/') {
                Some((name, _)) => (name, wire::EntryKind::Directory),
                None => (rest, wire::EntryKind::File),
            };
            if entries.iter().all(|entry| entry.name != name) {
                let size = if kind == wire::EntryKind::File { content.len() } else { 0 };
                let size = u64::try_from(size).unwrap_or(u64::MAX);
                entries.push(wire::Entry { name: name.to_owned(), path: format!("{prefix}{name}"), kind, size });
            }
        }
        entries
    }

    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, types::Failure> {
        self.files.get(path).cloned().ok_or_else(|| types::Failure {
            code: "invalid".to_owned(),
            message: format!("{path}: no such file"),
            sent: true,
            retry_after_ms: None,
        })
    }

    /// Formats the commands as a list for a panic message.
    pub(super) fn list(&self) -> String {
        self.answers.iter().map(|(command, _)| format!("  {command}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_lists_its_files_and_folders_once() {
        let file = |path: &str| (path.to_owned(), vec![b'x']);
        let sandbox =
            Sandbox { files: [file("a/b/c"), file("a/b/d"), file("a/e"), file("f")].into(), ..Sandbox::default() };
        let names = |folder: &str| -> Vec<String> {
            sandbox.entries(folder).into_iter().map(|entry| format!("{} {}", entry.path, entry.size)).collect()
        };
        assert_eq!(names("."), ["a 0", "f 1"]);
        assert_eq!(names("a/"), ["a/b 0", "a/e 1"]);
        assert_eq!(names("absent"), Vec::<String>::new());
        assert_eq!(sandbox.read("absent").unwrap_err().code, "invalid");
    }
}
