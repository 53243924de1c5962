//! The interface of sandbox providers.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
pub use monstrum_types::SandboxNetwork as Network;
use monstrum_types::UtcMillis;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::exec::{ExecOutput, ExecRequest, Feed};
use crate::files::{ArchiveLimits, ByteStream, FileEntry};

/// The provider's name of a sandbox: `ms-{workspace}-{sandbox_id}`, which is unique across workspaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxName(String);

impl SandboxName {
    /// Returns the name of the sandbox `sandbox_id` (16 hex digits) of a workspace (a UUID).
    ///
    /// # Panics
    ///
    /// If the ids contain anything but lower-case hex digits and hyphens.
    #[must_use]
    pub fn new(workspace: impl fmt::Display, sandbox_id: &str) -> SandboxName {
        format!("ms-{workspace}-{sandbox_id}").parse().expect("a workspace's id and a sandbox's id make a name")
    }

    /// Whether the sandbox belongs to this workspace.
    #[must_use]
    pub fn is_of(&self, workspace: &str) -> bool {
        self.workspace() == Some(workspace)
    }

    /// Returns the id of the workspace.
    #[must_use]
    pub fn workspace(&self) -> Option<&str> {
        Some(self.0.strip_prefix("ms-")?.rsplit_once('-')?.0)
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxName {
    type Err = SandboxError;

    /// Accepts only names that can safely be used as the name of a file and of a control group.
    fn from_str(text: &str) -> Result<SandboxName, SandboxError> {
        let is_safe = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte) || byte == b'-';
        let rest = text.strip_prefix("ms-").unwrap_or_default();
        if rest.is_empty() || rest.len() > 64 || !rest.bytes().all(is_safe) {
            return Err(SandboxError::Invalid("not a valid sandbox name".to_owned()));
        }
        Ok(SandboxName(text.to_owned()))
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The resources of one sandbox. If a provider cannot enforce a limit, it rejects the sandbox or lists the limit as
/// degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Limits the processor time, in thousandths of a processor.
    pub cpu_millis: u32,
    pub memory_mib: u32,
    /// Limits the total size of the files that are kept: the files in /workspace and installed programs.
    pub disk_mib: u32,
    /// Limits the size of /tmp. The files in /tmp are in memory and are not kept.
    pub tmp_mib: u32,
    pub processes: u32,
    pub processes_per_exec: u32,
}

impl Default for Limits {
    /// Returns limits that allow one processor and enough memory to build a small project, and that leave capacity for
    /// other conversations.
    fn default() -> Self {
        Limits {
            cpu_millis: 1000,
            memory_mib: 1024,
            disk_mib: 2048,
            tmp_mib: 256,
            processes: 1024,
            processes_per_exec: 256,
        }
    }
}

/// The parameters for starting a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spec {
    pub limits: Limits,
    pub network: Network,
}

/// Whether [`SandboxProvider::ensure_running`] created the sandbox, resumed it, or found it running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ensured {
    Created,
    Resumed,
    AlreadyRunning,
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The sandbox is being created, resumed, stopped or deleted.
    Changing,
    Running,
    Stopped,
}

/// The state of a sandbox, as the provider reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    pub name: SandboxName,
    pub state: State,
    /// The number of running commands.
    pub execs: usize,
}

/// A limit that this machine cannot enforce, with the reason and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Degraded {
    /// The name of the limit, such as `cpu`.
    pub limit: String,
    pub reason: String,
    pub remedy: String,
}

/// The features of a provider on this machine. Operators see the features, and the system prompt describes them to the
/// model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The system in the sandbox, as the system names itself, such as `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// The installed programs among bash, python3, node, bun, git and curl.
    pub programs: Vec<String>,
    /// The networks that a sandbox can have.
    pub networks: Vec<Network>,
    /// Whether apt can install system packages if the sandbox has a network.
    pub can_install_system_packages: bool,
    pub degraded: Vec<Degraded>,
}

/// A provider of sandboxes. Any task may call any function at any time. Calls for the same sandbox wait for each other
/// if necessary.
#[async_trait]
pub trait SandboxProvider: Send + Sync {
    /// Returns the name of the provider, such as `embedded`. The name is stored in rows and shown to operators.
    fn name(&self) -> &'static str;

    /// Returns the features of the provider. If the provider cannot be used, the error names the reason and the remedy.
    fn capabilities(&self) -> Result<&Capabilities, SandboxError>;

    /// Checks that the provider can be used now.
    async fn health(&self) -> Result<(), SandboxError>;

    /// Starts the sandbox, creating it if necessary, and returns once the sandbox answers requests. Concurrent calls
    /// for one sandbox start it once.
    async fn ensure_running(&self, name: &SandboxName, spec: Spec) -> Result<Ensured, SandboxError>;

    /// Stops everything that runs in the sandbox and keeps its files. Does nothing if the sandbox does not exist.
    async fn stop(&self, name: &SandboxName) -> Result<(), SandboxError>;

    /// Stops everything that runs in the sandbox and deletes its files. Does nothing if the sandbox does not exist.
    async fn delete(&self, name: &SandboxName) -> Result<(), SandboxError>;

    /// Stops everything that runs in the sandbox and sets its files aside with the time `now`: [`Self::inspect`] and
    /// [`Self::list`] no longer report the sandbox. Does nothing if the sandbox does not exist.
    async fn set_aside(&self, name: &SandboxName, now: UtcMillis) -> Result<(), SandboxError>;

    /// Restores the files that were last set aside under this name at `since` or later, and returns whether such
    /// files existed. Never replaces an existing sandbox.
    async fn restore(&self, name: &SandboxName, since: UtcMillis) -> Result<bool, SandboxError>;

    /// Deletes the files that were set aside before `before`, and returns the number of their sandboxes.
    async fn delete_aside(&self, before: UtcMillis) -> Result<usize, SandboxError>;

    /// Returns the state of a sandbox, or `None` if the sandbox does not exist.
    async fn inspect(&self, name: &SandboxName) -> Result<Option<Inspection>, SandboxError>;

    /// Returns all sandboxes of this provider, including sandboxes of earlier processes.
    async fn list(&self) -> Result<Vec<Inspection>, SandboxError>;

    /// Returns the disk space that all sandboxes of a workspace use, in bytes, excluding files that are set aside.
    async fn kept_bytes(&self, workspace: &str) -> Result<u64, SandboxError>;

    /// Runs a command. Returns [`SandboxError::Conflict`] if the sandbox is stopped. Dropping the future kills the
    /// command and all processes that it has started.
    async fn exec(
        &self,
        name: &SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, SandboxError>;

    /// Lists a folder, sorted by name. Returns [`SandboxError::Exhausted`] if it has more than
    /// [`crate::LIST_ENTRIES_MAX`] entries.
    async fn list_dir(&self, name: &SandboxName, path: &str) -> Result<Vec<FileEntry>, SandboxError>;

    /// Describes an entry. For a link, describes the link itself.
    async fn stat(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError>;

    /// Describes the target of a path, following links that stay in the workspace.
    async fn target(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError>;

    /// Reads a file from its beginning, and returns its entry at the time of opening. Only regular files can be read.
    async fn read(&self, name: &SandboxName, path: &str) -> Result<(FileEntry, ByteStream), SandboxError>;

    /// Replaces a file atomically, or creates it together with missing folders. The file and the new folders belong to
    /// the sandbox's root user.
    async fn write(&self, name: &SandboxName, path: &str, content: Bytes) -> Result<(), SandboxError>;

    /// Creates a folder and its parents; an existing folder is not an error.
    async fn mkdir(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError>;

    /// Removes an entry. A folder is removed with its contents.
    async fn remove(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError>;

    /// Moves an entry. The entry may replace an existing file.
    async fn rename(&self, name: &SandboxName, from: &str, to: &str) -> Result<(), SandboxError>;

    /// Packs a folder as a ZIP archive. Links to files in the workspace are packed as files. The archive contains a
    /// list of the links that were left out.
    async fn archive(&self, name: &SandboxName, path: &str, limits: ArchiveLimits) -> Result<ByteStream, SandboxError>;
}
