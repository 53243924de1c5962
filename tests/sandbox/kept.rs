//! The limits on the sandboxes that a workspace keeps, and the warnings to its callers.

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::sandbox::{Doors, shown};
use crate::world::text;

async fn echo(doors: &Doors, chat: &str) -> Result<Value> {
    doors.call_as(&doors.bot, "sandbox_shell", &json!({ "command": "echo x" }), Some(Doors::chat(chat)), "en").await
}

#[tokio::test]
async fn a_workspace_is_warned_and_then_gets_no_new_sandbox() -> Result<()> {
    let doors = Doors::set(|flags| flags.sandbox_kept_max = "5".parse().ok()).await?;
    for chat in ["1", "2", "3"] {
        let answer = echo(&doors, chat).await?;
        ensure!(answer["status"] == "success" && answer["data"].get("warning").is_none(), "{answer}");
    }
    let warned = echo(&doors, "4").await?;
    assert_eq!(warned["status"], "success");
    assert_snapshot!(text(&warned["data"]["warning"]), @"this workspace keeps 4 of 5 sandboxes (--sandbox-kept-max) and 0.0 of 50 GiB (--sandbox-kept-gib); when it reaches a limit, it cannot create new sandboxes; delete finished conversations");
    ensure!(
        echo(&doors, "4").await?["data"].get("warning").is_none(),
        "a command that started no sandbox got a warning"
    );
    echo(&doors, "5").await?;
    assert_snapshot!(shown(&echo(&doors, "6").await?), @r#"{"message":"this workspace has reached a sandbox limit: it keeps 5 of 5 sandboxes (--sandbox-kept-max) and 0.0 of 50 GiB (--sandbox-kept-gib); delete finished conversations","status":"error","code":"limit"}"#);
    doors.machines.stop_all();
    for chat in ["1", "2", "3", "4", "5"] {
        ensure!(echo(&doors, chat).await?["status"] == "success", "those that are there go on");
    }
    let (status, _) = doors.api.delete("/api/chats/1?app_id=a").await?;
    ensure!(status == 202, "{status}");
    ensure!(echo(&doors, "6").await?["status"] == "success", "there is room again");
    Ok(())
}

#[tokio::test]
async fn what_sandboxes_take_up_on_disk_counts() -> Result<()> {
    let doors = Doors::set(|flags| flags.sandbox_kept_gib = "10".parse().ok()).await?;
    let keeps = |gib: u64| doors.machines.kept_bytes.store(gib << 30, Ordering::SeqCst);
    keeps(7);
    ensure!(
        echo(&doors, "1").await?["data"].get("warning").is_none(),
        "a warning was shown below four fifths of the limit"
    );
    keeps(8);
    let warned = echo(&doors, "2").await?;
    assert!(text(&warned["data"]["warning"]).contains("8.0 of 10 GiB (--sandbox-kept-gib)"), "{warned}");
    keeps(10);
    let refused = echo(&doors, "3").await?;
    assert_eq!((text(&refused["status"]), text(&refused["code"])), ("error", "limit"), "{refused}");
    ensure!(echo(&doors, "1").await?["status"] == "success", "those that are there go on");
    Ok(())
}
