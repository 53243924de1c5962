//! Clients that close their connections.

use anyhow::{Context, Result};
use futures::StreamExt as _;
use serde_json::{Value, json};
use support::LlmReply;

use super::{CHAT, ask, created, looks, post, streamed, task_of};
use crate::tasks::Tasks;
use crate::world::{eventually, text};

/// Sends a streamed request, waits for its first chunk, and returns the id of the answer and the open connection.
async fn open(tasks: &Tasks, key: &str) -> Result<(Value, Box<dyn Send>)> {
    let request = post(tasks.api(), CHAT, &streamed(ask("How many?"))).header("idempotency-key", key);
    let mut body = request.send().await?.bytes_stream();
    let mut received = String::new();
    while !received.contains("\n\n") {
        received += &String::from_utf8_lossy(&body.next().await.context("the stream has ended")??);
    }
    let data = received.lines().find_map(|line| line.strip_prefix("data:")).context("no chunk")?;
    Ok((serde_json::from_str::<Value>(data)?["id"].clone(), Box::new(body)))
}

async fn ended(tasks: &Tasks, id: &Value) -> Result<Value> {
    eventually("the task has ended", async || {
        let task = task_of(tasks, id).await?;
        Ok((!task["ended_at"].is_null()).then_some(task))
    })
    .await
}

#[tokio::test]
async fn a_task_without_a_client_is_cancelled_with_its_calls() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([looks(), LlmReply::says(&["Now."])]);
    let (id, connection) = open(&tasks, "one").await?;
    tasks.world.reached(1).await?;
    drop(connection);
    let task = ended(&tasks, &id).await?;
    assert_eq!(text(&task["status"]), "cancelled", "{task}");
    tasks.world.github.release();
    assert_eq!((tasks.llm.requests().len(), created(&tasks)), (1, 0));
    // Nothing was written, so a client that comes back starts a new task.
    let request = post(tasks.api(), CHAT, &streamed(ask("How many?"))).header("idempotency-key", "one");
    let body = request.send().await?.text().await?;
    assert!(body.contains("Now.") && body.contains("[DONE]"), "{body}");
    assert_eq!((tasks.llm.requests().len(), created(&tasks)), (2, 0));
    Ok(())
}

#[tokio::test]
async fn a_round_without_a_client_is_cancelled() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I go on")]).silent()]);
    let (id, connection) = open(&tasks, "one").await?;
    tasks.llm.is_answering().await;
    drop(connection);
    let task = ended(&tasks, &id).await?;
    assert_eq!(text(&task["status"]), "cancelled", "{task}");
    tasks.llm.is_idle().await;
    Ok(())
}

#[tokio::test]
async fn a_client_that_comes_back_gets_the_answer() -> Result<()> {
    let tasks = Tasks::start().await?;
    tasks.world.github.hold();
    tasks.llm.prepare([looks(), LlmReply::says(&["There are two."])]);
    let (id, connection) = open(&tasks, "one").await?;
    tasks.world.reached(1).await?;
    drop(connection);
    let request = post(tasks.api(), CHAT, &streamed(ask("How many?"))).header("idempotency-key", "one");
    let response = request.send().await?;
    tasks.world.github.release();
    let body = response.text().await?;
    assert!(body.contains("There are ") && body.trim_end().ends_with("[DONE]"), "{body}");
    assert!(body.contains(text(&id)), "{body}");
    assert_eq!(ended(&tasks, &id).await?["status"], json!("completed"));
    assert_eq!((tasks.llm.requests().len(), created(&tasks)), (2, 1));
    Ok(())
}
