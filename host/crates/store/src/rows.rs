//! Authenticated rows. Each row that permits something carries a MAC under a key that is not in the database, so a row that
//! someone else wrote or edited does not exist. Rows are also counted: each scope (a workspace, or the instance) has a
//! seal with the number of its valid rows and a sum over them, so a row that was removed, or put back with its own MAC, is
//! found too.
//!
//! This module owns the code table of what is under the MAC, every write of such a row, and every read of one. It knows
//! no key: the host gives it a [`SealsRows`].

mod change;
#[cfg(test)]
mod cost;
mod encoding;
mod founding;
mod judge;
mod read;
mod rotation;
mod tables;
mod total;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use monstrum_types::WorkspaceId;

use self::encoding::{MAC_LABEL, SUM_LABEL};
use self::total::Total;
use crate::db::{Arg, FromRow, Row, args};
use crate::{Store, StoreError};

pub(crate) use change::{Change, change, insert};
pub use founding::{ScopeRow, Unsealed};
pub(crate) use judge::{Floors, Judged, Reading};
pub use read::VerifiedRows;
pub use rotation::RowsDone;
pub use tables::Table;

/// A MAC as its column holds it: the version of the row key and the HMAC.
const MAC_BYTES: usize = 4 + 32;

/// What authenticates rows and seals scopes: a row key.
pub trait SealsRows: Send + Sync {
    /// The version of the key.
    fn version(&self) -> u32;

    /// HMAC-SHA-256 over the label and `bytes`. Another label gives an unrelated value.
    fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32];

    /// Encrypts the seal of a scope, bound to the scope and its generation.
    fn seal(
        &self,
        plaintext: &[u8],
        scope: &str,
        generation: i64,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>>;

    /// Opens a seal. `None`: it was altered, or was made for another scope, generation or key.
    fn unseal(&self, sealed: &str, scope: &str, generation: i64) -> Option<Vec<u8>>;
}

/// What rows are counted over. Their order is the order in which seals are locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Root keys, plugins and their versions, trust, and the workspaces themselves.
    Instance,
    /// What belongs to a workspace.
    Workspace(WorkspaceId),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Instance => f.write_str("instance"),
            Scope::Workspace(id) => id.fmt(f),
        }
    }
}

impl From<Option<WorkspaceId>> for Scope {
    fn from(workspace: Option<WorkspaceId>) -> Self {
        workspace.map_or(Scope::Instance, Scope::Workspace)
    }
}

/// A row by its table and the values of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName {
    pub table: Table,
    /// The values of the primary key, divided by slashes.
    pub key: String,
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.table.name(), self.key)
    }
}

impl RowName {
    /// What is said of a row that is refused.
    #[must_use]
    pub fn refusal(&self) -> String {
        format!("row {self} is not authentic: its MAC is missing or wrong, so it permits nothing")
    }
}

/// A scope whose rows are not those that were sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnverifiedScope {
    pub scope: Scope,
    pub why: String,
    /// The rows that differ from those that this process read before; empty where it has read none.
    pub differing: Vec<RowName>,
}

impl fmt::Display for UnverifiedScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rows of scope `{}` are not verified: {}", self.scope, self.why)?;
        if !self.differing.is_empty() {
            let names: Vec<String> = self.differing.iter().map(ToString::to_string).collect();
            write!(f, "; these differ from what this host had: {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// A row under a MAC.
pub(crate) trait Authentic: FromRow + Send + 'static {
    const TABLE: Table;

    /// The scope whose sum it is in.
    fn scope(&self) -> Scope;

    /// The values of the columns under the MAC, in the order of the table.
    fn covered(&self) -> Vec<Arg<'_>>;
}

/// The keys, and what this process knows of the scopes.
pub(crate) struct Rows {
    /// The newest key. Everything that is written is written under it.
    key: Arc<dyn SealsRows>,
    /// The key before it, under which rows and seals are valid as well until a rotation is finished.
    older: Option<Arc<dyn SealsRows>>,
    is_older_retired: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    scopes: HashMap<Scope, KnownScope>,
    /// Rows whose MAC is missing or wrong.
    refused: BTreeSet<RowName>,
}

/// What each row of a scope adds to its sum.
pub(crate) type Addends = HashMap<RowName, [u8; 32]>;

/// What this process has seen of a scope.
#[derive(Default)]
struct KnownScope {
    /// The highest generation.
    generation: i64,
    is_unverified: bool,
    /// What each row added when the scope was last verified, and at which generation that was.
    verified: Option<(i64, Arc<Addends>)>,
}

/// The MAC of a row, as its column holds it, and what the row adds to the sum of its scope.
pub(crate) struct Macs {
    pub(crate) mac: [u8; MAC_BYTES],
    pub(crate) addend: [u8; 32],
}

impl Macs {
    fn of(key: &dyn SealsRows, bytes: &[u8]) -> Macs {
        let mut mac = [0; MAC_BYTES];
        let (version, hmac) = mac.split_at_mut(4);
        version.copy_from_slice(&key.version().to_be_bytes());
        hmac.copy_from_slice(&key.mac(MAC_LABEL, bytes));
        Macs { mac, addend: key.mac(SUM_LABEL, bytes) }
    }
}

impl Rows {
    pub(crate) fn new(key: Arc<dyn SealsRows>, older: Option<Arc<dyn SealsRows>>) -> Self {
        Rows { key, older, is_older_retired: AtomicBool::new(false), known: Mutex::default() }
    }

    /// The key before the newest, while a rotation is under way.
    fn older(&self) -> Option<&dyn SealsRows> {
        self.older.as_deref().filter(|_| !self.is_older_retired.load(Ordering::Acquire))
    }

    fn keys(&self) -> impl Iterator<Item = &dyn SealsRows> {
        std::iter::once(self.key.as_ref()).chain(self.older())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The MAC of a row that is written.
    pub(crate) fn macs(&self, table: Table, values: &[Arg<'_>]) -> Result<Macs, StoreError> {
        Ok(self.macs_of(&encoding::of_values(table, values)?))
    }

    fn macs_of(&self, bytes: &[u8]) -> Macs {
        Macs::of(self.key.as_ref(), bytes)
    }

    /// What a row that was read adds to the sum of its scope; `None` where its MAC is missing or wrong.
    pub(crate) fn verify(&self, table: Table, row: &Row) -> Option<[u8; 32]> {
        let stored = row.bytes_opt("mac").ok()??;
        let version = u32::from_be_bytes(*stored.first_chunk()?);
        let key = self.keys().find(|key| key.version() == version)?;
        let macs = Macs::of(key, &encoding::of_row(table, row).ok()?);
        is_same(&stored, &macs.mac).then_some(macs.addend)
    }

    fn unseal(&self, seal: &SealRow) -> Option<Vec<u8>> {
        self.keys().find_map(|key| key.unseal(&seal.sealed, &seal.scope, seal.generation))
    }

    /// The row, if its MAC is right and each of its columns can be read. One that is refused is remembered, to be named in the
    /// log: a row that another program has written keeps no other row from being read.
    pub(crate) fn authentic<T: Authentic>(&self, row: &Row) -> Option<T> {
        let read = self.verify(T::TABLE, row).and_then(|_| T::from_row(row).ok());
        if read.is_none() {
            self.known().refused.insert(name_of(T::TABLE, row));
        }
        read
    }

    /// The highest generation of each scope that this process has seen. Ask before a transaction begins: what was seen by then
    /// must be in it.
    fn floors(&self) -> HashMap<Scope, i64> {
        self.known().scopes.iter().map(|(scope, known)| (*scope, known.generation)).collect()
    }

    /// Notes a generation that is committed.
    fn note(&self, scope: Scope, generation: i64) {
        let mut known = self.known();
        let known = known.scopes.entry(scope).or_default();
        known.generation = known.generation.max(generation);
    }

    fn open_seal(&self, scope: Scope, seal: &SealRow, floor: i64) -> Result<Total, String> {
        let generation = seal.generation;
        if generation < floor {
            return Err(format!("its seal is of generation {generation}, and this host has seen {floor}"));
        }
        let opened = self.unseal(seal).filter(|_| seal.scope == scope.to_string());
        opened.and_then(|bytes| Total::from_bytes(&bytes)).ok_or_else(|| "its seal does not open".to_owned())
    }

    fn seal(&self, scope: Scope, generation: i64, total: Total) -> Result<String, StoreError> {
        self.key.seal(&total.to_bytes(), &scope.to_string(), generation).map_err(StoreError::Seal)
    }
}

/// A row of `policy_seals`.
#[derive(Clone, Debug)]
pub(crate) struct SealRow {
    scope: String,
    generation: i64,
    sealed: String,
}

impl FromRow for SealRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(SealRow { scope: row.text("scope")?, generation: row.int("generation")?, sealed: row.text("sealed")? })
    }
}

impl SealRow {
    /// The seals among the rows of a query. One that cannot be read, such as a blob where text is expected, is none.
    fn all(rows: &[Row]) -> Vec<SealRow> {
        rows.iter().filter_map(|row| SealRow::from_row(row).ok()).collect()
    }
}

/// In a time that does not depend on where they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn name_of(table: Table, row: &Row) -> RowName {
    let part = |column: &&'static str| row.text_opt(column).ok().flatten().unwrap_or_else(|| "?".to_owned());
    let parts: Vec<String> = table.spec().key.iter().map(part).collect();
    RowName { table, key: parts.join("/") }
}

impl Store {
    /// The same database with the key that authenticates its rows. Without one, no row that permits something is read or
    /// written.
    #[must_use]
    pub fn with_row_key(self, key: Arc<dyn SealsRows>) -> Store {
        self.with_row_keys(key, None)
    }

    /// The same during a rotation: what an older key authenticated is valid as well, and what is written is written under
    /// the newer one.
    #[must_use]
    pub fn with_row_keys(self, key: Arc<dyn SealsRows>, older: Option<Arc<dyn SealsRows>>) -> Store {
        Store { rows: Some(Arc::new(Rows::new(key, older))), ..self }
    }

    pub(crate) fn rows(&self) -> Result<&Arc<Rows>, StoreError> {
        self.rows.as_ref().ok_or(StoreError::NoRowKey)
    }

    /// The sum of the generations of the instance and all workspaces, as far as their seals open. A forged seal adds
    /// nothing, nor does one of a workspace that was deleted. The sum grows with each change of a row that permits something
    /// and never falls: the generation of a deleted workspace is added to that of the instance.
    pub async fn sealed_generations(&self) -> Result<i64, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.read_consistently().await?;
        let seals = SealRow::all(&session.fetch(change::SEALS, args![]).await?);
        let workspaces = session.fetch(&Table::Workspaces.statements().all, args![]).await?;
        session.commit().await?;
        let valid = workspaces.iter().filter(|row| rows.verify(Table::Workspaces, row).is_some());
        let mut scopes: BTreeSet<String> = valid.filter_map(|row| row.text("id").ok()).collect();
        scopes.insert(Scope::Instance.to_string());
        let counts = |seal: &&SealRow| scopes.contains(&seal.scope) && rows.unseal(seal).is_some();
        Ok(seals.iter().filter(counts).fold(0, |sum, seal| sum.saturating_add(seal.generation)))
    }

    /// The generation of each seal, as the database says it.
    pub async fn seal_generations(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let seals = SealRow::all(&self.db.read().await?.fetch(change::SEALS, args![]).await?);
        Ok(seals.into_iter().map(|seal| (seal.scope, seal.generation)).collect())
    }

    /// Notes a row whose content is not what its MAC says.
    pub(crate) fn refuse(&self, table: Table, key: String) -> Result<(), StoreError> {
        self.rows()?.known().refused.insert(RowName { table, key });
        Ok(())
    }

    /// Rows that were read and refused since the store was opened, because their MAC is missing or wrong.
    pub fn refused_rows(&self) -> Vec<RowName> {
        self.rows.as_ref().map(|rows| rows.known().refused.iter().cloned().collect()).unwrap_or_default()
    }
}
