//! The platform functions of the type `mcp`, which infrastructure code with a root key calls: the approved tools of a
//! server, under the names that the server uses.

use std::sync::Arc;

use monstrum_guardian::Permit;
use monstrum_types::{CallOutcome, Code, Effort, InputError, JsonText, ObjectParams, Overrun, Params};
use serde_json::{Map, Value, json};

use super::{Bounds, call};
use crate::call::check::check_params;
use crate::call::permitted::Execution;
use crate::call_types::refusal::{Refusal, invalid_params};
use crate::checks::{Asker, Unchecked, pay_for_object};
use crate::mcp::Mcp;
use crate::plugins::Tool;
use crate::plugins::built_in::{MCP_CALL_TOOL, MCP_LIST_TOOLS};
use crate::policy::Resource;

/// Runs a platform function.
pub(super) async fn run(
    mcp: &Arc<Mcp>,
    execution: &Execution<'_>,
    permit: &Permit,
    function: &str,
    bounds: Bounds,
) -> CallOutcome {
    let ran = async {
        let resource = execution.target.resource.as_ref();
        let resource = resource.ok_or_else(|| invalid("/resource_id", "a resource of type `mcp` is required"))?;
        match function {
            MCP_LIST_TOOLS => list(execution, resource, permit.params(), bounds).await,
            MCP_CALL_TOOL => {
                let (tool, params) = chosen(execution, resource, permit.params(), bounds).await?;
                let outcome = call(mcp, execution, &tool, params.members(), bounds).await;
                Ok(execution.checked(Some(&tool), outcome, bounds.until).await)
            }
            _ => Err(Box::new(CallOutcome::error(Code::Unavailable, "this server cannot run the function"))),
        }
    };
    ran.await.unwrap_or_else(|refusal: Refusal| *refusal)
}

fn invalid(path: &str, message: impl Into<String>) -> Refusal {
    Box::new(invalid_params(&[InputError { path: path.to_owned(), message: message.into() }]))
}

/// Runs a check that depends on the tools of the resource.
async fn checked<T: Send + 'static>(
    execution: &Execution<'_>,
    bounds: Bounds,
    check: impl Fn(&Effort) -> Result<T, Overrun> + Send + 'static,
) -> Result<T, Refusal> {
    let (workspace, bot) = (execution.call.workspace(), execution.call.bot());
    let share = execution.pipeline.policy.load().share_of_host(workspace);
    let asker = Asker { workspace, bot, share, until: bounds.until };
    execution.pipeline.checks.run(asker, check).await.map_err(Unchecked::refusal)
}

async fn list(
    execution: &Execution<'_>,
    resource: &Arc<Resource>,
    params: &Map<String, Value>,
    bounds: Bounds,
) -> Result<CallOutcome, Refusal> {
    only(params, &[])?;
    let resource = Arc::clone(resource);
    let listed = checked(execution, bounds, move |effort| {
        let mut listed = Vec::new();
        for tool in resource.tools(effort)? {
            let Some(remote) = &tool.remote else { continue };
            let manifest = &tool.manifest;
            pay_for_object(&manifest.input_schema, effort)?;
            let mut shown = json!({
                "name": remote.original_name,
                "tool": manifest.name,
                "description": manifest.description,
                "effect": manifest.effect,
                "input_schema": manifest.input_schema,
            });
            if let Some(schema) = &manifest.output_schema {
                pay_for_object(schema, effort)?;
                shown["output_schema"] = json!(schema);
            }
            listed.push(shown);
        }
        Ok(JsonText::from(&json!({ "tools": listed })))
    });
    Ok(CallOutcome::success(listed.await?))
}

/// Returns the tool that the parameters name, and its arguments, which match its schema.
async fn chosen(
    execution: &Execution<'_>,
    resource: &Arc<Resource>,
    params: &Map<String, Value>,
    bounds: Bounds,
) -> Result<(Arc<Tool>, ObjectParams), Refusal> {
    only(params, &["tool", "arguments"])?;
    let Some(Value::String(name)) = params.get("tool") else {
        return Err(invalid("/tool", "expected the name of a tool at the server"));
    };
    let arguments = match params.get("arguments") {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) => return Err(invalid("/arguments", "expected an object")),
    };
    let (resource, name, arguments) = (Arc::clone(resource), name.clone(), Params::new(Value::Object(arguments)));
    let chosen = checked(execution, bounds, move |effort| {
        let is_named = |tool: &&Arc<Tool>| tool.remote.as_ref().is_some_and(|remote| *remote.original_name == *name);
        let Some(tool) = resource.tools(effort)?.iter().find(is_named) else {
            return Ok(Err(invalid("/tool", "the resource has no approved tool of this name")));
        };
        let checked = check_params(tool, &arguments, effort)?;
        let within = |fault: InputError| InputError { path: format!("/arguments{}", fault.path), ..fault };
        let refused =
            |faults: Vec<InputError>| Box::new(invalid_params(&faults.into_iter().map(within).collect::<Vec<_>>()));
        Ok(checked.map(|params| (Arc::clone(tool), params)).map_err(refused))
    });
    chosen.await?
}

/// Rejects parameters other than `known`.
fn only(params: &Map<String, Value>, known: &[&str]) -> Result<(), Refusal> {
    match params.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(invalid("", format!("unknown parameter `{}`", name.escape_debug()))),
        None => Ok(()),
    }
}
