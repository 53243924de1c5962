//! Servers that attack: large and endless lists, hidden texts, references to the network, redirects and private addresses.

use anyhow::Result;
use serde_json::{Value, json};
use support::{FakeMcp, Generation, McpReply};

use super::{Behind, discover, tool};
use crate::http::made;
use crate::world::text;

fn page(tools: &[Value], next: Option<&str>) -> McpReply {
    let mut result = json!({"resultType": "complete", "tools": tools});
    if let Some(next) = next {
        result["nextCursor"] = json!(next);
    }
    McpReply::json(200, &json!({"jsonrpc": "2.0", "id": "{id}", "result": result}))
}

#[tokio::test]
async fn lists_over_the_limits_are_failed_discoveries() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let many: Vec<Value> = (0..10_000).map(|number| json!({"name": format!("t{number}")})).collect();
    let event = format!("data: {}\n\n", json!({"jsonrpc": "2.0", "method": "notifications/message"}));
    let large = "x".repeat(1 << 20);
    for (reply, expected) in [
        (page(&many, None), "the MCP server has more than 512 tools"),
        (page(&[], Some("again")), "the pages of the tool list repeat"),
        (page(&[tool("a", &"x".repeat(3 << 20))], None), "is larger than 2048 KiB"),
        (McpReply::text(200, "application/json", "[").flooding(&large), "is larger than 10 MiB"),
        // A body of 100 MiB, which the head announces.
        (
            McpReply::text(200, "application/json", "[").header("content-length", "104857600").flooding(&large),
            "is larger than 10 MiB",
        ),
        (McpReply::events(&[]).flooding(&event), "is larger than 2048 KiB"),
        (McpReply::events(&["data: "]).flooding(&large), "has an event that is larger than 1 MiB"),
    ] {
        behind.mcp.reply("tools/list", reply);
        let discovery = behind.discover().await?;
        assert_eq!(discovery["status"], "failed", "{discovery}");
        assert!(text(&discovery["error"]).contains(expected), "{expected}: {discovery}");
        assert_eq!(behind.statuses().await?, ["note approved"]);
    }
    behind.mcp.forget_reply("tools/list");
    behind.echoed("notes__note", &json!({})).await?;
    Ok(())
}

/// Invalid tools are named with a reason, and the others go on.
#[tokio::test]
async fn invalid_and_hidden_tools_do_not_serve() -> Result<()> {
    let schema = |schema: Value| json!({"name": "bad", "inputSchema": schema});
    // The resource may send requests to this server.
    let elsewhere = FakeMcp::start(Generation::Stateless, &[]).await?;
    let foreign = json!({"type": "object", "properties": {"a": {"$ref": elsewhere.url()}}});
    let config = json!({"definitions": "first"});
    for (bad, status, reason) in [
        (schema(foreign.clone()), "invalid", "$ref"),
        (json!({"name": "bad", "inputSchema": {"type": "object"}, "outputSchema": foreign}), "invalid", "$ref"),
        (schema(json!({"type": "object", "properties": {"_resource": {"type": "string"}}})), "invalid", "_resource"),
        (schema(json!({"type": "nonsense"})), "invalid", ""),
        (tool("bad", &"x".repeat(9 << 10)), "invalid", "8192 bytes"),
        (tool("bad", "Adds a note\u{202e}"), "pending", ""),
        (tool("bad", "Adds a note\u{e0041}\u{e0042}"), "pending", ""),
    ] {
        let tools = [bad.clone(), tool("note", "Adds")];
        let behind = Behind::undecided(Generation::Stateless, &tools, &config).await?;
        behind.discovered().await?;
        let pins = behind.pins().await?;
        let pin = pins.iter().find(|pin| pin["original_name"] == "bad").expect("the tool is listed");
        assert_eq!(pin["status"], status, "{pin}");
        assert!(text(&pin["reason"]).contains(reason), "{pin}");
        assert!(!pin.to_string().contains('\u{202e}'), "hidden characters are written out");
        assert_eq!(behind.world.tools().await?, ["notes__note"]);
        behind.echoed("notes__note", &json!({})).await?;
    }
    assert!(elsewhere.requests().is_empty(), "schemas are never fetched: {:?}", elsewhere.requests());
    Ok(())
}

#[tokio::test]
async fn private_addresses_and_redirects_are_not_followed() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let inner = FakeMcp::start(Generation::Stateless, &[tool("inner", "Inner")]).await?;
    let body = json!({"resource_type": "mcp", "name": "inner", "config": {"url": inner.url()}});
    let closed = made(&behind.world.api, "/api/resources", &body).await?;
    let discovery = discover(&behind.world, &closed).await?;
    assert_eq!(discovery["status"], "failed", "{discovery}");
    for method in ["tools/list", "tools/call"] {
        let redirect = McpReply::text(307, "text/plain", "").header("location", &inner.url());
        behind.mcp.reply(method, redirect);
    }
    assert_eq!(behind.discover().await?["status"], "failed");
    assert_eq!(behind.call("notes__note", &json!({})).await?["code"], "upstream");
    assert!(inner.requests().is_empty());
    Ok(())
}

/// Instructions and requests of a server reach neither a model nor a person.
#[tokio::test]
async fn a_server_gets_no_answer_to_its_requests() -> Result<()> {
    let behind = Behind::start(Generation::Sessions("2025-11-25"), &[tool("note", "Adds")]).await?;
    let ask = json!({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {"messages": []}});
    let result = "{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{\"content\":[]}}";
    let events = [format!("data: {ask}\n\n"), format!("data: {result}\n\n")];
    behind.mcp.reply("tools/call", McpReply::events(&[&events[0], &events[1]]));
    assert_eq!(behind.call("notes__note", &json!({})).await?["status"], "success");
    let requests = behind.mcp.requests();
    let reply = requests.iter().map(support::Recorded::json).find(|message| message["id"] == 7);
    assert_eq!(reply.map(|reply| reply["error"]["code"].clone()), Some(json!(-32601)));

    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let asks = json!({"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create"}}});
    behind.mcp.set_result("note", &asks);
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(answer["code"], "upstream", "{answer}");
    assert_eq!(behind.mcp.params_of("tools/call").len(), 1);
    Ok(())
}
