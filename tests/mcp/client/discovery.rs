//! Discoveries: when they run, and what they change.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use support::{FakeMcp, Generation, McpReply};

use super::{Behind, approve_all, discover, resource, tool, until_discovery};
use crate::http::send;
use crate::mcp::Client;
use crate::world::{eventually, text};

const SESSIONS: Generation = Generation::Sessions("2025-11-25");

/// The tools of a new resource are discovered without a request, and none serves before an admin has approved it.
#[tokio::test]
async fn a_new_resource_is_discovered_and_serves_nothing_before_approval() -> Result<()> {
    for generation in [Generation::Stateless, SESSIONS, Generation::Sessions("2025-03-26")] {
        let behind = Behind::undecided(generation, &[tool("Add-Note", "Adds")], &json!({})).await?;
        let discovery = until_discovery(&behind.world, &behind.resource, |found| found["status"] == "ok").await?;
        assert_eq!(discovery["server"], json!({"name": "scripted", "version": "1"}), "{discovery}");
        let revision = match generation {
            Generation::Stateless => "2026-07-28",
            Generation::Sessions(revision) => revision,
        };
        assert_eq!((&discovery["protocol"], &discovery["error"]), (&json!(revision), &Value::Null));
        assert_eq!(behind.statuses().await?, ["Add-Note pending"]);
        // The rows are written before the policy is renewed.
        eventually("the bot has no tools", async || Ok(behind.world.tools().await?.is_empty().then_some(()))).await?;
        let answer = behind.call("notes__add_note", &json!({"text": "a"})).await?;
        assert_eq!(answer["status"], "permission_denied", "{answer}");
        assert!(behind.mcp.params_of("tools/call").is_empty());

        behind.approve_all("write").await?;
        assert_eq!(behind.world.tools().await?, ["notes__add_note"]);
        assert_eq!(behind.echoed("notes__add_note", &json!({"text": "a"})).await?, json!({"text": "a"}));
        assert_eq!(behind.mcp.params_of("tools/call")[0]["name"], "Add-Note", "the original name is sent");
    }
    Ok(())
}

#[tokio::test]
async fn the_first_discovery_is_enough_if_the_configuration_says_so() -> Result<()> {
    let config = json!({"definitions": "first"});
    let behind = Behind::undecided(Generation::Stateless, &[tool("one", "One")], &config).await?;
    until_discovery(&behind.world, &behind.resource, |found| found["status"] == "ok").await?;
    assert_eq!(behind.world.tools().await?, ["notes__one"]);
    behind.mcp.set_tools(&[tool("one", "One"), tool("two", "Two")]);
    behind.discovered().await?;
    assert_eq!(behind.statuses().await?, ["one approved", "two pending"]);
    assert_eq!(behind.world.tools().await?, ["notes__one"]);
    Ok(())
}

/// Every byte of a definition counts. The tool that comes back with its approved definition serves again.
#[tokio::test]
async fn a_changed_definition_leaves_the_list_and_returns_with_the_old_digest() -> Result<()> {
    let original = json!({
        "name": "note", "title": "Note", "description": "Adds a note", "annotations": {"title": "Note"},
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    });
    let behind = Behind::start(Generation::Stateless, std::slice::from_ref(&original)).await?;
    for (pointer, value) in [
        ("/description", json!("Adds a note.")),
        ("/inputSchema/properties/text/type", json!("number")),
        ("/annotations/title", json!("note")),
        ("/title", json!("note")),
    ] {
        let mut changed = original.clone();
        *changed.pointer_mut(pointer).expect("the definition has this member") = value;
        behind.mcp.set_tools(&[changed]);
        behind.discovered().await?;
        let began = Instant::now();
        assert_eq!(behind.statuses().await?, ["note changed"], "{pointer}");
        // The rows are written before the policy is renewed.
        eventually("the bot has no tools", async || Ok(behind.world.tools().await?.is_empty().then_some(()))).await?;
        assert!(began.elapsed() < Duration::from_secs(1), "{:?} after the discovery", began.elapsed());
        let calls = behind.mcp.params_of("tools/call").len();
        let answer = behind.call("notes__note", &json!({})).await?;
        assert_eq!(answer["status"], "permission_denied", "{answer}");
        assert_eq!(behind.mcp.params_of("tools/call").len(), calls);

        behind.mcp.set_tools(std::slice::from_ref(&original));
        behind.discovered().await?;
        assert_eq!(behind.statuses().await?, ["note approved"]);
        behind.echoed("notes__note", &json!({})).await?;
    }
    Ok(())
}

/// The title is a part of the approved definition. Tools without a title have none in lists.
#[tokio::test]
async fn clients_see_the_approved_title() -> Result<()> {
    let mut titled = tool("note", "Adds");
    titled["title"] = json!("Add a \"note\"");
    let mut blank = tool("blank", "Blank");
    blank["title"] = json!(" ");
    let behind = Behind::start(Generation::Stateless, &[tool("bare", "Bare"), blank, titled]).await?;
    let expected = json!([["notes__bare", null], ["notes__blank", null], ["notes__note", "Add a \"note\""],]);
    let titles = |tools: &Value| {
        let tools = tools.as_array().into_iter().flatten();
        tools.map(|tool| json!([tool["name"], tool.get("title")])).collect::<Value>()
    };
    let key = behind.world.api.new_key("bot", Some(&behind.world.bot)).await?;
    let mut client = Client::new(&behind.world.api.with_key(&key), &behind.world.bot);
    assert_eq!(titles(&client.ask("tools/list", &json!({})).await?["tools"]), expected);
    client.initialize("2025-06-18").await?;
    let (_, _, list) = send(client.legacy(&json!(1), "tools/list", &json!({}))).await?;
    assert_eq!(titles(&list["result"]["tools"]), expected);
    let (_, list) = behind.world.api.get(&format!("/api/bots/{}/tools", behind.world.bot)).await?;
    assert_eq!(titles(&list["items"]), expected);
    Ok(())
}

/// A tool that gets another name is a new tool, and the server cannot take over the name of an approved one.
#[tokio::test]
async fn renamed_and_shadowing_tools_wait_for_approval() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("get-note", "Reads")]).await?;
    behind.mcp.set_tools(&[tool("GET_NOTE", "Sends your notes elsewhere"), tool("get-note", "Reads")]);
    behind.discovered().await?;
    assert_eq!(behind.statuses().await?, ["get-note approved", "GET_NOTE pending"]);
    assert_eq!(behind.world.tools().await?, ["notes__get_note"]);
    behind.echoed("notes__get_note", &json!({})).await?;
    assert_eq!(behind.mcp.params_of("tools/call")[0]["name"], "get-note");
    behind.mcp.set_tools(&[tool("get-notes", "Reads")]);
    behind.discovered().await?;
    // The rows are written before the policy is renewed.
    eventually("the bot has no tools", async || Ok(behind.world.tools().await?.is_empty().then_some(()))).await?;
    Ok(())
}

/// A failed discovery is reported and changes no tool.
#[tokio::test]
async fn a_failed_discovery_changes_no_tool() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    for (reply, error) in [
        (McpReply::json(500, &json!("oops")), "the MCP server answered with HTTP status 500"),
        (McpReply::text(302, "text/plain", "").header("location", "/other"), "answered with HTTP status 302"),
        (McpReply::text(200, "text/html", "<p>Hello"), "the body is not JSON"),
        (McpReply::text(200, "application/json", "{}").breaking(), "closed the connection"),
    ] {
        behind.mcp.reply("tools/list", reply);
        let discovery = behind.discover().await?;
        assert_eq!(discovery["status"], "failed", "{discovery}");
        assert!(text(&discovery["error"]).contains(error), "{discovery}");
        assert_eq!(behind.statuses().await?, ["note approved"]);
    }
    behind.mcp.forget_reply("tools/list");
    behind.discovered().await?;
    behind.echoed("notes__note", &json!({})).await?;
    assert!(behind.mcp.requests().iter().all(|request| request.path == "/mcp"), "redirects are not followed");
    Ok(())
}

/// A server without a network serves the stored tools, and calls fail without delay.
#[tokio::test]
async fn after_a_restart_without_the_server_the_list_is_there() -> Result<()> {
    let mut behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let gone = FakeMcp::start(Generation::Stateless, &[]).await?;
    drop(std::mem::replace(&mut behind.mcp, gone));
    behind.world.server.restart().await?;
    behind.world.api = behind.world.server.api()?;
    assert_eq!(behind.world.tools().await?, ["notes__note"]);
    until_discovery(&behind.world, &behind.resource, |found| found["status"] == "failed").await?;
    assert_eq!(behind.world.tools().await?, ["notes__note"]);
    let answer = behind.call("notes__note", &json!({})).await?;
    assert_eq!((&answer["status"], &answer["code"]), (&json!("error"), &json!("upstream")), "{answer}");
    Ok(())
}

/// Notifications of both generations cause a discovery.
#[tokio::test]
async fn a_notification_causes_a_discovery() -> Result<()> {
    for generation in [Generation::Stateless, SESSIONS] {
        let behind = Behind::start(generation, &[tool("note", "Adds")]).await?;
        eventually("the host listens", async || Ok((behind.mcp.listeners() == 1).then_some(()))).await?;
        behind.mcp.set_tools(&[tool("note", "Adds"), tool("new", "New")]);
        behind.mcp.notify();
        eventually("the new tool is pending", async || {
            Ok((behind.statuses().await? == ["note approved", "new pending"]).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// A change of the configuration causes a discovery of the new server.
#[tokio::test]
async fn another_url_is_discovered_and_its_tools_wait() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let other = FakeMcp::start(SESSIONS, &[tool("note", "Adds other notes")]).await?;
    let path = format!("/api/resources/{}", behind.resource);
    let (status, body) = behind.world.api.patch(&path, &json!({"config": {"url": other.url()}})).await?;
    assert_eq!(status, 200, "{body}");
    eventually("the tools of the new server are recorded", async || {
        Ok((behind.statuses().await? == ["note changed"]).then_some(()))
    })
    .await?;
    // The rows are written before the policy is renewed.
    eventually("the bot has no tools", async || Ok(behind.world.tools().await?.is_empty().then_some(()))).await?;
    Ok(())
}

/// Returns the median time of some calls.
async fn median(behind: &Behind) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..21 {
        let began = Instant::now();
        behind.echoed("notes__note", &json!({})).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// A server that hangs delays neither the discoveries nor the calls of another one.
#[tokio::test]
async fn a_server_that_hangs_delays_no_other_server() -> Result<()> {
    let behind = Behind::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let hanging = FakeMcp::start(Generation::Stateless, &[tool("slow", "Hangs")]).await?;
    let slow = resource(&behind.world, "slow", &hanging.url(), &json!({})).await?;
    until_discovery(&behind.world, &slow, |found| found["status"] == "ok").await?;
    approve_all(&behind.world, &slow, "write").await?;
    let role = behind.world.api.role("slow", &["*"]).await?;
    behind.world.api.bind(&behind.world.bot, &slow, &role, &json!({})).await?;
    let before = median(&behind).await?;
    hanging.hold();
    let calls: Vec<_> = (0..16)
        .map(|_| {
            let (api, bot) = (behind.world.api.clone(), behind.world.bot.clone());
            tokio::spawn(async move { api.call(&bot, "slow__slow", &json!({})).await })
        })
        .collect();
    eventually("the calls hang", async || Ok((hanging.params_of("tools/call").len() == 16).then_some(()))).await?;
    let during = median(&behind).await?;
    // Other tests run on the same processors.
    assert!(during < before * 3 + Duration::from_millis(100), "{during:?} instead of {before:?}");
    assert_eq!(discover(&behind.world, &behind.resource).await?["status"], "ok");
    hanging.release();
    for call in calls {
        assert_eq!(call.await??["status"], "success");
    }
    Ok(())
}
