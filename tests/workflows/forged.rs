//! Rows of workflows and triggers that another program wrote.

use anyhow::Result;
use serde_json::json;

use super::{show, workflow};
use crate::http::made;
use crate::tamper::sqlite;
use crate::world::World;

const FORGED: &str = "01939d2c-7f6a-7000-8000-000000000001";

/// A forged or edited row does not exist for the API, and an edited one stops its workspace.
#[tokio::test]
async fn a_forged_or_edited_workflow_is_not_served() -> Result<()> {
    let mut world = World::with(&[]).await?;
    let path = workflow(&world.api, "release", &world.bot).await?;
    let id = path.trim_start_matches("/api/workflows/").to_owned();
    made(&world.api, &format!("{path}/triggers"), &json!({ "event_pattern": "custom.x" })).await?;
    let strong = world.api.bot("strong").await?;
    let folder = world.server.data_dir();
    let copy = format!(
        "insert into workflows (id, workspace_id, bot_id, name, version, enabled, created_at, updated_at, mac) \
         select '{FORGED}', workspace_id, '{strong}', 'copy', version, enabled, created_at, updated_at, mac \
         from workflows"
    );
    let trigger = format!(
        "insert into workflow_triggers (id, workspace_id, workflow_id, event_pattern, instruction, sources, enabled, \
         starters, created_at, updated_at, mac) select '{FORGED}', workspace_id, workflow_id, '*', '', '[\"any\"]', \
         true, starters, created_at, updated_at, mac from workflow_triggers"
    );
    world.server.kill().await?;
    sqlite(&folder, &[&copy, &trigger]).await?;
    world.server.launch().await?;
    world.api = world.server.api()?;
    assert_eq!(world.api.get(&format!("/api/workflows/{FORGED}")).await?.0, 404);
    let listed = show(&world.api, "/api/workflows").await?;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    let triggers = show(&world.api, &format!("{path}/triggers")).await?;
    assert_eq!(triggers["items"].as_array().map(Vec::len), Some(1), "{triggers}");
    let enabled = json!({ "enabled": true });
    assert_eq!(world.api.patch(&format!("{path}/triggers/{FORGED}"), &enabled).await?.0, 404);

    world.server.kill().await?;
    sqlite(&folder, &["update workflow_versions set document = 'workflow: release'"]).await?;
    world.server.launch().await?;
    world.api = world.server.api()?;
    assert_eq!(world.api.get(&path).await?.0, 409, "the document is not the one that was saved");

    world.server.kill().await?;
    sqlite(&folder, &[&format!("update workflows set bot_id = '{strong}' where id = '{id}'")]).await?;
    world.server.launch().await?;
    world.api = world.server.api()?;
    assert_eq!(world.api.get(&path).await?.0, 404);
    let (status, refused) = world.api.post("/api/bots", &json!({ "name": "third" })).await?;
    assert_eq!((status, &refused["type"]), (503, &json!("urn:monstrum:error:unverified")), "{refused}");
    Ok(())
}
