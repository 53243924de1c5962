//! Calls of tools of MCP servers: scopes, outcomes, repetition and cancellation.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use support::{FakeMcp, Generation, InProcess, McpReply};

use super::{Behind, Here, advance, tool};
use crate::world::{eventually, text};

const SESSIONS: Generation = Generation::Sessions("2025-11-25");

/// Dimensions in the configuration give scopes over arguments of tools.
#[tokio::test]
async fn arguments_are_within_the_scopes_and_match_the_approved_schema() -> Result<()> {
    let dimensions = json!([{
        "key": "folders", "param_paths": ["folder"], "error_template": "Folder {value} is not authorized",
    }]);
    let note = json!({"name": "note", "inputSchema": {
        "type": "object", "required": ["folder"],
        "properties": {"folder": {"type": "string"}, "priority": {"type": "integer", "default": 3}},
    }});
    let behind = Behind::start_with(Generation::Stateless, &[note], &json!({"dimensions": dimensions})).await?;
    let scopes = json!({"scope_constraints": {"folders": ["work/*"]}});
    behind.world.rebind(&behind.binding, &scopes).await?;
    let arguments = behind.echoed("notes__note", &json!({"folder": "work/a"})).await?;
    assert_eq!(arguments, json!({"folder": "work/a", "priority": 3}), "defaults are filled in");
    let refused = async |params: Value| -> Result<String> {
        let answer = behind.call("notes__note", &params).await?;
        Ok(format!("{} {}", text(&answer["code"]), text(&answer["message"])))
    };
    assert_eq!(
        refused(json!({"folder": "private/a"})).await?,
        "scope Scope violation: Folder private/a is not authorized"
    );
    assert!(refused(json!({"folder": 5})).await?.starts_with("invalid_params"));
    assert!(refused(json!({"folder": "work/a", "other": 1})).await?.starts_with("invalid_params"));
    assert_eq!(behind.mcp.params_of("tools/call").len(), 1, "a refused call does not reach the server");
    Ok(())
}

#[tokio::test]
async fn a_call_is_audited_and_its_result_is_labelled_untrusted() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let answer = behind.call("notes__note", &json!({"text": "a"})).await?;
    let row = behind.world.audit_of(&answer).await?;
    assert_eq!(
        (&row["tool"], &row["operation"], &row["plugin"], &row["status"], &row["resource_id"]),
        (&json!("notes__note"), &json!("mcp.write"), &json!("mcp"), &json!("success"), &json!(behind.resource))
    );
    let (_, resource) = behind.world.api.get(&format!("/api/resources/{}", behind.resource)).await?;
    assert_eq!(resource["labels"], json!(["untrusted"]));
    assert_eq!(behind.world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn answers_as_json_and_as_events_are_the_same() -> Result<()> {
    for generation in [Generation::Stateless, SESSIONS] {
        let behind = Behind::start(generation, &[tool("note", "Adds")]).await?;
        let one = behind.echoed("notes__note", &json!({"text": "a"})).await?;
        behind.mcp.stream_calls();
        assert_eq!(behind.echoed("notes__note", &json!({"text": "a"})).await?, one);
    }
    Ok(())
}

/// Content blocks and structured content arrive unchanged. A result that does not match the declared schema is flagged.
#[tokio::test]
async fn content_is_passed_on_and_checked() -> Result<()> {
    let mut note = tool("note", "Adds");
    note["outputSchema"] = json!({"type": "object", "properties": {"count": {"type": "integer"}}});
    let behind = Behind::start(Generation::Stateless, &[note]).await?;
    let blocks = json!([
        {"type": "text", "text": "one"},
        {"type": "image", "mimeType": "image/png", "data": "iVBORw=="},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "a"}},
        {"type": "resource_link", "uri": "https://example.com/", "name": "c"},
    ]);
    let call = async |result: Value| -> Result<Value> {
        behind.mcp.set_result("note", &result);
        behind.call("notes__note", &json!({})).await
    };
    let answer = call(json!({"content": blocks, "structuredContent": {"count": 1}})).await?;
    assert_eq!(answer["data"], json!({"content": blocks, "structured": {"count": 1}}), "{answer}");
    let answer = call(json!({"content": blocks, "structuredContent": {"count": "one"}})).await?;
    let row = behind.world.audit_of(&answer).await?;
    let is_flagged =
        row["events"].as_array().is_some_and(|events| events.iter().any(|event| event["flags"] == "output_mismatch"));
    assert!(answer["status"] == "success" && is_flagged, "{answer} {row}");

    let unknown = json!([{"type": "hologram", "data": "x"}, {"type": "text", "text": "one"}]);
    let answer = call(json!({"content": unknown, "structuredContent": {}})).await?;
    assert_eq!(answer["data"]["content"], json!([{"type": "text", "text": "one"}]), "{answer}");
    let answer = call(json!({"content": [{"type": "image", "data": "?"}]})).await?;
    assert_eq!(answer["code"], "bad_result", "{answer}");
    let answer = call(json!({"content": [{"type": "text", "text": "x".repeat(1 << 20)}]})).await?;
    assert_eq!(answer["code"], "result_too_large", "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_failure_of_the_tool_is_an_error_with_its_text() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let failed = json!({"content": [{"type": "text", "text": "the folder is full"}], "isError": true});
    behind.mcp.set_result("note", &failed);
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(
        (&answer["status"], &answer["code"], &answer["message"]),
        (&json!("error"), &json!("plugin"), &json!("the folder is full")),
        "{answer}"
    );
    let error = json!({"jsonrpc": "2.0", "id": "{id}", "error": {"code": -32603, "message": "database down"}});
    behind.mcp.reply("tools/call", McpReply::json(200, &error));
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(
        (&answer["code"], &answer["message"]),
        (&json!("upstream"), &json!("the MCP server answered with an error (-32603): database down")),
        "{answer}"
    );
    Ok(())
}

/// A call that may change something is not repeated after it has reached the server.
#[tokio::test]
async fn a_stream_that_breaks_is_repeated_only_for_reading_tools() -> Result<()> {
    for (effect, attempts) in [("write", 1), ("read", 2), ("idempotent", 2)] {
        let behind = Behind::undecided(Generation::Stateless, &[tool("note", "Adds")], &json!({})).await?;
        behind.discovered().await?;
        behind.approve_all(effect).await?;
        behind.mcp.reply("tools/call", McpReply::events(&[": working\n\n"]).breaking());
        let answer = behind.call("notes__note", &json!({})).await?;
        assert_eq!(answer["code"], "upstream", "{answer}");
        assert_eq!(text(&answer["message"]).ends_with("; the call may have been carried out"), effect == "write");
        assert_eq!(behind.mcp.params_of("tools/call").len(), attempts, "{effect}");
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_the_server_has_ended_is_made_anew() -> Result<()> {
    let behind = Behind::start(SESSIONS, &[tool("note", "Adds")]).await?;
    behind.echoed("notes__note", &json!({})).await?;
    behind.mcp.end_sessions();
    behind.echoed("notes__note", &json!({})).await?;
    assert_eq!(behind.mcp.params_of("initialize").len(), 2);
    Ok(())
}

/// Cancelling a call closes its stream. A server of an earlier revision gets a notification too.
#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server() -> Result<()> {
    for generation in [Generation::Stateless, SESSIONS] {
        let behind = Behind::start(generation, &[tool("note", "Adds")]).await?;
        behind.mcp.reply("tools/call", McpReply::events(&[": working\n\n"]).silent());
        let (api, bot) = (behind.world.api.clone(), behind.world.bot.clone());
        let call = tokio::spawn(async move { api.call(&bot, "notes__note", &json!({})).await });
        eventually("the call runs", async || Ok((behind.mcp.params_of("tools/call").len() == 1).then_some(()))).await?;
        call.abort();
        let row = eventually("the call has ended", async || {
            let (_, rows) = behind.world.api.get("/api/audit?tool=notes__note&limit=1").await?;
            Ok(rows["items"].get(0).filter(|row| row["code"] == "cancelled").cloned())
        })
        .await?;
        assert_eq!(row["status"], "error", "{row}");
        if generation != Generation::Stateless {
            let cancelled = eventually("the server is notified", async || {
                Ok(behind.mcp.params_of("notifications/cancelled").pop())
            })
            .await?;
            assert!(cancelled["requestId"].is_number(), "{cancelled}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_call_ends_at_its_time_limit() -> Result<()> {
    let config = json!({"timeout_s": 1});
    let behind = Behind::start_with(Generation::Stateless, &[tool("note", "Adds")], &config).await?;
    behind.mcp.reply("tools/call", McpReply::events(&[]).flooding("data: {\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n\n"));
    let answer = behind.call("notes__note", &json!({})).await?;
    // Ten MiB of events may arrive before the second has passed.
    assert!(["timeout", "result_too_large", "upstream"].contains(&text(&answer["code"])), "{answer}");
    behind.mcp.reply("tools/call", McpReply::events(&[": working\n\n"]).silent());
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(answer["code"], "timeout", "{answer}");
    Ok(())
}

/// The time limit of a call is that of its resource, up to ten minutes.
#[tokio::test]
async fn a_resource_sets_the_time_limit_of_its_calls() -> Result<()> {
    for (config, seconds, code) in [
        (json!({}), 58, Value::Null),
        (json!({}), 61, json!("timeout")),
        (json!({"timeout_s": 600}), 590, Value::Null),
        (json!({"timeout_s": 600}), 601, json!("timeout")),
    ] {
        let mcp = FakeMcp::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
        let here = Here::start(InProcess::start(&[]).await?, &mcp.url(), &config).await?;
        mcp.hold();
        let (api, bot) = (here.api.clone(), here.bot.clone());
        let call = tokio::spawn(async move { api.call(&bot, "notes__note", &json!({})).await });
        eventually("the call runs", async || Ok((mcp.params_of("tools/call").len() == 1).then_some(()))).await?;
        advance(Duration::from_secs(seconds)).await;
        if code.is_null() {
            mcp.release();
        }
        let answer = call.await??;
        assert_eq!(answer["code"], code, "{config} {seconds}: {answer}");
        here.host.stop().await;
    }
    Ok(())
}

/// A server that no longer has a tool is asked for its list.
#[tokio::test]
async fn a_call_of_an_unknown_tool_causes_a_discovery() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let error = json!({"jsonrpc": "2.0", "id": "{id}", "error": {"code": -32602, "message": "Unknown tool: note"}});
    behind.mcp.set_tools(&[]);
    behind.mcp.reply("tools/call", McpReply::json(200, &error));
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!(answer["code"], "upstream", "{answer}");
    eventually("the tool is gone", async || Ok((behind.statuses().await? == ["note gone"]).then_some(()))).await?;
    // The rows are written before the policy is renewed.
    eventually("the bot has no tools", async || Ok(behind.world.tools().await?.is_empty().then_some(()))).await?;
    Ok(())
}
