//! The search for objects by name.

use serde::Serialize;
use utoipa::ToSchema;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FoundKind {
    Bot,
    Resource,
    Role,
    Plugin,
    ResourceType,
    Tool,
    /// A call, whose id is the id of its request.
    Call,
    /// A change, whose id is the id of its request.
    Change,
}

/// An object that a search has found.
#[derive(Debug, Serialize, ToSchema)]
pub struct Found {
    pub kind: FoundKind,
    /// The id of the object. Plugins and tools have their names as ids.
    pub id: String,
    pub name: String,
    /// The resource or the resource type of a tool, the resource type of a resource, and the bot of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<FoundParent>,
}

/// The object to which a found object belongs.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundParent {
    pub kind: FoundKind,
    pub id: String,
    pub name: String,
}

/// The result of a search: at most 20 objects, the best match first.
#[derive(Debug, Serialize, ToSchema)]
pub struct SearchResult {
    pub items: Vec<Found>,
}
