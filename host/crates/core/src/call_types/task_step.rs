//! The connection of a call to the task or the run whose step it is.

use std::sync::Arc;

use monstrum_manifest::Effect;
use monstrum_store::StoreRow;
use monstrum_types::{AwaitedApproval, CallOutcome, Code, RunId, TaskId};

/// The step of a task or of a run that a call carries out.
pub trait TaskStep: Send + Sync {
    /// Records what the call waits for; `None` when it does not wait any more.
    fn waits(&self, approval: Option<&AwaitedApproval>);

    /// Returns the rows that record the end of the step. They are written in the transaction of the audit row of the call.
    /// `has_started` says whether the row `started` of the call is on disk, so that the call may have had effects.
    /// `is_unanswered` says whether something that the call has sent had no answer.
    fn ended(&self, outcome: &CallOutcome, has_started: bool, is_unanswered: bool) -> Vec<StoreRow>;
}

/// Returns whether a call that ends with this code was cut off: its tool may have done its work, but the result is lost.
#[must_use]
pub fn is_cut(code: Code) -> bool {
    matches!(
        code,
        Code::Timeout
            | Code::Trap
            | Code::Fuel
            | Code::Memory
            | Code::Cancelled
            | Code::Interrupted
            | Code::Uncertain
            | Code::BadResult
            | Code::ResultTooLarge
    )
}

/// The right of this host to carry out a task, or a step of a run. Another host takes it over when the right has ended.
pub trait TaskLease: Send + Sync {
    /// Returns whether the right is in force. A call that has lost it sends nothing.
    fn is_in_force(&self) -> bool;

    /// Returns what the calls are made for.
    fn origin(&self) -> Origin;

    /// Gives up the place of the task among the running tasks, because a call of it waits for another task. The task takes
    /// a place again before its next step.
    fn give_place(&self) {}

    /// Records that a call has started whose tool has this effect. `is_child` says whether another call has made the call.
    fn has_started(&self, _effect: Effect, _is_child: bool) {}
}

/// What a call is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A task of a bot.
    Task(TaskPosition),
    /// A run of a workflow.
    Run(RunId),
}

impl Origin {
    /// Returns the position of the task; `None` for a run.
    #[must_use]
    pub fn task(self) -> Option<TaskPosition> {
        match self {
            Origin::Task(position) => Some(position),
            Origin::Run(_) => None,
        }
    }

    /// Returns the run; `None` for a task.
    #[must_use]
    pub fn run(self) -> Option<RunId> {
        match self {
            Origin::Task(_) => None,
            Origin::Run(run) => Some(run),
        }
    }
}

/// The position of a task in the tree of tasks that start each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPosition {
    pub task: TaskId,
    /// The first task of the tree.
    pub root: TaskId,
    /// The number of tasks from the first one to this one, which is 1 for the first one.
    pub depth: u32,
}

impl TaskPosition {
    /// Returns the position of a task that no task has started.
    #[must_use]
    pub fn first(task: TaskId) -> TaskPosition {
        TaskPosition { task, root: task, depth: 1 }
    }
}

/// The task or the run to which a call belongs.
#[derive(Clone)]
pub struct TaskOfCall {
    /// The step that the call carries out. Calls below it carry out no step.
    pub step: Option<Arc<dyn TaskStep>>,
    pub lease: Arc<dyn TaskLease>,
}

impl std::fmt::Debug for TaskOfCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TaskOfCall")
    }
}
