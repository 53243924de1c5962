//! The tools of npm `@modelcontextprotocol/server-everything`, through a resource of type `mcp` and the MCP server of a bot,
//! with a plain HTTP client. See `gateway` for the official clients.

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{EverythingServer, Server};

use super::{approve_all, discover, resource};
use crate::mcp::Client;
use crate::world::{World, text};

#[tokio::test]
async fn a_bot_offers_the_tools_of_another_server() -> Result<()> {
    let world = World::on(Server::prepare(&[])?.argument("--sandbox").argument("off")).await?;
    let server = EverythingServer::start().await?;
    let everything = resource(&world, "everything", server.url(), &json!({})).await?;
    let discovery = discover(&world, &everything).await?;
    assert_eq!(
        (&discovery["status"], &discovery["protocol"], &discovery["server"]["name"]),
        (&json!("ok"), &json!("2025-11-25"), &json!("mcp-servers/everything")),
        "{discovery}"
    );
    approve_all(&world, &everything, "read").await?;
    let role = world.api.role("reader", &["mcp.read"]).await?;
    world.api.bind(&world.bot, &everything, &role, &json!({})).await?;
    let key = world.api.new_key("bot", Some(&world.bot)).await?;
    let mut client = Client::new(&world.api.with_key(&key), &world.bot);

    let listed = client.ask("tools/list", &json!({})).await?;
    let names: Vec<&str> =
        listed["tools"].as_array().context("there are tools")?.iter().map(|tool| text(&tool["name"])).collect();
    assert!(names.contains(&"everything__get_sum") && names.contains(&"everything__get_tiny_image"), "{names:?}");

    let mut told = Vec::new();
    for (tool, arguments) in [
        ("echo", json!({"message": "hello"})),
        ("get_sum", json!({"a": 1, "b": 2})),
        ("get_annotated_message", json!({"messageType": "error"})),
        ("get_resource_links", json!({"count": 1})),
        ("get_sum", json!({"a": "one", "b": 2})),
    ] {
        let answer = client.call(&format!("everything__{tool}"), &arguments).await?;
        told.push(json!({"tool": tool, "content": answer["content"], "error": answer["isError"]}).to_string());
    }
    assert_snapshot!(told.join("\n"), @r#"
    {"tool":"echo","content":[{"type":"text","text":"Echo: hello"}],"error":false}
    {"tool":"get_sum","content":[{"type":"text","text":"The sum of 1 and 2 is 3."}],"error":false}
    {"tool":"get_annotated_message","content":[{"type":"text","text":"Error: Operation failed","annotations":{"audience":["user","assistant"],"priority":1.0}}],"error":false}
    {"tool":"get_resource_links","content":[{"type":"text","text":"Here are 1 resource links to resources available in this server:"},{"type":"resource_link","uri":"demo://resource/dynamic/blob/1","name":"Blob Resource 1","description":"Resource 1: plaintext resource","mimeType":"text/plain"}],"error":false}
    {"tool":"get_sum","content":[{"type":"text","text":"Invalid parameters: /a: \"one\" is not of type \"number\""}],"error":true}
    "#);

    let image = client.call("everything__get_tiny_image", &json!({})).await?;
    let block = image["content"].as_array().and_then(|blocks| blocks.iter().find(|block| block["type"] == "image"));
    assert_eq!(block.context("the result has an image")?["mimeType"], "image/png");
    let structured = client.call("everything__get_structured_content", &json!({"location": "Chicago"})).await?;
    let data: Value = serde_json::from_str(text(&structured["content"][0]["text"]))?;
    assert_eq!(structured["structuredContent"], data, "{structured}");

    client.initialize("2025-11-25").await?;
    let params = json!({"name": "everything__echo", "arguments": {"message": "again"}});
    let (_, _, answer) = crate::http::send(client.legacy(&json!(7), "tools/call", &params)).await?;
    assert_eq!(answer["result"]["content"], json!([{"type": "text", "text": "Echo: again"}]), "{answer}");
    Ok(())
}
