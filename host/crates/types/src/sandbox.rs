//! The sandbox of a conversation, as a plugin uses it.

/// How a command went.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SandboxOutput {
    /// The newest of what it wrote, at most 1 MiB.
    pub stdout: String,
    /// The same.
    pub stderr: String,
    /// As a shell would say it.
    pub exit_code: i32,
    /// exited, signalled, timed_out, out_of_memory, cancelled or lost.
    pub termination: String,
    /// Whether older output is missing.
    pub is_truncated: bool,
}

/// What an entry of a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxEntryKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A link, a pipe, a socket.
    Other,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxEntry {
    /// Without its folder.
    pub name: String,
    /// Absolute, inside the sandbox.
    pub path: String,
    /// What it is.
    pub kind: SandboxEntryKind,
    /// In bytes.
    pub size: u64,
}
