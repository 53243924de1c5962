//! The runs of workflows that schedules start. Workflows are a matter of the crate work, which is above this one.

use async_trait::async_trait;
use monstrum_api::runs::Run;
use monstrum_api::tasks::Narrow;
use monstrum_core::events::EventCause;
use monstrum_core::operations::OperationError;
use monstrum_store::{NewWake, RunRow, RunsMax, ScheduleRow};
use monstrum_types::{BotId, KeyId, UtcMillis, WorkflowId, WorkspaceId};
use serde_json::Value;

/// Prepares and shows the runs of schedules.
#[async_trait]
pub trait RunsOfSchedules: Send + Sync {
    /// Returns the bot of a workflow, after a check of the input for the newest version.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, or does not take the input. The paths of the faults begin with `/workflow_id` or
    /// `/input`.
    async fn check(&self, workspace: WorkspaceId, workflow: WorkflowId, input: &Value)
    -> Result<BotId, OperationError>;

    /// Prepares a run of the newest version.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, has the bot of no schedule, or does not take the input.
    async fn prepare(&self, new: RunOfSchedule<'_>) -> Result<PreparedRun, OperationError>;

    /// Returns a run as the API shows it.
    ///
    /// # Errors
    ///
    /// The database failed.
    async fn shown(&self, row: &RunRow) -> Result<Run, OperationError>;
}

/// What a firing of a schedule starts.
#[derive(Debug)]
pub struct RunOfSchedule<'a> {
    pub schedule: &'a ScheduleRow,
    pub planned_at: UtcMillis,
    pub workflow_id: WorkflowId,
    pub input: Value,
    /// The keys that made, changed or fired the schedule.
    pub starters: Vec<KeyId>,
    /// What the run may do less than its bot.
    pub narrow: Option<Narrow>,
    /// The event of the firing.
    pub cause: EventCause,
    pub now: UtcMillis,
}

/// A run to insert, with the wake of its first turn and the limits of the workflow.
#[derive(Debug)]
pub struct PreparedRun {
    pub row: RunRow,
    pub wake: NewWake,
    pub max: RunsMax,
}
