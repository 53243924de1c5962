//! Tools that come from outside: the definitions that servers and agents declare, and the decisions of admins about
//! them.
//!
//! The seal of a workspace counts these rows, so that a row that is restored or added with SQL permits nothing.

use monstrum_types::{Digest, KeyId, PinStatus, ResourceId, ResourceToolId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::args;
use crate::discoveries::FIRST_OF_RESOURCE;
use crate::rows::{Scope, authentic, change};
use crate::{FirstDiscoveryRow, ResourceRow, Store, StoreError, resources};

/// A row of `resource_tools`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceToolRow {
    pub id: ResourceToolId,
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    /// The name that the server or the agent uses, which is unique in the resource.
    pub original_name: String,
    /// The part of the tool's name that follows the name of the resource. It never changes.
    pub slug: String,
    pub status: PinStatus,
    /// The reason for the status `invalid`.
    pub reason: Option<String>,
    /// The digest of the definition that was declared last.
    pub digest: Digest,
    /// The definition that was declared last, as JSON text.
    pub definition: String,
    /// The effect that the server or the agent declares.
    pub hint: Option<String>,
    /// The effect that an admin has set.
    pub effect: String,
    /// The digest of the approved definition.
    pub approved_digest: Option<Digest>,
    /// The digest of the definition that an admin has rejected.
    pub rejected_digest: Option<Digest>,
    /// The approved definition, if it differs from the definition that was declared last.
    pub approved_definition: Option<String>,
    /// The key that approved the definition; `None` if the configuration of the resource approved it.
    pub approved_by: Option<KeyId>,
    pub approved_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    ResourceToolRow in ResourceTools("resource_tools"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, resource_id, original_name, slug, status, reason, digest, definition, hint, effect,
        approved_digest, rejected_digest, approved_definition, approved_by, approved_at, created_at, updated_at,
    ],
    others: [],
}

pub(crate) const OF_RESOURCE: &str = select!("where workspace_id = $1 and resource_id = $2 order by id");

impl ResourceToolRow {
    /// Returns whether bots may use the tool: it is declared with the approved definition.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.status == PinStatus::Approved && self.approved_digest.as_ref() == Some(&self.digest)
    }
}

/// Changes of the tools of a resource, which are made in one transaction.
#[derive(Clone, Debug, Default)]
pub struct ToolWrites {
    /// The configuration for which the tools were declared; `None` for a decision. It must not have changed since then.
    pub config: Option<Value>,
    /// The rows of the resource as the caller read them.
    pub before: Vec<ResourceToolRow>,
    /// The rows to insert or to replace.
    pub written: Vec<ResourceToolRow>,
    /// The rows to delete.
    pub deleted: Vec<ResourceToolId>,
    /// The record of the first successful discovery, as the caller read it.
    pub first_before: Option<FirstDiscoveryRow>,
    /// A new record of the first successful discovery.
    pub first: Option<FirstDiscoveryRow>,
}

impl Store {
    /// Returns the tools of a resource in the order of their creation.
    pub async fn resource_tools(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
    ) -> Result<Vec<ResourceToolRow>, StoreError> {
        self.authentic(OF_RESOURCE, args![workspace, resource]).await
    }

    /// Makes these changes, all or none. Returns false, and changes nothing, if the rows have changed since the caller
    /// read them. Fails if the resource was deleted, or if its configuration has changed.
    pub async fn write_resource_tools(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        writes: &ToolWrites,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(workspace)], |change| {
            async {
                let rows: Vec<ResourceToolRow> = change.all(OF_RESOURCE, args![workspace, resource]).await?;
                let first: Option<FirstDiscoveryRow> =
                    change.one(FIRST_OF_RESOURCE, args![workspace, resource]).await?;
                if rows != writes.before || first != writes.first_before {
                    return Ok(false);
                }
                let row: Option<ResourceRow> = change.one(resources::BY_ID, args![workspace, resource]).await?;
                let row = row.ok_or(StoreError::UnknownReference)?;
                if writes.config.as_ref().is_some_and(|config| *config != row.config) {
                    return Err(StoreError::ChangedMeanwhile);
                }
                for id in &writes.deleted {
                    change.delete(args![id], |row: &ResourceToolRow| row.resource_id == resource).await?;
                }
                for row in writes.written.iter().filter(|row| row.resource_id == resource) {
                    change.put(row).await?;
                }
                if let Some(first) = &writes.first {
                    change.put(first).await?;
                }
                Ok(true)
            }
            .await
        })
    }
}
