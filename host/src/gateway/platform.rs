//! `/api/platform/{type}/{function}`: functions of plugins, for infrastructure code and its root key. They are outside of
//! bots, roles and scopes; limits, egress and the audit are those of every call.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use monstrum_types::{ResourceId, ResourceTypeId};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::gateway::extract::{Ids, Input, Root, ThisRequest};
use crate::gateway::language::InLanguage;
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::tools::{CallResult, run};
use monstrum_core::app::App;
use monstrum_core::call_types::incoming::IncomingCall;

/// A call of a function.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionCall {
    /// What the function takes; the plugin alone judges it.
    #[serde(default)]
    params: Map<String, Value>,
    /// A resource of the type, whose credential and configured upstream the function then uses. Without one it has no
    /// credential, and reaches what the plugin's manifest lists.
    resource_id: Option<ResourceId>,
}

/// Calls a function of a plugin; the answer is 200 whatever the call's status
#[utoipa::path(post, path = "/api/platform/{type}/{function}", tag = "platform",
    params(("type" = ResourceTypeId, Path), ("function" = String, Path)), request_body = FunctionCall,
    responses((status = 200, body = CallResult), (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "the audit cannot be written, so no call runs")))]
pub async fn call(
    State(app): State<Arc<App>>,
    Root(caller): Root,
    InLanguage(language): InLanguage,
    ThisRequest(request_id): ThisRequest,
    Ids(resource_type, function): Ids<ResourceTypeId, String>,
    Input(input): Input<FunctionCall>,
) -> Result<Response, Problem> {
    let snapshot = app.policy.load();
    let plugin = snapshot.resource_type(&resource_type).ok_or_else(|| Problem::not_found("resource type"))?;
    let functions = plugin.component.as_ref().map(|component| component.functions()).unwrap_or_default();
    if !functions.contains(&function) {
        let message = match functions {
            [] => format!("the plugin of type `{resource_type}` has no functions"),
            names => format!(
                "the plugin of type `{resource_type}` has no function `{function}`; it has: {}",
                names.join(", ")
            ),
        };
        return Err(Problem::absent(message));
    }
    if let Some(id) = input.resource_id {
        let resource = snapshot.resource(caller.workspace, id);
        if resource.is_none_or(|resource| resource.row.resource_type != resource_type) {
            return Err(Problem::invalid_at("/resource_id", "no such resource of this type in this workspace"));
        }
    }
    let workspace = caller.workspace;
    let call = IncomingCall::platform_function(request_id, workspace, resource_type, function, input.params)
        .with_resource(input.resource_id)
        .with_language(language)
        .with_key(caller.caller_key());
    run(&app, call).await
}
