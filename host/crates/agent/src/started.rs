//! Tasks that calls start: a bot works for another bot, or for infrastructure code with a root key.
//!
//! Such a task acts under the links of the call, and its record keeps them. It belongs to the tree of the task whose call
//! has started it, which has limits, so that bots that give each other tasks come to an end.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_api::tasks::NewTask;
use monstrum_core::call_types::refusal::{Refusal, invalid_params};
use monstrum_core::call_types::starts_tasks::{AskedTask, StartedTask, Starter, StartsTasks, TaskAnswer, TaskReport};
use monstrum_core::call_types::task_step::{Origin, TaskPosition};
use monstrum_core::events::EventCause;
use monstrum_core::models;
use monstrum_core::operations::OperationError;
use monstrum_core::plugins::built_in::QUERY_MAX;
use monstrum_store::{NewWake, TaskRow, TaskStatus};
use monstrum_types::{CallOutcome, Code, KeyId, Labels, TaskId, WakeKey, WakeKind, WorkspaceId, with_causes};
use tokio::time::timeout;

use crate::journal::{self, InTree, Source, TaskContent};
use crate::links::TaskLink;
use crate::live::WaitingCall;
use crate::tasks::{Beginning, Tasks, checked, internal, limits_of};

/// The maximum number of tasks from the first task of a tree to any other one.
const DEPTH_MAX: u32 = 4;
/// The interval at which the row of a task is read for whose answer a call waits. The task runs on this host, so it is
/// mostly read after a signal.
const READ_INTERVAL: Duration = Duration::from_secs(1);

impl StartsTasks for Tasks {
    fn execute(self: Arc<Self>, task: StartedTask) -> BoxFuture<'static, Result<TaskId, Refusal>> {
        async move { self.begin_started(task, false).await }.boxed()
    }

    fn approval_was_decided(&self, workspace_id: WorkspaceId, task: TaskId) {
        let key = WakeKey::new(WakeKind::Task, task).expect("an id has only characters of keys");
        self.engine.signal(&[NewWake { key, workspace_id, due_at: self.app.clock.now(), claim: None }]);
    }

    fn query(self: Arc<Self>, task: StartedTask) -> BoxFuture<'static, Result<TaskAnswer, Refusal>> {
        async move {
            let workspace = task.workspace;
            let waiting = WaitingCall::register(&self.live, task.request);
            let id = self.begin_started(task, true).await?;
            let _waiting = waiting.of(id);
            let row = self.ended(workspace, id).await?;
            Ok(self.answer_to_call(&row))
        }
        .boxed()
    }

    fn starters(self: Arc<Self>, workspace: WorkspaceId, task: TaskId) -> BoxFuture<'static, Option<Vec<KeyId>>> {
        async move {
            let mut next = Some(task);
            for _ in 0..=DEPTH_MAX {
                let row = self.app.store.task(workspace, next?).await.ok()??;
                let content = journal::open_task(&self.app.vault, &row).ok()?;
                match content.source {
                    Source::Schedule { starters, .. }
                    | Source::Event { starters, .. }
                    | Source::Run { starters, .. } => return Some(starters),
                    Source::Key { .. } => return row.key_id.map(|key| vec![key]),
                    // A call without a key is one of a run or of the task above, or of infrastructure code.
                    Source::Call { .. } => match content.run {
                        Some(run) => return self.app.emitter.starters_of_run(workspace, run).await,
                        None => next = row.parent_id,
                    },
                }
            }
            None
        }
        .boxed()
    }

    fn cause(
        self: Arc<Self>,
        workspace: WorkspaceId,
        task: TaskId,
    ) -> BoxFuture<'static, Result<Option<EventCause>, Refusal>> {
        async move { self.cause_of(workspace, task).await.map_err(|error| refused(&error)) }.boxed()
    }

    fn report(self: Arc<Self>, asked: AskedTask) -> BoxFuture<'static, Result<Option<TaskReport>, Refusal>> {
        async move {
            let AskedTask { workspace, bot, id, starter } = asked;
            let row = self.app.store.task(workspace, id).await.map_err(|error| refused(&error.into()))?;
            let Some(row) = row.filter(|row| row.bot_id == bot) else { return Ok(None) };
            // A record that cannot be opened was edited by another program.
            let Ok(content) = journal::open_task(&self.app.vault, &row) else { return Ok(None) };
            if starter.is_some_and(|starter| starter_of(&content) != Some(starter)) {
                return Ok(None);
            }
            let TaskContent { result, message, labels, .. } = content;
            let labels = labels.with(&row.labels);
            Ok(Some(TaskReport { status: row.status.as_str(), result, message, labels }))
        }
        .boxed()
    }
}

impl Tasks {
    /// Starts the task of a call. `waits` says whether the call waits for the answer.
    async fn begin_started(&self, task: StartedTask, waits: bool) -> Result<TaskId, Refusal> {
        let StartedTask { request, workspace, bot, key, links, parent, run, chat, labels, instruction, params } = task;
        let tree = parent.map(below).transpose()?;
        let app = &self.app;
        let (snapshot, now) = (app.policy.load(), app.clock.now());
        let row = &snapshot.bot(workspace, bot).ok_or_else(|| refused(&OperationError::not_found("bot")))?.row;
        let input = NewTask { params, ..NewTask::of(instruction) };
        let mut limits = checked(&input, &limits_of(row)).map_err(|error| of_input(error, waits))?;
        models::candidates(&snapshot, workspace, bot, now)
            .map_err(|error| refused(&OperationError::conflict(error.to_string())))?;
        if waits {
            limits.wall_s = limits.wall_s.min(u32::try_from(QUERY_MAX.as_secs()).unwrap_or(u32::MAX));
        }
        let source = Source::Call { request, hash: key.map(|key| hex::encode(key.hash)), waits };
        let mut content = TaskContent::new(input.instruction, limits, source);
        content.params = input.params;
        content.links = links.iter().map(TaskLink::of_call).collect();
        (content.chat, content.tree, content.labels) = (chat, tree, labels);
        content.run = run;
        if let Some(run) = run {
            let cause = self.app.emitter.cause_of(workspace, Origin::Run(run)).await;
            content.cause =
                cause.map_err(|error| Box::new(CallOutcome::error(Code::Unavailable, error.to_string())))?;
        }
        if let Some(parent) = parent {
            content.cause = self.cause_of(workspace, parent.task).await.map_err(|error| refused(&error))?;
        }
        let (key, parent) = (key.map(|key| key.id), parent.map(|parent| parent.task));
        let begun = self.begin(Beginning { workspace, bot, key, parent, session: None, content }).await;
        Ok(begun.map_err(|error| refused(&error))?.id)
    }

    /// Returns the cause of the events of a task.
    async fn cause_of(&self, workspace: WorkspaceId, id: TaskId) -> Result<Option<EventCause>, OperationError> {
        let row = self.app.store.task(workspace, id).await?.ok_or_else(|| OperationError::not_found("task"))?;
        Ok(journal::open_task(&self.app.vault, &row).map_err(internal)?.cause)
    }

    /// Waits for the end of a task.
    async fn ended(&self, workspace: WorkspaceId, id: TaskId) -> Result<TaskRow, Refusal> {
        let live = self.live.of(id);
        // The watch begins before the row is read, so that no change is missed.
        let mut changes = live.changes();
        loop {
            let state = self.app.store.task_state(workspace, id).await.map_err(|error| refused(&error.into()))?;
            if state.is_none_or(|state| state.ended_at.is_some()) {
                break;
            }
            // Whether a change or the interval has ended the wait, the row is read again.
            drop(timeout(READ_INTERVAL, changes.changed()).await);
        }
        let row = self.app.store.task(workspace, id).await.map_err(|error| refused(&error.into()))?;
        row.ok_or_else(|| Box::new(CallOutcome::error(Code::Cancelled, "the task of the bot was deleted")))
    }

    /// Returns the answer of a task that has ended, or why it has none.
    fn answer_to_call(&self, row: &TaskRow) -> TaskAnswer {
        let content = match journal::open_task(&self.app.vault, row) {
            Ok(content) => content,
            Err(error) => return TaskAnswer { answer: Err(refused(&internal(error))), labels: Labels::ALL },
        };
        let answer = match (row.status, content.result, content.message) {
            (TaskStatus::Completed, Some(result), _) => Ok(result),
            (TaskStatus::Cancelled, ..) => {
                let message = "the task of the bot was cancelled before it had an answer";
                Err(Box::new(CallOutcome::error(Code::Cancelled, message)))
            }
            (_, _, message) => {
                let code = row.code.as_deref().unwrap_or_default();
                let message = message.unwrap_or_default();
                let outcome = CallOutcome::error(Code::Plugin, format!("the bot has no answer ({code}): {message}"));
                Err(Box::new(outcome))
            }
        };
        // The message of a failure can repeat what the task has read.
        TaskAnswer { answer, labels: content.labels.with(&row.labels) }
    }
}

/// Returns the place of a task that a call of the task `parent` starts.
fn below(parent: TaskPosition) -> Result<InTree, Refusal> {
    let depth = parent.depth.saturating_add(1);
    if depth > DEPTH_MAX {
        let message = format!("the task would be the {depth}th in a chain of tasks; at most {DEPTH_MAX} are allowed");
        return Err(Box::new(CallOutcome::error(Code::Limit, message).by_rule("nesting")));
    }
    Ok(InTree { root: parent.root, depth })
}

/// Returns who has started a task, if a call of a bot has started it.
fn starter_of(content: &TaskContent) -> Option<Starter> {
    if !matches!(content.source, Source::Call { .. }) || content.links.is_empty() {
        return None;
    }
    let chain = content.links.iter().filter_map(|link| match link {
        TaskLink::Delegation { from, to, .. } => Some((*from, *to)),
        TaskLink::Narrow(_) => None,
    });
    Some(Starter { chain: chain.collect(), user: content.user() })
}

/// Returns the refusal for an input that is not valid. The caller knows the instruction as the question that it asks.
fn of_input(error: OperationError, is_question: bool) -> Refusal {
    let OperationError::Invalid(mut errors) = error else { return refused(&error) };
    for error in errors.iter_mut().filter(|error| is_question && error.path == "/instruction") {
        "/question".clone_into(&mut error.path);
    }
    Box::new(invalid_params(&errors))
}

/// Returns the refusal of a call whose task cannot be started or read.
fn refused(error: &OperationError) -> Refusal {
    let code = match error {
        OperationError::OverLimit(_) => Code::Limit,
        OperationError::Busy(_) => Code::Busy,
        OperationError::Internal(_) => {
            tracing::error!(error = %with_causes(error), "a task of another bot cannot be started or read");
            Code::Unavailable
        }
        _ => Code::Unavailable,
    };
    Box::new(CallOutcome::error(code, error.to_string()))
}

#[cfg(test)]
mod tests {
    use monstrum_types::{BindingId, BotId, RequestId};

    use super::*;
    use crate::journal::Limits;

    #[test]
    fn a_chain_of_tasks_comes_to_an_end() {
        let mut position = TaskPosition::first(TaskId::new());
        let root = position.root;
        for depth in 2..=DEPTH_MAX {
            let tree = below(position).unwrap();
            assert_eq!(tree, InTree { root, depth });
            position = TaskPosition { task: TaskId::new(), root: tree.root, depth: tree.depth };
        }
        let refused = below(position).unwrap_err();
        assert_eq!((refused.code, refused.rule.as_deref()), (Some(Code::Limit), Some("nesting")));
        let beyond = TaskPosition { depth: u32::MAX, ..position };
        assert!(below(beyond).is_err());
    }

    #[test]
    fn only_a_call_of_a_bot_is_a_starter() {
        let (request, binding) = (RequestId::new(), BindingId::new());
        let (from, to) = (BotId::new(), BotId::new());
        let limits = Limits { steps: 1, tokens: None, credits: None, wall_s: 1 };
        let content = |source: Source, links: Vec<TaskLink>| {
            let mut content = TaskContent::new("Do it.".to_owned(), limits, source);
            content.links = links;
            content
        };
        let call = || Source::Call { request, hash: None, waits: false };
        let delegation = || TaskLink::Delegation { binding, from, to };
        let narrow = || TaskLink::Narrow(monstrum_api::tasks::Narrow::default());
        let started = starter_of(&content(call(), vec![narrow(), delegation()]));
        assert_eq!(started, Some(Starter { chain: vec![(from, to)], user: None }));
        assert_eq!(starter_of(&content(call(), Vec::new())), None, "a root key");
        let key = Source::Key { hash: String::new() };
        assert_eq!(starter_of(&content(key, vec![delegation()])), None);
    }
}
