//! Stored responses to requests with an `Idempotency-Key` header, so that a repeated request has no second effect.

use monstrum_types::{KeyId, UtcMillis, WorkspaceId};

use crate::db::{FromRow, Row, args};
use crate::error::unavailable;
use crate::{Store, StoreError};

/// The maximum number of attempts to claim a key. Between the insert and the select of an attempt, another request may
/// release its claim. If this happens in every attempt, a client is probably causing it deliberately.
const CLAIM_ATTEMPTS_MAX: u32 = 5;

/// The scope and value of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub workspace_id: WorkspaceId,
    /// The API key of the caller.
    pub caller: KeyId,
    /// The HTTP method and path.
    pub route: String,
    /// The value of the `Idempotency-Key` header.
    pub key: String,
}

/// The result of claiming an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key is new. Handle the request, then call [`Store::answer_request`] or [`Store::release_request`].
    First,
    /// An earlier request has already used the key.
    Earlier {
        /// The hash of the earlier request's body.
        body_hash: String,
        /// The response to the earlier request; `None` if the request is still being handled.
        answer: Option<StoredAnswer>,
    },
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The HTTP status code.
    pub status: i64,
    /// A sealed record in its text form.
    pub sealed: String,
}

impl FromRow for Claim {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        let answer = match (row.get("status")?, row.get("answer")?) {
            (Some(status), Some(sealed)) => Some(StoredAnswer { status, sealed }),
            _ => None,
        };
        Ok(Claim::Earlier { body_hash: row.get("body_hash")?, answer })
    }
}

impl Store {
    /// Claims an idempotency key for a request. Exactly one of several concurrent requests gets `Claim::First`.
    pub async fn claim_request(
        &self,
        key: &IdempotencyKey,
        body_hash: &str,
        now: UtcMillis,
    ) -> Result<Claim, StoreError> {
        let insert = "insert into idempotency_keys (workspace_id, caller, route, key, body_hash, created_at) \
                      values ($1, $2, $3, $4, $5, $6) on conflict (workspace_id, caller, route, key) do nothing";
        let select = "select body_hash, status, answer from idempotency_keys \
                      where workspace_id = $1 and caller = $2 and route = $3 and key = $4";
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let args = args![key.workspace_id, key.caller, &key.route, &key.key, body_hash, now];
            if self.db.run(insert, args).await? > 0 {
                return Ok(Claim::First);
            }
            let args = args![key.workspace_id, key.caller, &key.route, &key.key];
            if let Some(earlier) = self.db.one(select, args).await? {
                return Ok(earlier);
            }
        }
        Err(unavailable(
            "the idempotency key cannot be claimed",
            "other requests repeatedly claim and release this key",
        ))
    }

    /// Stores the response to a claimed request. Returns `false` if the claim no longer exists or already has a
    /// response.
    pub async fn answer_request(&self, key: &IdempotencyKey, answer: &StoredAnswer) -> Result<bool, StoreError> {
        let sql = "update idempotency_keys set status = $5, answer = $6 \
                   where workspace_id = $1 and caller = $2 and route = $3 and key = $4 and status is null";
        let args = args![key.workspace_id, key.caller, &key.route, &key.key, answer.status, &answer.sealed];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// Releases the claim of a request that had no effect, so that the client can repeat the request. Keeps a claim
    /// that already has a response.
    pub async fn release_request(&self, key: &IdempotencyKey) -> Result<(), StoreError> {
        let sql = "delete from idempotency_keys \
                   where workspace_id = $1 and caller = $2 and route = $3 and key = $4 and status is null";
        self.db.run(sql, args![key.workspace_id, key.caller, &key.route, &key.key]).await?;
        Ok(())
    }

    /// Deletes a claim that has this response, so that the next request with the key is handled again. A claim that has
    /// another response by now is kept.
    pub async fn forget_request(&self, key: &IdempotencyKey, answer: &StoredAnswer) -> Result<(), StoreError> {
        let sql = "delete from idempotency_keys \
                   where workspace_id = $1 and caller = $2 and route = $3 and key = $4 and answer = $5";
        self.db.run(sql, args![key.workspace_id, key.caller, &key.route, &key.key, &answer.sealed]).await?;
        Ok(())
    }

    /// Deletes all claims created before `answered_before`, and the unanswered claims created before `running_before`,
    /// because the host that was handling their requests has stopped. Returns the number of deleted claims.
    pub async fn purge_requests(
        &self,
        answered_before: UtcMillis,
        running_before: UtcMillis,
    ) -> Result<u64, StoreError> {
        let sql = "delete from idempotency_keys where created_at < $1 or (status is null and created_at < $2)";
        self.db.run(sql, args![answered_before, running_before]).await
    }
}
