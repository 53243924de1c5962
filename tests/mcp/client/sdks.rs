//! Servers that are written with the official Python and TypeScript SDKs and speak revision 2026-07-28: PyPI `mcp` and npm
//! `@modelcontextprotocol/server`. npm `@modelcontextprotocol/sdk` ends with revision 2025-11-25; server-everything uses it.

use std::time::Duration;

use anyhow::{Result, ensure};
use rstest::rstest;
use serde_json::{Value, json};
use support::{Sdk, SdkServer, Server};

use super::{approve_all, discover, pins, resource};
use crate::world::{World, eventually, text};

/// The time between two notifications of a server.
const NOTIFY_POLL: Duration = Duration::from_millis(500);

/// A bot that may use the approved tools of a server.
struct Served {
    world: World,
    resource: String,
    _server: SdkServer,
}

impl Served {
    async fn start(sdk: Sdk) -> Result<Served> {
        let world = World::on(Server::prepare(&[])?.argument("--sandbox").argument("off")).await?;
        let server = SdkServer::start(sdk).await?;
        let resource = resource(&world, "sdk", server.url(), &json!({})).await?;
        let role = world.api.role("everything", &["*"]).await?;
        world.api.bind(&world.bot, &resource, &role, &json!({})).await?;
        Ok(Served { world, resource, _server: server })
    }

    /// Starts a server and approves all its tools.
    async fn approved(sdk: Sdk) -> Result<Served> {
        let served = Served::start(sdk).await?;
        served.discovered().await?;
        approve_all(&served.world, &served.resource, "write").await?;
        Ok(served)
    }

    async fn discovered(&self) -> Result<Value> {
        let discovery = discover(&self.world, &self.resource).await?;
        ensure!(discovery["status"] == "ok", "{discovery}");
        Ok(discovery)
    }

    /// Returns the original names of the tools with this status.
    async fn with_status(&self, status: &str) -> Result<Vec<String>> {
        let pins = pins(&self.world, &self.resource).await?;
        let found = pins.iter().filter(|pin| pin["status"] == status);
        Ok(found.map(|pin| text(&pin["original_name"]).to_owned()).collect())
    }

    async fn call(&self, tool: &str, params: &Value) -> Result<Value> {
        self.world.call(&format!("sdk__{tool}"), params).await
    }

    /// Makes the server describe the tool `note` with another text.
    async fn describe(&self, text: &str) -> Result<()> {
        let answer = self.call("describe", &json!({"text": text})).await?;
        ensure!(answer["status"] == "success", "{answer}");
        Ok(())
    }
}

#[rstest]
#[tokio::test]
async fn the_tools_are_discovered_and_wait_for_approval(
    #[values(Sdk::Python, Sdk::TypeScript)] sdk: Sdk,
) -> Result<()> {
    let served = Served::start(sdk).await?;
    let discovery = served.discovered().await?;
    let name = if sdk == Sdk::Python { "python" } else { "typescript" };
    assert_eq!(
        (&discovery["protocol"], &discovery["server"]),
        (&json!("2026-07-28"), &json!({"name": name, "version": "1.0.0"})),
        "{discovery}"
    );
    let mut pending = served.with_status("pending").await?;
    pending.sort_unstable();
    assert_eq!(pending, ["add", "count", "describe", "fail", "media", "note"]);
    assert!(served.world.tools().await?.is_empty());
    assert_eq!(served.call("add", &json!({"a": 1, "b": 2})).await?["status"], "permission_denied");
    approve_all(&served.world, &served.resource, "read").await?;
    let approved: Vec<String> = pending.iter().map(|tool| format!("sdk__{tool}")).collect();
    assert_eq!(served.world.tools().await?, approved);
    Ok(())
}

#[rstest]
#[tokio::test]
async fn the_tools_are_called(#[values(Sdk::Python, Sdk::TypeScript)] sdk: Sdk) -> Result<()> {
    let served = Served::approved(sdk).await?;
    let sum = served.call("add", &json!({"a": 1, "b": 2})).await?;
    assert_eq!((&sum["status"], &sum["data"]["structured"]), (&json!("success"), &json!({"sum": 3})), "{sum}");
    let row = served.world.audit_of(&sum).await?;
    let flags = row["events"].as_array().into_iter().flatten().filter(|event| !event["flags"].is_null()).count();
    assert_eq!((&row["operation"], flags), (&json!("mcp.write"), 0), "the result matches its schema: {row}");

    let invalid = served.call("add", &json!({"a": "one", "b": 2})).await?;
    assert_eq!(invalid["code"], "invalid_params", "{invalid}");
    let failed = served.call("fail", &json!({"why": "no paper"})).await?;
    assert_eq!((&failed["status"], &failed["code"]), (&json!("error"), &json!("plugin")), "{failed}");
    assert!(text(&failed["message"]).ends_with("no paper"), "{failed}");

    // The server streams its answer: notifications of progress, and then the result.
    let counted = served.call("count", &json!({"steps": 3})).await?;
    assert_eq!(counted["data"]["content"], json!([{"type": "text", "text": "counted to 3"}]), "{counted}");
    let media = served.call("media", &json!({})).await?;
    let blocks: Vec<&str> =
        media["data"]["content"].as_array().into_iter().flatten().map(|block| text(&block["type"])).collect();
    assert_eq!(blocks, ["text", "image", "audio", "resource", "resource", "resource_link"], "{media}");
    Ok(())
}

/// The server says that its list has changed. The tool is gone until it has its approved description again.
#[rstest]
#[tokio::test]
async fn a_tool_that_changes_its_description_waits_for_approval(
    #[values(Sdk::Python, Sdk::TypeScript)] sdk: Sdk,
) -> Result<()> {
    let served = Served::approved(sdk).await?;
    let noted = served.call("note", &json!({})).await?;
    assert_eq!(noted["status"], "success", "{noted}");
    // A discovery follows a notification. Monstrum may not listen yet when the first one is sent.
    eventually("the tool waits", async || {
        served.describe("Returns a note to a stranger").await?;
        tokio::time::sleep(NOTIFY_POLL).await;
        Ok((served.with_status("changed").await? == ["note"]).then_some(()))
    })
    .await?;
    // The rows are written before the policy is renewed.
    eventually("the bot does not have the tool", async || {
        Ok((!served.world.tools().await?.contains(&"sdk__note".to_owned())).then_some(()))
    })
    .await?;
    assert_eq!(served.call("note", &json!({})).await?["status"], "permission_denied");
    assert_eq!(served.call("add", &json!({"a": 1, "b": 2})).await?["status"], "success");

    served.describe("Returns a note").await?;
    served.discovered().await?;
    assert!(served.with_status("changed").await?.is_empty());
    eventually("the bot has the tool", async || {
        Ok(served.world.tools().await?.contains(&"sdk__note".to_owned()).then_some(()))
    })
    .await?;
    assert_eq!(served.call("note", &json!({})).await?["status"], "success");
    Ok(())
}
