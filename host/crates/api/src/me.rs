//! The key of a request, what it may do, and links that log a browser in to the console.

use monstrum_types::{BotId, KeyId, KeyKind, ResourceId, UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The key of the request.
#[derive(Serialize, ToSchema)]
pub struct Me {
    pub key_id: KeyId,
    /// The name of the key.
    pub name: String,
    pub kind: KeyKind,
    /// The name of the workspace in which the request acts.
    pub workspace: String,
    pub workspace_id: WorkspaceId,
    /// The bot of a bot key. Absent for other keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<BotId>,
    /// The resource of an agent key. Absent for other keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<ResourceId>,
    /// The ids of the operations of this description that keys of this kind may use, in alphabetical order. A request can
    /// still be refused, for example because it changes a field that only an admin key can change.
    pub may: Vec<String>,
}

/// A request for a link to the console.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTicket {
    /// The number of seconds for which the link is valid.
    #[schema(minimum = 1, maximum = 600, default = 60)]
    pub ttl_s: Option<u32>,
}

/// A link that logs a browser in to the console, once.
#[derive(Serialize, ToSchema)]
pub struct Ticket {
    pub url: String,
    pub expires_at: UtcMillis,
}
