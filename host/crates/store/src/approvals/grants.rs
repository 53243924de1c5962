//! Grants: the approvals that permit a call now. The seal of a workspace counts its grants.

use monstrum_types::{ApprovalId, BotId, Digest, UtcMillis, WorkspaceId};

use super::ApprovalRow;
use crate::db::{args, values};
use crate::rows::{Change, Scope, authentic, change};
use crate::{Store, StoreError};

/// A row of `approval_grants`. It exists exactly while its approval is approved and unused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRow {
    /// The id of the approval.
    pub id: ApprovalId,
    pub workspace_id: WorkspaceId,
    /// The digest of the call that the grant permits.
    pub digest: Digest,
    pub expires_at: UtcMillis,
}

authentic! {
    GrantRow in ApprovalGrants("approval_grants"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, digest, expires_at],
    others: [],
}

impl GrantRow {
    /// Creates the grant of an approval.
    pub(super) fn of(row: &ApprovalRow) -> GrantRow {
        let ApprovalRow { id, workspace_id, expires_at, .. } = *row;
        GrantRow { id, workspace_id, digest: row.digest.clone(), expires_at }
    }
}

pub(super) const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const OF_WORKSPACE: &str = select!("where workspace_id = $1");
const OF_BOT: &str =
    select!("where workspace_id = $1 and id in (select id from approvals where workspace_id = $1 and bot_id = $2)");
const EXPIRED: &str = select!("where expires_at <= $1 order by expires_at limit $2");

impl Change<'_> {
    /// Deletes the grants of a bot.
    pub(crate) async fn delete_grants_of_bot(&mut self, workspace: WorkspaceId, bot: BotId) -> Result<(), StoreError> {
        self.delete_found::<GrantRow>(OF_BOT, args![workspace, bot]).await.map(drop)
    }

    /// Deletes the grants of a workspace.
    pub(crate) async fn delete_grants(&mut self, workspace: WorkspaceId) -> Result<(), StoreError> {
        self.delete_found::<GrantRow>(OF_WORKSPACE, args![workspace]).await.map(drop)
    }
}

impl Store {
    /// Returns grants that expired at or before `now`. The end of an approval deletes its grant, so only a grant whose
    /// approval was deleted or changed by another program remains.
    pub async fn expired_grants(&self, now: UtcMillis, limit: u32) -> Result<Vec<GrantRow>, StoreError> {
        self.authentic_up_to(EXPIRED, values![now], limit).await
    }

    /// Deletes a grant. Returns whether the grant existed.
    pub async fn delete_grant(&self, row: &GrantRow) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.delete(args![row.id], |grant: &GrantRow| grant == row).await
        })
    }
}
