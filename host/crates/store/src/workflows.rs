//! Workflows and their versions. A version never changes: the MAC covers the digest of its document.

mod triggers;

use monstrum_types::{BotId, Digest, KeyId, UtcMillis, WorkflowId, WorkflowVersionId, WorkspaceId, words};

pub use triggers::{InsertedTrigger, WorkflowTriggerRow};

use crate::db::{args, values};
use crate::deliveries::wake_of_triggers;
use crate::plugins::digest_of;
use crate::rows::{Scope, Table, authentic, change};
use crate::{Listed, Page, Store, StoreError, runs};

/// A row of `workflows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowRow {
    pub id: WorkflowId,
    pub workspace_id: WorkspaceId,
    /// The bot as which the workflow runs. It never changes.
    pub bot_id: BotId,
    /// The name, which is unique in the workspace. It never changes.
    pub name: String,
    /// The number of the newest version.
    pub version: i64,
    pub enabled: bool,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

words! {
    /// How the document of a version was saved.
    pub enum DocumentFormat {
        /// As a text in YAML or JSON.
        Text = "text",
        /// As a JSON object.
        Json = "json",
    }
}

/// A row of `workflow_versions`, without its document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowVersionRow {
    pub id: WorkflowVersionId,
    pub workspace_id: WorkspaceId,
    pub workflow_id: WorkflowId,
    /// 1 for the first version.
    pub version: i64,
    pub format: DocumentFormat,
    /// The SHA-256 digest of the document.
    pub digest: Digest,
    /// The key that saved the version, which may have been deleted.
    pub saved_by: KeyId,
    pub created_at: UtcMillis,
}

authentic! {
    WorkflowRow in Workflows("workflows"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, bot_id, name, version, enabled, created_at, updated_at],
    others: [],
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!(
    "where workspace_id = $1 and ($2 is null or bot_id = $2) and ($3 = '' or id < $3) order by id desc limit $4"
);
const BY_NAME: &str = select!("where workspace_id = $1 and name = $2");
const COUNT: &str = "select count(*) as value from workflows where workspace_id = $1";

authentic! {
    WorkflowVersionRow in WorkflowVersions("workflow_versions"), select: select_version,
    scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, workflow_id, version, format, digest, saved_by, created_at],
    others: [],
    // The store compares the document with its digest.
    spec: { content: &["document"] },
}

const VERSION: &str = select_version!("where workspace_id = $1 and workflow_id = $2 and version = $3");
const VERSIONS: &str =
    select_version!("where workspace_id = $1 and workflow_id = $2 and ($3 = '' or id < $3) order by id desc limit $4");
const ALL_VERSIONS: &str = select_version!("where workspace_id = $1 and workflow_id = $2");
const DOCUMENT: &str = "select document as value from workflow_versions where workspace_id = $1 and id = $2";

/// The result of inserting a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedWorkflow {
    Inserted,
    /// The workspace has the maximum number of workflows.
    Full,
}

/// A version to save, with its document.
#[derive(Clone, Copy, Debug)]
pub struct NewWorkflowVersion<'a> {
    pub row: &'a WorkflowVersionRow,
    pub document: &'a str,
}

impl WorkflowRow {
    /// Returns the row that replaces `old`, unless that was changed since `before`. The bot and the name stay.
    fn over(&self, old: &WorkflowRow, before: UtcMillis) -> Option<WorkflowRow> {
        let WorkflowRow { version, enabled, updated_at, .. } = *self;
        let is_own = old.workspace_id == self.workspace_id && old.updated_at == before;
        is_own.then(|| WorkflowRow { version, enabled, updated_at, ..old.clone() })
    }
}

impl WorkflowVersionRow {
    /// Returns the digest of a document.
    #[must_use]
    pub fn digest_of(document: &str) -> Digest {
        digest_of(document.as_bytes())
    }
}

impl Store {
    /// Inserts a workflow with its first version.
    pub async fn insert_workflow(
        &self,
        row: &WorkflowRow,
        version: NewWorkflowVersion<'_>,
        max: i64,
    ) -> Result<InsertedWorkflow, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let count: Option<i64> = change.session.one(COUNT, args![row.workspace_id]).await?;
            if count.unwrap_or(i64::MAX) >= max {
                return Ok(InsertedWorkflow::Full);
            }
            change.insert(row, Vec::new(), Vec::new()).await?;
            change.insert(version.row, Vec::new(), values![version.document]).await?;
            Ok(InsertedWorkflow::Inserted)
        })
    }

    /// Returns the workflow with this id in the workspace.
    pub async fn workflow(&self, workspace: WorkspaceId, id: WorkflowId) -> Result<Option<WorkflowRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns the workflow with this name in the workspace.
    pub async fn workflow_named(&self, workspace: WorkspaceId, name: &str) -> Result<Option<WorkflowRow>, StoreError> {
        self.authentic_one(BY_NAME, args![workspace, name]).await
    }

    /// Returns a page of the workflows in a workspace, or of a bot, newest first.
    pub async fn workflows(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        page: &Page<WorkflowId>,
    ) -> Result<Listed<WorkflowRow, WorkflowId>, StoreError> {
        self.authentic_page(PAGE, values![workspace, bot], page).await
    }

    /// Updates a workflow, matched by id and workspace, and saves a new version of it, if there is one. Does nothing if
    /// the workflow is missing or if its `updated_at` is no longer `before`, the value that the caller read. Returns
    /// whether the workflow was updated.
    pub async fn update_workflow(
        &self,
        row: &WorkflowRow,
        before: UtcMillis,
        version: Option<NewWorkflowVersion<'_>>,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            if !change.update(args![row.id], |old| row.over(old, before)).await? {
                return Ok(false);
            }
            if !row.enabled {
                wake_of_triggers(&mut change.session, row.workspace_id, row.id, None).await?;
            }
            if let Some(NewWorkflowVersion { row, document }) = version {
                change.insert(row, Vec::new(), values![document]).await?;
            }
            Ok(true)
        })
    }

    /// Deletes a workflow with its versions, triggers and ended runs. Fails with [`StoreError::InUse`] if a run of it has not
    /// ended. Does nothing if the workflow is missing or if its `updated_at`
    /// is no longer `before`, the value that the caller read. Returns whether the workflow was deleted.
    pub async fn delete_workflow(
        &self,
        workspace: WorkspaceId,
        id: WorkflowId,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            if runs::has_unended(&mut change.session, id).await? {
                return Err(StoreError::InUse);
            }
            wake_of_triggers(&mut change.session, workspace, id, None).await?;
            change.delete_found::<WorkflowVersionRow>(ALL_VERSIONS, args![workspace, id]).await?;
            change.delete_found::<WorkflowTriggerRow>(triggers::OF_WORKFLOW, args![workspace, id]).await?;
            let is_meant = |row: &WorkflowRow| row.workspace_id == workspace && row.updated_at == before;
            // Without a commit, the versions and the triggers stay.
            if !change.delete(args![id], is_meant).await? {
                return Ok(false);
            }
            Ok(true)
        })
    }

    /// Returns a version of a workflow with its document, or `None` if the version is missing or if its document does not
    /// match its digest.
    pub async fn workflow_version(
        &self,
        workspace: WorkspaceId,
        workflow: WorkflowId,
        version: i64,
    ) -> Result<Option<(WorkflowVersionRow, String)>, StoreError> {
        let row: Option<WorkflowVersionRow> = self.authentic_one(VERSION, args![workspace, workflow, version]).await?;
        let Some(row) = row else { return Ok(None) };
        let document: Option<String> = self.db.one(DOCUMENT, args![workspace, row.id]).await?;
        match document.filter(|document| WorkflowVersionRow::digest_of(document) == row.digest) {
            Some(document) => Ok(Some((row, document))),
            None => {
                self.refuse(Table::WorkflowVersions, row.id.to_string())?;
                Ok(None)
            }
        }
    }

    /// Returns a page of the versions of a workflow, newest first.
    pub async fn workflow_versions(
        &self,
        workspace: WorkspaceId,
        workflow: WorkflowId,
        page: &Page<WorkflowVersionId>,
    ) -> Result<Listed<WorkflowVersionRow, WorkflowVersionId>, StoreError> {
        self.authentic_page(VERSIONS, values![workspace, workflow], page).await
    }
}
