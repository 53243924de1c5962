//! Limits of a call, how a binding changes them, and the response to a call that reaches a limit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use support::{Canned, Server};

use crate::stable::stable;
use crate::world::{World, eventually, text};

/// Returns the result of a call of `tool`, and checks that the audit agrees with the response.
async fn end(world: &World, tool: &str, params: &Value) -> Result<[String; 3]> {
    let answer = world.call(tool, params).await?;
    let audit = world.audit_of(&answer).await?;
    for field in ["status", "code", "message"] {
        ensure!(audit[field] == answer[field], "the answer was {answer}, the audit has {audit}");
    }
    Ok([&answer["status"], &answer["code"], &answer["message"]].map(|part| text(part).to_owned()))
}

#[tokio::test]
async fn a_plugin_that_waits_runs_out_of_time() -> Result<()> {
    let world = World::with(&["test-loop"]).await?;
    let bound = world.grant_all("test-loop").await?;
    world.rebind(&bound, &json!({ "limits": { "timeout_s": 1 } })).await?;
    let told = end(&world, "test_loop_run", &json!({ "mode": "sleep" })).await?;
    assert_eq!(told, ["error", "timeout", "the call took longer than 1 s"]);
    Ok(())
}

#[tokio::test]
async fn waiting_for_an_upstream_counts_as_time() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    world.rebind(&bound, &json!({ "limits": { "timeout_s": 1 } })).await?;
    world.github.hold();
    let told = end(&world, "github_get_repo", &json!({ "repo": "acme/site" })).await?;
    assert_eq!(told, ["error", "timeout", "the call took longer than 1 s"]);
    Ok(())
}

#[tokio::test]
async fn a_binding_may_give_less_fuel() -> Result<()> {
    let world = World::with(&["test-trap"]).await?;
    let bound = world.grant_all("test-trap").await?;
    world.rebind(&bound, &json!({ "limits": { "fuel": 100 } })).await?;
    let told = end(&world, "test_trap_run", &json!({ "mode": "none" })).await?;
    assert_eq!(told, ["error", "fuel", "the plugin used up its computing budget"]);
    Ok(())
}

/// The search for secrets in received data uses the fuel of the call. With little fuel, a call receives only a limited
/// amount of text, and continues.
#[tokio::test]
async fn searching_for_secrets_is_paid_with_the_fuel_of_the_call() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    world.github.answer("/large", Canned::new(200, vec![b' '; 8 << 20]));
    let params = json!({ "path": "/large" });
    let answer = world.call("test_echo_fetch", &params).await?;
    assert_eq!(answer["data"]["body_bytes"], 8 << 20, "{answer}");
    world.rebind(&bound, &json!({ "limits": { "fuel": 3_000_000 } })).await?;
    let answer = world.call("test_echo_fetch", &params).await?;
    let told = "searching this call's requests and responses for secrets exceeded the call's budget";
    let failure = &answer["data"]["failure"];
    assert_eq!((&failure["code"], &failure["message"]), (&json!("limit"), &json!(told)), "{answer}");
    Ok(())
}

#[rstest]
#[case::in_small_pieces(json!({ "chunk_kib": 1 }))]
#[case::in_pieces(json!({}))]
#[case::at_once(json!({ "chunk_kib": 65_536 }))]
#[tokio::test]
async fn a_plugin_that_hoards_runs_out_of_memory(#[case] params: Value) -> Result<()> {
    let world = World::with(&["test-alloc"]).await?;
    world.grant_all("test-alloc").await?;
    assert_eq!(end(&world, "test_alloc_run", &params).await?, ["error", "memory", "the plugin ran out of memory"]);
    Ok(())
}

#[rstest]
#[case::more_than_a_mebibyte("big", ["error", "result_too_large", "the plugin returned more than 1 MiB"])]
#[case::too_deep("deep", ["error", "bad_result", "the plugin returned invalid JSON"])]
#[case::half_of_it("invalid", ["error", "bad_result", "the plugin returned invalid JSON"])]
#[case::nothing("empty", ["error", "bad_result", "the plugin returned invalid JSON"])]
#[case::an_error("error", ["error", "plugin", "an error on purpose"])]
#[case::a_scope_violation("scope_violation", ["scope_violation", "scope", "Scope violation: a violation on purpose"])]
#[case::what_it_should("ok", ["success", "", ""])]
#[tokio::test]
async fn a_result(#[case] mode: &str, #[case] told: [&str; 3]) -> Result<()> {
    let world = World::with(&["test-result"]).await?;
    world.grant_all("test-result").await?;
    assert_eq!(end(&world, "test_result_run", &json!({ "mode": mode })).await?, told);
    Ok(())
}

#[tokio::test]
async fn a_flood_of_lines_is_cut_and_a_flood_of_requests_refused() -> Result<()> {
    let world = World::on(Server::prepare(&["test-echo"])?.argument("--log").argument("plugin=debug,warn")).await?;
    world.grant_all("test-echo").await?;
    let flood = json!({ "logs": 1_500, "log_bytes": 5_000, "statuses": 2_000, "requests": 60, "path": "/echo" });
    let answer = world.call("test_echo_flood", &flood).await?;
    assert_snapshot!(answer["data"], @r#"{"statuses":{"ready":2000},"requests":{"200":50,"limit":10}}"#);
    assert_eq!(world.github.requests().len(), 50);
    let output = world.server.output();
    let lines: Vec<&str> = output.lines().filter(|line| line.contains("xxxxxxxx")).collect();
    let longest = lines.iter().map(|line| line.matches('x').count()).max();
    assert!(lines.len() == 1_000 && longest.is_some_and(|bytes| bytes <= 4 << 10), "{} of {longest:?}", lines.len());
    assert!(output.contains("log lines were dropped") && output.contains("lines=500"), "{output}");
    Ok(())
}

#[tokio::test]
async fn a_call_beside_one_that_does_not_end_is_untouched() -> Result<()> {
    let world = World::with(&["test-echo", "test-loop"]).await?;
    world.grant_all("test-loop").await?;
    world.grant_all("test-echo").await?;
    let endless = async {
        let params = [json!({ "mode": "sleep" }), json!({ "mode": "spin" })];
        futures::future::try_join_all(params.iter().map(|params| world.call("test_loop_run", params))).await
    };
    let beside = async {
        for number in 0..20 {
            let answer = world.call("test_echo_run", &json!({ "any": number })).await?;
            ensure!(answer["data"]["params"]["any"] == number, "{answer}");
        }
        Ok(())
    };
    tokio::select! {
        ended = endless => Err(anyhow::anyhow!("the sleeping call ended first: {ended:?}")),
        beside = beside => beside,
    }
}

#[tokio::test]
async fn a_full_binding_is_busy_after_five_seconds() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    world.rebind(&bound, &json!({ "limits": { "concurrent": 1 } })).await?;
    world.github.hold();
    let params = json!({ "repo": "acme/site" });
    let refused = async {
        world.reached(1).await?;
        let asked = Instant::now();
        let told = end(&world, "github_get_repo", &params).await?;
        let waited = asked.elapsed();
        world.github.release();
        anyhow::Ok((told, waited))
    };
    let (first, refused) = tokio::join!(world.call("github_get_repo", &params), refused);
    let (told, waited) = refused?;
    assert_eq!(told, ["error", "busy", "the plugin is busy"]);
    assert!(waited >= Duration::from_secs(5), "{waited:?}");
    assert_eq!(first?["status"], "success");
    assert_eq!(world.github.requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_rate_that_is_met_says_when_to_come_back() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    world.rebind(&bound, &json!({ "calls_per_minute": 2 })).await?;
    for _ in 0..2 {
        assert_eq!(world.call("test_echo_run", &json!({})).await?["status"], "success");
    }
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let response = world.api.request(Method::POST, &path).json(&json!({})).send().await?;
    let after: u64 =
        response.headers().get("retry-after").context("the response does not say when to retry")?.to_str()?.parse()?;
    assert!((1..=30).contains(&after), "{after}");
    let problem: Value = response.json().await?;
    assert_snapshot!(stable(&problem), @r#"{"type":"urn:monstrum:error:rate_limited","title":"Too many requests","status":429,"detail":"the call exceeds the rate limit of this binding (2 per minute)","request_id":"[id 1]"}"#);
    let (_, list) = world.api.get("/api/audit?limit=1").await?;
    let row = &list["items"][0];
    assert_snapshot!(json!([row["status"], row["code"], row["message"], row["rule"]]), @r#"["error","limit","the call exceeds the rate limit of this binding (2 per minute)","rate"]"#);
    Ok(())
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_call() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    world.github.hold();
    let params = json!({ "repo": "acme/site" });
    tokio::select! {
        answer = world.call("github_get_repo", &params) => anyhow::bail!("the upstream answered: {answer:?}"),
        reached = world.reached(1) => reached?,
    }
    let row = eventually("the call is recorded as cancelled", async || {
        let (_, list) = world.api.get("/api/audit?tool=github_get_repo").await?;
        let row = &list["items"][0];
        Ok((row["status"] != "running").then(|| row.clone()))
    })
    .await?;
    assert_snapshot!(json!([row["status"], row["code"], row["message"]]), @r#"["error","cancelled","the caller disconnected before the call was finished"]"#);
    let audit = world.api.audit(text(&row["request_id"])).await?;
    let kinds: Vec<&Value> = audit["events"].as_array().context("events")?.iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["started", "finished"]);
    Ok(())
}
