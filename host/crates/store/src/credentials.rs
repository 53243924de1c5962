//! Sealed credentials of resources. Credentials and resources have different tables, so that a resource can be read and
//! changed while its credential stays untouched.

use monstrum_types::{CredentialId, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{args, retry, values};
use crate::rows::{ChangedRow, RowName, Scope, Table, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `credentials`.
#[derive(Clone, Debug, PartialEq)]
pub struct CredentialRow {
    pub id: CredentialId,
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    /// The kind of subject: `shared` for the credential of the resource, `user` for the credential of one user.
    pub subject_kind: String,
    /// The id of the subject: empty for a shared credential, and a text made of the app and the user otherwise.
    pub subject_id: String,
    pub auth_method: String,
    /// A sealed record in its text form.
    pub sealed: String,
    /// The version of the master key that sealed the record.
    pub key_version: i64,
    /// The resource type, auth method, audience and inject rules when the credential was saved. The sealed record is
    /// bound to these values.
    pub given_for: Value,
    pub status: String,
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

authentic! {
    CredentialRow in Credentials("credentials"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [id, workspace_id, resource_id, subject_kind, subject_id, auth_method, given_for, created_at],
    // The sealed record authenticates itself. A token refresh writes all of these columns, but the policy stays the
    // same.
    others: [sealed, key_version, status, expires_at, updated_at],
    unread: [refreshing_until],
}

pub(crate) const OF_RESOURCE: &str = select!("where workspace_id = $1 and resource_id = $2");
pub(crate) const OF_RESOURCE_ID: &str = select!("where resource_id = $1 order by id");
const OF_SUBJECT: &str = select!("where resource_id = $1 and subject_kind = $2 and subject_id = $3");
const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const SHARED: &str =
    select!("where workspace_id = $1 and resource_id = $2 and subject_kind = 'shared' and subject_id = ''");
const OF_USER: &str =
    select!("where workspace_id = $1 and resource_id = $2 and subject_kind = 'user' and subject_id = $3");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");
const PAGE_OF_USERS: &str = select!(
    "where workspace_id = $1 and resource_id = $2 and subject_kind = 'user' and ($3 is null or subject_id = $3) \
     and id > $4 order by id limit $5"
);

impl Store {
    /// Saves a credential. Replaces the existing credential of the resource for the same subject.
    pub async fn put_credential(&self, row: &CredentialRow) -> Result<(), StoreError> {
        self.put_credential_if(row, |_| true).await.map(drop)
    }

    /// Like [`Store::put_credential`], if the existing credential, or its absence, is as expected. Returns whether it was.
    pub async fn put_credential_if(
        &self,
        row: &CredentialRow,
        is_expected: impl Fn(Option<&CredentialRow>) -> bool + Send + Sync,
    ) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            // Replace the row instead of updating it: each save has a new id, and the sealed record is bound to its id.
            let subject = args![row.resource_id, &row.subject_kind, &row.subject_id];
            let held: Vec<CredentialRow> = change.all(OF_SUBJECT, subject).await?;
            if held.iter().any(|held| held.workspace_id != row.workspace_id) {
                // The resource and the new credential belong to different workspaces.
                return Err(StoreError::UnknownReference);
            }
            if !is_expected(held.first()) {
                return Ok(false);
            }
            change.delete_found::<CredentialRow>(OF_SUBJECT, subject).await?;
            let refreshing_until: Option<i64> = None;
            let left_out =
                values![&row.sealed, row.key_version, &row.status, row.expires_at, row.updated_at, refreshing_until];
            change.insert(row, left_out, Vec::new()).await?;
            Ok(true)
        })
    }

    /// Returns the shared credential of a resource.
    pub async fn credential(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
    ) -> Result<Option<CredentialRow>, StoreError> {
        self.authentic_one(SHARED, args![workspace, resource]).await
    }

    /// Returns the credential of a user for a resource. `subject` is the user's `subject_id`.
    pub async fn user_credential(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        subject: &str,
    ) -> Result<Option<CredentialRow>, StoreError> {
        self.authentic_one(OF_USER, args![workspace, resource, subject]).await
    }

    /// Returns a page of the credentials of users for a resource, or only the credential of the user `subject`.
    pub async fn user_credentials(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        subject: Option<&str>,
        page: &Page<CredentialId>,
    ) -> Result<Listed<CredentialRow, CredentialId>, StoreError> {
        self.authentic_page(PAGE_OF_USERS, values![workspace, resource, subject], page).await
    }

    /// Returns a page of the credentials in a workspace.
    pub async fn credentials(
        &self,
        workspace: WorkspaceId,
        page: &Page<CredentialId>,
    ) -> Result<Listed<CredentialRow, CredentialId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Updates a credential after an operator has confirmed its permissions. Returns `false` without writing if the
    /// credential does not exist, if its stored sealed record differs from `sealed`, or if a host is currently
    /// refreshing it. In the last case, the update would overwrite the refreshed tokens.
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

    /// Acquires a lease, which expires at `until`, for refreshing a credential. Returns `false` if the credential does
    /// not exist, if another host holds an unexpired lease, or if the sealed record has changed since `row` was read.
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

    /// Releases the lease after a failed refresh, so that another host can retry immediately.
    pub async fn release_refresh(&self, row: &CredentialRow, until: UtcMillis) -> Result<(), StoreError> {
        let sql =
            "update credentials set refreshing_until = null where id = $1 and sealed = $2 and refreshing_until = $3";
        self.db.run(sql, args![row.id, &row.sealed, until]).await?;
        Ok(())
    }

    /// Stores refreshed tokens and releases the lease. Returns `false` without writing if the credential does not exist
    /// or if its stored sealed record differs from `sealed`. The policy does not change: other hosts read the row again
    /// when their token has expired or is rejected.
    pub async fn put_refreshed(&self, row: &CredentialRow, sealed: &str) -> Result<bool, StoreError> {
        retry!(self.replace_tokens(row, sealed, &[]))
    }

    /// Stores refreshed tokens like [`Store::put_refreshed`], but for a credential that the provider rejected. Also
    /// records the row as changed, so that other hosts read it again.
    pub async fn put_refused(&self, row: &CredentialRow, sealed: &str) -> Result<bool, StoreError> {
        let name = RowName { table: Table::Credentials, key: row.id.to_string() };
        let changed = [ChangedRow { name, scope: Scope::from(row.workspace_id) }];
        retry!(self.replace_tokens(row, sealed, &changed))
    }

    async fn replace_tokens(
        &self,
        row: &CredentialRow,
        sealed: &str,
        changed: &[ChangedRow],
    ) -> Result<bool, StoreError> {
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
        let mut session = self.db.write().await?;
        let is_written = session.run(sql, args).await? > 0;
        if is_written && !changed.is_empty() {
            session.record_changes(changed, &[]).await?;
        }
        session.commit().await?;
        Ok(is_written)
    }

    /// Deletes the shared credential of a resource. Returns whether the credential existed.
    pub async fn delete_credential(&self, workspace: WorkspaceId, resource: ResourceId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<CredentialRow>(SHARED, args![workspace, resource]).await
        });
        Ok(deleted? > 0)
    }

    /// Deletes the credential of a user for a resource. Returns whether the credential existed.
    pub async fn delete_user_credential(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        subject: &str,
    ) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<CredentialRow>(OF_USER, args![workspace, resource, subject]).await
        });
        Ok(deleted? > 0)
    }
}
