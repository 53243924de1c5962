//! Trust: which keys may sign packages of which plugins. It belongs to the instance.

use monstrum_types::{TrustId, UtcMillis};

use crate::db::{Arg, FromRow, Row, args, values};
use crate::rows::{Authentic, Scope, Table, change};
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
        "id, public_key, name_glob, type_glob, created_at, mac"
    };
}

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

impl Authentic for TrustRow {
    const TABLE: Table = Table::Trust;

    fn scope(&self) -> Scope {
        Scope::Instance
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![self.id, &self.public_key, &self.name_glob, &self.type_glob, self.created_at]
    }
}

impl Store {
    /// Trusts a key for the plugins of a glob. The same twice is a conflict.
    pub async fn insert_trust(&self, row: &TrustRow) -> Result<(), StoreError> {
        change!(self, &[Scope::Instance], |change| change.insert(row, Vec::new(), Vec::new()).await)
    }

    /// The row of this id.
    pub async fn trust_of_id(&self, id: TrustId) -> Result<Option<TrustRow>, StoreError> {
        self.authentic_one(BY_ID, args![id]).await
    }

    /// What a key is trusted for.
    pub async fn trust_of_key(&self, public_key: &str) -> Result<Vec<TrustRow>, StoreError> {
        let mut rows: Vec<TrustRow> = self.verified_instance().await?.take();
        rows.retain(|row| row.public_key == public_key);
        Ok(rows)
    }

    /// A page of all rows.
    pub async fn trust(&self, page: &Page<TrustId>) -> Result<Listed<TrustRow, TrustId>, StoreError> {
        self.authentic_page(PAGE, Vec::new(), page).await
    }

    /// Trusts no longer; whether there was such a row.
    pub async fn delete_trust(&self, id: TrustId) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| change.delete(args![id], |_: &TrustRow| true).await)
    }
}
