//! Creation of seals: for a new database, for a database from a version that did not authenticate rows, and for a
//! scope whose current rows an operator accepts.

use std::collections::{BTreeMap, BTreeSet};

use monstrum_types::{UtcMillis, WorkspaceId};

use super::change::{Exists, SEALS, change, insert};
use super::encoding::digest_of_row;
use super::total::Total;
use super::verify::scope_of;
use super::{Macs, RowName, Rows, Scope, SealRow, Table, encoding, name_of};
use crate::db::{Arg, FromRow, Row, Session, args};
use crate::{DEFAULT_WORKSPACE, InstanceKeyRow, KeyRow, PluginRow, Store, StoreError, TrustRow, WorkspaceRow};

/// Serializes hosts that create seals concurrently.
const LOCK: &str = "update settings set generation = generation where id = 1";
const INSERT_KEY: &str = "insert into instance_keys (name, version, sealed, created_at) values ($1, $2, $3, $4)";
const INSERT_SEAL: &str = "insert into policy_seals (scope, generation, sealed) values ($1, $2, $3)";
const ANY_SEAL: &str = "select scope from policy_seals limit 1";
/// Queries that find data outside the authenticated tables. Such data shows that a host has used the database.
const SIGNS_OF_USE: [&str; 4] = [
    ANY_SEAL,
    "select name from instance_keys limit 1",
    "select writer from audit_events limit 1",
    "select writer from audit_rows limit 1",
];

/// The data that `monstrum vault seal` shows for a database from a version that did not authenticate rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsealed {
    pub keys: Vec<KeyRow>,
    pub trust: Vec<TrustRow>,
    pub plugins: Vec<PluginRow>,
    /// The number of rows in each table, including the tables of the lists above.
    pub rows: Vec<(&'static str, u64)>,
}

/// A row of a scope for display to an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRow {
    pub name: RowName,
    /// Whether the row's MAC is valid.
    pub is_valid: bool,
    /// Whether sealing the scope accepts the row. A row that is not accepted has a wrong MAC in an uncounted table,
    /// belongs to a missing workspace, or cannot be decoded. It stays rejected until it is deleted.
    pub is_counted: bool,
    /// The columns that the MAC covers, as text.
    pub columns: Vec<(&'static str, String)>,
    /// The SHA-256 of the bytes that the MAC covers; `None` if the row cannot be decoded.
    pub digest: Option<[u8; 32]>,
}

/// A row in the list of [`Store::scope_rows`].
struct Listed {
    table: Table,
    row: Row,
    is_counted: bool,
}

impl Store {
    /// Initializes an empty database with the row key, the workspace `default` and the seals. If the database is not
    /// empty, does nothing and returns `false`.
    pub async fn initialize(&self, key: &InstanceKeyRow, now: UtcMillis) -> Result<bool, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.write().await?;
        session.run(LOCK, args![]).await?;
        if !session.is_empty().await? {
            return Ok(false);
        }
        session.run(INSERT_KEY, args![&key.name, key.version, &key.sealed, key.created_at]).await?;
        let (id, name) = (WorkspaceId::new(), DEFAULT_WORKSPACE.to_owned());
        let workspace = WorkspaceRow { id, name, sandbox: None, created_at: now, updated_at: now };
        let addend = insert(&mut session, rows, &workspace, Vec::new(), Vec::new()).await?;
        let mut total = Total::default();
        total.add(&addend);
        session.put_seal(rows, Scope::Instance, 1, total).await?;
        session.put_seal(rows, Scope::Workspace(id), 1, Total::default()).await?;
        session.bump_generation().await?;
        session.commit().await?;
        Ok(true)
    }

    /// Returns whether the database has never been used.
    pub async fn is_empty(&self) -> Result<bool, StoreError> {
        self.db.read_consistently().await?.is_empty().await
    }

    /// Returns whether the database has seals.
    pub async fn is_sealed(&self) -> Result<bool, StoreError> {
        Ok(self.db.one::<Exists>(ANY_SEAL, args![]).await?.is_some())
    }

    /// Reads the content of a database that has no seals. Does not verify the rows.
    pub async fn unsealed(&self) -> Result<Unsealed, StoreError> {
        self.db.read_consistently().await?.unsealed().await
    }

    /// Seals all rows of a database that has no seals, and stores the row key if `key` is given. Returns the number of
    /// sealed rows. Fails if the keys, trusted keys, plugins or row counts no longer equal `shown`, which an operator
    /// has reviewed. Rows that cannot be decoded, such as a row with a blob instead of text, get no MAC.
    pub async fn seal_everything(&self, shown: &Unsealed, key: Option<&InstanceKeyRow>) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.write().await?;
        session.run(LOCK, args![]).await?;
        if session.one::<Exists>(ANY_SEAL, args![]).await?.is_some() {
            return Err(StoreError::Conflict { constraint: "policy_seals_pkey".to_owned() });
        }
        if session.unsealed().await? != *shown {
            return Err(changed_meanwhile("the database"));
        }
        if let Some(key) = key {
            session.run(INSERT_KEY, args![&key.name, key.version, &key.sealed, key.created_at]).await?;
        }
        session.digest_locales().await?;
        let mut totals = BTreeMap::from([(Scope::Instance, Total::default())]);
        let mut count = 0;
        for table in Table::ALL {
            for row in session.fetch(&table.statements().all, args![]).await? {
                let (Some(bytes), Ok(scope)) = (sealable(table, &row), scope_of(table, &row)) else { continue };
                if table == Table::Workspaces {
                    let Ok(id) = row.get("id") else { continue };
                    totals.entry(Scope::Workspace(id)).or_default();
                }
                count += 1;
                let macs = rows.macs_of(&bytes);
                session.set_mac(table, &row, &macs).await?;
                if table.spec().is_counted {
                    totals.entry(scope).or_default().add(&macs.addend);
                }
            }
        }
        for (scope, total) in totals {
            session.put_seal(rows, scope, 1, total).await?;
        }
        session.bump_generation().await?;
        session.commit().await?;
        Ok(count)
    }

    /// Raises the generation of the instance until the sum of all generations exceeds `total`. If the instance is
    /// unverified, does nothing and returns `false`.
    pub async fn raise_generations(&self, total: i64) -> Result<bool, StoreError> {
        let missing = total.saturating_sub(self.sealed_generations().await?);
        let raised: Result<(), StoreError> = change!(self, &[Scope::Instance], |change| {
            change.raise(Scope::Instance, missing.max(0));
            Ok(())
        });
        match raised {
            Err(StoreError::Unverified { .. }) => Ok(false),
            raised => raised.map(|()| true),
        }
    }

    /// Returns the rows of a scope in the order of the tables. The list contains all rows of counted tables, and the
    /// rows of other tables whose MAC is wrong. Rows of missing workspaces are listed with the instance.
    pub async fn scope_rows(&self, scope: Scope) -> Result<Vec<ScopeRow>, StoreError> {
        self.db.read_consistently().await?.scope_rows(self.rows()?, scope).await
    }

    /// Deletes the rows in `deleted`, then seals the scope with all remaining counted rows, even those with an invalid
    /// MAC. Returns the number of sealed rows. Fails and changes nothing if the rows no longer equal `shown`, which an
    /// operator has reviewed.
    pub async fn seal_scope(&self, scope: Scope, shown: &[ScopeRow], deleted: &[RowName]) -> Result<u64, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.write().await?;
        session.run(LOCK, args![]).await?;
        if session.scope_rows(rows, scope).await? != shown {
            return Err(changed_meanwhile(&scope.to_string()));
        }
        let mut total = Total::default();
        // Iterate in reverse order, because a row must be deleted before the rows that it references.
        for listed in session.listed_rows(rows, scope).await?.into_iter().rev() {
            if deleted.contains(&name_of(listed.table, &listed.row)) {
                session.delete_listed(&listed).await.map_err(StoreError::of_deletion)?;
            }
        }
        for table in Table::counted() {
            for row in session.rows_of(table, scope).await? {
                let Some(bytes) = sealable(table, &row) else { continue };
                let macs = rows.macs_of(&bytes);
                session.set_mac(table, &row, &macs).await?;
                total.add(&macs.addend);
            }
        }
        // If the existing seal cannot be decrypted, its generation may be forged. In that case, use the sum of all
        // other generations, which exceeds every earlier generation of this scope.
        let seals = SealRow::all(&session.fetch(SEALS, args![]).await?);
        let opens = |seal: &&SealRow| rows.unseal(seal).is_some();
        let own = seals.iter().filter(opens).find(|seal| seal.scope == scope.to_string()).map(|seal| seal.generation);
        let sum = seals.iter().filter(opens).fold(0_i64, |sum, seal| sum.saturating_add(seal.generation));
        let generation = own.unwrap_or(sum).saturating_add(1);
        session.run("delete from policy_seals where scope = $1", args![&scope.to_string()]).await?;
        session.put_seal(rows, scope, generation, total).await?;
        session.bump_generation().await?;
        session.commit().await?;
        Ok(total.rows())
    }
}

fn changed_meanwhile(what: &str) -> StoreError {
    StoreError::Unverified { scope: what.to_owned(), why: "its rows have changed since they were displayed".to_owned() }
}

impl Session {
    async fn unsealed(&mut self) -> Result<Unsealed, StoreError> {
        let mut rows = Vec::new();
        for table in Table::counted() {
            let found = self.fetch(&table.statements().all, args![]).await?;
            rows.push((table.name(), found.len() as u64));
        }
        Ok(Unsealed {
            keys: self.readable(Table::ApiKeys).await?,
            trust: self.readable(Table::Trust).await?,
            plugins: self.readable(Table::Plugins).await?,
            rows,
        })
    }

    async fn readable<T: FromRow>(&mut self, table: Table) -> Result<Vec<T>, StoreError> {
        let found = self.fetch(&table.statements().all, args![]).await?;
        Ok(found.iter().filter_map(|row| T::from_row(row).ok()).collect())
    }

    async fn scope_rows(&mut self, rows: &Rows, scope: Scope) -> Result<Vec<ScopeRow>, StoreError> {
        let listed = self.listed_rows(rows, scope).await?;
        let shown = listed.iter().map(|Listed { table, row, is_counted }| {
            let spec = table.spec();
            let columns = spec.covered.iter().chain(spec.optional);
            let columns = columns.map(|(column, _)| (*column, row.display(column))).collect();
            let is_valid = rows.verify(*table, row).is_some();
            let digest = digest_of_row(*table, row).ok();
            ScopeRow { name: name_of(*table, row), is_valid, is_counted: *is_counted, columns, digest }
        });
        Ok(shown.collect())
    }

    /// Returns the rows for the list of [`Store::scope_rows`].
    async fn listed_rows(&mut self, rows: &Rows, scope: Scope) -> Result<Vec<Listed>, StoreError> {
        let mut workspaces = BTreeSet::new();
        if scope == Scope::Instance {
            let found = self.fetch(&Table::Workspaces.statements().all, args![]).await?;
            workspaces.extend(found.iter().filter_map(|row| row.get::<WorkspaceId>("id").ok()));
        }
        let is_stray = |table, row: &Row| match scope_of(table, row) {
            Ok(Scope::Instance) => false,
            Ok(Scope::Workspace(id)) => !workspaces.contains(&id),
            Err(_) => true,
        };
        let mut listed = Vec::new();
        for table in Table::ALL {
            let is_counted = table.is_counted();
            let of_scope = self.rows_of(table, scope).await?;
            let shown = of_scope.into_iter().filter(|row| is_counted || rows.verify(table, row).is_none());
            listed.extend(shown.map(|row| {
                let is_counted = is_counted && sealable(table, &row).is_some();
                Listed { table, row, is_counted }
            }));
            if scope == Scope::Instance && !table.is_of_instance() {
                let all = self.fetch(&table.statements().all, args![]).await?;
                let strays = all.into_iter().filter(|row| is_stray(table, row));
                // The valid row of a sandbox remains after its workspace is deleted, until the provider has deleted
                // the sandbox.
                let strays = strays.filter(|row| is_counted || rows.verify(table, row).is_none());
                listed.extend(strays.map(|row| Listed { table, row, is_counted: false }));
            }
        }
        Ok(listed)
    }

    /// Deletes a row, even if its key is not text.
    async fn delete_listed(&mut self, Listed { table, row, .. }: &Listed) -> Result<u64, StoreError> {
        if let Some(key) = key_of(*table, row) {
            return self.run(&table.statements().delete, &key).await;
        }
        let mut values = Vec::new();
        let raw = table.spec().key.iter().map(|column| row.raw(column)).collect::<Result<Vec<_>, _>>()?;
        for (kind, bytes) in &raw {
            values.push(bytes.as_deref().map_or(Arg::Text(None), |bytes| Arg::Bytes(Some(bytes))));
            values.push(Arg::Text(Some(kind.into())));
        }
        self.run(&table.statements().delete_raw, &values).await
    }

    async fn is_empty(&mut self) -> Result<bool, StoreError> {
        for table in Table::ALL {
            if self.one::<Exists>(&table.statements().any, args![]).await?.is_some() {
                return Ok(false);
            }
        }
        for query in SIGNS_OF_USE {
            if self.one::<Exists>(query, args![]).await?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) async fn put_seal(
        &mut self,
        rows: &Rows,
        scope: Scope,
        generation: i64,
        total: Total,
    ) -> Result<(), StoreError> {
        let sealed = rows.seal(scope, generation, total)?;
        self.run(INSERT_SEAL, args![&scope.to_string(), generation, &sealed]).await?;
        Ok(())
    }

    pub(super) async fn set_mac(&mut self, table: Table, row: &Row, macs: &Macs) -> Result<(), StoreError> {
        let mut values = texts_of(table.spec().key, row)?;
        values.push(Arg::Bytes(Some(&macs.mac)));
        self.run(&table.statements().set_mac, &values).await?;
        Ok(())
    }

    /// Returns the rows of a table that belong to a scope.
    pub(super) async fn rows_of(&mut self, table: Table, scope: Scope) -> Result<Vec<Row>, StoreError> {
        let statements = table.statements();
        match scope {
            Scope::Instance if table.is_of_instance() => self.fetch(&statements.all, args![]).await,
            Scope::Instance => self.fetch(&statements.of_no_workspace, args![]).await,
            Scope::Workspace(_) if table.is_of_instance() => Ok(Vec::new()),
            Scope::Workspace(id) => self.fetch(&statements.of_workspace, args![id]).await,
        }
    }

    /// Sets `locales_digest` for plugin versions that were stored before this column existed.
    async fn digest_locales(&mut self) -> Result<(), StoreError> {
        let sql = "select plugin, manifest_digest, component_digest, locales from plugin_versions \
                   where locales_digest is null";
        let set = "update plugin_versions set locales_digest = $4 \
                   where plugin = $1 and manifest_digest = $2 and component_digest = $3";
        for row in self.fetch(sql, args![]).await? {
            let (Some(mut values), Ok(locales)) = (key_of(Table::PluginVersions, &row), row.get::<String>("locales"))
            else {
                continue;
            };
            values.push(Arg::Text(Some(crate::plugins::digest_of(locales.as_bytes()).to_string().into())));
            self.run(set, &values).await?;
        }
        Ok(())
    }
}

/// Encodes a row for its MAC. Returns `None` if the key or a covered value is invalid.
fn sealable(table: Table, row: &Row) -> Option<Vec<u8>> {
    key_of(table, row)?;
    encoding::of_row(table, row).ok()
}

/// Returns the key of a row, or `None` if the key is not text or cannot be a query parameter.
fn key_of(table: Table, row: &Row) -> Option<Vec<Arg<'static>>> {
    let key = texts_of(table.spec().key, row).ok()?;
    let is_fit = |value: &Arg<'_>| matches!(value, Arg::Text(Some(text)) if !text.contains('\0'));
    key.iter().all(is_fit).then_some(key)
}

pub(super) fn texts_of(columns: &[&'static str], row: &Row) -> Result<Vec<Arg<'static>>, StoreError> {
    columns.iter().map(|column| Ok(Arg::Text(Some(row.get::<String>(column)?.into())))).collect()
}
