//! Proposals of OAuth providers: what the last look-up of a resource's authorization server has found. An admin confirms a
//! proposal by its digest.
//!
//! A proposal contains no secret, so it is not sealed. It has a MAC, because a program with access to the database could
//! otherwise propose a server of its own between the look-up and the confirmation. It grants nothing before its
//! confirmation, and the time of its expiry is under the MAC, so the seals do not count these rows.

use monstrum_types::{Digest, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::args;
use crate::rows::{Scope, authentic, change};
use crate::{Store, StoreError};

/// A row of `oauth_proposals`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OauthProposalRow {
    pub resource_id: ResourceId,
    pub workspace_id: WorkspaceId,
    /// The digest of `proposal`.
    pub digest: Digest,
    /// The proposal, as a JSON object.
    pub proposal: Value,
    pub created_at: UtcMillis,
    pub expires_at: UtcMillis,
}

authentic! {
    OauthProposalRow in OauthProposals("oauth_proposals"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [resource_id, workspace_id, digest, proposal, created_at, expires_at],
    others: [],
    spec: { key: &["resource_id"], is_counted: false },
}

const OF_RESOURCE: &str = select!("where workspace_id = $1 and resource_id = $2 and expires_at > $3");

impl Store {
    /// Stores the proposal of a resource. It replaces the earlier proposal.
    pub async fn put_oauth_proposal(&self, row: &OauthProposalRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let sql = "delete from oauth_proposals where resource_id = $1";
                change.session.run(sql, args![row.resource_id]).await?;
                change.insert_uncounted(row, Vec::new(), Vec::new()).await
            }
            .await
        })
    }

    /// Returns the proposal of a resource, unless it has expired at `now`.
    pub async fn oauth_proposal(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        now: UtcMillis,
    ) -> Result<Option<OauthProposalRow>, StoreError> {
        self.authentic_one(OF_RESOURCE, args![workspace, resource, now]).await
    }

    /// Deletes proposals that expired before `before`. Returns the number of deleted proposals.
    pub async fn purge_oauth_proposals(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run("delete from oauth_proposals where expires_at < $1", args![before]).await
    }
}
