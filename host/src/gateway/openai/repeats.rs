//! Repeated requests. The libraries of OpenAI repeat a request after a time-out or a server error, and a task that has
//! changed something must not run twice. So the id of the task is kept before the task starts, and a repetition joins it.
//!
//! A request is a repetition if it has the `Idempotency-Key` of an earlier one, or if its library says so and an earlier
//! request of the last ten minutes had the same body. A task that has failed before it could change anything is not joined:
//! a repetition is meant to try again.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use monstrum_agent::Tasks;
use monstrum_agent::requests::EarlierTask;
use monstrum_core::app::App;
use monstrum_core::beside::in_place;
use monstrum_core::operations::{Caller, OperationError};
use monstrum_store::{Claim, IdempotencyKey, StoredAnswer};
use monstrum_types::{BotId, TaskId, UtcMillis};
use monstrum_vault::Sealed;
use sha2::{Digest as _, Sha256};

use crate::gateway::http::idempotency::{forget_expired, place_of_answer};
use crate::gateway::http::problem::Problem;
use crate::gateway::openai::USER_HEADERS;
use crate::gateway::openai::errors::OpenAiError;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The header by which a library says how often it has repeated a request.
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
/// The maximum length of a key, longer than any UUID or hash that clients use.
const KEY_CHARS_MAX: usize = 255;
/// The time in which a request with the same body can be a repetition.
const SAME_BODY_MS: i64 = 10 * 60 * 1000;
/// The status under which the id of a task is kept.
const STATUS: i64 = 202;
/// The number of times that a request looks for the task of an earlier one, and the wait between them. An earlier request
/// needs one statement of the database from its claim to the id of its task.
const LOOKS_MAX: u32 = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The maximum size of a body that is hashed in place. Hashing such a body takes less than a quarter of a millisecond.
const HASHED_IN_PLACE_BYTES_MAX: usize = 64 << 10;

/// What tells that two requests are the same.
#[derive(Clone, Debug)]
pub(super) struct Repeat {
    key: IdempotencyKey,
    body_hash: String,
    joins: Joins,
}

/// Which earlier tasks a request joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joins {
    /// Every task with the same key.
    All,
    /// A task that is not older than [`SAME_BODY_MS`].
    Recent,
    /// None: the request is the first of its kind, and later ones may join its task.
    None,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The request starts a task with this id.
    Starts(TaskId),
    /// The request joins this task.
    Joins(TaskId),
}

impl Repeat {
    /// Reads what tells that a request is a repetition, or can be repeated.
    pub(super) fn of(
        headers: &HeaderMap,
        caller: &Caller,
        route: &str,
        body: &[u8],
    ) -> Result<Option<Repeat>, OpenAiError> {
        let (kind, joins) = match (header_key(headers)?, retries(headers)) {
            (Some(key), _) => (Some(key), Joins::All),
            (None, Some(0)) => (None, Joins::None),
            (None, Some(_)) => (None, Joins::Recent),
            (None, None) => return Ok(None),
        };
        // Proxies name the user in headers, and the answer for one user is not for another.
        let user = USER_HEADERS.map(|name| headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default());
        let body_hash = in_place(body.len() > HASHED_IN_PLACE_BYTES_MAX, || {
            let mut hash = Sha256::new();
            for part in user {
                hash.update(part.len().to_be_bytes());
                hash.update(part);
            }
            hash.update(body);
            hex::encode(hash.finalize())
        });
        // A key has visible characters only, so no key of a client is that of a body.
        let key = kind.unwrap_or_else(|| format!("body {body_hash}"));
        let key = IdempotencyKey { workspace_id: caller.workspace, caller: caller.key, route: route.to_owned(), key };
        Ok(Some(Repeat { key, body_hash, joins }))
    }

    /// Decides whether a request starts a task or joins one.
    pub(super) async fn entry(
        &self,
        app: &App,
        tasks: &Tasks,
        caller: &Caller,
        bot: BotId,
    ) -> Result<Entry, OpenAiError> {
        let store = &app.store;
        for look in 0..LOOKS_MAX {
            let claim =
                store.claim_request(&self.key, &self.body_hash, app.clock.now()).await.map_err(Problem::from)?;
            let answer = match claim {
                Claim::First => return self.starts(app).await,
                Claim::Earlier { body_hash, .. } if body_hash != self.body_hash => {
                    let message = "this Idempotency-Key was already used with a different body; use a new key";
                    return Err(OpenAiError::invalid("Idempotency-Key", message));
                }
                Claim::Earlier { answer: Some(answer), .. } => answer,
                Claim::Earlier { answer: None, .. } => {
                    // The host that has claimed the key may have ended.
                    if look == 0 {
                        forget_expired(app).await.map_err(Problem::from)?;
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                    continue;
                }
            };
            let id = self.open(app, &answer)?;
            let is_joined = match self.joins {
                Joins::All => true,
                Joins::Recent => app.clock.now().since_ms(created_at(&id)) <= SAME_BODY_MS,
                Joins::None => false,
            };
            if is_joined {
                match tasks.earlier_task(caller, bot, id).await {
                    // The earlier request has not started its task, and this one can.
                    Ok(EarlierTask::Absent) => return Ok(Entry::Starts(id)),
                    Ok(EarlierTask::Joinable) => return Ok(Entry::Joins(id)),
                    Ok(EarlierTask::Ending) => {
                        tokio::time::sleep(LOOK_AGAIN).await;
                        continue;
                    }
                    Ok(EarlierTask::Failed) | Err(OperationError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            store.forget_request(&self.key, &answer).await.map_err(Problem::from)?;
        }
        Err(Problem::unavailable("an earlier request with the same key is still starting; try again").into())
    }

    /// Keeps the id of a task that has not started.
    async fn starts(&self, app: &App) -> Result<Entry, OpenAiError> {
        let id = TaskId::new();
        let place = place_of_answer(&self.key, &self.body_hash, STATUS);
        let sealed = app.vault.seal(id.to_string().as_bytes(), place).map_err(|error| Problem::internal(&error))?;
        let answer = StoredAnswer { status: STATUS, sealed: sealed.to_string() };
        app.store.answer_request(&self.key, &answer).await.map_err(Problem::from)?;
        Ok(Entry::Starts(id))
    }

    fn open(&self, app: &App, answer: &StoredAnswer) -> Result<TaskId, OpenAiError> {
        let sealed = answer.sealed.parse::<Sealed>().map_err(|error| Problem::internal(&error))?;
        let place = place_of_answer(&self.key, &self.body_hash, answer.status);
        let text = app.vault.unseal(&sealed, place).map_err(|error| Problem::internal(&error))?;
        let id = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        id.ok_or_else(|| Problem::internal(&"the kept id of a task is not an id").into())
    }
}

/// Returns the time at which an id was made, which its first 48 bits tell.
fn created_at(id: &TaskId) -> UtcMillis {
    UtcMillis(id.as_bytes()[..6].iter().fold(0, |ms, byte| (ms << 8) | i64::from(*byte)))
}

fn header_key(headers: &HeaderMap) -> Result<Option<String>, OpenAiError> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let (first, second) = (values.next(), values.next());
    let Some(value) = first else { return Ok(None) };
    let is_key =
        |text: &&str| (1..=KEY_CHARS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    match (value.to_str().ok().filter(is_key), second) {
        (Some(text), None) => Ok(Some(text.to_owned())),
        _ => {
            let message = format!("send exactly one value of 1 to {KEY_CHARS_MAX} visible ASCII characters");
            Err(OpenAiError::invalid("Idempotency-Key", message))
        }
    }
}

/// Returns how often a library has repeated a request.
fn retries(headers: &HeaderMap) -> Option<u32> {
    headers.get(RETRY_COUNT)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use monstrum_types::{Clock as _, SystemClock};

    use super::*;

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.clone(), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn an_id_tells_its_time() {
        let before = SystemClock.now();
        let created = created_at(&TaskId::new());
        assert!(created.since_ms(before) >= 0 && SystemClock.now().since_ms(created) >= 0);
    }

    #[test]
    fn a_key_is_one_short_visible_text() {
        let read = |values: &[&'static str]| {
            let pairs: Vec<_> = values.iter().map(|value| (IDEMPOTENCY_KEY, *value)).collect();
            header_key(&headers(&pairs)).map_err(|error| error.body()["error"]["param"].clone())
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["a-1"]), Ok(Some("a-1".to_owned())));
        for bad in [&["", ""][..], &["a b"], &["a", "a"], &[""]] {
            assert_eq!(read(bad), Err("Idempotency-Key".into()), "{bad:?}");
        }
    }

    #[test]
    fn a_library_counts_its_repetitions() {
        assert_eq!(retries(&headers(&[(RETRY_COUNT, "2")])), Some(2));
        assert_eq!(retries(&headers(&[(RETRY_COUNT, "0")])), Some(0));
        assert_eq!(retries(&headers(&[(RETRY_COUNT, "-1")])), None);
        assert_eq!(retries(&headers(&[])), None);
    }
}
