//! Delegation: a bot that is called by another bot uses its own sandbox, within the limits of the link.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::http::made;
use crate::sandbox::Doors;
use crate::world::text;

/// Calls a tool through the other bot and returns its answer.
async fn through(doors: &Doors, asking: &str, tool: &str) -> Result<Value> {
    let params = json!({ "tool": tool, "params": { "command": "echo theirs" } });
    doors.call_as(asking, "bot_call_tool", &params, Some(Doors::chat("d")), "en").await
}

#[tokio::test]
async fn a_link_narrows_the_sandbox_like_any_tool() -> Result<()> {
    let doors = Doors::open().await?;
    let asking = doors.api.bot("asking").await?;
    let resource = json!({ "resource_type": "bot", "name": "tester", "config": { "bot": doors.bot } });
    let resource = made(&doors.api, "/api/resources", &resource).await?;
    let binding = json!({ "resource_id": resource, "permissions": { "allowed_tools": ["*"] } });
    let bindings = format!("/api/bots/{asking}/resources");
    let binding = made(&doors.api, &bindings, &binding).await?;
    let link = async |delegate: Value| {
        let (status, body) =
            doors.api.patch(&format!("{bindings}/{binding}"), &json!({ "delegate": delegate })).await?;
        ensure!(status == 200, "{body}");
        Ok(())
    };
    let listed = async || -> Result<Vec<String>> {
        let answer = doors.call_as(&asking, "bot_list_tools", &json!({}), None, "en").await?;
        let tools = answer["data"]["tools"].as_array().cloned().unwrap_or_default();
        Ok(tools.iter().map(|tool| text(&tool["name"]).to_owned()).collect())
    };

    assert_eq!(listed().await?, ["sandbox_shell"]);
    let allowed = through(&doors, &asking, "sandbox_shell").await?;
    assert_eq!(allowed["data"]["stdout"], "theirs\n", "{allowed}");
    let sandbox = doors.sandbox().await?;
    assert_eq!(sandbox["bot_id"], json!(doors.bot), "the sandbox does not belong to the bot that runs the command");
    let hidden = through(&doors, &asking, "sandbox_read_file").await?;
    assert_eq!(hidden["status"], "permission_denied", "{hidden}");

    link(json!({ "allowed_tools": ["github_*"] })).await?;
    assert_eq!(listed().await?, Vec::<String>::new());
    let narrowed = through(&doors, &asking, "sandbox_shell").await?;
    assert_eq!(narrowed["status"], "permission_denied", "{narrowed}");

    link(json!({ "allowed_tools": ["sandbox_shell"] })).await?;
    assert_eq!(through(&doors, &asking, "sandbox_shell").await?["status"], "success");
    doors.switch(&doors.bot, false).await?;
    assert_eq!(through(&doors, &asking, "sandbox_shell").await?["status"], "permission_denied");
    Ok(())
}
