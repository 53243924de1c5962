//! Follows a task: its steps as they end, and the texts of its rounds as they arrive.
//!
//! Steps come in their order, each once and whole, so that a listener can continue after the last step that it has seen.
//! Texts are not kept: a listener that comes late gets the whole step when it has ended.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use monstrum_api::tasks::{Task, TaskStep, WaitingFor};
use monstrum_core::call_types::round::RoundChannel;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_store::TaskState;
use monstrum_types::TaskId;
use serde::Serialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::live::{LiveEvent, LiveTask};
use crate::tasks::{STEPS_READ, Tasks};

/// The interval at which the journal is read, for tasks of other hosts.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// An event of a task.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum TaskEvent {
    /// The task, when a listener comes.
    Task(Box<Task>),
    /// A call that waits or runs.
    Call(Box<TaskStep>),
    /// What the task waits for.
    Approval(WaitingFor),
    /// A step that has ended.
    Step(Box<TaskStep>),
    /// A piece of the text of a round that runs.
    Delta(Delta),
    /// The task that has ended. It is the last event.
    End(Box<Task>),
}

/// A piece of a text.
#[derive(Clone, Debug, Serialize)]
pub struct Delta {
    /// The step that the text will belong to.
    pub step: i64,
    pub channel: RoundChannel,
    pub text: Arc<str>,
}

impl TaskEvent {
    /// Returns the name of the event.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            TaskEvent::Task(_) => "task",
            TaskEvent::Call(_) => "call",
            TaskEvent::Approval(_) => "approval",
            TaskEvent::Step(_) => "step",
            TaskEvent::Delta(_) => "delta",
            TaskEvent::End(_) => "end",
        }
    }

    /// Returns the position after which a listener continues that has seen this event.
    #[must_use]
    pub fn sequence(&self) -> Option<i64> {
        match self {
            TaskEvent::Step(step) => Some(step.sequence),
            TaskEvent::Task(_)
            | TaskEvent::Call(_)
            | TaskEvent::Approval(_)
            | TaskEvent::Delta(_)
            | TaskEvent::End(_) => None,
        }
    }
}

/// A listener of a task.
pub struct Following {
    tasks: Arc<Tasks>,
    caller: Caller,
    id: TaskId,
    /// The last step that is queued or sent.
    after: i64,
    /// The calls that were announced and have not ended.
    announced: HashSet<i64>,
    /// The progress of the task when all of its steps were read last.
    seen: Option<TaskState>,
    queued: VecDeque<TaskEvent>,
    /// Whether the journal may have more ended steps than the last page. The next page is read when the queue is empty, so
    /// that a slow listener holds one page.
    has_more: bool,
    live: Receiver<LiveEvent>,
    /// Whether texts were missed since the last call of [`Following::has_missed`].
    has_missed: bool,
    is_ended: bool,
    _task: Arc<LiveTask>,
}

impl Tasks {
    /// Follows a task from the step after `after`.
    ///
    /// # Errors
    ///
    /// The task does not exist, or the caller may not see it.
    pub async fn follow(self: &Arc<Self>, caller: Caller, id: TaskId, after: i64) -> Result<Following, OperationError> {
        // The subscription precedes the first read, so that no change is missed.
        let task = self.live.of(id);
        let live = task.listen();
        self.follow_with(caller, id, after, (task, live, true)).await
    }

    /// Follows a task with a listener of its own. `has_missed` is false for a listener that is older than the task.
    pub(crate) async fn follow_with(
        self: &Arc<Self>,
        caller: Caller,
        id: TaskId,
        after: i64,
        (task, live, has_missed): (Arc<LiveTask>, Receiver<LiveEvent>, bool),
    ) -> Result<Following, OperationError> {
        let shown = self.show(&caller, id).await?;
        let mut following = Following {
            tasks: Arc::clone(self),
            caller,
            id,
            after,
            announced: HashSet::new(),
            seen: None,
            queued: VecDeque::from([TaskEvent::Task(Box::new(shown))]),
            has_more: false,
            live,
            has_missed,
            is_ended: false,
            _task: task,
        };
        following.read().await?;
        Ok(following)
    }
}

impl Following {
    /// Returns whether texts before the last event may be missing, and forgets it.
    pub(crate) fn has_missed(&mut self) -> bool {
        std::mem::take(&mut self.has_missed)
    }

    /// Waits for the next event. Returns `None` after the end of the task, when the key of the caller is deleted or
    /// rotated, and when the host stops.
    ///
    /// # Errors
    ///
    /// The database failed, or the task was deleted.
    pub async fn next(&mut self) -> Result<Option<TaskEvent>, OperationError> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Ok(Some(event));
            }
            let app = &self.tasks.app;
            if self.is_ended || !self.caller.is_known(&app.policy.load(), app.clock.now()) {
                return Ok(None);
            }
            if self.has_more {
                self.read().await?;
                continue;
            }
            let closed = self.tasks.closed.clone();
            let heard = tokio::select! {
                heard = tokio::time::timeout(READ_INTERVAL, self.live.recv()) => heard,
                () = closed.cancelled() => return Ok(None),
            };
            match heard {
                Ok(Ok(LiveEvent::Delta { step, channel, text })) => {
                    // The pieces of a step that was read whole are late.
                    if step > self.after {
                        return Ok(Some(TaskEvent::Delta(Delta { step, channel, text })));
                    }
                }
                Ok(Err(RecvError::Lagged(_))) => {
                    self.has_missed = true;
                    self.read().await?;
                }
                // This listener holds the sender, so the channel is not closed.
                Ok(Ok(LiveEvent::Changed) | Err(RecvError::Closed)) | Err(_) => self.read().await?,
            }
        }
    }

    /// Reads a page of ended steps and the calls after them that have not ended, and queues what is new.
    async fn read(&mut self) -> Result<(), OperationError> {
        // The progress is read before the steps, so that an ended task has all of them.
        let state = self.tasks.state(&self.caller, self.id).await?;
        if !self.has_more && self.seen.as_ref() == Some(&state) {
            return Ok(());
        }
        let (mut read_after, mut is_behind) = (self.after, false);
        self.has_more = loop {
            let steps = self.tasks.steps_after(&self.caller, self.id, read_after).await?;
            let is_full = steps.len() >= STEPS_READ as usize;
            for step in steps {
                read_after = step.sequence;
                is_behind |= step.ended_at.is_none();
                if !is_behind {
                    self.after = step.sequence;
                    self.announced.remove(&step.sequence);
                    self.queued.push_back(TaskEvent::Step(Box::new(step)));
                } else if step.ended_at.is_none() && self.announced.insert(step.sequence) {
                    self.queued.push_back(TaskEvent::Call(Box::new(step)));
                }
            }
            // The steps after one that has not ended are calls of the same round, so there are few of them.
            if !is_full || !is_behind {
                break is_full;
            }
        };
        let waited_for = self.seen.as_ref().and_then(|seen| seen.waiting_for.as_deref());
        if state.waiting_for.as_deref() != waited_for {
            let waits_for = self.tasks.waiting_for(self.caller.workspace, state.waiting_for.as_deref());
            self.queued.extend(waits_for.map(TaskEvent::Approval));
        }
        if state.ended_at.is_some() && !self.has_more {
            self.is_ended = true;
            let task = self.tasks.show(&self.caller, self.id).await?;
            self.queued.push_back(TaskEvent::End(Box::new(task)));
        }
        self.seen = Some(state);
        Ok(())
    }
}
