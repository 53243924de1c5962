//! `monstrum schedule`.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use support::LlmReply;

use crate::tasks::{Tasks, ended};
use crate::world::text;

#[tokio::test]
async fn schedules_are_managed_by_name() -> Result<()> {
    let world = Tasks::start().await?;
    let server = &world.world.server;
    let run = async |arguments: &[&str]| -> Result<String> {
        let output = server.command(&[&["schedule"], arguments].concat()).await?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let add = ["add", "nightly", "tester", "Is it so?", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin"];
    let id = run(&add).await?.trim().to_owned();
    let listed = run(&["list", "--bot", "tester"]).await?;
    assert!(listed.contains("nightly") && listed.contains("30 2 * * * Europe/Berlin"), "{listed}");
    run(&["disable", "nightly"]).await?;
    let shown: Value = serde_json::from_str(&run(&["show", "nightly", "--json"]).await?)?;
    assert_eq!((text(&shown["id"]), &shown["enabled"]), (id.as_str(), &json!(false)));
    run(&["enable", "nightly"]).await?;
    let shown = run(&["show", &id]).await?;
    assert!(shown.contains("Is it so?") && shown.contains("enabled"), "{shown}");
    world.llm.prepare([LlmReply::says(&["Yes."])]);
    let task = run(&["fire", "nightly"]).await?;
    assert_eq!(text(&ended(world.api(), task.trim()).await?["result"]), "Yes.");
    assert_eq!(run(&["preview", "--every-s", "60"]).await?.lines().count(), 5);
    run(&["delete", "nightly"]).await?;
    let left: Value = serde_json::from_str(&run(&["list", "--json"]).await?)?;
    assert_eq!(left["items"], json!([]));
    let refused = server.command(&["schedule", "add", "bad", "tester", "x", "--cron", "0 0 0 * * *"]).await?;
    assert!(!refused.status.success() && String::from_utf8(refused.stderr)?.contains("five fields"));
    Ok(())
}
