//! Schedules of hosts that share a database.

use anyhow::Result;
use serde_json::json;
use support::{LlmReply, Postgres};

use super::{fired, schedule, tasks};
use crate::postgres::hosts::{api_of, beside};
use crate::postgres::server_on;
use crate::tasks::Tasks;
use monstrum_types::{Clock as _, SystemClock};

#[tokio::test]
async fn of_two_hosts_one_starts_the_task_of_a_time() -> Result<()> {
    const SCHEDULES: usize = 5;
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let world = Tasks::on(server_on(&url)?).await?;
    let second = beside(&world.world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api().key())?;
    world.llm.prepare((0..SCHEDULES).map(|_| LlmReply::says(&["Yes."])));
    let at = SystemClock.now().plus_ms(10_000);
    let mut ids = Vec::new();
    for number in 0..SCHEDULES {
        let api = if number % 2 == 0 { world.api() } else { &there };
        ids.push(schedule(api, &world.world.bot, &format!("n{number}"), &json!({ "at": at })).await?);
    }
    for id in &ids {
        fired(&there, id, "completed").await?;
    }
    assert_eq!(tasks(world.api()).await?.len(), SCHEDULES);
    assert_eq!(world.llm.requests().len(), SCHEDULES);
    Ok(())
}
