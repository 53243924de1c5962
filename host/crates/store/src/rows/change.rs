//! Changes of authenticated rows. A change is one transaction that locks the seals of its scopes, verifies the old
//! rows, writes the new rows, and updates the seals. The cost of a change does not depend on the number of rows in a
//! scope.

use std::collections::BTreeMap;

use monstrum_types::WorkspaceId;

use super::feed::ChangedRow;
use super::sealing::texts_of;
use super::total::Total;
use super::verify::scope_of;
use super::{Authentic, Macs, RowName, Rows, Scope, SealRow, Table, name_of};
use crate::db::{Arg, FromRow, Row, Session, args};
use crate::{Store, StoreError};

/// Locks and reads a seal. Uses an `update`, because SQLite has no `select for update`.
pub(super) const LOCK: &str =
    "update policy_seals set generation = generation where scope = $1 returning scope, generation, sealed";

/// Selects all seals.
pub(super) const SEALS: &str = "select scope, generation, sealed from policy_seals order by scope";

pub(super) const SEAL: &str = "update policy_seals set generation = $2, sealed = $3 where scope = $1";

/// A transaction that changes authenticated rows.
pub(crate) struct Change<'s> {
    pub(crate) session: Session,
    rows: &'s Rows,
    seals: BTreeMap<Scope, OpenSeal>,
    /// Whether other hosts must reload the policy even if no seal changes.
    notifies: bool,
    /// The rows that this change has written or deleted.
    changed: Vec<ChangedRow>,
}

struct OpenSeal {
    generation: i64,
    total: Total,
    is_changed: bool,
}

/// The result of a query that only checks whether a row exists.
pub(super) struct Exists;

impl FromRow for Exists {
    fn from_row(_: &Row) -> Result<Self, StoreError> {
        Ok(Exists)
    }
}

/// Changes rows of the given scopes in one transaction, and evaluates to the result of the body. The scopes must be
/// sorted, with the instance first. If the database aborts the transaction because of a conflict with another
/// transaction, the macro retries the transaction. (This is a macro because the compiler cannot prove that the future
/// of a closure over references is `Send`.)
macro_rules! change {
    ($store:expr, $scopes:expr, |$change:ident| $body:expr) => {
        $crate::db::retry!(async {
            let mut $change = $store.begin_change($scopes).await?;
            let done: Result<_, $crate::StoreError> = $body;
            let done = done?;
            $change.finish().await?;
            Ok(done)
        })
    };
}
pub(crate) use change;

impl Store {
    /// Begins a change and locks the seals of its scopes. Call this only through [`change!`].
    pub(crate) async fn begin_change(&self, scopes: &[Scope]) -> Result<Change<'_>, StoreError> {
        debug_assert!(scopes.is_sorted(), "seals are locked in one order, which prevents deadlocks");
        let rows = self.rows()?;
        let seen = rows.seen_generations();
        let session = self.db.write().await?;
        let mut change = Change { session, rows, seals: BTreeMap::new(), notifies: false, changed: Vec::new() };
        for scope in scopes {
            change.lock(*scope, seen.get(scope).copied().unwrap_or(0)).await?;
        }
        Ok(change)
    }
}

impl Store {
    /// Inserts a single row as a complete change.
    pub(crate) async fn insert_row<T: Authentic>(&self, row: &T, left_out: &[Arg<'_>]) -> Result<(), StoreError> {
        change!(self, &[row.scope()], |change| {
            change.insert(row, left_out.iter().map(Arg::borrowed).collect(), Vec::new()).await
        })
    }

    /// Inserts a row of a table that is not counted by seals.
    pub(crate) async fn insert_uncounted<T: Authentic>(
        &self,
        row: &T,
        left_out: Vec<Arg<'_>>,
    ) -> Result<(), StoreError> {
        let mut session = self.db.write().await?;
        insert(&mut session, self.rows()?, row, left_out, Vec::new()).await?;
        session.commit().await
    }
}

impl From<WorkspaceId> for Scope {
    fn from(workspace: WorkspaceId) -> Self {
        Scope::Workspace(workspace)
    }
}

pub(super) fn unverified(scope: Scope, why: impl Into<String>) -> StoreError {
    StoreError::Unverified { scope: scope.to_string(), why: why.into() }
}

impl Change<'_> {
    async fn lock(&mut self, scope: Scope, seen: i64) -> Result<(), StoreError> {
        let found = self.session.fetch(LOCK, args![&scope.to_string()]).await?;
        let Some(seal) = found.first() else {
            // A workspace that does not exist has neither a seal nor rows.
            if let Scope::Workspace(id) = scope {
                let sql = "select id from workspaces where id = $1";
                let there: Option<Exists> = self.session.one(sql, args![id]).await?;
                if there.is_none() {
                    return Ok(());
                }
            }
            return Err(unverified(scope, "the scope has no seal"));
        };
        if self.rows.known.lock().scopes.get(&scope).is_some_and(|known| known.is_unverified) {
            return Err(unverified(scope, "its rows do not match its seal"));
        }
        let seal = SealRow::from_row(seal).map_err(|_| unverified(scope, "its seal cannot be read"))?;
        let total = self.rows.open_seal(scope, &seal, seen).map_err(|why| unverified(scope, why))?;
        self.seals.insert(scope, OpenSeal { generation: seal.generation, total, is_changed: false });
        Ok(())
    }

    /// Inserts a row. `left_out` and `content` are the values of the `Spec` columns with these names, in the order of
    /// the table.
    pub(crate) async fn insert<T: Authentic>(
        &mut self,
        row: &T,
        left_out: Vec<Arg<'_>>,
        content: Vec<Arg<'_>>,
    ) -> Result<(), StoreError> {
        let addend = insert(&mut self.session, self.rows, row, left_out, content).await?;
        self.name(row);
        self.count::<T>(row.scope(), |total| total.add(&addend))
    }

    /// Replaces the row that has this key with the result of `next`. Returns whether a row was replaced. Does nothing
    /// if the row does not exist or its MAC is invalid, if `next` returns `None`, or if this change does not cover the
    /// scope of the row. The key, the scope and the columns that the MAC does not cover stay unchanged.
    pub(crate) async fn update<T: Authentic>(
        &mut self,
        key: &[Arg<'_>],
        next: impl Fn(&T) -> Option<T>,
    ) -> Result<bool, StoreError> {
        let found = self.session.fetch(&T::TABLE.statements().by_key, key).await?;
        let Some(found) = found.first() else { return Ok(false) };
        let Some(addend) = self.rows.verify(T::TABLE, found) else { return Ok(false) };
        let before = T::from_row(found)?;
        let Some(row) = next(&before).filter(|row| row.scope() == before.scope() && self.has(row.scope())) else {
            return Ok(false);
        };
        let macs = self.write_over(&row).await?;
        self.name(&row);
        self.count::<T>(row.scope(), |total| total.subtract(&addend))?;
        self.count::<T>(row.scope(), |total| total.add(&macs.addend))?;
        Ok(true)
    }

    /// Like [`Change::update`], for a row of a table that is not counted by seals. Returns the new row if a row was
    /// replaced. Hosts do not follow the changes of such tables.
    pub(crate) async fn update_uncounted<T: Authentic>(
        &mut self,
        key: &[Arg<'_>],
        next: impl Fn(&T) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        debug_assert!(!T::TABLE.is_counted(), "rows of {} are counted", T::TABLE.name());
        let found = self.session.fetch(&T::TABLE.statements().by_key, key).await?;
        let Some(before) = found.first().and_then(|row| self.rows.authentic::<T>(row)) else { return Ok(None) };
        let Some(row) = next(&before).filter(|row| row.scope() == before.scope() && self.has(row.scope())) else {
            return Ok(None);
        };
        self.write_over(&row).await?;
        Ok(Some(row))
    }

    /// Inserts a row of a table that is not counted by seals.
    pub(crate) async fn insert_uncounted<T: Authentic>(
        &mut self,
        row: &T,
        left_out: Vec<Arg<'_>>,
        content: Vec<Arg<'_>>,
    ) -> Result<(), StoreError> {
        debug_assert!(!T::TABLE.is_counted(), "rows of {} are counted", T::TABLE.name());
        insert(&mut self.session, self.rows, row, left_out, content).await.map(drop)
    }

    /// Returns the generation of a scope before this change, or `None` if this change does not cover the scope.
    pub(crate) fn generation(&self, scope: Scope) -> Option<i64> {
        self.seals.get(&scope).map(|seal| seal.generation)
    }

    /// Overwrites a row whose MAC is missing or wrong.
    pub(crate) async fn authenticate<T: Authentic>(&mut self, row: &T) -> Result<(), StoreError> {
        let macs = self.write_over(row).await?;
        self.name(row);
        self.count::<T>(row.scope(), |total| total.add(&macs.addend))
    }

    /// Replaces the row that has the same key. Inserts `row` if no such row exists. The MAC must cover all columns of
    /// the table.
    pub(crate) async fn put<T: Authentic + Clone>(&mut self, row: &T) -> Result<(), StoreError> {
        let values = row.covered();
        let key = key_of(T::TABLE, &values);
        if !self.update(&key, |_: &T| Some(row.clone())).await? {
            // A row with the same key and a wrong MAC may still exist.
            self.delete(&key, |_: &T| true).await?;
            self.insert(row, Vec::new(), Vec::new()).await?;
        }
        Ok(())
    }

    async fn write_over<T: Authentic>(&mut self, row: &T) -> Result<Macs, StoreError> {
        overwrite(&mut self.session, self.rows, row).await
    }

    /// Deletes the row with this key, even if its MAC is wrong. Returns whether a row was deleted. Keeps the row if
    /// `may` rejects it or if this change does not cover the scope of the row.
    pub(crate) async fn delete<T: Authentic>(
        &mut self,
        key: &[Arg<'_>],
        may: impl Fn(&T) -> bool,
    ) -> Result<bool, StoreError> {
        let found = self.session.fetch(&T::TABLE.statements().by_key, key).await?;
        Ok(self.remove(found, may).await? > 0)
    }

    /// Deletes the rows that a query finds, and returns their number. Use this instead of `on delete cascade`, which
    /// would not update the seal. The query must select all columns of the table.
    pub(crate) async fn delete_found<T: Authentic>(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<u64, StoreError> {
        let found = self.session.fetch(sql, args).await?;
        self.remove(found, |_: &T| true).await
    }

    async fn remove<T: Authentic>(&mut self, found: Vec<Row>, may: impl Fn(&T) -> bool) -> Result<u64, StoreError> {
        let mut removed = 0;
        for row in found {
            let addend = self.rows.verify(T::TABLE, &row);
            // A row that another program wrote may be malformed. The cascade deletes rows whose key cannot be decoded.
            let (Ok(scope), Ok(key)) = (scope_of(T::TABLE, &row), texts_of(T::TABLE.spec().key, &row)) else {
                continue;
            };
            if !self.has(scope) || T::from_row(&row).is_ok_and(|before| !may(&before)) {
                continue;
            }
            self.session.run(&T::TABLE.statements().delete, &key).await?;
            match addend {
                Some(addend) => {
                    self.changed.push(ChangedRow { name: name_of(T::TABLE, &row), scope });
                    self.count::<T>(scope, |total| total.subtract(&addend))?;
                }
                // The row granted no permissions, but hosts may list it as rejected.
                None => self.notifies = true,
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// Returns the first row of a query, if its MAC is valid.
    pub(crate) async fn one<T: Authentic>(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Option<T>, StoreError> {
        let found = self.session.fetch(sql, args).await?;
        Ok(found.first().and_then(|row| self.rows.authentic(row)))
    }

    /// Creates the seal of a new workspace.
    pub(crate) async fn open_scope(&mut self, workspace: WorkspaceId) -> Result<(), StoreError> {
        const OPEN: &str = "insert into policy_seals (scope, generation, sealed) values ($1, $2, $3)";
        let scope = Scope::Workspace(workspace);
        let sealed = self.rows.seal(scope, 1, Total::default())?;
        self.session.run(OPEN, args![&scope.to_string(), 1, &sealed]).await?;
        Ok(())
    }

    /// Raises the generation of a scope by `generations`, in addition to the increment for this change.
    pub(crate) fn raise(&mut self, scope: Scope, generations: i64) {
        if let Some(seal) = self.seals.get_mut(&scope) {
            seal.generation = seal.generation.saturating_add(generations);
            seal.is_changed = true;
        }
    }

    /// Deletes the seal of a deleted workspace. Adds the generation of this seal to the generation of the instance, so
    /// that the sum of all generations never decreases.
    pub(crate) async fn close_scope(&mut self, workspace: WorkspaceId) -> Result<(), StoreError> {
        let scope = Scope::Workspace(workspace);
        let Some(closed) = self.seals.remove(&scope) else { return Ok(()) };
        self.session.run("delete from policy_seals where scope = $1", args![&scope.to_string()]).await?;
        if let Some(instance) = self.seals.get_mut(&Scope::Instance) {
            instance.generation = instance.generation.saturating_add(closed.generation);
            instance.is_changed = true;
        }
        Ok(())
    }

    /// Returns the rows of a query that have a valid MAC.
    pub(crate) async fn all<T: Authentic>(
        &mut self,
        sql: &'static str,
        args: &[Arg<'_>],
    ) -> Result<Vec<T>, StoreError> {
        let found = self.session.fetch(sql, args).await?;
        Ok(found.iter().filter_map(|row| self.rows.authentic(row)).collect())
    }

    /// Makes other hosts reload the policy, although no authenticated row has changed.
    pub(crate) fn notify(&mut self) {
        self.notifies = true;
    }

    /// Records that a row was written.
    fn name<T: Authentic>(&mut self, row: &T) {
        let values = row.covered();
        let parts: Vec<String> = key_of(T::TABLE, &values).iter().filter_map(text_of).map(str::to_owned).collect();
        self.changed.push(ChangedRow { name: RowName { table: T::TABLE, key: parts.join("/") }, scope: row.scope() });
    }

    fn has(&self, scope: Scope) -> bool {
        self.seals.contains_key(&scope)
    }

    fn count<T: Authentic>(&mut self, scope: Scope, count: impl FnOnce(&mut Total)) -> Result<(), StoreError> {
        debug_assert!(T::TABLE.spec().is_counted, "rows of {} are not counted", T::TABLE.name());
        let seal = self.seals.get_mut(&scope).ok_or(StoreError::UnknownReference)?;
        count(&mut seal.total);
        seal.is_changed = true;
        Ok(())
    }

    pub(crate) async fn finish(mut self) -> Result<(), StoreError> {
        let mut sealed = Vec::new();
        for (scope, seal) in &self.seals {
            if !seal.is_changed {
                continue;
            }
            let generation = seal.generation.saturating_add(1);
            let text = self.rows.seal(*scope, generation, seal.total)?;
            self.session.run(SEAL, args![&scope.to_string(), generation, &text]).await?;
            sealed.push((*scope, generation));
        }
        // Do this last, so that the generations are in the order of the commits.
        if self.notifies {
            self.session.bump_generation().await?;
        } else if !sealed.is_empty() {
            self.session.record_changes(&self.changed, &sealed).await?;
        }
        self.session.commit().await?;
        for (scope, generation) in sealed {
            self.rows.record_generation(scope, generation);
        }
        Ok(())
    }
}

/// Inserts a row with its MAC, and returns its addend.
pub(crate) async fn insert<T: Authentic>(
    session: &mut Session,
    rows: &Rows,
    row: &T,
    left_out: Vec<Arg<'_>>,
    content: Vec<Arg<'_>>,
) -> Result<[u8; 32], StoreError> {
    let mut values = row.covered();
    let macs = rows.macs(T::TABLE, &values)?;
    let spec = T::TABLE.spec();
    debug_assert!(spec.left_out.len() == left_out.len() && spec.content.len() == content.len(), "{}", spec.name);
    values.extend(left_out);
    values.push(Arg::Bytes(Some(&macs.mac)));
    values.extend(content);
    session.run(&T::TABLE.statements().insert, &values).await?;
    Ok(macs.addend)
}

/// Overwrites the row that has the same key, with its MAC, and returns both values of the MAC.
pub(crate) async fn overwrite<T: Authentic>(session: &mut Session, rows: &Rows, row: &T) -> Result<Macs, StoreError> {
    let mut values = row.covered();
    let macs = rows.macs(T::TABLE, &values)?;
    values.push(Arg::Bytes(Some(&macs.mac)));
    session.run(&T::TABLE.statements().update, &values).await?;
    Ok(macs)
}

fn text_of<'v>(value: &'v Arg<'_>) -> Option<&'v str> {
    match value {
        Arg::Text(text) => text.as_deref(),
        _ => None,
    }
}

/// Extracts the key of a row from the values of its covered columns.
pub(super) fn key_of<'v>(table: Table, values: &'v [Arg<'_>]) -> Vec<Arg<'v>> {
    let spec = table.spec();
    let value = |column: &&str| spec.covered.iter().position(|(own, _)| own == column).map(|at| values[at].borrowed());
    spec.key.iter().filter_map(value).collect()
}
