//! The precedence of limits (operator, manifest, binding), and the limits on concurrent calls.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::Server;

use super::plugins::{edit, reloaded};
use crate::http::send;
use crate::stable::stable;
use crate::world::World;

/// Calls an endless loop, which ends at the lowest limit. Returns the code and message.
async fn looped(world: &World) -> Result<Value> {
    let answer = world.call("test_loop_run", &json!({})).await?;
    Ok(json!([answer["code"], answer["message"]]))
}

#[tokio::test]
async fn the_least_of_three_limits_counts() -> Result<()> {
    let server = Server::prepare(&["test-loop"])?.argument("--max-timeout-s=2").argument("--max-fuel=100000000000000");
    let world = World::on(server).await?;
    let bound = world.grant_all("test-loop").await?;
    let folder = world.server.plugins_dir().join("test-loop");
    // The manifest requests no limits, so the default fuel limit applies, even though the operator allows more.
    let mut told = vec![looped(&world).await?];
    let with = |limits: &str| format!("executor:\n  limits: {limits}\n");
    edit(&folder, |text| text + &with("{ fuel: 1000000000000000, timeout_s: 20 }"))?;
    reloaded(&world, "test-loop").await?;
    told.push(looped(&world).await?);
    edit(&folder, |text| text.replace("timeout_s: 20", "timeout_s: 1"))?;
    reloaded(&world, "test-loop").await?;
    told.push(looped(&world).await?);
    world.rebind(&bound, &json!({ "limits": { "fuel": 1000, "timeout_s": 3600 } })).await?;
    told.push(looped(&world).await?);
    assert_snapshot!(told.iter().map(Value::to_string).collect::<Vec<_>>().join("\n"), @r#"
    ["fuel","the plugin used up its computing budget"]
    ["timeout","the call took longer than 2 s"]
    ["timeout","the call took longer than 1 s"]
    ["fuel","the plugin used up its computing budget"]
    "#);
    Ok(())
}

#[tokio::test]
async fn a_full_host_answers_429_and_a_busy_plugin_200() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?.argument("--max-calls=2").argument("--max-calls-per-bot=1");
    let world = World::on(server).await?;
    world.grant_all("test-echo").await?;
    let others = [world.api.bot("second").await?, world.api.bot("third").await?];
    for bot in &others {
        let (url, token) = (world.github.url(), world.github.token());
        world.api.grant(bot, "test-echo", (&url, &token), &["*"], &json!({})).await?;
    }
    world.github.hold();
    let params = json!({ "path": "/echo" });
    let told = async {
        world.reached(2).await?;
        // The bot already has its only permitted call in flight, and the host has no capacity for a call of a third
        // bot.
        let busy = world.call("test_echo_fetch", &params);
        let route = format!("/api/bots/{}/tools/test_echo_fetch/call", others[1]);
        let full = send(world.api.request(Method::POST, &route).json(&json!({ "params": params })));
        let (busy, full) = tokio::join!(busy, full);
        world.github.release();
        anyhow::Ok((busy?, full?))
    };
    let calls = async {
        tokio::join!(world.call("test_echo_fetch", &params), world.api.call(&others[0], "test_echo_fetch", &params))
    };
    let ((first, second), told) = tokio::join!(calls, told);
    let (busy, (status, headers, full)) = told?;
    ensure!(first?["status"] == "success" && second?["status"] == "success", "the calls that had room");
    assert_eq!(
        (&busy["status"], &busy["code"], &busy["message"]),
        (&json!("error"), &json!("busy"), &json!("the plugin is busy"))
    );
    assert_eq!((status, headers["retry-after"].to_str()?), (429, "1"));
    assert_snapshot!(stable(&full).to_string(), @r#"{"type":"urn:monstrum:error:rate_limited","title":"Too many requests","status":429,"detail":"the server is busy","request_id":"[id 1]"}"#);
    let audit = world.api.audit(full["request_id"].as_str().unwrap_or_default()).await?;
    assert_eq!((&audit["status"], &audit["code"]), (&json!("error"), &json!("busy")), "{audit}");
    Ok(())
}
