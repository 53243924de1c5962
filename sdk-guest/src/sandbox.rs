//! The Linux sandbox of the conversation in which the call runs.
//!
//! A plugin can use the sandbox if the manifest lists the capability `sandbox` and the bot has `use_agent_sandbox`
//! enabled. Each use is a child call in the audit and passes the same checks as a call of the bot. Calls without a
//! conversation have no sandbox. The sandbox is created on first use; files under `/workspace` are kept for the next
//! call of the same conversation. Commands are limited to the remaining time of the parent call.

use crate::error::Failure;
use crate::host;
use crate::wit::monstrum::plugin::sandbox as wire;

/// The result of a command. A command that fails or times out is a result, not a [`Failure`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecResult {
    /// The newest part of the standard output, at most 1 MiB.
    pub stdout: String,
    /// The newest part of the standard error, at most 1 MiB.
    pub stderr: String,
    /// The exit code as a shell reports it: 124 after a timeout, 128 plus the signal number after a signal.
    pub exit_code: i32,
    /// How the command ended: `exited`, `signalled`, `timed_out`, `out_of_memory`, `cancelled` or `lost`.
    pub termination: String,
    /// Whether older output is missing.
    pub truncated: bool,
}

impl ExecResult {
    /// Returns whether the command exited with code 0. A timeout or a signal is not a success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.exit_code == 0 && self.termination == "exited"
    }
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, a pipe, a socket or a device. A listing does not follow links.
    Other,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last component of the path.
    pub name: String,
    /// The absolute path in the sandbox.
    pub path: String,
    /// The kind of the entry.
    pub kind: EntryKind,
    /// The size in bytes.
    pub size: u64,
}

/// Runs a command with bash in `/workspace`, for at most 60 seconds.
///
/// ```
/// use monstrum_sdk::{Error, Request, Value, json, sandbox};
/// # use monstrum_sdk::{Executor, Operations, operations, testing::Call};
/// # struct Plugin;
/// # impl Executor for Plugin { const OPERATIONS: Operations = operations! { "report.render" => render }; }
///
/// fn render(request: &Request) -> Result<Value, Error> {
///     sandbox::write_file("report.md", request.param::<String>("text")?.as_bytes())?;
///     let ran = sandbox::exec("wc -w < report.md")?;
///     Ok(json!({ "words": ran.stdout.trim() }))
/// }
///
/// let words = sandbox::ExecResult { stdout: "2\n".to_owned(), ..Default::default() };
/// let run = Call::new("report_render", "report.render")
///     .param("text", "two words")
///     .command("wc -w < report.md", words)
///     .run(&Plugin);
/// assert_eq!(run.files["report.md"], b"two words");
/// assert_eq!(run.success(), json!({ "words": "2" }));
/// ```
///
/// # Errors
/// Returns an error if the sandbox cannot be used: `unavailable` if the call has no conversation or the host has no
/// sandbox provider, `denied` if the bot may not use a sandbox.
pub fn exec(command: &str) -> Result<ExecResult, Failure> {
    run(command, None)
}

/// Runs a command like [`exec`], with a time limit of 1 to 300 seconds.
///
/// # Errors
/// Returns the errors of [`exec`].
pub fn exec_within(command: &str, timeout_s: u32) -> Result<ExecResult, Failure> {
    run(command, Some(timeout_s))
}

fn run(command: &str, timeout_s: Option<u32>) -> Result<ExecResult, Failure> {
    let wire::ExecResult { stdout, stderr, exit_code, termination, truncated } =
        host::sandbox_exec(command, timeout_s)?;
    Ok(ExecResult { stdout, stderr, exit_code, termination, truncated })
}

/// Lists a directory. The path is absolute and below `/workspace`, or relative to `/workspace`.
///
/// # Errors
/// Returns the errors of [`exec`], `invalid` if the path is not a directory, and `too_large` if the directory has more
/// than 10 000 entries.
pub fn list_files(path: &str) -> Result<Vec<Entry>, Failure> {
    let entries = host::sandbox_list(path)?;
    Ok(entries.into_iter().map(Entry::from).collect())
}

/// Reads a file of at most 16 MiB.
///
/// # Errors
/// Returns the errors of [`exec`], `invalid` if the path is not a file, and `too_large` if the file is larger.
pub fn read_file(path: &str) -> Result<Vec<u8>, Failure> {
    Ok(host::sandbox_read(path)?)
}

/// Writes a file of at most 16 MiB atomically and creates missing directories.
///
/// # Errors
/// Returns the errors of [`exec`], `invalid` for an invalid path, `too_large` if the content is larger, and `limit` if
/// the sandbox is full.
pub fn write_file(path: &str, content: &[u8]) -> Result<(), Failure> {
    Ok(host::sandbox_write(path, content)?)
}

impl From<wire::Entry> for Entry {
    fn from(wire::Entry { name, path, kind, size }: wire::Entry) -> Self {
        let kind = match kind {
            wire::EntryKind::File => EntryKind::File,
            wire::EntryKind::Directory => EntryKind::Directory,
            wire::EntryKind::Other => EntryKind::Other,
        };
        Entry { name, path, kind, size }
    }
}
