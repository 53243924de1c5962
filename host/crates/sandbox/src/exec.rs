//! Running a command.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;

/// The longest time that a command may be given (requirement S3).
pub const EXEC_TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// What it is given where nobody says.
pub const EXEC_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// What is kept of each stream, the newest bytes: far more than any model reads, little enough to hold in memory.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// A command for the shell of a sandbox. Its standard input is empty.
#[derive(Debug, Clone)]
pub struct ExecRequest {
    /// What `bash -c` is given.
    pub command: String,
    /// Where it starts; the workspace where nobody says. A relative path is relative to the workspace.
    pub cwd: Option<String>,
    /// Added to the environment that the sandbox has.
    pub env: Vec<(String, String)>,
    /// When it is ended with everything that it has started. At most [`EXEC_TIMEOUT_MAX`].
    pub timeout: Duration,
    /// What is kept of each stream.
    pub output_bytes_max: usize,
}

impl ExecRequest {
    /// A command under the defaults.
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

    /// The same with another time limit.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> ExecRequest {
        self.timeout = timeout;
        self
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Termination {
    /// By itself.
    Exited,
    /// By a signal.
    Signalled,
    /// Its time was up; exit code 124.
    TimedOut,
    /// By the memory limit of its sandbox; exit code 137.
    OutOfMemory,
    /// Whoever asked for it went away.
    Cancelled,
    /// With its sandbox, or nobody knows: it may have done anything.
    Lost,
}

impl Termination {
    /// The word for it in every answer.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Termination::Exited => "exited",
            Termination::Signalled => "signalled",
            Termination::TimedOut => "timed_out",
            Termination::OutOfMemory => "out_of_memory",
            Termination::Cancelled => "cancelled",
            Termination::Lost => "lost",
        }
    }
}

/// What a command wrote to one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The newest bytes, as text: what is not UTF-8 became U+FFFD.
    pub text: String,
    /// How much it wrote.
    pub bytes: u64,
    /// Whether older bytes are missing.
    pub is_truncated: bool,
}

/// How a command went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    pub stdout: Output,
    pub stderr: Output,
    /// As the shell would say it: 128 and the signal's number for a signal.
    pub exit_code: i32,
    pub termination: Termination,
    pub duration: Duration,
}

impl ExecOutput {
    /// Whether bytes of either stream are missing.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.stdout.is_truncated || self.stderr.is_truncated
    }
}

/// Which stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of output, as it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    pub bytes: Bytes,
}

/// Where pieces go while the command runs. A reader that is slow slows the command; one that is gone is no fault.
pub type Feed = mpsc::Sender<Chunk>;
