//! Creates a new root key for an installation whose last root key is lost. A user who can read the data folder, the
//! database and the master key can already read every secret, so the new key grants no additional access. The audit
//! records the creation.

use std::sync::Arc;

use monstrum_store::{KeyKind, StoreError};
use monstrum_types::{Clock, KeyId, Secret};
use serde_json::{Value, json};

use super::{Data, OfflineChange, OfflineError, recorded};
use monstrum_core::policy::api_key;

/// An error while creating the key.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error("the operating system did not provide random numbers for the key")]
    Random(#[source] getrandom::Error),
    #[error("the key cannot be recorded")]
    Record(#[from] OfflineError),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

/// The new root key.
pub struct RecoveredKey {
    pub id: KeyId,
    pub name: String,
    pub text: Secret,
}

/// Creates a root key after recording the change in the audit.
pub async fn recover_root_key(data: &Data, clock: Arc<dyn Clock>) -> Result<RecoveredKey, RecoveryError> {
    let key = api_key::generate().map_err(RecoveryError::Random)?;
    let now = clock.now();
    // The name contains the time, because names of root keys are unique.
    let row = key.row(format!("recovered-{}", now.0), KeyKind::Root, None, (None, None), now);
    let change = OfflineChange {
        what: "key.recover",
        object: row.id.to_string(),
        before: Value::Null,
        after: json!({ "id": row.id, "name": row.name, "kind": row.kind.as_str(), "prefix": row.prefix }),
    };
    let insert = async { data.store.insert_key(&row).await.map_err(RecoveryError::from) };
    recorded(data, clock, change, insert).await?;
    Ok(RecoveredKey { id: row.id, name: row.name, text: key.text })
}
