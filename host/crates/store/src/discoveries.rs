//! Discoveries: when the tools of a resource were last read from its server or agent, and with which result.

use monstrum_types::{DiscoveryStatus, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Store, StoreError};

/// A row of `first_discoveries`: the first successful discovery of the tools at a URL. It decides which tools the
/// configuration of a resource approves, so the seal of the workspace counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstDiscoveryRow {
    pub resource_id: ResourceId,
    pub workspace_id: WorkspaceId,
    /// The URL of the server; empty for an agent.
    pub url: String,
    pub discovered_at: UtcMillis,
}

authentic! {
    FirstDiscoveryRow in FirstDiscoveries("first_discoveries"), select: select_first,
    scope: |row| Scope::from(row.workspace_id),
    covered: [resource_id, workspace_id, url, discovered_at],
    others: [],
    spec: { key: &["resource_id"] },
}

/// A row of `discoveries`. It grants nothing, and each discovery replaces it, so the seals do not count these rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveryRow {
    pub resource_id: ResourceId,
    pub workspace_id: WorkspaceId,
    pub status: DiscoveryStatus,
    pub last_discovery_at: Option<UtcMillis>,
    /// The reason why the last discovery failed.
    pub error: Option<String>,
    /// What the server says about itself: its name, title and version.
    pub server: Option<Value>,
    /// The revision of the protocol.
    pub protocol: Option<String>,
    /// The host that runs a discovery now.
    pub claimed_by: Option<String>,
    pub claimed_until: Option<UtcMillis>,
}

authentic! {
    DiscoveryRow in Discoveries("discoveries"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [resource_id, workspace_id, status, last_discovery_at, error, server, protocol],
    others: [claimed_by, claimed_until],
    spec: { key: &["resource_id"], is_counted: false },
}

pub(crate) const FIRST_OF_RESOURCE: &str = select_first!("where workspace_id = $1 and resource_id = $2");
const OF_RESOURCE: &str = select!("where workspace_id = $1 and resource_id = $2");
const CLAIM: &str = "update discoveries set claimed_by = $1, claimed_until = $2 where resource_id = $3 \
                     and (claimed_by is null or claimed_by = $1 or claimed_until is null or claimed_until <= $4)";
const RELEASE: &str =
    "update discoveries set claimed_by = null, claimed_until = null where resource_id = $1 and claimed_by = $2";

impl Store {
    /// Returns the record of the first successful discovery of a resource.
    pub async fn first_discovery(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
    ) -> Result<Option<FirstDiscoveryRow>, StoreError> {
        self.authentic_one(FIRST_OF_RESOURCE, args![workspace, resource]).await
    }

    /// Returns the last discovery of a resource.
    pub async fn discovery(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
    ) -> Result<Option<DiscoveryRow>, StoreError> {
        self.authentic_one(OF_RESOURCE, args![workspace, resource]).await
    }

    /// Stores the result of a discovery. The claim stays unchanged.
    pub async fn put_discovery(&self, row: &DiscoveryRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let replaced = change.update_uncounted(args![row.resource_id], |_| Some(row.clone())).await?;
                if replaced.is_none() {
                    // A row with a wrong MAC may exist.
                    change
                        .session
                        .run("delete from discoveries where resource_id = $1", args![row.resource_id])
                        .await?;
                    change.insert_uncounted(row, values![None::<&str>, None::<i64>], Vec::new()).await?;
                }
                Ok(())
            }
            .await
        })
    }

    /// Claims the discovery of a resource for the host `host` until `until`. Returns false if another host holds the
    /// claim at `now`.
    pub async fn claim_discovery(
        &self,
        (workspace, resource): (WorkspaceId, ResourceId),
        host: &str,
        now: UtcMillis,
        until: UtcMillis,
    ) -> Result<bool, StoreError> {
        if self.discovery(workspace, resource).await?.is_none() {
            let row = DiscoveryRow {
                resource_id: resource,
                workspace_id: workspace,
                status: DiscoveryStatus::Never,
                last_discovery_at: None,
                error: None,
                server: None,
                protocol: None,
                claimed_by: None,
                claimed_until: None,
            };
            self.put_discovery(&row).await?;
        }
        Ok(self.db.run(CLAIM, args![host, until, resource, now]).await? > 0)
    }

    /// Releases the claim that the host `host` holds.
    pub async fn release_discovery(&self, resource: ResourceId, host: &str) -> Result<(), StoreError> {
        self.db.run(RELEASE, args![resource, host]).await.map(drop)
    }
}
