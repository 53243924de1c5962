//! Plugins of the registry.

use serde::Serialize;
use utoipa::ToSchema;

use crate::list::lists;

/// A plugin of the registry.
#[derive(Serialize, ToSchema)]
pub struct Available {
    pub name: String,
    pub description: String,
    pub author: String,
    pub license: String,
    pub tags: Vec<String>,
    /// What an install without a version takes; null where there are only pre-releases.
    pub version: Option<String>,
    /// All versions, newest first.
    pub versions: Vec<String>,
}

lists! {
    Available => AvailableList "A page of the registry.",
}
