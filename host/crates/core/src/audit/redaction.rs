//! Redaction of audit rows. Each row is searched for the secrets of its call with a separate budget, so that a call
//! cannot keep its parameters out of the audit by using up the search budget of its response. Parameters that could not
//! be searched are withheld.

use std::sync::Arc;

use monstrum_egress::{INLINE_SEARCH_BYTES_MAX, Redactor, Watch};
use monstrum_store::AuditRow;
use sha2::Digest as _;

use super::Entry;
use crate::call_types::call_secrets::redact_text;

/// The maximum size of recorded parameters. Of larger parameters, the digest and the first KiB are recorded.
const PARAMS_BYTES_MAX: usize = 16 << 10;

impl Entry {
    /// Redacts the secrets in `row`, and shortens parameters that exceed [`PARAMS_BYTES_MAX`].
    pub(super) async fn redacted_row(&self, mut row: AuditRow) -> AuditRow {
        let (task_id, params) = (row.task_id.take(), row.params.take());
        let bytes = task_id.as_ref().map_or(0, String::len) + params.as_ref().map_or(0, String::len);
        // The copy is used if the search is not completed.
        let searched_bytes = bytes.saturating_mul(self.secrets.redactors().len().max(1));
        let unsearched = params.clone().filter(|_| searched_bytes > INLINE_SEARCH_BYTES_MAX);
        let is_of_change = row.is_of_change();
        let work = move |redactors: &[Arc<Redactor>], watch: &Watch| {
            let redact = |text: String| redact_text(text, redactors, watch);
            let params = params.map(redact).transpose()?;
            let params = if is_of_change { params } else { params.map(shorten) };
            Ok((task_id.map(redact).transpose()?, params))
        };
        match self.secrets.search(bytes, &Arc::default(), work).await {
            Ok((task_id, params)) => AuditRow { task_id, params, ..row },
            Err(_) => {
                let params = tokio::task::spawn_blocking(move || unsearched.as_deref().map(withheld));
                // If even the digest cannot be computed, the row has no parameters.
                AuditRow { params: params.await.unwrap_or(None), ..row }
            }
        }
    }

    /// Redacts the secrets in `row` in place, for callers that cannot wait. Large parameters are withheld.
    pub(super) fn redacted_row_at_once(&self, mut row: AuditRow) -> AuditRow {
        let redactors = self.secrets.redactors();
        let redact = |text: String| redactors.iter().fold(text, |text, redactor| redactor.redact_text(text));
        row.task_id = row.task_id.map(redact);
        row.params = row.params.map(|params| match params.len() {
            0..=INLINE_SEARCH_BYTES_MAX => redact(params),
            _ => withheld(&params),
        });
        row
    }
}

/// Replaces large parameters with their digest, their size and their first KiB.
fn shorten(params: String) -> String {
    const KEPT_BYTES: usize = 1024;
    if params.len() <= PARAMS_BYTES_MAX {
        return params;
    }
    let first = &params[..params.floor_char_boundary(KEPT_BYTES)];
    serde_json::json!({ "digest": digest(&params), "bytes": params.len(), "first": first }).to_string()
}

/// Returns the replacement for parameters that could not be searched for secrets.
fn withheld(params: &str) -> String {
    serde_json::json!({ "digest": digest(params), "bytes": params.len() }).to_string()
}

fn digest(params: &str) -> String {
    format!("sha256:{}", hex::encode(sha2::Sha256::digest(params.as_bytes())))
}
