//! Reading rows under a MAC. A row whose MAC is missing or wrong is not among what is read.

use std::sync::Arc;

use monstrum_types::WorkspaceId;

use super::change::{key_of, unverified};
use super::{Authentic, Floors, Judged, Reading, RowName, Scope, Table, UnverifiedScope, name_of};
use crate::db::{Arg, Row, args};
use crate::{Listed, Page, Store, StoreError};

/// What was found of the rows under a MAC.
#[derive(Clone, Debug)]
pub struct VerifiedRows {
    /// Rows whose MAC is missing or wrong.
    pub refused: Vec<RowName>,
    /// Scopes whose rows are not those that were sealed.
    pub unverified: Vec<UnverifiedScope>,
}

impl VerifiedRows {
    /// What is the matter, a line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let rows = self.refused.iter().map(RowName::refusal);
        rows.chain(self.unverified.iter().map(ToString::to_string)).collect()
    }
}

impl Store {
    /// The first row of a query whose MAC is right.
    pub(crate) async fn authentic_one<T: Authentic>(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<T>, StoreError> {
        Ok(self.authentic(sql, args).await?.into_iter().next())
    }

    /// The rows of a query whose MAC is right.
    pub(crate) async fn authentic<T: Authentic>(
        &self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Vec<T>, StoreError> {
        let rows = self.rows()?;
        let found = self.db.read().await?.fetch(sql, args).await?;
        Ok(found.iter().filter_map(|row| rows.authentic(row)).collect())
    }

    /// A page of a list, whose query takes these values, the id to begin after and the limit. Rows whose MAC is wrong are
    /// not shown, so a page may be shorter than its limit although there is another one. A page in which all are wrong is
    /// passed over.
    pub(crate) async fn authentic_page<T: Authentic, Id: ToString + TryFrom<String>>(
        &self,
        sql: &'static str,
        values: Vec<Arg<'_>>,
        page: &Page<Id>,
    ) -> Result<Listed<T, Id>, StoreError> {
        let rows = self.rows()?;
        let limit = usize::try_from(page.rows() - 1).unwrap_or(usize::MAX);
        let mut session = self.db.read().await?;
        let (mut after, mut asked) = (page.after(), page.rows());
        loop {
            let mut args: Vec<Arg<'_>> = values.iter().map(Arg::borrowed).collect();
            args.extend([Arg::from(&after), Arg::from(asked)]);
            let mut found = session.fetch(sql, &args).await?;
            let (mut items, mut seen) = (Vec::new(), 0);
            let fits = usize::try_from(asked - 1).unwrap_or(usize::MAX);
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
                // Ids of rows that another program has written may be of any form, and need not even be text.
                let last = found.iter().rev().find_map(|row| row.id::<Id>("id").ok()).filter(|_| has_more);
                return Ok(Listed { items, next_cursor: last });
            }
            // An id with U+0000 cannot be a parameter.
            let id = |row: &Row| row.text("id").ok().filter(|id| !id.contains('\0'));
            match found.iter().rev().find_map(id) {
                Some(next) => after = next,
                // No id to go on from, so the next rows come with these.
                None => asked = asked.saturating_mul(2),
            }
        }
    }

    /// Verifies every row under a MAC, those that are in no sum among them.
    pub async fn verify_rows(&self) -> Result<VerifiedRows, StoreError> {
        let floors = Floors::of(self)?;
        let rows = Arc::clone(self.rows()?);
        let mut session = self.db.read_consistently().await?;
        let reading = Reading::of_all(self, &mut session, floors).await?;
        let mut uncounted = Vec::new();
        for table in Table::ALL.into_iter().filter(|table| !table.spec().is_counted) {
            uncounted.push((table, session.fetch(&table.statements().all, args![]).await?));
        }
        session.commit().await?;
        let verified = reading.judge(move |judged| {
            let mut refused = judged.refused;
            for (table, read) in &uncounted {
                let bad = read.iter().filter(|row| rows.verify(*table, row).is_none());
                refused.extend(bad.map(|row| name_of(*table, row)));
            }
            VerifiedRows { refused, unverified: judged.unverified }
        });
        Ok(verified.await)
    }

    /// Refuses a workspace whose rows, or those of the instance, were found not to be those that were sealed.
    pub fn require_verified(&self, workspace: WorkspaceId) -> Result<(), StoreError> {
        let known = self.rows()?.known();
        for scope in [Scope::Instance, Scope::Workspace(workspace)] {
            if known.scopes.get(&scope).is_some_and(|known| known.is_unverified) {
                return Err(unverified(scope, "its rows are not those that were sealed"));
            }
        }
        Ok(())
    }

    /// Whether a row is the one that its scope had when this process last verified it: an older version of a row has a valid
    /// MAC, too.
    pub(crate) fn is_as_verified<T: Authentic>(&self, row: &T) -> Result<bool, StoreError> {
        let rows = self.rows()?;
        let values = row.covered();
        let addend = rows.macs(T::TABLE, &values)?.addend;
        let known = rows.known();
        let Some(scope) = known.scopes.get(&row.scope()).filter(|scope| !scope.is_unverified) else { return Ok(false) };
        let Some((_, addends)) = &scope.verified else { return Ok(false) };
        Ok(addends.get(&name_of_values(T::TABLE, &values)) == Some(&addend))
    }

    /// All rows of the instance's scope. What they permit is the running of code, so nothing is taken from them unless
    /// they are the ones that were sealed.
    pub(crate) async fn verified_instance(&self) -> Result<Judged, StoreError> {
        let reading = Reading::of_instance(self).await?;
        let judged = reading.judge(|judged| judged).await;
        match judged.unverified.iter().find(|found| found.scope == Scope::Instance) {
            Some(found) => Err(StoreError::Unverified { scope: found.scope.to_string(), why: found.why.clone() }),
            None => Ok(judged),
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
