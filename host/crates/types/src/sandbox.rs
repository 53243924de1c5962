//! The sandbox of a conversation, as plugins see it.

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SandboxOutput {
    /// The last part of the standard output, at most 1 MiB.
    pub stdout: String,
    /// The last part of the standard error, at most 1 MiB.
    pub stderr: String,
    /// The exit code, as a shell reports it.
    pub exit_code: i32,
    /// How the command ended: `exited`, `signalled`, `timed_out`, `out_of_memory`, `cancelled` or `lost`.
    pub termination: String,
    /// Whether earlier output was discarded.
    pub is_truncated: bool,
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxEntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, a pipe or a socket.
    Other,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxEntry {
    /// The last component of the path.
    pub name: String,
    /// The absolute path in the sandbox.
    pub path: String,
    /// The kind of the entry.
    pub kind: SandboxEntryKind,
    /// The size in bytes.
    pub size: u64,
}
