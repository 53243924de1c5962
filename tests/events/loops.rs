//! Bots that start each other by events come to an end.

use anyhow::{Result, ensure};
use serde_json::json;
use support::LlmReply;

use super::{events, subscribe, tasks};
use crate::tasks::{Tasks, give_model};
use crate::world::{eventually, text};

#[tokio::test]
async fn two_bots_in_a_loop_stop_at_depth_eight() -> Result<()> {
    let world = Tasks::start().await?;
    let (api, ping) = (world.api(), &world.world.bot);
    let pong = api.bot("pong").await?;
    give_model(api, &pong, "more", &world.llm).await?;
    world.llm.follow(|_| LlmReply::says(&["Your turn."]));
    for (own, other) in [(ping, &pong), (&pong, ping)] {
        subscribe(api, own, "task.completed", &json!({ "from": [other] })).await?;
    }
    world.run("Begin.").await?;
    let dead = eventually("a delivery is dead", async || {
        let (_, dead) = api.get("/api/deliveries?status=dead").await?;
        Ok((!dead["items"][0].is_null()).then(|| dead["items"].clone()))
    })
    .await?;
    assert_eq!((dead.as_array().map(Vec::len), &dead[0]["reason"]), (Some(1), &json!("loop")), "{dead}");
    let completed = events(api, "task.completed").await?;
    let depths: Vec<u64> = completed.iter().filter_map(|event| event["metadata"]["depth"].as_u64()).collect();
    assert_eq!(depths, [8, 7, 6, 5, 4, 3, 2, 1, 0]);
    let root = text(&completed[8]["id"]);
    ensure!(completed.iter().all(|event| event["metadata"]["root_event_id"] == root), "{completed:?}");
    assert_eq!(tasks(api).await?.len(), 9);
    Ok(())
}

#[tokio::test]
async fn a_bot_that_follows_every_event_of_its_own_ends() -> Result<()> {
    let world = Tasks::start().await?;
    let api = world.api();
    world.llm.follow(|_| LlmReply::says(&["Again."]));
    // Each task has two events of its own: its session, and its end.
    subscribe(api, &world.world.bot, "*", &json!({})).await?;
    world.run("Begin.").await?;
    eventually("nothing is left to do", async || {
        let (_, pending) = api.get("/api/deliveries?status=pending").await?;
        let is_running = tasks(api).await?.iter().any(|task| task["ended_at"].is_null());
        let (_, wakes) = api.get("/api/wakes").await?;
        Ok((pending["items"] == json!([]) && !is_running && wakes["items"] == json!([])).then_some(()))
    })
    .await?;
    let (_, dead) = api.get("/api/deliveries?status=dead&limit=1000").await?;
    let reasons = dead["items"].as_array().cloned().unwrap_or_default();
    ensure!(!reasons.is_empty() && reasons.iter().all(|delivery| delivery["reason"] == "loop"), "{dead}");
    // The first task has two chains, of at most 16 deliveries to the subscription each. Some of them are too deep.
    let started = tasks(api).await?.len();
    ensure!((9..=33).contains(&started), "{started} tasks");
    Ok(())
}
