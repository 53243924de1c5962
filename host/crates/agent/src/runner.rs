//! The turns of tasks: asks the model, runs the calls that it asks for, and goes on until the task ends.
//!
//! The runner has no rights. Each round and each call is a call of the pipeline by the bot of the task, with the key that
//! started the task, and the policy of that moment decides about it. Everything that the runner knows is in the journal,
//! so another host can continue at any point.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use monstrum_core::app::App;
use monstrum_core::call_types::call_secrets::SharedRedactors;
use monstrum_core::call_types::incoming::{Attachments, CallerKey, IncomingCall};
use monstrum_core::call_types::task_step::TaskOfCall;
use monstrum_core::events::EventType;
use monstrum_core::meters;
use monstrum_engine::{Handler, Turn, TurnError, TurnOutcome};
use monstrum_llm::Message;
use monstrum_manifest::Effect;
use monstrum_store::{AfterTurn, StoreError, TaskEnd, TaskRow, TaskStatus};
use monstrum_types::{AwaitedApproval, Code, Labels, TaskId, WakeKind, WorkspaceId, with_causes, words};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::calls::ended;
use crate::journal::{self, JournalError, StepOutcome, TaskContent};
use crate::links::LinksOfTask;
use crate::live::{LiveTask, LiveTasks};
use crate::places::{PlaceOfTask, Places};
use crate::present;
use crate::reported;
use crate::rounds::RoundEnd;
use crate::spans::of_task;
use crate::state::State;
use crate::waits::Waits;

/// The number of failed turns in a row after which a task ends. Turns fail if the database or the audit fails, so the
/// task has then waited for about half an hour.
const FAILED_TURNS_MAX: i64 = 8;
/// The time in which running calls can end when the host stops. It is shorter than the time for which the engine waits.
const CALLS_END_MAX: Duration = Duration::from_secs(4);
/// The interval at which a task of a shared database looks whether a caller of another host has cancelled it.
const CANCEL_POLL: Duration = Duration::from_millis(500);
/// The same interval for a task that waits for a place. Such a task runs nothing, and many can wait.
const WAITING_CANCEL_POLL: Duration = Duration::from_secs(5);
/// The time until a task tries again to record what it waits for, after a failure of the database.
const WAIT_RETRY: Duration = Duration::from_secs(1);
/// The maximum number of steps that are read at once.
const STEPS_READ: u32 = 200;
/// The maximum number of earlier tasks of a session that the model reads.
const EARLIER_TASKS_MAX: u32 = 50;
/// The maximum size of the earlier tasks of a session that the model reads, about 25 000 tokens.
const EARLIER_BYTES_MAX: usize = 100_000;
/// The maximum size of the result in the event of a task.
const EVENT_RESULT_BYTES_MAX: usize = 4 << 10;

words! {
    /// Why a task failed.
    pub enum TaskCode {
        Steps = "steps",
        WallClock = "wall_clock",
        Budget = "budget",
        Stuck = "stuck",
        Model = "model",
        ModelOutput = "model_output",
        Context = "context",
        Revoked = "revoked",
        Internal = "internal",
    }
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed(String),
    Failed(TaskCode, String),
    Cancelled,
}

/// How a task ended, and the labels of what it has read.
type Ended = (Ending, Labels);

/// How the work of a turn ended.
enum RunEnd {
    Task(Ended),
    /// Steps of the task wait for decisions.
    Waits(Vec<(i64, AwaitedApproval)>),
    /// The turn was cancelled.
    Turn,
}

/// Why a task stops before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The turn ends, and the task continues in another turn.
    Turn,
    /// The turn ends, because the task waits for a decision.
    Waits,
    /// A caller has cancelled the task.
    Cancelled,
    WallClock,
    /// The key that started the task was deleted or rotated.
    Revoked,
    /// A delegation under which the bot acts is no longer in force.
    Undelegated,
}

/// Why a turn ends without the end of its task.
#[derive(Debug)]
pub(crate) enum Interrupted {
    Failed(String),
    Store(StoreError),
    /// The task was deleted, or the policy does not have its bot.
    Gone,
}

impl From<StoreError> for Interrupted {
    fn from(error: StoreError) -> Self {
        Interrupted::Store(error)
    }
}

impl From<JournalError> for Interrupted {
    fn from(error: JournalError) -> Self {
        Interrupted::Failed(with_causes(&error))
    }
}

/// Runs the turns of tasks.
pub struct Runner {
    pub(crate) app: Arc<App>,
    live: Arc<LiveTasks>,
    pub(crate) places: Places,
}

/// One turn of one task.
pub(crate) struct TaskTurn<'a> {
    pub(crate) runner: &'a Runner,
    pub(crate) turn: &'a Turn,
    pub(crate) row: &'a TaskRow,
    pub(crate) content: &'a TaskContent,
    /// The key that started the task, with which its calls are made.
    pub(crate) key: Option<CallerKey>,
    /// The links under which the bot acts.
    pub(crate) links: LinksOfTask,
    pub(crate) place: Arc<PlaceOfTask>,
    pub(crate) live: &'a LiveTask,
    /// What the task waits for, and its wall clock.
    pub(crate) waits: Arc<Waits>,
    stop: OnceLock<Stop>,
    /// Ends the running calls.
    pub(crate) stop_calls: CancellationToken,
    /// The secrets that the task can have used. An earlier turn may have left parts of them in the journal.
    secrets: SharedRedactors,
    /// The labels of what the model has read until now.
    pub(crate) labels: Mutex<Labels>,
    /// The steps whose approvals have expired while the task waited for them.
    pub(crate) expired: HashSet<i64>,
    /// The steps that wait for decisions while the task has no turn, each with its approval.
    pub(crate) parked: Mutex<Vec<(i64, AwaitedApproval)>>,
}

impl Runner {
    /// Creates a runner that has no tasks yet.
    #[must_use]
    pub fn new(app: Arc<App>, live: Arc<LiveTasks>) -> Runner {
        Runner { app, live, places: Places::new() }
    }

    /// Waits until a caller of another host has cancelled a task, or has deleted it.
    async fn cancelled_elsewhere(&self, workspace: WorkspaceId, id: TaskId, interval: Duration) {
        if !self.app.store.is_shared() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(interval).await;
            // A failure of the database ends the turn elsewhere.
            if let Ok(false) = self.app.store.is_task_wanted(workspace, id).await {
                return;
            }
        }
    }

    /// Runs a task until it ends or its turn does.
    async fn run(
        &self,
        turn: &Turn,
        row: &TaskRow,
        (live, place, expired): (&LiveTask, PlaceOfTask, HashSet<i64>),
    ) -> Result<RunEnd, Interrupted> {
        let app = &self.app;
        let ended = |ending| Ok(RunEnd::Task((ending, Labels::none())));
        let content = match journal::open_task(&app.vault, row) {
            Ok(content) => content,
            Err(error) => {
                tracing::error!(error = %with_causes(&error), task.id = %row.id, "a task cannot be opened");
                let message = "the record of the task cannot be opened";
                return ended(Ending::Failed(TaskCode::Internal, message.to_owned()));
            }
        };
        if let Some(ending) = recorded_ending(row, &content) {
            tracing::error!(task.id = %row.id, "the row of a task that has ended was set back by another program");
            return ended(ending);
        }
        if turn.claim().failures >= FAILED_TURNS_MAX {
            let message = "the server could not continue the task; search its log for the id of the task";
            return ended(Ending::Failed(TaskCode::Internal, message.to_owned()));
        }
        let key = match content.source.key(row.key_id) {
            Ok(key) => key,
            Err(error) => return ended(Ending::Failed(TaskCode::Internal, error.to_string())),
        };
        let since = row.started_at.unwrap_or(row.created_at);
        let ends_at = since.plus_ms(i64::from(content.limits.wall_s).saturating_mul(1000)).plus_ms(row.waited_ms);
        let left = u64::try_from(ends_at.since_ms(app.clock.now())).unwrap_or(0);
        let user = content.user();
        let task = TaskTurn {
            runner: self,
            turn,
            row,
            content: &content,
            key,
            links: LinksOfTask::new(row.workspace_id, &content.links),
            place: Arc::new(place),
            live,
            waits: Waits::new(Instant::now() + Duration::from_millis(left)),
            stop: OnceLock::new(),
            stop_calls: CancellationToken::new(),
            secrets: app.policy.load().redactors_of(row.workspace_id, row.bot_id, user.as_ref()),
            labels: Mutex::default(),
            expired,
            parked: Mutex::default(),
        };
        // A task for whose answer a call waited has ended with its call, which may have ended with its host.
        let is_abandoned = content.source.waiting_call().is_some_and(|call| !self.live.is_waiting(call));
        if content.request.is_some() {
            live.has_clients();
        }
        if row.cancelled_at.is_some() || is_abandoned {
            task.stops_for(Stop::Cancelled);
        }
        let ended = tokio::select! {
            ended = task.run().instrument(of_task(row)) => ended,
            never = task.watch() => match never {},
        };
        Ok(match task.closed(ended).await? {
            Some(ending) => RunEnd::Task((ending, task.labels.into_inner())),
            None if task.stop.get() == Some(&Stop::Waits) => RunEnd::Waits(task.parked.into_inner()),
            None => RunEnd::Turn,
        })
    }

    /// Ends the turn of a task that was deleted. Fails if the task is still there: the policy may lack its bot for a
    /// while, because a workspace cannot be verified or a change has not been read.
    async fn gone(&self, turn: &Turn, id: TaskId) -> Result<TurnOutcome, TurnError> {
        match self.app.store.task(turn.workspace(), id).await? {
            Some(row) if row.ended_at.is_none() => {
                Err(TurnError::Failed("the bot of the task is not in the policy".to_owned()))
            }
            _ => Ok(TurnOutcome::Done),
        }
    }

    /// Writes the end of a task.
    async fn end(&self, turn: &Turn, row: &TaskRow, (ending, labels): Ended) -> Result<AfterTurn, Interrupted> {
        let (app, now) = (&self.app, self.app.clock.now());
        let code_word = if let Ending::Failed(code, _) = &ending { code.as_str() } else { "" };
        let (status, event_type, code) = match &ending {
            Ending::Completed(_) => (TaskStatus::Completed, EventType::TaskCompleted, None),
            Ending::Failed(code, _) => (TaskStatus::Failed, EventType::TaskFailed, Some(code.as_str().to_owned())),
            Ending::Cancelled => (TaskStatus::Cancelled, EventType::TaskCancelled, None),
        };
        let (result, message) = match ending {
            Ending::Completed(result) => (Some(result), None),
            Ending::Failed(_, message) => (None, Some(message)),
            Ending::Cancelled => (None, None),
        };
        let first = |text: &String| text[..text.floor_char_boundary(EVENT_RESULT_BYTES_MAX)].to_owned();
        let data = json!({
            "bot_id": row.bot_id,
            "status": status.as_str(),
            "code": code,
            "result": result.as_ref().map(first),
            "error": message.as_ref().map(first),
        });
        let content = journal::open_task(&app.vault, row);
        let event = reported::ended(&app.vault, (row, content.as_ref().ok()), (event_type, data), now);
        let event = event.map_err(|error| Interrupted::Failed(with_causes(&error)))?;
        // The record of a task that cannot be opened is kept as it is.
        let sealed = match content {
            Ok(mut content) => {
                content.is_cancelled = status == TaskStatus::Cancelled;
                (content.result, content.message) = (result, message);
                content.labels.add(&labels);
                journal::seal_task(&app.vault, row, &content)?
            }
            Err(_) => row.sealed.clone(),
        };
        let end = TaskEnd { task_id: row.id, status, code, ended_at: now, sealed };
        let ended = app.store.end_task(turn.claim(), &end, &event).await?;
        meters::task_ended(status.as_str(), code_word);
        app.emitter.signal_wakes(&ended.wakes);
        Ok(ended.after)
    }
}

/// Returns the end of a task that its sealed record contains. A task with such an end does not run again, even if the
/// columns of its row were changed.
fn recorded_ending(row: &TaskRow, content: &TaskContent) -> Option<Ending> {
    if content.is_cancelled {
        return Some(Ending::Cancelled);
    }
    if let Some(result) = &content.result {
        return Some(Ending::Completed(result.clone()));
    }
    let code = row.code.as_deref().and_then(TaskCode::from_word).unwrap_or(TaskCode::Internal);
    content.message.clone().map(|message| Ending::Failed(code, message))
}

#[async_trait]
impl Handler for Runner {
    fn kind(&self) -> WakeKind {
        WakeKind::Task
    }

    async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, TurnError> {
        let Ok(id) = turn.key().id().parse::<TaskId>() else { return Ok(TurnOutcome::Done) };
        let store = &self.app.store;
        let Some(queued) = store.task(turn.workspace(), id).await? else { return Ok(TurnOutcome::Done) };
        if let Some(look_at) = self.still_waits(&queued).await? {
            return Ok(TurnOutcome::Rest(look_at));
        }
        let expired = self.expired_steps(&queued).await?;
        let live = self.live.of(id);
        let place = tokio::select! {
            place = self.places.enter(queued.workspace_id, queued.bot_id) => Some(place),
            // The turn of a task that is cancelled while it waits needs no place.
            () = live.cancel.cancelled() => None,
            () = self.cancelled_elsewhere(queued.workspace_id, id, WAITING_CANCEL_POLL) => None,
            () = turn.cancelled() => return Err(TurnError::Cancelled),
        };
        let Some(row) = store.begin_task_turn(turn.claim(), id, self.app.clock.now()).await? else {
            return Ok(TurnOutcome::Done);
        };
        self.app.ledger.settle_of_task(row.workspace_id, row.id).await?;
        live.changed();
        let ended = async {
            match self.run(turn, &row, (&live, PlaceOfTask::new(place), expired)).await? {
                RunEnd::Task(ended) => self.end(turn, &row, ended).await.map(Some),
                RunEnd::Waits(steps) => Ok(Some(self.park(turn, id, steps).await?)),
                RunEnd::Turn => Ok(None),
            }
        };
        let outcome = match ended.await {
            Ok(Some(after)) => Ok(TurnOutcome::Ended(after)),
            Ok(None) => Err(TurnError::Cancelled),
            Err(Interrupted::Gone) => self.gone(turn, id).await,
            Err(Interrupted::Store(error)) => Err(TurnError::Store(error)),
            Err(Interrupted::Failed(message)) => Err(TurnError::Failed(message)),
        };
        live.changed();
        outcome
    }
}

impl TaskTurn<'_> {
    /// Runs the task until it ends, or until it stops.
    async fn run(&self) -> Result<Option<Ending>, Interrupted> {
        let mut state = self.read().await?;
        self.resume(&mut state).await?;
        loop {
            if self.stops() {
                return Ok(None);
            }
            let calls = state.unended();
            self.run_calls(&mut state, calls).await?;
            if self.is_parked() {
                self.stop.get_or_init(|| Stop::Waits);
                return Ok(None);
            }
            self.attended().await;
            if self.stops() {
                return Ok(None);
            }
            state.close_round();
            self.labels.lock().add(state.labels());
            if let Some(ending) = self.ending(&state) {
                return Ok(Some(ending));
            }
            if self.has_spent_its_credits().await? {
                let message = "the task has used all its credits without an answer".to_owned();
                return Ok(Some(Ending::Failed(TaskCode::Budget, message)));
            }
            match self.round(&mut state).await? {
                RoundEnd::Goes => {}
                RoundEnd::Ends(ending) => return Ok(Some(ending)),
                RoundEnd::Stopped => return Ok(None),
            }
        }
    }

    /// Reads the journal.
    async fn read(&self) -> Result<State, Interrupted> {
        let (store, vault) = (&self.runner.app.store, &self.runner.app.vault);
        let labels = self.first_labels().await?;
        let mut state = match self.conversation() {
            Some(messages) => State::of_conversation(messages, labels),
            None => State::new(self.first_messages().await?, labels),
        };
        let mut after = 0;
        loop {
            let rows = store.task_steps(self.row.workspace_id, self.row.id, after, STEPS_READ).await?;
            let Some(last) = rows.last() else {
                self.labels.lock().add(state.labels());
                return Ok(state);
            };
            after = last.sequence;
            for row in rows {
                let content = journal::open_step(vault, &row)?;
                state.add(row, content);
            }
        }
    }

    /// Returns the messages before the first round: the earlier tasks of the session and the instruction.
    async fn first_messages(&self) -> Result<Vec<Message>, Interrupted> {
        let app = &self.runner.app;
        let mut earlier = Vec::new();
        let (mut bytes, mut before) = (0, self.row.clone());
        for _ in 0..EARLIER_TASKS_MAX {
            // One row at once, because each can have several MiB.
            let Some(row) = app.store.earlier_tasks(&before, 1).await?.pop() else { break };
            before = row;
            // A record that cannot be opened was edited by another program.
            let Ok(content) = journal::open_task(&app.vault, &before) else { continue };
            let answer = match (content.result, content.message) {
                (Some(result), _) => result,
                (None, Some(message)) => format!("(No answer: {message}.)"),
                (None, None) => "(No answer: the task was cancelled.)".to_owned(),
            };
            let asked = present::instruction(&content.instruction, content.params.as_ref());
            bytes += asked.len() + answer.len();
            if bytes > EARLIER_BYTES_MAX {
                break;
            }
            earlier.push((asked, answer));
        }
        let mut messages = Vec::with_capacity(2 * earlier.len() + 1);
        for (asked, answer) in earlier.into_iter().rev() {
            let answer = monstrum_llm::AssistantMessage { text: answer, ..Default::default() };
            messages.extend([Message::user(asked), Message::Assistant(answer)]);
        }
        messages.push(Message::user(present::instruction(&self.content.instruction, self.content.params.as_ref())));
        Ok(messages)
    }

    /// Returns how the task ended. If it was stopped, the calls that have no end get one.
    async fn closed(&self, ended_by: Result<Option<Ending>, Interrupted>) -> Result<Option<Ending>, Interrupted> {
        let app = &self.runner.app;
        if let Some(ending) = ended_by? {
            return Ok(Some(ending));
        }
        let ending = match self.stop.get() {
            None | Some(Stop::Turn | Stop::Waits) => return Ok(None),
            Some(Stop::Cancelled) => Ending::Cancelled,
            Some(Stop::WallClock) => {
                let message = format!("the task did not end within its {} seconds", self.content.limits.wall_s);
                Ending::Failed(TaskCode::WallClock, message)
            }
            Some(Stop::Revoked) => {
                let message = "the key that started the task was deleted or rotated".to_owned();
                Ending::Failed(TaskCode::Revoked, message)
            }
            Some(Stop::Undelegated) => {
                let message = "a delegation under which the bot worked is no longer in force".to_owned();
                Ending::Failed(TaskCode::Revoked, message)
            }
        };
        let mut ends = Vec::new();
        let state = self.read().await?;
        // Results that the model has not read can be in the sandbox of the conversation.
        self.labels.lock().add(&state.labels_of_results());
        for planned in state.unended() {
            let Some(request_id) = planned.request_id() else { continue };
            let may_have_acted = self.has_started(&planned, request_id).await?;
            let outcome = match may_have_acted && planned.effect() == Effect::Write {
                true => StepOutcome::uncertain(),
                false => StepOutcome::failed(Code::Cancelled, "the task ended before this call ran"),
            };
            ends.push(ended(&app.vault, &*app.clock, self.turn.claim(), &planned, &outcome)?);
        }
        app.store.end_task_steps(&ends).await?;
        Ok(Some(ending))
    }

    /// Watches for what stops the task, and never returns.
    async fn watch(&self) -> std::convert::Infallible {
        let app = &self.runner.app;
        let (mut renewals, mut waits) = (app.policy.renewals(), self.waits.listen());
        let (workspace, id) = (self.row.workspace_id, self.row.id);
        let mut unattended = std::pin::pin!(self.unattended());
        // What the row is to say about the wait of the task, until it is written.
        let mut unwritten = None;
        loop {
            self.check_grounds();
            tokio::select! {
                () = self.turn.cancelled() => {
                    self.stop.get_or_init(|| Stop::Turn);
                    // Running calls may end by themselves, so that fewer of them are uncertain. Without the lease, they
                    // end at once, because another host may go on with the task.
                    tokio::select! {
                        () = tokio::time::sleep(CALLS_END_MAX) => {}
                        () = self.turn.lost() => {}
                    }
                    self.stop_calls.cancel();
                    std::future::pending::<()>().await;
                }
                () = self.live.cancel.cancelled(), if self.stop.get().is_none() => self.stops_for(Stop::Cancelled),
                () = self.waits.run_out(), if self.stop.get().is_none() => self.stops_for(Stop::WallClock),
                // The sender lives as long as the task.
                Ok(()) = waits.changed() => {
                    let waits_for = waits.borrow_and_update().clone();
                    if waits_for.is_some() {
                        // The task takes a place again when its call has ended.
                        self.place.give_up();
                    }
                    unwritten = Some(waits_for);
                }
                () = self.record_wait(unwritten.as_ref()), if unwritten.is_some() => unwritten = None,
                () = &mut unattended, if self.stop.get().is_none() => self.stops_for(Stop::Cancelled),
                () = self.delegation_expired(), if self.stop.get().is_none() => {}
                changed = renewals.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                () = self.runner.cancelled_elsewhere(workspace, id, CANCEL_POLL), if self.stop.get().is_none() => {
                    self.stops_for(Stop::Cancelled);
                }
            }
        }
    }

    /// Writes what the task waits for into its row. Tries again until the database takes it, because the time of a wait
    /// does not count.
    async fn record_wait(&self, waits_for: Option<&Option<AwaitedApproval>>) {
        let Some(waits_for) = waits_for else { return };
        let (app, claim) = (&self.runner.app, self.turn.claim());
        let waits_for = waits_for.as_ref().map(|approval| format!("approval/{}", approval.id));
        let now = app.clock.now();
        while let Err(error) = app.store.set_task_waiting(claim, self.row.id, waits_for.as_deref(), now).await {
            tracing::warn!(error = %with_causes(&error), task.id = %self.row.id, "cannot record what a task waits for");
            tokio::time::sleep(WAIT_RETRY).await;
        }
        self.live.changed();
    }

    /// Stops the task and ends its running calls.
    pub(crate) fn stops_for(&self, stop: Stop) {
        self.stop.get_or_init(|| stop);
        self.stop_calls.cancel();
    }

    /// Returns whether the task begins nothing more.
    pub(crate) fn stops(&self) -> bool {
        self.stop.get().is_some()
    }

    /// Makes a call a call of this task.
    pub(crate) fn of_task(&self, call: IncomingCall, task: TaskOfCall) -> IncomingCall {
        let attachments = Attachments { task_secrets: Some(self.secrets.clone()), ..call.attachments().clone() };
        let call = match &self.content.chat {
            Some(chat) => call.with_context(json!({ "chat": chat })),
            None => call,
        };
        self.as_started(call).with_task_id(Some(self.row.id.to_string())).with_attachments(attachments).with_task(task)
    }
}
