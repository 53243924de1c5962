//! Events: they are stored, dispatched, and start tasks of the bots that subscribe to them, and runs of workflows.

mod forged;
mod guests;
mod hosts;
mod loops;
mod platform;
mod routes;
mod starting;
mod subscriptions;
mod triggers;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::Api;

use crate::http::made;
use crate::world::{eventually, text};

/// Subscribes a bot, with these further fields. Returns the id of the subscription.
async fn subscribe(api: &Api, bot: &str, pattern: &str, fields: &Value) -> Result<String> {
    let mut body = json!({ "bot_id": bot, "pattern": pattern, "instruction": "Look at {data}." });
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields.clone()) {
        body.extend(fields);
    }
    made(api, "/api/subscriptions", &body).await
}

/// Emits an event with these fields. Returns its id.
async fn emit(api: &Api, name: &str, fields: &Value) -> Result<String> {
    let mut body = json!({ "name": name });
    if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields.clone()) {
        body.extend(fields);
    }
    let (status, emitted) = api.post("/api/events", &body).await?;
    ensure!(status == 201, "{status} {emitted}");
    Ok(text(&emitted["event_id"]).to_owned())
}

/// Waits until an event is dispatched and none of its deliveries is pending. Returns the event.
async fn delivered(api: &Api, id: &str) -> Result<Value> {
    eventually("the event is delivered", async || {
        let (status, event) = api.get(&format!("/api/events/{id}")).await?;
        ensure!(status == 200, "{status} {event}");
        let deliveries = event["deliveries"].as_array().cloned().unwrap_or_default();
        let is_over = deliveries.iter().all(|delivery| delivery["status"] != "pending");
        Ok((!event["sequence"].is_null() && is_over).then_some(event))
    })
    .await
}

/// Returns the events of a type, newest first.
async fn events(api: &Api, event_type: &str) -> Result<Vec<Value>> {
    let (status, listed) = api.get(&format!("/api/events?event_type={event_type}&limit=1000")).await?;
    ensure!(status == 200, "{status} {listed}");
    Ok(listed["items"].as_array().cloned().unwrap_or_default())
}

/// Returns the tasks of the workspace.
async fn tasks(api: &Api) -> Result<Vec<Value>> {
    let (status, tasks) = api.get("/api/tasks").await?;
    ensure!(status == 200, "{status} {tasks}");
    Ok(tasks["items"].as_array().cloned().unwrap_or_default())
}
