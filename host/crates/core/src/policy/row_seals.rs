//! The row key of this instance, with which the store authenticates every row that grants permissions. The key is
//! random and is created together with the database. It is stored sealed among the keys of the instance.

use std::sync::Arc;

use monstrum_store::{InstanceKeyRow, SealsRows, Store, StoreError};
use monstrum_types::Clock;
use monstrum_vault::{RowKey, Vault, VaultError};

/// The name of the row key among the keys of the instance.
pub const ROW_KEY: &str = "rows";

/// A row key in the form that the store uses.
pub struct RowSeals(RowKey);

impl RowSeals {
    /// Wraps a row key.
    pub fn new(key: RowKey) -> Self {
        RowSeals(key)
    }

    /// Decrypts the row key of a record.
    pub fn of(row: &InstanceKeyRow, vault: &Vault) -> Result<Self, VaultError> {
        let version = u32::try_from(row.version).unwrap_or(u32::MAX);
        row.sealed.parse().and_then(|sealed| RowKey::from_sealed(vault, &sealed, version)).map(RowSeals)
    }

    /// Generates a row key and its record.
    pub fn generate(version: u32, vault: &Vault, clock: &dyn Clock) -> Result<(Self, InstanceKeyRow), VaultError> {
        let key = RowKey::generate(version)?;
        let sealed = key.to_sealed(vault)?.to_string();
        let name = ROW_KEY.to_owned();
        let row = InstanceKeyRow { name, version: i64::from(version), sealed, created_at: clock.now() };
        Ok((RowSeals(key), row))
    }
}

impl SealsRows for RowSeals {
    fn version(&self) -> u32 {
        self.0.version()
    }

    fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32] {
        self.0.mac(label, bytes)
    }

    fn seal(
        &self,
        plaintext: &[u8],
        scope: &str,
        generation: i64,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.seal(plaintext, scope, generation)?.to_string())
    }

    fn unseal(&self, sealed: &str, scope: &str, generation: i64) -> Option<Vec<u8>> {
        let opened = self.0.unseal(&sealed.parse().ok()?, scope, generation).ok()?;
        Some(opened.to_vec())
    }
}

/// The reason why the rows of a database cannot be authenticated.
#[derive(Debug, thiserror::Error)]
pub enum RowKeyError {
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the row key cannot be decrypted; check the master key")]
    Vault(#[from] VaultError),
    #[error(
        "a release without authenticated rows created this database, so the server cannot verify which keys, trusted \
         keys and plugins are yours; run `monstrum vault seal` to review and seal the rows"
    )]
    Unsealed,
    #[error("a rotation of the row key was interrupted; run `monstrum vault rotate --row-key` again to finish it")]
    Interrupted,
}

/// Adds the row keys to the store. Creates a key for an empty database and seals the database with it. Rejects a
/// database that contains rows but no key, because an attacker could have removed the key. `signed` is the version in
/// the newest head of the audit. Older keys are retired, and no row is valid under a retired key. Authenticates rows that an
/// earlier release has not authenticated, once.
pub async fn open(store: Store, vault: &Vault, signed: Option<u32>, clock: &dyn Clock) -> Result<Store, RowKeyError> {
    let store = with_keys(store, vault, signed, clock).await?;
    let taken = store.take_over_rows().await?;
    if taken > 0 {
        tracing::info!(rows = taken, "authenticated the schedules of an earlier release");
    }
    Ok(store)
}

async fn with_keys(store: Store, vault: &Vault, signed: Option<u32>, clock: &dyn Clock) -> Result<Store, RowKeyError> {
    if let Some(keys) = held(&store, vault, signed).await? {
        return Ok(keys.given_to(store));
    }
    let (key, row) = RowSeals::generate(1, vault, clock)?;
    let founded = store.with_row_key(Arc::new(key));
    if founded.initialize(&row, clock.now()).await? {
        return Ok(founded);
    }
    // Another host may have initialized the database at the same time. The key of that host is then in force.
    match held(&founded, vault, signed).await? {
        Some(keys) => Ok(keys.given_to(founded)),
        None => Err(RowKeyError::Unsealed),
    }
}

/// Adds the row keys to the store for reading. Does not create a key.
pub async fn inspect(store: Store, vault: &Vault, signed: Option<u32>) -> Result<Store, RowKeyError> {
    let keys = held(&store, vault, signed).await?.ok_or(RowKeyError::Unsealed)?;
    Ok(keys.given_to(store))
}

/// The row keys in force.
struct Held {
    newest: Arc<RowSeals>,
    /// The previous key, until a rotation is complete.
    older: Option<Arc<RowSeals>>,
}

impl Held {
    fn given_to(self, store: Store) -> Store {
        store.with_row_keys(self.newest, self.older.map(|older| older as Arc<dyn SealsRows>))
    }
}

/// Reads the row keys from the database. Returns `None` if the database has no row key.
async fn held(store: &Store, vault: &Vault, signed: Option<u32>) -> Result<Option<Held>, RowKeyError> {
    let mut rows = store.instance_keys(ROW_KEY).await?;
    let Some(newest) = rows.pop() else { return Ok(None) };
    // A rotation deletes old records. Therefore a record that is older than `signed` was restored by another program.
    let is_in_force = |row: &InstanceKeyRow| signed.is_none_or(|signed| row.version >= i64::from(signed));
    let older = rows.pop().filter(is_in_force);
    let older = older.map(|row| RowSeals::of(&row, vault).map(Arc::new)).transpose()?;
    Ok(Some(Held { newest: Arc::new(RowSeals::of(&newest, vault)?), older }))
}

/// Returns the store with a new row key in addition to the current key, and the record of the new key. The caller must
/// store the record.
pub async fn with_fresh_key(
    store: &Store,
    vault: &Vault,
    clock: &dyn Clock,
) -> Result<(Store, InstanceKeyRow), RowKeyError> {
    let row = store.instance_keys(ROW_KEY).await?.pop().ok_or(RowKeyError::Unsealed)?;
    let older = RowSeals::of(&row, vault)?;
    let (newest, record) = RowSeals::generate(older.version().saturating_add(1), vault, clock)?;
    Ok((store.clone().with_row_keys(Arc::new(newest), Some(Arc::new(older))), record))
}

/// Returns the store with its newest row key only, so that no row is valid under an older key.
pub async fn with_newest_key(store: &Store, vault: &Vault) -> Result<Store, RowKeyError> {
    let row = store.instance_keys(ROW_KEY).await?.pop().ok_or(RowKeyError::Unsealed)?;
    Ok(store.clone().with_row_key(Arc::new(RowSeals::of(&row, vault)?)))
}

/// Opens the database of a server for tests that write rows.
#[doc(hidden)]
pub async fn open_with_key_file(
    options: monstrum_store::StoreOptions,
    key_file: &std::path::Path,
) -> Result<Store, RowKeyError> {
    let keys = monstrum_vault::MasterKeys::open_or_create(key_file)?;
    inspect(Store::open(options).await?, &Vault::new(keys), None).await
}

/// Opens a database for tests, with a row key that a fixed master key seals.
#[doc(hidden)]
pub async fn open_for_tests(options: monstrum_store::StoreOptions) -> Result<Store, RowKeyError> {
    let vault = Vault::new(monstrum_vault::MasterKeys::from_text(&format!("1 {}", "5e".repeat(32)))?);
    open(Store::open(options).await?, &vault, None, &monstrum_types::SystemClock).await
}
