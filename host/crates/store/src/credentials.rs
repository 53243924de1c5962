//! Sealed credentials of resources. They have their own table, so that resources can be read and changed without them.

use monstrum_types::{CredentialId, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `credentials`.
#[derive(Clone, Debug, PartialEq)]
pub struct CredentialRow {
    pub id: CredentialId,
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    /// Always `shared`: there are no credentials per user yet.
    pub subject_kind: String,
    /// Empty for a shared credential.
    pub subject_id: String,
    pub auth_method: String,
    /// The text of a sealed record.
    pub sealed: String,
    /// The version of the master key that sealed it.
    pub key_version: i64,
    /// The resource type, auth method, audience and inject rules at the time it was saved. The sealed record is bound
    /// to them.
    pub given_for: Value,
    pub status: String,
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    CredentialRow in Credentials, columns: columns, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, resource_id, subject_kind, subject_id, auth_method, given_for, created_at],
    others: [sealed, key_version, status, expires_at, updated_at],
}

pub(crate) const OF_RESOURCE: &str =
    concat!("select ", columns!(), " from credentials where workspace_id = $1 and resource_id = $2");
const OF_SUBJECT: &str = concat!(
    "select ",
    columns!(),
    " from credentials where resource_id = $1 and subject_kind = $2 and subject_id = $3"
);
const BY_ID: &str = concat!("select ", columns!(), " from credentials where workspace_id = $1 and id = $2");
const SHARED: &str = concat!(
    "select ",
    columns!(),
    " from credentials where workspace_id = $1 and resource_id = $2 and subject_kind = 'shared' and subject_id = ''"
);
const PAGE: &str =
    concat!("select ", columns!(), " from credentials where workspace_id = $1 and id > $2 order by id limit $3");

impl Store {
    /// Saves a credential, and replaces the one that the resource has for the same subject.
    pub async fn put_credential(&self, row: &CredentialRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            // Each save has a new id, and the sealed record is bound to it.
            let subject = args![row.resource_id, &row.subject_kind, &row.subject_id];
            let held: Vec<CredentialRow> = change.all(OF_SUBJECT, subject).await?;
            if held.iter().any(|held| held.workspace_id != row.workspace_id) {
                // The resource belongs to another workspace.
                return Err(StoreError::UnknownReference);
            }
            change.delete_found::<CredentialRow>(OF_SUBJECT, subject).await?;
            let refreshing_until: Option<i64> = None;
            let left_out =
                values![&row.sealed, row.key_version, &row.status, row.expires_at, refreshing_until, row.updated_at];
            change.insert(row, left_out, Vec::new()).await
        })
    }

    /// The shared credential of a resource.
    pub async fn credential(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
    ) -> Result<Option<CredentialRow>, StoreError> {
        self.authentic_one(SHARED, args![workspace, resource]).await
    }

    /// A page of the credentials of the workspace.
    pub async fn credentials(
        &self,
        workspace: WorkspaceId,
        page: &Page<CredentialId>,
    ) -> Result<Listed<CredentialRow, CredentialId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Updates a credential whose permissions an operator has confirmed. Returns false, and writes nothing, if its
    /// sealed record differs from `sealed`, or if a host is refreshing it: the refreshed tokens would be lost.
    pub async fn update_credential(
        &self,
        row: &CredentialRow,
        sealed: &str,
        now: UtcMillis,
    ) -> Result<bool, StoreError> {
        let sql = "update credentials set sealed = $4, key_version = $5, status = $6, expires_at = $7, updated_at = $8 \
                   where workspace_id = $1 and id = $2 and sealed = $3 \
                   and (refreshing_until is null or refreshing_until <= $9)";
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            let args = args![row.workspace_id, row.id];
            if change.one::<CredentialRow>(BY_ID, args).await?.is_none() {
                return Ok(false);
            }
            let args = args![
                row.workspace_id,
                row.id,
                sealed,
                &row.sealed,
                row.key_version,
                &row.status,
                row.expires_at,
                row.updated_at,
                now,
            ];
            if change.session.run(sql, args).await? == 0 {
                return Ok(false);
            }
            let next = |old: &CredentialRow| {
                let (auth_method, given_for) = (row.auth_method.clone(), row.given_for.clone());
                Some(CredentialRow { auth_method, given_for, ..old.clone() })
            };
            change.update(args![row.id], next).await
        })
    }

    /// Leases the refresh of a credential until `until`. Returns false if another host has an unexpired lease, or if
    /// the sealed record has changed since `row` was read.
    pub async fn claim_refresh(
        &self,
        row: &CredentialRow,
        now: UtcMillis,
        until: UtcMillis,
    ) -> Result<bool, StoreError> {
        let sql = "update credentials set refreshing_until = $4 where id = $1 and sealed = $2 \
                   and (refreshing_until is null or refreshing_until <= $3)";
        Ok(self.db.run(sql, args![row.id, &row.sealed, now, until]).await? > 0)
    }

    /// Releases the lease of a failed refresh, so that another host can try immediately.
    pub async fn release_refresh(&self, row: &CredentialRow, until: UtcMillis) -> Result<(), StoreError> {
        let sql =
            "update credentials set refreshing_until = null where id = $1 and sealed = $2 and refreshing_until = $3";
        self.db.run(sql, args![row.id, &row.sealed, until]).await?;
        Ok(())
    }

    /// Stores refreshed tokens and ends the lease. Returns false, and writes nothing, if the sealed record differs from
    /// `sealed`.
    pub async fn put_refreshed(&self, row: &CredentialRow, sealed: &str) -> Result<bool, StoreError> {
        let sql = "update credentials set sealed = $4, key_version = $5, status = $6, expires_at = $7, updated_at = $8, \
                   refreshing_until = null where workspace_id = $1 and id = $2 and sealed = $3";
        let args = args![
            row.workspace_id,
            row.id,
            sealed,
            &row.sealed,
            row.key_version,
            &row.status,
            row.expires_at,
            row.updated_at,
        ];
        // No column under the MAC changes. Hosts must still reload the row, which they hold in memory.
        Ok(self.run_and_notify(sql, args).await? > 0)
    }

    /// Deletes the shared credential of a resource. Returns whether it existed.
    pub async fn delete_credential(&self, workspace: WorkspaceId, resource: ResourceId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<CredentialRow>(SHARED, args![workspace, resource]).await
        });
        Ok(deleted? > 0)
    }
}
