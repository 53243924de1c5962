//! Answers to requests that carried an `Idempotency-Key`, so that a repeated request does nothing twice.

use monstrum_types::{KeyId, UtcMillis, WorkspaceId};

use crate::db::{FromRow, Row, args};
use crate::error::unavailable;
use crate::{Store, StoreError};

/// An earlier claim can be given up between our attempt and our look at it; again and again only by ill will.
const CLAIM_ATTEMPTS_MAX: u32 = 5;

/// What identifies a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub workspace_id: WorkspaceId,
    /// The API key that asked.
    pub caller: KeyId,
    /// Method and path.
    pub route: String,
    /// The header's text.
    pub key: String,
}

/// What becomes of a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is the first: do it, then call [`Store::answer_request`] or [`Store::release_request`].
    First,
    /// Another one with this key came before.
    Earlier {
        /// The hash of that one's body.
        body_hash: String,
        /// What it was answered; None while it still runs.
        answer: Option<StoredAnswer>,
    },
}

/// An answer as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The HTTP status.
    pub status: i64,
    /// The text of a sealed record.
    pub sealed: String,
}

impl FromRow for Claim {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        let answer = match (row.int_opt("status")?, row.text_opt("answer")?) {
            (Some(status), Some(sealed)) => Some(StoredAnswer { status, sealed }),
            _ => None,
        };
        Ok(Claim::Earlier { body_hash: row.text("body_hash")?, answer })
    }
}

impl Store {
    /// Claims a key for a request. Of two that claim it at once, one is the first.
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
        Err(unavailable("the idempotency key is claimed and given up again all the time", "others use the same key"))
    }

    /// Keeps the answer to a claimed request; whether the claim was still there.
    pub async fn answer_request(&self, key: &IdempotencyKey, answer: &StoredAnswer) -> Result<bool, StoreError> {
        let sql = "update idempotency_keys set status = $5, answer = $6 \
                   where workspace_id = $1 and caller = $2 and route = $3 and key = $4 and status is null";
        let args = args![key.workspace_id, key.caller, &key.route, &key.key, answer.status, &answer.sealed];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// Gives up a claimed request that did nothing, so that it can be sent again.
    pub async fn release_request(&self, key: &IdempotencyKey) -> Result<(), StoreError> {
        let sql = "delete from idempotency_keys \
                   where workspace_id = $1 and caller = $2 and route = $3 and key = $4 and status is null";
        self.db.run(sql, args![key.workspace_id, key.caller, &key.route, &key.key]).await?;
        Ok(())
    }

    /// Forgets what was claimed before `answered_before`, and claims older than `running_before` that were never
    /// answered, for whoever made them is gone; how many.
    pub async fn purge_requests(
        &self,
        answered_before: UtcMillis,
        running_before: UtcMillis,
    ) -> Result<u64, StoreError> {
        let sql = "delete from idempotency_keys where created_at < $1 or (status is null and created_at < $2)";
        self.db.run(sql, args![answered_before, running_before]).await
    }
}
