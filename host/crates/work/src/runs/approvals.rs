//! The questions of steps.

use monstrum_core::app::App;
use monstrum_flow::StepError;
use monstrum_store::{ApprovalRow, RunRow, RunStepRow, StoreError};
use monstrum_types::UtcMillis;
use serde_json::Value;

use super::record::{RunContent, StepContent};

/// An adapter until questions of steps are there.
pub async fn ask(
    _app: &App,
    _run: (&RunRow, &RunContent),
    _step: (&RunStepRow, &StepContent),
    _now: UtcMillis,
) -> Result<ApprovalRow, StepError> {
    Err(StepError::new("unavailable", "steps cannot ask people yet"))
}

pub async fn decided(
    _app: &App,
    _run: &RunRow,
    _content: &StepContent,
    _now: UtcMillis,
) -> Result<Option<Result<Value, StepError>>, StoreError> {
    Ok(None)
}
