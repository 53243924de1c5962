//! Workflows: documents with steps that a bot runs in an order, their versions, and their triggers.
//!
//! definition.rs checks documents, operations.rs and versions.rs have what people do with workflows, and triggers.rs what
//! they do with triggers. A workflow has no rights: each of its steps has those of its bot, of that moment.

mod definition;
mod operations;
mod triggers;
mod versions;

use std::sync::Arc;

use monstrum_core::app::App;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_store::WorkflowRow;
use monstrum_types::WorkflowId;

/// The operations on the workflows of a host.
#[derive(Clone)]
pub struct Workflows {
    app: Arc<App>,
}

impl Workflows {
    /// Creates the operations on the workflows of the host `app`.
    #[must_use]
    pub fn new(app: Arc<App>) -> Workflows {
        Workflows { app }
    }

    async fn row(&self, caller: &Caller, id: WorkflowId) -> Result<WorkflowRow, OperationError> {
        let row = self.app.store.workflow(caller.workspace, id).await?;
        row.ok_or_else(|| OperationError::not_found("workflow"))
    }
}
