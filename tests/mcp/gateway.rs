//! A gateway end to end: other MCP servers, through resources of type `mcp` and the MCP server of a bot, called by the
//! official clients.
//!
//! A client gets the same result from the bot as from the server itself, with these differences, which are documented:
//!
//! - A tool has the name of its resource before its own, in lower case.
//! - A client agrees on the newest revision with the bot, even if the server has an earlier one.
//! - Arguments that do not match the approved schema do not reach the server. The text of the error is Monstrum's.
//! - Of a failed result, the text is passed on, up to 4 KiB.
//! - The metadata of a result, `_meta`, are not passed on.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use rstest::rstest;
use serde_json::{Value, json};
use support::McpPeer::{self, Python, PythonInitialize, TypeScriptClient, TypeScriptSdk};
use support::{EverythingServer, Sdk, SdkServer, Server};

use super::STATELESS;
use super::approvals::PERSONS;
use super::client::{approve_all, discover, pins, resource};
use super::peers::Driver;
use crate::http::made;
use crate::world::{World, eventually, text};

/// The tool whose calls a scope restricts. It is the only one with the effect `write`.
const SCOPED: &str = "get-structured-content";
/// The tool that no admin has approved.
const UNAPPROVED: &str = "get-env";
const SCOPED_NAME: &str = "everything__get_structured_content";
const UNAPPROVED_NAME: &str = "everything__get_env";
const GATED_NAME: &str = "everything__get_sum";
/// The maximum number of comparisons of a result that depends on the time.
const ATTEMPTS_MAX: usize = 10;

/// A bot that may use the tools of other servers.
struct Gateway {
    world: World,
    key: String,
    role: String,
}

impl Gateway {
    async fn start() -> Result<Gateway> {
        let server = Server::prepare(&[])?.argument("--sandbox").argument("off");
        let world = World::on(server.argument("--approval-url").argument(PERSONS)).await?;
        let key = world.api.new_key("bot", Some(&world.bot)).await?;
        let role = world.api.role("gateway", &["mcp.*"]).await?;
        Ok(Gateway { world, key, role })
    }

    /// Lets the bot use all tools of a server.
    async fn add(&self, name: &str, url: &str) -> Result<()> {
        let id = resource(&self.world, name, url, &json!({})).await?;
        let discovery = discover(&self.world, &id).await?;
        ensure!(discovery["status"] == "ok", "{discovery}");
        approve_all(&self.world, &id, "read").await?;
        self.world.api.bind(&self.world.bot, &id, &self.role, &json!({})).await?;
        Ok(())
    }

    /// Connects a client with the bot. Returns it with the revision on which they agree.
    async fn connect(&self, peer: McpPeer) -> Result<(Driver, String)> {
        let url = self.world.server.url().context("the server is not running")?;
        Driver::connect(peer, &format!("{url}/mcp/{}", self.world.bot), &self.key).await
    }
}

/// Calls a tool for a user of an app. Returns what the client tells: the result, or the URL at which a person decides.
async fn call(client: &mut Driver, tool: &str, arguments: &Value) -> Result<Value> {
    let meta = json!({"monstrum/chat": {"app_id": "app", "user_id": "7", "chat_id": "c"}});
    client.ask(&json!({"do": "call", "tool": tool, "arguments": arguments, "meta": meta})).await
}

/// A client that is connected with a server itself, and with the bot.
struct Both<'a> {
    /// The name of the server's resource.
    resource: &'a str,
    server: Driver,
    bot: Driver,
}

impl Both<'_> {
    /// Calls a tool on both ways and compares the whole results. Returns the result.
    async fn same(&mut self, tool: &str, arguments: &Value) -> Result<Value> {
        let name = format!("{}__{}", self.resource, tool.replace('-', "_"));
        for _ in 0..ATTEMPTS_MAX {
            let before = call(&mut self.server, tool, arguments).await?;
            let result = call(&mut self.bot, &name, arguments).await?;
            // Some results of server-everything contain the time in seconds.
            if call(&mut self.server, tool, arguments).await? == before {
                assert_eq!(result, before, "{name}");
                return Ok(result);
            }
        }
        bail!("{tool} gives another result each time")
    }
}

#[rstest]
#[tokio::test]
async fn content_of_server_everything_is_unchanged(
    #[values(Python, PythonInitialize, TypeScriptClient, TypeScriptSdk)] peer: McpPeer,
) -> Result<()> {
    let gateway = Gateway::start().await?;
    let everything = EverythingServer::start().await?;
    gateway.add("everything", everything.url()).await?;
    let (server, at_server) = Driver::connect(peer, everything.url(), "no key").await?;
    let (bot, at_bot) = gateway.connect(peer).await?;
    assert_eq!((at_server.as_str(), at_bot.as_str()), ("2025-11-25", peer.revision()));

    let mut both = Both { resource: "everything", server, bot };
    let mut kinds = BTreeSet::new();
    for (tool, arguments) in [
        ("echo", json!({"message": "héllo\n\u{2028}\"<&>"})),
        ("get-sum", json!({"a": 1, "b": 2.5})),
        ("get-annotated-message", json!({"messageType": "error", "includeImage": true})),
        ("get-annotated-message", json!({"messageType": "debug"})),
        ("get-tiny-image", json!({})),
        ("get-resource-links", json!({"count": 3})),
        ("get-resource-reference", json!({"resourceType": "Text", "resourceId": 1})),
        ("get-resource-reference", json!({"resourceType": "Blob", "resourceId": 2})),
        ("gzip-file-as-resource", json!({"name": "a.gz", "data": "data:text/plain,a", "outputType": "resource"})),
        ("gzip-file-as-resource", json!({"name": "a.gz", "data": "data:text/plain,a", "outputType": "resourceLink"})),
        ("trigger-long-running-operation", json!({"duration": 0.2, "steps": 2})),
    ] {
        let result = both.same(tool, &arguments).await?;
        ensure!(result["error"] == false, "{tool}: {result}");
        kinds.extend(types(&result));
    }
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    assert_eq!(kinds, ["image", "resource", "resource_link", "text"], "server-everything returns no audio");
    let weather = both.same(SCOPED, &json!({"location": "Chicago"})).await?;
    assert_eq!(weather["structured"]["temperature"], 36, "{weather}");
    let failed = both.same("get-resource-reference", &json!({"resourceType": "Text", "resourceId": -1})).await?;
    assert_eq!(failed["error"], true, "{failed}");
    let invalid = call(&mut both.bot, GATED_NAME, &json!({"a": "one", "b": 2})).await?;
    assert_eq!(invalid["texts"], json!([r#"Invalid parameters: /a: "one" is not of type "number""#]), "{invalid}");
    Ok(())
}

/// The servers of the SDKs also return audio.
#[rstest]
#[tokio::test]
async fn content_of_servers_of_the_sdks_is_unchanged(
    #[values(Python, PythonInitialize, TypeScriptClient, TypeScriptSdk)] peer: McpPeer,
) -> Result<()> {
    let gateway = Gateway::start().await?;
    for (name, sdk) in [("python", Sdk::Python), ("typescript", Sdk::TypeScript)] {
        let server = SdkServer::start(sdk).await?;
        gateway.add(name, server.url()).await?;
        let (direct, at_server) = Driver::connect(peer, server.url(), "no key").await?;
        let (bot, at_bot) = gateway.connect(peer).await?;
        assert_eq!((at_server.as_str(), at_bot.as_str()), (peer.revision(), peer.revision()));

        let mut both = Both { resource: name, server: direct, bot };
        let media = both.same("media", &json!({})).await?;
        let kinds: Vec<String> = types(&media).collect();
        assert_eq!(kinds, ["text", "image", "audio", "resource", "resource", "resource_link"], "{media}");
        let sum = both.same("add", &json!({"a": 1, "b": 2})).await?;
        assert_eq!(sum["structured"], json!({"sum": 3}), "{sum}");
        let failed = both.same("fail", &json!({"why": "no paper"})).await?;
        assert!(failed["error"] == true && text(&failed["texts"][0]).ends_with("no paper"), "{failed}");
        let counted = both.same("count", &json!({"steps": 3})).await?;
        assert_eq!(counted["texts"], json!(["counted to 3"]), "{counted}");
    }
    Ok(())
}

/// Returns the types of the content blocks of a result.
fn types(result: &Value) -> impl Iterator<Item = String> + '_ {
    result["content"].as_array().into_iter().flatten().map(|block| text(&block["type"]).to_owned())
}

/// Decides about the call that waits for a person.
async fn decide(world: &World, decision: &str) -> Result<()> {
    let approval = eventually("an approval is pending", async || {
        let (status, list) = world.api.get("/api/approvals?status=pending").await?;
        ensure!(status == 200, "{status} {list}");
        Ok(list["items"].get(0).cloned())
    })
    .await?;
    ensure!(approval["tool"] == GATED_NAME && approval["user"] == user(), "{approval}");
    let path = format!("/api/approvals/{}", text(&approval["id"]));
    let body = json!({"decision": decision, "digest": approval["digest"]});
    let (status, answer) = world.api.post(&path, &body).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(())
}

fn user() -> Value {
    json!({"app_id": "app", "user_id": "7"})
}

/// Lets the bot use server-everything: with a scope over one argument, and a gate that asks. Returns the resource.
async fn restricted(gateway: &Gateway, url: &str) -> Result<String> {
    let Gateway { world, role, .. } = gateway;
    let dimensions = json!([{
        "key": "places", "param_paths": ["location"], "operation_filter": "mcp.write",
        "error_template": "Place {value} is not authorized",
    }]);
    let id = resource(world, "everything", url, &json!({"dimensions": dimensions})).await?;
    let discovery = discover(world, &id).await?;
    ensure!(discovery["status"] == "ok", "{discovery}");
    let tools: Vec<Value> = pins(world, &id)
        .await?
        .iter()
        .filter(|pin| pin["original_name"] != UNAPPROVED)
        .map(|pin| {
            let effect = if pin["original_name"] == SCOPED { "write" } else { "read" };
            json!({"original_name": pin["original_name"], "digest": pin["digest"], "effect": effect})
        })
        .collect();
    let (status, body) =
        world.api.post(&format!("/api/resources/{id}/tools/approve"), &json!({"tools": tools})).await?;
    ensure!(status == 200, "{status} {body}");
    let binding = json!({
        "resource_id": id, "role_id": role, "scope_constraints": {"places": ["Chicago", "New York"]},
        "gates": [{"tools": [GATED_NAME], "action": "ask", "reason": "a person looks first"}],
    });
    made(&world.api, &format!("/api/bots/{}/resources", world.bot), &binding).await?;
    Ok(id)
}

#[rstest]
#[tokio::test]
async fn scopes_gates_and_the_audit_are_in_force(
    #[values(Python, PythonInitialize, TypeScriptClient, TypeScriptSdk)] peer: McpPeer,
) -> Result<()> {
    let gateway = Gateway::start().await?;
    let everything = EverythingServer::start().await?;
    let id = restricted(&gateway, everything.url()).await?;
    let world = &gateway.world;
    let (mut client, revision) = gateway.connect(peer).await?;

    let refused = call(&mut client, SCOPED_NAME, &json!({"location": "Los Angeles"})).await?;
    assert_eq!(refused["texts"], json!(["Scope violation: Place Los Angeles is not authorized"]), "{refused}");
    let allowed = call(&mut client, SCOPED_NAME, &json!({"location": "Chicago"})).await?;
    assert_eq!((&allowed["error"], &allowed["structured"]["temperature"]), (&json!(false), &json!(36)), "{allowed}");
    let unapproved = call(&mut client, UNAPPROVED_NAME, &json!({})).await?;
    let told = format!("Permission denied: tool '{UNAPPROVED_NAME}' is not available to this bot");
    assert_eq!((&unapproved["error"], &unapproved["texts"]), (&json!(true), &json!([told])), "{unapproved}");

    let sum = json!({"a": 1, "b": 2});
    let mut decided = Vec::new();
    for decision in ["approve", "deny"] {
        let asked = call(&mut client, GATED_NAME, &sum).await?;
        assert!(text(&asked["asked"]).starts_with("https://people.example/"), "one approval permits one call: {asked}");
        decide(world, decision).await?;
        decided.push(client.ask(&json!("decided")).await?["texts"].clone());
    }
    let denied = json!(["Permission denied: a person has denied this call"]);
    assert_eq!(decided, [json!(["The sum of 1 and 2 is 3."]), denied]);

    let (_, audit) = world.api.get(&format!("/api/audit?bot_id={}", world.bot)).await?;
    let rows: Vec<&Value> = audit["items"].as_array().context("the audit has no items")?.iter().rev().collect();
    for row in &rows {
        // A tool that no admin has approved is unknown to the bot, and belongs to no resource.
        let resource = if row["tool"] == UNAPPROVED_NAME { Value::Null } else { json!(id) };
        assert_eq!(
            (&row["resource_id"], &row["user"], &row["bot_id"]),
            (&resource, &user(), &json!(world.bot)),
            "{row}"
        );
    }
    let shown: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {} {}", text(&row["tool"]), row["operation"], text(&row["status"]), row["rule"]))
        .collect();
    let mut expected = vec![
        r#"everything__get_structured_content "mcp.write" scope_violation "scope.places""#,
        r#"everything__get_structured_content "mcp.write" success null"#,
        r#"everything__get_env null permission_denied "unknown_tool""#,
        r#"everything__get_sum "mcp.read" approval_required "binding.gates""#,
        r#"everything__get_sum "mcp.read" success null"#,
        r#"everything__get_sum "mcp.read" approval_required "binding.gates""#,
    ];
    // With the newest revision, the client continues the call that it has begun, and the refusal is recorded with the
    // approval only. With earlier revisions, the client calls again.
    if revision != STATELESS {
        expected.push(r#"everything__get_sum "mcp.read" permission_denied "approval.denied""#);
    }
    assert_eq!(shown, expected);

    let (_, changes) = world.api.get("/api/audit/changes").await?;
    let items = changes["items"].as_array().context("the changes have no items")?;
    let mut decisions: Vec<&str> =
        items.iter().filter_map(|item| text(&item["change"]).strip_prefix("approval.")).collect();
    decisions.reverse();
    assert_eq!(decisions, ["ask", "approve", "use", "ask", "deny"]);
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}
