//! A new root key for an installation whose last one is lost. Whoever has the data folder, the database and the master key
//! could read every secret in it, so this gives nobody more than they have; and it stands in the audit.

use std::sync::Arc;

use monstrum_store::{KeyKind, KeyRow, StoreError};
use monstrum_types::{CallOutcome, Clock, JsonText, KeyId, RequestId, Secret};
use serde_json::{Value, json};

use super::Data;
use crate::api_key;
use crate::auditor::{AuditUnavailable, Auditor, Change, HEADS_FILE, Heads, HeadsError};

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error("no random numbers can be had for the key")]
    Random(#[source] getrandom::Error),
    #[error(transparent)]
    Heads(#[from] HeadsError),
    #[error("the audit cannot be written, so no key was made")]
    Audit(#[from] AuditUnavailable),
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
}

/// A root key that was made.
pub struct RecoveredKey {
    pub id: KeyId,
    pub name: String,
    pub text: Secret,
}

/// Makes a root key. The audit has it before it exists.
pub async fn recover_root_key(data: &Data, clock: Arc<dyn Clock>) -> Result<RecoveredKey, RecoveryError> {
    let heads = Heads::open(&data.path.join(HEADS_FILE))?;
    let keys = data.newest_audit_keys();
    let (auditor, audited) =
        Auditor::start(data.store.clone(), keys, heads, data.node.clone(), Arc::clone(&clock)).await?;
    let made = make(data, &auditor, clock.as_ref()).await;
    auditor.close();
    // It ends when its last row is on disk; what went wrong with one that was waited for is known by now.
    drop(audited.await);
    made
}

async fn make(data: &Data, auditor: &Auditor, clock: &dyn Clock) -> Result<RecoveredKey, RecoveryError> {
    let key = api_key::generate().map_err(RecoveryError::Random)?;
    let now = clock.now();
    let row = KeyRow {
        id: KeyId::new(),
        workspace_id: None,
        // Unlike that of any other: names of root keys are unique.
        name: format!("recovered-{}", now.0),
        kind: KeyKind::Root,
        bot_id: None,
        prefix: key.prefix,
        hash: hex::encode(key.hash),
        created_at: now,
        last_used_at: None,
    };
    let workspace = data.store.workspace_named(monstrum_store::DEFAULT_WORKSPACE).await?;
    let entry = auditor.open_change(Change {
        request_id: RequestId::new(),
        workspace: workspace.expect("the store makes the default workspace when it is opened").id,
        // No key asked for it: the one that is made stands in its place.
        key: Some(row.id),
        key_kind: None,
        what: "key.recover",
        object: row.id.to_string(),
        bot: None,
        resource: None,
        before: Value::Null,
        after: json!({ "id": row.id, "name": row.name, "kind": row.kind.as_str(), "prefix": row.prefix }),
    })?;
    entry.started().await?;
    let stored = data.store.insert_key(&row).await;
    let outcome = match &stored {
        Ok(()) => CallOutcome::success(JsonText::from(&Value::Null)),
        Err(error) => CallOutcome::error(monstrum_types::Code::Unavailable, error.to_string()),
    };
    entry.close(&outcome).await?.committed().await?;
    stored?;
    Ok(RecoveredKey { id: row.id, name: row.name, text: key.text })
}
