//! Subscriptions: which events start tasks of a bot.

use monstrum_types::{BotId, SubscriptionId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;
use crate::patch::{not_null, nullable};
use crate::schedules::MadeBy;
use crate::tasks::Narrow;

/// A subscription: which events start tasks of a bot.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Subscription {
    pub id: SubscriptionId,
    pub bot_id: BotId,
    /// A glob over the types of events.
    #[schema(example = "custom.order.*")]
    pub pattern: String,
    /// What the bot is to do, with the placeholders `{event_type}`, `{source_type}`, `{source_id}`, `{data}` and
    /// `{metadata}`.
    #[schema(example = "An order was paid: {data}. Thank the customer.")]
    pub instruction: String,
    /// Whose events match: `own`, `platform`, `any` or ids of bots.
    #[schema(example = json!(["own", "platform"]))]
    pub from: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrow: Option<Narrow>,
    /// An inactive or expired subscription matches nothing.
    pub active: bool,
    /// Who made the subscription. The subscription goes on when the key is deleted.
    pub made_by: MadeBy,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
}

/// A subscription to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSubscription {
    pub bot_id: BotId,
    /// A glob over the types of events, at most 256 characters.
    pub pattern: String,
    /// At most 8 KiB. `{{` and `}}` are braces; each placeholder becomes a value of the event in a frame.
    pub instruction: String,
    /// Whose events match; by default `own` and `platform`. `any` and the ids of other bots need an admin.
    pub from: Option<Vec<String>>,
    /// What the tasks may do less than the bot.
    pub narrow: Option<Narrow>,
    #[serde(default = "is_active")]
    #[schema(default = true)]
    pub active: bool,
    /// The time from which the subscription matches nothing.
    pub expires_at: Option<UtcMillis>,
}

fn is_active() -> bool {
    true
}

/// A change of a subscription.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubscriptionChange {
    #[serde(default, deserialize_with = "not_null")]
    pub pattern: Option<String>,
    #[serde(default, deserialize_with = "not_null")]
    pub instruction: Option<String>,
    /// Null sets the default, `own` and `platform`.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<String>>)]
    pub from: Option<Option<Vec<String>>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Narrow>)]
    pub narrow: Option<Option<Narrow>>,
    #[serde(default, deserialize_with = "not_null")]
    pub active: Option<bool>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<UtcMillis>)]
    pub expires_at: Option<Option<UtcMillis>>,
}

lists! {
    Subscription => SubscriptionList "A page of subscriptions.",
}
