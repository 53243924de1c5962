//! `/api/attention`: what needs a person.

use axum::Json;
use monstrum_api::attention::Attention;
use monstrum_core::operations::{Person, attention as items};

use crate::gateway::http::answer::Answer;
use crate::gateway::http::state::Host;

/// Lists what needs the attention of a person
///
/// Approver keys see approvals only, and only root keys see plugins and the provider of sandboxes.
#[utoipa::path(get, path = "/api/attention", tag = "overview", responses((status = 200, body = Attention)))]
pub(super) async fn attention(app: Host, caller: Person) -> Answer<Attention> {
    Ok(Json(items::list(&app, &caller).await?))
}
