//! Tasks of bots and their steps.

use std::collections::BTreeMap;

use monstrum_types::{BotId, JsonText, KeyId, RequestId, SessionId, TaskId, UtcMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::bots::TaskLimits;
use crate::list::lists;
use crate::roles::ScopeConstraints;
use crate::tools::Chat;

/// A task: the work of a bot on one instruction.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Task {
    pub id: TaskId,
    pub bot_id: BotId,
    /// The session; null for a task whose caller keeps the conversation.
    pub session_id: Option<SessionId>,
    /// The task of another bot that started this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_task_id: Option<TaskId>,
    /// `queued`, `running`, `waiting`, `completed`, `failed` or `cancelled`.
    #[schema(example = "running")]
    pub status: String,
    /// Why the task failed: `steps`, `wall_clock`, `budget`, `stuck`, `model`, `model_output`, `context`,
    /// `revoked` or `internal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What the task waits for, if its status is `waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// What happened, if the task failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The instruction. A list has the first 4 KiB.
    pub instruction: String,
    /// The answer of the bot, if the task is completed: JSON if the task has an `output_schema`. A list has the first 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What the starter of the task has narrowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrow: Option<Narrow>,
    /// The number of steps that have ended.
    pub steps: i64,
    pub usage: TokenUsage,
    /// The labels of the resources whose results the model has read, in this task or earlier in its session; `*` is every
    /// label.
    pub labels: Vec<String>,
    /// The key that started the task; null for a task that no key started.
    pub started_by: Option<KeyId>,
    pub created_at: UtcMillis,
    pub started_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
}

/// What a task waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct WaitingFor {
    /// `approval`: a person has to decide about a call.
    #[schema(example = "approval")]
    pub kind: String,
    /// The id of the approval.
    pub id: String,
    /// The URL at which a person decides, if the server has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// The tokens that rounds with models have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// A step of a task: a round with a model, or a call of a tool.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TaskStep {
    /// The position of the step in its task, from 1.
    pub sequence: i64,
    /// `round`, `call`, or `summary` for a round that summarises earlier steps.
    #[schema(example = "call")]
    pub kind: String,
    /// The call in the audit. Absent for a call that never reached the pipeline of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The name of the tool, as the model wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<JsonText>,
    /// The status of the call. Absent while the call waits or runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The result of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<JsonText>,
    /// The text of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The model, as its server knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<TokenUsage>,
    /// The labels of the result of a call, or the labels of what the model had read in a round.
    pub labels: Vec<String>,
    pub started_at: UtcMillis,
    pub ended_at: Option<UtcMillis>,
}

/// A page of the steps of a task.
#[derive(Debug, Serialize, ToSchema)]
pub struct TaskSteps {
    pub items: Vec<TaskStep>,
    /// The parameter `after` of the next page; null on the last page.
    pub next_after: Option<i64>,
}

/// A task to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTask {
    /// What the bot is to do, at most 64 KiB.
    pub instruction: String,
    /// Data that the model reads below the instruction.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub params: Option<Value>,
    /// A JSON Schema of at most 64 KiB. The result is then JSON that fits it.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub output_schema: Option<Value>,
    /// The session in which the task is done. Without a session and a conversation, the task has a session of its own.
    pub session_id: Option<SessionId>,
    /// The conversation in whose session the task is done. The session is created if the conversation has none.
    pub chat: Option<Chat>,
    /// Labels of what the instruction and the parameters come from, such as `untrusted`: at most 4, each of 1 to 32
    /// characters of a-z and `-`. The task has them in addition to those of what it reads.
    #[serde(default)]
    #[schema(max_items = 4)]
    pub labels: Vec<String>,
    /// What the task may do less than its bot. It restricts every call of the task, and those of the tasks that it starts.
    pub narrow: Option<Narrow>,
    /// The limits, which must not exceed those of the bot.
    #[serde(default)]
    pub limits: TaskLimits,
}

impl NewTask {
    /// Creates a task with an instruction alone.
    #[must_use]
    pub fn of(instruction: String) -> NewTask {
        let (params, output_schema, session_id, chat, labels, narrow, limits) = Default::default();
        NewTask { instruction, params, output_schema, session_id, chat, labels, narrow, limits }
    }
}

/// A restriction of a task. It grants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Narrow {
    /// Globs for the names of tools. Without a list, no tool is excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<Vec<String>>,
    /// A map from scope keys to patterns. A tool whose type does not have one of the keys is excluded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    pub scope_constraints: ScopeConstraints,
}

lists! {
    Task => TaskList "A page of tasks.",
}
