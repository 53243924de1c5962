//! Calls of the tools of agents.

use std::collections::HashMap;

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Server;

use super::{Scene, ending, sum, tool};
use crate::world::{eventually, text};

#[tokio::test]
async fn a_tool_is_there_while_its_agent_is_connected() -> Result<()> {
    let scene = Scene::start().await?;
    scene.has(&[]).await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    assert_eq!(agent.welcome["tools"], json!([{"name": "sum", "as": "lab__sum", "status": "approved"}]));
    assert_eq!(agent.welcome["heartbeat_s"], 20);
    scene.has(&["lab__sum"]).await?;
    let (_, resource) = scene.world.api.get(&format!("/api/resources/{}", scene.resource)).await?;
    let discovery = &resource["discovery"];
    assert_eq!((text(&discovery["status"]), &discovery["server"]), ("ok", &json!({"name": "lab", "version": "1.0"})));
    let body = json!({
        "params": {"n": 1}, "task_id": "t-1", "chat": {"app_id": "app", "user_id": "u", "chat_id": "c"},
    });
    let (api, path) = (scene.world.api.clone(), format!("/api/bots/{}/tools/lab__sum/call", scene.world.bot));
    let call = tokio::spawn(async move { api.post(&path, &body).await });
    let mut frame = agent.next_of("call").await?;
    let id = text(&frame["id"]).to_owned();
    agent.succeed(&frame, &json!({"total": 2})).await?;
    let (_, answer) = call.await??;
    assert_eq!((answer["data"].clone(), text(&answer["request_id"])), (json!({"total": 2}), id.as_str()));
    assert_eq!(frame["bot"]["id"], json!(scene.world.bot));
    frame["bot"]["id"] = json!("[bot]");
    frame["id"] = json!("[id]");
    assert_snapshot!(frame, @r#"{"type":"call","id":"[id]","tool":"sum","params":{"n":1},"bot":{"id":"[bot]","name":"tester"},"task_id":"t-1","locale":"en-US","deadline_ms":60000,"chat":{"app_id":"app","user_id":"u","chat_id":"c"}}"#);
    let row = scene.world.audit_of(&answer).await?;
    assert_eq!((text(&row["operation"]), text(&row["tool"])), ("agent.write", "lab__sum"), "{row}");
    drop(agent);
    scene.has(&[]).await?;
    let refused = scene.world.call("lab__sum", &json!({})).await?;
    assert_eq!(refused["status"], "permission_denied", "{refused}");
    Ok(())
}

/// A result is checked like the result of a plugin. Only results of running calls count, and only once.
#[tokio::test]
async fn results_are_checked() -> Result<()> {
    let scene = Scene::start().await?;
    let mut strict = sum();
    strict["output_schema"] = json!({"type": "object", "required": ["total"], "properties": {"total": {}}});
    let mut agent = scene.agent(&json!([strict])).await?;
    scene.has(&["lab__sum"]).await?;
    let mut endings = Vec::new();
    let deep = serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(65), "]".repeat(65)))?;
    for result in [
        json!({"status": "success", "data": {"total": 1}}),
        json!({"status": "success", "data": {"other": 1}}),
        json!({"status": "error", "message": "no such file"}),
        json!({"status": "scope_violation", "message": "file /etc is not authorized"}),
        json!({"status": "approval_required", "message": "x"}),
        json!({"status": "success", "data": deep}),
        json!({"status": "success", "data": "x".repeat(1 << 20)}),
        json!({"status": "error"}),
    ] {
        let call = scene.call("lab__sum", &json!({"n": 1}));
        let frame = agent.next_of("call").await?;
        agent.send(&json!({"type": "result", "id": "foreign", "status": "success"})).await?;
        agent.send(&json!({"type": "progress", "id": frame["id"], "message": "half"})).await?;
        let mut sent = json!({"type": "result", "id": frame["id"]});
        sent.as_object_mut().context("an object")?.extend(result.as_object().cloned().unwrap_or_default());
        agent.send(&sent).await?;
        agent.send(&json!({"type": "result", "id": frame["id"], "status": "success", "data": "second"})).await?;
        let answer = call.await??;
        let mismatch = if scene.is_mismatch(&answer).await? { " (mismatch)" } else { "" };
        endings.push(format!("{}{mismatch}", ending(&answer)));
    }
    assert_snapshot!(endings.join("\n"), @r#"
    success   {"total":1}
    success   {"other":1} (mismatch)
    error plugin no such file
    scope_violation scope Scope violation: file /etc is not authorized
    error bad_result the agent returned a result with an unknown status
    error bad_result the agent returned JSON that is nested too deeply
    error result_too_large the agent returned more than 1 MiB
    error bad_result the agent returned a result of the wrong form
    "#);
    let invalid = scene.world.call("lab__sum", &json!({"n": "x"})).await?;
    assert_eq!(invalid["code"], "invalid_params", "the agent does not see parameters that break the schema");
    Ok(())
}

#[tokio::test]
async fn a_call_that_ends_early_is_cancelled() -> Result<()> {
    let scene = Scene::with(&json!({"timeout_s": 1})).await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({}));
    let frame = agent.next_of("call").await?;
    assert_eq!(frame["deadline_ms"], 1000);
    assert_eq!(ending(&call.await??), "error timeout the call took longer than 1 s");
    let cancel = agent.next_of("cancel").await?;
    assert_eq!((&cancel["id"], text(&cancel["reason"])), (&frame["id"], "timeout"));
    // The result that was under way is dropped.
    agent.succeed(&frame, &json!(1)).await?;

    let call = scene.call("lab__sum", &json!({}));
    let frame = agent.next_of("call").await?;
    call.abort();
    let cancel = agent.next_of("cancel").await?;
    assert_eq!((&cancel["id"], text(&cancel["reason"])), (&frame["id"], "cancelled"));

    let call = scene.call("lab__sum", &json!({}));
    let frame = agent.next_of("call").await?;
    agent.succeed(&frame, &json!("again")).await?;
    assert_eq!(ending(&call.await??), r#"success   "again""#);
    Ok(())
}

/// An agent runs at most as many calls as it announced. More calls wait, and then get `busy`.
#[tokio::test]
async fn calls_wait_for_room() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent_as(&json!([sum()]), &json!({"concurrency": 1})).await?;
    scene.has(&["lab__sum"]).await?;
    let first = scene.call("lab__sum", &json!({"n": 1}));
    let frame = agent.next_of("call").await?;
    let second = scene.call("lab__sum", &json!({"n": 2}));
    assert_eq!(ending(&second.await??), "error busy the agent is busy");
    let third = scene.call("lab__sum", &json!({"n": 3}));
    agent.succeed(&frame, &json!(1)).await?;
    assert_eq!(ending(&first.await??), "success   1");
    let frame = agent.next_of("call").await?;
    assert_eq!(frame["params"], json!({"n": 3}), "a call that got `busy` is not sent");
    agent.succeed(&frame, &json!(3)).await?;
    assert_eq!(ending(&third.await??), "success   3");
    Ok(())
}

#[tokio::test]
async fn a_call_whose_connection_ends_is_uncertain() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({}));
    agent.next_of("call").await?;
    drop(agent);
    let answer = call.await??;
    assert_snapshot!(ending(&answer), @"error uncertain the connection to the agent ended while it ran this call. The call may or may not have taken effect; find out before you repeat it.");
    assert_eq!(scene.world.audit_of(&answer).await?["code"], "uncertain");
    Ok(())
}

/// Each call is answered once: by the connection that ran it, or as uncertain if that connection was killed.
#[tokio::test]
async fn a_thousand_calls_over_eight_connections_one_of_which_is_killed() -> Result<()> {
    const CALLS: i64 = 1_000;
    let scene = Scene::with(&json!({"concurrent": 64})).await?;
    let tools = json!([tool("echo", "Returns its parameters.")]);
    let connect = async |name: &str| scene.agent_as(&tools, &json!({"instance": name, "concurrency": 4})).await;
    let mut agents = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        agents.push(tokio::spawn(connect(name).await?.echo()));
    }
    let mut killed = connect("killed").await?;
    scene.has(&["lab__echo"]).await?;
    let mut calls = tokio::task::JoinSet::new();
    let room = std::sync::Arc::new(tokio::sync::Semaphore::new(24));
    for n in 0..CALLS {
        let (api, bot, room) = (scene.world.api.clone(), scene.world.bot.clone(), room.clone());
        calls.spawn(async move {
            let _place = room.acquire_owned().await?;
            anyhow::Ok((n, api.call(&bot, "lab__echo", &json!({"n": n})).await?))
        });
    }
    // The connection is killed while it runs calls.
    let held = killed.next_of("call").await?["params"]["n"].as_i64().context("a number")?;
    drop(killed);
    let mut answers = HashMap::new();
    while let Some(call) = calls.join_next().await {
        let (n, answer) = call??;
        let is_success = answer["status"] == "success" && answer["data"] == json!({"n": n});
        assert!(is_success || answer["code"] == "uncertain", "{n}: {answer}");
        answers.insert(n, is_success);
    }
    let uncertain: Vec<i64> = answers.iter().filter(|(_, is_success)| !**is_success).map(|(n, _)| *n).collect();
    assert_eq!(answers.len() as i64, CALLS);
    assert!(uncertain.contains(&held) && uncertain.len() <= 4, "{uncertain:?} {held}");
    drop(scene);
    let mut ran = 0;
    for agent in agents {
        ran += agent.await?;
    }
    assert_eq!(ran, answers.len() - uncertain.len(), "a call ran twice");
    Ok(())
}

/// A bot of another workspace has nothing of the agent.
#[tokio::test]
async fn an_agent_serves_its_workspace_only() -> Result<()> {
    let scene = Scene::start().await?;
    let foreign = crate::http::workspace(&scene.world.api, "foreign").await?;
    let bot = foreign.bot("theirs").await?;
    let _agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let answer = foreign.call(&bot, "lab__sum", &json!({})).await?;
    assert_eq!(answer["status"], "permission_denied", "{answer}");
    let body = json!({ "name": "x", "kind": "agent", "resource_id": scene.resource });
    let (status, _) = foreign.post("/api/keys", &body).await?;
    assert_eq!(status, 422, "a key for a resource of another workspace");
    Ok(())
}

/// The tools of agents are tools of `/mcp/{bot}` too.
#[tokio::test]
async fn clients_of_the_model_context_protocol_call_agents() -> Result<()> {
    let scene = Scene::on(Server::prepare(&[])?.argument("--sandbox").argument("off"), &json!({})).await?;
    let agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    tokio::spawn(agent.echo());
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "lab__sum", "arguments": {"n": 5}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }},
    });
    let answer = eventually("the call succeeds", async || {
        let request = scene.world.api.request(reqwest::Method::POST, &format!("/mcp/{}", scene.world.bot));
        let request = request
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", "lab__sum");
        let text = request.json(&body).send().await?.text().await?;
        Ok(text.contains("structuredContent").then_some(text))
    })
    .await?;
    assert!(answer.contains(r#""structuredContent":{"n":5}"#), "{answer}");
    Ok(())
}
