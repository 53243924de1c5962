//! Calls for which a gate asks, through `tools/call`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Server;

use super::Scene;
use crate::world::{eventually, text};

pub(super) const PERSONS: &str = "https://people.example/{workspace}/{id}";

/// Starts a server on which every call of the bot waits for a person.
pub(super) async fn gated(approval_url: Option<&str>) -> Result<Scene> {
    let mut server = Server::prepare(&["test-echo"])?;
    if let Some(url) = approval_url {
        server = server.argument("--approval-url").argument(url);
    }
    let scene = Scene::on(server).await?;
    let gates = json!({"gates": [{"action": "ask", "reason": "a person looks first"}]});
    let (status, answer) = scene.world.api.patch(&format!("/api/bots/{}", scene.world.bot), &gates).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(scene)
}

/// Returns the approval that waits for a decision.
pub(super) async fn pending(scene: &Scene) -> Result<Option<Value>> {
    let (status, list) = scene.world.api.get("/api/approvals?status=pending").await?;
    ensure!(status == 200, "{status} {list}");
    Ok(list["items"].get(0).cloned())
}

pub(super) async fn approve(scene: &Scene) -> Result<()> {
    let approval = eventually("an approval is pending", async || pending(scene).await).await?;
    let decision = json!({"decision": "approve", "digest": approval["digest"]});
    let (status, answer) =
        scene.world.api.post(&format!("/api/approvals/{}", text(&approval["id"])), &decision).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(())
}

#[tokio::test]
async fn a_refused_call_names_where_a_person_decides() -> Result<()> {
    let arguments = json!({"repo": "acme/site"});
    for url in [None, Some(PERSONS)] {
        let scene = gated(url).await?;
        let list = scene.client.ask("tools/list", &json!({})).await?;
        let tools = list["tools"].as_array().context("the list has no tools")?;
        assert!(tools.iter().all(|tool| tool["_meta"]["monstrum/asks"] == true), "{list}");

        let refused = scene.client.call("test_echo_run", &arguments).await?;
        let id = text(&pending(&scene).await?.context("no approval is pending")?["id"]).to_owned();
        let told = text(&refused["content"][0]["text"]);
        assert_eq!(refused["isError"], true);
        assert_eq!(
            (&refused["_meta"]["monstrum/status"], &refused["_meta"]["monstrum/code"]),
            (&json!("approval_required"), &json!("approval"))
        );
        match url {
            Some(_) => assert!(told.contains("https://people.example/") && told.contains(&id), "{told}"),
            None => assert!(told.contains(&format!("`monstrum approval approve {id}`")), "{told}"),
        }

        approve(&scene).await?;
        let done = scene.client.call("test_echo_run", &arguments).await?;
        assert_eq!(done["isError"], false, "{done}");
        let again = scene.client.call("test_echo_run", &arguments).await?;
        assert_eq!(again["isError"], true, "one approval permits one call: {again}");
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_waits_for_a_person_is_answered_by_a_stream() -> Result<()> {
    let scene = gated(None).await?;
    let params = json!({
        "name": "test_echo_run", "arguments": {"repo": "acme/site"}, "_meta": {"monstrum/wait_for_approval_s": 120},
    });
    let answer = scene.client.stateless("tools/call", &params).send().await?;
    assert_eq!(&answer.headers()["content-type"], "text/event-stream");
    approve(&scene).await?;
    let body = answer.text().await?;
    assert!(body.contains(r#""isError":false"#), "{body}");

    for (seconds, message) in [(json!(301), "/wait_for_approval_s"), (json!("60"), "whole number")] {
        let params = json!({"name": "test_echo_run", "_meta": {"monstrum/wait_for_approval_s": seconds}});
        let body = scene.client.stateless("tools/call", &params).send().await?.text().await?;
        assert!(body.contains("-32602") && body.contains(message), "{body}");
    }
    Ok(())
}
