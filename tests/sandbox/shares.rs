//! The share of the running sandboxes that one bot may use, tested through calls of bots.

use std::time::Duration;

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::json;

use crate::sandbox::{Doors, shown};
use crate::world::text;

#[tokio::test]
async fn a_bot_with_long_commands_leaves_places_for_another() -> Result<()> {
    let doors = Doors::set(|flags| flags.sandbox_max = "4".parse().ok()).await?;
    let other = doors.api.bot("other").await?;
    doors.switch(&other, true).await?;
    let path = format!("/api/bots/{}/tools/sandbox_shell/call", doors.bot);
    let mut held = Vec::new();
    for chat in ["1", "2"] {
        let body = json!({ "params": { "command": "hang" }, "chat": Doors::chat(chat) });
        held.push(tokio::spawn(doors.api.request(Method::POST, &path).json(&body).send()));
    }
    doors.counted("both commands run", &doors.machines.begun, 2).await?;
    let ask = async |bot: &str, chat: &str| {
        let params = json!({ "command": "echo hello" });
        let asked = doors.call_as(bot, "sandbox_shell", &params, Some(Doors::chat(chat)), "en");
        tokio::time::timeout(Duration::from_secs(60), asked).await?
    };
    assert_snapshot!(shown(&ask(&doors.bot, "3").await?), @r#"{"message":"this bot has reached its share of the running sandboxes on this host, and the remaining capacity is reserved for other bots; try again when one of its sandboxes is idle (limits: --sandbox-max 4, --sandbox-share-bot 25)","status":"error","code":"busy"}"#);
    assert_eq!(text(&ask(&other, "4").await?["data"]["stdout"]), "hello\n");
    held.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}
