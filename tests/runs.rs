//! Runs of workflows, on a real server with the plugins of the tests.

mod access;
mod agents;
mod approvals;
mod blocks;
mod children;
mod concurrency;
mod control;
mod failures;
mod flows;
mod forged;
mod gates;
mod hosts;
mod labels;
mod limits;
mod order;
mod revocation;
mod routes;
mod steps;
mod stream;
mod times;
mod triggers;
mod uncertain;
mod undo;
mod versions;
mod waits;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;

use crate::http::made;
use crate::world::{eventually, text};

/// Returns a workflow without effects, whose run waits for the event `custom.go`, and has its input as output.
pub(crate) fn waiting(name: &str, bot: &str) -> Value {
    let input = "{ type: object, required: [repo], properties: { repo: { type: string } } }";
    let steps = "  - { id: go, wait: { event: custom.go } }";
    json!({
        "definition": format!(
            "workflow: {name}\nbot: {bot}\ninput: {input}\nsteps:\n{steps}\noutput: {{ repo: \"${{{{ input.repo }}}}\" }}\n"
        ),
    })
}

/// Starts a run of a workflow. Returns the run.
pub(crate) async fn started(api: &Api, workflow: &str, input: &Value) -> Result<Value> {
    let (status, run) = api.post(&format!("/api/workflows/{workflow}/runs"), &json!({ "input": input })).await?;
    ensure!(status == 202, "{status} {run}");
    Ok(run)
}

/// Saves a workflow of [`waiting`], and starts a run of it that waits. Returns the workflow and the run.
pub(crate) async fn run_that_waits(api: &Api, name: &str, bot: &str, repo: &str) -> Result<(String, Value)> {
    let workflow = made(api, "/api/workflows", &waiting(name, bot)).await?;
    let run = started(api, &workflow, &json!({ "repo": repo })).await?;
    Ok((workflow, run_is(api, text(&run["id"]), "waiting").await?))
}

/// Waits until a run has this status. Returns the run.
pub(crate) async fn run_is(api: &Api, id: &str, status: &str) -> Result<Value> {
    let path = format!("/api/runs/{id}");
    eventually(&format!("the run is {status}"), async || {
        let (code, run) = api.get(&path).await?;
        ensure!(code == 200, "{path}: {code} {run}");
        Ok((run["status"] == status).then_some(run))
    })
    .await
}
