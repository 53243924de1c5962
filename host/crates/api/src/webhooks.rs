//! Webhooks: routes by which systems outside make events.

use monstrum_types::{BotId, EventId, UtcMillis, WebhookId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};

/// A webhook: a route by which a system outside makes events.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Webhook {
    pub id: WebhookId,
    /// The address to which the system outside sends its requests.
    #[schema(example = "https://monstrum.example/hooks/01939d2c-7f6a-7000-8000-000000000001")]
    pub url: String,
    pub name: String,
    /// The events have the type `custom.` and this name.
    #[schema(example = "github.push")]
    pub event: String,
    /// The bot to which the events belong. Absent for events of the platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<BotId>,
    pub verify: WebhookVerify,
    /// The headers that become part of the event.
    pub headers: Vec<String>,
    /// The header whose value makes one event of repeated requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_header: Option<String>,
    /// The time at which the secret was made.
    pub secret_created_at: UtcMillis,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// A webhook with its secret, which only the answers to its creation and to a rotation show.
#[derive(Clone, Serialize, ToSchema)]
pub struct ShownWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    /// The secret: the key of the HMAC, or the bearer token.
    #[schema(example = "wh_…")]
    pub secret: String,
    /// What keeps the webhook from working as it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How the requests to a webhook are authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookVerify {
    pub kind: WebhookVerifyKind,
    /// The header with the HMAC, of `hmac_sha256` only. The default is `X-Hub-Signature-256`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "X-Hub-Signature-256")]
    pub header: Option<String>,
    /// The text before the hex digits of the HMAC, of `hmac_sha256` only. The default is `sha256=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "sha256=")]
    pub prefix: Option<String>,
}

/// What authenticates the requests to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookVerifyKind {
    /// A header has the HMAC-SHA-256 of the body under the secret, in hex digits.
    HmacSha256,
    /// The header `Authorization` is `Bearer` and the secret.
    Token,
}

/// A webhook to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    /// At most 128 characters, unique in the workspace.
    pub name: String,
    /// The name of the events: 1 to 128 of the characters `A-Z a-z 0-9 . _ : -`. `custom.` is put before it.
    pub event: String,
    /// The bot to which the events belong. By default, they are events of the platform.
    pub bot_id: Option<BotId>,
    pub verify: WebhookVerify,
    /// The names of at most 8 headers that become part of the event.
    #[serde(default)]
    #[schema(max_items = 8)]
    pub headers: Vec<String>,
    /// The header whose value makes one event of repeated requests within 24 hours.
    pub dedupe_header: Option<String>,
}

/// Changes to a webhook. The secret stays as it is.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookChange {
    #[serde(default, deserialize_with = "not_null")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    pub event: Option<String>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<BotId>)]
    pub bot_id: Option<Option<BotId>>,
    #[serde(default, deserialize_with = "not_null")]
    pub verify: Option<WebhookVerify>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>, max_items = 8)]
    pub headers: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    pub dedupe_header: Option<Option<String>>,
}

/// The event that a request to a webhook has made.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct WebhookEvent {
    pub event_id: EventId,
}

lists! {
    Webhook => WebhookList "A page of webhooks.",
}
