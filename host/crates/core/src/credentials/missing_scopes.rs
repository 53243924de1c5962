//! The scopes that a server has asked for and that a credential does not have. They are shown to admins. The host never
//! requests them by itself, because a server could otherwise widen what its token permits.

use monstrum_store::{CredentialRow, MissingScopesRow, Store, StoreError};
use serde_json::{Value, json};

use super::HeldCredential;

/// The maximum number of missing scopes of a credential. A person has to read them.
const SCOPES_MAX: usize = 100;

impl HeldCredential {
    /// Records that the server requires `scopes` in addition. A failure is only logged: the refusal of the server itself
    /// reaches the caller anyway.
    pub async fn lacks(&self, scopes: &[String]) {
        if let Err(error) = self.add_missing(scopes).await {
            tracing::warn!(credential.id = %self.row.id, %error, "cannot store the scopes that a credential lacks");
        }
    }

    async fn add_missing(&self, scopes: &[String]) -> Result<(), StoreError> {
        let store = &self.refresher.store;
        let known = missing_scopes(store, &self.row).await?;
        let mut all = known.clone().unwrap_or_default();
        for scope in scopes {
            if all.len() < SCOPES_MAX && !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        if known.is_some_and(|known| known == all) {
            return Ok(());
        }
        let row = MissingScopesRow {
            credential_id: self.row.id,
            workspace_id: self.row.workspace_id,
            scopes: json!(all),
            noted_at: self.refresher.clock.now(),
        };
        match store.put_missing_scopes(&row).await {
            // The credential was replaced meanwhile.
            Err(StoreError::UnknownReference) => Ok(()),
            written => written,
        }
    }
}

/// Returns the scopes that a credential lacks, or `None` if the server has asked for none.
pub async fn missing_scopes(store: &Store, credential: &CredentialRow) -> Result<Option<Vec<String>>, StoreError> {
    let row = store.missing_scopes(credential.workspace_id, credential.id).await?;
    Ok(row.map(|row| {
        let scopes = row.scopes.as_array().into_iter().flatten().filter_map(Value::as_str);
        scopes.map(str::to_owned).collect()
    }))
}
