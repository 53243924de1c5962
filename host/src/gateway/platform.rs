//! `/api/platform/{type}/{function}`: platform functions of plugins, for infrastructure code with a root key. Bots,
//! roles and scopes do not apply to these functions. Limits, egress and the audit apply as for every call.

use axum::Json;
use monstrum_api::platform::FunctionCall;
use monstrum_api::tools::CallResult;
use monstrum_core::operations::{Root, platform};
use monstrum_types::ResourceTypeId;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Ids, Input};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::ProblemBody;
use crate::gateway::http::state::Host;

/// Calls a function of a plugin; the HTTP status is 200 for every status of the call
#[utoipa::path(post, path = "/api/platform/{type}/{function}", tag = "platform",
    params(("type" = ResourceTypeId, Path), ("function" = String, Path)), request_body = FunctionCall,
    responses((status = 200, body = CallResult),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn call(
    app: Host,
    caller: Root,
    InLanguage(language): InLanguage,
    Ids(resource_type, function): Ids<ResourceTypeId, String>,
    Input(input): Input<FunctionCall>,
) -> Answer<CallResult> {
    Ok(Json(platform::call(&app, &caller, &language, resource_type, function, input).await?))
}
