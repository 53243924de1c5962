//! The versions of workflows, which never change.

use monstrum_api::list::List;
use monstrum_api::schedules::MadeBy;
use monstrum_api::workflows::{WorkflowVersion, WorkflowVersionList, WorkflowVersionSummary};
use monstrum_core::operations::{Caller, OperationError, Operator};
use monstrum_store::{Page, WorkflowRow, WorkflowVersionRow};
use monstrum_types::{UtcMillis, WorkflowId, WorkflowVersionId};

use super::Workflows;
use super::definition::Document;

/// Returns the row of the newest version of a workflow.
pub(super) fn row(caller: &Caller, workflow: &WorkflowRow, document: &Document, now: UtcMillis) -> WorkflowVersionRow {
    WorkflowVersionRow {
        id: WorkflowVersionId::new(),
        workspace_id: workflow.workspace_id,
        workflow_id: workflow.id,
        version: workflow.version,
        format: document.format(),
        digest: document.digest(),
        saved_by: caller.key,
        created_at: now,
    }
}

impl Workflows {
    /// Lists the versions of a workflow, newest first.
    ///
    /// # Errors
    ///
    /// The workflow does not exist.
    pub async fn versions(
        &self,
        caller: &Operator,
        id: WorkflowId,
        page: &Page<WorkflowVersionId>,
    ) -> Result<WorkflowVersionList, OperationError> {
        let workflow = self.row(caller, id).await?;
        let listed = self.app.store.workflow_versions(caller.workspace, workflow.id, page).await?;
        let items = listed.items.into_iter().map(|row| WorkflowVersionSummary {
            version: row.version,
            digest: row.digest.to_string(),
            saved_by: saved_by(&row),
            created_at: row.created_at,
        });
        Ok(List { items: items.collect(), next_cursor: listed.next_cursor.map(|cursor| cursor.to_string()) })
    }

    /// Shows a version of a workflow.
    ///
    /// # Errors
    ///
    /// The workflow or the version does not exist.
    pub async fn version(
        &self,
        caller: &Operator,
        id: WorkflowId,
        version: i64,
    ) -> Result<WorkflowVersion, OperationError> {
        let workflow = self.row(caller, id).await?;
        if !(1..=workflow.version).contains(&version) {
            return Err(OperationError::not_found("version"));
        }
        let (row, document) = self.version_of(&workflow, version).await?;
        Ok(WorkflowVersion {
            version: row.version,
            digest: row.digest.to_string(),
            saved_by: saved_by(&row),
            created_at: row.created_at,
            definition: document.value(),
        })
    }

    /// Returns a version of a workflow, which must have it.
    pub(super) async fn version_of(
        &self,
        workflow: &WorkflowRow,
        version: i64,
    ) -> Result<(WorkflowVersionRow, Document), OperationError> {
        let found = self.app.store.workflow_version(workflow.workspace_id, workflow.id, version).await?;
        let (row, text) = found.ok_or_else(|| {
            tracing::error!(workflow.id = %workflow.id, version, "a version of a workflow is not authentic");
            OperationError::conflict("a version of the workflow was edited by another program; delete the workflow")
        })?;
        let document = Document::stored(row.format, text);
        Ok((row, document))
    }
}

fn saved_by(row: &WorkflowVersionRow) -> MadeBy {
    MadeBy { kind: "key".to_owned(), id: row.saved_by.to_string() }
}
