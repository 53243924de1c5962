//! API keys.

use monstrum_types::{BotId, KeyId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;

/// The kind of a key, which determines what the key can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A root key may do everything, including managing workspaces and plugins and verifying the audit. A root key acts
    /// in the workspace `default`, or in the workspace that the header `Monstrum-Workspace` names.
    Root,
    /// An admin key may do everything in its workspace.
    Admin,
    /// An operator key may do everything in its workspace except manage keys, credentials, permissions, and the
    /// configuration and network of resources.
    Operator,
    /// An approver key may read and decide the approvals of its workspace, and nothing else.
    Approver,
    /// A bot key may use the tools and sandboxes of one bot.
    Bot,
}

/// The metadata of an API key. The text of the key is not included.
#[derive(Serialize, ToSchema)]
pub struct Key {
    pub id: KeyId,
    pub name: String,
    pub kind: Kind,
    /// The bot whose tools a bot key may use. Null for other keys.
    pub bot_id: Option<BotId>,
    /// The first characters of the key, which help its owner to recognize the key.
    pub prefix: String,
    pub created_at: UtcMillis,
    /// The time of the last request with this key. The actual time can be up to a minute later. Null if the key was
    /// never used.
    pub last_used_at: Option<UtcMillis>,
}

/// A new or rotated key. Only this response contains the text of the key.
#[derive(Serialize, ToSchema)]
pub struct ShownKey {
    pub id: KeyId,
    /// The text of the key: `mk_` and 256 random bits. Save the text, because it cannot be shown again.
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
    /// The bot whose tools a bot key may use. Required for bot keys and not allowed for other keys.
    pub bot_id: Option<BotId>,
}

lists! {
    Key => KeyList "A page of keys.",
}
