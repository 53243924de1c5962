//! What needs the attention of a person.

use monstrum_types::UtcMillis;
use serde::Serialize;
use utoipa::ToSchema;

/// The kind of an item that needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// An approval waits for a decision. `id` is the approval, and `name` is the tool or the step of a workflow.
    Approval,
    /// The provider of sandboxes is not ready, and bots use sandboxes. Only a root key sees this item.
    Sandbox,
    /// A plugin could not be loaded, or one of its versions waits for approval. `id` is the name of the plugin. Only a root
    /// key sees these items.
    Plugin,
    /// The credential of a resource needs an authorization, or it has expired or expires within 7 days. `id` is the
    /// resource.
    Credential,
    /// A bot has spent more than 80 % of its monthly budget. `id` is the bot.
    Budget,
    /// Five failures in a row have paused a schedule. `id` is the schedule.
    Schedule,
}

/// An item that needs attention.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttentionItem {
    pub kind: AttentionKind,
    pub id: String,
    pub name: String,
    /// The reason, as a text for people.
    pub text: String,
    /// The time since which the item needs attention; null if it is unknown.
    pub since: Option<UtcMillis>,
}

/// What needs attention, at most 100 items. If there are more, each kind keeps its first items.
#[derive(Debug, Serialize, ToSchema)]
pub struct Attention {
    pub items: Vec<AttentionItem>,
}
