//! The keys of the instance, which are sealed with the master key.

use monstrum_types::UtcMillis;

use crate::db::{args, from_row};
use crate::{Store, StoreError};

/// A row of `instance_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceKeyRow {
    /// The purpose of the key, such as `audit`.
    pub name: String,
    pub version: i64,
    /// A sealed record in its text form.
    pub sealed: String,
    pub created_at: UtcMillis,
}

from_row! { InstanceKeyRow { name, version, sealed, created_at } }

impl Store {
    /// Inserts a key. Returns `false` if a key with this name and version already exists, because another host
    /// inserted it first. The caller must then use the existing key.
    pub async fn insert_instance_key(&self, row: &InstanceKeyRow) -> Result<bool, StoreError> {
        let sql = "insert into instance_keys (name, version, sealed, created_at) values ($1, $2, $3, $4) \
                   on conflict (name, version) do nothing";
        Ok(self.db.run(sql, args![&row.name, row.version, &row.sealed, row.created_at]).await? > 0)
    }

    /// Returns all versions of a key, oldest first.
    pub async fn instance_keys(&self, name: &str) -> Result<Vec<InstanceKeyRow>, StoreError> {
        let sql = "select name, version, sealed, created_at from instance_keys where name = $1 order by version";
        self.db.all(sql, args![name]).await
    }
}
