//! `/api/core/ai/sandbox/…`: the files of a conversation's sandbox, in the shape that FastGPT's clients know, and so with
//! its names in camelCase and with unknown fields ignored. No path leaves the sandbox: that is the provider's to hold.

mod delivery;
mod disposition;
mod download;
mod record;
mod revocation;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::FutureExt as _;
use http::{Version, header};
use monstrum_sandbox::{EntryKind, FILE_BYTES_MAX, FileEntry, PATH_BYTES_MAX};
use monstrum_store::SandboxRow;
use monstrum_types::{BotId, WorkspaceId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;
use utoipa::ToSchema;

use self::record::Record;
use self::revocation::{Revoked, guarded};
use crate::gateway::changes::Change;
use crate::gateway::extract::{Caller, Faults, Input, read_body, whole_body_of};
use crate::gateway::language::InLanguage;
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::sandboxes::{problem_in, problem_of_path};
use monstrum_core::app::App;
use monstrum_core::beside::Beside;
use monstrum_core::call::built_in::sandbox::{digest, whole_file};
use monstrum_core::language::Language;
use monstrum_core::policy::Snapshot;
use monstrum_core::sandboxes::{FREE_BYTES, Fault, Open, PART_BYTES_MAX, Turn};

/// The largest body: the largest file, with room for what JSON escapes.
const BODY_BYTES_MAX: usize = 2 * FILE_BYTES_MAX;

/// How long what is asked for may take once the body is there.
const ACTION_MAX: Duration = Duration::from_secs(60);

/// What to do with which path of whose sandbox. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileInput {
    action: Action,
    app_id: String,
    chat_id: String,
    /// Where it is given, the sandbox must be this user's.
    user_id: Option<String>,
    /// Absolute and beneath /workspace, or relative to it.
    path: String,
    /// For `write`: the file's whole content, at most 16 MiB.
    content: Option<String>,
}

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    List,
    Read,
    Write,
}

/// What came of it.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum FileAnswer {
    List { action: Action, files: Vec<File> },
    Read { action: Action, content: String },
    Write { action: Action, success: bool },
}

impl FileAnswer {
    /// What the audit has of it.
    fn told(&self) -> (&'static str, usize) {
        match self {
            FileAnswer::List { files, .. } => ("entries", files.len()),
            FileAnswer::Read { content, .. } => ("bytes", content.len()),
            FileAnswer::Write { .. } => ("bytes", 0),
        }
    }
}

/// An entry of a folder.
#[derive(Serialize, ToSchema)]
pub struct File {
    pub name: String,
    /// Absolute, inside the sandbox.
    pub path: String,
    /// `file`, `directory` or `other`, such as a link.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: EntryKind,
    pub size: u64,
}

/// What to download from whose sandbox. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadInput {
    app_id: String,
    chat_id: String,
    /// Where it is given, the sandbox must be this user's.
    user_id: Option<String>,
    /// A file, or a folder, which comes as a ZIP.
    path: String,
}

/// Whole files are hashed and written as JSON beside the threads that serve.
static CONTENTS: Beside = Beside::new();

/// Lists a folder, reads or writes a text file of a conversation's sandbox
///
/// `write` makes missing folders. A sandbox that is stopped is resumed; a conversation that has none is 404.
#[utoipa::path(post, path = "/api/core/ai/sandbox/file", tag = "sandboxes", request_body = FileInput,
    responses((status = 200, body = FileAnswer), (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "there is no sandbox to be had at present")))]
pub async fn file(
    State(app): State<Arc<App>>,
    caller: Caller,
    InLanguage(language): InLanguage,
    request: Request,
) -> Result<Response, Problem> {
    let place = Place { app: &app, caller: &caller, language: &language };
    let asked = async {
        place.check_switch()?;
        let (body, turn) = body(&place, request).await?;
        let input: FileInput = read_body(body).await?;
        let row = place.row(&Of::from(&input)).await?;
        Ok((input, row, turn))
    };
    let (input, row, turn) = guarded(&app, &caller, asked).await?;
    let FileInput { action, path, content, .. } = input;
    let written = match (action, content) {
        (Action::Write, None) => return Err(Problem::invalid_at("/content", "required for the action write")),
        (Action::Write, Some(content)) if content.len() > FILE_BYTES_MAX => return Err(too_large()),
        (Action::Write, Some(content)) => Bytes::from(content),
        (Action::List | Action::Read, _) => Bytes::new(),
    };
    let within = |work| guarded(&app, &caller, in_time(work));
    let answer = match action {
        Action::List => {
            let record = Record::begin("sandbox.list", &app, &caller, &row, &path).await?;
            record.ended(within(place.list(&row, &path).boxed()).await, FileAnswer::told).await?
        }
        Action::Read => {
            // The turn of a large body is not one for the file.
            drop(turn);
            let record = Record::begin("sandbox.read", &app, &caller, &row, &path).await?;
            let reading = guarded(&app, &caller, in_time(place.read(&row, &path).boxed())).await;
            let (answer, turn) = record.ended(reading, |(answer, _)| answer.told()).await?;
            let json = CONTENTS.run(move || serde_json::to_vec(&answer)).await;
            let json =
                json.map_err(|error| Problem::internal(&error))?.expect("an answer has nothing that JSON has not");
            return Ok(delivery::held(json, turn, &app, &caller));
        }
        Action::Write => {
            let content = written.clone();
            let digest = CONTENTS.run(move || digest(&content)).await.map_err(|error| Problem::internal(&error))?;
            let told = json!({ "path": path, "bytes": written.len(), "digest": digest });
            let change = Change::new("sandbox.write", &row.id).of_bot(row.bot_id).to(&told);
            let made = within(place.write(&row, &path, written).boxed());
            change.made(&app, &caller, made).await?
        }
    };
    Ok(Json(answer).into_response())
}

/// The body, and its turn where it is a large one.
async fn body(place: &Place<'_>, request: Request) -> Result<(Bytes, Option<Turn>), Problem> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let turn = match length {
        Some(0..=FREE_BYTES) => None,
        length => Some(place.turn(length.unwrap_or(BODY_BYTES_MAX)).await?),
    };
    if turn.is_none() {
        return Ok((whole_body_of(request.into_body(), BODY_BYTES_MAX).await?, None));
    }
    let (body, is_late) = delivery::paced(request.into_body());
    let whole = whole_body_of(body, BODY_BYTES_MAX).await;
    if is_late.load(Ordering::Relaxed) {
        return Err(Problem::timeout("the body came too slowly; send at least 128 KiB a second"));
    }
    Ok((whole?, turn))
}

async fn in_time<T>(work: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    timeout(ACTION_MAX, work).await.unwrap_or_else(|_| Err(Problem::unavailable("the sandbox took too long")))
}

/// Downloads a file, or a folder as a ZIP, of a conversation's sandbox
#[utoipa::path(post, path = "/api/core/ai/sandbox/download", tag = "sandboxes", request_body = DownloadInput,
    responses((status = 200, content((String = "application/octet-stream"), (String = "application/zip"))),
        (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "there is no sandbox to be had at present"),
        (status = 505, body = ProblemBody, description = "a folder is asked for by HTTP/1.0")))]
pub async fn download(
    State(app): State<Arc<App>>,
    caller: Caller,
    InLanguage(language): InLanguage,
    version: Version,
    request: Request,
) -> Result<Response, Problem> {
    let place = Place { app: &app, caller: &caller, language: &language };
    // Before the body is read.
    place.check_switch()?;
    let Input(DownloadInput { app_id, chat_id, user_id, path }) = Input::from_request(request, &app).await?;
    let of = Of { app_id: &app_id, chat_id: &chat_id, user_id: user_id.as_deref(), path: &path };
    let begun = async {
        place.check_switch()?;
        let row = place.row(&of).await?;
        let record = Record::begin("sandbox.download", &app, &caller, &row, &path).await?;
        let answered = async {
            let open = place.open(&row).await?;
            let deliver = |content, length| record.follow(delivery::delivered(content, &app, &caller), length);
            download::answer(&open, &path, version, deliver).await.map_err(|fault| place.failed(fault))?
        };
        answered.await.inspect_err(|problem| record.failed(problem))
    };
    guarded(&app, &caller, begun).await
}

/// Who asks.
struct Place<'a> {
    app: &'a Arc<App>,
    caller: &'a Caller,
    language: &'a Language,
}

/// What is asked for.
struct Of<'a> {
    app_id: &'a str,
    chat_id: &'a str,
    user_id: Option<&'a str>,
    path: &'a str,
}

impl<'a> From<&'a FileInput> for Of<'a> {
    fn from(input: &'a FileInput) -> Of<'a> {
        let FileInput { app_id, chat_id, user_id, path, .. } = input;
        Of { app_id, chat_id, user_id: user_id.as_deref(), path }
    }
}

impl Place<'_> {
    /// What the bot may not use by its tool, its key does not use by this door.
    fn check_switch(&self) -> Result<(), Problem> {
        let Caller { workspace, bot, .. } = *self.caller;
        match bot {
            Some(bot) if !has_switch(&self.app.policy.load(), workspace, bot) => Err(Revoked::Switch.into()),
            _ => Ok(()),
        }
    }

    /// Waits until this caller may have this much in memory.
    async fn turn(&self, bytes: usize) -> Result<Turn, Problem> {
        let Caller { workspace, key, .. } = *self.caller;
        let turn = self.app.file_turns.enter(workspace, key, bytes).await;
        turn.ok_or_else(|| Problem::full("too many files are read and written at present"))
    }

    async fn list(&self, row: &SandboxRow, path: &str) -> Result<FileAnswer, Problem> {
        let files = self.open(row).await?.list(path).await.map_err(|fault| self.failed(fault))?;
        Ok(FileAnswer::List { action: Action::List, files: files.into_iter().map(File::from).collect() })
    }

    /// The file, and the turn that it takes while it is in memory. A small one takes none.
    async fn read(&self, row: &SandboxRow, path: &str) -> Result<(FileAnswer, Option<Turn>), Problem> {
        let (entry, stream) = self.open(row).await?.read(path).await.map_err(|fault| self.failed(fault))?;
        let turn = match usize::try_from(entry.size).unwrap_or(usize::MAX) {
            bytes @ FREE_BYTES..=FILE_BYTES_MAX => Some(self.turn(bytes).await?),
            _ => None,
        };
        let content = whole_file(entry.size, stream).await.map_err(|error| self.failed(error.into()))?;
        let content = String::from_utf8(content.ok_or_else(too_large)?).map_err(|_| {
            let hint = "the file is not UTF-8 text; get it with POST /api/core/ai/sandbox/download";
            Problem::invalid_at("/path", hint)
        })?;
        // What JSON escapes becomes six times as long.
        if content.len() + 5 * content.bytes().filter(u8::is_ascii_control).count() > BODY_BYTES_MAX {
            let words =
                "what JSON escapes in this file makes it too long; get it with POST /api/core/ai/sandbox/download";
            return Err(Problem::over_limit(words));
        }
        Ok((FileAnswer::Read { action: Action::Read, content }, turn))
    }

    async fn write(&self, row: &SandboxRow, path: &str, content: Bytes) -> Result<FileAnswer, Problem> {
        self.open(row).await?.write(path, content).await.map_err(|fault| self.failed(fault))?;
        Ok(FileAnswer::Write { action: Action::Write, success: true })
    }

    fn failed(&self, fault: Fault) -> Problem {
        problem_of_path(self.app, self.language, fault)
    }

    /// The sandbox of the conversation, if the caller may see it.
    async fn row(&self, of: &Of<'_>) -> Result<SandboxRow, Problem> {
        let mut faults = Faults::default();
        let ids = [("/appId", Some(of.app_id)), ("/chatId", Some(of.chat_id)), ("/userId", of.user_id)];
        for (place, id) in ids.into_iter().filter_map(|(place, id)| Some((place, id?))) {
            check_part(&mut faults, place, id);
        }
        if of.path.is_empty() || of.path.len() > PATH_BYTES_MAX || of.path.contains('\0') {
            faults.add("/path", format!("must have 1 to {PATH_BYTES_MAX} bytes and no NUL"));
        }
        faults.check()?;
        let (workspace, bot) = (self.caller.workspace, self.caller.bot);
        let found = self.app.sandboxes.find(workspace, bot, of.app_id, of.chat_id).await;
        let row = found.map_err(|fault| problem_in(self.app, self.language, fault))?;
        let row = row.ok_or_else(|| Problem::not_found("sandbox"))?;
        if of.user_id.is_some_and(|user| row.user_id.as_deref() != Some(user)) {
            return Err(Problem::conflict("the sandbox of this conversation belongs to another user"));
        }
        Ok(row)
    }

    async fn open(&self, row: &SandboxRow) -> Result<Open, Problem> {
        self.app.sandboxes.open(row).await.map_err(|fault| problem_in(self.app, self.language, fault))
    }
}

/// Whether a bot may use sandboxes.
fn has_switch(snapshot: &Snapshot, workspace: WorkspaceId, bot: BotId) -> bool {
    snapshot.bot(workspace, bot).is_some_and(|bot| bot.row.use_agent_sandbox)
}

/// A part of a conversation's name, as one is made of them.
pub fn check_part(faults: &mut Faults, place: &str, part: &str) {
    if part.is_empty() || part.len() > PART_BYTES_MAX || part.chars().any(char::is_control) {
        faults.add(place, format!("must have 1 to {PART_BYTES_MAX} bytes and no control characters"));
    }
}

fn too_large() -> Problem {
    Problem::over_limit(format!("a file that is read or written whole may have {FILE_BYTES_MAX} bytes at most"))
}

impl From<FileEntry> for File {
    fn from(entry: FileEntry) -> Self {
        let FileEntry { name, path, kind, size, .. } = entry;
        File { name, path, kind, size }
    }
}
