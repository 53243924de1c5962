//! Commands and their results.

use std::time::Duration;

use bytes::Bytes;
use monstrum_types::words;
use serde::Serialize;
use tokio::sync::mpsc;

/// The maximum timeout of a command.
pub const EXEC_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// The timeout of a command whose caller sets none.
pub const EXEC_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// The maximum number of bytes that are kept for each output stream. The newest bytes are kept. The maximum is far more
/// than a model reads, and small enough to hold in memory.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// A command for the shell of a sandbox. Its standard input is empty.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// The argument of `bash -c`.
    pub command: String,
    /// The working folder. A relative path is relative to the workspace, which is also the default.
    pub cwd: Option<String>,
    /// Variables in addition to the environment of the sandbox.
    pub env: Vec<(String, String)>,
    /// The time after which the command and every process that it has started are killed. At most [`EXEC_TIMEOUT_MAX`].
    pub timeout: Duration,
    /// The number of bytes that are kept for each output stream. At most [`OUTPUT_BYTES_MAX`].
    pub output_bytes_max: usize,
}

impl ExecRequest {
    /// Creates a request for `command` with the default values.
    #[must_use]
    pub fn new(command: impl Into<String>) -> ExecRequest {
        ExecRequest {
            command: command.into(),
            cwd: None,
            env: Vec::new(),
            timeout: EXEC_TIMEOUT_DEFAULT,
            output_bytes_max: OUTPUT_BYTES_MAX,
        }
    }

    /// Sets the timeout.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> ExecRequest {
        self.timeout = timeout;
        self
    }
}

words! {
    /// How a command ended.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Termination {
        /// The command exited.
        Exited = "exited",
        /// A signal ended the command.
        Signalled = "signalled",
        /// The command exceeded its timeout; exit code 124.
        TimedOut = "timed_out",
        /// The kernel killed the command because of the sandbox's memory limit; exit code 137.
        OutOfMemory = "out_of_memory",
        /// The caller disconnected.
        Cancelled = "cancelled",
        /// The command ended with its sandbox, or its result is unknown. The command may have had any effect.
        Lost = "lost",
    }
}

/// The output of a command on one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The newest bytes as text; invalid UTF-8 is replaced by U+FFFD.
    pub text: String,
    /// The number of bytes that the command wrote.
    pub bytes: u64,
    /// Whether older bytes are missing.
    pub is_truncated: bool,
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    pub stdout: Output,
    pub stderr: Output,
    /// The exit code; 128 plus the signal's number if a signal ended the command, as in a shell.
    pub exit_code: i32,
    pub termination: Termination,
    pub duration: Duration,
}

impl ExecOutput {
    /// Whether bytes of either stream were dropped.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.stdout.is_truncated || self.stderr.is_truncated
    }
}

/// An output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of output, sent while the command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    pub bytes: Bytes,
}

/// A channel that receives pieces of output while the command runs. A slow receiver slows the command down. A closed
/// receiver has no effect.
pub type Feed = mpsc::Sender<Chunk>;
