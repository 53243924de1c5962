//! Rotation of the row key: each scope is verified under the keys in force and written anew under the newest, in a
//! transaction of its own, so that a rotation can end at any moment and go on later. The older key is retired last.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use monstrum_types::WorkspaceId;

use super::change::{LOCK, SEAL, unverified};
use super::judge::compare;
use super::total::Total;
use super::{Macs, Rows, Scope, SealRow, SealsRows, Table, encoding};
use crate::db::{Row, Session, args};
use crate::{Store, StoreError};

/// Told how many further rows have been looked at.
pub type RowsDone<'a> = &'a (dyn Fn(u64) + Sync);

impl Store {
    /// The version of the oldest row key under which rows are valid; `None` without a row key.
    pub fn row_key_version(&self) -> Option<u32> {
        let rows = self.rows.as_ref()?;
        rows.keys().map(SealsRows::version).min()
    }

    /// The version of the row key under which rows are written; `None` without a row key.
    pub fn newest_row_key_version(&self) -> Option<u32> {
        self.rows.as_ref().map(|rows| rows.key.version())
    }

    /// Whether rows of an older key are valid as well, since a rotation of the row key is not finished.
    pub fn is_rotating_row_key(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.older().is_some())
    }

    /// The instance, and every workspace whose row is valid, in the order in which seals are locked.
    pub async fn scopes(&self) -> Result<BTreeSet<Scope>, StoreError> {
        let rows = self.rows()?;
        let found = self.db.read().await?.fetch(&Table::Workspaces.statements().all, args![]).await?;
        let valid = found.iter().filter(|row| rows.verify(Table::Workspaces, row).is_some());
        let ids = valid.filter_map(|row| row.id::<WorkspaceId>("id").ok());
        Ok(ids.map(Scope::Workspace).chain([Scope::Instance]).collect())
    }

    /// How many rows carry a MAC.
    pub async fn count_authentic_rows(&self) -> Result<u64, StoreError> {
        let mut session = self.db.read_at_length().await?;
        let mut count = 0;
        for table in Table::ALL {
            let rows: Option<i64> = session.one(&table.statements().count, args![]).await?;
            count += rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0);
        }
        Ok(count)
    }

    /// Writes the MACs and the seal of a scope anew under the newest row key, in one transaction; how many rows. A scope
    /// whose rows are not those that were sealed is refused, and nothing of it is written. Rows whose MAC is missing or
    /// wrong stay as they are. The generation stays, too: it counts changes of what is permitted, and if it grew here, the sum
    /// would be above the signed heads until they follow, and an older state could be put back in between.
    pub async fn rotate_scope(&self, scope: Scope, done: RowsDone<'_>) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        let floor = rows.floors().get(&scope).copied().unwrap_or(0);
        let mut session = self.db.write().await?;
        let seal: Option<SealRow> = session.one(LOCK, args![&scope.to_string()]).await?;
        let seal = seal.ok_or_else(|| unverified(scope, "it has no seal"))?;
        let (mut found, mut valid) = (Total::default(), Vec::new());
        for table in Table::counted() {
            for row in session.rows_of(table, scope).await? {
                if let Some(addend) = rows.verify(table, &row) {
                    found.add(&addend);
                    valid.push((table, row));
                }
            }
        }
        let generation = compare(rows, scope, Some(&seal), floor, found).map_err(|why| unverified(scope, why))?;
        let (mut total, mut written) = (Total::default(), 0);
        for (table, row) in &valid {
            let (macs, is_written) = session.rewrite_mac(rows, *table, row).await?;
            total.add(&macs.addend);
            written += u64::from(is_written);
            done(1);
        }
        let is_sealed_anew = rows.key.unseal(&seal.sealed, &seal.scope, generation).is_some();
        if written == 0 && is_sealed_anew {
            return Ok(0);
        }
        let sealed = rows.seal(scope, generation, total)?;
        session.run(SEAL, args![&scope.to_string(), generation, &sealed]).await?;
        session.bump_generation().await?;
        session.commit().await?;
        // What each row added was under the older key.
        rows.known().scopes.entry(scope).or_default().verified = None;
        Ok(written)
    }

    /// Writes the MACs of the rows that are in no sum anew under the newest row key, in one transaction a table; how many rows.
    /// Rows whose MAC is missing or wrong stay as they are.
    pub async fn rotate_uncounted_rows(&self, done: RowsDone<'_>) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        let mut written = 0;
        for table in Table::ALL.into_iter().filter(|table| !table.is_counted()) {
            let mut session = self.db.write().await?;
            let found = session.fetch(&table.statements().all, args![]).await?;
            for row in found.iter().filter(|row| rows.verify(table, row).is_some()) {
                written += u64::from(session.rewrite_mac(rows, table, row).await?.1);
                done(1);
            }
            session.commit().await?;
        }
        Ok(written)
    }

    /// Deletes the versions of the row key before the newest. From then on nothing is valid under them, neither for
    /// this process nor for a later one.
    pub async fn retire_row_keys(&self, name: &str) -> Result<(), StoreError> {
        let rows = self.rows()?;
        let sql = "delete from instance_keys where name = $1 and version < $2";
        self.db.run(sql, args![name, i64::from(rows.key.version())]).await?;
        rows.is_older_retired.store(true, Ordering::Release);
        Ok(())
    }
}

impl Session {
    /// Gives a row its MAC under the newest key; that MAC, and whether it was another one before.
    async fn rewrite_mac(&mut self, rows: &Rows, table: Table, row: &Row) -> Result<(Macs, bool), StoreError> {
        let macs = rows.macs_of(&encoding::of_row(table, row)?);
        let is_written = row.bytes("mac")? != macs.mac;
        if is_written {
            self.set_mac(table, row, &macs).await?;
        }
        Ok((macs, is_written))
    }
}
