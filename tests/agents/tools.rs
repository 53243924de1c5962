//! Which tools of an agent bots can use.

use anyhow::Result;
use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{Scene, ending, sum, tool};
use crate::world::{eventually, text};

/// Returns the states of the tools in a welcome.
fn states(welcome: &Value) -> String {
    let tools = welcome["tools"].as_array().into_iter().flatten();
    let state = |tool: &Value| {
        let name = if tool["as"].is_null() { "-" } else { text(&tool["as"]) };
        let reason = if tool["reason"].is_null() { String::new() } else { format!(" ({})", text(&tool["reason"])) };
        format!("{} {name} {}{reason}", text(&tool["name"]), text(&tool["status"]))
    };
    tools.map(state).collect::<Vec<_>>().join("\n")
}

/// Approves the tools of the resource that have this status.
async fn approve(scene: &Scene, status: &str) -> Result<()> {
    let path = format!("/api/resources/{}/tools", scene.resource);
    let (_, listed) = scene.world.api.get(&path).await?;
    let items = listed["items"].as_array().into_iter().flatten().filter(|tool| tool["status"] == status);
    let tools: Vec<Value> = items
        .map(|tool| json!({"original_name": tool["original_name"], "digest": tool["digest"], "effect": "read"}))
        .collect();
    let (status, answer) = scene.world.api.post(&format!("{path}/approve"), &json!({ "tools": tools })).await?;
    assert_eq!(status, 200, "{answer}");
    Ok(())
}

/// The tools of the first connection are approved. Tools that come or change later wait for an admin, and the agent is told
/// the decision.
#[tokio::test]
async fn the_first_tools_are_approved_and_later_ones_wait() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum(), tool("echo", "Echoes.")])).await?;
    scene.has(&["lab__echo", "lab__sum"]).await?;
    let later = json!([sum(), tool("echo", "Echoes loudly."), tool("new", "New.")]);
    agent.send(&json!({"type": "tools", "tools": later})).await?;
    assert_snapshot!(states(&agent.next_of("welcome").await?), @r"
    sum lab__sum approved
    echo lab__echo changed
    new lab__new pending
    ");
    scene.has(&["lab__sum"]).await?;
    approve(&scene, "changed").await?;
    assert_snapshot!(states(&agent.next_of("welcome").await?), @r"
    sum lab__sum approved
    echo lab__echo approved
    new lab__new pending
    ");
    scene.has(&["lab__echo", "lab__sum"]).await?;
    // Pins outlive the connection.
    drop(agent);
    scene.has(&[]).await?;
    let mut agent = scene.agent(&later).await?;
    scene.has(&["lab__echo", "lab__sum"]).await?;
    approve(&scene, "pending").await?;
    scene.has(&["lab__echo", "lab__new", "lab__sum"]).await?;
    let read = scene.call("lab__new", &json!({}));
    let frame = agent.next_of("call").await?;
    agent.succeed(&frame, &json!(1)).await?;
    let answer = read.await??;
    assert_eq!(scene.world.audit_of(&answer).await?["operation"], "agent.read");
    // A tool that is no longer declared is gone.
    agent.send(&json!({"type": "tools", "tools": [sum()]})).await?;
    scene.has(&["lab__sum"]).await
}

#[tokio::test]
async fn under_review_every_tool_waits() -> Result<()> {
    let scene = Scene::with(&json!({"definitions": "review"})).await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    assert_eq!(states(&agent.welcome), "sum lab__sum pending");
    scene.has(&[]).await?;
    let refused = scene.world.call("lab__sum", &json!({})).await?;
    assert_eq!(refused["status"], "permission_denied");
    approve(&scene, "pending").await?;
    assert_eq!(states(&agent.next_of("welcome").await?), "sum lab__sum approved");
    scene.has(&["lab__sum"]).await
}

#[tokio::test]
async fn a_trusted_agent_defines_its_tools() -> Result<()> {
    let scene = Scene::with(&json!({"definitions": "trusted"})).await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    agent.send(&json!({"type": "tools", "tools": [tool("sum", "Adds."), tool("new", "New.")]})).await?;
    assert_eq!(states(&agent.next_of("welcome").await?), "sum lab__sum approved\nnew lab__new approved");
    scene.has(&["lab__new", "lab__sum"]).await?;
    let changes = eventually("the changes are recorded", async || {
        let (_, changes) = scene.world.api.get("/api/audit/changes").await?;
        let items = changes["items"].as_array().cloned().unwrap_or_default();
        let recorded = items.iter().filter(|change| change["change"] == "resource.discover").count();
        Ok((recorded >= 2).then_some(recorded))
    });
    changes.await?;
    Ok(())
}

/// A fault of a tool is told, and the other tools go on.
#[tokio::test]
async fn faults_of_one_tool_leave_the_others() -> Result<()> {
    let scene = Scene::start().await?;
    let mut bad = tool("bad", "A schema that does not compile.");
    bad["input_schema"] = json!({"type": "nothing"});
    let tools = json!([sum(), bad, tool("sum", "Again."), {"name": "half"}]);
    let agent = scene.agent(&tools).await?;
    let states = states(&agent.welcome);
    let lines: Vec<&str> = states.lines().collect();
    assert_eq!(lines[0], "sum lab__sum approved");
    assert!(lines[1].starts_with("bad lab__bad invalid ("), "{states}");
    assert_eq!(lines[2], "sum - invalid (the list has several tools of this name)");
    assert!(lines[3].starts_with("half - invalid (missing field `description`"), "{states}");
    scene.has(&["lab__sum"]).await
}

/// A call that was permitted for one definition is not sent to an agent that has replaced it, and a call that runs is
/// judged by the definition with which it began.
#[tokio::test]
async fn tools_that_are_swapped_during_a_call() -> Result<()> {
    let scene = Scene::with(&json!({"definitions": "trusted"})).await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({"n": 1}));
    let frame = agent.next_of("call").await?;
    let mut other = sum();
    other["output_schema"] = json!({"type": "object", "required": ["never"], "properties": {"never": {}}});
    agent.send(&json!({"type": "tools", "tools": [other]})).await?;
    agent.next_of("welcome").await?;
    agent.succeed(&frame, &json!({"total": 1})).await?;
    let answer = call.await??;
    assert_eq!(ending(&answer), r#"success   {"total":1}"#);
    assert!(!scene.is_mismatch(&answer).await?, "{answer}");
    let call = scene.call("lab__sum", &json!({"n": 2}));
    let frame = agent.next_of("call").await?;
    agent.succeed(&frame, &json!({"total": 2})).await?;
    assert!(scene.is_mismatch(&call.await??).await?);
    // The tool goes while a call runs. The call ends with the agent's result.
    let call = scene.call("lab__sum", &json!({"n": 3}));
    let frame = agent.next_of("call").await?;
    agent.send(&json!({"type": "tools", "tools": []})).await?;
    scene.has(&[]).await?;
    agent.succeed(&frame, &json!({"never": 3})).await?;
    assert_eq!(ending(&call.await??), r#"success   {"never":3}"#);
    Ok(())
}

/// Renaming the resource renames its tools.
#[tokio::test]
async fn tools_have_the_name_of_their_resource() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([tool("Über.sum", "Adds.")])).await?;
    let name = text(&agent.welcome["tools"][0]["as"]).to_owned();
    assert!(name.starts_with("lab__"), "{name}");
    scene.has(&[&name]).await?;
    let path = format!("/api/resources/{}", scene.resource);
    let (status, answer) = scene.world.api.patch(&path, &json!({"name": "plant"})).await?;
    assert_eq!(status, 200, "{answer}");
    let renamed = name.replacen("lab__", "plant__", 1);
    scene.has(&[&renamed]).await?;
    assert_eq!(agent.next_of("welcome").await?["tools"][0]["as"], renamed);
    let call = scene.call(&renamed, &json!({}));
    let frame = agent.next_of("call").await?;
    assert_eq!(frame["tool"], "Über.sum", "the agent's own name goes over the wire");
    agent.succeed(&frame, &json!(1)).await?;
    assert_eq!(ending(&call.await??), "success   1");
    Ok(())
}
