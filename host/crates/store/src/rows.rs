//! Authenticated rows. Each row that grants a permission has a MAC under a key that is not in the database. A row
//! that another program has written or edited fails the MAC check and is ignored. Each scope (a workspace or the
//! instance) also has a seal, which contains the encrypted number and sum of its valid rows. The seal reveals rows
//! that were deleted, or that were restored together with an older MAC.
//!
//! This module owns the list of columns that the MACs cover, and all reads and writes of authenticated rows. It does
//! not handle key material: the host provides an implementation of [`SealsRows`].

mod change;
#[cfg(test)]
mod cost;
mod encoding;
mod feed;
mod read;
mod rotation;
mod sealing;
mod tables;
mod takeover;
mod total;
mod verify;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use monstrum_types::WorkspaceId;
use parking_lot::Mutex;

use self::encoding::{MAC_LABEL, SUM_LABEL};
use self::total::Total;
use crate::db::{Arg, FromRow, Row, args, from_row};
use crate::{Store, StoreError};

pub(crate) use change::{Change, change, insert, overwrite};
pub(crate) use encoding::digest;
pub(crate) use feed::ChangedRow;
pub use feed::{Changed, PolicyChanges, VerifiedPolicy};
pub use read::VerifiedRows;
pub use rotation::RowsDone;
pub use sealing::{ScopeRow, Unsealed};
pub use tables::Table;
pub(crate) use tables::{Spec, kind_of};
pub(crate) use verify::{SeenGenerations, StoredRows, TrustedRows};

/// The size of a stored MAC in bytes: 4 for the version of the row key, and 32 for the HMAC.
const MAC_BYTES: usize = 4 + 32;

/// A row key, which authenticates rows and seals scopes.
pub trait SealsRows: Send + Sync {
    /// Returns the version of the key.
    fn version(&self) -> u32;

    /// Computes the HMAC-SHA-256 of the label and `bytes`. Different labels result in unrelated values.
    fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32];

    /// Encrypts the seal of a scope and binds it to the scope and its generation.
    fn seal(
        &self,
        plaintext: &[u8],
        scope: &str,
        generation: i64,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>>;

    /// Decrypts a seal. Returns `None` if the seal was altered or belongs to another scope, generation or key.
    fn unseal(&self, sealed: &str, scope: &str, generation: i64) -> Option<Vec<u8>>;
}

/// A set of rows that share one seal. Locks on several seals are acquired in the order of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The workspaces themselves, root keys, plugins and their versions, trusted keys, and owners of names.
    Instance,
    /// The rows that belong to a workspace.
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

/// The table and primary key of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName {
    pub table: Table,
    /// The values of the primary key, separated by slashes.
    pub key: String,
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.table.name(), self.key)
    }
}

impl RowName {
    /// Returns the message about the rejection of this row.
    #[must_use]
    pub fn refusal(&self) -> String {
        format!("row {self} is not authentic: its MAC is missing or wrong, so the row grants no permissions")
    }
}

/// A scope whose rows do not match its seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnverifiedScope {
    pub scope: Scope,
    pub why: String,
    /// The rows that have changed since this process last verified the scope; empty if it never verified the scope.
    pub differing: Vec<RowName>,
}

impl fmt::Display for UnverifiedScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rows of scope `{}` failed verification: {}", self.scope, self.why)?;
        if !self.differing.is_empty() {
            let names: Vec<String> = self.differing.iter().map(ToString::to_string).collect();
            write!(f, "; these rows changed since this host last verified them: {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// A row of an authenticated table.
pub(crate) trait Authentic: FromRow + Send + 'static {
    const TABLE: Table;
    const SPEC: Spec;

    /// Returns the scope of the row. The seal of this scope counts the row if the row's table is counted.
    fn scope(&self) -> Scope;

    /// Returns the values of the columns that the MAC covers, followed by the values of the optional columns, each in the
    /// order of [`Spec`].
    fn covered(&self) -> Vec<Arg<'_>>;
}

/// Implements [`FromRow`] and [`Authentic`] for a struct whose fields have the names of the columns. `select` is the
/// name of a macro to define, which makes a statement that selects all these columns and the MAC.
///
/// `covered` lists the columns that the MAC covers, whose number and order every stored MAC depends on. `optional` lists
/// covered columns that were added later; new columns go there, at the end. `others` lists the remaining fields, and
/// `unread` the columns without a field. `spec` overrides values of [`Spec::COUNTED`].
macro_rules! authentic {
    (
        $row:ident in $table:ident($name:literal), select: $select:ident, scope: $scope:expr,
        covered: [$($covered:ident),+ $(,)?], $(optional: [$($optional:ident),+ $(,)?],)?
        others: [$($other:ident),* $(,)?]
        $(, unread: [$($unread:ident),+])? $(, spec: { $($field:ident: $value:expr),+ $(,)? })? $(,)?
    ) => {
        $crate::db::from_row!($row { $($covered,)+ $($($optional,)+)? $($other),* });

        impl $crate::rows::Authentic for $row {
            const TABLE: $crate::rows::Table = $crate::rows::Table::$table;
            const SPEC: $crate::rows::Spec = $crate::rows::Spec {
                name: $name,
                covered: &[$((stringify!($covered), $crate::rows::kind_of(|row: &$row| &row.$covered))),+],
                optional: &[$($((stringify!($optional), $crate::rows::kind_of(|row: &$row| &row.$optional))),+)?],
                left_out: &[$(stringify!($other),)* $($(stringify!($unread)),+)?],
                $($($field: $value,)+)?
                ..$crate::rows::Spec::COUNTED
            };

            fn scope(&self) -> $crate::rows::Scope {
                let scope: fn(&$row) -> $crate::rows::Scope = $scope;
                scope(self)
            }

            fn covered(&self) -> Vec<$crate::db::Arg<'_>> {
                $crate::db::values![$(&self.$covered,)+ $($(&self.$optional,)+)?]
            }
        }

        macro_rules! $select {
            ($rest:expr) => {
                // Column names are quoted, because `limit` is a keyword.
                concat!(
                    "select ", $("\"", stringify!($covered), "\", ",)+ $($("\"", stringify!($optional), "\", ",)+)?
                    $("\"", stringify!($other), "\", ",)* $($("\"", stringify!($unread), "\", ",)+)?
                    "mac from ", $name, " ", $rest
                )
            };
        }
    };
}
pub(crate) use authentic;

/// The row keys, and the state of the scopes that this process has observed.
pub(crate) struct Rows {
    /// The newest key, which authenticates all written rows.
    key: Arc<dyn SealsRows>,
    /// The previous key. Rows and seals under this key are also valid until the rotation ends.
    older: Option<Arc<dyn SealsRows>>,
    is_older_retired: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    scopes: HashMap<Scope, KnownScope>,
    /// The rows that were rejected because their MAC is missing or wrong, or because they cannot be decoded.
    refused: BTreeSet<RowName>,
}

/// The addends of the rows of a scope, by row.
pub(crate) type Addends = imbl::HashMap<RowName, [u8; 32]>;

/// The state of a scope that this process has observed.
#[derive(Default)]
struct KnownScope {
    /// The highest generation that this process has observed.
    generation: i64,
    is_unverified: bool,
    /// The generation at which the scope was last verified, and the addends of its rows at that time.
    verified: Option<(i64, Addends)>,
}

/// The stored MAC of a row, and the row's addend to the sum of its scope.
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

    /// Returns the previous key during a rotation.
    fn older(&self) -> Option<&dyn SealsRows> {
        self.older.as_deref().filter(|_| !self.is_older_retired.load(Ordering::Acquire))
    }

    fn keys(&self) -> impl Iterator<Item = &dyn SealsRows> {
        std::iter::once(self.key.as_ref()).chain(self.older())
    }

    /// Computes the MAC and the addend of a row to be written.
    pub(crate) fn macs(&self, table: Table, values: &[Arg<'_>]) -> Result<Macs, StoreError> {
        Ok(self.macs_of(&encoding::of_values(table, values)?))
    }

    fn macs_of(&self, bytes: &[u8]) -> Macs {
        Macs::of(self.key.as_ref(), bytes)
    }

    /// Checks the MAC of a row from the database. Returns its addend, or `None` if the MAC is missing or wrong.
    pub(crate) fn verify(&self, table: Table, row: &Row) -> Option<[u8; 32]> {
        let stored: Vec<u8> = row.get("mac").ok()?;
        let version = u32::from_be_bytes(*stored.first_chunk()?);
        let key = self.keys().find(|key| key.version() == version)?;
        let macs = Macs::of(key, &encoding::of_row(table, row).ok()?);
        is_equal(&stored, &macs.mac).then_some(macs.addend)
    }

    fn unseal(&self, seal: &SealRow) -> Option<Vec<u8>> {
        self.keys().find_map(|key| key.unseal(&seal.sealed, &seal.scope, seal.generation))
    }

    /// Decodes a row if its MAC is valid. Otherwise, or if a column cannot be decoded, records the row as rejected
    /// and returns `None`. A row that another program wrote must not prevent reading the other rows.
    pub(crate) fn authentic<T: Authentic>(&self, row: &Row) -> Option<T> {
        let read = self.verify(T::TABLE, row).and_then(|_| T::from_row(row).ok());
        if read.is_none() {
            self.known.lock().refused.insert(name_of(T::TABLE, row));
        }
        read
    }

    /// Returns the highest generation of each scope that this process has seen. Call this before a transaction
    /// begins. The transaction must then read at least these generations.
    fn seen_generations(&self) -> HashMap<Scope, i64> {
        self.known.lock().scopes.iter().map(|(scope, known)| (*scope, known.generation)).collect()
    }

    /// Records the generation of a committed change.
    fn record_generation(&self, scope: Scope, generation: i64) {
        let mut known = self.known.lock();
        let known = known.scopes.entry(scope).or_default();
        known.generation = known.generation.max(generation);
    }

    fn open_seal(&self, scope: Scope, seal: &SealRow, seen: i64) -> Result<Total, String> {
        let generation = seal.generation;
        if generation < seen {
            return Err(format!("its seal has generation {generation}, but this host has seen generation {seen}"));
        }
        let opened = self.unseal(seal).filter(|_| seal.scope == scope.to_string());
        opened.and_then(|bytes| Total::from_bytes(&bytes)).ok_or_else(|| "its seal cannot be decrypted".to_owned())
    }

    fn seal(&self, scope: Scope, generation: i64, total: Total) -> Result<String, StoreError> {
        self.key.seal(&total.to_bytes(), &scope.to_string(), generation).map_err(StoreError::Seal)
    }
}

/// A row of the table `policy_seals`.
#[derive(Clone, Debug)]
pub(crate) struct SealRow {
    scope: String,
    generation: i64,
    sealed: String,
}

from_row! { SealRow { scope, generation, sealed } }

impl SealRow {
    /// Returns the seals in a query result. Skips rows that cannot be decoded, such as a row with a blob instead of
    /// text.
    fn all(rows: &[Row]) -> Vec<SealRow> {
        rows.iter().filter_map(|row| SealRow::from_row(row).ok()).collect()
    }
}

/// Compares two byte strings. The time depends only on their lengths.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn name_of(table: Table, row: &Row) -> RowName {
    let part = |column: &&'static str| row.get(column).unwrap_or_else(|_| "?".to_owned());
    let parts: Vec<String> = table.spec().key.iter().map(part).collect();
    RowName { table, key: parts.join("/") }
}

impl Store {
    /// Sets the key that authenticates rows. Until a key is set, authenticated tables can be neither read nor written.
    #[must_use]
    pub fn with_row_key(self, key: Arc<dyn SealsRows>) -> Store {
        self.with_row_keys(key, None)
    }

    /// Sets the keys during a rotation. Rows are valid under both keys, and are written under the newer key.
    #[must_use]
    pub fn with_row_keys(self, key: Arc<dyn SealsRows>, older: Option<Arc<dyn SealsRows>>) -> Store {
        Store { rows: Some(Arc::new(Rows::new(key, older))), ..self }
    }

    pub(crate) fn rows(&self) -> Result<&Arc<Rows>, StoreError> {
        self.rows.as_ref().ok_or(StoreError::NoRowKey)
    }

    /// Returns the sum of the generations of all scopes. Forged seals and seals of deleted workspaces are skipped.
    /// The sum grows with each change of an authenticated row and never decreases, because the generation of a
    /// deleted workspace is added to the generation of the instance.
    pub async fn sealed_generations(&self) -> Result<i64, StoreError> {
        let rows = self.rows()?;
        let mut session = self.db.read_consistently().await?;
        let seals = SealRow::all(&session.fetch(change::SEALS, args![]).await?);
        let workspaces = session.fetch(&Table::Workspaces.statements().all, args![]).await?;
        session.commit().await?;
        let valid = workspaces.iter().filter(|row| rows.verify(Table::Workspaces, row).is_some());
        let mut scopes: BTreeSet<String> = valid.filter_map(|row| row.get("id").ok()).collect();
        scopes.insert(Scope::Instance.to_string());
        let counts = |seal: &&SealRow| scopes.contains(&seal.scope) && rows.unseal(seal).is_some();
        Ok(seals.iter().filter(counts).fold(0, |sum, seal| sum.saturating_add(seal.generation)))
    }

    /// Returns the stored scope and generation of each seal. Does not verify the seals.
    pub async fn seal_generations(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let seals = SealRow::all(&self.db.read().await?.fetch(change::SEALS, args![]).await?);
        Ok(seals.into_iter().map(|seal| (seal.scope, seal.generation)).collect())
    }

    /// Records that a row was rejected because its content does not match its digests.
    pub(crate) fn refuse(&self, table: Table, key: String) -> Result<(), StoreError> {
        self.rows()?.known.lock().refused.insert(RowName { table, key });
        Ok(())
    }

    /// Returns the rows that were rejected since the store was opened.
    pub fn refused_rows(&self) -> Vec<RowName> {
        self.rows.as_ref().map(|rows| rows.known.lock().refused.iter().cloned().collect()).unwrap_or_default()
    }
}
