//! Triggers: which events start runs of a workflow.

use monstrum_types::{UtcMillis, WorkflowId, WorkflowTriggerId, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::deliveries::wake_of_triggers;
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `workflow_triggers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowTriggerRow {
    pub id: WorkflowTriggerId,
    pub workspace_id: WorkspaceId,
    pub workflow_id: WorkflowId,
    /// A glob over the types of events.
    pub event_pattern: String,
    /// A text for the run, with placeholders for the event.
    pub instruction: String,
    /// Whose events match, as a JSON list.
    pub sources: Value,
    /// What the runs may do less than their bot, as a JSON object; `None` for nothing.
    pub narrow: Option<Value>,
    pub enabled: bool,
    /// The keys that made or changed the trigger, as a JSON list. They cannot approve steps of its runs that exclude the
    /// starter.
    pub starters: Value,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    WorkflowTriggerRow in WorkflowTriggers("workflow_triggers"), select: select,
    scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, workflow_id, event_pattern, instruction, sources, narrow, enabled, starters, created_at,
        updated_at,
    ],
    others: [],
}

const BY_ID: &str = select!("where workspace_id = $1 and workflow_id = $2 and id = $3");
const PAGE: &str =
    select!("where workspace_id = $1 and workflow_id = $2 and ($3 = '' or id < $3) order by id desc limit $4");
pub(super) const OF_WORKFLOW: &str = select!("where workspace_id = $1 and workflow_id = $2");
const COUNT: &str = "select count(*) as value from workflow_triggers where workspace_id = $1 and workflow_id = $2";

/// The result of inserting a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedTrigger {
    Inserted,
    /// The workflow has the maximum number of triggers.
    Full,
}

impl Store {
    /// Inserts a trigger.
    pub async fn insert_workflow_trigger(
        &self,
        row: &WorkflowTriggerRow,
        max: i64,
    ) -> Result<InsertedTrigger, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let of_workflow = args![row.workspace_id, row.workflow_id];
            let count: Option<i64> = change.session.one(COUNT, of_workflow).await?;
            if count.unwrap_or(i64::MAX) >= max {
                return Ok(InsertedTrigger::Full);
            }
            change.insert(row, Vec::new(), Vec::new()).await?;
            Ok(InsertedTrigger::Inserted)
        })
    }

    /// Returns the trigger with this id, if it belongs to the workflow.
    pub async fn workflow_trigger(
        &self,
        workspace: WorkspaceId,
        workflow: WorkflowId,
        id: WorkflowTriggerId,
    ) -> Result<Option<WorkflowTriggerRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, workflow, id]).await
    }

    /// Returns a page of the triggers of a workflow, newest first.
    pub async fn workflow_triggers(
        &self,
        workspace: WorkspaceId,
        workflow: WorkflowId,
        page: &Page<WorkflowTriggerId>,
    ) -> Result<Listed<WorkflowTriggerRow, WorkflowTriggerId>, StoreError> {
        self.authentic_page(PAGE, values![workspace, workflow], page).await
    }

    /// Updates whether a trigger is enabled and who has changed it, matched by id, workflow and workspace. Does nothing if
    /// the trigger is missing or if its `updated_at` is no longer `before`, the value that the caller read. Returns
    /// whether the trigger was updated.
    pub async fn update_workflow_trigger(
        &self,
        row: &WorkflowTriggerRow,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            if !row.enabled {
                let trigger = Some(row.id);
                wake_of_triggers(&mut change.session, row.workspace_id, row.workflow_id, trigger).await?;
            }
            change
                .update(args![row.id], |old: &WorkflowTriggerRow| {
                    let is_own = old.workspace_id == row.workspace_id && old.workflow_id == row.workflow_id;
                    (is_own && old.updated_at == before).then(|| WorkflowTriggerRow {
                        enabled: row.enabled,
                        starters: row.starters.clone(),
                        updated_at: row.updated_at,
                        ..old.clone()
                    })
                })
                .await
        })
    }

    /// Deletes a trigger of a workflow. Does nothing if the trigger is missing or if its `updated_at` is no longer
    /// `before`, the value that the caller read. Returns whether the trigger was deleted.
    pub async fn delete_workflow_trigger(
        &self,
        workspace: WorkspaceId,
        workflow: WorkflowId,
        id: WorkflowTriggerId,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            wake_of_triggers(&mut change.session, workspace, workflow, Some(id)).await?;
            let is_meant = |row: &WorkflowTriggerRow| {
                row.workspace_id == workspace && row.workflow_id == workflow && row.updated_at == before
            };
            change.delete(args![id], is_meant).await
        })
    }
}
