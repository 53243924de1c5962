//! The runs that schedules start, for the crate agent, which runs the turns of schedules.

use async_trait::async_trait;
use monstrum_agent::schedules::{PreparedRun, RunOfSchedule, RunsOfSchedules};
use monstrum_api::runs::Run;
use monstrum_core::operations::OperationError;
use monstrum_store::{RunRow, RunStarter, WorkflowRow};
use monstrum_types::{BotId, InputError, WorkflowId, WorkspaceId};
use serde_json::{Value, json};

use super::operations::Runs;
use super::start::{self, NewRun, NotStarted, StartOf};

/// The field of a schedule that names the workflow.
const WORKFLOW: &str = "/workflow_id";

impl Runs {
    async fn of_schedule(&self, workspace: WorkspaceId, id: WorkflowId) -> Result<WorkflowRow, OperationError> {
        let found = self.app.store.workflow(workspace, id).await?;
        found.ok_or_else(|| OperationError::invalid_at(WORKFLOW, "no such workflow"))
    }
}

#[async_trait]
impl RunsOfSchedules for Runs {
    async fn check(&self, workspace: WorkspaceId, id: WorkflowId, input: &Value) -> Result<BotId, OperationError> {
        let workflow = self.of_schedule(workspace, id).await?;
        let definition = self.definitions.of(workspace, id, workflow.version).await;
        let definition = definition.map_err(|error| OperationError::invalid_at(WORKFLOW, error.to_string()))?;
        match definition.check_input(input) {
            Ok(()) => Ok(workflow.bot_id),
            Err(errors) => Err(of_input(errors.into_iter().map(|(path, message)| InputError { path, message }))),
        }
    }

    async fn prepare(&self, new: RunOfSchedule<'_>) -> Result<PreparedRun, OperationError> {
        let RunOfSchedule { schedule, planned_at, workflow_id, input, starters, narrow, cause, now } = new;
        let workspace = schedule.workspace_id;
        let workflow = self.of_schedule(workspace, workflow_id).await?;
        // The row of the schedule names the bot for which a person has made it.
        if workflow.bot_id != schedule.bot_id {
            return Err(OperationError::conflict("the schedule was made for another bot than that of its workflow"));
        }
        let definition = self.definitions.of(workspace, workflow_id, workflow.version).await;
        let definition = definition.map_err(|error| OperationError::conflict(error.to_string()))?;
        let of_schedule = json!({
            "id": schedule.id, "name": schedule.name, "planned_at": planned_at, "fired_at": now,
        });
        let starter = (RunStarter::Schedule, schedule.id.to_string());
        let start = StartOf {
            starters,
            schedule: Some(of_schedule),
            narrow,
            cause: Some(cause),
            ..StartOf::new(&workflow, input, starter, now)
        };
        match start::prepare(&self.app, &definition, start) {
            Ok(NewRun { row, wake, max }) => Ok(PreparedRun { row, wake, max }),
            Err(NotStarted::Input(errors)) => Err(of_input(errors.into_iter())),
            Err(error) => Err(OperationError::internal(error)),
        }
    }

    async fn shown(&self, row: &RunRow) -> Result<Run, OperationError> {
        self.view(row).await
    }
}

/// Returns the faults of the input of a schedule.
fn of_input(errors: impl Iterator<Item = InputError>) -> OperationError {
    OperationError::Invalid(
        errors.map(|InputError { path, message }| InputError { path: format!("/input{path}"), message }).collect(),
    )
}
