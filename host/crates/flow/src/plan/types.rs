//! The history of a run, and the commands that continue it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of attempts of all steps of a run.
pub const RUN_ATTEMPTS_MAX: usize = 10_000;
/// Maximum size of the result of a step in bytes of JSON.
pub const STEP_RESULT_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum size of the records of all steps of a run in bytes: what the runner counts for them.
pub const RUN_RESULT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Maximum number of attempts of the steps of `finally`, in each attempt of the run: a list of a thousand items with a block
/// and a step. What a run has used up must not prevent its end.
pub const ENDING_ATTEMPTS_MAX: usize = 2_000;
/// Maximum size of the records of `finally` in bytes: a quarter of what the steps may have.
pub const ENDING_RESULT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How long stopping, undoing and `finally` may take together.
pub const ENDING_MS_MAX: i64 = 3_600_000;
/// How long the calls of undoing and `finally` may take to stop after that. A call that is cancelled stops within seconds,
/// unless the host restarts meanwhile.
pub const ENDING_STOP_MS_MAX: i64 = 300_000;
/// Maximum length of the message of an error in characters. A workflow can make it of data.
const ERROR_CHARS_MAX: usize = 1_000;

/// Everything that decides how a run goes on. Times are milliseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The state of the run.
    pub run: RunState,
    /// The attempts of its steps, in the order in which they began.
    pub rows: Vec<StepRow>,
}

/// The state of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    /// The id, for expressions.
    pub id: String,
    /// The number of the attempt of the run, from 1. A retry of the run adds one and clears `cancel` and `ending`.
    pub attempt: u32,
    /// The input.
    pub input: Arc<Value>,
    /// When this attempt of the run started.
    pub started_at: i64,
    /// Who or what started it, for expressions.
    pub started_by: Value,
    /// `{event, instruction}`, if a trigger started it.
    pub trigger: Option<Value>,
    /// The schedule, if one started it.
    pub schedule: Option<Value>,
    /// While a run is paused, nothing new starts.
    pub paused: bool,
    /// Somebody cancelled the run.
    pub cancel: Option<Cancellation>,
    /// How the run will end, once that is decided.
    pub ending: Option<Ending>,
}

/// A request to cancel a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancellation {
    /// Whether steps are undone.
    pub undo: bool,
}

/// How a run will end. From this decision on, its steps are stopped and undone, and `finally` runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// The status.
    pub status: RunEnd,
    /// Why it failed.
    pub error: Option<StepError>,
    /// The output of a completed run.
    pub output: Option<Value>,
    /// Whether steps are undone.
    pub undo: bool,
    /// When this was decided.
    pub since: i64,
}

/// The status of a run that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunEnd {
    /// All steps have ended well.
    Completed,
    /// A step failed, or a limit was reached.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl RunEnd {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RunEnd::Completed => "completed",
            RunEnd::Failed => "failed",
            RunEnd::Cancelled => "cancelled",
        }
    }
}

/// Names a step of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepKey {
    /// The id in the definition.
    pub step: String,
    /// The index in the list of `each`, such as `3`, or `3.0` in nested blocks. Empty outside.
    pub item: String,
    /// Whether this is the call that undoes the step.
    pub undo: bool,
}

impl fmt::Display for StepKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.step)?;
        if !self.item.is_empty() {
            write!(f, "[{}]", self.item)?;
        }
        if self.undo {
            f.write_str(" (undo)")?;
        }
        Ok(())
    }
}

/// One attempt of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRow {
    /// The step.
    pub key: StepKey,
    /// The attempt of the run to which this belongs.
    pub run_attempt: u32,
    /// The number of the attempt in this attempt of the run, from 1.
    pub attempt: u32,
    /// The status.
    pub status: StepStatus,
    /// The result of a step that succeeded.
    pub data: Arc<Value>,
    /// What the attempt counts against the size of its run, in bytes: at least the size of `data` as JSON.
    pub data_bytes: u64,
    /// What runs inside a block.
    pub block: Option<Block>,
    /// Why the attempt failed.
    pub error: Option<StepError>,
    /// The gravest effect of the call and of the calls below it.
    pub effect: Effect,
    /// Whether the call may have had its effect. Such an attempt is repeated only if its effect allows that, and then with
    /// the request id of this attempt.
    pub may_have_happened: bool,
    /// Whether a rule refused the call. Refusals are not repeated, unless a person says so of an uncertain attempt.
    pub refused: bool,
    /// Whether its cancellation was requested.
    pub cancelling: bool,
    /// Whether a person was asked what became of it.
    pub asked: bool,
    /// Whether a person decided that it is repeated.
    pub repeat: bool,
    /// When it began. The time that a call waits for an approval does not count: the runner moves this on.
    pub started_at: i64,
    /// When it ended.
    pub ended_at: Option<i64>,
    /// What a wait or a question lasts until.
    pub until: Option<i64>,
}

/// The status of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepStatus {
    /// It runs.
    #[default]
    Running,
    /// It waits for a time, an event or a person.
    Waiting,
    /// It has a result.
    Succeeded,
    /// It has an error.
    Failed,
    /// Its condition did not hold.
    Skipped,
    /// It was stopped.
    Cancelled,
    /// It may have had its effect, and has no result.
    Uncertain,
    /// It succeeded and was undone.
    Undone,
}

impl StepStatus {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            StepStatus::Running => "running",
            StepStatus::Waiting => "waiting",
            StepStatus::Succeeded => "succeeded",
            StepStatus::Failed => "failed",
            StepStatus::Skipped => "skipped",
            StepStatus::Cancelled => "cancelled",
            StepStatus::Uncertain => "uncertain",
            StepStatus::Undone => "undone",
        }
    }

    /// Returns whether the attempt goes on.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, StepStatus::Running | StepStatus::Waiting)
    }
}

/// The effect of a call on the upstream, the gravest last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It changes nothing.
    Read,
    /// Two calls with one request id are one call.
    Idempotent,
    /// A second call may change something again.
    #[default]
    Write,
}

/// What runs inside a block.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    /// The branch of `choose`.
    Choose(usize),
    /// All branches.
    Parallel,
    /// The items of `each`.
    Each(Arc<Vec<Value>>),
}

/// Why a step or a run failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepError {
    /// A code, such as `timeout`, `limit` or `expression`, or the status of the call.
    pub code: String,
    /// A sentence.
    pub message: String,
    /// The step inside a block that failed.
    pub at: Option<StepKey>,
}

impl StepError {
    /// Makes an error of a step itself. A long message loses its end.
    pub fn new(code: &str, message: impl Into<String>) -> StepError {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(ERROR_CHARS_MAX) {
            message.truncate(end);
            message.push('…');
        }
        StepError { code: code.to_owned(), message, at: None }
    }
}

/// What a runner does next. It does all commands of one plan in their order, stores the outcome of each as
/// [`History::apply`] does, in one transaction, and then plans again when a row changes, or at the time of
/// [`Command::SetTimer`]. Doing a plan twice is harmless if the first time was stored: the second plan is then empty.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Begin an attempt. A new row `running`; the runner ends it as succeeded, failed, cancelled or uncertain.
    Start {
        /// The step.
        key: StepKey,
        /// The number of the attempt.
        attempt: u32,
        /// What to do.
        work: Work,
        /// Whether the attempt has the request id of the one before, because that may have had its effect.
        same_request: bool,
        /// The questions whose approval this call needs. If the call differs from what was approved, the question is asked
        /// anew.
        approved_by: Vec<String>,
    },
    /// Begin a block. A new row `running` with this block; plans end it.
    Open {
        /// The step.
        key: StepKey,
        /// The number of the attempt.
        attempt: u32,
        /// What runs inside.
        block: Block,
    },
    /// Begin to wait. A new row `waiting`; plans end it at the time `until`, the runner ends it when the event or the
    /// decision arrives.
    Wait {
        /// The step.
        key: StepKey,
        /// The number of the attempt.
        attempt: u32,
        /// What is awaited.
        wait: Awaited,
        /// Until when.
        until: Option<i64>,
    },
    /// End an attempt with this outcome. The row may be new. A question or an open wait of it is closed. An attempt that
    /// did not stop in time is uncertain, and what becomes of its call then changes nothing. A new row is uncertain if it was
    /// to repeat an uncertain attempt and could not begin.
    Finish {
        /// The step.
        key: StepKey,
        /// The number of the attempt.
        attempt: u32,
        /// The status.
        status: StepStatus,
        /// The result.
        data: Arc<Value>,
        /// The error.
        error: Option<StepError>,
    },
    /// Stop an attempt that runs. The row stays `running`, marked as cancelling, until the runner knows the outcome. An
    /// attempt that was stopped for its time is failed with the code `timeout`.
    Cancel {
        /// The step.
        key: StepKey,
        /// The number of the attempt.
        attempt: u32,
        /// Whether its time is over; otherwise the run goes another way.
        timed_out: bool,
    },
    /// Ask a person what became of an uncertain attempt. The row may be one that this plan has ended.
    Ask {
        /// The step.
        key: StepKey,
        /// The number of the attempt.
        attempt: u32,
    },
    /// Store how the run will end.
    BeginEnding(Ending),
    /// The run has ended. Nothing follows. Open questions about uncertain attempts are closed.
    EndRun {
        /// The status.
        status: RunEnd,
        /// The output of a completed run.
        output: Option<Value>,
        /// Why it failed.
        error: Option<StepError>,
        /// The steps whose effect is unknown.
        uncertain: Vec<StepKey>,
        /// The steps that could not be undone.
        undo_failed: Vec<StepKey>,
    },
    /// Plan again at this time, if nothing happens before.
    SetTimer {
        /// The time.
        at: i64,
    },
}

/// What a step does outside of the plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Call a tool.
    Tool {
        /// The name.
        tool: String,
        /// The name of the resource, if one was given.
        resource: Option<String>,
        /// The parameters.
        params: Value,
    },
    /// Give the bot a task.
    Agent {
        /// The instruction. The runner marks the values as data.
        instruction: Vec<InstructionPart>,
        /// Data.
        params: Value,
        /// The schema of the result.
        output_schema: Option<Value>,
        /// Limits of the task.
        limits: Option<Value>,
        /// Restrictions of the tools and scopes.
        narrow: Option<Value>,
    },
    /// Run another workflow.
    Workflow {
        /// The name.
        workflow: String,
        /// The input.
        input: Value,
    },
    /// Emit an event.
    Emit {
        /// The name, without `custom.`.
        name: String,
        /// The data.
        data: Value,
    },
}

/// A part of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstructionPart {
    /// Text of the author.
    Text(String),
    /// A value, which is data and may be hostile.
    Value(String),
}

/// What a step waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Awaited {
    /// The time `until`.
    Time,
    /// An event.
    Event {
        /// The exact type.
        event_type: String,
        /// Fields of its data with their values.
        matches: Vec<(String, Value)>,
        /// Events since this time count.
        since: i64,
    },
    /// The decision of a person.
    Approval {
        /// The question.
        text: String,
        /// The calls that are approved.
        targets: Vec<ApprovalTarget>,
        /// The roles that may decide.
        by: Vec<String>,
        /// Whether the person who started the run may decide.
        allow_starter: bool,
    },
}

/// A call that a person approves.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalTarget {
    /// The id of the step.
    pub step: String,
    /// The tool.
    pub tool: String,
    /// The name of the resource, if one was given.
    pub resource: Option<String>,
    /// The parameters.
    pub params: Value,
}
