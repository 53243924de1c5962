//! Runs commands and accesses files in an open sandbox.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use monstrum_sandbox::{
    ArchiveLimits, ByteStream, ExecOutput, ExecRequest, Feed, FileEntry, SandboxError, SandboxName, SandboxProvider,
};
use monstrum_store::SandboxRow;

use super::activity::Activity;
use super::{AccessError, Sandboxes, name};

/// The maximum number of restarts during one request. A sandbox is restarted if the provider reports that it does not
/// run.
const REVIVED_MAX: u32 = 3;

/// A running sandbox. The sandbox counts as in use while this value or one of its streams exists.
pub struct Open {
    sandboxes: Arc<Sandboxes>,
    row: SandboxRow,
    name: SandboxName,
    activity: Arc<Activity>,
    warning: Option<String>,
}

impl Open {
    pub(super) fn new(sandboxes: Arc<Sandboxes>, row: SandboxRow, activity: Activity, warning: Option<String>) -> Open {
        Open { name: name(&row), sandboxes, row, activity: Arc::new(activity), warning }
    }

    /// Returns the row as it was when the sandbox was opened.
    pub fn row(&self) -> &SandboxRow {
        &self.row
    }

    /// Returns a warning if the sandbox was started for this use and the workspace is near a limit.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Runs a command. Dropping the future ends the command and all processes that the command has started.
    pub async fn exec(&self, request: ExecRequest, feed: Option<Feed>) -> Result<ExecOutput, AccessError> {
        self.ask(|provider, name| {
            // Each attempt removes the sandbox from this set, because a restart between attempts adds it again.
            self.sandboxes.quiet.lock().remove(&self.row.id);
            provider.exec(name, request.clone(), feed.clone())
        })
        .await
    }

    /// Lists a folder, sorted by name.
    pub async fn list(&self, path: &str) -> Result<Vec<FileEntry>, AccessError> {
        self.ask(|provider, name| provider.list_dir(name, path)).await
    }

    /// Returns the entry at a path without following links.
    pub async fn stat(&self, path: &str) -> Result<FileEntry, AccessError> {
        self.ask(|provider, name| provider.stat(name, path)).await
    }

    /// Returns the entry at a path after following links.
    pub async fn target(&self, path: &str) -> Result<FileEntry, AccessError> {
        self.ask(|provider, name| provider.target(name, path)).await
    }

    /// Returns the content of a file, and its entry as it was when the file was opened.
    pub async fn read(&self, path: &str) -> Result<(FileEntry, ByteStream), AccessError> {
        let (entry, content) = self.ask(|provider, name| provider.read(name, path)).await?;
        Ok((entry, self.used_by(content)))
    }

    /// Replaces a file atomically. Creates missing folders.
    pub async fn write(&self, path: &str, content: Bytes) -> Result<(), AccessError> {
        self.ask(|provider, name| provider.write(name, path, content.clone())).await
    }

    /// Creates a folder and its parents.
    pub async fn mkdir(&self, path: &str) -> Result<(), AccessError> {
        self.ask(|provider, name| provider.mkdir(name, path)).await
    }

    /// Removes a file, or a folder with all its content.
    pub async fn remove(&self, path: &str) -> Result<(), AccessError> {
        self.ask(|provider, name| provider.remove(name, path)).await
    }

    /// Moves an entry. Replaces an existing file at the target.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), AccessError> {
        self.ask(|provider, name| provider.rename(name, from, to)).await
    }

    /// Packs a folder into a ZIP archive.
    pub async fn archive(&self, path: &str, limits: ArchiveLimits) -> Result<ByteStream, AccessError> {
        let archive = self.ask(|provider, name| provider.archive(name, path, limits)).await?;
        Ok(self.used_by(archive))
    }

    /// Sends a request to the provider, unless this use is cut off first. If the sandbox does not run, the request had
    /// no effect. This function then starts the sandbox and repeats the request.
    async fn ask<'a, T>(
        &'a self,
        ask: impl Fn(&'a dyn SandboxProvider, &'a SandboxName) -> BoxFuture<'a, Result<T, SandboxError>>,
    ) -> Result<T, AccessError> {
        let provider = self.sandboxes.provider.as_ref().map_err(|error| AccessError::from(error.clone()))?;
        let mut revived = 0;
        loop {
            let answered = tokio::select! {
                biased;
                () = self.activity.cut() => return Err(cut_off().into()),
                answered = ask(provider.as_ref(), &self.name) => answered,
            };
            let does_not_run = match &answered {
                Err(SandboxError::Conflict(_)) => true,
                // `NotFound` means that the file or the sandbox does not exist. Only a missing sandbox must be started
                // again.
                Err(SandboxError::NotFound(_)) => provider.inspect(&self.name).await?.is_none(),
                _ => false,
            };
            if !does_not_run || revived == REVIVED_MAX {
                return Ok(answered?);
            }
            revived += 1;
            self.sandboxes.revive(&self.row).await?;
        }
    }

    /// Counts the stream as a use of the sandbox. If the use is cut off, the stream ends with an error, so that a
    /// client does not mistake a truncated stream for a complete stream.
    fn used_by(&self, stream: ByteStream) -> ByteStream {
        let start = Some((stream, Arc::clone(&self.activity)));
        let next = async |state: Option<(ByteStream, Arc<Activity>)>| {
            let (mut stream, activity) = state?;
            tokio::select! {
                biased;
                () = activity.cut() => Some((Err(cut_off()), None)),
                next = stream.next() => next.map(|next| (next, Some((stream, activity)))),
            }
        };
        Box::pin(futures::stream::unfold(start, next))
    }
}

pub(super) fn cut_off() -> SandboxError {
    SandboxError::NotFound("the sandbox was stopped or deleted while it was in use".to_owned())
}
