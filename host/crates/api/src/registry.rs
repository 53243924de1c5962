//! Plugins in the registry.

use serde::Serialize;
use utoipa::ToSchema;

use crate::list::lists;

/// A plugin in the registry.
#[derive(Serialize, ToSchema)]
pub struct Available {
    pub name: String,
    pub description: String,
    pub author: String,
    pub license: String,
    pub tags: Vec<String>,
    /// The newest release, which is installed by default. Null if all versions are pre-releases.
    pub version: Option<String>,
    /// All versions, newest first.
    pub versions: Vec<String>,
}

lists! {
    Available => AvailableList "A page of plugins in the registry.",
}
