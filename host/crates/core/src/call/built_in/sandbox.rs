//! The tools of the built-in type `sandbox`: commands and files in the sandbox of the conversation.
//!
//! A command that fails or exceeds its time limit still ends the call with `success`. If no sandbox is available for
//! the command, the call ends with an error whose message is written for users.

pub mod import;
mod output;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use monstrum_guardian::Permit;
use monstrum_sandbox::{
    ByteStream, EXEC_TIMEOUT_DEFAULT, ExecOutput, ExecRequest, FILE_BYTES_MAX, SandboxError, Termination, WORKSPACE,
};
use monstrum_store::SandboxRow;
use monstrum_types::{CallOutcome, Code, InputError, JsonText, Labels, Status, with_causes};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::audit::Entry;
use crate::call::built_in::sandbox::output::Kept;
use crate::call::permitted::Execution;
use crate::call_types::call_secrets::CallSecrets;
use crate::call_types::incoming::IncomingCall;
use crate::call_types::refusal::invalid_params;
use crate::language::Language;
use crate::plugins::Plugin;
use crate::plugins::built_in::{
    COMMAND_BYTES_MAX, LIST_FILES, LOST_KEY, LOST_TEXT, READ_FILE, SHELL, UNAVAILABLE_KEY, UNAVAILABLE_TEXT, WRITE_FILE,
};
use crate::sandboxes::outputs::{Begun, Outputs};
use crate::sandboxes::{AccessError, Conversation, Open, Sandboxes};

/// The maximum time that a call waits for its sandbox to run. This limit is longer than the time-out of the start, so
/// that the error of the start is reported.
const START_MAX: Duration = Duration::from_secs(90);
/// The time that a call has in addition to the time limit of its command.
const MARGIN: Duration = Duration::from_secs(30);
/// The folder in the sandbox for the complete outputs of commands. A model can read these files later.
const OUTPUTS: &str = ".monstrum/output";
/// The maximum number of files in the folder [`OUTPUTS`].
const OUTPUTS_MAX: usize = 20;

/// The message for a command whose sandbox was stopped or deleted.
const TAKEN_AWAY: &str = "the sandbox was stopped or deleted while the command ran; the command may have had effects";

/// Returns the time limit of a call: the start of its sandbox, the time limit of its command, and a margin.
pub fn time_limit(permit: &Permit) -> Duration {
    START_MAX + timeout(permit) + MARGIN
}

fn timeout(permit: &Permit) -> Duration {
    let seconds = permit.params().get("timeout").and_then(Value::as_u64);
    seconds.map_or(EXEC_TIMEOUT_DEFAULT, Duration::from_secs)
}

/// Runs a tool of the type.
pub async fn run(
    sandboxes: &Arc<Sandboxes>,
    outputs: &Arc<Outputs>,
    execution: &Execution<'_>,
    permit: &Permit,
) -> CallOutcome {
    let ran = async {
        let Execution { call, target, secrets, entry, .. } = *execution;
        let machine = Machine { call, plugin: &target.plugin, permit, entry, opened: OnceLock::new() };
        let ran = match permit.tool() {
            SHELL => machine.exec(sandboxes, outputs, secrets).await,
            LIST_FILES => machine.list(sandboxes).await,
            READ_FILE => machine.read(sandboxes).await,
            WRITE_FILE => machine.write(sandboxes).await,
            // This branch runs only if a declared tool has no implementation.
            _ => Err(Box::new(CallOutcome::error(Code::Unavailable, "this server cannot run the tool"))),
        };
        machine.has_read(sandboxes).await;
        ran
    };
    ran.await.unwrap_or_else(|refusal: Box<CallOutcome>| *refusal)
}

/// A result whose error is the outcome of a failed call. The outcome is boxed, because it is rare and large.
type Refused<T> = Result<T, Box<CallOutcome>>;

/// A tool call in the sandbox of its conversation.
struct Machine<'a> {
    call: &'a IncomingCall,
    plugin: &'a Plugin,
    permit: &'a Permit,
    entry: &'a Entry,
    /// The sandbox, once it is open.
    opened: OnceLock<SandboxRow>,
}

impl Machine<'_> {
    async fn exec(
        &self,
        sandboxes: &Arc<Sandboxes>,
        outputs: &Arc<Outputs>,
        secrets: &Arc<CallSecrets>,
    ) -> Refused<CallOutcome> {
        let command = self.param("command");
        if command.len() > COMMAND_BYTES_MAX {
            let message = format!("has {} bytes; at most {COMMAND_BYTES_MAX} are allowed", command.len());
            return Err(invalid("/command", message));
        }
        if command.contains('\0') {
            return Err(invalid("/command", "must not contain NUL".to_owned()));
        }
        let begun = || Begun {
            request: self.call.request_id(),
            command: command.to_owned(),
            limit: time_limit(self.permit),
            secrets: Arc::clone(secrets),
        };
        let open = match self.open(sandboxes).await {
            Ok(open) => open,
            Err(refusal) => {
                self.record_refusal(sandboxes, outputs, &refusal, begun()).await;
                return Err(refusal);
            }
        };
        let request = ExecRequest::new(command).with_timeout(timeout(self.permit));
        let feed = self.call.attachments().feed.clone();
        let recording = outputs.begin(open.row(), begun());
        let output = open.exec(request, feed).await.map_err(|error| self.cut(error))?;
        if let Some(recording) = recording {
            recording.end(&output);
        }
        let is_for_a_model = !self.call.is_of_sandbox_import();
        let mut data = if is_for_a_model && output::is_too_long(&output) {
            let kept = self.keep(&open, &output).await;
            let (stdout, stderr) = output::cut(&output, &kept);
            let mut data = answer(&output, &stdout, &stderr, true);
            if let Kept::In(path) = kept {
                data["outputFile"] = json!(path);
            }
            data
        } else {
            answer(&output, &output.stdout.text, &output.stderr.text, output.is_truncated())
        };
        if let Some(warning) = open.warning() {
            data["warning"] = json!(warning);
        }
        let data = JsonText::from(&data);
        Ok(match output.termination {
            Termination::Lost | Termination::Cancelled => {
                CallOutcome::error(Code::Interrupted, TAKEN_AWAY).with_data(data)
            }
            _ => CallOutcome::success(data),
        })
    }

    /// Records a command that did not start, if the conversation has a sandbox. A sandbox of another user or bot gets no
    /// record.
    async fn record_refusal(
        &self,
        sandboxes: &Arc<Sandboxes>,
        outputs: &Arc<Outputs>,
        refusal: &CallOutcome,
        begun: Begun,
    ) {
        let is_of_the_sandbox = matches!(refusal.code, Some(Code::Busy | Code::Limit | Code::Unavailable));
        let (Ok(of), Some(bot), true) = (self.conversation(), self.permit.bot(), is_of_the_sandbox) else { return };
        let found = sandboxes.find(self.permit.workspace(), Some(bot), of.app_id(), of.chat_id()).await;
        // If the sandbox cannot be read, its record could not be written either.
        let Ok(Some(row)) = found else { return };
        if row.user_id.as_deref() != Some(of.user_id()) {
            return;
        }
        if let Some(recording) = outputs.begin(&row, begun) {
            recording.refused(refusal.message.as_deref().unwrap_or_default());
        }
    }

    /// Writes the complete output to a file in the sandbox. If writing fails, the answer reports the reason, and the
    /// call does not fail.
    async fn keep(&self, open: &Open, output: &ExecOutput) -> Kept {
        let path = format!("{WORKSPACE}/{OUTPUTS}/{}.txt", self.call.request_id());
        match open.write(&path, Bytes::from(output::whole(output))).await {
            Ok(()) => {
                forget_oldest(open).await;
                Kept::In(path)
            }
            Err(error) => Kept::Nowhere(error.to_string()),
        }
    }

    async fn list(&self, sandboxes: &Arc<Sandboxes>) -> Refused<CallOutcome> {
        let open = self.open(sandboxes).await?;
        let entries = open.list(self.param("path")).await.map_err(|error| self.failed(error))?;
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|entry| json!({"name": entry.name, "path": entry.path, "kind": entry.kind, "size": entry.size}))
            .collect();
        Ok(CallOutcome::success(JsonText::from(&json!({ "entries": entries }))))
    }

    async fn read(&self, sandboxes: &Arc<Sandboxes>) -> Refused<CallOutcome> {
        let open = self.open(sandboxes).await?;
        let (entry, stream) = open.read(self.param("path")).await.map_err(|error| self.failed(error))?;
        let content = match whole_file(entry.size, stream).await {
            Ok(Some(content)) => content,
            Ok(None) => {
                let message = format!("the file exceeds the limit of {FILE_BYTES_MAX} bytes");
                return Err(Box::new(CallOutcome::error(Code::ResultTooLarge, message)));
            }
            Err(error) => return Err(self.failed(error.into())),
        };
        let told = json!({ "path": entry.path, "bytes": content.len(), "digest": digest(&content) });
        if let Some(place) = &self.call.attachments().read {
            // No other call fills this cell, so `set` cannot fail.
            drop(place.set(content));
        }
        Ok(CallOutcome::success(JsonText::from(&told)))
    }

    async fn write(&self, sandboxes: &Arc<Sandboxes>) -> Refused<CallOutcome> {
        let Some(content) = self.call.attachments().content.clone() else {
            return Err(invalid("", "the content is missing".to_owned()));
        };
        let open = self.open(sandboxes).await?;
        open.write(self.param("path"), content).await.map_err(|error| self.cut(error))?;
        Ok(CallOutcome::success(JsonText::from(&Value::Null)))
    }

    /// Returns the running sandbox of the conversation, and creates or starts it if necessary.
    async fn open(&self, sandboxes: &Arc<Sandboxes>) -> Refused<Open> {
        let of = self.conversation()?;
        let Some(bot) = self.permit.bot() else {
            return Err(Box::new(CallOutcome::error(Code::Unavailable, "only a bot can use a sandbox")));
        };
        let opened = sandboxes.of_conversation(self.permit.workspace(), bot, &of);
        match tokio::time::timeout(START_MAX, opened).await {
            Ok(Ok(open)) => {
                let may_write = matches!(self.permit.tool(), SHELL | WRITE_FILE);
                if may_write {
                    // The labels come first, so that a reader of what the call writes has them.
                    let labels = self.call.labels().carried().clone().with(&self.call.labels().of_results());
                    sandboxes.add_labels(open.row(), &labels).await.map_err(|error| self.failed(error.into()))?;
                }
                // The cell is empty, because a call opens its sandbox once.
                drop(self.opened.set(open.row().clone()));
                Ok(open)
            }
            // The server has no room for another sandbox. This error cannot occur after the command has started.
            Ok(Err(AccessError::Provider(SandboxError::Exhausted(message)))) => {
                Err(Box::new(CallOutcome::error(Code::Busy, message)))
            }
            Ok(Err(error)) => Err(self.failed(error)),
            Err(_) => Err(self.failed(SandboxError::unavailable("the sandbox did not start in time").into())),
        }
    }

    /// Gives the labels of what was written to the sandbox to the call. They are read after the call has read the sandbox,
    /// because others can have written to it in the meantime.
    async fn has_read(&self, sandboxes: &Sandboxes) {
        let Some(row) = self.opened.get().filter(|_| !self.call.labels().carried().is_all()) else { return };
        let labels = sandboxes.labels(row).await.unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read the labels of a sandbox, so it counts as having every label");
            Labels::ALL
        });
        self.call.labels().has_read(&labels);
    }

    fn conversation(&self) -> Refused<Conversation> {
        let chat = self.call.context().get("chat");
        let part = |name: &str| chat.and_then(|chat| chat.get(name)).and_then(Value::as_str).unwrap_or_default();
        if chat.is_none() && self.call.is_of_sandbox_import() {
            let message = "the call has no conversation, so it cannot use a sandbox";
            return Err(Box::new(CallOutcome::error(Code::Unavailable, message)));
        }
        if chat.is_none() {
            let message = "a sandbox belongs to a conversation; name the conversation in `chat`, next to the \
                           parameters";
            return Err(invalid("", message.to_owned()));
        }
        Conversation::new(part("app_id"), part("user_id"), part("chat_id"))
            .map_err(|error| invalid("", format!("chat: {error}")))
    }

    fn param(&self, name: &str) -> &str {
        self.permit.params().get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Converts an error of a sandbox that may have begun with its work.
    fn cut(&self, error: AccessError) -> Box<CallOutcome> {
        let outcome = self.failed(error);
        if outcome.code == Some(Code::Unavailable) {
            self.entry.left_unanswered();
        }
        outcome
    }

    /// Converts an error of the sandbox into an outcome for the caller. Details for the operator go to the log.
    fn failed(&self, error: AccessError) -> Box<CallOutcome> {
        let is_command = self.permit.tool() == SHELL;
        let outcome = match error {
            AccessError::Unavailable(reason) | AccessError::Provider(SandboxError::Unavailable(reason)) => {
                tracing::warn!(reason = with_causes(&reason), "the sandbox is not available");
                return Box::new(unavailable(self.call.language(), self.plugin, is_command));
            }
            AccessError::Store(error) => {
                tracing::error!(%error, "a database operation for a sandbox failed");
                return Box::new(unavailable(self.call.language(), self.plugin, is_command));
            }
            AccessError::Lost => {
                let outcome = CallOutcome::error(Code::Unavailable, lost_text(self.call.language(), self.plugin));
                if is_command { outcome.with_data(no_answer()) } else { outcome }
            }
            AccessError::OtherUser | AccessError::Conflict(_) => {
                // All cases get the same answer, so that the answer does not reveal the owner of the sandbox.
                let message =
                    "Permission denied: the sandbox of this name belongs to another conversation, user or bot";
                CallOutcome::failure(Status::PermissionDenied, Code::Denied, message).by_rule("sandbox.conversation")
            }
            AccessError::NotFound => CallOutcome::error(Code::Unavailable, "the sandbox no longer exists"),
            AccessError::Limit(message) => CallOutcome::error(Code::Limit, message),
            // The command may have run for a while before its sandbox was deleted.
            AccessError::Provider(SandboxError::NotFound(_)) if is_command => {
                CallOutcome::error(Code::Interrupted, TAKEN_AWAY).with_data(no_answer())
            }
            AccessError::Provider(SandboxError::Invalid(message) | SandboxError::NotFound(message)) => {
                CallOutcome::error(Code::InvalidParams, message).by_rule("input")
            }
            AccessError::Provider(SandboxError::Exhausted(message)) => {
                // A listing uses no memory or disk space of the sandbox, so this error means that the list is too long.
                let is_listing = self.permit.tool() == LIST_FILES;
                CallOutcome::error(if is_listing { Code::ResultTooLarge } else { Code::Limit }, message)
            }
            AccessError::Provider(SandboxError::Conflict(message) | SandboxError::Unsupported(message)) => {
                CallOutcome::error(Code::Unavailable, message)
            }
        };
        Box::new(outcome)
    }
}

fn invalid(path: &str, message: String) -> Box<CallOutcome> {
    Box::new(invalid_params(&[InputError { path: path.to_owned(), message }]))
}

/// Returns the outcome for an unavailable sandbox. For a command, the data has the exit code -1, which no command
/// returns.
fn unavailable(language: &Language, plugin: &Plugin, is_command: bool) -> CallOutcome {
    let outcome = CallOutcome::error(Code::Unavailable, unavailable_text(language, plugin));
    if !is_command {
        return outcome;
    }
    outcome.with_data(no_answer())
}

/// Returns the data for a command without a result: empty output and the exit code -1, which no command returns.
fn no_answer() -> JsonText {
    JsonText::from(&json!({
        "stdout": "", "stderr": "", "exitCode": -1, "termination": Termination::Lost.as_str(), "truncated": false,
        "durationMs": 0,
    }))
}

/// Returns the message for a sandbox that cannot be used, in the caller's language.
pub fn unavailable_text(language: &Language, plugin: &Plugin) -> String {
    plugin.locales.text(language.best(&plugin.locales), UNAVAILABLE_KEY, UNAVAILABLE_TEXT).to_owned()
}

/// Returns the message for a conversation whose sandbox has lost its files, in the caller's language.
pub fn lost_text(language: &Language, plugin: &Plugin) -> String {
    plugin.locales.text(language.best(&plugin.locales), LOST_KEY, LOST_TEXT).to_owned()
}

fn answer(output: &ExecOutput, stdout: &str, stderr: &str, truncated: bool) -> Value {
    json!({
        "stdout": stdout,
        "stderr": stderr,
        "exitCode": output.exit_code,
        "termination": output.termination.as_str(),
        "truncated": truncated,
        "durationMs": u64::try_from(output.duration.as_millis()).unwrap_or(u64::MAX),
    })
}

/// Reads the content of a file. Returns `None` if the file has more than [`FILE_BYTES_MAX`] bytes. The bytes are
/// counted while they are read, because the file may grow during the read.
pub async fn whole_file(size: u64, mut stream: ByteStream) -> Result<Option<Vec<u8>>, SandboxError> {
    if usize::try_from(size).map_or(true, |size| size > FILE_BYTES_MAX) {
        return Ok(None);
    }
    let mut content = Vec::new();
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        if content.len() + piece.len() > FILE_BYTES_MAX {
            return Ok(None);
        }
        content.extend_from_slice(&piece);
    }
    Ok(Some(content))
}

/// Returns the SHA-256 of the content that was read or written, for the audit.
pub fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

/// Removes all but the newest [`OUTPUTS_MAX`] outputs. Their names are request ids, which sort by time.
async fn forget_oldest(open: &Open) {
    let folder = format!("{WORKSPACE}/{OUTPUTS}");
    let Ok(entries) = open.list(&folder).await else { return };
    let mut names: Vec<String> = entries
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name.strip_suffix(".txt").is_some_and(|id| id.parse::<monstrum_types::RequestId>().is_ok()))
        .collect();
    names.sort_unstable();
    names.truncate(names.len().saturating_sub(OUTPUTS_MAX));
    for name in names {
        if let Err(error) = open.remove(&format!("{folder}/{name}")).await {
            tracing::debug!(error = %with_causes(&error), "failed to remove an old output from a sandbox");
        }
    }
}
