//! What a provider of sandboxes must do.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use futures::future::BoxFuture;
pub use monstrum_types::SandboxNetwork as Network;
use monstrum_types::UtcMillis;
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::exec::{ExecOutput, ExecRequest, Feed};
use crate::files::{ArchiveLimits, ByteStream, FileEntry};

/// A provider's name for a sandbox: `ms-{workspace}-{sandbox_id}`, so that two workspaces never meet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxName(String);

impl SandboxName {
    /// The name of the sandbox `sandbox_id` (16 hex digits) of a workspace (a UUID).
    ///
    /// # Panics
    ///
    /// Where these are made of anything but lower-case hex digits and hyphens.
    #[must_use]
    pub fn new(workspace: impl fmt::Display, sandbox_id: &str) -> SandboxName {
        format!("ms-{workspace}-{sandbox_id}").parse().expect("a workspace's id and a sandbox's id make a name")
    }

    /// Whether it is a sandbox of this workspace.
    #[must_use]
    pub fn is_of(&self, workspace: &str) -> bool {
        self.workspace() == Some(workspace)
    }

    /// The workspace's id in it.
    #[must_use]
    pub fn workspace(&self) -> Option<&str> {
        Some(self.0.strip_prefix("ms-")?.rsplit_once('-')?.0)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxName {
    type Err = SandboxError;

    /// Only what is safe as a file name and as the name of a control group.
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

/// What one sandbox may use. A provider that cannot enforce one of them refuses to create, or lists it as degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Thousandths of a processor.
    pub cpu_millis: u32,
    pub memory_mib: u32,
    /// Of everything that stays: /workspace and what was installed.
    pub disk_mib: u32,
    /// Of /tmp, which is in memory and does not stay.
    pub tmp_mib: u32,
    pub processes: u32,
    pub processes_per_exec: u32,
}

impl Default for Limits {
    /// One processor, enough for a build of a small project, and nothing that one conversation takes from all others.
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

/// What is asked for when a sandbox is created or resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spec {
    pub limits: Limits,
    pub network: Network,
}

/// What made the sandbox run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ensured {
    Created,
    Resumed,
    AlreadyRunning,
}

/// What a provider knows of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// On its way to running or stopped.
    Changing,
    Running,
    Stopped,
}

/// One sandbox as the provider sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    pub name: SandboxName,
    pub state: State,
    /// Commands that run at this moment.
    pub execs: usize,
}

/// A limit that this machine cannot enforce, and what would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Degraded {
    /// Which, such as `cpu`.
    pub limit: String,
    pub reason: String,
    pub remedy: String,
}

/// What a provider really has: what the system prompt tells the model, and what an operator sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// What the system inside calls itself, such as `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// Of bash, python3, node, bun, git and curl, those that are there.
    pub programs: Vec<String>,
    /// The networks that it can give.
    pub networks: Vec<Network>,
    /// Whether packages of the system can be installed, given a network: apt, not only pip and npm.
    pub can_install_system_packages: bool,
    pub degraded: Vec<Degraded>,
}

/// A provider of sandboxes. Every function may be called at any time from any task; functions on one sandbox wait for
/// one another where they must.
pub trait SandboxProvider: Send + Sync {
    /// What rows and operators call it, such as `embedded`.
    fn name(&self) -> &'static str;

    /// What it really has. Fails where the provider cannot be used, with the reason and the remedy.
    fn capabilities(&self) -> Result<&Capabilities, SandboxError>;

    /// Whether it can be used at this moment.
    fn health(&self) -> BoxFuture<'_, Result<(), SandboxError>>;

    /// Has the sandbox run, and returns once a command in it has answered. Calls for one sandbox are one flight.
    fn ensure_running<'a>(&'a self, name: &'a SandboxName, spec: Spec) -> BoxFuture<'a, Result<Ensured, SandboxError>>;

    /// Ends everything that runs in it; files stay. Of a sandbox that is not there, nothing.
    fn stop<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Ends everything that runs in it and removes its files. Of a sandbox that is not there, nothing.
    fn delete<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Ends everything that runs in it and keeps its files aside as of `now`: [`Self::inspect`] and [`Self::list`] no
    /// longer know the sandbox. Of a sandbox that is not there, nothing.
    fn set_aside<'a>(&'a self, name: &'a SandboxName, now: UtcMillis) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Makes the files that were last set aside under this name, at `since` or later, the sandbox's own again; whether
    /// there were any. It never replaces a sandbox that is there.
    fn take_back<'a>(&'a self, name: &'a SandboxName, since: UtcMillis) -> BoxFuture<'a, Result<bool, SandboxError>>;

    /// Deletes the files that were set aside before `before`; how many sandboxes had them.
    fn delete_aside(&self, before: UtcMillis) -> BoxFuture<'_, Result<usize, SandboxError>>;

    /// `None` where there is no such sandbox.
    fn inspect<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<Option<Inspection>, SandboxError>>;

    /// Everything of ours, whoever has made it.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Inspection>, SandboxError>>;

    /// Bytes on disk of all sandboxes of a workspace, without those that are kept aside.
    fn kept_bytes<'a>(&'a self, workspace: &'a str) -> BoxFuture<'a, Result<u64, SandboxError>>;

    /// Runs a command in a sandbox that runs; [`SandboxError::Conflict`] where it does not. Dropping the future ends the
    /// command with everything that it has started.
    fn exec<'a>(
        &'a self,
        name: &'a SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> BoxFuture<'a, Result<ExecOutput, SandboxError>>;

    /// The entries of a folder, by name. More than [`crate::LIST_ENTRIES_MAX`] is [`SandboxError::Exhausted`].
    fn list_dir<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Vec<FileEntry>, SandboxError>>;

    /// One entry, of a link the link itself.
    fn stat<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<FileEntry, SandboxError>>;

    /// What a path leads to, over links that stay in the workspace.
    fn target<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<FileEntry, SandboxError>>;

    /// A file from its beginning, and what it was when it was opened. Never anything but a regular file.
    fn read<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
    ) -> BoxFuture<'a, Result<(FileEntry, ByteStream), SandboxError>>;

    /// Replaces a file whole, or not at all; makes missing folders. It belongs to the sandbox's own user.
    fn write<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
        content: Bytes,
    ) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Makes a folder and those above it. One that is there is no fault.
    fn mkdir<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Removes an entry, a folder with everything beneath it.
    fn remove<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// Moves an entry, over a file that may be there.
    fn rename<'a>(
        &'a self,
        name: &'a SandboxName,
        from: &'a str,
        to: &'a str,
    ) -> BoxFuture<'a, Result<(), SandboxError>>;

    /// A folder as a ZIP. Links to files in the workspace are packed as files; those that lead out are named in it.
    fn archive<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
        limits: ArchiveLimits,
    ) -> BoxFuture<'a, Result<ByteStream, SandboxError>>;
}
