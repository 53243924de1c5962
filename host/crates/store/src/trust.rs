//! Trust: which keys may sign packages of which plugins. It belongs to the instance.

use monstrum_types::{TrustId, UtcMillis};

use crate::db::{FromRow, Row, args};
use crate::{Listed, Page, Store, StoreError};

/// A row of `trust`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRow {
    pub id: TrustId,
    /// A public key as its text.
    pub public_key: String,
    /// A glob over the names of plugins.
    pub name_glob: String,
    /// A glob over the resource types of these plugins.
    pub type_glob: String,
    pub created_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, public_key, name_glob, type_glob, created_at"
    };
}

const INSERT: &str = concat!("insert into trust (", columns!(), ") values ($1, $2, $3, $4, $5)");
const OF_KEY: &str = concat!("select ", columns!(), " from trust where public_key = $1 order by id");
const BY_ID: &str = concat!("select ", columns!(), " from trust where id = $1");
const PAGE: &str = concat!("select ", columns!(), " from trust where id > $1 order by id limit $2");

impl FromRow for TrustRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(TrustRow {
            id: row.id("id")?,
            public_key: row.text("public_key")?,
            name_glob: row.text("name_glob")?,
            type_glob: row.text("type_glob")?,
            created_at: row.time("created_at")?,
        })
    }
}

impl Store {
    /// Trusts a key for the plugins of a glob. The same twice is a conflict.
    pub async fn insert_trust(&self, row: &TrustRow) -> Result<(), StoreError> {
        let args = args![row.id, &row.public_key, &row.name_glob, &row.type_glob, row.created_at];
        self.db.run(INSERT, args).await?;
        Ok(())
    }

    /// The row of this id.
    pub async fn trust_of_id(&self, id: TrustId) -> Result<Option<TrustRow>, StoreError> {
        self.db.one(BY_ID, args![id]).await
    }

    /// What a key is trusted for.
    pub async fn trust_of_key(&self, public_key: &str) -> Result<Vec<TrustRow>, StoreError> {
        self.db.all(OF_KEY, args![public_key]).await
    }

    /// A page of all rows.
    pub async fn trust(&self, page: &Page<TrustId>) -> Result<Listed<TrustRow, TrustId>, StoreError> {
        let rows = self.db.all(PAGE, args![&page.after(), page.rows()]).await?;
        Ok(page.of(rows, |row: &TrustRow| row.id))
    }

    /// Trusts no longer; whether there was such a row.
    pub async fn delete_trust(&self, id: TrustId) -> Result<bool, StoreError> {
        Ok(self.db.run("delete from trust where id = $1", args![id]).await? > 0)
    }
}
