//! Rows that another program wrote start nothing.

use std::path::Path;

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

/// Waits until a turn of a schedule has failed, and returns the error.
async fn failed_turn(folder: &Path, id: &str) -> Result<String> {
    let error = format!("select last_error from wakes where key = 'schedule/{id}'");
    eventually("a turn of the schedule has failed", async || {
        let rows = sqlite(folder, &[&error]).await?;
        Ok(rows[0][0].as_str().map(str::to_owned))
    })
    .await
}

const NOT_SEALED: &str = "the row of the schedule was edited or restored by another program, so it starts nothing";
const UNVERIFIED: &str = "the rows of the workspace do not match their seals";

/// A turn and a person start nothing. The server may have compared the seals of the workspace in the meantime.
async fn refused(world: &Tasks, folder: &Path, id: &str) -> Result<()> {
    let error = failed_turn(folder, id).await?;
    assert!([NOT_SEALED, UNVERIFIED].contains(&error.as_str()), "{error}");
    let (status, answer) = world.api().post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?;
    assert!([409, 503].contains(&status), "{status} {answer}");
    Ok(())
}

#[tokio::test]
async fn a_forged_schedule_starts_nothing_and_can_be_deleted() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    schedule(world.api(), &bot, "hourly", &json!({ "every_s": 3600 })).await?;
    world.world.server.kill().await?;
    let copy = format!(
        "insert into schedules (id, workspace_id, bot_id, name, next_at, failures, created_at, updated_at, sealed, mac) \
         select '{FORGED}', workspace_id, bot_id, 'copy', 1, 0, created_at, updated_at, sealed, mac from schedules"
    );
    let folder = world.world.server.data_dir();
    sqlite(&folder, &[&copy, &wake(FORGED)]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let api = world.api();
    assert_eq!(failed_turn(&folder, FORGED).await?, NOT_SEALED);
    let (_, wakes) = api.get("/api/wakes?failing=true").await?;
    assert_eq!(wakes["items"].as_array().map(Vec::len), Some(1), "{wakes}");
    assert!(tasks(api).await?.is_empty() && world.llm.requests().is_empty());
    let (status, refused) = api.get(&format!("/api/schedules/{FORGED}")).await?;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(api.post(&format!("/api/schedules/{FORGED}/fire"), &Value::Null).await?.0, 409);
    assert_eq!(api.delete(&format!("/api/schedules/{FORGED}")).await?.0, 204);
    assert_eq!(api.get(&format!("/api/schedules/{FORGED}")).await?.0, 404);
    Ok(())
}

/// The name is a part of what a person saved.
#[tokio::test]
async fn an_edited_schedule_starts_nothing() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let id = schedule(world.api(), &bot, "hourly", &json!({ "every_s": 3600 })).await?;
    world.world.server.kill().await?;
    let folder = world.world.server.data_dir();
    let edit = format!("update schedules set name = 'edited', next_at = 1 where id = '{id}'");
    sqlite(&folder, &[&edit, &wake(&id)]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let api = world.api();
    assert_eq!(failed_turn(&folder, &id).await?, UNVERIFIED);
    assert!(tasks(api).await?.is_empty() && world.llm.requests().is_empty());
    assert_eq!(api.get(&format!("/api/schedules/{id}")).await?.0, 409);
    assert_eq!(api.post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?.0, 503);
    Ok(())
}

/// The row that is put back has a valid MAC and a record that opens. While the server runs, the workspace still counts as
/// verified; after a start, its seal reveals the row.
#[tokio::test]
async fn a_schedule_that_is_put_back_does_not_fire_again() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let id = schedule(world.api(), &bot, "hourly", &json!({ "every_s": 3600 })).await?;
    let folder = world.world.server.data_dir();
    sqlite(&folder, &["create table kept as select * from schedules"]).await?;
    assert_eq!(world.api().delete(&format!("/api/schedules/{id}")).await?.0, 204);
    let back = "insert into schedules select * from kept";
    sqlite(&folder, &[back, "update schedules set next_at = 1", &wake(&id)]).await?;
    refused(&world, &folder, &id).await?;

    world.world.server.kill().await?;
    sqlite(&folder, &["update wakes set last_error = null, due_at = 0"]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    assert_eq!(failed_turn(&folder, &id).await?, UNVERIFIED);
    assert_eq!(world.api().post(&format!("/api/schedules/{id}/fire"), &Value::Null).await?.0, 503);
    assert!(tasks(world.api()).await?.is_empty() && world.llm.requests().is_empty());
    Ok(())
}

/// The times of an older version have passed, so it would fire at once.
#[tokio::test]
async fn an_older_version_of_a_schedule_does_not_fire() -> Result<()> {
    let world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let id = schedule(world.api(), &bot, "hourly", &json!({ "every_s": 3600 })).await?;
    let folder = world.world.server.data_dir();
    sqlite(&folder, &["create table kept as select * from schedules"]).await?;
    let change = json!({ "instruction": "Another one.", "enabled": false });
    let (status, changed) = world.api().patch(&format!("/api/schedules/{id}"), &change).await?;
    assert_eq!(status, 200, "{changed}");
    let back = "insert into schedules select * from kept";
    sqlite(&folder, &["delete from schedules", back, "update schedules set next_at = 1", &wake(&id)]).await?;
    refused(&world, &folder, &id).await?;
    assert!(tasks(world.api()).await?.is_empty() && world.llm.requests().is_empty());
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
    assert_eq!(failed_turn(&folder, &id).await?, UNVERIFIED);
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
