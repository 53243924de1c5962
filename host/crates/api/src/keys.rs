//! API keys.

use monstrum_types::{BotId, KeyId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The instance: workspaces, plugins, audit verification; acts in `default` or the workspace that the header
    /// `Monstrum-Workspace` names.
    Root,
    /// Everything in its workspace.
    Admin,
    /// All of that but keys, credentials, permissions and the configuration and network of resources.
    Operator,
    /// The tools of one bot.
    Bot,
}

/// What is known of a key.
#[derive(Serialize, ToSchema)]
pub struct Key {
    pub id: KeyId,
    pub name: String,
    pub kind: Kind,
    /// The bot of a bot key.
    pub bot_id: Option<BotId>,
    /// The first characters of the key, by which its owner knows it.
    pub prefix: String,
    pub created_at: UtcMillis,
    /// When a request last came with it, or up to a minute before; null for never.
    pub last_used_at: Option<UtcMillis>,
}

/// A key that was just made or rotated. Its text is shown this once.
#[derive(Serialize, ToSchema)]
pub struct ShownKey {
    pub id: KeyId,
    /// `mk_` and 256 random bits: keep it, it cannot be shown again.
    pub key: String,
    pub name: String,
    pub kind: Kind,
    pub bot_id: Option<BotId>,
    pub prefix: String,
    pub created_at: UtcMillis,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeyInput {
    pub name: String,
    pub kind: Kind,
    /// Required for a bot key, and only there.
    pub bot_id: Option<BotId>,
}

lists! {
    Key => KeyList "A page of keys.",
}
