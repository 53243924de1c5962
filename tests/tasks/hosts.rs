//! Tasks of several hosts that share a database.

use anyhow::{Result, ensure};
use serde_json::json;
use support::{LlmReply, Postgres};

use super::{Tasks, ended};
use crate::postgres::hosts::{api_of, beside};
use crate::postgres::server_on;
use crate::world::{eventually, text};

/// The number of tasks of one bot that run at once on a host.
const TASKS_OF_BOT_MAX: usize = 16;

#[tokio::test]
async fn a_task_that_waits_for_a_place_is_cancelled_through_another_host() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let tasks = Tasks::on(server_on(&url)?).await?;
    let second = beside(&tasks.world.server, server_on(&url)?).await?;
    let there = api_of(&second, tasks.api().key())?;

    let silent = || LlmReply::chunks(&[LlmReply::piece("I go on")]).silent();
    tasks.llm.prepare((0..TASKS_OF_BOT_MAX).map(|_| silent()));
    for _ in 0..TASKS_OF_BOT_MAX {
        tasks.begin(&json!({ "instruction": "Talk." })).await?;
    }
    eventually("all places of the bot are taken", async || {
        Ok((tasks.llm.requests().len() == TASKS_OF_BOT_MAX).then_some(()))
    })
    .await?;
    let waiting = tasks.begin(&json!({ "instruction": "Wait." })).await?;
    let path = format!("/api/tasks/{waiting}");
    assert_eq!(text(&there.get(&path).await?.1["status"]), "queued");
    let (status, task) = there.delete(&path).await?;
    ensure!(status == 202, "{status} {task}");
    let task = ended(&there, &waiting).await?;
    assert_eq!(text(&task["status"]), "cancelled", "{task}");
    let (_, running) = there.get("/api/tasks?status=running").await?;
    assert_eq!(running["items"].as_array().map(Vec::len), Some(TASKS_OF_BOT_MAX), "the others go on");
    Ok(())
}
