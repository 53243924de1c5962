//! The key of a request, and links that log a browser in to the console.

use monstrum_types::{BotId, KeyId, KeyKind, UtcMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The API key of the request.
#[derive(Serialize, ToSchema)]
pub struct Me {
    pub key_id: KeyId,
    pub name: String,
    pub kind: KeyKind,
    /// The name of the workspace in which the request acts.
    pub workspace: String,
    pub workspace_id: WorkspaceId,
    /// The bot of a bot key. Absent for other keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<BotId>,
    /// The operation ids of the routes that keys of this kind may call. Such a route can still refuse a single object.
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
