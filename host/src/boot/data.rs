//! The data folder with its lock, its keys and its database. `serve` and the offline commands open the folder the same
//! way.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monstrum_store::{InstanceKeyRow, KeyKind, SealedColumn, Store, StoreError, StoreOptions};
use monstrum_types::{Clock, Secret};
use monstrum_vault::{AuditKeys, MasterKeys, Vault, VaultError};
use rustix::fs::FlockOperation;

use crate::config::{DatabaseUrl, MASTER_KEY_VARIABLE, MasterKeyPlace, Settings};
use monstrum_core::audit::{
    HeadsError, KeyRing, Rollback, RollbackError, RollbackList, find_rollback, signed_row_key_version,
};
use monstrum_core::policy::api_key;
use monstrum_core::policy::row_seals::{self, RowKeyError};

/// The name of the file that contains the first root key.
pub const ADMIN_KEY_FILE: &str = "admin.key";
const DATABASE_FILE: &str = "monstrum.db";
const LOCK_FILE: &str = "monstrum.lock";
/// The name of the file that contains the name of this host's audit chain.
pub const NODE_FILE: &str = "node.id";
/// The name under which the table of instance keys contains the audit keys.
pub const AUDIT_KEYS: &str = "audit";

/// An error while opening a data folder.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot use the data folder {}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("another monstrum process uses the data folder {}", path.display())]
    InUse { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the master key cannot be used")]
    Vault(#[from] VaultError),
    #[error(
        "{} is missing, but the database contains records encrypted with this key; restore the file from a backup",
        path.display()
    )]
    MasterKeyMissing { path: PathBuf },
    #[error("{place}: master key version {version} is not the key that encrypted the secrets of this database")]
    WrongMasterKey { place: String, version: u32 },
    #[error("{place}: master key version {version}, which encrypted the secrets of this database, is missing")]
    NoMasterKey { place: String, version: u32 },
    #[error("{} does not contain valid master keys", MASTER_KEY_VARIABLE)]
    MasterKeyText(#[source] VaultError),
    #[error(transparent)]
    Rows(RowKeyError),
    #[error("the database is older than the signed heads of its audit: {0}")]
    OlderDatabase(RollbackList),
    #[error("the signed heads of the audit cannot be compared with the database")]
    Rollback(#[from] RollbackError),
    #[error("the signed heads of the audit cannot be used")]
    Heads(#[from] HeadsError),
    #[error("the operating system did not provide random numbers")]
    Random(#[source] getrandom::Error),
    #[error("{}: expected a UUID; delete the file to start a new audit chain", path.display())]
    Node { path: PathBuf },
}

/// The lock of a data folder in use. If the process is killed, the operating system releases the lock.
pub struct Lock {
    _file: File,
}

/// An open data folder.
pub struct Data {
    pub path: PathBuf,
    pub store: Store,
    pub vault: Arc<Vault>,
    pub audit_keys: KeyRing,
    /// The name of this host's chain in the audit.
    pub node: String,
    /// The root key, if it was created when the folder was opened.
    pub admin_key: Option<Secret>,
    pub lock: Lock,
}

impl Data {
    /// Opens the data folder, creates missing files, and acquires the lock of the folder. Fails while a rotation of the
    /// row key is unfinished.
    pub async fn open(settings: &Settings, clock: &dyn Clock) -> Result<Data, DataError> {
        let path = &settings.data_dir;
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|source| DataError::Folder { path: path.to_owned(), source })?;
        let data = Data::open_existing(settings, clock).await?;
        // While the row key is being rotated, a server would write rows under the newer key into scopes that are still
        // sealed under the older key.
        if data.store.is_rotating_row_key() {
            return Err(DataError::Rows(RowKeyError::Interrupted));
        }
        Ok(data)
    }

    /// Opens an existing folder.
    pub async fn open_existing(settings: &Settings, clock: &dyn Clock) -> Result<Data, DataError> {
        Data::open_unsealed(settings).await?.with_rows(settings, clock).await
    }

    /// Opens an existing folder without reading the rows of the database, because these rows may not be authentic.
    /// Creates the master key if the database contains no sealed records.
    pub async fn open_unsealed(settings: &Settings) -> Result<Unsealed, DataError> {
        let path = canonical(&settings.data_dir)?;
        let lock = take_lock(&path)?;
        let store = Store::open(place(&path, settings.database_url.as_ref())?).await?;
        let keys = match master_keys(&settings.master_key)? {
            Some(keys) => keys,
            None => make_master_key(&settings.master_key, &store).await?,
        };
        Ok(Unsealed { path, store, vault: Arc::new(Vault::new(keys)), lock })
    }

    async fn of(unsealed: Unsealed, settings: &Settings, clock: &dyn Clock) -> Result<Data, DataError> {
        let Unsealed { path, store, vault, lock } = unsealed;
        let sealed = store.instance_keys(AUDIT_KEYS).await?;
        let held = unseal(&vault, sealed.clone()).map_err(|error| error.of_keys_in(&settings.master_key))?;
        let signed = signed_row_key_version(&path, &held)?;
        // The rows are opened before the audit keys are created, because a database with audit keys does not count as
        // empty.
        let store = row_seals::open(store, &vault, signed, clock).await;
        let store = store.map_err(|error| DataError::from(error).of_keys_in(&settings.master_key))?;
        let audit_keys = open_audit_keys(&store, &vault, sealed, clock).await;
        let audit_keys = audit_keys.map_err(|error| error.of_keys_in(&settings.master_key))?;
        warn_of_lost_keys(&store, &vault, &settings.master_key).await?;
        let node = node_id(&path.join(NODE_FILE))?;
        let admin_key = first_root_key(&store, &path.join(ADMIN_KEY_FILE), clock).await?;
        Ok(Data { path: path.clone(), store, vault, audit_keys, node, admin_key, lock })
    }

    /// Opens an existing folder for reading, even while a server uses the folder. Creates and writes nothing.
    pub async fn inspect(settings: &Settings) -> Result<Inspected, DataError> {
        let path = canonical(&settings.data_dir)?;
        let store = Store::inspect(place(&path, settings.database_url.as_ref())?).await?;
        let keys = master_keys(&settings.master_key)?.ok_or_else(|| missing(&settings.master_key))?;
        let inspected = Inspected::of(path, store, Arc::new(Vault::new(keys))).await;
        inspected.map_err(|error| error.of_keys_in(&settings.master_key))
    }

    /// Returns the newest audit keys, with which new rows are chained.
    pub fn newest_audit_keys(&self) -> Arc<AuditKeys> {
        let (_, keys) = self.audit_keys.last_key_value().expect("a data folder that is open has audit keys");
        Arc::clone(keys)
    }
}

/// A data folder that is open for reading.
pub struct Inspected {
    pub path: PathBuf,
    pub store: Store,
    pub vault: Arc<Vault>,
    pub audit_keys: KeyRing,
}

impl Inspected {
    async fn of(path: PathBuf, store: Store, vault: Arc<Vault>) -> Result<Inspected, DataError> {
        // Decrypting the audit keys fails if the master key does not belong to this database.
        let audit_keys = unseal(&vault, store.instance_keys(AUDIT_KEYS).await?)?;
        let store = row_seals::inspect(store, &vault, signed_row_key_version(&path, &audit_keys)?).await?;
        Ok(Inspected { path, store, vault, audit_keys })
    }
}

/// An open data folder, before any row of its database has been read.
pub struct Unsealed {
    pub path: PathBuf,
    pub store: Store,
    pub vault: Arc<Vault>,
    pub lock: Lock,
}

impl Unsealed {
    /// Reads and decrypts the audit keys.
    pub async fn audit_keys(&self) -> Result<KeyRing, DataError> {
        unseal(&self.vault, self.store.instance_keys(AUDIT_KEYS).await?)
    }

    /// Opens the database for reading. Creates nothing.
    pub async fn inspected(self, settings: &Settings) -> Result<(Inspected, Lock), DataError> {
        let Unsealed { path, store, vault, lock } = self;
        let inspected = Inspected::of(path, store, vault).await;
        Ok((inspected.map_err(|error| error.of_keys_in(&settings.master_key))?, lock))
    }

    /// Opens the database with its row key, and creates missing keys. A database that is older than its signed heads is
    /// rejected before any row is written, but after its schema has been migrated.
    pub async fn with_rows(self, settings: &Settings, clock: &dyn Clock) -> Result<Data, DataError> {
        let older = self.find_rollback().await.map_err(|error| error.of_keys_in(&settings.master_key))?;
        if !older.is_empty() {
            return Err(DataError::OlderDatabase(RollbackList(older)));
        }
        Data::of(self, settings, clock).await
    }

    /// Like [`Unsealed::with_rows`], but accepts a database that is older than its signed heads. Call this function
    /// only at the explicit request of the operator.
    pub async fn with_rows_of_any_age(self, settings: &Settings, clock: &dyn Clock) -> Result<Data, DataError> {
        Data::of(self, settings, clock).await
    }

    async fn find_rollback(&self) -> Result<Vec<Rollback>, DataError> {
        let keys = self.audit_keys().await?;
        let signed = signed_row_key_version(&self.path, &keys)?;
        match row_seals::inspect(self.store.clone(), &self.vault, signed).await {
            Ok(store) => Ok(find_rollback(&store, &keys, &self.path).await?),
            // Without a row key, the database is empty or comes from a release without authenticated rows. An empty
            // database has no audit keys, so heads in the folder belong to a newer state of the database.
            Err(RowKeyError::Unsealed) if keys.is_empty() => Ok(find_rollback(&self.store, &keys, &self.path).await?),
            Err(RowKeyError::Unsealed) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<RowKeyError> for DataError {
    fn from(error: RowKeyError) -> Self {
        match error {
            RowKeyError::Store(error) => DataError::Store(error),
            RowKeyError::Vault(error) => DataError::Vault(error),
            other => DataError::Rows(other),
        }
    }
}

impl DataError {
    /// Adds the location of the master keys to an error about master keys that do not belong to the database.
    fn of_keys_in(self, place: &MasterKeyPlace) -> DataError {
        let place = place.to_string();
        match self {
            DataError::Vault(VaultError::Refused { version }) => DataError::WrongMasterKey { place, version },
            DataError::Vault(VaultError::UnknownKey { version }) => DataError::NoMasterKey { place, version },
            other => other,
        }
    }
}

fn canonical(path: &Path) -> Result<PathBuf, DataError> {
    path.canonicalize().map_err(|source| DataError::Folder { path: path.to_owned(), source })
}

/// Reads the existing master keys; returns `None` if their file does not exist.
fn master_keys(place: &MasterKeyPlace) -> Result<Option<MasterKeys>, DataError> {
    match place {
        MasterKeyPlace::File(path) => Ok(MasterKeys::open(path)?),
        MasterKeyPlace::Variable(text) => {
            MasterKeys::from_text(text.expose()).map(Some).map_err(DataError::MasterKeyText)
        }
    }
}

/// Creates the first master key. Fails if the database has sealed records, because these records need the missing key.
async fn make_master_key(place: &MasterKeyPlace, store: &Store) -> Result<MasterKeys, DataError> {
    let MasterKeyPlace::File(path) = place else { return Err(missing(place)) };
    for column in SealedColumn::ALL {
        if store.count_sealed(column).await? > 0 {
            return Err(missing(place));
        }
    }
    Ok(MasterKeys::create(path)?)
}

fn missing(place: &MasterKeyPlace) -> DataError {
    DataError::MasterKeyMissing { path: PathBuf::from(place.to_string()) }
}

/// Returns the number of connections to this database from servers with any data folder. Call this function before
/// opening the database, because the connections of this process count too.
pub async fn connections_of_servers(settings: &Settings) -> Result<u64, DataError> {
    let options = place(&canonical(&settings.data_dir)?, settings.database_url.as_ref())?;
    Ok(Store::connections_of_servers(&options).await?)
}

/// Returns the versions of master keys that encrypt stored credentials and are missing from `vault`.
pub async fn lost_key_versions(store: &Store, vault: &Vault) -> Result<Vec<i64>, StoreError> {
    let held: Vec<i64> = vault.keys().versions().map(i64::from).collect();
    let mut versions = store.credential_key_versions().await?;
    versions.retain(|version| !held.contains(version));
    Ok(versions)
}

/// Logs an error for each missing master key that encrypts credentials. The server starts, but cannot use these
/// credentials.
async fn warn_of_lost_keys(store: &Store, vault: &Vault, place: &MasterKeyPlace) -> Result<(), StoreError> {
    for version in lost_key_versions(store, vault).await? {
        tracing::error!(
            "{place}: master key version {version}, which encrypts credentials of this database, is missing; \
             these credentials cannot be used until the key is restored"
        );
    }
    Ok(())
}

/// Returns the options for the database at `database_url` or, without a URL, for the SQLite database in the data
/// folder.
fn place(folder: &Path, database_url: Option<&DatabaseUrl>) -> Result<StoreOptions, StoreError> {
    match database_url {
        Some(url) => StoreOptions::from_url(url.expose()),
        None => Ok(StoreOptions::sqlite(folder.join(DATABASE_FILE))),
    }
}

fn take_lock(folder: &Path) -> Result<Lock, DataError> {
    let path = folder.join(LOCK_FILE);
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(|source| DataError::Write { path: path.clone(), source })?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { _file: file }),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(DataError::InUse { path: folder.to_owned() }),
        Err(error) => Err(DataError::Write { path, source: error.into() }),
    }
}

async fn open_audit_keys(
    store: &Store,
    vault: &Vault,
    sealed: Vec<InstanceKeyRow>,
    clock: &dyn Clock,
) -> Result<KeyRing, DataError> {
    if !sealed.is_empty() {
        return unseal(vault, sealed);
    }
    let keys = AuditKeys::generate(1)?;
    let row = InstanceKeyRow {
        name: AUDIT_KEYS.to_owned(),
        version: 1,
        sealed: keys.to_sealed(vault)?.to_string(),
        created_at: clock.now(),
    };
    if store.insert_instance_key(&row).await? {
        return Ok(KeyRing::from([(1, Arc::new(keys))]));
    }
    // Another host has inserted its audit keys into this database first. Those keys are in force.
    unseal(vault, store.instance_keys(AUDIT_KEYS).await?)
}

fn unseal(vault: &Vault, sealed: Vec<InstanceKeyRow>) -> Result<KeyRing, DataError> {
    let mut ring = KeyRing::new();
    for row in sealed {
        let version = u32::try_from(row.version).unwrap_or(u32::MAX);
        let opened = row.sealed.parse().and_then(|sealed| AuditKeys::from_sealed(vault, &sealed, version));
        ring.insert(version, Arc::new(opened?));
    }
    Ok(ring)
}

/// Reads or creates the name of this data folder's audit chain. A chain has one writer, so the name must be unique to
/// the folder.
fn node_id(path: &Path) -> Result<String, DataError> {
    match std::fs::read_to_string(path) {
        Ok(text) => match uuid::Uuid::try_parse(text.trim()) {
            Ok(node) => Ok(node.to_string()),
            Err(_) => Err(DataError::Node { path: path.to_owned() }),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let node = uuid::Uuid::now_v7().to_string();
            write_private(path, &node)?;
            Ok(node)
        }
        Err(source) => Err(DataError::Folder { path: path.to_owned(), source }),
    }
}

/// Creates the first root key. The key is written to its file before its row is inserted. After a crash in between, the
/// next start replaces the file, so the database never contains a root key whose text is lost.
async fn first_root_key(store: &Store, path: &Path, clock: &dyn Clock) -> Result<Option<Secret>, DataError> {
    match store.has_root_key().await {
        Ok(false) => {}
        // An unverified instance gets no new key, because another program may have removed its root keys.
        Ok(true) | Err(StoreError::Unverified { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let key = api_key::generate().map_err(DataError::Random)?;
    write_private(path, key.text.expose())?;
    let row = key.row("admin".to_owned(), KeyKind::Root, None, (None, None), clock.now());
    match store.insert_key(&row).await {
        Ok(()) => Ok(Some(key.text)),
        // Another host has created the root key of this database first, so the key in this host's file is invalid.
        Err(StoreError::Conflict { .. }) => {
            std::fs::remove_file(path).map_err(|source| DataError::Write { path: path.to_owned(), source })?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes a file atomically, readable by its owner only.
fn write_private(path: &Path, text: &str) -> Result<(), DataError> {
    let fail = |source| DataError::Write { path: path.to_owned(), source };
    let beside = path.with_extension("new");
    if let Err(error) = std::fs::remove_file(&beside)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(fail(error));
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&beside).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(fail)?;
    file.sync_all().map_err(fail)?;
    std::fs::rename(&beside, path).map_err(fail)
}
