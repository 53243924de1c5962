//! Rotation of the row key. One transaction per scope verifies the rows under both keys and rewrites them under the
//! newest key, so an interrupted rotation can be continued. The older key is retired last.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use monstrum_types::WorkspaceId;

use super::change::{LOCK, SEAL, unverified};
use super::total::Total;
use super::verify::compare;
use super::{Macs, Rows, Scope, SealRow, SealsRows, Table, encoding};
use crate::db::{Row, Session, args};
use crate::{Store, StoreError};

/// A progress callback, which receives the number of rows processed since the previous call.
pub type RowsDone<'a> = &'a (dyn Fn(u64) + Sync);

impl Store {
    /// Returns the oldest version of the row key that is still valid, or `None` if the store has no row key.
    pub fn row_key_version(&self) -> Option<u32> {
        let rows = self.rows.as_ref()?;
        rows.keys().map(SealsRows::version).min()
    }

    /// Returns the newest version of the row key, which authenticates written rows, or `None` if the store has no row
    /// key.
    pub fn newest_row_key_version(&self) -> Option<u32> {
        self.rows.as_ref().map(|rows| rows.key.version())
    }

    /// Returns whether a rotation of the row key is unfinished. Until the rotation ends, rows under the older key are
    /// also valid.
    pub fn is_rotating_row_key(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| rows.older().is_some())
    }

    /// Returns the instance and all workspaces that have a valid row, in the order in which seals are locked.
    pub async fn scopes(&self) -> Result<BTreeSet<Scope>, StoreError> {
        let rows = self.rows()?;
        let found = self.db.read().await?.fetch(&Table::Workspaces.statements().all, args![]).await?;
        let valid = found.iter().filter(|row| rows.verify(Table::Workspaces, row).is_some());
        let ids = valid.filter_map(|row| row.get::<WorkspaceId>("id").ok());
        Ok(ids.map(Scope::Workspace).chain([Scope::Instance]).collect())
    }

    /// Returns the number of rows in authenticated tables.
    pub async fn count_authentic_rows(&self) -> Result<u64, StoreError> {
        let mut session = self.db.read_at_length().await?;
        let mut count = 0;
        for table in Table::ALL {
            let rows: Option<i64> = session.one(&table.statements().count, args![]).await?;
            count += rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0);
        }
        Ok(count)
    }

    /// Rewrites the MACs and the seal of a scope with the newest row key, in one transaction. Returns the number of
    /// rewritten rows. Fails and writes nothing if the rows of the scope do not match its seal. Rows with a missing or
    /// wrong MAC stay unchanged.
    ///
    /// The generation does not change. If it increased, the sum of the generations would exceed the sum in the signed
    /// audit heads until the next head, and an attacker could restore an older state in the meantime.
    pub async fn rotate_scope(&self, scope: Scope, done: RowsDone<'_>) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        let seen = rows.seen_generations().get(&scope).copied().unwrap_or(0);
        let mut session = self.db.write().await?;
        let seal: Option<SealRow> = session.one(LOCK, args![&scope.to_string()]).await?;
        let seal = seal.ok_or_else(|| unverified(scope, "the scope has no seal"))?;
        let (mut found, mut valid) = (Total::default(), Vec::new());
        for table in Table::counted() {
            for row in session.rows_of(table, scope).await? {
                if let Some(addend) = rows.verify(table, &row) {
                    found.add(&addend);
                    valid.push((table, row));
                }
            }
        }
        let generation = compare(rows, scope, Some(&seal), seen, found).map_err(|why| unverified(scope, why))?;
        let (mut total, mut written) = (Total::default(), 0);
        for (table, row) in &valid {
            let (macs, is_written) = session.rewrite_mac(rows, *table, row).await?;
            total.add(&macs.addend);
            written += u64::from(is_written);
            done(1);
        }
        let is_resealed = rows.key.unseal(&seal.sealed, &seal.scope, generation).is_some();
        if written == 0 && is_resealed {
            return Ok(0);
        }
        let sealed = rows.seal(scope, generation, total)?;
        session.run(SEAL, args![&scope.to_string(), generation, &sealed]).await?;
        session.bump_generation().await?;
        session.commit().await?;
        // The recorded addends were computed with the older key.
        rows.known.lock().scopes.entry(scope).or_default().verified = None;
        Ok(written)
    }

    /// Rewrites the MACs of all rows in uncounted tables with the newest row key, in one transaction per table. Returns
    /// the number of rewritten rows. Rows with a missing or wrong MAC stay unchanged.
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

    /// Deletes all versions of the row key except the newest, and stops accepting the deleted versions.
    pub async fn retire_row_keys(&self, name: &str) -> Result<(), StoreError> {
        let rows = self.rows()?;
        let sql = "delete from instance_keys where name = $1 and version < $2";
        self.db.run(sql, args![name, i64::from(rows.key.version())]).await?;
        rows.is_older_retired.store(true, Ordering::Release);
        Ok(())
    }
}

impl Session {
    /// Rewrites the MAC of a row under the newest key. Returns the new MAC and whether it differs from the old one.
    async fn rewrite_mac(&mut self, rows: &Rows, table: Table, row: &Row) -> Result<(Macs, bool), StoreError> {
        let macs = rows.macs_of(&encoding::of_row(table, row)?);
        let is_written = row.get::<Vec<u8>>("mac")? != macs.mac;
        if is_written {
            self.set_mac(table, row, &macs).await?;
        }
        Ok((macs, is_written))
    }
}
