//! Verification of whole tables: which rows have a valid MAC, and which scopes contain exactly the rows that were
//! sealed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use monstrum_types::WorkspaceId;
use rayon::prelude::*;

use super::change::SEALS;
use super::feed::VerifiedScope;
use super::total::Total;
use super::{Addends, Authentic, RowName, Rows, Scope, SealRow, Table, UnverifiedScope, name_of};
use crate::db::{Row, Session, args};
use crate::{Store, StoreError};

/// The maximum number of changed rows to name in a message about a scope.
const NAMED_MAX: usize = 100;

const INSTANCE_SEAL: &str = "select scope, generation, sealed from policy_seals where scope = 'instance'";

/// Rows and the seals of their scopes, read in one transaction.
pub(crate) struct StoredRows {
    rows: Arc<Rows>,
    seen: HashMap<Scope, i64>,
    seals: Vec<SealRow>,
    tables: Vec<(Table, Vec<Row>)>,
    is_of_instance: bool,
}

/// The valid rows among [`StoredRows`].
pub(crate) struct TrustedRows {
    /// Rows with a valid MAC, by table.
    tables: BTreeMap<Table, Vec<ValidRow>>,
    pub(crate) refused: Vec<RowName>,
    pub(crate) unverified: Vec<UnverifiedScope>,
    /// The generation of the seal of each verified scope.
    pub(crate) generations: HashMap<Scope, i64>,
    /// The sum of the generations of all scopes, for the signed heads of the audit log. For each scope, the sum uses
    /// the highest generation that this process has seen. Otherwise a change in one scope could hide that another scope
    /// was restored to an older state. The sum is zero while the instance is unverified.
    pub(crate) generations_total: i64,
    /// For each unverified scope, its rows when this process last verified it.
    verified_before: HashMap<Scope, Addends>,
    unverified_scopes: HashSet<Scope>,
    /// For each verified scope, its rows with their number and sum.
    pub(crate) verified: Vec<(Scope, VerifiedScope)>,
}

struct ValidRow {
    scope: Scope,
    addend: [u8; 32],
    row: Row,
}

impl StoredRows {
    /// Reads all counted rows. The session must use a consistent snapshot.
    pub(crate) async fn of_all(
        store: &Store,
        session: &mut Session,
        seen: SeenGenerations,
    ) -> Result<StoredRows, StoreError> {
        let seals = SealRow::all(&session.fetch(SEALS, args![]).await?);
        let mut tables = Vec::new();
        for table in Table::counted() {
            tables.push((table, session.fetch(&table.statements().all, args![]).await?));
        }
        Ok(StoredRows { rows: Arc::clone(store.rows()?), seen: seen.0, seals, tables, is_of_instance: false })
    }

    /// Reads all rows that belong to the scope of the instance.
    pub(crate) async fn of_instance(store: &Store) -> Result<StoredRows, StoreError> {
        const ROOT_KEYS: &str = "select id, workspace_id, name, kind, bot_id, resource_id, prefix, hash, created_at, last_used_at, \
                                 mac from api_keys where workspace_id is null order by id";
        let seen = SeenGenerations::of(store)?;
        let mut session = store.db.read_consistently().await?;
        let seals = SealRow::all(&session.fetch(INSTANCE_SEAL, args![]).await?);
        let mut tables = vec![(Table::ApiKeys, session.fetch(ROOT_KEYS, args![]).await?)];
        for table in Table::counted().filter(|table| table.is_of_instance()) {
            tables.push((table, session.fetch(&table.statements().all, args![]).await?));
        }
        session.commit().await?;
        Ok(StoredRows { rows: Arc::clone(store.rows()?), seen: seen.0, seals, tables, is_of_instance: true })
    }

    /// Verifies the rows on all processors, outside the async worker threads, and passes the result to `then`.
    pub(crate) async fn verify<T: Send + 'static>(self, then: impl FnOnce(TrustedRows) -> T + Send + 'static) -> T {
        let verified = tokio::task::spawn_blocking(move || then(self.verify_now())).await;
        verified.expect("checking MACs does not panic")
    }

    fn verify_now(self) -> TrustedRows {
        let StoredRows { rows, seen, seals, tables, is_of_instance } = self;
        let (mut valid, mut refused) = (BTreeMap::new(), Vec::new());
        for (table, read) in tables {
            let (of_table, bad) = check_macs(&rows, table, read);
            valid.insert(table, of_table);
            refused.extend(bad);
        }
        let mut totals: HashMap<Scope, Total> = HashMap::new();
        for row in valid.values().flatten() {
            totals.entry(row.scope).or_default().add(&row.addend);
        }
        let mut scopes = vec![Scope::Instance];
        if !is_of_instance {
            let workspaces = valid.get(&Table::Workspaces).into_iter().flatten();
            scopes.extend(workspaces.filter_map(|row| row.row.get::<WorkspaceId>("id").ok()).map(Scope::Workspace));
        }
        let seals: HashMap<String, SealRow> = seals.into_iter().map(|seal| (seal.scope.clone(), seal)).collect();
        let (mut generations, mut faults) = (HashMap::new(), HashMap::new());
        let mut generations_total: i64 = 0;
        for scope in scopes {
            let seen = seen.get(&scope).copied().unwrap_or(0);
            let total = totals.get(&scope).copied().unwrap_or_default();
            let seal = seals.get(&scope.to_string());
            let opened = seal.filter(|seal| rows.open_seal(scope, seal, 0).is_ok()).map_or(0, |seal| seal.generation);
            generations_total = generations_total.saturating_add(opened.max(seen));
            match compare(&rows, scope, seal, seen, total) {
                Ok(generation) => drop(generations.insert(scope, generation)),
                Err(why) => drop(faults.insert(scope, why)),
            }
        }
        rows.known.lock().refused.extend(refused.iter().cloned());
        let differing = remember(&rows, &valid, &generations, &faults);
        let verified = generations.iter().map(|(scope, generation)| {
            let total = totals.get(scope).copied().unwrap_or_default();
            let addends = differing.verified.get(scope).cloned().unwrap_or_default();
            (*scope, VerifiedScope { generation: *generation, total, addends })
        });
        let verified = verified.collect();
        let differing = differing.of_others;
        let mut trusted = TrustedRows {
            tables: valid,
            refused,
            unverified: Vec::new(),
            generations_total: if faults.contains_key(&Scope::Instance) { 0 } else { generations_total },
            generations,
            verified_before: HashMap::new(),
            unverified_scopes: faults.keys().copied().collect(),
            verified,
        };
        for (scope, why) in faults {
            let differing = differing.get(&scope).cloned();
            if let Some((before, _)) = &differing {
                trusted.verified_before.insert(scope, before.clone());
            }
            let differing = differing.map(|(_, names)| names).unwrap_or_default();
            trusted.unverified.push(UnverifiedScope { scope, why, differing });
        }
        trusted.unverified.sort_by_key(|found| found.scope);
        trusted
    }
}

/// The highest generation of each scope that this process had seen before a transaction began.
pub(crate) struct SeenGenerations(HashMap<Scope, i64>);

impl SeenGenerations {
    pub(crate) fn of(store: &Store) -> Result<SeenGenerations, StoreError> {
        Ok(SeenGenerations(store.rows()?.seen_generations()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Scope, i64)> {
        self.0.iter().map(|(scope, generation)| (*scope, *generation))
    }

    pub(super) fn of_scope(&self, scope: Scope) -> i64 {
        self.0.get(&scope).copied().unwrap_or_default()
    }
}

/// Splits the rows of a table into rows with a valid MAC, and the names of all other rows.
fn check_macs(rows: &Rows, table: Table, read: Vec<Row>) -> (Vec<ValidRow>, Vec<RowName>) {
    let checked: Vec<Result<ValidRow, RowName>> = read
        .into_par_iter()
        .map(|row| match (rows.verify(table, &row), scope_of(table, &row)) {
            (Some(addend), Ok(scope)) => Ok(ValidRow { scope, addend, row }),
            _ => Err(name_of(table, &row)),
        })
        .collect();
    let (mut valid, mut refused) = (Vec::with_capacity(checked.len()), Vec::new());
    for row in checked {
        match row {
            Ok(row) => valid.push(row),
            Err(name) => refused.push(name),
        }
    }
    (valid, refused)
}

/// Returns the scope of a row.
pub(super) fn scope_of(table: Table, row: &Row) -> Result<Scope, StoreError> {
    if table.is_of_instance() {
        return Ok(Scope::Instance);
    }
    row.get::<Option<WorkspaceId>>("workspace_id").map(Scope::from)
}

/// Compares the rows of a scope with its seal. Returns the generation if the rows match, and otherwise the reason for
/// the mismatch.
pub(super) fn compare(
    rows: &Rows,
    scope: Scope,
    seal: Option<&SealRow>,
    seen: i64,
    total: Total,
) -> Result<i64, String> {
    let seal = seal.ok_or("the scope has no seal")?;
    let sealed = rows.open_seal(scope, seal, seen)?;
    if sealed == total {
        return Ok(seal.generation);
    }
    let (found, expected) = (total.rows(), sealed.rows());
    Err(match found == expected {
        true => format!("its {found} valid rows do not match its seal"),
        false => format!("the scope has {found} valid rows, but its seal counts {expected}"),
    })
}

type Differing = (Addends, Vec<RowName>);

/// The rows of each scope, as recorded by one verification.
struct Remembered {
    /// The rows of each verified scope.
    verified: HashMap<Scope, Addends>,
    /// For each unverified scope, its rows when it was last verified, and the names of the rows that have changed since
    /// then.
    of_others: HashMap<Scope, Differing>,
}

/// Records the rows of verified scopes. For unverified scopes, finds the rows that have changed since the last
/// successful verification.
fn remember(
    rows: &Rows,
    valid: &BTreeMap<Table, Vec<ValidRow>>,
    generations: &HashMap<Scope, i64>,
    faults: &HashMap<Scope, String>,
) -> Remembered {
    let mut known = rows.known.lock();
    let mut wanted: HashMap<Scope, Addends> = HashMap::new();
    let mut verified = HashMap::new();
    for (scope, generation) in generations {
        let scope_known = known.scopes.entry(*scope).or_default();
        scope_known.generation = scope_known.generation.max(*generation);
        scope_known.is_unverified = false;
        match &scope_known.verified {
            Some((known, addends)) if known == generation => drop(verified.insert(*scope, addends.clone())),
            _ => drop(wanted.insert(*scope, Addends::new())),
        }
    }
    wanted.extend(faults.keys().map(|scope| (*scope, Addends::new())));
    for (table, of_table) in valid {
        for row in of_table {
            if let Some(of_scope) = wanted.get_mut(&row.scope) {
                of_scope.insert(name_of(*table, &row.row), row.addend);
            }
        }
    }
    let mut differing = HashMap::new();
    for (scope, now) in wanted {
        let scope_known = known.scopes.entry(scope).or_default();
        if let Some(generation) = generations.get(&scope) {
            scope_known.verified = Some((*generation, now.clone()));
            verified.insert(scope, now);
            continue;
        }
        scope_known.is_unverified = true;
        if let Some((_, before)) = &scope_known.verified {
            differing.insert(scope, (before.clone(), differences(before, &now)));
        }
    }
    Remembered { verified, of_others: differing }
}

fn differences(before: &Addends, now: &Addends) -> Vec<RowName> {
    let gone = before.iter().filter(|(name, addend)| now.get(*name) != Some(*addend));
    let new = now.keys().filter(|name| !before.contains_key(*name));
    let mut names: Vec<RowName> = gone.map(|(name, _)| name).chain(new).cloned().collect();
    names.sort();
    names.truncate(NAMED_MAX);
    names
}

impl TrustedRows {
    /// Returns the generation of the instance's seal, or 0 while the instance is unverified.
    pub(crate) fn generation_of_instance(&self) -> i64 {
        self.generations.get(&Scope::Instance).copied().unwrap_or_default()
    }

    /// Takes the valid rows of a table that belong to verified scopes. While the instance is unverified, the rows of
    /// workspaces are omitted.
    pub(crate) fn take<T: Authentic>(&mut self) -> Vec<T> {
        let rows = self.tables.remove(&T::TABLE).unwrap_or_default();
        // A workspace whose own row is missing or invalid has no generation in this map.
        let generations = &self.generations;
        let is_in_force = |scope: Scope| generations.contains_key(&scope) && generations.contains_key(&Scope::Instance);
        self.read(rows.into_iter().filter(|row| is_in_force(row.scope)).collect())
    }

    /// Takes the valid rows of a table, including rows of unverified scopes. Omits rows of workspaces whose own row
    /// is missing or invalid. If this process has verified an unverified scope before, omits its rows that have
    /// changed since then.
    pub(crate) fn take_known<T: Authentic>(&mut self) -> Vec<T> {
        let rows = self.tables.remove(&T::TABLE).unwrap_or_default();
        let was_there = |row: &ValidRow| match self.verified_before.get(&row.scope) {
            Some(before) => before.get(&name_of(T::TABLE, &row.row)) == Some(&row.addend),
            None => self.generations.contains_key(&row.scope) || self.unverified_scopes.contains(&row.scope),
        };
        self.read(rows.into_iter().filter(was_there).collect())
    }

    /// Decodes rows. A row with an invalid value in a column that the MAC does not cover is rejected, like a row with
    /// a wrong MAC.
    fn read<T: Authentic>(&mut self, rows: Vec<ValidRow>) -> Vec<T> {
        let read: Vec<Result<T, RowName>> = rows
            .into_par_iter()
            .map(|valid| T::from_row(&valid.row).map_err(|_| name_of(T::TABLE, &valid.row)))
            .collect();
        let mut parsed = Vec::with_capacity(read.len());
        for row in read {
            match row {
                Ok(row) => parsed.push(row),
                Err(name) => self.refused.push(name),
            }
        }
        parsed
    }
}
