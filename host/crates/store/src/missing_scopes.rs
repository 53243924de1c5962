//! The scopes that servers have asked for and that credentials do not have. Admins see them; nothing is granted by them.
//!
//! The rows have a MAC, because a program with access to the database could otherwise make an admin grant scopes that no
//! server has asked for.

use monstrum_types::{CredentialId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Store, StoreError};

/// A row of `missing_scopes`. It is deleted with its credential, which a new authorization replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingScopesRow {
    pub credential_id: CredentialId,
    pub workspace_id: WorkspaceId,
    /// A JSON list of strings.
    pub scopes: Value,
    pub noted_at: UtcMillis,
}

authentic! {
    MissingScopesRow in MissingScopes("missing_scopes"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [credential_id, workspace_id, scopes, noted_at],
    others: [],
    spec: { key: &["credential_id"], is_counted: false },
}

const OF_CREDENTIAL: &str = select!("where workspace_id = $1 and credential_id = $2");

const OF_WORKSPACE: &str = select!("where workspace_id = $1 order by noted_at, credential_id limit $2");

impl Store {
    /// Stores the missing scopes of a credential. They replace the earlier ones.
    pub async fn put_missing_scopes(&self, row: &MissingScopesRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let sql = "delete from missing_scopes where credential_id = $1";
                change.session.run(sql, args![row.credential_id]).await?;
                change.insert_uncounted(row, Vec::new(), Vec::new()).await
            }
            .await
        })
    }

    /// Returns the missing scopes of a credential.
    pub async fn missing_scopes(
        &self,
        workspace: WorkspaceId,
        credential: CredentialId,
    ) -> Result<Option<MissingScopesRow>, StoreError> {
        self.authentic_one(OF_CREDENTIAL, args![workspace, credential]).await
    }

    /// Returns the missing scopes of up to `limit` credentials of a workspace. The oldest are first.
    pub async fn missing_scopes_of_workspace(
        &self,
        workspace: WorkspaceId,
        limit: u32,
    ) -> Result<Vec<MissingScopesRow>, StoreError> {
        self.authentic_up_to(OF_WORKSPACE, values![workspace], limit).await
    }
}
