//! What runs start and wait for: other runs, and events.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;

use super::{definition_with, show};
use crate::http::made;
use crate::world::{World, eventually, text};

/// Creates a workflow with one step. Returns its path.
async fn workflow(api: &Api, name: &str, bot: &str, step: &str) -> Result<String> {
    let body = json!({ "definition": definition_with(name, bot, step) });
    Ok(format!("/api/workflows/{}", made(api, "/api/workflows", &body).await?))
}

/// Starts a run. Returns its path.
async fn start(api: &Api, workflow: &str, input: &Value) -> Result<String> {
    let (status, run) = api.post(&format!("{workflow}/runs"), &json!({ "input": input })).await?;
    ensure!(status == 202, "{status} {run}");
    Ok(format!("/api/runs/{}", text(&run["id"])))
}

/// Waits for the end of a run. Returns the run.
async fn ended(api: &Api, run: &str) -> Result<Value> {
    eventually("the run has ended", async || {
        let run = show(api, run).await?;
        Ok((!run["ended_at"].is_null()).then_some(run))
    })
    .await
}

/// Returns the runs of a workflow.
async fn runs(api: &Api, workflow: &str) -> Result<Vec<Value>> {
    let runs = show(api, &format!("{workflow}/runs")).await?;
    Ok(runs["items"].as_array().cloned().unwrap_or_default())
}

#[tokio::test]
async fn runs_start_each_other_in_chains_of_at_most_eight() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let mut paths = vec![workflow(api, "w9", &world.bot, "{ id: tell, emit: told }").await?];
    for number in (1..9).rev() {
        let step = format!("{{ id: next, workflow: w{} }}", number + 1);
        paths.push(workflow(api, &format!("w{number}"), &world.bot, &step).await?);
    }
    let [beyond, last, .., second, first] = paths.as_slice() else { anyhow::bail!("nine workflows") };
    let run = ended(api, &start(api, first, &json!({})).await?).await?;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("limit")), "{run}");
    assert_eq!((runs(api, last).await?.len(), runs(api, beyond).await?.len()), (1, 0));
    // A shorter chain has room.
    let run = ended(api, &start(api, second, &json!({})).await?).await?;
    assert_eq!(run["status"], "completed", "{run}");
    let below = runs(api, beyond).await?;
    assert_eq!((below.len(), &below[0]["started_by"]["kind"]), (1, &json!("run")));
    Ok(())
}

#[tokio::test]
async fn a_step_runs_another_workflow_of_its_bot_with_an_input_that_fits() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let definition = format!(
        "workflow: inner\nbot: {}\ninput: {{ type: object, required: [n], properties: {{ n: {{ type: integer }} }} }}\n\
         steps: [{{ id: tell, emit: told }}]\noutput: {{ twice: \"${{{{ input.n * 2 }}}}\" }}\n",
        world.bot
    );
    let inner = format!("/api/workflows/{}", made(api, "/api/workflows", &json!({ "definition": definition })).await?);
    let other = api.bot("other").await?;
    workflow(api, "foreign", &other, "{ id: tell, emit: told }").await?;
    let outer = async |name: &str, step: &str| {
        let definition = format!("{}output: \"${{{{ steps.next.data }}}}\"\n", definition_with(name, &world.bot, step));
        let path = made(api, "/api/workflows", &json!({ "definition": definition })).await?;
        ended(api, &start(api, &format!("/api/workflows/{path}"), &json!({ "n": "x" })).await?).await
    };
    let done = outer("fits", "{ id: next, workflow: inner, input: { n: 21 } }").await?;
    assert_eq!((&done["status"], &done["output"]), (&json!("completed"), &json!({ "twice": 42 })), "{done}");
    let codes = [
        ("misfit", "{ id: next, workflow: inner, input: { n: \"${{ input.n }}\" } }", "invalid_params"),
        ("absent", "{ id: next, workflow: nothing }", "not_found"),
        ("stranger", "{ id: next, workflow: foreign }", "not_found"),
    ];
    for (name, step, code) in codes {
        let run = outer(name, step).await?;
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!(code)), "{run}");
    }
    assert_eq!(api.patch(&inner, &json!({ "enabled": false })).await?.0, 200);
    let run = outer("disabled", "{ id: next, workflow: inner, input: { n: 1 } }").await?;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("disabled")), "{run}");
    assert_eq!(runs(api, &inner).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_cancelled_run_cancels_the_run_that_it_has_started() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let inner = workflow(api, "inner", &world.bot, "{ id: soak, wait: { for: 1h } }").await?;
    let outer = workflow(api, "outer", &world.bot, "{ id: next, workflow: inner }").await?;
    let run = start(api, &outer, &json!({})).await?;
    let below = eventually("the other run waits", async || {
        Ok(runs(api, &inner).await?.into_iter().find(|run| run["status"] == "waiting"))
    })
    .await?;
    assert_eq!(below["parent_run_id"], text(&show(api, &run).await?["id"]));
    let (status, cancelled) = api.post(&format!("{run}/cancel"), &json!({})).await?;
    ensure!(matches!(status, 200 | 202), "{status} {cancelled}");
    assert_eq!(ended(api, &run).await?["status"], "cancelled");
    assert_eq!(ended(api, &format!("/api/runs/{}", text(&below["id"]))).await?["status"], "cancelled");
    Ok(())
}

#[tokio::test]
async fn a_step_waits_for_an_event_of_its_bot_or_of_the_platform() -> Result<()> {
    let world = World::with(&[]).await?;
    let (api, bot) = (&world.api, &world.bot);
    let weak = api.bot("weak").await?;
    let step = "{ id: healthy, wait: { event: custom.deployed, match: { version: \"${{ input.version }}\" } } }";
    let definition = format!("{}output: \"${{{{ steps.healthy.data }}}}\"\n", definition_with("release", bot, step));
    let path = made(api, "/api/workflows", &json!({ "definition": definition })).await?;
    let run = start(api, &format!("/api/workflows/{path}"), &json!({ "version": "2" })).await?;
    eventually("the run waits", async || Ok((show(api, &run).await?["status"] == "waiting").then_some(()))).await?;
    let emit = async |name: &str, bot: Option<&str>, version: &str| {
        let body = json!({ "name": name, "bot_id": bot, "data": { "version": version } });
        let (status, emitted) = api.post("/api/events", &body).await?;
        ensure!(status == 201, "{status} {emitted}");
        Ok::<_, anyhow::Error>(text(&emitted["event_id"]).to_owned())
    };
    emit("deployed", Some(weak.as_str()), "2").await?;
    emit("sent", None, "2").await?;
    emit("deployed", None, "1").await?;
    let event = emit("deployed", Some(bot.as_str()), "2").await?;
    let run = ended(api, &run).await?;
    assert_eq!((&run["status"], &run["output"]["id"]), (&json!("completed"), &json!(event)), "{run}");
    assert_eq!((&run["output"]["data"], &run["labels"]), (&json!({ "version": "2" }), &json!(["untrusted"])), "{run}");
    Ok(())
}
