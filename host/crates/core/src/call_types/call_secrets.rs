//! The secrets that a call uses, and the search for them in its output: the answer, the log lines and the rows in the
//! audit.
//!
//! The host searches a short text in place, and a long text on another thread. If the search does not end within the
//! time limit of the call plus a grace period, the text is withheld.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use monstrum_egress::{Redactor, SearchBudget, SearchError, Watch, search};
use monstrum_types::{CallOutcome, Code, JsonText};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

/// The time for which a search may continue after the deadline of its call. The search of the largest answer takes
/// 0.3 s, so most of this time is available for waiting until earlier searches have ended.
const GRACE: Duration = Duration::from_secs(10);

/// The secrets of one call.
#[derive(Default)]
pub struct CallSecrets {
    known: Mutex<Known>,
    /// The deadline of the call.
    until: OnceLock<Instant>,
    /// The budget for searches of the answer and the log lines. Requests to upstreams have a separate budget, so that a
    /// call that has exhausted the budget for requests can still answer.
    budget: Arc<SearchBudget>,
}

#[derive(Default)]
struct Known {
    redactor: Option<Arc<Redactor>>,
    /// The redactors of all calls with the same root call, or `None` if the call has no ancestors and no child calls, and
    /// involves one credential only.
    shared: Option<SharedRedactors>,
}

/// The redactors of a root call and of all calls below it. A secret of one call may appear in another call in parts
/// that the redactor of that call does not know. Therefore the answer of each call passes through all of these
/// redactors.
#[derive(Clone, Default)]
pub struct SharedRedactors(Arc<Mutex<Vec<Arc<Redactor>>>>);

impl SharedRedactors {
    fn add(&self, redactor: &Arc<Redactor>) {
        let mut known = self.0.lock();
        if !known.iter().any(|known| Arc::ptr_eq(known, redactor)) {
            known.push(Arc::clone(redactor));
        }
    }

    fn all(&self) -> Vec<Arc<Redactor>> {
        self.0.lock().clone()
    }
}

impl FromIterator<Arc<Redactor>> for SharedRedactors {
    fn from_iter<I: IntoIterator<Item = Arc<Redactor>>>(redactors: I) -> Self {
        let shared = SharedRedactors::default();
        redactors.into_iter().for_each(|redactor| shared.add(&redactor));
        shared
    }
}

impl std::fmt::Debug for SharedRedactors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedRedactors")
    }
}

/// The error for a text whose search for secrets did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withheld(Code);

impl Withheld {
    /// Returns the outcome that the caller receives instead of an outcome whose search failed.
    pub fn outcome(self) -> CallOutcome {
        CallOutcome::error(self.0, self.message())
    }

    /// Returns the error message for the plugin and the caller.
    pub fn message(self) -> &'static str {
        match self.0 {
            Code::Limit => "the search for secrets in this call's output exceeded its budget",
            Code::Timeout => "the search for secrets in the answer timed out",
            _ => "the search for secrets failed",
        }
    }
}

impl CallSecrets {
    /// Creates the secrets of a call. `shared` contains the redactors that a child call shares with its root call.
    pub fn new(shared: Option<SharedRedactors>) -> CallSecrets {
        CallSecrets { known: Mutex::new(Known { redactor: None, shared }), ..CallSecrets::default() }
    }

    /// Replaces the redactor of the call with `redactor`.
    pub fn redact_with(&self, redactor: Arc<Redactor>) {
        let mut known = self.known.lock();
        if let Some(shared) = &known.shared {
            shared.add(&redactor);
        }
        known.redactor = Some(redactor);
    }

    /// Keeps the redactors of this call when another one is added, because the call involves several credentials.
    pub fn keep_all(&self) {
        let mut known = self.known.lock();
        if known.shared.is_none() {
            let shared = SharedRedactors::default();
            known.redactor.iter().for_each(|redactor| shared.add(redactor));
            known.shared = Some(shared);
        }
    }

    /// Shares the secrets between this call and its child calls, in both directions.
    pub fn share(&self, shared: &SharedRedactors) {
        let mut known = self.known.lock();
        known.redactor.iter().for_each(|redactor| shared.add(redactor));
        known.shared = Some(shared.clone());
    }

    /// Returns the redactors that are applied to every text of the call.
    pub fn redactors(&self) -> Vec<Arc<Redactor>> {
        let known = self.known.lock();
        match &known.shared {
            Some(shared) => shared.all(),
            None => known.redactor.iter().cloned().collect(),
        }
    }

    /// Sets the deadline of the call. Only the first value has an effect. Searches may run until the deadline plus
    /// [`GRACE`].
    pub fn search_until(&self, until: Instant) {
        self.until.get_or_init(|| until);
    }

    /// Redacts the secrets in `texts`.
    pub async fn redacted_texts(&self, texts: Vec<String>) -> Result<Vec<String>, Withheld> {
        let bytes = texts.iter().map(String::len).sum();
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            texts.into_iter().map(|text| redact_text(text, redactors, watch)).collect()
        };
        self.search(bytes, &self.budget, work).await
    }

    /// Redacts the secrets in `bytes`, which may be binary.
    pub async fn redacted_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Withheld> {
        let length = bytes.len();
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            redactors.iter().try_fold(bytes, |bytes, redactor| redactor.redact_watched(bytes, watch))
        };
        self.search(length, &self.budget, work).await
    }

    /// Redacts the secrets in `text`.
    pub async fn redacted_json(&self, text: JsonText) -> Result<JsonText, Withheld> {
        let bytes = text.as_str().len();
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            redactors.iter().try_fold(text, |text, redactor| redactor.redact_json_watched(text, watch))
        };
        self.search(bytes, &self.budget, work).await
    }

    /// Redacts the secrets in `outcome`. Returns an outcome with an error if the search fails.
    pub async fn redacted_outcome(&self, mut outcome: CallOutcome) -> CallOutcome {
        let (message, data) = (outcome.message.take(), outcome.data.take());
        let bytes = message.as_ref().map_or(0, String::len) + data.as_ref().map_or(0, |data| data.as_str().len());
        let work = |redactors: &[Arc<Redactor>], watch: &Watch| {
            let message = message.map(|message| redact_text(message, redactors, watch)).transpose()?;
            let json =
                |data| redactors.iter().try_fold(data, |data, redactor| redactor.redact_json_watched(data, watch));
            Ok((message, data.map(json).transpose()?))
        };
        match self.search(bytes, &self.budget, work).await {
            Ok((message, data)) => CallOutcome { message, data, ..outcome },
            Err(withheld) => withheld.outcome(),
        }
    }

    /// Runs `work`, which applies each redactor once to `bytes` bytes. Searches a small number of bytes in place, and a
    /// large number on another thread.
    pub async fn search<T: Send + 'static>(
        &self,
        bytes: usize,
        budget: &Arc<SearchBudget>,
        work: impl FnOnce(&[Arc<Redactor>], &Watch) -> Result<T, SearchError> + Send + 'static,
    ) -> Result<T, Withheld> {
        let redactors = self.redactors();
        let now = Instant::now();
        let until = self.until.get().map_or(now, |until| now.max(*until)) + GRACE;
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

/// Redacts the secrets of all `redactors` in `text`.
pub fn redact_text(text: String, redactors: &[Arc<Redactor>], watch: &Watch) -> Result<String, SearchError> {
    redactors.iter().try_fold(text, |text, redactor| redactor.redact_text_watched(text, watch))
}

#[cfg(test)]
pub(crate) mod tests {
    use monstrum_egress::INLINE_SEARCH_BYTES_MAX;
    use monstrum_types::Secret;
    use serde_json::json;
    use tokio::task::JoinHandle;

    use super::*;

    const SECRET: &str = "s3cr3t-t0ken/x";

    fn secrets() -> CallSecrets {
        let secrets = CallSecrets::default();
        secrets.redact_with(Arc::new(Redactor::new([Secret::new(SECRET.to_owned())])));
        secrets
    }

    /// Returns a text that is too long to be searched in place.
    fn large() -> String {
        format!("{} {SECRET} {}", "x".repeat(INLINE_SEARCH_BYTES_MAX), "y".repeat(INLINE_SEARCH_BYTES_MAX))
    }

    #[tokio::test]
    async fn small_and_large_texts_are_redacted() {
        for text in [format!("a {SECRET} b"), large()] {
            let secrets = secrets();
            let outcome = CallOutcome {
                message: Some(text.clone()),
                ..CallOutcome::success(JsonText::from(&json!({ "text": text })))
            };
            let redacted = secrets.redacted_outcome(outcome).await;
            let expected = text.replace(SECRET, "[redacted]");
            assert_eq!(redacted.message.as_deref(), Some(expected.as_str()));
            assert_eq!(redacted.data.unwrap().value(), json!({ "text": expected }));
            assert_eq!(secrets.redacted_texts(vec![text.clone(), text.clone()]).await.unwrap(), [expected.as_str(); 2]);
            assert_eq!(secrets.redacted_bytes(text.clone().into_bytes()).await.unwrap(), expected.as_bytes());
        }
    }

    #[test]
    fn calls_of_one_root_know_the_secrets_of_each_other() {
        let (parent, shared) = (secrets(), SharedRedactors::default());
        parent.share(&shared);
        let child = CallSecrets::new(Some(shared));
        assert_eq!(child.redactors().len(), 1);
        child.redact_with(Arc::new(Redactor::new([Secret::new("of-the-child".to_owned())])));
        assert_eq!((parent.redactors().len(), child.redactors().len()), (2, 2));
    }

    /// Checks that the search of a large text does not block the only thread of the runtime, so that other tasks
    /// continue.
    #[tokio::test]
    async fn a_large_text_is_searched_on_another_thread() {
        let secrets = secrets();
        // The search of these two megabytes of text is slow.
        let text = "\\".repeat(2 << 20);
        let mut search = std::pin::pin!(secrets.redacted_texts(vec![text]));
        assert!(futures::poll!(search.as_mut()).is_pending(), "the search runs on another thread");
        search.await.unwrap();
    }

    /// A set of searches that occupy all search threads.
    pub(crate) struct HeldSearches {
        release: std::sync::mpsc::Sender<()>,
        searches: Vec<JoinHandle<Result<(), SearchError>>>,
    }

    impl HeldSearches {
        pub(crate) async fn begin() -> HeldSearches {
            let (release, released) = std::sync::mpsc::channel::<()>();
            let released = Arc::new(Mutex::new(released));
            let threads = std::thread::available_parallelism().unwrap().get();
            let began = Arc::new(tokio::sync::Semaphore::new(0));
            let searches = (0..threads)
                .map(|_| {
                    let (released, has_begun) = (Arc::clone(&released), Arc::clone(&began));
                    tokio::spawn(async move {
                        let budget = Arc::default();
                        let search = search(INLINE_SEARCH_BYTES_MAX + 1, &budget, move |_| {
                            has_begun.add_permits(1);
                            // The search waits until the sender is dropped.
                            released.lock().recv().unwrap_err();
                            Ok(())
                        });
                        search.await
                    })
                })
                .collect();
            drop(began.acquire_many(u32::try_from(threads).unwrap()).await.unwrap());
            HeldSearches { release, searches }
        }

        pub(crate) async fn end(self) {
            drop(self.release);
            for search in self.searches {
                search.await.unwrap().unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn text_that_cannot_be_searched_in_time_is_withheld() {
        let secrets = secrets();
        secrets.search_until(Instant::now() + Duration::from_secs(30));
        let held = HeldSearches::begin().await;
        let outcome = CallOutcome { message: Some(large()), ..CallOutcome::error(Code::Plugin, "") };
        let mut redacted = std::pin::pin!(secrets.redacted_outcome(outcome));
        for after_s in [0, 39] {
            tokio::time::advance(Duration::from_secs(after_s)).await;
            assert!(futures::poll!(redacted.as_mut()).is_pending(), "there is time left after {after_s} s");
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        let redacted = redacted.await;
        assert_eq!(
            (redacted.code, redacted.message.as_deref()),
            (Some(Code::Timeout), Some("the search for secrets in the answer timed out"))
        );
        held.end().await;
    }
}
