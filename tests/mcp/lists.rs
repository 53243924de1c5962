//! `tools/list`.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use super::Scene;
use crate::world::text;

#[tokio::test]
async fn a_tool_is_listed_with_its_schemas_and_its_operation() -> Result<()> {
    let scene = Scene::start().await?;
    let list = scene.client.ask("tools/list", &json!({})).await?;
    let find = |name: &str| {
        let tools = list["tools"].as_array().into_iter().flatten();
        tools.into_iter().find(|tool| tool["name"] == name).cloned().with_context(|| format!("{name} is not listed"))
    };
    assert_snapshot!(serde_json::to_string_pretty(&find("test_echo_mismatch")?)?, @r#"
    {
      "name": "test_echo_mismatch",
      "description": "Returns its parameters, which do not match the output schema.",
      "inputSchema": {
        "type": "object",
        "properties": {
          "repo": {
            "type": "string"
          }
        }
      },
      "outputSchema": {
        "type": "object",
        "properties": {
          "params": {
            "type": "string"
          }
        },
        "required": [
          "absent"
        ]
      },
      "annotations": {
        "destructiveHint": true
      },
      "_meta": {
        "monstrum/operation": "echo.mismatch",
        "monstrum/asks": false
      }
    }
    "#);
    let head = json!({"ttlMs": list["ttlMs"], "cacheScope": list["cacheScope"], "nextCursor": list["nextCursor"]});
    assert_snapshot!(head.to_string(), @r#"{"ttlMs":5000,"cacheScope":"private","nextCursor":null}"#);
    let names: Vec<&str> = list["tools"].as_array().into_iter().flatten().map(|tool| text(&tool["name"])).collect();
    assert_eq!(names, scene.world.tools().await?, "the same tools as over HTTP");
    Ok(())
}

/// A resource can define tools. Four resources have more tools than fit on one page.
#[tokio::test]
async fn a_long_list_comes_in_pages_of_200() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?;
    let manifest = server.plugins_dir().join("test-echo/monstrum.yaml");
    let text_of = std::fs::read_to_string(&manifest)?;
    let configured = text_of.replace("  auth_flow: manual\n", "  auth_flow: manual\n  tool_discovery: configured\n");
    std::fs::write(&manifest, configured)?;
    let scene = Scene::on(server).await?;
    // The keyword asks clients to copy a parameter into a header. A property may have the same name.
    let schema = json!({"type": "object", "properties": {
        "repo": {"type": "string", "x-mcp-header": "Repo"}, "x-mcp-header": {"type": "string"},
    }});
    let tools: Vec<Value> = (0..110)
        .map(|number| {
            let name = format!("tool_{number:03}");
            json!({"name": name, "description": "x", "operation": "echo.read", "input_schema": schema})
        })
        .collect();
    let role = scene.world.api.role("many", &["*"]).await?;
    for name in ["one", "two", "three", "four"] {
        let new = json!({"resource_type": "test-echo", "name": name, "config": {"tools": tools}});
        let (status, answer) = scene.world.api.post("/api/resources", &new).await?;
        assert_eq!(status, 201, "{answer}");
        scene.world.api.bind(&scene.world.bot, text(&answer["id"]), &role, &json!({})).await?;
    }
    let (mut sizes, mut names, mut cursor) = (Vec::new(), Vec::new(), Value::Null);
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({ "cursor": cursor }) };
        let page = scene.client.ask("tools/list", &params).await?;
        let items = page["tools"].as_array().context("the page has no tools")?;
        sizes.push(items.len());
        names.extend(items.iter().map(|tool| text(&tool["name"]).to_owned()));
        if let Some(tool) = items.iter().find(|tool| tool["name"] == "four__tool_007") {
            assert_snapshot!(tool["inputSchema"].to_string(), @r#"{"type":"object","properties":{"repo":{"type":"string"},"x-mcp-header":{"type":"string"}}}"#);
        }
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(names, scene.world.tools().await?);
    assert_eq!((sizes.len(), sizes[0], sizes[1]), (3, 200, 200));
    Ok(())
}
