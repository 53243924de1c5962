//! Tests of `/api/resources/{id}/tools`: a bot can use a tool from outside only as long as it is declared with the
//! definition that an admin has approved.

mod names;
mod tampering;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_core::pins::{DeclaredTool, Definitions, ServerInfo};
use serde_json::{Value, json};
use support::{Api, InProcess};

use crate::http::roles::faults;
use crate::http::{Answers, made, workspace};
use crate::world::text;

/// A resource of type `mcp` and a bot that may use all its tools. The tests declare the tools in place of a client.
struct Outside {
    host: InProcess,
    api: Api,
    resource: String,
    bot: String,
    how: Definitions,
}

impl Outside {
    async fn start(how: Definitions) -> Result<Outside> {
        let host = InProcess::start(&[]).await?;
        let api = host.api()?;
        let body = json!({ "resource_type": "mcp", "name": "tracker", "config": { "url": "https://mcp.example/mcp" } });
        let resource = made(&api, "/api/resources", &body).await?;
        let bot = api.bot("tester").await?;
        let role = api.role("everything", &["*"]).await?;
        api.bind(&bot, &resource, &role, &json!({})).await?;
        Ok(Outside { host, api, resource, bot, how })
    }

    /// Records the tools that the server of the resource declares.
    async fn declare(&self, tools: &[Value]) -> Result<()> {
        let app = &self.host.running.app;
        let snapshot = app.policy.load();
        let resource = snapshot.resource(snapshot.default_workspace(), self.resource.parse()?);
        let resource = resource.context("the resource is not served")?;
        let tools = tools.iter().map(|tool| DeclaredTool {
            original_name: text(&tool["name"]).to_owned(),
            definition: tool.as_object().cloned().unwrap_or_default(),
            effect_hint: None,
        });
        app.pins.record(resource, tools.collect(), self.how).await?;
        Ok(())
    }

    async fn pins(&self) -> Result<Vec<Value>> {
        let (status, body) = self.api.get(&format!("/api/resources/{}/tools", self.resource)).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(body["items"].as_array().context("the list has no items")?.clone())
    }

    /// Returns the original name and the status of each tool.
    async fn statuses(&self) -> Result<Vec<String>> {
        let pins = self.pins().await?;
        Ok(pins.iter().map(|pin| format!("{} {}", text(&pin["original_name"]), text(&pin["status"]))).collect())
    }

    /// Decides about tools with the digests that they have now.
    async fn decide(&self, api: &Api, verdict: &str, names: &[&str], effect: &str) -> Result<(u16, Value)> {
        let pins = self.pins().await?;
        let choice = |name: &&str| {
            let pin = pins.iter().find(|pin| pin["original_name"] == **name);
            json!({ "original_name": name, "digest": pin.map(|pin| &pin["digest"]), "effect": effect })
        };
        let body = json!({ "tools": names.iter().map(choice).collect::<Vec<_>>() });
        api.post(&format!("/api/resources/{}/tools/{verdict}", self.resource), &body).await
    }

    async fn approve(&self, names: &[&str]) -> Result<()> {
        let (status, body) = self.decide(&self.api, "approve", names, "write").await?;
        ensure!(status == 200, "{status} {body}");
        Ok(())
    }

    /// Returns the tools that the bot may see, with their operations.
    async fn seen(&self) -> Result<Vec<String>> {
        let (status, body) = self.api.get(&format!("/api/bots/{}/tools", self.bot)).await?;
        ensure!(status == 200, "{status} {body}");
        let items = body["items"].as_array().context("the list has no items")?;
        Ok(items.iter().map(|tool| format!("{} {}", text(&tool["name"]), text(&tool["operation"]))).collect())
    }

    /// Returns the status and the code of a call.
    async fn call(&self, tool: &str, params: &Value) -> Result<String> {
        let answer = self.api.call(&self.bot, tool, params).await?;
        Ok(format!("{} {}", text(&answer["status"]), text(&answer["code"])))
    }

    /// Returns whether a call would reach the server, by the prediction of the call.
    async fn may_call(&self, tool: &str) -> Result<bool> {
        let answer = self.api.check(&self.bot, tool, &json!({})).await?;
        Ok(answer["decision"] == "allow")
    }
}

fn tool(name: &str, description: &str) -> Value {
    json!({ "name": name, "description": description, "inputSchema": {
        "type": "object", "properties": { "repo": { "type": "string" } },
    } })
}

#[tokio::test]
async fn a_tool_is_served_only_with_its_approved_definition() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    outside.declare(&[tool("Get-Issue", "Reads"), tool("drop", "Drops")]).await?;
    assert_eq!(outside.statuses().await?, ["Get-Issue pending", "drop pending"]);
    assert_eq!(outside.seen().await?, Vec::<String>::new());
    assert!(!outside.may_call("tracker__get_issue").await?);

    let (status, body) = outside.decide(&outside.api, "approve", &["Get-Issue"], "read").await?;
    ensure!(status == 200, "{body}");
    assert_eq!(outside.seen().await?, ["tracker__get_issue mcp.read"]);
    assert!(outside.may_call("tracker__get_issue").await?);
    assert!(!outside.may_call("tracker__drop").await?);

    outside.declare(&[tool("Get-Issue", "Reads."), tool("drop", "Drops")]).await?;
    assert_eq!(outside.statuses().await?, ["Get-Issue changed", "drop pending"]);
    assert_eq!(outside.seen().await?, Vec::<String>::new());
    assert!(!outside.may_call("tracker__get_issue").await?);
    let answer = outside.call("tracker__get_issue", &json!({})).await?;
    assert_eq!(answer, "permission_denied denied", "an unknown tool and a changed tool get the same answer");

    outside.declare(&[tool("Get-Issue", "Reads"), tool("drop", "Drops")]).await?;
    assert_eq!(outside.seen().await?, ["tracker__get_issue mcp.read"], "the approved definition is back");
    outside.declare(&[tool("drop", "Drops")]).await?;
    assert_eq!(outside.statuses().await?, ["Get-Issue gone", "drop pending"]);
    assert_eq!(outside.seen().await?, Vec::<String>::new());
    outside.declare(&[tool("Get-Issue", "Reads"), tool("drop", "Drops")]).await?;
    let (status, body) = outside.decide(&outside.api, "reject", &["Get-Issue"], "write").await?;
    ensure!(status == 200, "{body}");
    assert_eq!(outside.seen().await?, Vec::<String>::new());
    outside.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_decision_names_the_digest_that_was_seen_and_is_made_for_all_tools_or_none() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    outside.declare(&[tool("a", "1"), tool("b", "1")]).await?;
    let seen: Vec<Value> = outside.pins().await?.iter().map(|pin| pin["digest"].clone()).collect();
    outside.declare(&[tool("a", "1"), tool("b", "2")]).await?;
    let path = format!("/api/resources/{}/tools/approve", outside.resource);
    let both = json!({ "tools": [
        { "original_name": "a", "digest": seen[0] }, { "original_name": "b", "digest": seen[1] },
    ] });
    let (status, body) = outside.api.post(&path, &both).await?;
    assert_eq!(status, 409, "{body}");
    assert!(
        text(&body["detail"]).starts_with("entry 1: the tool is now declared with the definition sha256:"),
        "{body}"
    );
    let current = body["items"].as_array().context("the answer has the current tools")?;
    assert_eq!(*current, outside.pins().await?);
    assert_ne!(current[1]["digest"], seen[1]);
    assert_eq!(outside.statuses().await?, ["a pending", "b pending"]);
    let digest = |digest: &Value| json!({ "tools": [{ "original_name": "a", "digest": digest }] });
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "tools": [] }),
        digest(&json!("sha256:0")),
        json!({ "tools": [{ "original_name": "c", "digest": seen[0] }] }),
        json!({ "tools": [{ "original_name": "a", "digest": seen[0], "effect": "none" }] }),
        json!({ "tools": [{ "original_name": "a", "digest": seen[0] }, { "original_name": "a", "digest": seen[0] }] }),
    ] {
        answers.add("", faults(outside.api.post(&path, &body).await?));
    }
    assert_snapshot!(answers, @r#"
    422 [{"path":"/tools","message":"required field is missing"}]
    422 [{"path":"/tools","message":"must not be empty"}]
    422 [{"path":"/tools/0/digest","message":"expected the `digest` of the tool"}]
    422 [{"path":"/tools/0/original_name","message":"the resource has no such tool"}]
    422 [{"path":"/tools/0/effect","message":"unknown variant `none`, expected one of `read`, `idempotent`, `write`"}]
    422 [{"path":"/tools/1/original_name","message":"an earlier entry names the same tool"}]
    "#);
    let operator = outside.api.with_key(&outside.api.new_key("operator", None).await?);
    assert_eq!(outside.decide(&operator, "approve", &["a"], "read").await?.0, 403);
    assert_eq!(outside.decide(&operator, "reject", &["a"], "read").await?.0, 403);
    let foreign = workspace(&outside.api, "foreign").await?;
    assert_eq!(outside.decide(&foreign, "approve", &["a"], "read").await?.0, 404);
    assert_eq!(foreign.get(&format!("/api/resources/{}/tools", outside.resource)).await?.0, 404);
    assert_eq!(outside.statuses().await?, ["a pending", "b pending"]);
    outside.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn every_discovery_and_decision_is_recorded_as_a_change() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    outside.declare(&[tool("a", "1")]).await?;
    outside.declare(&[tool("a", "1")]).await?;
    outside.approve(&["a"]).await?;
    outside.declare(&[tool("a", "2")]).await?;
    outside.decide(&outside.api, "reject", &["a"], "write").await?;
    let (_, body) = outside.api.get("/api/audit/changes?limit=1000").await?;
    let items = body["items"].as_array().context("the list has no items")?.iter().rev();
    let changes = items.filter(|item| text(&item["change"]).starts_with("resource."));
    let told: Vec<String> = changes
        .map(|item| {
            let status = |side: &str| text(&item[side]["tools"][0]["status"]).to_owned();
            format!("{} {} -> {}", text(&item["change"]), status("before"), status("after"))
        })
        .collect();
    assert_eq!(
        told,
        [
            "resource.create  -> ",
            "resource.discover  -> pending",
            "resource.approve_tools pending -> approved",
            "resource.discover approved -> changed",
            "resource.reject_tools changed -> rejected",
        ]
    );
    outside.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn tools_of_outside_are_shown_with_every_character() -> Result<()> {
    let outside = Outside::start(Definitions::First).await?;
    let hidden = tool("list\u{200b}", "Lists \u{202e}sessI\u{e0041}");
    outside
        .declare(&[hidden, tool("plain", "Plain"), json!({ "name": "bad", "inputSchema": { "type": "x" } })])
        .await?;
    assert_eq!(outside.statuses().await?, ["list\\u{200b} pending", "plain approved", "bad invalid"]);
    let pins = outside.pins().await?;
    assert_eq!(pins[0]["definition"]["description"], "Lists \\u{202e}sessI\\u{e0041}");
    assert_eq!(pins[0]["name"], "tracker__list_");
    assert!(text(&pins[2]["reason"]).starts_with("inputSchema: "), "{}", pins[2]);
    assert_eq!(pins[1]["approved"]["by"], Value::Null, "the configuration has approved it");
    outside.approve(&["list\\u{200b}"]).await?;
    assert_eq!(outside.seen().await?, ["tracker__list_ mcp.write", "tracker__plain mcp.write"]);
    assert_eq!(outside.decide(&outside.api, "approve", &["bad"], "write").await?.0, 422);
    outside.host.stop().await;
    Ok(())
}

#[tokio::test]
async fn the_last_discovery_is_part_of_its_resource() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    let app = &outside.host.running.app;
    // The host does not discover the tools of an agent by itself.
    let lab = made(&outside.api, "/api/resources", &json!({ "resource_type": "agent", "name": "lab" })).await?;
    let path = format!("/api/resources/{lab}");
    let shown = async || anyhow::Ok(outside.api.get(&path).await?.1["discovery"].clone());
    assert_eq!(shown().await?["status"], "never");
    let snapshot = app.policy.load();
    let row = &snapshot.resource(snapshot.default_workspace(), lab.parse()?).context("no resource")?.row;
    assert!(app.pins.claim(row).await?);
    app.pins.discovered(row, Err("the server answered 500\u{1b}".to_owned())).await?;
    let failed = shown().await?;
    assert_eq!((text(&failed["status"]), text(&failed["error"])), ("failed", "the server answered 500\\u{1b}"));
    let info = ServerInfo { server: json!({ "name": "tracker" }), protocol: "2026-07-28".to_owned() };
    app.pins.discovered(row, Ok(info)).await?;
    app.pins.release(row).await?;
    let found = shown().await?;
    assert_eq!((text(&found["status"]), text(&found["protocol"])), ("ok", "2026-07-28"));
    assert_eq!((&found["server"]["name"], &found["error"]), (&json!("tracker"), &Value::Null));
    outside.host.stop().await;
    Ok(())
}

/// The approved tools are there after a start, without a discovery.
#[tokio::test]
async fn approved_tools_survive_a_restart() -> Result<()> {
    let outside = Outside::start(Definitions::First).await?;
    outside.declare(&[tool("a", "1")]).await?;
    let key = outside.api.key().to_owned();
    let Outside { host, bot, .. } = outside;
    let InProcess { running, folders } = host;
    running.stop_handle().cancel();
    running.stopped().await;
    let host = InProcess::start_in(folders, Vec::new()).await?;
    let api = Api::new(&host.running.base_url, &key)?;
    let (_, body) = api.get(&format!("/api/bots/{bot}/tools")).await?;
    assert_eq!(body["items"][0]["name"], "tracker__a", "{body}");
    host.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_decision_is_refused_if_another_was_made_that_its_caller_does_not_know() -> Result<()> {
    let outside = Outside::start(Definitions::Review).await?;
    outside.declare(&[tool("a", "1"), tool("b", "1")]).await?;
    let digest = outside.pins().await?[0]["digest"].clone();
    let decide = async |verdict: &str, effect: &str, was: Value| -> Result<(u16, Value)> {
        let decision = json!({ "original_name": "a", "digest": digest, "effect": effect, "was": was });
        let path = format!("/api/resources/{}/tools/{verdict}", outside.resource);
        outside.api.post(&path, &json!({ "tools": [decision] })).await
    };
    let known = |effect: &str| json!({ "approved_digest": digest, "effect": effect });
    let none = || json!({ "approved_digest": null });
    assert_eq!(decide("approve", "read", known("read")).await?.0, 409, "nothing is approved yet");
    assert_eq!(decide("approve", "read", none()).await?.0, 200);
    for (verdict, was) in [("approve", none()), ("approve", known("write")), ("reject", none())] {
        let (status, refused) = decide(verdict, "write", was).await?;
        assert_eq!(status, 409, "{verdict}: {refused}");
        assert!(text(&refused["detail"]).contains("another request has decided about the tool"), "{refused}");
        assert_eq!(outside.pins().await?[0]["effect"], "read", "a refused decision decides nothing");
    }
    assert_eq!(decide("approve", "write", known("read")).await?.0, 200);
    assert_eq!(outside.pins().await?[0]["effect"], "write");
    assert_eq!(outside.statuses().await?, ["a approved", "b pending"]);
    Ok(())
}
