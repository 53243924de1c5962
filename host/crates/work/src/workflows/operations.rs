//! The operations on workflows.

use monstrum_api::list::List;
use monstrum_api::workflows::{NewWorkflow, ValidWorkflow, Workflow, WorkflowChange, WorkflowList, WorkflowSummary};
use monstrum_core::operations::change::{Change, changed_at};
use monstrum_core::operations::{Expected, OperationError, Operator};
use monstrum_store::{InsertedWorkflow, NewWorkflowVersion, Page, WorkflowRow, WorkflowVersionRow};
use monstrum_types::{BotId, Digest, DocumentError, WorkflowId};
use serde_json::{Value, json};

use super::Workflows;
use super::definition::{Checked, Document};
use super::versions;

/// The maximum number of workflows of a workspace: enough for each job of a company to have its own, and few enough that a
/// host keeps their names.
const WORKFLOWS_MAX: i64 = 1000;
/// The maximum number of versions of a workflow. The seal of the workspace counts each version, and every start of a host
/// checks all of them.
const VERSIONS_MAX: i64 = 1000;

impl Workflows {
    /// Creates a workflow with its first version.
    ///
    /// # Errors
    ///
    /// The definition has errors, the name is taken, or there are too many workflows.
    pub async fn create(&self, caller: &Operator, new: NewWorkflow) -> Result<Workflow, OperationError> {
        let (app, now) = (&self.app, self.app.clock.now());
        let document = Document::new(new.definition).await?;
        let Checked { name, bot_id, warnings } = self.check(caller, &document).await?;
        let row = WorkflowRow {
            id: WorkflowId::new(),
            workspace_id: caller.workspace,
            bot_id,
            name,
            version: 1,
            enabled: true,
            created_at: now,
            updated_at: now,
        };
        let version = versions::row(caller, &row, &document, now);
        let insert = async {
            let new = NewWorkflowVersion { row: &version, document: document.text() };
            match app.store.insert_workflow(&row, new, WORKFLOWS_MAX).await? {
                InsertedWorkflow::Inserted => Ok(()),
                InsertedWorkflow::Full => Err(OperationError::conflict(format!(
                    "the workspace has {WORKFLOWS_MAX} workflows, which is the maximum; delete one first"
                ))),
            }
        };
        let recorded = recorded(&row, &version.digest);
        Change::new("workflow.create", &row.id).of_bot(bot_id).to(&recorded).apply(app, caller, insert).await?;
        Ok(shown(row, document.value(), warnings))
    }

    /// Checks a definition without saving it.
    ///
    /// # Errors
    ///
    /// The definition has errors.
    pub async fn validate(&self, caller: &Operator, new: NewWorkflow) -> Result<ValidWorkflow, OperationError> {
        let Checked { name, bot_id, warnings } = self.check(caller, &Document::new(new.definition).await?).await?;
        Ok(ValidWorkflow { name, bot_id, warnings })
    }

    /// Lists workflows of the workspace or of a bot, newest first.
    ///
    /// # Errors
    ///
    /// The database failed.
    pub async fn list(
        &self,
        caller: &Operator,
        bot: Option<BotId>,
        page: &Page<WorkflowId>,
    ) -> Result<WorkflowList, OperationError> {
        let listed = self.app.store.workflows(caller.workspace, bot, page).await?;
        let next_cursor = listed.next_cursor.map(|cursor| cursor.to_string());
        Ok(List { items: listed.items.into_iter().map(summary).collect(), next_cursor })
    }

    /// Shows a workflow with its newest definition.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, or its rows were edited by another program.
    pub async fn show(&self, caller: &Operator, id: WorkflowId) -> Result<Workflow, OperationError> {
        let row = self.row(caller, id).await?;
        let (_, document) = self.version_of(&row, row.version).await?;
        let warnings = self.warnings(caller, &document).await?;
        Ok(shown(row, document.value(), warnings))
    }

    /// Changes whether a workflow is enabled, or saves a new version. A definition that equals the newest version makes no
    /// version. Runs that have started keep their version.
    ///
    /// # Errors
    ///
    /// The definition has errors, or names another workflow or bot; the workflow does not exist or does not have the
    /// expected version.
    pub async fn update(
        &self,
        caller: &Operator,
        id: WorkflowId,
        expected: Expected,
        change: WorkflowChange,
    ) -> Result<Workflow, OperationError> {
        let before = self.row(caller, id).await?;
        expected.check(before.updated_at)?;
        let (newest, kept) = self.version_of(&before, before.version).await?;
        let named = match change.definition {
            Some(definition) => Some(Document::new(definition).await?),
            None => None,
        };
        let is_new = named.as_ref().is_some_and(|document| !document.is(&newest));
        let document = named.unwrap_or(kept);
        let warnings = if is_new {
            self.check_again(caller, &before, &document).await?
        } else {
            self.warnings(caller, &document).await?
        };
        let enabled = change.enabled.unwrap_or(before.enabled);
        if !is_new && enabled == before.enabled {
            return Ok(shown(before, document.value(), warnings));
        }
        let updated_at = changed_at(&self.app, before.updated_at);
        let version = before.version + i64::from(is_new);
        let row = WorkflowRow { version, enabled, updated_at, ..before.clone() };
        let new = is_new.then(|| versions::row(caller, &row, &document, updated_at));
        self.save(caller, expected, (&before, &newest.digest), (&row, new.as_ref(), &document)).await?;
        Ok(shown(row, document.value(), warnings))
    }

    async fn save(
        &self,
        caller: &Operator,
        expected: Expected,
        (before, digest): (&WorkflowRow, &Digest),
        (row, new, document): (&WorkflowRow, Option<&WorkflowVersionRow>, &Document),
    ) -> Result<(), OperationError> {
        let app = &self.app;
        if new.is_some() && row.version > VERSIONS_MAX {
            return Err(OperationError::conflict(format!(
                "the workflow has {VERSIONS_MAX} versions, which is the maximum; create a workflow with another name"
            )));
        }
        let new_digest = new.map_or(digest, |new| &new.digest);
        let recorded = Change::new("workflow.update", &row.id)
            .of_bot(row.bot_id)
            .from(&recorded(before, digest))
            .to(&recorded(row, new_digest));
        let update = async {
            let new = new.map(|new| NewWorkflowVersion { row: new, document: document.text() });
            match app.store.update_workflow(row, before.updated_at, new).await? {
                true => Ok(()),
                false => Err(expected.changed_meanwhile()),
            }
        };
        recorded.apply(app, caller, update).await
    }

    /// Deletes a workflow with its versions and triggers.
    ///
    /// # Errors
    ///
    /// The workflow does not exist, or does not have the expected version.
    pub async fn delete(&self, caller: &Operator, id: WorkflowId, expected: Expected) -> Result<(), OperationError> {
        let app = &self.app;
        let before = self.row(caller, id).await?;
        expected.check(before.updated_at)?;
        let delete = async {
            match app.store.delete_workflow(caller.workspace, id, before.updated_at).await? {
                true => Ok(()),
                false => Err(expected.changed_meanwhile()),
            }
        };
        let recorded = Change::new("workflow.delete", &id).of_bot(before.bot_id).from(&summary(before.clone()));
        recorded.apply(app, caller, delete).await
    }
}

/// Returns what the audit keeps of a workflow. The versions keep the definitions.
fn recorded(row: &WorkflowRow, digest: &Digest) -> Value {
    json!({
        "id": row.id, "name": row.name, "bot_id": row.bot_id, "version": row.version, "digest": digest,
        "enabled": row.enabled,
    })
}

fn summary(row: WorkflowRow) -> WorkflowSummary {
    let WorkflowRow { id, name, bot_id, version, enabled, created_at, updated_at, .. } = row;
    WorkflowSummary { id, name, bot_id, version, enabled, created_at, updated_at }
}

fn shown(row: WorkflowRow, definition: Value, warnings: Vec<DocumentError>) -> Workflow {
    let WorkflowRow { id, name, bot_id, version, enabled, created_at, updated_at, .. } = row;
    Workflow { id, name, bot_id, version, enabled, definition, warnings, created_at, updated_at }
}
