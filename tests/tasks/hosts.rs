//! Tasks of several hosts that share a database.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{LlmReply, Postgres};

use super::{Tasks, calls, create, ended, outline};
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

/// The host is stopped when the model is about to ask for a write, and goes on when another host has done the task.
#[tokio::test]
async fn a_host_that_was_stopped_past_its_lease_writes_nothing() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let tasks = Tasks::on(server_on(&url)?).await?;
    let second = beside(&tasks.world.server, server_on(&url)?).await?;
    let there = api_of(&second, tasks.api().key())?;
    let first = i32::try_from(tasks.world.server.pid().context("the server is not running")?)?;
    let first = Pid::from_raw(first).context("the server has no id")?;
    let asked = AtomicUsize::new(0);
    tasks.llm.follow(move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => {
            // The answer waits for the stopped host.
            kill_process(first, Signal::STOP).expect("the server can be stopped");
            calls(&[("github_create_issue", create("One"))])
        }
        1 => calls(&[("github_create_issue", create("One"))]),
        _ => LlmReply::says(&["Done."]),
    });
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    let task = ended(&there, &id).await;
    kill_process(first, Signal::CONT)?;
    let task = task?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Done."), "{task}");
    // The first host has noticed what it has missed when it completes another task.
    assert_eq!(tasks.run("Talk.").await?["status"], "completed");
    let created = tasks.world.github.requests().iter().filter(|request| request.method == "POST").count();
    assert_eq!((created, tasks.llm.requests().len()), (1, 4));
    assert_eq!(
        outline(&tasks.steps(&task).await?),
        ["round success", "call github_create_issue success", "round success"]
    );
    assert_eq!(there.verify_audit().await?["valid"], true);
    Ok(())
}
