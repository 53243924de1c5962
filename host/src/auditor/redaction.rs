//! What a call says is searched for secrets before it leaves: its answer, its log lines and its rows.
//!
//! Little text is searched in place, more on one of as many threads as there are processors, within the time of the call
//! and a little longer. Text that could not be searched in time is withheld. Rows have a budget of their own, so that no
//! call can keep its parameters out of the audit by what else it says.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use monstrum_egress::{INLINE_SEARCH_BYTES_MAX, Redactor, SearchBudget, SearchError, Watch, search};
use monstrum_store::AuditRow;
use monstrum_types::{CallOutcome, Code};
use sha2::Digest as _;
use tokio::time::{Instant, timeout_at};

use super::Entry;

/// How long a search may take after the time of its call. The largest answer takes 0.3 s, so this is mostly a wait for
/// searches that came before.
const GRACE: Duration = Duration::from_secs(10);
/// Parameters over this size are kept as digest and first KiB (architecture).
const PARAMS_BYTES_MAX: usize = 16 << 10;

/// What the searches of a call may use.
#[derive(Default)]
pub(super) struct Searches {
    /// When the call ends.
    until: OnceLock<Instant>,
    /// For the answer and the log lines. That of the requests is another one: a call that has used it up still says so.
    budget: Arc<SearchBudget>,
}

/// Text that was not searched to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld(Code);

impl Withheld {
    /// What the caller is told.
    pub fn outcome(self) -> CallOutcome {
        CallOutcome::error(self.0, self.message())
    }

    /// What the plugin is told.
    pub fn message(self) -> &'static str {
        match self.0 {
            Code::Limit => "searching the texts of this call for secrets has used up its budget",
            Code::Timeout => "the answer could not be searched for secrets in time",
            _ => "the search for secrets failed",
        }
    }
}

impl Entry {
    /// The call has begun: what it says is searched until `until` and a little longer.
    pub fn search_until(&self, until: Instant) {
        // A call begins once.
        self.searches.until.get_or_init(|| until);
    }

    /// `texts` without any secret that the call, or one under the same root, has met.
    pub async fn redacted_texts(&self, texts: Vec<String>) -> Result<Vec<String>, Withheld> {
        let bytes = texts.iter().map(String::len).sum();
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            texts.into_iter().map(|text| redact_text(text, redactors, watch)).collect()
        };
        self.search(bytes, &self.searches.budget, work).await
    }

    /// The same for what need be no text.
    pub async fn redacted_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Withheld> {
        let length = bytes.len();
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            redactors.iter().try_fold(bytes, |bytes, redactor| redactor.redact_watched(bytes, watch))
        };
        self.search(length, &self.searches.budget, work).await
    }

    /// The end of a call without the secrets of its resource.
    pub(super) async fn redacted_outcome(&self, mut outcome: CallOutcome) -> CallOutcome {
        let (message, data) = (outcome.message.take(), outcome.data.take());
        let bytes = message.as_ref().map_or(0, String::len) + data.as_ref().map_or(0, |data| data.as_str().len());
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            let message = message.map(|message| redact_text(message, redactors, watch)).transpose()?;
            let json =
                |data| redactors.iter().try_fold(data, |data, redactor| redactor.redact_json_watched(data, watch));
            Ok((message, data.map(json).transpose()?))
        };
        match self.search(bytes, &self.searches.budget, work).await {
            Ok((message, data)) => CallOutcome { message, data, ..outcome },
            Err(withheld) => withheld.outcome(),
        }
    }

    /// `row` without secrets, and without parameters that are too long for it.
    pub(super) async fn redacted_row(&self, mut row: AuditRow) -> AuditRow {
        let (task_id, params) = (row.task_id.take(), row.params.take());
        let bytes = task_id.as_ref().map_or(0, String::len) + params.as_ref().map_or(0, String::len);
        // For the case that the search is not to its end.
        let searched_bytes = bytes.saturating_mul(self.lock().redactors().len().max(1));
        let unsearched = params.clone().filter(|_| searched_bytes > INLINE_SEARCH_BYTES_MAX);
        let is_of_change = row.is_of_change();
        let work = move |redactors: &[Arc<Redactor>], watch: &Watch| {
            let redact = |text: String| redact_text(text, redactors, watch);
            let params = params.map(redact).transpose()?;
            let params = if is_of_change { params } else { params.map(shorten) };
            Ok((task_id.map(redact).transpose()?, params))
        };
        match self.search(bytes, &Arc::default(), work).await {
            Ok((task_id, params)) => AuditRow { task_id, params, ..row },
            Err(_) => {
                let params = tokio::task::spawn_blocking(move || unsearched.as_deref().map(withheld));
                // Without its parameters where even this fails.
                AuditRow { params: params.await.unwrap_or(None), ..row }
            }
        }
    }

    /// The same at once, where nothing can be waited for.
    pub(super) fn redacted_row_at_once(&self, mut row: AuditRow) -> AuditRow {
        let redactors = self.lock().redactors();
        let redact = |text: String| redactors.iter().fold(text, |text, redactor| redactor.redact_text(text));
        row.task_id = row.task_id.map(redact);
        row.params = row.params.map(|params| match params.len() {
            0..=INLINE_SEARCH_BYTES_MAX => redact(params),
            _ => withheld(&params),
        });
        row
    }

    async fn search<T: Send + 'static>(
        &self,
        bytes: usize,
        budget: &Arc<SearchBudget>,
        work: impl FnOnce(&[Arc<Redactor>], &Watch) -> Result<T, SearchError> + Send + 'static,
    ) -> Result<T, Withheld> {
        let redactors = self.lock().redactors();
        let now = Instant::now();
        let until = self.searches.until.get().map_or(now, |until| now.max(*until)) + GRACE;
        // Large parameters are digested also where there is nothing to search for.
        let bytes = bytes.saturating_mul(redactors.len().max(1));
        let search = search(bytes, budget, move |watch| work(&redactors, watch));
        match timeout_at(until, search).await {
            Ok(searched) => searched.map_err(|stopped| {
                Withheld(if stopped == SearchError::Budget { Code::Limit } else { Code::Unavailable })
            }),
            Err(_) => Err(Withheld(Code::Timeout)),
        }
    }
}

fn redact_text(text: String, redactors: &[Arc<Redactor>], watch: &Watch) -> Result<String, SearchError> {
    redactors.iter().try_fold(text, |text, redactor| redactor.redact_text_watched(text, watch))
}

/// Large parameters are kept as their digest and their first KiB.
fn shorten(params: String) -> String {
    const KEPT_BYTES: usize = 1024;
    if params.len() <= PARAMS_BYTES_MAX {
        return params;
    }
    let first = &params[..params.floor_char_boundary(KEPT_BYTES)];
    serde_json::json!({ "digest": digest(&params), "bytes": params.len(), "first": first }).to_string()
}

/// What a row says of parameters that could not be searched for secrets.
fn withheld(params: &str) -> String {
    serde_json::json!({ "digest": digest(params), "bytes": params.len() }).to_string()
}

fn digest(params: &str) -> String {
    format!("sha256:{}", hex::encode(sha2::Sha256::digest(params.as_bytes())))
}
