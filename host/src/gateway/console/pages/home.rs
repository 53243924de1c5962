//! The first page after a log-in.

use crate::gateway::console::page::{self, Page};
use crate::gateway::console::visit::Visit;

/// Redirects to the first page that the key of the session may read.
pub(in crate::gateway::console) async fn show(visit: Visit) -> Page {
    let section = if visit.may("audit_list") { "overview" } else { "approvals" };
    Ok(page::see_other(&visit.to(section)))
}
