//! Keys of the instance, sealed by the master key.

use monstrum_types::UtcMillis;

use crate::db::{FromRow, Row, args};
use crate::{Store, StoreError};

/// A row of `instance_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceKeyRow {
    /// What it is for, such as `audit`.
    pub name: String,
    pub version: i64,
    /// The text of a sealed record.
    pub sealed: String,
    pub created_at: UtcMillis,
}

impl FromRow for InstanceKeyRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(InstanceKeyRow {
            name: row.text("name")?,
            version: row.int("version")?,
            sealed: row.text("sealed")?,
            created_at: row.time("created_at")?,
        })
    }
}

impl Store {
    /// Adds a key, unless one of its name and version is there; whether it was added. Read again on false: another node
    /// was faster, and its key counts.
    pub async fn insert_instance_key(&self, row: &InstanceKeyRow) -> Result<bool, StoreError> {
        let sql = "insert into instance_keys (name, version, sealed, created_at) values ($1, $2, $3, $4) \
                   on conflict (name, version) do nothing";
        Ok(self.db.run(sql, args![&row.name, row.version, &row.sealed, row.created_at]).await? > 0)
    }

    /// All versions of a key, oldest first.
    pub async fn instance_keys(&self, name: &str) -> Result<Vec<InstanceKeyRow>, StoreError> {
        let sql = "select name, version, sealed, created_at from instance_keys where name = $1 order by version";
        self.db.all(sql, args![name]).await
    }

    /// Replaces the seal of a key; whether there was one of its name and version.
    pub async fn update_instance_key(&self, row: &InstanceKeyRow) -> Result<bool, StoreError> {
        let sql = "update instance_keys set sealed = $3 where name = $1 and version = $2";
        Ok(self.db.run(sql, args![&row.name, row.version, &row.sealed]).await? > 0)
    }
}
