//! The record of the commands in sandboxes, with their outputs. The audit records commands without outputs; this record
//! is for people who look at a conversation, and it is deleted with its sandbox.
//!
//! Recording never delays or fails a command. A task for each command stores that it runs, waits for its end, and stores
//! the outputs. Secrets are redacted before an output is shortened, so that a cut cannot hide a part of a secret.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use monstrum_egress::Watch;
use monstrum_sandbox::{ExecOutput, Output, Termination};
use monstrum_store::{Listed, Page, SandboxOutputRow, SandboxOutputsMax, SandboxRow, Store, StoreError};
use monstrum_types::{Clock, RequestId, SandboxInstanceId, UtcMillis, WorkspaceId, with_causes, words};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::task::TaskTracker;

use crate::call_types::call_secrets::{CallSecrets, redact_text};
use crate::meters;

/// The maximum size of both outputs of a command.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// The maximum number of commands of a sandbox, and of bytes of their sealed records.
const SANDBOX_MAX: SandboxOutputsMax = SandboxOutputsMax { records: 200, bytes: 16 << 20 };
/// The maximum number of commands on a page. A page of this size has a few MiB.
pub const PAGE_COMMANDS_MAX: u32 = 50;
/// The maximum number of commands whose records are written or will be written. Further commands are not recorded. The
/// limit is above the number of commands that a host runs at the same time.
const TASKS_MAX: usize = 4096;
/// The maximum number of ended commands whose outputs wait for the database. With this number, the outputs use up to
/// 256 MiB while the database does not answer, because an output has up to 2 MiB before it is shortened.
const WAITING_MAX: usize = 128;
/// The time for which a reader waits for outputs of commands that have ended.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The room for the line that states the size of a removed part.
const MARK_BYTES: usize = 64;

words! {
    /// The state of a command.
    pub enum CommandState {
        Running = "running",
        Success = "success",
        /// The command ended with another exit code than 0, or by a signal.
        Failed = "failed",
        TimedOut = "timed_out",
        OutOfMemory = "out_of_memory",
        /// The end of the command is not known.
        Lost = "lost",
        /// The command did not start.
        Refused = "refused",
    }
}

impl CommandState {
    fn of(output: &ExecOutput) -> CommandState {
        match output.termination {
            Termination::Exited if output.exit_code == 0 => CommandState::Success,
            Termination::Exited | Termination::Signalled => CommandState::Failed,
            Termination::TimedOut => CommandState::TimedOut,
            Termination::OutOfMemory => CommandState::OutOfMemory,
            Termination::Cancelled | Termination::Lost => CommandState::Lost,
        }
    }
}

/// A recorded command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    pub command: String,
    /// A word of [`CommandState`].
    pub state: String,
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Whether parts of the outputs are missing.
    pub truncated: bool,
    pub started_at: UtcMillis,
    pub duration_ms: Option<u64>,
    /// The time after which the command cannot run any more.
    until: UtcMillis,
}

/// A command that is to be recorded.
pub struct Begun {
    pub request: RequestId,
    pub command: String,
    /// The time within which the command ends.
    pub limit: Duration,
    pub secrets: Arc<CallSecrets>,
}

/// The end of a command.
enum End {
    Output(ExecOutput),
    Refused(String),
}

/// An error while a command is recorded or read.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the record of a command cannot be sealed or opened")]
    Vault(#[from] VaultError),
    #[error("the record of a command is not in the expected form")]
    Form(#[source] serde_json::Error),
}

/// The records of the commands of this host.
pub struct Outputs {
    store: Store,
    vault: Arc<Vault>,
    clock: Arc<dyn Clock>,
    is_kept: bool,
    tasks: TaskTracker,
    room: Arc<Semaphore>,
    waiting_room: Arc<Semaphore>,
    /// The number of ended commands of each sandbox whose outputs are not stored yet.
    waiting: Mutex<HashMap<SandboxInstanceId, usize>>,
    stored: Notify,
    /// Whether a failure was logged since the last success, so that a broken database does not fill the log.
    has_failed: AtomicBool,
}

/// The record of a running command. If it is dropped, the command counts as lost.
pub struct Recording {
    outputs: Arc<Outputs>,
    sandbox: SandboxInstanceId,
    end: oneshot::Sender<(End, Waiting)>,
}

/// An ended command whose outputs are not stored yet.
struct Waiting {
    outputs: Arc<Outputs>,
    sandbox: SandboxInstanceId,
    _room: OwnedSemaphorePermit,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = self.outputs.waiting.lock();
        if let Some(count) = waiting.get_mut(&self.sandbox) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.sandbox);
            }
        }
        drop(waiting);
        self.outputs.stored.notify_waiters();
    }
}

impl Recording {
    /// Records the outputs of the command.
    pub fn end(self, output: &ExecOutput) {
        self.close(|| End::Output(output.clone()));
    }

    /// Records that the command did not start, with the reason.
    pub fn refused(self, reason: &str) {
        self.close(|| End::Refused(reason.to_owned()));
    }

    fn close(self, end: impl FnOnce() -> End) {
        let Ok(room) = Arc::clone(&self.outputs.waiting_room).try_acquire_owned() else {
            self.outputs.failed(&"too many outputs wait for the database");
            return;
        };
        *self.outputs.waiting.lock().entry(self.sandbox).or_default() += 1;
        let waiting = Waiting { outputs: Arc::clone(&self.outputs), sandbox: self.sandbox, _room: room };
        // The error means that the task has ended, because its runtime is shutting down.
        drop(self.end.send((end(), waiting)));
    }
}

impl Outputs {
    /// Creates the records. If `is_kept` is false, nothing is recorded, and earlier records can still be read.
    pub fn new(store: Store, vault: Arc<Vault>, clock: Arc<dyn Clock>, is_kept: bool) -> Arc<Outputs> {
        Arc::new(Outputs {
            store,
            vault,
            clock,
            is_kept,
            tasks: TaskTracker::new(),
            room: Arc::new(Semaphore::new(TASKS_MAX)),
            waiting_room: Arc::new(Semaphore::new(WAITING_MAX)),
            waiting: Mutex::default(),
            stored: Notify::new(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Records that a command runs in a sandbox. Returns `None` if commands are not recorded.
    pub fn begin(self: &Arc<Self>, sandbox: &SandboxRow, begun: Begun) -> Option<Recording> {
        if !self.is_kept || self.tasks.is_closed() {
            return None;
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            self.failed(&"too many commands run at the same time");
            return None;
        };
        let (end, ended) = oneshot::channel();
        let (this, workspace, sandbox) = (Arc::clone(self), sandbox.workspace_id, sandbox.id);
        self.tasks.spawn(async move {
            let _room = room;
            this.follow(workspace, sandbox, begun, ended).await;
        });
        Some(Recording { outputs: Arc::clone(self), sandbox, end })
    }

    async fn follow(
        &self,
        workspace: WorkspaceId,
        sandbox: SandboxInstanceId,
        begun: Begun,
        ended: oneshot::Receiver<(End, Waiting)>,
    ) {
        let now = self.clock.now();
        let limit_ms = i64::try_from(begun.limit.as_millis()).unwrap_or(i64::MAX);
        let running = Command {
            command: begun.command,
            state: CommandState::Running.as_str().to_owned(),
            exit_code: None,
            stdout: String::new(),
            stderr: String::new(),
            truncated: false,
            started_at: now,
            duration_ms: None,
            until: now.plus_ms(limit_ms),
        };
        let place = (workspace, sandbox, begun.request);
        let first = self.redacted(running.clone(), &begun.secrets).await;
        self.put(place, &first).await;
        let (command, _waiting) = match ended.await {
            Ok((end, waiting)) => (ended_command(running, end), Some(waiting)),
            Err(_) => (Command { state: CommandState::Lost.as_str().to_owned(), ..running }, None),
        };
        let command = self.redacted(command, &begun.secrets).await;
        self.put(place, &command).await;
    }

    /// Redacts the secrets of the call in a command, and then shortens the outputs. If the search for secrets fails, all
    /// texts are left out.
    async fn redacted(&self, mut command: Command, secrets: &CallSecrets) -> Command {
        let texts = [&mut command.command, &mut command.stdout, &mut command.stderr].map(std::mem::take);
        let bytes = texts.iter().map(String::len).sum();
        // The search has a budget of its own, so that it leaves the budget of the answer untouched.
        let budget = Arc::default();
        let search = secrets.search(bytes, &budget, move |redactors, watch: &Watch| {
            texts.into_iter().map(|text| redact_text(text, redactors, watch)).collect::<Result<Vec<_>, _>>()
        });
        let texts = match search.await {
            Ok(texts) => texts,
            Err(withheld) => {
                self.failed(&withheld.message());
                return Command { truncated: true, ..command };
            }
        };
        let mut texts = texts.into_iter();
        let mut next = || texts.next().unwrap_or_default();
        shortened(Command { command: next(), stdout: next(), stderr: next(), ..command })
    }

    async fn put(&self, place: (WorkspaceId, SandboxInstanceId, RequestId), command: &Command) {
        match self.stored(place, command).await {
            // A sandbox that was deleted has no records.
            Ok(_) => self.has_failed.store(false, Ordering::Relaxed),
            Err(error) => self.failed(&with_causes(&error)),
        }
    }

    async fn stored(
        &self,
        (workspace_id, sandbox_id, request_id): (WorkspaceId, SandboxInstanceId, RequestId),
        command: &Command,
    ) -> Result<bool, OutputError> {
        let text = serde_json::to_vec(command).map_err(OutputError::Form)?;
        let sealed = self.vault.seal(&text, place(workspace_id, sandbox_id, request_id))?.to_string();
        let row = SandboxOutputRow { request_id, workspace_id, sandbox_id, sealed };
        Ok(self.store.put_sandbox_output(&row, SANDBOX_MAX).await?)
    }

    /// Counts a command whose record is not complete, and logs the first failure after a success.
    fn failed(&self, error: &dyn std::fmt::Display) {
        meters::sandbox_output_lost();
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "failed to keep the output of a command in a sandbox");
        }
    }

    /// Returns a page of the commands of a sandbox, newest first, with the outputs of all commands that have ended.
    pub async fn list(
        &self,
        sandbox: &SandboxRow,
        page: &Page<RequestId>,
    ) -> Result<Listed<(RequestId, Command), RequestId>, OutputError> {
        self.flush(sandbox.id).await;
        let page = Page { limit: page.limit.min(PAGE_COMMANDS_MAX), cursor: page.cursor };
        let Listed { items, next_cursor } = self.store.sandbox_outputs(sandbox.workspace_id, sandbox.id, &page).await?;
        let now = self.clock.now();
        let opened = items.into_iter().map(|row| {
            let place = place(row.workspace_id, row.sandbox_id, row.request_id);
            let text = self.vault.unseal(&row.sealed.parse()?, place)?;
            let command: Command = serde_json::from_slice(&text).map_err(OutputError::Form)?;
            Ok((row.request_id, at(command, now)))
        });
        Ok(Listed { items: opened.collect::<Result<_, OutputError>>()?, next_cursor })
    }

    /// Waits until the outputs of the commands that have ended are stored.
    async fn flush(&self, sandbox: SandboxInstanceId) {
        let flushed = async {
            loop {
                let mut stored = std::pin::pin!(self.stored.notified());
                stored.as_mut().enable();
                if !self.waiting.lock().contains_key(&sandbox) {
                    return;
                }
                stored.await;
            }
        };
        // After the time limit, the page shows these commands as running.
        drop(tokio::time::timeout(FLUSH_MAX, flushed).await);
    }

    /// Waits until all records are stored. No further command is recorded.
    pub async fn shut_down(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns the associated data of the sealed record of a command.
pub fn place(workspace: WorkspaceId, sandbox: SandboxInstanceId, request: RequestId) -> AssociatedData {
    AssociatedData::new("sandbox output")
        .with("workspace", &workspace)
        .with("sandbox", &sandbox)
        .with("request", &request)
}

/// Returns a command as it is at `now`. A running command whose time has passed was lost with its host.
fn at(command: Command, now: UtcMillis) -> Command {
    if command.state == CommandState::Running.as_str() && command.until < now {
        return Command { state: CommandState::Lost.as_str().to_owned(), ..command };
    }
    command
}

fn ended_command(running: Command, end: End) -> Command {
    match end {
        End::Output(output) => Command {
            state: CommandState::of(&output).as_str().to_owned(),
            // The exit code of a command whose end is not known says nothing.
            exit_code: Some(output.exit_code).filter(|_| CommandState::of(&output) != CommandState::Lost),
            truncated: output.is_truncated(),
            duration_ms: Some(u64::try_from(output.duration.as_millis()).unwrap_or(u64::MAX)),
            stdout: marked(output.stdout),
            stderr: marked(output.stderr),
            ..running
        },
        End::Refused(reason) => Command { state: CommandState::Refused.as_str().to_owned(), stderr: reason, ..running },
    }
}

/// Returns the captured text of a stream. A first line states how many older bytes the provider has dropped.
fn marked(stream: Output) -> String {
    if !stream.is_truncated {
        return stream.text;
    }
    let written = usize::try_from(stream.bytes).unwrap_or(usize::MAX);
    format!("{}{}", mark(written.saturating_sub(stream.text.len())), stream.text)
}

fn mark(bytes: usize) -> String {
    format!("[{bytes} bytes were cut here]\n")
}

/// Shortens the outputs to [`OUTPUT_BYTES_MAX`]. A stream that needs less than half leaves its room to the other stream.
fn shortened(command: Command) -> Command {
    let half = OUTPUT_BYTES_MAX / 2;
    let (stdout, stderr) = (command.stdout.len(), command.stderr.len());
    let stdout_max =
        if stderr <= half { OUTPUT_BYTES_MAX - stderr } else { half.max(OUTPUT_BYTES_MAX.saturating_sub(stderr)) };
    let stderr_max = OUTPUT_BYTES_MAX - stdout.min(stdout_max);
    let is_cut = stdout > stdout_max || stderr > stderr_max;
    Command {
        stdout: head_and_tail(command.stdout, stdout_max),
        stderr: head_and_tail(command.stderr, stderr_max),
        truncated: command.truncated || is_cut,
        ..command
    }
}

/// Returns the start and the end of a text, with a line between them that states how many bytes are missing.
fn head_and_tail(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    let half = bytes_max.saturating_sub(MARK_BYTES) / 2;
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    let line_end = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    format!("{head}{line_end}{}{tail}", mark(text.len() - head.len() - tail.len()))
}

#[cfg(test)]
mod tests {
    use monstrum_egress::Redactor;
    use monstrum_store::StoreOptions;
    use monstrum_types::{Secret, SystemClock};
    use monstrum_vault::MasterKeys;

    use super::*;

    fn command(stdout: String, stderr: String) -> Command {
        Command {
            command: "x".to_owned(),
            state: CommandState::Running.as_str().to_owned(),
            exit_code: None,
            stdout,
            stderr,
            truncated: false,
            started_at: UtcMillis(0),
            duration_ms: None,
            until: UtcMillis(1_000),
        }
    }

    #[tokio::test]
    async fn secrets_are_redacted_before_an_output_is_cut() {
        const SECRET: &str = "s3cr3t-t0ken/x";
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
        let vault = Arc::new(Vault::new(MasterKeys::create(&folder.path().join("master.key")).unwrap()));
        let outputs = Outputs::new(store, vault, Arc::new(SystemClock), true);
        let secrets = CallSecrets::default();
        secrets.redact_with(Arc::new(Redactor::new([Secret::new(SECRET.to_owned())])));
        // In one of these texts, the secret lies across the place of the cut.
        for before in (0..SECRET.len()).map(|offset| (OUTPUT_BYTES_MAX - MARK_BYTES) / 2 - offset) {
            let stdout = format!("{}{SECRET}{}", "o".repeat(before), "o".repeat(OUTPUT_BYTES_MAX));
            let command = Command { command: format!("echo {SECRET}"), ..command(stdout, SECRET.to_owned()) };
            let redacted = outputs.redacted(command, &secrets).await;
            assert_eq!((redacted.command.as_str(), redacted.stderr.as_str()), ("echo [redacted]", "[redacted]"));
            assert!(redacted.truncated && !redacted.stdout.contains("s3"), "{before}");
        }
    }

    #[test]
    fn outputs_share_the_room_and_keep_their_start_and_end() {
        let fits = shortened(command("o".repeat(OUTPUT_BYTES_MAX - 1), "e".to_owned()));
        assert!(!fits.truncated && fits.stdout.len() + fits.stderr.len() == OUTPUT_BYTES_MAX);
        let text = |letter: &str| format!("first\n{}last\n", letter.repeat(100_000));
        for (stdout, stderr) in [(text("o"), String::new()), (text("é"), text("e")), ("small".to_owned(), text("é"))]
        {
            let cut = shortened(command(stdout.clone(), stderr.clone()));
            assert!(cut.truncated && cut.stdout.len() + cut.stderr.len() <= OUTPUT_BYTES_MAX);
            for (cut, whole) in [(&cut.stdout, &stdout), (&cut.stderr, &stderr)] {
                if whole.len() > OUTPUT_BYTES_MAX {
                    assert!(cut.starts_with("first\n") && cut.ends_with("last\n"), "{cut}");
                    assert_eq!(cut.matches(" bytes were cut here]").count(), 1);
                } else {
                    assert_eq!(cut, whole);
                }
            }
        }
    }

    #[test]
    fn the_mark_counts_the_missing_bytes() {
        let cut = head_and_tail("a".repeat(200), 104);
        assert_eq!(cut, format!("{}\n[160 bytes were cut here]\n{}", "a".repeat(20), "a".repeat(20)));
        let dropped = Output { text: "end\n".to_owned(), bytes: 10, is_truncated: true };
        assert_eq!(marked(dropped), "[6 bytes were cut here]\nend\n");
    }

    #[test]
    fn a_running_command_whose_time_has_passed_is_lost() {
        let state = |now| at(command(String::new(), String::new()), UtcMillis(now)).state;
        assert_eq!((state(1_000), state(1_001)), ("running".to_owned(), "lost".to_owned()));
    }
}
