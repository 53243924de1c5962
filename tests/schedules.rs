//! Schedules: a bot gets a task, or a run of a workflow starts, at each of their times.

mod approvals;
mod command;
mod firing;
mod forged;
mod hosts;
mod inputs;
mod runs;

use anyhow::{Result, ensure};
use monstrum_types::{Clock as _, SystemClock, UtcMillis};
use serde_json::{Value, json};
use support::Api;

use crate::http::made;
use crate::world::eventually;

/// Returns a time that comes soon: late enough that a schedule with it can be saved first.
fn soon() -> UtcMillis {
    SystemClock.now().plus_ms(4000)
}

/// Creates a schedule of a bot with these further fields. Returns its id.
async fn schedule(api: &Api, bot: &str, name: &str, fields: &Value) -> Result<String> {
    let mut body = json!({ "name": name, "bot_id": bot, "instruction": "Is it so?" });
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields.clone()) {
        body.extend(fields);
    }
    made(api, "/api/schedules", &body).await
}

async fn show(api: &Api, id: &str) -> Result<Value> {
    let (status, schedule) = api.get(&format!("/api/schedules/{id}")).await?;
    ensure!(status == 200, "{status} {schedule}");
    Ok(schedule)
}

async fn change(api: &Api, id: &str, change: &Value) -> Result<Value> {
    let (status, schedule) = api.patch(&format!("/api/schedules/{id}"), change).await?;
    ensure!(status == 200, "{status} {schedule}");
    Ok(schedule)
}

/// Waits until the last firing of a schedule has a status. Returns the schedule.
async fn fired(api: &Api, id: &str, status: &str) -> Result<Value> {
    eventually(&format!("the last firing is {status}"), async || {
        let schedule = show(api, id).await?;
        Ok((schedule["last"]["status"] == status).then_some(schedule))
    })
    .await
}

/// Returns the tasks of the workspace.
async fn tasks(api: &Api) -> Result<Vec<Value>> {
    let (status, tasks) = api.get("/api/tasks").await?;
    ensure!(status == 200, "{status} {tasks}");
    Ok(tasks["items"].as_array().cloned().unwrap_or_default())
}
