//! Runs of workflows and their steps.

use monstrum_types::{ApprovalId, BotId, EventId, RequestId, RunId, TaskId, UtcMillis, WorkflowId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::not_null;

/// A run of a workflow.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Run {
    pub id: RunId,
    pub workflow_id: WorkflowId,
    /// The name of the workflow.
    #[schema(example = "release")]
    pub workflow: String,
    /// The version of the workflow, which the run keeps to its end.
    pub version: i64,
    /// The bot as which the run calls tools.
    pub bot_id: BotId,
    /// `queued`, `running`, `waiting`, `paused`, `undoing`, `completed`, `failed` or `cancelled`. In a run that waits,
    /// nothing runs and something is awaited.
    #[schema(example = "running")]
    pub status: String,
    /// 1, and one more for each time that the run was retried.
    pub attempt: i64,
    /// The input. A list leaves out an input of more than 4 KiB. A run whose record was edited by another program has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The output of a completed run. A list leaves out an output of more than 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
    /// The labels of what the run was started with and of what its steps have read; `*` is every label.
    pub labels: Vec<String>,
    pub started_by: RunStartedBy,
    /// The event that started the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventId>,
    /// The run whose step started this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// What the steps of the run wait for, at most 20 of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<RunWait>,
    /// The steps that may have had their effect, of a run that has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncertain: Vec<StepOfRun>,
    /// The steps that could not be undone, of a run that has ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub undo_failed: Vec<StepOfRun>,
    pub created_at: UtcMillis,
    /// When this attempt of the run started; null while the run is queued.
    pub started_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RunError {
    /// The step that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The item of the step, if it is inside of `each`, such as `3`, or `3.0` in nested blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// A code, such as `timeout`, `limit` or `expression`, or the status of the call.
    #[schema(example = "timeout")]
    pub code: String,
    pub message: String,
}

/// What started a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RunStartedBy {
    /// `key`, `trigger`, `schedule`, or `run` for a step of another run.
    #[schema(example = "key")]
    pub kind: String,
    /// The id of the key, trigger, schedule or run, which may have been deleted.
    pub id: String,
}

/// A step of a run, or one item of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct StepOfRun {
    /// The id of the step in the definition.
    #[schema(example = "announce")]
    pub step: String,
    /// The item of the step, if it is inside of `each`, such as `3`, or `3.0` in nested blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
}

/// What a step of a run waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RunWait {
    /// The id of the step in the definition.
    #[schema(example = "announce")]
    pub step: String,
    /// The item of the step, if it is inside of `each`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// `timer`, `event`, `approval` for a question of the workflow, `gate` for a call that needs an approval, `resolve` for
    /// an uncertain step about which a person has to decide, `authorization`, `task` for a task, or `run` for another run.
    #[schema(example = "approval")]
    pub kind: String,
    /// When the wait ends at the latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<UtcMillis>,
    /// The id of the approval, task or run, or the type of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// An attempt of a step of a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RunStep {
    /// The id of the step in the definition.
    #[schema(example = "announce")]
    pub step: String,
    /// The item of the step, if it is inside of `each`, such as `3`, or `3.0` in nested blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Whether this is the call that undoes the step. Absent if it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// From 1, in each attempt of the run.
    pub attempt: i64,
    /// The attempt of the run to which this attempt belongs.
    pub run_attempt: i64,
    /// `tool`, `agent`, `choose`, `parallel`, `each`, `wait`, `approve`, `workflow`, `emit` or `stop`.
    #[schema(example = "tool")]
    pub kind: String,
    /// `running`, `waiting`, `succeeded`, `failed`, `skipped`, `cancelled`, `uncertain` for a call that may have had its
    /// effect, or `undone`.
    #[schema(example = "succeeded")]
    pub status: String,
    /// The call in the audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The task that the step has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// The run that the step has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The approval that the step waits for or has waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// The name of the tool, of a step that calls one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What the step was given: the parameters of the tool; the instruction and the parameters of the task; the workflow and
    /// the input of the run; the name and the data of the event; or what is awaited. Null for other steps.
    pub params: Value,
    /// The result of a step that has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunStepError>,
    pub started_at: UtcMillis,
    pub ended_at: Option<UtcMillis>,
}

/// Why an attempt of a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RunStepError {
    /// A code, such as `timeout`, `limit` or `expression`, or the status of the call.
    #[schema(example = "timeout")]
    pub code: String,
    pub message: String,
    /// The step inside of the block that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<StepOfRun>,
}

/// A run to start.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRun {
    /// The input, which has to fit the schema of the workflow. The default is an empty object.
    #[serde(default = "empty")]
    #[schema(value_type = Option<Value>)]
    pub input: Value,
    /// The version of the workflow. The default is the newest.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(minimum = 1)]
    pub version: Option<i64>,
}

impl Default for NewRun {
    fn default() -> NewRun {
        NewRun { input: empty(), version: None }
    }
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// How a run is cancelled.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCancellation {
    /// Whether the steps that have succeeded are undone, where the workflow says how.
    #[serde(default)]
    pub undo: bool,
}

/// What a person says about an uncertain step.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepResolution {
    /// What became of the step.
    #[serde(rename = "as")]
    pub outcome: ResolvedAs,
    /// The item of the step, if it is inside of `each`.
    #[serde(default, deserialize_with = "not_null")]
    pub item: Option<String>,
    /// The result of the step, if it has succeeded. The default is null. At most 1 MiB.
    #[serde(default)]
    #[schema(value_type = Option<Value>)]
    pub data: Option<Value>,
}

/// What became of an uncertain step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedAs {
    /// The call had its effect.
    Succeeded,
    /// The call did not happen.
    Failed,
    /// The call is repeated, whether it happened or not.
    Retry,
}

lists! {
    Run => RunList "A page of runs.",
    RunStep => RunStepList "A page of the attempts of a run's steps.",
}
