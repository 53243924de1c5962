//! The tasks and runs that steps start.

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_engine::Engine;
use monstrum_flow::{StepError, StepStatus, Work};
use monstrum_store::{DeliveredTask, RunRow, RunStepKey, RunStepRow, StoreError};
use monstrum_types::{Labels, UtcMillis};
use serde_json::Value;

use super::definitions::Definitions;
use super::record::RunContent;
use super::start::NewRun;

/// A task or a run for a step.
pub enum Child {
    Task(Box<DeliveredTask>),
    Run(Box<NewRun>),
}

/// How a task or a run has ended.
pub struct ChildEnd {
    pub status: StepStatus,
    pub data: Value,
    pub error: Option<StepError>,
    pub labels: Labels,
}

/// An adapter until tasks and runs of steps are there.
pub struct Children;

impl Children {
    #[must_use]
    pub fn new(_app: Arc<App>, _engine: Arc<dyn Engine>, _definitions: Arc<Definitions>) -> Children {
        Children
    }

    pub async fn prepare(
        &self,
        _run: &RunRow,
        _content: &RunContent,
        _step: &RunStepKey,
        _work: &Work,
        _now: UtcMillis,
    ) -> Result<Child, StepError> {
        Err(StepError::new("unavailable", "steps cannot start tasks and runs yet"))
    }

    pub async fn ended(&self, _step: &RunStepRow) -> Result<Option<ChildEnd>, StoreError> {
        Ok(None)
    }

    pub async fn cancel(&self, _step: &RunStepRow, _now: UtcMillis) -> Result<(), StoreError> {
        Ok(())
    }
}
