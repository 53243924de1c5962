//! The data folder: its lock, its keys and its database. `serve` and the offline commands open it the same way.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monstrum_store::{InstanceKeyRow, KeyKind, KeyRow, Page, Store, StoreError, StoreOptions};
use monstrum_types::{Clock, KeyId, Secret};
use monstrum_vault::{AuditKeys, MasterKeys, Vault, VaultError};
use rustix::fs::FlockOperation;

use crate::api_key;
use crate::auditor::KeyRing;
use crate::config::DatabaseUrl;

/// The file of the first root key.
pub const ADMIN_KEY_FILE: &str = "admin.key";
/// The file of the master keys.
pub const MASTER_KEY_FILE: &str = "master.key";
const DATABASE_FILE: &str = "monstrum.db";
const LOCK_FILE: &str = "monstrum.lock";
const NODE_FILE: &str = "node.id";
const AUDIT_KEYS: &str = "audit";

/// Why the data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("cannot use the data folder {}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("another monstrum uses the data folder {}", path.display())]
    InUse { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    #[error("the master key cannot be used")]
    Vault(#[from] VaultError),
    #[error(
        "{} is missing, but the database holds what it has sealed; put the file back (from a backup) to go on",
        path.display()
    )]
    MasterKeyMissing { path: PathBuf },
    #[error("no random numbers from the operating system")]
    Random(#[source] getrandom::Error),
    #[error("{}: expected a UUID; remove the file to begin a new chain of the audit", path.display())]
    Node { path: PathBuf },
}

/// Held as long as the folder is used; the operating system gives it up with the process.
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
    /// The root key, if it was made just now.
    pub admin_key: Option<Secret>,
    pub lock: Lock,
}

impl Data {
    /// Opens the folder, making what is missing, and takes its lock.
    pub async fn open(path: &Path, database_url: Option<&DatabaseUrl>, clock: &dyn Clock) -> Result<Data, DataError> {
        let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        created.map_err(|source| DataError::Folder { path: path.to_owned(), source })?;
        Data::open_existing(path, database_url, clock).await
    }

    /// Opens a folder that must be there.
    pub async fn open_existing(
        path: &Path,
        database_url: Option<&DatabaseUrl>,
        clock: &dyn Clock,
    ) -> Result<Data, DataError> {
        let folder = |source| DataError::Folder { path: path.to_owned(), source };
        let path = path.canonicalize().map_err(folder)?;
        let lock = take_lock(&path)?;
        let store = Store::open(place(&path, database_url)?).await?;
        let sealed = store.instance_keys(AUDIT_KEYS).await?;

        let key_file = path.join(MASTER_KEY_FILE);
        let keys = match MasterKeys::open(&key_file)? {
            Some(keys) => keys,
            None if sealed.is_empty() => MasterKeys::create(&key_file)?,
            None => return Err(DataError::MasterKeyMissing { path: key_file }),
        };
        let vault = Arc::new(Vault::new(keys));
        let audit_keys = open_audit_keys(&store, &vault, sealed, clock).await?;
        let node = node_id(&path.join(NODE_FILE))?;
        let admin_key = first_root_key(&store, &path.join(ADMIN_KEY_FILE), clock).await?;
        Ok(Data { path: path.clone(), store, vault, audit_keys, node, admin_key, lock })
    }

    /// Looks at a folder that must be there, whether a server runs on it or not: nothing is made or written.
    pub async fn inspect(path: &Path, database_url: Option<&DatabaseUrl>) -> Result<Inspected, DataError> {
        let path = path.canonicalize().map_err(|source| DataError::Folder { path: path.to_owned(), source })?;
        let store = Store::inspect(place(&path, database_url)?).await?;
        let key_file = path.join(MASTER_KEY_FILE);
        let keys = MasterKeys::open(&key_file)?.ok_or(DataError::MasterKeyMissing { path: key_file })?;
        let vault = Arc::new(Vault::new(keys));
        // What the audit is chained with opens by the right master key only.
        unseal(&vault, store.instance_keys(AUDIT_KEYS).await?)?;
        Ok(Inspected { path, store, vault })
    }

    /// The keys with which new rows are chained.
    pub fn newest_audit_keys(&self) -> Arc<AuditKeys> {
        let (_, keys) = self.audit_keys.last_key_value().expect("a data folder that is open has audit keys");
        Arc::clone(keys)
    }
}

/// A data folder that is only looked at.
pub struct Inspected {
    pub path: PathBuf,
    pub store: Store,
    pub vault: Arc<Vault>,
}

/// Where the database is.
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
    // Another host on the same database was faster, and its keys count.
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

/// A chain of the audit has one writer, so every data folder has a name of its own.
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

/// Makes the first root key. The file is written before the row, so a crash in between leaves a file that the next
/// start replaces, and never a key that nobody knows.
async fn first_root_key(store: &Store, path: &Path, clock: &dyn Clock) -> Result<Option<Secret>, DataError> {
    if !store.keys(None, &Page::first(1)).await?.items.is_empty() {
        return Ok(None);
    }
    let key = api_key::generate().map_err(DataError::Random)?;
    write_private(path, key.text.expose())?;
    let row = KeyRow {
        id: KeyId::new(),
        workspace_id: None,
        name: "admin".to_owned(),
        kind: KeyKind::Root,
        bot_id: None,
        prefix: key.prefix,
        hash: hex::encode(key.hash),
        created_at: clock.now(),
        last_used_at: None,
    };
    match store.insert_key(&row).await {
        Ok(()) => Ok(Some(key.text)),
        // Another host on the same database was faster; the key in our file opens nothing.
        Err(StoreError::Conflict { .. }) => {
            std::fs::remove_file(path).map_err(|source| DataError::Write { path: path.to_owned(), source })?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes a file that only its owner can read, whole or not at all.
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
