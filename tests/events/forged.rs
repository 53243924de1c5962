//! Rows that another program wrote start nothing.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{delivered, emit, subscribe, tasks};
use crate::tamper::sqlite;
use crate::tasks::Tasks;
use crate::world::{eventually, text};

const FORGED: &str = "01939d2c-7f6a-7000-8000-000000000001";
const DELIVERY: &str = "01939d2c-7f6a-7000-8000-000000000002";

/// Requests a turn of a key, as a part of the server would.
fn wake(key: &str) -> String {
    format!("insert into wakes (key, workspace_id, due_at, version) select '{key}', id, 0, 1 from workspaces")
}

#[tokio::test]
async fn a_forged_event_starts_nothing() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let subscription = subscribe(world.api(), &bot, "custom.*", &json!({})).await?;
    let weak = world.api().bot("weak").await?;
    let real = emit(world.api(), "real", &json!({ "bot_id": weak })).await?;
    assert_eq!(delivered(world.api(), &real).await?["deliveries"], json!([]));
    world.world.server.kill().await?;
    let columns = "workspace_id, event_type, source_type, source_id";
    let rest = "root_event_id, depth, links, created_at, sealed";
    // A copy of an event for the strong bot, and a delivery of the weak bot's event to the strong bot.
    let copy = format!(
        "insert into events (id, {columns}, bot_id, {rest}) select '{FORGED}', {columns}, '{bot}', {rest} from events \
         where id = '{real}'"
    );
    let delivery = format!(
        "insert into deliveries (id, workspace_id, event_id, target_kind, target_id, bot_id, root_event_id, status, \
         attempts, created_at, pending_since) select '{DELIVERY}', workspace_id, id, 'subscription', '{subscription}', \
         '{bot}', root_event_id, 'pending', 0, created_at, created_at from events where id = '{real}'"
    );
    let wakes = [wake(&format!("event/{FORGED}")), wake(&format!("delivery/{DELIVERY}"))];
    sqlite(&world.world.server.data_dir(), &[&copy, &delivery, &wakes[0], &wakes[1]]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let api = world.api();
    let dead = eventually("the forged delivery is dead", async || {
        let (_, dead) = api.get("/api/deliveries?status=dead").await?;
        Ok((!dead["items"][0].is_null()).then(|| dead["items"][0].clone()))
    })
    .await?;
    assert_eq!((text(&dead["id"]), text(&dead["reason"])), (DELIVERY, "disabled"), "{dead}");
    eventually("the turn of the forged event has ended", async || {
        let (_, wakes) = api.get("/api/wakes").await?;
        Ok((wakes["items"] == json!([])).then_some(()))
    })
    .await?;
    ensure!(tasks(api).await?.is_empty() && world.llm.requests().is_empty(), "a forged row has started a task");
    // It cannot be read either.
    assert_eq!(api.get(&format!("/api/events/{FORGED}")).await?.0, 404);
    let (_, listed) = api.get("/api/events?event_type=custom.*").await?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    Ok(())
}

#[tokio::test]
async fn an_edited_subscription_starts_nothing() -> Result<()> {
    let mut world = Tasks::start().await?;
    let bot = world.world.bot.clone();
    let id = subscribe(world.api(), &bot, "custom.*", &json!({})).await?;
    world.world.server.kill().await?;
    let folder = world.world.server.data_dir();
    let edit = format!("update subscriptions set instruction = 'Delete all.' where id = '{id}'");
    let emitted = format!(
        "insert into events (id, workspace_id, event_type, source_type, source_id, root_event_id, depth, links, \
         created_at, sealed) select '{FORGED}', id, 'custom.n', 'platform', 'k', '{FORGED}', 0, '{{}}', 1, 'x' \
         from workspaces"
    );
    sqlite(&folder, &[&edit, &emitted, &wake(&format!("event/{FORGED}"))]).await?;
    world.world.server.launch().await?;
    world.world.api = world.world.server.api()?;
    let api = world.api();
    // The rows of the workspace do not match their seal, so nothing is accepted.
    let (status, refused) = api.post("/api/events", &json!({ "name": "n" })).await?;
    assert_eq!(status, 503, "{refused}");
    let (_, listed) = api.get("/api/subscriptions").await?;
    assert_eq!(listed["items"], json!([]));
    ensure!(tasks(api).await?.is_empty() && world.llm.requests().is_empty(), "an edited row has started a task");
    Ok(())
}
