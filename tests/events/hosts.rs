//! Events of hosts that share a database.

use anyhow::{Result, ensure};
use serde_json::json;
use support::{LlmReply, Postgres};

use super::{delivered, emit, subscribe, tasks};
use crate::postgres::hosts::{api_of, beside};
use crate::postgres::server_on;
use crate::tasks::{Tasks, ended};
use crate::world::text;

#[tokio::test]
async fn two_hosts_make_one_delivery_of_an_event() -> Result<()> {
    const EVENTS: usize = 6;
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let world = Tasks::on(server_on(&url)?).await?;
    let second = beside(&world.world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api().key())?;
    world.llm.follow(|_| LlmReply::says(&["Seen."]));
    // The host that dispatches may not have read the subscription yet.
    subscribe(&there, &world.world.bot, "custom.*", &json!({})).await?;
    let mut ids = Vec::new();
    for number in 0..EVENTS {
        let api = if number % 2 == 0 { world.api() } else { &there };
        ids.push(emit(api, "n", &json!({})).await?);
    }
    let mut sequences = Vec::new();
    for id in &ids {
        let event = delivered(&there, id).await?;
        let [delivery] = event["deliveries"].as_array().map(Vec::as_slice).unwrap_or_default() else {
            anyhow::bail!("an event has one delivery: {event}");
        };
        assert_eq!(delivery["status"], "done", "{event}");
        ended(world.api(), text(&delivery["task_id"])).await?;
        sequences.push(event["sequence"].as_i64().unwrap_or_default());
    }
    assert_eq!(tasks(world.api()).await?.len(), EVENTS);
    sequences.sort_unstable();
    sequences.dedup();
    ensure!(sequences.len() == EVENTS, "{sequences:?}");
    Ok(())
}
