//! Schedules: the times at which tasks of bots and runs of workflows start.

use monstrum_types::{BotId, RunId, ScheduleId, TaskId, UtcMillis, WorkflowId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};
use crate::runs::Run;
use crate::tasks::{Narrow, Task};

/// A schedule: the times at which a task of a bot or a run of a workflow starts.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Schedule {
    pub id: ScheduleId,
    pub name: String,
    /// The bot of the tasks, or that of the workflow.
    pub bot_id: BotId,
    /// What the bot is to do. A schedule has either an instruction or a workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<WorkflowId>,
    /// The input of the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// A pattern of five fields. A schedule has one of `cron`, `every_s` and `at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "30 7 * * mon-fri")]
    pub cron: Option<String>,
    /// An interval in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_s: Option<u32>,
    /// A single time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<UtcMillis>,
    /// The time zone of `cron`.
    #[schema(example = "Europe/Berlin")]
    pub timezone: String,
    pub overlap: Overlap,
    pub missed: Missed,
    /// The maximum delay of a firing, in seconds.
    pub jitter_s: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrow: Option<Narrow>,
    /// Whether the schedule fires. Five failures in a row pause it.
    pub enabled: bool,
    /// The planned time of the next firing; null for a schedule that fires no more.
    pub next_at: Option<UtcMillis>,
    /// The last firing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastFiring>,
    /// The number of failures in a row: tasks or runs that failed or could not be started.
    pub failures: i64,
    /// Who made the schedule. The schedule goes on when the key is deleted.
    pub made_by: MadeBy,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What happens at a planned time when an earlier task or run of the schedule has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Nothing is started.
    #[default]
    Skip,
    /// The task or run is started when the earlier ones have ended. At most 10 wait.
    Queue,
    /// The task or run is started beside the earlier ones.
    Allow,
}

/// What happens to the planned times at which no server was running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// One task or run is started for all of them.
    #[default]
    Once,
    /// Nothing is started for them.
    Skip,
}

/// A firing of a schedule.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LastFiring {
    pub planned_at: UtcMillis,
    pub fired_at: UtcMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// `running`, `completed`, `failed` or `cancelled` with the status of the task or run; `queued` or `skipped` if an
    /// earlier one had not ended; `missed` if no server was running; `failed` without a task or run if it could not be
    /// started.
    #[schema(example = "completed")]
    pub status: String,
}

/// Who made an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeBy {
    /// `key`, or `plugin` for a subscription that a plugin has made.
    #[schema(example = "key")]
    pub kind: String,
    /// The id of the key, which may have been deleted, or the name of the plugin.
    pub id: String,
}

/// A schedule to create. It has one of `cron`, `every_s` and `at`, and either `bot_id` and `instruction`, or `workflow_id`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSchedule {
    /// At most 128 characters, unique in the workspace.
    pub name: String,
    pub bot_id: Option<BotId>,
    /// What the bot is to do, at most 64 KiB.
    pub instruction: Option<String>,
    /// The workflow to run, always in its newest version.
    pub workflow_id: Option<WorkflowId>,
    /// The input of the runs, which has to fit the workflow. The default is `{}`.
    pub input: Option<Value>,
    /// A pattern of five fields: minute, hour, day of the month, month and day of the week.
    pub cron: Option<String>,
    /// An interval in seconds, 60 to 31622400.
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub every_s: Option<u32>,
    /// A single time, in the future.
    pub at: Option<UtcMillis>,
    /// The time zone of `cron`: a name of the IANA database. The default is `UTC`.
    pub timezone: Option<String>,
    #[serde(default)]
    pub overlap: Overlap,
    #[serde(default)]
    pub missed: Missed,
    /// The maximum delay of a firing in seconds, up to 3600. Each firing has a delay of its own.
    #[serde(default)]
    #[schema(maximum = 3600)]
    pub jitter_s: u32,
    /// What the tasks or runs may do less than their bot.
    pub narrow: Option<Narrow>,
    #[serde(default = "enabled")]
    pub enabled: bool,
}

fn enabled() -> bool {
    true
}

/// Changes to a schedule. The bot and the workflow of a schedule cannot be changed. One of `cron`, `every_s` and `at` replaces the others.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleChange {
    #[serde(default, deserialize_with = "not_null")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    pub instruction: Option<String>,
    /// The input of the runs.
    #[serde(default, deserialize_with = "not_null")]
    pub input: Option<Value>,
    #[serde(default, deserialize_with = "not_null")]
    pub cron: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub every_s: Option<u32>,
    #[serde(default, deserialize_with = "not_null")]
    pub at: Option<UtcMillis>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub timezone: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Overlap>)]
    pub overlap: Option<Option<Overlap>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Missed>)]
    pub missed: Option<Option<Missed>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, maximum = 3600)]
    pub jitter_s: Option<Option<u32>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Narrow>)]
    pub narrow: Option<Option<Narrow>>,
    /// Enabling a schedule that five failures have paused sets `failures` to 0.
    #[serde(default, deserialize_with = "not_null")]
    pub enabled: Option<bool>,
}

/// What a person has started with a schedule: a task, or a run of its workflow.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum FiredByHand {
    Task(Box<Task>),
    Run(Box<Run>),
}

/// Times of a schedule to preview.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulePreview {
    /// A pattern of five fields.
    pub cron: Option<String>,
    /// An interval in seconds.
    #[schema(minimum = 60, maximum = 31_622_400)]
    pub every_s: Option<u32>,
    /// The time zone of `cron`. The default is `UTC`.
    pub timezone: Option<String>,
}

/// The next times of a schedule.
#[derive(Debug, Serialize, ToSchema)]
pub struct ScheduleTimes {
    /// Five times, without the delays of `jitter_s`.
    pub next: Vec<UtcMillis>,
}

lists! {
    Schedule => ScheduleList "A page of schedules.",
}
