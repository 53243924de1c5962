//! Functions of plugins, for infrastructure code with a root key. Bots, roles and scopes do not apply to functions;
//! limits, egress and the audit do. The functions for events are those of the platform itself (`platform_events.rs`).

use monstrum_api::platform::FunctionCall;
use monstrum_api::tools::CallResult;
use monstrum_types::ResourceTypeId;

use super::platform_events::{self, EVENTS, FUNCTIONS};
use super::{OperationError, Root, calls};
use crate::app::App;
use crate::call_types::incoming::IncomingCall;
use crate::language::Language;

/// Calls a function of a plugin. The result has the status of the call.
pub async fn call(
    app: &App,
    caller: &Root,
    language: &Language,
    resource_type: ResourceTypeId,
    function: String,
    input: FunctionCall,
) -> Result<CallResult, OperationError> {
    if resource_type.as_str() == EVENTS && FUNCTIONS.contains(&function.as_str()) {
        if input.resource_id.is_some() {
            return Err(OperationError::invalid_at("/resource_id", "the functions for events have no resource"));
        }
        return platform_events::call(app, caller, &function, input.params).await;
    }
    let snapshot = app.policy.load();
    let plugin = snapshot.resource_type(&resource_type).ok_or_else(|| OperationError::not_found("resource type"))?;
    let functions = plugin.functions();
    if !functions.contains(&function.as_str()) {
        let message = match functions.as_slice() {
            [] => format!("the plugin of type `{resource_type}` has no functions"),
            names => format!(
                "the plugin of type `{resource_type}` has no function `{function}`; available functions: {}",
                names.join(", ")
            ),
        };
        return Err(OperationError::NotFound(message));
    }
    if let Some(id) = input.resource_id {
        let resource = snapshot.resource(caller.workspace, id);
        if resource.is_none_or(|resource| resource.row.resource_type != resource_type) {
            return Err(OperationError::invalid_at("/resource_id", "no such resource of this type in this workspace"));
        }
    }
    let workspace = caller.workspace;
    let call = IncomingCall::platform_function(caller.request, workspace, resource_type, function, input.params)
        .with_resource(input.resource_id)
        .with_language(language.clone())
        .with_key(caller.caller_key());
    calls::run(app, call).await
}
