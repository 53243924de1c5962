//! The record of the demo: which objects belong to it, in a file of the data folder. An object is removed with the demo
//! only if the record names it, so that an object of the same name that a person has made stays.
//!
//! The file has a MAC. Otherwise, a program that may write the file could choose the objects that a removal deletes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use monstrum_types::{BotId, Digest, ResourceId, WorkspaceId};
use monstrum_vault::FileKey;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::operations::OperationError;

/// The name of the file in the data folder.
const DEMO_FILE: &str = "demo.json";
/// The purpose of the MAC.
const PURPOSE: &str = "demo";
/// The maximum size of the file, which has less than 1 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The objects of the demo. An id is recorded before its object is created, so that no object is forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) workspace: WorkspaceId,
    /// The digest of the component, if the demo has installed the plugin.
    #[serde(default)]
    pub(super) plugin: Option<Digest>,
    #[serde(default)]
    pub(super) resource: Option<ResourceId>,
    #[serde(default)]
    pub(super) bot: Option<BotId>,
}

impl Record {
    pub(super) fn new(workspace: WorkspaceId) -> Record {
        Record { workspace, plugin: None, resource: None, bot: None }
    }

    /// Reads the record. Returns `None` if the demo is not installed.
    pub(super) async fn read(app: &App) -> Result<Option<Record>, OperationError> {
        let (path, key) = place(app);
        blocking(move || read(&path, &key)).await?
    }

    /// Writes the record, and waits until it is on disk.
    pub(super) async fn write(&self, app: &App) -> Result<(), OperationError> {
        let ((path, key), record) = (place(app), self.clone());
        blocking(move || write(&path, &key, &record)).await?.map_err(OperationError::internal)
    }

    /// Deletes the record.
    pub(super) async fn delete(app: &App) -> Result<(), OperationError> {
        let (path, _) = place(app);
        let deleted = blocking(move || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        });
        deleted.await?.map_err(OperationError::internal)
    }
}

fn place(app: &App) -> (PathBuf, FileKey) {
    (app.data_dir.join(DEMO_FILE), FileKey::derive(&app.vault, PURPOSE))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, OperationError> {
    tokio::task::spawn_blocking(work).await.map_err(OperationError::internal)
}

fn read(path: &Path, key: &FileKey) -> Result<Option<Record>, OperationError> {
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(OperationError::internal)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OperationError::internal(error)),
    };
    let parts = text.split_once('\n');
    let verified = parts.filter(|(mac, body)| hex::decode(mac).is_ok_and(|mac| key.verifies(body.as_bytes(), &mac)));
    match verified.and_then(|(_, body)| serde_json::from_str(body).ok()) {
        Some(record) => Ok(Some(record)),
        None => Err(OperationError::conflict(format!(
            "the record of the demo has a wrong MAC: another program changed it, or the master key was rotated since it \
             was written; delete the bot and the resource of the demo, and then the file {DEMO_FILE} in the data folder"
        ))),
    }
}

fn write(path: &Path, key: &FileKey, record: &Record) -> io::Result<()> {
    let body = serde_json::to_string(record)?;
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    writeln!(file, "{}", hex::encode(key.mac(body.as_bytes())))?;
    file.write_all(body.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use monstrum_vault::{MasterKeys, Vault};

    use super::*;

    fn key() -> FileKey {
        let keys = MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap();
        FileKey::derive(&Vault::new(keys), PURPOSE)
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(DEMO_FILE);
        assert!(read(&path, &key()).unwrap().is_none());
        let mut record = Record::new(WorkspaceId::new());
        record.bot = Some(BotId::new());
        write(&path, &key(), &record).unwrap();
        write(&path, &key(), &record).unwrap();
        assert_eq!(read(&path, &key()).unwrap(), Some(record));
    }

    #[test]
    fn a_record_that_another_program_changed_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(DEMO_FILE);
        let record = Record { bot: Some(BotId::new()), ..Record::new(WorkspaceId::new()) };
        write(&path, &key(), &record).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let other = text.replace(&record.bot.unwrap().to_string(), &BotId::new().to_string());
        for changed in [other.as_str(), "", "{}", &text[1..], text.split_once('\n').unwrap().1] {
            fs::write(&path, changed).unwrap();
            assert!(matches!(read(&path, &key()), Err(OperationError::Conflict(_))), "{changed}");
        }
    }
}
