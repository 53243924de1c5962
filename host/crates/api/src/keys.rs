//! API keys.

use monstrum_types::{BotId, KeyId, KeyKind, ResourceId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::list::lists;

/// The metadata of an API key. The text of the key is not included.
#[derive(Serialize, ToSchema)]
pub struct Key {
    pub id: KeyId,
    pub name: String,
    pub kind: KeyKind,
    /// The bot whose tools a bot key may use. Null for other keys.
    pub bot_id: Option<BotId>,
    /// The resource to which an agent key connects agents. Null for other keys.
    pub resource_id: Option<ResourceId>,
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
    pub kind: KeyKind,
    pub bot_id: Option<BotId>,
    pub resource_id: Option<ResourceId>,
    pub prefix: String,
    pub created_at: UtcMillis,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeyInput {
    pub name: String,
    pub kind: KeyKind,
    /// The bot whose tools a bot key may use. Required for bot keys and not allowed for other keys.
    pub bot_id: Option<BotId>,
    /// The resource of type `agent` to which an agent key connects agents. Required for agent keys and not allowed for
    /// other keys.
    pub resource_id: Option<ResourceId>,
}

lists! {
    Key => KeyList "A page of keys.",
}
