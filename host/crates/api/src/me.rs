//! The key of a request, and what it may do.

use monstrum_types::{BotId, KeyId, KeyKind, ResourceId, WorkspaceId};
use serde::Serialize;
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
