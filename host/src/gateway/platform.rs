//! `/api/platform/{type}/{function}`: platform functions of plugins, for infrastructure code with a root key. Bots,
//! roles and scopes do not apply to these functions. Limits, egress and the audit apply as for every call.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_api::platform::FunctionCall;
use monstrum_api::tools::CallResult;
use monstrum_core::app::App;
use monstrum_core::operations::{Root, platform};
use monstrum_types::ResourceTypeId;

use crate::gateway::http::extract::{Ids, Input};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};

/// Calls a function of a plugin; the HTTP status is 200 for every status of the call
#[utoipa::path(post, path = "/api/platform/{type}/{function}", tag = "platform",
    params(("type" = ResourceTypeId, Path), ("function" = String, Path)), request_body = FunctionCall,
    responses((status = 200, body = CallResult), (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn call(
    State(app): State<Arc<App>>,
    caller: Root,
    InLanguage(language): InLanguage,
    Ids(resource_type, function): Ids<ResourceTypeId, String>,
    Input(input): Input<FunctionCall>,
) -> Result<Json<CallResult>, Problem> {
    Ok(Json(platform::call(&app, &caller, &language, resource_type, function, input).await?))
}
