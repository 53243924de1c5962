//! `POST /api/platform/mcp/…`: the tools of a server for infrastructure code with a root key.

use anyhow::Result;
use serde_json::{Value, json};
use support::Generation;

use super::{Behind, tool};
use crate::world::text;

#[tokio::test]
async fn approved_tools_are_listed_and_called_by_their_original_names() -> Result<()> {
    let behind = Behind::undecided(Generation::Stateless, &[tool("Add-Note", "Adds")], &json!({})).await?;
    behind.discovered().await?;
    behind.approve_all("write").await?;
    behind.mcp.set_tools(&[tool("Add-Note", "Adds"), tool("drop", "Drops")]);
    behind.discovered().await?;
    let call = async |function: &str, params: Value| -> Result<Value> {
        let body = json!({"resource_id": behind.resource, "params": params});
        let (status, answer) = behind.world.api.post(&format!("/api/platform/mcp/{function}"), &body).await?;
        anyhow::ensure!(status == 200, "{status} {answer}");
        Ok(answer)
    };
    let listed = call("list_tools", json!({})).await?;
    let tools = &listed["data"]["tools"];
    assert_eq!(tools.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&tools[0]["name"], &tools[0]["tool"]), (&json!("Add-Note"), &json!("notes__add_note")), "{listed}");

    let called = call("call_tool", json!({"tool": "Add-Note", "arguments": {"text": "a"}})).await?;
    let echo: Value = serde_json::from_str(text(&called["data"]["content"][0]["text"]))?;
    assert_eq!(echo, json!({"name": "Add-Note", "arguments": {"text": "a"}}), "{called}");
    let row = behind.world.audit_of(&called).await?;
    assert_eq!((&row["status"], &row["resource_id"]), (&json!("success"), &json!(behind.resource)), "{row}");

    let calls = behind.mcp.params_of("tools/call").len();
    for params in [
        json!({"tool": "drop", "arguments": {}}),
        json!({"tool": "notes__add_note", "arguments": {}}),
        json!({"tool": "Add-Note", "arguments": {"text": 5}}),
        json!({"tool": "Add-Note", "arguments": [1]}),
        json!({"tool": "Add-Note", "arguments": {}, "other": 1}),
        json!({"arguments": {}}),
    ] {
        let refused = call("call_tool", params.clone()).await?;
        assert_eq!((&refused["status"], &refused["code"]), (&json!("error"), &json!("invalid_params")), "{params}");
    }
    assert_eq!(behind.mcp.params_of("tools/call").len(), calls);
    let body = json!({"params": {}});
    let (_, answer) = behind.world.api.post("/api/platform/mcp/list_tools", &body).await?;
    assert_eq!(answer["code"], "invalid_params", "{answer}");
    let admin = behind.world.api.with_key(&behind.world.api.new_key("admin", None).await?);
    assert_eq!(admin.post("/api/platform/mcp/list_tools", &body).await?.0, 403);
    Ok(())
}
