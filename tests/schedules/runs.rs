//! Schedules that start runs of workflows.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;

use super::{fired, show, soon};
use crate::http::made;
use crate::tasks::Tasks;
use crate::world::{eventually, text};

/// Creates a workflow that emits an event and has its input and its schedule in the output. Returns its id.
async fn workflow(api: &Api, bot: &str) -> Result<String> {
    let definition = format!(
        "workflow: report\nbot: {bot}\n\
         input: {{ type: object, required: [repo], properties: {{ repo: {{ type: string }} }} }}\n\
         steps:\n  - {{ id: tell, emit: told, data: {{ repo: \"${{{{ input.repo }}}}\" }} }}\n\
         output: {{ repo: \"${{{{ input.repo }}}}\", schedule: \"${{{{ schedule.name }}}}\" }}\n"
    );
    made(api, "/api/workflows", &json!({ "definition": definition })).await
}

fn schedule(workflow: &str, fields: &Value) -> Value {
    let mut body = json!({ "name": "weekly", "workflow_id": workflow, "input": { "repo": "acme/web" } });
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields.clone()) {
        body.extend(fields);
    }
    body
}

#[tokio::test]
async fn a_schedule_starts_a_run_of_its_workflow() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    let workflow = workflow(api, bot).await?;
    let at = soon();
    let id = made(api, "/api/schedules", &schedule(&workflow, &json!({ "at": at }))).await?;
    let shown = show(api, &id).await?;
    assert_eq!((text(&shown["bot_id"]), text(&shown["workflow_id"])), (bot.as_str(), workflow.as_str()));
    assert_eq!((&shown["instruction"], &shown["input"]), (&Value::Null, &json!({ "repo": "acme/web" })));
    let schedule = fired(api, &id, "completed").await?;
    assert_eq!((&schedule["last"]["task_id"], &schedule["failures"]), (&Value::Null, &json!(0)));
    let (_, run) = api.get(&format!("/api/runs/{}", text(&schedule["last"]["run_id"]))).await?;
    assert_eq!(run["started_by"], json!({ "kind": "schedule", "id": id }), "{run}");
    assert_eq!(run["output"], json!({ "repo": "acme/web", "schedule": "weekly" }), "{run}");
    let (_, listed) = api.get(&format!("/api/runs?started_by={id}")).await?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    Ok(())
}

#[tokio::test]
async fn a_person_fires_a_schedule_of_a_workflow() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    let workflow = workflow(api, bot).await?;
    let off = json!({ "every_s": 3600, "enabled": false });
    let id = made(api, "/api/schedules", &schedule(&workflow, &off)).await?;
    let (status, run) = api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    ensure!(status == 202, "{status} {run}");
    assert_eq!((text(&run["workflow"]), text(&run["workflow_id"])), ("report", workflow.as_str()));
    let schedule = fired(api, &id, "completed").await?;
    assert_eq!(schedule["last"]["run_id"], run["id"]);
    Ok(())
}

#[tokio::test]
async fn a_workflow_that_takes_no_run_is_a_failure_of_the_schedule() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    let workflow = workflow(api, bot).await?;
    let id = made(api, "/api/schedules", &schedule(&workflow, &json!({ "at": soon() }))).await?;
    let (status, _) = api.patch(&format!("/api/workflows/{workflow}"), &json!({ "enabled": false })).await?;
    ensure!(status == 200, "{status}");
    let failed = fired(api, &id, "failed").await?;
    assert_eq!((&failed["failures"], &failed["last"]["run_id"]), (&json!(1), &Value::Null));
    let (status, refused) = api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    assert_eq!(status, 409, "{refused}");
    let (_, runs) = api.get("/api/runs").await?;
    assert_eq!(runs["items"], json!([]), "{runs}");
    Ok(())
}

/// A new version of the workflow can ask for what the input of the schedule does not have.
#[tokio::test]
async fn the_input_has_to_fit_the_newest_version() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, bot) = (world.api(), &world.world.bot);
    let workflow = workflow(api, bot).await?;
    for (fields, path) in [
        (json!({ "input": { "repo": 1 } }), "/input/repo"),
        (json!({ "workflow_id": "01980000-0000-7000-8000-000000000000" }), "/workflow_id"),
        (json!({ "bot_id": bot }), "/bot_id"),
        (json!({ "instruction": "Look." }), "/instruction"),
    ] {
        let mut body = schedule(&workflow, &json!({ "every_s": 3600 }));
        body.as_object_mut().into_iter().for_each(|body| body.extend(fields.as_object().cloned().unwrap_or_default()));
        let (status, refused) = api.post("/api/schedules", &body).await?;
        assert_eq!((status, text(&refused["errors"][0]["path"])), (422, path), "{refused}");
    }
    let id = made(api, "/api/schedules", &schedule(&workflow, &json!({ "at": soon() }))).await?;
    let refused = api.patch(&format!("/api/schedules/{id}"), &json!({ "input": {} })).await?;
    assert_eq!(refused.0, 422, "{}", refused.1);
    let definition = format!(
        "workflow: report\nbot: {bot}\ninput: {{ type: object, required: [version] }}\n\
         steps:\n  - {{ id: tell, emit: told }}\n"
    );
    let (status, _) = api.patch(&format!("/api/workflows/{workflow}"), &json!({ "definition": definition })).await?;
    ensure!(status == 200, "{status}");
    let failed = eventually("the schedule fails", async || {
        let schedule = show(api, &id).await?;
        Ok((schedule["last"]["status"] == "failed").then_some(schedule))
    })
    .await?;
    assert_eq!(failed["failures"], json!(1));
    Ok(())
}
