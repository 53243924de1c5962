//! Workflows: documents with steps, their versions, and their triggers.

mod command;
mod definitions;
mod forged;
mod starts;
mod triggers;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;

use crate::http::made;

/// Returns the definition of a workflow with one step, which has no effect but an event.
pub(crate) fn definition(name: &str, bot: &str) -> String {
    definition_with(name, bot, "{ id: tell, emit: told }")
}

/// Returns the definition of a workflow with this step.
pub(crate) fn definition_with(name: &str, bot: &str, step: &str) -> String {
    format!("workflow: {name}\nbot: {bot}\nsteps:\n  - {step}\n")
}

/// Returns the body of a new workflow.
pub(crate) fn new_workflow(name: &str, bot: &str) -> Value {
    json!({ "definition": definition(name, bot) })
}

/// Creates a workflow with one step. Returns its path.
async fn workflow(api: &Api, name: &str, bot: &str) -> Result<String> {
    Ok(format!("/api/workflows/{}", made(api, "/api/workflows", &new_workflow(name, bot)).await?))
}

async fn show(api: &Api, path: &str) -> Result<Value> {
    let (status, shown) = api.get(path).await?;
    ensure!(status == 200, "{path}: {status} {shown}");
    Ok(shown)
}

/// Returns the names of the changes in the audit, newest first.
async fn changes(api: &Api) -> Result<Vec<String>> {
    let changes = show(api, "/api/audit/changes?limit=1000").await?;
    let names = changes["items"].as_array().into_iter().flatten();
    Ok(names.filter_map(|change| change["change"].as_str().map(str::to_owned)).collect())
}
