//! Webhooks: routes by which systems outside make events.
//!
//! The secret of a webhook is a sealed record, which is bound to the workspace, the id, and the time at which the secret
//! was made. The MAC covers that time, so that the record of an earlier secret does not open.

use monstrum_types::{BotId, EventId, UtcMillis, WebhookId, WorkspaceId, words};
use serde_json::Value;

use crate::db::{args, retry, values};
use crate::rows::{Scope, authentic, change};
use crate::{EventRow, Listed, Page, Store, StoreError};

words! {
    /// How the requests to a webhook are authenticated.
    pub enum WebhookKind {
        /// A header has the HMAC-SHA-256 of the body under the secret.
        HmacSha256 = "hmac_sha256",
        /// The header `Authorization` has the secret.
        Token = "token",
    }
}

/// A row of `webhooks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRow {
    pub id: WebhookId,
    pub workspace_id: WorkspaceId,
    /// The name, which is unique in the workspace.
    pub name: String,
    /// The type of the events, without the prefix `custom.`.
    pub event: String,
    /// The bot to which the events belong; `None` for events of the platform.
    pub bot_id: Option<BotId>,
    pub kind: WebhookKind,
    /// The header of the signature; `None` for a token.
    pub signature_header: Option<String>,
    /// The text before the hex digits of the signature; `None` for a token.
    pub signature_prefix: Option<String>,
    /// The headers that become part of the event, as a JSON list.
    pub headers: Value,
    /// The header whose value makes one event of repeated requests.
    pub dedupe_header: Option<String>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
    /// The time at which the secret was made.
    pub secret_created_at: UtcMillis,
    /// The secret: a sealed record in its text form.
    pub sealed: String,
}

authentic! {
    WebhookRow in Webhooks("webhooks"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, name, event, bot_id, kind, signature_header, signature_prefix, headers, dedupe_header,
        created_at, updated_at, secret_created_at,
    ],
    // The secret is sealed and bound to the time at which it was made.
    others: [sealed],
}

/// The result of inserting a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedWebhook {
    Inserted,
    /// The workspace has the maximum number of webhooks.
    Full,
}

/// What identifies a repeated request to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The SHA-256 of the name and the value of the header.
    pub request: String,
    /// An earlier request counts only if it arrived after this time.
    pub since: UtcMillis,
}

/// The result of a request to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedEvent {
    /// The event was inserted.
    Inserted,
    /// An earlier request with the same receipt has made this event.
    Repeated(EventId),
    /// The webhook was changed or deleted after the caller read it.
    Changed,
}

const BY_ID: &str = select!("where workspace_id = $1 and id = $2");
const PAGE: &str = select!("where workspace_id = $1 and id > $2 order by id limit $3");
pub(crate) const OF_BOT: &str = select!("where workspace_id = $1 and bot_id = $2");
const OF_WORKSPACE: &str = "select count(*) as value from webhooks where workspace_id = $1";
const SET_SECRET: &str = "update webhooks set sealed = $3 where workspace_id = $1 and id = $2";
// The update locks the row, so that a change of the webhook waits for requests under way, and later requests for the
// change.
const LOCK: &str = "\
    update webhooks set name = name \
    where workspace_id = $1 and id = $2 and updated_at = $3 and secret_created_at = $4";
const FORGET_RECEIPT: &str =
    "delete from webhook_receipts where webhook_id = $1 and request = $2 and received_at <= $3";
const INSERT_RECEIPT: &str = "\
    insert into webhook_receipts (webhook_id, request, workspace_id, event_id, received_at) \
    values ($1, $2, $3, $4, $5) on conflict (webhook_id, request) do nothing";
const EVENT_OF_RECEIPT: &str = "select event_id as value from webhook_receipts where webhook_id = $1 and request = $2";
const FORGET_RECEIPTS: &str = "delete from webhook_receipts where received_at < $1";

impl Store {
    /// Inserts a webhook, unless the workspace has `max` webhooks.
    pub async fn insert_webhook(&self, row: &WebhookRow, max: i64) -> Result<InsertedWebhook, StoreError> {
        // The change locks the seal of the workspace, so that two insertions do not exceed the limit together.
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let count: Option<i64> = change.session.one(OF_WORKSPACE, args![row.workspace_id]).await?;
                if count.unwrap_or(i64::MAX) >= max {
                    return Ok(InsertedWebhook::Full);
                }
                change.insert(row, values![&row.sealed], Vec::new()).await?;
                Ok(InsertedWebhook::Inserted)
            }
            .await
        })
    }

    /// Returns the webhook with this id in the workspace.
    pub async fn webhook(&self, workspace: WorkspaceId, id: WebhookId) -> Result<Option<WebhookRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, id]).await
    }

    /// Returns a page of the webhooks in a workspace.
    pub async fn webhooks(
        &self,
        workspace: WorkspaceId,
        page: &Page<WebhookId>,
    ) -> Result<Listed<WebhookRow, WebhookId>, StoreError> {
        self.authentic_page(PAGE, values![workspace], page).await
    }

    /// Changes a webhook that was last changed at `before`. Its secret stays as it is, because a rotation of the master key
    /// may have sealed it again. Returns `false` if the webhook was changed since or does not exist.
    pub async fn update_webhook(&self, row: &WebhookRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            change.update(args![row.id], |old: &WebhookRow| row.over(old, before)).await
        })
    }

    /// Changes a webhook like [`Store::update_webhook`], with its secret.
    pub async fn rotate_webhook(&self, row: &WebhookRow, before: UtcMillis) -> Result<bool, StoreError> {
        change!(self, &[Scope::from(row.workspace_id)], |change| {
            async {
                let is_updated = change.update(args![row.id], |old: &WebhookRow| row.over(old, before)).await?;
                if is_updated {
                    change.session.run(SET_SECRET, args![row.workspace_id, row.id, &row.sealed]).await?;
                }
                Ok(is_updated)
            }
            .await
        })
    }

    /// Deletes a webhook that was last changed at `before`, with its receipts. Its events are kept. Returns `false` if the
    /// webhook was changed since or does not exist.
    pub async fn delete_webhook(
        &self,
        workspace: WorkspaceId,
        id: WebhookId,
        before: UtcMillis,
    ) -> Result<bool, StoreError> {
        let may = |row: &WebhookRow| row.workspace_id == workspace && row.updated_at == before;
        change!(self, &[Scope::from(workspace)], |change| change.delete(args![id], may).await)
    }

    /// Inserts the event of a request to a webhook. Of requests with the same receipt, one inserts its event. `webhook` is
    /// the row that has authenticated the request.
    pub async fn receive_event(
        &self,
        webhook: &WebhookRow,
        event: &EventRow,
        receipt: Option<&Receipt>,
    ) -> Result<ReceivedEvent, StoreError> {
        let WebhookRow { id, workspace_id, updated_at, secret_created_at, .. } = webhook;
        retry!(async {
            let mut session = self.db.write().await?;
            let row = args![*workspace_id, *id, *updated_at, *secret_created_at];
            if session.run(LOCK, row).await? == 0 {
                return Ok(ReceivedEvent::Changed);
            }
            if let Some(Receipt { request, since }) = receipt {
                session.run(FORGET_RECEIPT, args![*id, request, *since]).await?;
                let values = args![*id, request, *workspace_id, event.id, event.created_at];
                if session.run(INSERT_RECEIPT, values).await? == 0 {
                    let first: Option<String> = session.one(EVENT_OF_RECEIPT, args![*id, request]).await?;
                    let first = first.and_then(|id| id.parse().ok());
                    return first.map(ReceivedEvent::Repeated).ok_or(StoreError::ChangedMeanwhile);
                }
            }
            if !event.insert(&mut session).await? {
                return Err(StoreError::UnknownReference);
            }
            session.commit().await?;
            Ok(ReceivedEvent::Inserted)
        })
    }

    /// Deletes the receipts of requests that arrived before a time. Returns their number.
    pub async fn forget_webhook_receipts(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run(FORGET_RECEIPTS, args![before]).await
    }
}

impl WebhookRow {
    /// Returns this row if it may replace `old`, which must have been changed last at `before`.
    fn over(&self, old: &WebhookRow, before: UtcMillis) -> Option<WebhookRow> {
        let may = old.workspace_id == self.workspace_id && old.updated_at == before;
        may.then(|| WebhookRow { created_at: old.created_at, ..self.clone() })
    }
}
