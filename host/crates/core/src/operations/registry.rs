//! Plugins that can be installed by name. These operations require a root key, because plugins belong to the instance.

use monstrum_api::registry::{Available, AvailableList};
use monstrum_package::Listing;
use monstrum_store::Page;

use super::list;
use super::{OperationError, Root};
use crate::app::App;
use crate::plugins::packages::PackageError;

fn view(listing: Listing) -> Available {
    Available {
        name: listing.name.to_string(),
        description: listing.description,
        author: listing.author,
        license: listing.license,
        tags: listing.tags,
        version: listing.newest.map(|version| version.to_string()),
        versions: listing.versions.iter().map(ToString::to_string).collect(),
    }
}

/// Searches the registry.
pub async fn list(app: &App, _: &Root, search: &str, page: &Page<String>) -> Result<AvailableList, OperationError> {
    let absent = || OperationError::NotFound("no registry is configured; start the server with --registry".to_owned());
    let registry = app.packages.registry().ok_or_else(absent)?;
    let index = registry.index().await.map_err(PackageError::from)?;
    let found = index.search(search);
    Ok(list::page_by_name(found, page, |listing| listing.name.as_str(), view))
}
