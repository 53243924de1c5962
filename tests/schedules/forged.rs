//! Rows that another program wrote start nothing.

use anyhow::Result;
use serde_json::{Value, json};
use support::LlmReply;

use super::{fired, schedule, show, soon, tasks};
use crate::cli::parsed;
use crate::tamper::sqlite;
use crate::tasks::Tasks;
use crate::world::{World, eventually, text};

const FORGED: &str = "01939d2c-7f6a-7000-8000-000000000001";

/// Requests a turn of a schedule, as a part of the server would.
fn wake(id: &str) -> String {
    format!(
        "insert into wakes (key, workspace_id, due_at, version) select 'schedule/{id}', workspace_id, 0, 1 \
         from schedules where id = '{id}' on conflict (key) do update set due_at = 0"
    )
}

#[tokio::test]
async fn a_forged_or_edited_schedule_starts_nothing() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let id = schedule(world.api(), &bot, "hourly", &json!({ "every_s": 3600 })).await?;
    world.world.server.kill().await?;
    let copy = format!(
        "insert into schedules (id, workspace_id, bot_id, name, next_at, failures, created_at, updated_at, sealed) \
         select '{FORGED}', workspace_id, bot_id, 'copy', 1, 0, created_at, updated_at, sealed from schedules"
    );
    // The name is a part of what a person saved.
    let edit = format!("update schedules set name = 'edited', next_at = 1 where id = '{id}'");
    let folder = world.world.server.data_dir();
    sqlite(&folder, &[&copy, &edit, &wake(FORGED), &wake(&id)]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let api = world.api();
    eventually("both turns have failed", async || {
        let (_, wakes) = api.get("/api/wakes?failing=true").await?;
        Ok((wakes["items"].as_array().map(Vec::len) == Some(2)).then_some(()))
    })
    .await?;
    assert!(tasks(api).await?.is_empty() && world.llm.requests().is_empty());
    let (status, refused) = api.get(&format!("/api/schedules/{id}")).await?;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?.0, 409);
    assert_eq!(api.delete(&format!("/api/schedules/{FORGED}")).await?.0, 204);
    Ok(())
}

#[tokio::test]
async fn a_time_that_is_set_back_does_not_fire_again() -> Result<()> {
    let mut world = Tasks::start().await?;
    world.llm.prepare([LlmReply::says(&["Yes."])]);
    let bot = world.world.bot.clone();
    let id = schedule(world.api(), &bot, "once", &json!({ "at": soon() })).await?;
    let before = fired(world.api(), &id, "completed").await?;
    world.world.server.kill().await?;
    let back = "update schedules set next_at = last_planned_at";
    sqlite(&world.world.server.data_dir(), &[back, &wake(&id)]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let api = world.api();
    let after = eventually("the turn has ended", async || {
        let schedule = show(api, &id).await?;
        Ok(schedule["next_at"].is_null().then_some(schedule))
    })
    .await?;
    assert_eq!(text(&after["last"]["task_id"]), text(&before["last"]["task_id"]));
    assert_eq!(tasks(api).await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn nothing_starts_while_the_rows_of_the_workspace_do_not_match_their_seals() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let id = schedule(world.api(), &bot, "hourly", &json!({ "every_s": 3600 })).await?;
    world.world.server.kill().await?;
    let due = format!("update schedules set next_at = 1 where id = '{id}'");
    let edit = "update bots set system_prompt = 'edited'";
    sqlite(&world.world.server.data_dir(), &[edit, &due, &wake(&id)]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let folder = world.world.server.data_dir();
    let failed = format!("select last_error from wakes where key = 'schedule/{id}'");
    let error = eventually("a turn of the schedule has failed", async || {
        let rows = sqlite(&folder, &[&failed]).await?;
        Ok(rows[0][0].as_str().map(str::to_owned))
    })
    .await?;
    assert_eq!(error, "the rows of the workspace do not match their seals");
    assert!(world.llm.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_schedule_opens_after_a_rotation_of_the_master_key() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let id = schedule(&world.api, &world.bot, "hourly", &json!({ "every_s": 3600 })).await?;
    let before = show(&world.api, &id).await?;
    world.server.stop().await?;
    let (code, report) = parsed(&world.server, &["vault", "rotate"]).await?;
    assert_eq!((code, &report["unreadable"]), (Some(0), &json!([])), "{report}");
    assert_eq!(parsed(&world.server, &["vault", "rotate", "--prune"]).await?.0, Some(0));
    world.server.launch().await?;
    world.api = world.server.api()?;
    assert_eq!(show(&world.api, &id).await?, before);
    Ok(())
}
