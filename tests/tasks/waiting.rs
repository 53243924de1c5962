//! Tasks whose calls wait for a person.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use support::LlmReply;

use super::{Tasks, calls, create, ended};
use crate::world::{eventually, text};

const CREATE: &str = "github_create_issue";

/// A bot whose new issues need an approval.
async fn asking() -> Result<Tasks> {
    let tasks = Tasks::start().await?;
    let gates = json!([{ "tools": [CREATE], "action": "ask" }]);
    let (status, body) =
        tasks.api().patch(&format!("/api/bots/{}", tasks.world.bot), &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(tasks)
}

async fn waiting(tasks: &Tasks, id: &str) -> Result<Value> {
    eventually("the task waits", async || {
        let (_, task) = tasks.api().get(&format!("/api/tasks/{id}")).await?;
        Ok((task["status"] == "waiting").then_some(task))
    })
    .await
}

async fn approve(tasks: &Tasks, approval: &str) -> Result<()> {
    let admin = tasks.api().with_key(&tasks.api().new_key("admin", None).await?);
    let path = format!("/api/approvals/{approval}");
    let digest = admin.get(&path).await?.1["digest"].clone();
    let (status, body) = admin.post(&path, &json!({ "decision": "approve", "digest": digest })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

#[tokio::test]
async fn a_waiting_task_names_the_approval_and_its_time_stands_still() -> Result<()> {
    let tasks = asking().await?;
    tasks.llm.prepare([calls(&[(CREATE, create("Asked"))]), LlmReply::says(&["Created."])]);
    let began = Instant::now();
    let id = tasks.begin(&json!({ "instruction": "Create an issue.", "limits": { "wall_s": 10 } })).await?;
    let task = waiting(&tasks, &id).await?;
    let (_, approvals) = tasks.api().get("/api/approvals?status=pending").await?;
    let approval = text(&approvals["items"][0]["id"]).to_owned();
    assert_eq!((&task["waiting_for"]["kind"], &task["waiting_for"]["id"]), (&json!("approval"), &json!(approval)));
    let (_, listed) = tasks.api().get("/api/tasks?status=waiting").await?;
    assert_eq!(listed["items"][0]["id"], json!(id));

    // A listener learns what the task waits for.
    let stream = tasks.api().request(Method::GET, &format!("/api/tasks/{id}/events")).send().await?;
    let mut body = stream.bytes_stream();
    let mut received = String::new();
    while !received.contains("event: approval") {
        received += &String::from_utf8_lossy(&body.next().await.context("the stream has ended")??);
    }
    assert!(received.contains(&approval), "{received}");

    // The wait is longer than the limit of the task.
    let over = Duration::from_millis(10_300);
    while began.elapsed() < over {
        let _listened = tokio::time::timeout(over.saturating_sub(began.elapsed()), body.next()).await;
    }
    approve(&tasks, &approval).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Created."), "{task}");
    assert_eq!(task["waiting_for"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn a_waiting_task_can_be_cancelled() -> Result<()> {
    let tasks = asking().await?;
    tasks.llm.prepare([calls(&[(CREATE, create("Asked"))])]);
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    waiting(&tasks, &id).await?;
    let (status, body) = tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    ensure!(status == 202, "{status} {body}");
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), &task["waiting_for"]), ("cancelled", &Value::Null), "{task}");
    let steps = tasks.steps(&task).await?;
    assert_eq!(text(&steps[1]["code"]), "cancelled", "{steps:?}");
    assert!(tasks.world.github.requests().is_empty());
    Ok(())
}
