//! The host's side of file functions. It checks paths and reads the answers of workers.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use monstrum_sandbox::{ByteStream, EntryKind, FILE_BYTES_MAX, FileEntry, PATH_BYTES_MAX, SandboxError, WORKSPACE};
use rustix::fs::MemfdFlags;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use crate::control::Reply;
use crate::running::Running;
use crate::wire::{Refusal, ToInit};
use crate::worker::{Entry, FileError, Operation, PART_BYTES_MAX, Part};

/// The maximum time between two parts of a worker's answer, which is far longer than a disk needs for one part.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The maximum time that a file function waits for other file functions on the same sandbox.
const PLACE_MAX: Duration = Duration::from_secs(5);

/// Converts a path to the form that workers accept: relative to the workspace, or `.` for the workspace itself.
pub(crate) fn relative(path: &str) -> Result<String, SandboxError> {
    let invalid = |why: String| Err(SandboxError::Invalid(why));
    if path.len() > PATH_BYTES_MAX {
        return invalid(format!("the path exceeds the limit of {PATH_BYTES_MAX} bytes"));
    }
    if path.contains('\0') {
        return invalid("the path must not contain a zero byte".to_owned());
    }
    let relative = match path.strip_prefix(WORKSPACE) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest.trim_start_matches('/'),
        _ if path.starts_with('/') => return invalid(format!("the path is outside {WORKSPACE}")),
        _ => path,
    };
    let parts: Vec<&str> = relative.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    Ok(if parts.is_empty() { ".".to_owned() } else { parts.join("/") })
}

/// Returns the absolute path of an entry of `folder`.
fn absolute(folder: &str, name: &str) -> String {
    match folder {
        "." => format!("{WORKSPACE}/{name}"),
        folder => format!("{WORKSPACE}/{folder}/{name}"),
    }
}

fn entry(folder: &str, found: Entry) -> FileEntry {
    let Entry { name, kind, size, modified_ms } = found;
    FileEntry { path: absolute(folder, &name), name, kind, size, modified_ms }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(folder, _)| folder)
}

/// Lists a folder, sorted by name.
pub(crate) async fn list(running: &Arc<Running>, path: &str) -> Result<Vec<FileEntry>, SandboxError> {
    let path = relative(path)?;
    let mut answer = Worker::begin(running, &Operation::List { path: path.clone() }, None).await?;
    let mut entries = Vec::new();
    while let Some((part, bytes)) = answer.next().await? {
        entries.push(entry(&path, found(part, &bytes)?));
    }
    entries.sort_by(|a: &FileEntry, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Describes an entry.
pub(crate) async fn stat(running: &Arc<Running>, path: &str) -> Result<FileEntry, SandboxError> {
    let path = relative(path)?;
    if path == "." {
        let (name, kind) = (WORKSPACE.trim_start_matches('/').to_owned(), EntryKind::Directory);
        return Ok(FileEntry { name, path: WORKSPACE.to_owned(), kind, size: 0, modified_ms: 0 });
    }
    let mut answer = Worker::begin(running, &Operation::Stat { path: path.clone() }, None).await?;
    let (part, bytes) = answer.next().await?.ok_or_else(broken)?;
    Ok(entry(folder_of(&path), found(part, &bytes)?))
}

/// Describes the target of a path, and follows links.
pub(crate) async fn target(running: &Arc<Running>, path: &str) -> Result<FileEntry, SandboxError> {
    let path = relative(path)?;
    if path == "." {
        return stat(running, WORKSPACE).await;
    }
    let mut answer = Worker::begin(running, &Operation::Target { path: path.clone() }, None).await?;
    let (part, bytes) = answer.next().await?.ok_or_else(broken)?;
    Ok(entry(folder_of(&path), found(part, &bytes)?))
}

/// Reads a file as a stream.
pub(crate) async fn read(running: &Arc<Running>, path: &str) -> Result<(FileEntry, ByteStream), SandboxError> {
    let path = relative(path)?;
    let mut answer = Worker::begin(running, &Operation::Read { path: path.clone() }, None).await?;
    let (part, bytes) = answer.next().await?.ok_or_else(broken)?;
    Ok((entry(folder_of(&path), found(part, &bytes)?), answer.stream()))
}

/// Replaces a file.
pub(crate) async fn write(running: &Arc<Running>, path: &str, content: &[u8]) -> Result<(), SandboxError> {
    let path = relative(path)?;
    if content.len() > FILE_BYTES_MAX {
        return Err(SandboxError::Invalid(format!(
            "the content exceeds the limit of {FILE_BYTES_MAX} bytes for one write"
        )));
    }
    let failed =
        |error: io::Error| SandboxError::unavailable_because("the content could not be sent to the sandbox", error);
    let memory = rustix::fs::memfd_create("content", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut memory = std::fs::File::from(memory);
    memory.write_all(content).map_err(failed)?;
    done(running, &Operation::Write { path }, Some(memory.into())).await
}

/// Creates a folder.
pub(crate) async fn mkdir(running: &Arc<Running>, path: &str) -> Result<(), SandboxError> {
    done(running, &Operation::Mkdir { path: relative(path)? }, None).await
}

/// Removes an entry.
pub(crate) async fn remove(running: &Arc<Running>, path: &str) -> Result<(), SandboxError> {
    done(running, &Operation::Remove { path: relative(path)? }, None).await
}

/// Moves an entry.
pub(crate) async fn rename(running: &Arc<Running>, from: &str, to: &str) -> Result<(), SandboxError> {
    done(running, &Operation::Rename { from: relative(from)?, to: relative(to)? }, None).await
}

/// Packs a folder as a ZIP.
pub(crate) async fn archive(
    running: &Arc<Running>,
    path: &str,
    limits: monstrum_sandbox::ArchiveLimits,
) -> Result<ByteStream, SandboxError> {
    let path = relative(path)?;
    let mut answer = Worker::begin(running, &Operation::Archive { path, limits }, None).await?;
    // Waits for the first piece, so that a missing folder is an error of this call.
    let first = answer.bytes().await?;
    let first = futures::stream::iter(first.map(Ok));
    Ok(first.chain(answer.stream()).boxed())
}

async fn done(running: &Arc<Running>, operation: &Operation, content: Option<OwnedFd>) -> Result<(), SandboxError> {
    let mut answer = Worker::begin(running, operation, content).await?;
    match answer.next().await? {
        None => Ok(()),
        Some(_) => Err(broken()),
    }
}

fn found(part: Part, bytes: &[u8]) -> Result<Entry, SandboxError> {
    if part != Part::Entry {
        return Err(broken());
    }
    serde_json::from_slice(bytes).map_err(|_| broken())
}

/// Returns the error for an answer that breaks the protocol, for example because another program replaced the worker.
fn broken() -> SandboxError {
    SandboxError::unavailable("the sandbox sent an invalid response")
}

/// A worker process in the sandbox and its answer. Dropping the value ends the worker.
struct Worker {
    from: Receiver,
    answered: oneshot::Receiver<Reply>,
    is_at_end: bool,
    _place: OwnedSemaphorePermit,
    /// Keeps the sandbox's state alive while the answer is read.
    _running: Arc<Running>,
}

impl Worker {
    async fn begin(
        running: &Arc<Running>,
        operation: &Operation,
        content: Option<OwnedFd>,
    ) -> Result<Worker, SandboxError> {
        let place = timeout(PLACE_MAX, Arc::clone(&running.workers).acquire_owned()).await;
        let full = |_| SandboxError::unavailable("too many file operations are running in this sandbox; try again");
        let place = place.map_err(full)?.expect("the semaphore is never closed");
        let failed = |error: io::Error| {
            SandboxError::unavailable_because("the files of the sandbox could not be accessed", error)
        };
        let (read, write) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let from = Receiver::from_owned_fd(read).map_err(failed)?;
        let id = running.control.next_id();
        let text = serde_json::to_vec(operation).expect("operations can be written as JSON");
        let beside = [Some(write.as_fd()), content.as_ref().map(AsFd::as_fd)];
        let beside: Vec<_> = beside.into_iter().flatten().collect();
        let sent = running.control.request(id, ToInit::Files { id }, &text, &beside).await;
        let answered = sent.map_err(|error| failed(error.into()))?;
        Ok(Worker { from, answered, is_at_end: false, _place: place, _running: Arc::clone(running) })
    }

    /// Returns the next part, or `None` after the last part of a complete answer.
    async fn next(&mut self) -> Result<Option<(Part, Bytes)>, SandboxError> {
        if self.is_at_end {
            return Ok(None);
        }
        let part = timeout(SILENCE_MAX, self.part()).await;
        let part = part.map_err(|_| SandboxError::unavailable("the sandbox does not respond"))?;
        let (part, bytes) = part?;
        match part {
            Part::Entry | Part::Bytes => Ok(Some((part, bytes))),
            Part::Error => {
                self.is_at_end = true;
                let error: FileError = serde_json::from_slice(&bytes).map_err(|_| broken())?;
                Err(error.into())
            }
            Part::End => {
                self.is_at_end = true;
                Ok(None)
            }
        }
    }

    async fn part(&mut self) -> Result<(Part, Bytes), SandboxError> {
        let mut head = [0; 5];
        if self.from.read_exact(&mut head).await.is_err() {
            return Err(self.cut_off());
        }
        let [kind, length @ ..] = head;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        let part = Part::of(kind).filter(|_| length <= PART_BYTES_MAX).ok_or_else(broken)?;
        let mut bytes = vec![0; length];
        if self.from.read_exact(&mut bytes).await.is_err() {
            return Err(self.cut_off());
        }
        Ok((part, bytes.into()))
    }

    fn cut_off(&mut self) -> SandboxError {
        self.is_at_end = true;
        match self.answered.try_recv() {
            Ok(Reply::Refused(Refusal::Request(why) | Refusal::Room(why) | Refusal::Shell(why))) => {
                SandboxError::Exhausted(why)
            }
            _ => SandboxError::unavailable("the sandbox ended before the operation was complete"),
        }
    }

    async fn bytes(&mut self) -> Result<Option<Bytes>, SandboxError> {
        match self.next().await? {
            None => Ok(None),
            Some((Part::Bytes, bytes)) => Ok(Some(bytes)),
            Some(_) => Err(broken()),
        }
    }

    fn stream(self) -> ByteStream {
        let pieces = futures::stream::unfold(Some(self), async |worker| {
            let mut worker = worker?;
            match worker.bytes().await {
                Ok(None) => None,
                Ok(Some(bytes)) => Some((Ok(bytes), Some(worker))),
                Err(error) => Some((Err(error), None)),
            }
        });
        pieces.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_workspace_or_refused() {
        for (path, expected) in [
            ("", "."),
            (".", "."),
            ("/workspace", "."),
            ("/workspace/", "."),
            ("/workspace//a/./b/", "a/b"),
            ("a/b", "a/b"),
            ("-rf", "-rf"),
            // The kernel checks where this path leads.
            ("a/../../etc", "a/../../etc"),
            ("/workspace/../etc", "../etc"),
        ] {
            assert_eq!(relative(path).unwrap(), expected, "{path}");
        }
        for path in ["/", "/etc/passwd", "/workspaces", "//workspace", "a\0b", &"x".repeat(PATH_BYTES_MAX + 1)] {
            assert!(matches!(relative(path), Err(SandboxError::Invalid(_))), "{path}");
        }
    }
}
