//! The Linux sandbox of the conversation in which the call runs.
//!
//! It takes the capability `sandbox` in the manifest and a bot whose switch `use_agent_sandbox` is on: everything here is
//! a call of its own in the audit, judged like a call of the bot. A call that belongs to no conversation has no sandbox.
//! The sandbox is made when it is first used; files under `/workspace` stay for the next call of the same conversation.
//! Whatever runs there runs within the time that the calling call has left.

use crate::error::Failure;
use crate::host;
use crate::wit::monstrum::plugin::sandbox as wire;

/// How a command went. One that fails, or takes too long, is an answer and no [`Failure`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecResult {
    /// What it wrote, the newest MiB of it.
    pub stdout: String,
    /// The same of its errors.
    pub stderr: String,
    /// As a shell would say it: 124 where its time was up, 128 and more for a signal.
    pub exit_code: i32,
    /// `exited`, `signalled`, `timed_out`, `out_of_memory`, `cancelled` or `lost`.
    pub termination: String,
    /// Whether older output is missing.
    pub truncated: bool,
}

impl ExecResult {
    /// Whether it ended by itself with exit code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.exit_code == 0 && self.termination == "exited"
    }
}

/// What an entry of a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A link, a pipe, a socket: what is never followed nor opened.
    Other,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without its folder.
    pub name: String,
    /// Absolute, inside the sandbox.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// In bytes.
    pub size: u64,
}

/// Runs a command with bash in `/workspace`; it has 60 seconds.
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
/// The sandbox cannot be used: `unavailable` without a conversation or a provider, `denied` where the bot has none.
pub fn exec(command: &str) -> Result<ExecResult, Failure> {
    run(command, None)
}

/// The same with another time limit, 1 to 300 seconds.
///
/// # Errors
/// As for [`exec`].
pub fn exec_within(command: &str, timeout_s: u32) -> Result<ExecResult, Failure> {
    run(command, Some(timeout_s))
}

fn run(command: &str, timeout_s: Option<u32>) -> Result<ExecResult, Failure> {
    let wire::ExecResult { stdout, stderr, exit_code, termination, truncated } =
        host::sandbox_exec(command, timeout_s)?;
    Ok(ExecResult { stdout, stderr, exit_code, termination, truncated })
}

/// Lists a folder. Paths are absolute and beneath `/workspace`, or relative to it.
///
/// # Errors
/// As for [`exec`]; `invalid` for what is no folder there, `too_large` for one with more than 10 000 entries.
pub fn list_files(path: &str) -> Result<Vec<Entry>, Failure> {
    let entries = host::sandbox_list(path)?;
    Ok(entries.into_iter().map(Entry::from).collect())
}

/// Reads a file of at most 16 MiB.
///
/// # Errors
/// As for [`exec`]; `invalid` for what is no file there, `too_large` for a larger one.
pub fn read_file(path: &str) -> Result<Vec<u8>, Failure> {
    Ok(host::sandbox_read(path)?)
}

/// Writes a file of at most 16 MiB, whole or not at all; missing folders are made.
///
/// # Errors
/// As for [`exec`]; `invalid` for a path that cannot be one, `too_large` for a larger content, `limit` where the sandbox is full.
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
