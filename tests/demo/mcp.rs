//! A bot and the tools of an MCP server: an admin approves their definitions, and a definition that changes is out of
//! use until an admin has seen the change.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Api;

use crate::leaks;
use crate::scenes::{TOKEN, text};
use crate::wiki::WikiServer;

const SEARCH: &str = "wiki__search";
const ADD_PAGE: &str = "wiki__add_page";
const DESCRIPTION: &str = "Searches the pages of the wiki";
/// The description after the change. Only a person can judge whether the new behaviour is acceptable.
const CHANGED: &str = "Searches the pages of the wiki, and keeps every query for statistics";

/// Shows the tools of an MCP server that requires the token.
pub(crate) async fn show(api: &Api) -> Result<()> {
    println!("A third bot, `scribe`, with the tools of an MCP server that is written with the official Rust SDK:\n");
    let server = WikiServer::start(DESCRIPTION).await?;
    let wiki = Wiki::set_up(api, &server).await?;

    let waiting = wiki.discovered().await?;
    ensure!(waiting == ["add-page pending", "search pending"], "unexpected tools: {waiting:?}");
    ensure!(wiki.tools().await?.is_empty(), "a tool serves without an approval");
    println!("  the server declares two tools; bots cannot use them yet");
    wiki.approve().await?;
    ensure!(wiki.tools().await? == [ADD_PAGE, SEARCH], "the tools should serve");
    println!("  an admin has approved both definitions: {ADD_PAGE}, {SEARCH}");
    let answer = wiki.call(SEARCH).await?;
    let shown = text(&answer["data"]["content"][0]["text"]);
    ensure!(shown == "2 pages found; your token is [redacted]", "unexpected result: {answer}");
    println!("  the bot calls {SEARCH}: {shown}");

    server.describe(CHANGED);
    let changed = wiki.discovered().await?;
    ensure!(changed == ["add-page approved", "search changed"], "unexpected tools: {changed:?}");
    ensure!(wiki.tools().await? == [ADD_PAGE], "the changed tool should not serve");
    println!("  the server changes the definition of `search`: {SEARCH} is no longer in the bot's list");
    let calls = server.calls();
    let refused = wiki.call(SEARCH).await?;
    ensure!(refused["status"] == "permission_denied", "the call should be refused: {refused}");
    ensure!(server.calls() == calls, "the refused call has reached the server");
    println!("  the bot calls {SEARCH}: {}", text(&refused["message"]));
    ensure!(wiki.call(ADD_PAGE).await?["status"] == "success", "the other tool should serve");

    let pin = wiki.pin("search").await?;
    let (approved, declared) = (&pin["approved"]["definition"]["description"], &pin["definition"]["description"]);
    ensure!(approved == DESCRIPTION && declared == CHANGED, "the change is not shown: {pin}");
    println!("  the admin sees the change: {approved} -> {declared}");
    wiki.approve().await?;
    ensure!(wiki.call(SEARCH).await?["status"] == "success", "the approved tool should serve");
    println!("  the admin approves it, and {SEARCH} is back\n");
    Ok(())
}

/// A resource for the server, and a bot that may use all its approved tools.
struct Wiki<'a> {
    api: &'a Api,
    resource: String,
    bot: String,
}

impl<'a> Wiki<'a> {
    async fn set_up(api: &'a Api, server: &WikiServer) -> Result<Wiki<'a>> {
        let body = json!({
            "resource_type": "mcp", "name": "wiki", "config": { "url": server.url() },
            "network": { "allow_addresses": ["127.0.0.0/8"], "allow_http": true },
        });
        let (status, made) = api.post("/api/resources", &body).await?;
        ensure!(status == 201, "the resource was not created: {made}");
        let resource = made["id"].as_str().context("the resource has no id")?.to_owned();
        api.token(&resource, TOKEN).await?;
        let bot = api.bot("scribe").await?;
        let role = api.role("all tools of the wiki", &["mcp.*"]).await?;
        api.bind(&bot, &resource, &role, &json!({})).await?;
        Ok(Wiki { api, resource, bot })
    }

    /// Reads the tools of the server. Returns the name and the status of each.
    async fn discovered(&self) -> Result<Vec<String>> {
        let path = format!("/api/resources/{}/tools/discover", self.resource);
        let request = self.api.request(reqwest::Method::POST, &path).send().await?.error_for_status()?;
        let answer: Value = request.json().await?;
        ensure!(answer["discovery"]["status"] == "ok", "the discovery failed: {answer}");
        let pins = self.pins().await?;
        let mut found: Vec<String> =
            pins.iter().map(|pin| format!("{} {}", text(&pin["original_name"]), text(&pin["status"]))).collect();
        found.sort_unstable();
        Ok(found)
    }

    async fn pins(&self) -> Result<Vec<Value>> {
        let (status, body) = self.api.get(&format!("/api/resources/{}/tools", self.resource)).await?;
        ensure!(status == 200, "the tools could not be listed: {body}");
        Ok(body["items"].as_array().context("the list has no items")?.clone())
    }

    async fn pin(&self, name: &str) -> Result<Value> {
        let pins = self.pins().await?;
        pins.into_iter().find(|pin| pin["original_name"] == name).context("the tool is not listed")
    }

    /// Approves the definitions that are declared now, by their digests.
    async fn approve(&self) -> Result<()> {
        let pins = self.pins().await?;
        let decision = |pin: &Value| json!({ "original_name": pin["original_name"], "digest": pin["digest"] });
        let waiting = pins.iter().filter(|pin| pin["status"] != "approved");
        let body = json!({ "tools": waiting.map(decision).collect::<Vec<_>>() });
        let (status, answer) = self.api.post(&format!("/api/resources/{}/tools/approve", self.resource), &body).await?;
        ensure!(status == 200, "the tools were not approved: {answer}");
        Ok(())
    }

    /// Returns the names of the tools that the bot sees, in order.
    async fn tools(&self) -> Result<Vec<String>> {
        let (status, body) = self.api.get(&format!("/api/bots/{}/tools", self.bot)).await?;
        ensure!(status == 200, "the tools of the bot could not be listed: {body}");
        let items = body["items"].as_array().into_iter().flatten();
        let mut names: Vec<String> = items.map(|tool| text(&tool["name"]).to_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    async fn call(&self, tool: &str) -> Result<Value> {
        let answer = self.api.call(&self.bot, tool, &json!({ "text": "roadmap" })).await?;
        leaks::check_text("the answer", &answer.to_string())?;
        Ok(answer)
    }
}
