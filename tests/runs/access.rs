//! Who may start, see and steer runs.

use anyhow::Result;
use reqwest::Method;
use serde_json::{Value, json};

use super::flows::{Flows, READ, call, told};
use crate::http::workspace;
use crate::world::text;

fn waiting() -> Value {
    json!({ "steps": [{ "id": "go", "wait": { "event": "custom.go" } }, call("r", READ)] })
}

#[tokio::test]
async fn another_tenant_sees_and_changes_nothing() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &waiting()).await?;
    let id = flows.api().start_run(&workflow, &json!({ "secret": "canary" })).await?;
    flows.waits(&id, "event").await?;
    let foreign = workspace(flows.api(), "foreign").await?;
    for path in ["", "/steps", "/events"].map(|rest| format!("/api/runs/{id}{rest}")) {
        assert_eq!(foreign.get(&path).await?.0, 404, "{path}");
    }
    for (path, body) in [
        (format!("/api/runs/{id}/cancel"), json!({})),
        (format!("/api/runs/{id}/pause"), json!({})),
        (format!("/api/runs/{id}/resume"), json!({})),
        (format!("/api/runs/{id}/retry"), json!({})),
        (format!("/api/runs/{id}/steps/go/resolve"), json!({ "as": "succeeded" })),
        (format!("/api/workflows/{workflow}/runs"), json!({})),
    ] {
        assert_eq!(foreign.post(&path, &body).await?.0, 404, "{path}");
    }
    assert_eq!(foreign.get(&format!("/api/workflows/{workflow}/runs")).await?.0, 404);
    let (_, listed) = foreign.get("/api/runs").await?;
    assert_eq!(listed["items"], json!([]));
    let (_, listed) = foreign.get(&format!("/api/runs?workflow_id={workflow}")).await?;
    assert!(!listed.to_string().contains("canary"), "{listed}");
    // The event of another tenant does not end the wait.
    let (status, _) = foreign.post("/api/events", &json!({ "name": "go" })).await?;
    assert_eq!(status, 201);
    let own = flows.emit("other", &json!({})).await?;
    flows.delivered(&own).await?;
    assert_eq!(text(&flows.api().run(&id).await?["status"]), "waiting");
    Ok(())
}

#[tokio::test]
async fn a_bot_key_starts_reads_and_cancels_the_runs_of_its_bot() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &waiting()).await?;
    let other_bot = flows.api().bot("other").await?;
    let (_, own) = flows.key("bot", Some(&flows.world.bot)).await?;
    let (_, other) = flows.key("bot", Some(&other_bot)).await?;
    let id = own.start_run(&workflow, &json!({})).await?;
    flows.waits(&id, "event").await?;
    for path in [format!("/api/runs/{id}"), format!("/api/runs/{id}/steps"), format!("/api/runs/{id}/events")] {
        let status = own.request(Method::GET, &path).send().await?.status();
        assert_eq!(status, 200, "{path} with the key of the bot");
        assert_eq!(other.get(&path).await?.0, 404, "{path}");
    }
    assert_eq!(other.post(&format!("/api/workflows/{workflow}/runs"), &json!({})).await?.0, 404);
    assert_eq!(other.post(&format!("/api/runs/{id}/cancel"), &json!({})).await?.0, 404);
    assert_eq!(other.get("/api/runs").await?.1["items"], json!([]));
    assert_eq!(own.get("/api/runs").await?.1["items"][0]["id"], json!(id));
    for (what, body) in [
        ("pause", json!({})),
        ("resume", json!({})),
        ("retry", json!({})),
        ("steps/go/resolve", json!({ "as": "succeeded" })),
    ] {
        let (status, refused) = own.post(&format!("/api/runs/{id}/{what}"), &body).await?;
        assert_eq!(status, 403, "{what}: {refused}");
    }
    assert_eq!(own.get(&format!("/api/workflows/{workflow}")).await?.0, 403, "a bot does not read definitions");
    let (status, answer) = own.post(&format!("/api/runs/{id}/cancel"), &json!({})).await?;
    assert!(matches!(status, 200 | 202), "{status} {answer}");
    assert_eq!(told(&flows.ended(&id).await?)[0], "cancelled");
    Ok(())
}

/// An old version may lack a question that the newest one asks.
#[tokio::test]
async fn a_bot_key_starts_only_the_newest_version() -> Result<()> {
    let flows = Flows::start().await?;
    let workflow = flows.save("flow", &json!({ "steps": [call("r", READ)] })).await?;
    assert_eq!(flows.save("flow", &waiting()).await?, workflow);
    let (_, own) = flows.key("bot", Some(&flows.world.bot)).await?;
    let (_, operator) = flows.key("operator", None).await?;
    let path = format!("/api/workflows/{workflow}/runs");
    let (status, refused) = own.post(&path, &json!({ "version": 1 })).await?;
    assert_eq!(status, 403, "{refused}");
    assert!(refused.to_string().contains("a bot key starts the newest version of a workflow"), "{refused}");
    assert!(flows.runs().await?.is_empty() && flows.seen().is_empty());
    for body in [json!({ "version": 2 }), json!({})] {
        let (status, run) = own.post(&path, &body).await?;
        assert_eq!((status, &run["version"]), (202, &json!(2)), "{run}");
    }
    let (status, run) = operator.post(&path, &json!({ "version": 1 })).await?;
    assert_eq!((status, &run["version"]), (202, &json!(1)), "{run}");
    assert_eq!(told(&flows.ended(text(&run["id"])).await?)[0], "completed");
    Ok(())
}

#[tokio::test]
async fn runs_are_listed_by_their_filters() -> Result<()> {
    let flows = Flows::start().await?;
    let (first, second) =
        (flows.save("first", &waiting()).await?, flows.save("second", &json!({ "steps": [call("r", READ)] })).await?);
    let waits = flows.api().start_run(&first, &json!({})).await?;
    flows.waits(&waits, "event").await?;
    let ended = flows.api().start_run(&second, &json!({})).await?;
    let run = flows.ended(&ended).await?;
    let ids = async |query: &str| -> Result<Vec<String>> {
        let (status, listed) = flows.api().get(&format!("/api/runs?{query}")).await?;
        assert_eq!(status, 200, "{query}: {listed}");
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|item| text(&item["id"]).to_owned()).collect())
    };
    assert_eq!(ids("limit=10").await?, [ended.clone(), waits.clone()]);
    assert_eq!(ids("status=waiting").await?, std::slice::from_ref(&waits));
    assert_eq!(ids(&format!("workflow_id={second}")).await?, std::slice::from_ref(&ended));
    assert_eq!(ids(&format!("since={}", text(&run["created_at"]))).await?, std::slice::from_ref(&ended));
    let key = text(&run["started_by"]["id"]);
    assert_eq!(ids(&format!("started_by={key}")).await?.len(), 2);
    let (_, of_workflow) = flows.api().get(&format!("/api/workflows/{first}/runs")).await?;
    assert_eq!(
        (of_workflow["items"].as_array().map(Vec::len), &of_workflow["items"][0]["id"]),
        (Some(1), &json!(waits))
    );
    for query in ["status=done", "since=yesterday", "workflow_id=x"] {
        assert_eq!(flows.api().get(&format!("/api/runs?{query}")).await?.0, 422, "{query}");
    }
    Ok(())
}

/// The changes of runs are in the audit, with the key that asked for them.
#[tokio::test]
async fn what_starts_and_steers_runs_is_a_change() -> Result<()> {
    let flows = Flows::start().await?;
    let id = flows.begin(&waiting(), &json!({})).await?;
    flows.waits(&id, "event").await?;
    for what in ["pause", "resume", "cancel"] {
        flows.ask(&id, what, &json!({})).await?;
    }
    flows.ended(&id).await?;
    flows.ask(&id, "retry", &json!({})).await?;
    flows.waits(&id, "event").await?;
    let (_, changes) = flows.api().get("/api/audit/changes?limit=1000").await?;
    let mut names: Vec<&str> =
        changes["items"].as_array().into_iter().flatten().map(|change| text(&change["change"])).collect();
    names.retain(|name| name.starts_with("run."));
    names.reverse();
    let last: Vec<&str> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
    assert_eq!(last, ["start", "pause", "resume", "cancel", "retry"], "{changes}");
    assert_eq!(flows.api().verify_audit().await?["valid"], true);
    Ok(())
}
