//! Opens the data folder of a stopped server, for the commands that work on it.

use monstrum_types::SystemClock;
use monstrum_vault::VaultError;

use super::failure::Failure;
use crate::boot::{Data, DataError, Inspected, Lock, NODE_FILE, Unsealed};
use crate::config::{MASTER_KEY_FILE, Settings};

/// The hint for a database that is older than its signed heads.
pub(super) const OLDER_DATABASE_HINT: &str = "restore the database that belongs to this folder; \
     if an older database was restored on purpose, run: monstrum audit accept-loss --reason TEXT";

/// Opens the folder and acquires its lock, so that no server can use it. If a server holds the lock, the hint is
/// `running`.
pub(super) async fn open(settings: &Settings, running: &str) -> Result<Data, Failure> {
    check(settings)?;
    let opened = Data::open_existing(settings, &SystemClock).await;
    opened.map_err(|error| failure(settings, running, &error))
}

/// Like [`open`], but accepts a database that is older than its signed heads.
pub(super) async fn open_of_any_age(settings: &Settings, running: &str) -> Result<Data, Failure> {
    let data = open_unsealed(settings, running).await?;
    let opened = data.with_rows_of_any_age(settings, &SystemClock).await;
    opened.map_err(|error| failure(settings, running, &error))
}

/// Opens the folder for reading. Creates no keys or rows in the database. Accepts a database that is older than its
/// signed heads.
pub(super) async fn inspect_locked(settings: &Settings, running: &str) -> Result<(Inspected, Lock), Failure> {
    let data = open_unsealed(settings, running).await?;
    data.inspected(settings).await.map_err(|error| failure(settings, running, &error))
}

/// Opens the folder without reading the rows of its database, because they may not be authenticated yet.
pub(super) async fn open_unsealed(settings: &Settings, running: &str) -> Result<Unsealed, Failure> {
    check(settings)?;
    Data::open_unsealed(settings).await.map_err(|error| failure(settings, running, &error))
}

fn check(settings: &Settings) -> Result<(), Failure> {
    let data_dir = &settings.data_dir;
    // Opening a folder creates missing files. A folder that does not belong to a server must stay unchanged.
    if ![MASTER_KEY_FILE, NODE_FILE].iter().any(|name| data_dir.join(name).is_file()) {
        let message =
            format!("{} is not the data folder of a server: it contains no {MASTER_KEY_FILE}", data_dir.display());
        return Err(Failure::new(message, "set --data-dir to the same folder as for `monstrum serve`"));
    }
    Ok(())
}

fn failure(settings: &Settings, running: &str, error: &DataError) -> Failure {
    let hint = match error {
        DataError::InUse { .. } => running,
        DataError::Store(_) if settings.database_url.is_some() => super::DATABASE_HINT,
        _ => keys_hint(error).unwrap_or("run this command as the user who runs the server"),
    };
    Failure::from_error(error, hint)
}

/// Returns the hint for master keys that cannot be used, or that do not belong to this database.
pub(super) fn keys_hint(error: &DataError) -> Option<&'static str> {
    match error {
        DataError::Vault(VaultError::Permissions { .. }) => {
            Some("other users may have read the keys: if so, rotate the master key and replace all credentials")
        }
        DataError::Vault(_) | DataError::MasterKeyMissing { .. } => {
            Some("a server cannot read its secrets without its master key: restore the file from a backup")
        }
        DataError::WrongMasterKey { .. } => Some(
            "nothing was changed; use the master keys of this database, or the database that belongs to these keys",
        ),
        DataError::NoMasterKey { .. } => {
            Some("the keys are older than the database or incomplete: use the keys of its last rotation")
        }
        DataError::MasterKeyText(_) => {
            Some("expected the lines of a key file, separated by commas: each is a version, a space and 64 hex digits")
        }
        DataError::OlderDatabase(_) => Some(OLDER_DATABASE_HINT),
        DataError::Rows(_) => Some("stop every server that uses this database first"),
        _ => None,
    }
}
