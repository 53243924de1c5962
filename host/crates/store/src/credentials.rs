//! Credentials of resources, sealed. A table of their own, so that a resource can be read and changed without them.

use monstrum_types::{CredentialId, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `credentials`.
#[derive(Clone, Debug, PartialEq)]
pub struct CredentialRow {
    pub id: CredentialId,
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    /// `shared`, until there are credentials per user.
    pub subject_kind: String,
    /// Empty for a shared one.
    pub subject_id: String,
    pub auth_method: String,
    /// The text of a sealed record.
    pub sealed: String,
    /// The version of the master key that sealed it.
    pub key_version: i64,
    /// The resource type, auth method, audience and inject rules in force when it was saved; sealed with it.
    pub given_for: Value,
    pub status: String,
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, resource_id, subject_kind, subject_id, auth_method, sealed, key_version, given_for, status, \
         expires_at, created_at, updated_at, mac"
    };
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

impl FromRow for CredentialRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(CredentialRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            resource_id: row.id("resource_id")?,
            subject_kind: row.text("subject_kind")?,
            subject_id: row.text("subject_id")?,
            auth_method: row.text("auth_method")?,
            sealed: row.text("sealed")?,
            key_version: row.int("key_version")?,
            given_for: row.json("given_for")?,
            status: row.text("status")?,
            expires_at: row.time_opt("expires_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl Authentic for CredentialRow {
    const TABLE: Table = Table::Credentials;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            self.resource_id,
            &self.subject_kind,
            &self.subject_id,
            &self.auth_method,
            &self.given_for,
            self.created_at
        ]
    }
}

impl Store {
    /// Saves a credential in place of the one that its resource has for the same subject.
    pub async fn put_credential(&self, row: &CredentialRow) -> Result<(), StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            // The id is new with every save, for the sealed record is bound to it.
            let subject = args![row.resource_id, &row.subject_kind, &row.subject_id];
            let held: Vec<CredentialRow> = change.all(OF_SUBJECT, subject).await?;
            if held.iter().any(|held| held.workspace_id != row.workspace_id) {
                // The resource belongs to another workspace.
                return Err(StoreError::UnknownReference);
            }
            change.delete_found::<CredentialRow>(OF_SUBJECT, subject).await?;
            let refreshing_until: Option<i64> = None;
            let left_out =
                values![&row.sealed, row.key_version, &row.status, row.expires_at, refreshing_until, row.updated_at,];
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

    /// A page of the workspace's credentials.
    pub async fn credentials(
        &self,
        workspace: WorkspaceId,
        page: &Page<CredentialId>,
    ) -> Result<Listed<CredentialRow, CredentialId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Writes the row over the one of its id and workspace whose sealed text was `sealed`, for a confirmation; whether
    /// that was still there. Whoever has saved or refreshed the credential in between wins, and so does a refresh that is
    /// under way: what it brings would have no place to go.
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

    /// Takes it on itself to refresh the credential whose sealed text is `sealed`, up to `until`. Of all hosts that ask at
    /// once one may; the others look again.
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

    /// Gives a claim back that brought nothing, so that the next may try at once.
    pub async fn release_refresh(&self, row: &CredentialRow, until: UtcMillis) -> Result<(), StoreError> {
        let sql =
            "update credentials set refreshing_until = null where id = $1 and sealed = $2 and refreshing_until = $3";
        self.db.run(sql, args![row.id, &row.sealed, until]).await?;
        Ok(())
    }

    /// Writes what a refresh has brought over the row whose sealed text was `sealed`, and ends the claim; whether that
    /// row still stood there.
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
        // A refresh changes nothing that is under the MAC; hosts are told all the same, for they hold the row.
        Ok(self.run_and_ring(sql, args).await? > 0)
    }

    /// Deletes the shared credential of a resource; whether there was one.
    pub async fn delete_credential(&self, workspace: WorkspaceId, resource: ResourceId) -> Result<bool, StoreError> {
        let deleted = change!(self, &[Scope::from(workspace)], |change| {
            change.delete_found::<CredentialRow>(SHARED, args![workspace, resource]).await
        });
        Ok(deleted? > 0)
    }
}
