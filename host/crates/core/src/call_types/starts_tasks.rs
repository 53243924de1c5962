//! The trait with which a call starts a task of another bot, and asks about it.

use std::sync::Arc;

use futures::future::BoxFuture;
use monstrum_api::tools::Chat;
use monstrum_types::{AppUser, BotId, KeyId, Labels, RequestId, RunId, TaskId, WorkspaceId};
use serde_json::Value;

use crate::call_types::incoming::CallerKey;
use crate::call_types::links::Link;
use crate::call_types::refusal::Refusal;
use crate::call_types::task_step::TaskPosition;
use crate::events::EventCause;

/// A task that a call starts.
#[derive(Clone, Debug)]
pub struct StartedTask {
    /// The call that starts the task.
    pub request: RequestId,
    pub workspace: WorkspaceId,
    /// The bot that works on the task.
    pub bot: BotId,
    /// The key with which the call was made. The task ends with it.
    pub key: Option<CallerKey>,
    /// The links under which the bot acts. The task ends when one of them is no longer in force.
    pub links: Vec<Link>,
    /// The task to which the call belongs.
    pub parent: Option<TaskPosition>,
    /// The run to which the call belongs.
    pub run: Option<RunId>,
    /// The conversation for which the call is made.
    pub chat: Option<Chat>,
    /// The labels of what the caller has read.
    pub labels: Labels,
    pub instruction: String,
    pub params: Option<Value>,
}

/// A question about a task that a call has started.
#[derive(Clone, Debug)]
pub struct AskedTask {
    pub workspace: WorkspaceId,
    /// The bot that works on the task.
    pub bot: BotId,
    pub id: TaskId,
    /// Who may have started the task; `None` for a root key, which sees every task of the bot.
    pub starter: Option<Starter>,
}

/// The bot that starts a task, on whose behalf it acts, and for which user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starter {
    /// The calling and the called bot of each delegation, outermost first.
    pub chain: Vec<(BotId, BotId)>,
    pub user: Option<AppUser>,
}

impl Starter {
    /// Returns the starter of a task whose bot acts under `links`, for this user.
    #[must_use]
    pub fn new(links: &[Link], user: Option<AppUser>) -> Starter {
        let chain = links.iter().filter_map(Link::delegation).map(|link| (link.from, link.to));
        Starter { chain: chain.collect(), user }
    }
}

/// What a caller learns about a task that it has started.
#[derive(Clone, Debug)]
pub struct TaskReport {
    pub status: &'static str,
    pub result: Option<String>,
    pub message: Option<String>,
    /// The labels of what the task has read.
    pub labels: Labels,
}

/// The end of a task for whose answer a call has waited.
#[derive(Debug)]
pub struct TaskAnswer {
    /// The answer, or why there is none.
    pub answer: Result<String, Refusal>,
    /// The labels of what the task has read.
    pub labels: Labels,
}

/// Starts tasks of bots. The stages of a call must not depend on the runner of tasks, which implements it.
pub trait StartsTasks: Send + Sync {
    /// Starts a task and returns its id.
    fn execute(self: Arc<Self>, task: StartedTask) -> BoxFuture<'static, Result<TaskId, Refusal>>;

    /// Starts a task and waits for its end. If the future is dropped before, the task is cancelled.
    fn query(self: Arc<Self>, task: StartedTask) -> BoxFuture<'static, Result<TaskAnswer, Refusal>>;

    /// Tells a task that an approval for which it may wait was decided. The decision has requested its turn.
    fn approval_was_decided(&self, workspace: WorkspaceId, task: TaskId);

    /// Returns the keys whose holders decided what a task does, if no key has started it: those that made or changed its
    /// schedule. Returns `None` if they are not known.
    fn starters(self: Arc<Self>, workspace: WorkspaceId, task: TaskId) -> BoxFuture<'static, Option<Vec<KeyId>>>;

    /// Returns the cause of the events of a task; `None` if no event has started the task.
    fn cause(
        self: Arc<Self>,
        workspace: WorkspaceId,
        task: TaskId,
    ) -> BoxFuture<'static, Result<Option<EventCause>, Refusal>>;

    /// Reports about a task. Returns `None` if there is no such task of the bot, or if another starter has started it.
    fn report(self: Arc<Self>, asked: AskedTask) -> BoxFuture<'static, Result<Option<TaskReport>, Refusal>>;
}
