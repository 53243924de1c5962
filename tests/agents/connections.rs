//! Several connections of one resource.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::{Agent, InProcess, hello};
use tokio_tungstenite::tungstenite::Message;

use super::{Scene, ending, sum, tool};
use crate::http::made;
use crate::world::{eventually, text};

/// Says hello and returns the close code, and the code of the error before it.
async fn refused(scene: &Scene, tools: &Value, change: &Value) -> Result<(u16, String)> {
    let mut agent = scene.socket().await?;
    agent.send(&hello(tools, change)).await?;
    let (code, frames) = agent.closed().await?;
    Ok((code, frames.first().map(|frame| text(&frame["code"]).to_owned()).unwrap_or_default()))
}

#[tokio::test]
async fn calls_go_to_the_connection_with_the_fewest() -> Result<()> {
    let scene = Scene::start().await?;
    let mut first = scene.agent_as(&json!([sum()]), &json!({"instance": "a"})).await?;
    let mut second = scene.agent_as(&json!([sum()]), &json!({"instance": "b"})).await?;
    scene.has(&["lab__sum"]).await?;
    let calls = [scene.call("lab__sum", &json!({"n": 1})), scene.call("lab__sum", &json!({"n": 2}))];
    // Both calls arrive before one is answered: after an answer, both connections have the same number of calls again.
    let frames = [first.next_of("call").await?, second.next_of("call").await?];
    for (agent, frame) in [&mut first, &mut second].into_iter().zip(frames) {
        agent.succeed(&frame, &frame["params"]["n"]).await?;
    }
    for (call, n) in calls.into_iter().zip([1, 2]) {
        assert_eq!(ending(&call.await??), format!("success   {n}"));
    }
    // The tools stay while one connection is left.
    first.send_message(Message::Close(None)).await?;
    first.closed().await?;
    let call = scene.call("lab__sum", &json!({}));
    let frame = second.next_of("call").await?;
    second.succeed(&frame, &json!("second")).await?;
    assert_eq!(ending(&call.await??), r#"success   "second""#);
    Ok(())
}

#[tokio::test]
async fn a_resource_has_eight_connections() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agents = Vec::new();
    for index in 0..8 {
        agents.push(scene.agent_as(&json!([sum()]), &json!({"instance": index.to_string()})).await?);
    }
    let ninth = json!({"instance": "ninth"});
    assert_eq!(refused(&scene, &json!([sum()]), &ninth).await?, (1013, "too_many_connections".to_owned()));
    agents.pop();
    let connected = eventually("a connection is free", async || Ok(scene.agent_as(&json!([sum()]), &ninth).await.ok()));
    connected.await?;
    Ok(())
}

/// The same instance connects again, for example after its network failed. Its old connection ends at once.
#[tokio::test]
async fn an_instance_has_one_connection() -> Result<()> {
    let scene = Scene::start().await?;
    let mut old = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({}));
    old.next_of("call").await?;
    let mut new = scene.agent(&json!([sum()])).await?;
    assert_eq!(old.closed().await?.0, 4409);
    assert_eq!(call.await??["code"], "uncertain");
    // The end of the old connection does not take the tools of the new one.
    let call = scene.call("lab__sum", &json!({}));
    let frame = new.next_of("call").await?;
    new.succeed(&frame, &json!(1)).await?;
    assert_eq!(ending(&call.await??), "success   1");
    assert_eq!(scene.world.tools().await?, ["lab__sum"]);
    Ok(())
}

/// Connections of one resource offer the same tools. An agent with other tools can take over: the others finish their
/// calls.
#[tokio::test]
async fn an_agent_with_other_tools_replaces_the_others_only_if_it_says_so() -> Result<()> {
    let scene = Scene::with(&json!({"definitions": "trusted"})).await?;
    let mut old = scene.agent_as(&json!([sum()]), &json!({"instance": "old"})).await?;
    scene.has(&["lab__sum"]).await?;
    let other = json!([tool("sum", "Adds numbers, in another way.")]);
    let conflict = (4409, "tools_differ".to_owned());
    assert_eq!(refused(&scene, &other, &json!({"instance": "new"})).await?, conflict);
    let call = scene.call("lab__sum", &json!({"n": 1}));
    let frame = old.next_of("call").await?;
    let mut new = scene.agent_as(&other, &json!({"instance": "new", "replace": true})).await?;
    old.succeed(&frame, &json!("old")).await?;
    assert_eq!(ending(&call.await??), r#"success   "old""#);
    assert_eq!(old.closed().await?.0, 4409);
    let call = scene.call("lab__sum", &json!({"n": 2}));
    let frame = new.next_of("call").await?;
    new.succeed(&frame, &json!("new")).await?;
    assert_eq!(ending(&call.await??), r#"success   "new""#);
    // A list that differs from the list of another connection is refused, and changes nothing.
    let mut third = scene.agent_as(&other, &json!({"instance": "third"})).await?;
    third.send(&json!({"type": "tools", "tools": [sum()]})).await?;
    assert_eq!(third.next_of("error").await?["code"], "tools_differ");
    drop(new);
    let call = scene.call("lab__sum", &json!({"n": 3}));
    let frame = third.next_of("call").await?;
    third.succeed(&frame, &json!("third")).await?;
    assert_eq!(ending(&call.await??), r#"success   "third""#);
    Ok(())
}

/// Connects eight agents for each of these keys at once. The agents have the same instances each time.
async fn crowd(url: &str, keys: &[String]) -> Result<Vec<Agent>> {
    let connecting = keys.iter().flat_map(|key| {
        (0..8).map(move |index| async move {
            Agent::connect(url, key, &json!([sum()]), &json!({"instance": index.to_string()})).await
        })
    });
    try_join_all(connecting).await
}

/// Agents of many resources connect again at once, as after a failure of their network. Renewals of the policy are merged
/// for 200 ms.
#[tokio::test]
async fn two_hundred_agents_that_connect_again_cause_few_renewals() -> Result<()> {
    let host = InProcess::start(&[]).await?;
    let (api, url) = (host.api()?, host.running.base_url.clone());
    let (bot, role) = (api.bot("tester").await?, api.role("agents", &["*"]).await?);
    let mut keys = Vec::new();
    for index in 0..25 {
        let new = json!({"resource_type": "agent", "name": format!("lab{index}")});
        let resource = made(&api, "/api/resources", &new).await?;
        api.bind(&bot, &resource, &role, &json!({})).await?;
        let new = json!({"name": format!("lab{index}"), "kind": "agent", "resource_id": resource});
        let (status, key) = api.post("/api/keys", &new).await?;
        ensure!(status == 201, "{status} {key}");
        keys.push(text(&key["key"]).to_owned());
    }
    let has_all = async || {
        let (_, list) = api.get(&format!("/api/bots/{bot}/tools")).await?;
        anyhow::Ok((list["items"].as_array().map(Vec::len) == Some(25)).then_some(()))
    };
    let agents = crowd(&url, &keys).await?;
    eventually("the bot has the tools of all agents", &has_all).await?;

    let (mut renewals, count) = (host.running.app.policy.renewals(), Arc::new(AtomicU32::new(0)));
    let (counted, began) = (Arc::clone(&count), Instant::now());
    let counting = tokio::spawn(async move {
        while renewals.changed().await.is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    drop(agents);
    let agents = crowd(&url, &keys).await?;
    let echoes: Vec<_> = agents.into_iter().map(|agent| tokio::spawn(agent.echo())).collect();
    eventually("the bot has the tools of all agents again", &has_all).await?;
    for index in 0..25 {
        // A renewal that began while the agents connected may end only now.
        let called = async || {
            let answer = api.call(&bot, &format!("lab{index}__sum"), &json!({})).await?;
            anyhow::Ok((answer["status"] == "success").then_some(()))
        };
        eventually("the agent answers", called).await?;
    }
    let (renewed, took) = (count.load(Ordering::Relaxed), began.elapsed());
    let merged = u32::try_from(took.as_millis() / 200)? + 1;
    assert!(renewed <= merged, "{renewed} renewals in {took:?}");
    counting.abort();
    host.stop().await;
    for echo in echoes {
        echo.await?;
    }
    Ok(())
}

/// Many agents of one resource connect at once. Those that find no room do not disturb the others.
#[tokio::test]
async fn a_storm_of_two_hundred_connections() -> Result<()> {
    let scene = Scene::start().await?;
    let mut connecting = tokio::task::JoinSet::new();
    for index in 0..200 {
        let (url, key) = (scene.url()?, scene.key.clone());
        connecting.spawn(async move {
            let change = json!({"instance": index.to_string()});
            Agent::connect(&url, &key, &json!([sum()]), &change).await.ok()
        });
    }
    let mut agents = Vec::new();
    while let Some(agent) = connecting.join_next().await {
        agents.extend(agent?);
    }
    assert_eq!(agents.len(), 8, "as many connections as a resource has");
    scene.has(&["lab__sum"]).await?;
    let calls: Vec<_> = (0..8).map(|n| scene.call("lab__sum", &json!({"n": n}))).collect();
    let echoes: Vec<_> = agents.into_iter().map(|agent| tokio::spawn(agent.echo())).collect();
    for call in calls {
        assert_eq!(call.await??["status"], "success");
    }
    drop(scene);
    for echo in echoes {
        echo.await?;
    }
    Ok(())
}
