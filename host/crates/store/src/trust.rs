//! Trusted keys, which may sign the packages of certain plugins. Trusted keys belong to the instance.

use monstrum_types::{TrustId, UtcMillis};

use crate::db::args;
use crate::rows::{Scope, authentic, change};
use crate::{Listed, Page, Store, StoreError};

/// A row of `trust`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustRow {
    pub id: TrustId,
    /// The trusted public key in its text form.
    pub public_key: String,
    /// A glob that plugin names must match.
    pub name_glob: String,
    /// A glob that the resource types of these plugins must match.
    pub type_glob: String,
    pub created_at: UtcMillis,
}

authentic! {
    TrustRow in Trust("trust"), select: select, scope: |_| Scope::Instance,
    covered: [id, public_key, name_glob, type_glob, created_at],
    others: [],
}

const BY_ID: &str = select!("where id = $1");
const PAGE: &str = select!("where id > $1 order by id limit $2");

impl Store {
    /// Trusts a key for the plugins that match its globs. Fails with a conflict if the key is already trusted for the
    /// same globs.
    pub async fn insert_trust(&self, row: &TrustRow) -> Result<(), StoreError> {
        self.insert_row(row, &[]).await
    }

    /// Returns the row with this id.
    pub async fn trust_of_id(&self, id: TrustId) -> Result<Option<TrustRow>, StoreError> {
        self.authentic_one(BY_ID, args![id]).await
    }

    /// Returns all rows for a public key.
    pub async fn trust_of_key(&self, public_key: &str) -> Result<Vec<TrustRow>, StoreError> {
        let mut rows: Vec<TrustRow> = self.verified_instance().await?.take();
        rows.retain(|row| row.public_key == public_key);
        Ok(rows)
    }

    /// Returns a page of all rows.
    pub async fn trust(&self, page: &Page<TrustId>) -> Result<Listed<TrustRow, TrustId>, StoreError> {
        self.authentic_page(PAGE, Vec::new(), page).await
    }

    /// Deletes a row, so that its key is no longer trusted for the row's globs. Returns whether the row existed.
    pub async fn delete_trust(&self, id: TrustId) -> Result<bool, StoreError> {
        change!(self, &[Scope::Instance], |change| change.delete(args![id], |_: &TrustRow| true).await)
    }
}
