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

/// Starts a server whose resources can define tools.
async fn configured() -> Result<Scene> {
    let server = Server::prepare(&["test-echo"])?;
    let manifest = server.plugins_dir().join("test-echo/monstrum.yaml");
    let text_of = std::fs::read_to_string(&manifest)?;
    let configured = text_of.replace("  auth_flow: manual\n", "  auth_flow: manual\n  tool_discovery: configured\n");
    std::fs::write(&manifest, configured)?;
    Scene::on(server).await
}

/// A resource can define tools. Four resources have more tools than fit on one page.
#[tokio::test]
async fn a_long_list_comes_in_pages_of_200() -> Result<()> {
    let scene = configured().await?;
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

/// A change between two pages neither repeats nor skips tools that exist before and after it.
#[tokio::test]
async fn a_list_goes_on_after_its_cursor_while_tools_change() -> Result<()> {
    let scene = configured().await?;
    let role = scene.world.api.role("many", &["*"]).await?;
    let tools: Vec<Value> = (0..200)
        .map(|number| {
            let name = format!("tool_{number:03}");
            json!({"name": name, "description": "x", "operation": "echo.read", "input_schema": {"type": "object"}})
        })
        .collect();
    let bind = async |name: &str, tools: &[Value]| {
        let new = json!({"resource_type": "test-echo", "name": name, "config": {"tools": tools}});
        let (status, answer) = scene.world.api.post("/api/resources", &new).await?;
        assert_eq!(status, 201, "{answer}");
        scene.world.api.bind(&scene.world.bot, text(&answer["id"]), &role, &json!({})).await
    };
    let names = async |params: Value| -> Result<(Vec<String>, Value)> {
        let page = scene.client.ask("tools/list", &params).await?;
        let items = page["tools"].as_array().context("the page has no tools")?;
        Ok((items.iter().map(|tool| text(&tool["name"]).to_owned()).collect(), page["nextCursor"].clone()))
    };
    let many = bind("many", &tools).await?;
    let (first, cursor) = names(json!({})).await?;
    assert_eq!((first.len(), &cursor), (200, &json!("many__tool_199")));
    let rest = names(json!({ "cursor": cursor })).await?;
    assert!(!rest.0.is_empty() && rest.1.is_null(), "{rest:?}");
    // The tool that the cursor names goes, and tools before and after it are added.
    let path = format!("/api/bots/{}/resources/{many}", scene.world.bot);
    assert_eq!(scene.world.api.delete(&path).await?.0, 204);
    bind("early", &tools[..1]).await?;
    bind("name", &tools[..1]).await?;
    let (next, end) = names(json!({ "cursor": cursor })).await?;
    assert_eq!(next, [vec!["name__tool_000".to_owned()], rest.0].concat());
    assert_eq!(end, Value::Null);
    assert_eq!(names(json!({"cursor": "zzz"})).await?, (Vec::new(), Value::Null));
    Ok(())
}
