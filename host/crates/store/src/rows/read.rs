//! Reads of authenticated rows. Rows with a missing or wrong MAC are omitted.

use std::sync::Arc;

use monstrum_types::WorkspaceId;

use super::change::{key_of, unverified};
use super::{Authentic, RowName, Scope, SeenGenerations, StoredRows, Table, TrustedRows, UnverifiedScope, name_of};
use crate::db::{Arg, ColumnValue, Row, args};
use crate::{Listed, Page, Store, StoreError};

/// The result of verifying all authenticated rows.
#[derive(Clone, Debug)]
pub struct VerifiedRows {
    /// Rows with a missing or wrong MAC.
    pub refused: Vec<RowName>,
    /// The scopes whose rows do not match their seals.
    pub unverified: Vec<UnverifiedScope>,
}

impl VerifiedRows {
    /// Returns a description of each problem, one per line.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let rows = self.refused.iter().map(RowName::refusal);
        rows.chain(self.unverified.iter().map(ToString::to_string)).collect()
    }
}

impl Store {
    /// Returns the first row of a query that has a valid MAC.
    pub(crate) async fn authentic_one<T: Authentic>(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<T>, StoreError> {
        Ok(self.authentic(sql, args).await?.into_iter().next())
    }

    /// Returns all rows of a query that have a valid MAC.
    pub(crate) async fn authentic<T: Authentic>(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.rows()?;
        let found = self.db.read().await?.fetch(sql, args).await?;
        Ok(found.iter().filter_map(|row| rows.authentic(row)).collect())
    }

    /// Queries a page of a list. The parameters of the query are `values`, followed by the cursor and the limit. Rows
    /// with a wrong MAC are omitted, so any page may be shorter than its limit. Skips pages that contain no valid row.
    pub(crate) async fn authentic_page<T: Authentic, Id: ToString + ColumnValue>(
        &self,
        sql: &'static str,
        values: Vec<Arg<'_>>,
        page: &Page<Id>,
    ) -> Result<Listed<T, Id>, StoreError> {
        let rows = self.rows()?;
        let limit = usize::try_from(page.rows() - 1).unwrap_or(usize::MAX);
        let mut session = self.db.read().await?;
        let (mut after, mut requested) = (page.after(), page.rows());
        loop {
            let mut args: Vec<Arg<'_>> = values.iter().map(Arg::borrowed).collect();
            args.extend([Arg::from(&after), Arg::from(requested)]);
            let mut found = session.fetch(sql, &args).await?;
            let (mut items, mut seen) = (Vec::new(), 0);
            let fits = usize::try_from(requested - 1).unwrap_or(usize::MAX);
            for row in found.iter().take(fits) {
                seen += 1;
                items.extend(rows.authentic::<T>(row));
                if items.len() == limit {
                    break;
                }
            }
            let has_more = found.len() > seen;
            found.truncate(seen);
            if !has_more || !items.is_empty() {
                // A row that another program wrote may have an id that is malformed or not text.
                let last = found.iter().rev().find_map(|row| row.get::<Id>("id").ok()).filter(|_| has_more);
                return Ok(Listed { items, next_cursor: last });
            }
            // An id that contains U+0000 cannot be a query parameter.
            let id = |row: &Row| row.get("id").ok().filter(|id: &String| !id.contains('\0'));
            match found.iter().rev().find_map(id) {
                Some(next) => after = next,
                // No row has an id to continue from, so query these rows again together with the following rows.
                None => requested = requested.saturating_mul(2),
            }
        }
    }

    /// Verifies all rows of authenticated tables, including tables that are not counted.
    pub async fn verify_rows(&self) -> Result<VerifiedRows, StoreError> {
        let seen = SeenGenerations::of(self)?;
        let rows = Arc::clone(self.rows()?);
        let mut session = self.db.read_consistently().await?;
        let stored = StoredRows::of_all(self, &mut session, seen).await?;
        let mut uncounted = Vec::new();
        for table in Table::ALL.into_iter().filter(|table| !table.is_counted()) {
            uncounted.push((table, session.fetch(&table.statements().all, args![]).await?));
        }
        session.commit().await?;
        let verified = stored.verify(move |trusted| {
            let mut refused = trusted.refused;
            for (table, read) in &uncounted {
                let bad = read.iter().filter(|row| rows.verify(*table, row).is_none());
                refused.extend(bad.map(|row| name_of(*table, row)));
            }
            VerifiedRows { refused, unverified: trusted.unverified }
        });
        Ok(verified.await)
    }

    /// Fails if the last verification found that the rows of the workspace or of the instance do not match their seals.
    pub fn require_verified(&self, workspace: WorkspaceId) -> Result<(), StoreError> {
        let known = self.rows()?.known.lock();
        for scope in [Scope::Instance, Scope::Workspace(workspace)] {
            if known.scopes.get(&scope).is_some_and(|known| known.is_unverified) {
                return Err(unverified(scope, "its rows do not match its seal"));
            }
        }
        Ok(())
    }

    /// Returns whether a row is unchanged since this process last verified its scope. A valid MAC does not prove this,
    /// because an older version of the row also has a valid MAC.
    pub(crate) fn is_as_verified<T: Authentic>(&self, row: &T) -> Result<bool, StoreError> {
        let rows = self.rows()?;
        let values = row.covered();
        let addend = rows.macs(T::TABLE, &values)?.addend;
        let known = rows.known.lock();
        let Some(scope) = known.scopes.get(&row.scope()).filter(|scope| !scope.is_unverified) else { return Ok(false) };
        let Some((_, addends)) = &scope.verified else { return Ok(false) };
        Ok(addends.get(&name_of_values(T::TABLE, &values)) == Some(&addend))
    }

    /// Returns all rows that belong to the scope of the instance. Fails if they do not match the seal of the instance,
    /// because these rows determine which code runs.
    pub(crate) async fn verified_instance(&self) -> Result<TrustedRows, StoreError> {
        let stored = StoredRows::of_instance(self).await?;
        let trusted = stored.verify(|trusted| trusted).await;
        match trusted.unverified.iter().find(|found| found.scope == Scope::Instance) {
            Some(found) => Err(StoreError::Unverified { scope: found.scope.to_string(), why: found.why.clone() }),
            None => Ok(trusted),
        }
    }
}

fn name_of_values(table: Table, values: &[Arg<'_>]) -> RowName {
    let part = |value: &Arg<'_>| match value {
        Arg::Text(Some(text)) => text.to_string(),
        _ => "?".to_owned(),
    };
    RowName { table, key: key_of(table, values).iter().map(part).collect::<Vec<_>>().join("/") }
}
