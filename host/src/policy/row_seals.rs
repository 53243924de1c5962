//! The row key of this instance: with it the store authenticates the rows that permit something. It is random, stands
//! sealed among the keys of the instance, and is made together with the database.

use std::sync::Arc;

use monstrum_store::{InstanceKeyRow, SealsRows, Store, StoreError};
use monstrum_types::Clock;
use monstrum_vault::{RowKey, Vault, VaultError};

/// The name of the row key among the keys of the instance.
pub const ROW_KEY: &str = "rows";

/// A row key as the store uses it.
pub struct RowSeals(RowKey);

impl RowSeals {
    /// With this key.
    pub fn new(key: RowKey) -> Self {
        RowSeals(key)
    }

    /// The row key that a record holds.
    pub fn of(row: &InstanceKeyRow, vault: &Vault) -> Result<Self, VaultError> {
        let version = u32::try_from(row.version).unwrap_or(u32::MAX);
        row.sealed.parse().and_then(|sealed| RowKey::from_sealed(vault, &sealed, version)).map(RowSeals)
    }

    /// A fresh row key with its record.
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

/// Why the rows of a database cannot be authenticated.
#[derive(Debug, thiserror::Error)]
pub enum RowKeyError {
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the row key cannot be opened")]
    Vault(#[from] VaultError),
    #[error(
        "this database is from before authenticated rows: no row in it is sealed, so a server cannot tell which keys, trusted \
         keys and plugins are yours; look at them with `monstrum vault seal`, which seals what is there"
    )]
    Unsealed,
    #[error(
        "a rotation of the row key was interrupted: run `monstrum vault rotate --row-key` again, which finishes it"
    )]
    Interrupted,
}

/// Gives the store its row key. An empty database gets one, and is sealed by it; any other database without one is refused,
/// since an attacker could have removed it.
pub async fn open(store: Store, vault: &Vault, clock: &dyn Clock) -> Result<Store, RowKeyError> {
    if let Some(key) = held(&store, vault).await? {
        return Ok(store.with_row_key(key));
    }
    let (key, row) = RowSeals::generate(1, vault, clock)?;
    let founded = store.with_row_key(Arc::new(key));
    if founded.found(&row, clock.now()).await? {
        return Ok(founded);
    }
    // Another host on the same database may have been faster, and its key counts.
    match held(&founded, vault).await? {
        Some(key) => Ok(founded.with_row_key(key)),
        None => Err(RowKeyError::Unsealed),
    }
}

/// The same for who only looks: nothing is made.
pub async fn inspect(store: Store, vault: &Vault) -> Result<Store, RowKeyError> {
    let key = held(&store, vault).await?.ok_or(RowKeyError::Unsealed)?;
    Ok(store.with_row_key(key))
}

/// The row key that the database holds; `None` where it holds none.
async fn held(store: &Store, vault: &Vault) -> Result<Option<Arc<RowSeals>>, RowKeyError> {
    let rows = store.instance_keys(ROW_KEY).await?;
    match rows.as_slice() {
        [] => Ok(None),
        [row] => Ok(Some(Arc::new(RowSeals::of(row, vault)?))),
        _ => Err(RowKeyError::Interrupted),
    }
}

/// The database of a server, for tests that write rows into it.
#[doc(hidden)]
pub async fn open_with_key_file(
    options: monstrum_store::StoreOptions,
    key_file: &std::path::Path,
) -> Result<Store, RowKeyError> {
    let keys = monstrum_vault::MasterKeys::open_or_create(key_file)?;
    inspect(Store::open(options).await?, &Vault::new(keys)).await
}

/// A new database for tests, whose row key is sealed by a master key that everyone knows.
#[doc(hidden)]
pub async fn open_for_tests(options: monstrum_store::StoreOptions) -> Result<Store, RowKeyError> {
    let vault = Vault::new(monstrum_vault::MasterKeys::from_text(&format!("1 {}", "5e".repeat(32)))?);
    open(Store::open(options).await?, &vault, &monstrum_types::SystemClock).await
}
