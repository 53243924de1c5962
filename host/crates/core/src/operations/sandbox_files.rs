//! The files of a conversation's sandbox. Each read is recorded in the audit, and each write is a recorded change. An
//! operation ends when the caller's key is revoked or the sandbox switch of its bot is turned off.

mod content;
mod record;
mod revocation;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use monstrum_api::sandbox_files::File;
use monstrum_sandbox::{ArchiveLimits, ByteStream, EntryKind, FILE_BYTES_MAX, FileEntry, PATH_BYTES_MAX, WORKSPACE};
use monstrum_store::SandboxRow;
use monstrum_types::{BotId, Labels, WorkspaceId};
use serde_json::json;
use tokio::time::timeout;

use super::change::Change;
use super::sandboxes::{error_in, error_of_path};
use super::{Caller, InputErrors, OperationError};
use crate::app::App;
use crate::beside::Beside;
use crate::call::built_in::sandbox::{digest, whole_file};
use crate::language::Language;
use crate::policy::Snapshot;
use crate::sandboxes::{AccessError, Open, PART_BYTES_MAX, Turn, needs_turn};

pub use record::Record;
pub use revocation::{Revoked, guarded, revoked};

/// The maximum duration of an operation, counted from the end of its input.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Limits the concurrent hashing of written files, which runs on threads that serve no requests.
static CONTENTS: Beside = Beside::new();

/// The operations on files, for one caller.
pub struct Files<'a> {
    pub app: &'a App,
    pub caller: &'a Caller,
    /// The language of error messages.
    pub language: &'a Language,
}

/// A path in the sandbox of a conversation.
pub struct Place<'a> {
    pub app_id: &'a str,
    pub chat_id: &'a str,
    /// The user to whom the sandbox must belong, or `None` for any user.
    pub user_id: Option<&'a str>,
    pub path: &'a str,
}

/// A file, or a folder as a ZIP.
pub struct Download {
    pub name: String,
    pub is_archive: bool,
    /// The length of a file, or `None` for an archive, whose length is unknown.
    pub length: Option<u64>,
    pub content: ByteStream,
    /// The audit row, which records the number of sent bytes.
    pub record: Arc<Record>,
}

impl Files<'_> {
    /// Rejects a bot key whose bot may not use sandboxes.
    pub fn check_switch(&self) -> Result<(), OperationError> {
        let Caller { workspace, bot, .. } = *self.caller;
        match bot {
            Some(bot) if !has_switch(&self.app.policy.load(), workspace, bot) => Err(Revoked::Switch.into()),
            _ => Ok(()),
        }
    }

    /// Waits until this caller may hold `bytes` bytes in memory. Returns `None` if a request of this size needs no
    /// turn.
    pub async fn turn(&self, bytes: usize) -> Result<Option<Turn>, OperationError> {
        if !needs_turn(bytes) {
            return Ok(None);
        }
        let Caller { workspace, key, .. } = *self.caller;
        let turn = self.app.file_turns.enter(workspace, key, bytes).await;
        let busy = || OperationError::Busy("too many files are being read and written; try again".to_owned());
        turn.map(Some).ok_or_else(busy)
    }

    /// Finds the sandbox of the conversation, if the caller may see it.
    pub async fn find(&self, place: &Place<'_>) -> Result<SandboxRow, OperationError> {
        let mut errors = InputErrors::default();
        let ids = [("/appId", Some(place.app_id)), ("/chatId", Some(place.chat_id)), ("/userId", place.user_id)];
        for (at, id) in ids.into_iter().filter_map(|(at, id)| Some((at, id?))) {
            check_part(&mut errors, at, id);
        }
        if place.path.is_empty() || place.path.len() > PATH_BYTES_MAX || place.path.contains('\0') {
            errors.add("/path", format!("must be 1 to {PATH_BYTES_MAX} bytes long and must not contain NUL"));
        }
        errors.check()?;
        let (workspace, bot) = (self.caller.workspace, self.caller.bot);
        let found = self.app.sandboxes.find(workspace, bot, place.app_id, place.chat_id).await;
        let row = found.map_err(|error| error_in(self.app, self.language, error))?;
        let row = row.ok_or_else(|| OperationError::not_found("sandbox"))?;
        if place.user_id.is_some_and(|user| row.user_id.as_deref() != Some(user)) {
            return Err(OperationError::conflict("the sandbox of this conversation belongs to another user"));
        }
        Ok(row)
    }

    /// Lists a folder.
    pub async fn list(&self, row: &SandboxRow, path: &str) -> Result<Vec<File>, OperationError> {
        let record = self.record("sandbox.list", row, path).await?;
        let list = async {
            let entries = self.open(row).await?.list(path).await.map_err(|error| self.failed(error))?;
            Ok(entries.into_iter().map(view).collect())
        };
        record.ended(self.within(list.boxed()).await, |files: &Vec<File>| ("entries", files.len())).await
    }

    /// Reads a text file. A large file also needs a turn, which the caller holds while the text is in memory.
    /// `escaped_bytes_max` limits the length of the text as JSON.
    pub async fn read(
        &self,
        row: &SandboxRow,
        path: &str,
        escaped_bytes_max: usize,
    ) -> Result<(String, Option<Turn>), OperationError> {
        let record = self.record("sandbox.read", row, path).await?;
        let read = self.read_whole(row, path, escaped_bytes_max);
        record.ended(self.within(read.boxed()).await, |(content, _)| ("bytes", content.len())).await
    }

    /// Writes a whole file, and creates missing folders.
    pub async fn write(&self, row: &SandboxRow, path: &str, content: Bytes) -> Result<(), OperationError> {
        if content.len() > FILE_BYTES_MAX {
            return Err(too_large());
        }
        let hashed = content.clone();
        let digest = CONTENTS.run(move || digest(&hashed)).await.map_err(OperationError::internal)?;
        let told = json!({ "path": path, "bytes": content.len(), "digest": digest });
        let write = async {
            let open = self.open(row).await?;
            // The host does not know what the content was made of.
            self.app.sandboxes.add_labels(open.row(), &Labels::ALL).await?;
            open.write(path, content).await.map_err(|error| self.failed(error))
        };
        let change = Change::new("sandbox.write", &row.id).of_bot(row.bot_id).to(&told);
        change.record(self.app, self.caller, self.within(write.boxed())).await
    }

    /// Opens a file for download, or a folder as a ZIP archive. `takes_any_length` states whether the interface can
    /// send content of unknown length.
    pub async fn download(
        &self,
        row: &SandboxRow,
        path: &str,
        takes_any_length: bool,
    ) -> Result<Download, OperationError> {
        let record = self.record("sandbox.download", row, path).await?;
        let begun = async {
            let open = self.open(row).await?;
            let entry = open.target(path).await.map_err(|error| self.failed(error))?;
            match entry.kind {
                EntryKind::File => self.download_file(&open, path, &entry, &record).await,
                EntryKind::Directory if !takes_any_length => Err(OperationError::Undeliverable(
                    "the ZIP of a folder cannot be sent over HTTP/1.0, because its length is not known in advance; \
                     use HTTP/1.1"
                        .to_owned(),
                )),
                EntryKind::Directory => self.download_folder(&open, path, &entry, &record).await,
                EntryKind::Other => Err(OperationError::invalid_at("/path", "must be a file or a folder")),
            }
        };
        begun.await.inspect_err(|error| record.failed(error))
    }

    async fn download_file(
        &self,
        open: &Open,
        path: &str,
        entry: &FileEntry,
        record: &Arc<Record>,
    ) -> Result<Download, OperationError> {
        let (opened, content) = open.read(path).await.map_err(|error| self.failed(error))?;
        let content = content::exactly(opened.size, content);
        Ok(Download {
            name: entry.name.clone(),
            is_archive: false,
            length: Some(opened.size),
            content: content::begun(content).await.map_err(|error| self.failed(error))?,
            record: Arc::clone(record),
        })
    }

    async fn download_folder(
        &self,
        open: &Open,
        path: &str,
        entry: &FileEntry,
        record: &Arc<Record>,
    ) -> Result<Download, OperationError> {
        let name = if entry.path.trim_end_matches('/') == WORKSPACE { "workspace" } else { &entry.name };
        let content = open.archive(path, ArchiveLimits::default()).await.map_err(|error| self.failed(error))?;
        Ok(Download {
            name: format!("{name}.zip"),
            is_archive: true,
            length: None,
            content: content::begun(content).await.map_err(|error| self.failed(error))?,
            record: Arc::clone(record),
        })
    }

    async fn read_whole(
        &self,
        row: &SandboxRow,
        path: &str,
        escaped_bytes_max: usize,
    ) -> Result<(String, Option<Turn>), OperationError> {
        let (entry, stream) = self.open(row).await?.read(path).await.map_err(|error| self.failed(error))?;
        let turn = match usize::try_from(entry.size).unwrap_or(usize::MAX) {
            bytes @ 0..=FILE_BYTES_MAX => self.turn(bytes).await?,
            _ => None,
        };
        let content = whole_file(entry.size, stream).await.map_err(|error| self.failed(error.into()))?;
        let content = String::from_utf8(content.ok_or_else(too_large)?).map_err(|_| {
            let hint = "the file is not UTF-8 text; download it with POST /api/core/ai/sandbox/download";
            OperationError::invalid_at("/path", hint)
        })?;
        // A control character becomes six bytes in JSON.
        if content.len() + 5 * content.bytes().filter(u8::is_ascii_control).count() > escaped_bytes_max {
            let words = "the content is too long after JSON escaping; download the file with POST \
                 /api/core/ai/sandbox/download";
            return Err(OperationError::OverLimit(words.to_owned()));
        }
        Ok((content, turn))
    }

    async fn record(
        &self,
        operation: &'static str,
        row: &SandboxRow,
        path: &str,
    ) -> Result<Arc<Record>, OperationError> {
        Record::begin(operation, self.app, self.caller, row, path).await
    }

    async fn open(&self, row: &SandboxRow) -> Result<Open, OperationError> {
        self.app.sandboxes.open(row).await.map_err(|error| error_in(self.app, self.language, error))
    }

    /// Runs `work` with a time-out of [`TIME_MAX`], and ends it if the caller's permission is revoked.
    async fn within<T>(&self, work: impl Future<Output = Result<T, OperationError>>) -> Result<T, OperationError> {
        let in_time = async {
            let done = timeout(TIME_MAX, work).await;
            done.unwrap_or_else(|_| {
                Err(OperationError::unavailable("the sandbox did not answer within 60 s; try again"))
            })
        };
        guarded(self.app, self.caller, in_time).await
    }

    fn failed(&self, error: AccessError) -> OperationError {
        match error {
            AccessError::Provider(error) => error_of_path(error),
            other => error_in(self.app, self.language, other),
        }
    }
}

/// Returns whether a bot may use sandboxes.
fn has_switch(snapshot: &Snapshot, workspace: WorkspaceId, bot: BotId) -> bool {
    snapshot.bot(workspace, bot).is_some_and(|bot| bot.row.use_agent_sandbox)
}

/// Checks one part of a conversation's name by the rules for such parts.
pub(super) fn check_part(errors: &mut InputErrors, path: &str, part: &str) {
    if part.is_empty() || part.len() > PART_BYTES_MAX || part.chars().any(char::is_control) {
        errors.add(path, format!("must be 1 to {PART_BYTES_MAX} bytes long and must not contain control characters"));
    }
}

fn too_large() -> OperationError {
    OperationError::OverLimit(format!("the file exceeds the limit of {FILE_BYTES_MAX} bytes for reading and writing"))
}

fn view(entry: FileEntry) -> File {
    let FileEntry { name, path, kind, size, .. } = entry;
    let kind = match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Other => "other",
    };
    File { name, path, kind, size }
}
