//! Calls from a plugin to tools of other plugins: the requirements, limits and audit rows of child calls.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Bound, Canned, FakeGithub, Server};

use crate::world::{World, eventually, text};

const CALLER: &str = "test-caller";
const ECHO: &str = "test-echo";

/// Starts a world with a bot that has a caller and an echo resource. `operations` are the operations that the bot may
/// use on the echo resource.
async fn world(operations: &[&str], allow_calls: &[&str]) -> Result<(World, Bound, Bound)> {
    let world = World::with(&[CALLER, ECHO]).await?;
    let caller = world.grant_all(CALLER).await?;
    let echo = world.grant(ECHO, operations, &json!({"repos": ["acme/*"]})).await?;
    world.rebind(&caller, &json!({"allow_calls": allow_calls})).await?;
    Ok((world, caller, echo))
}

/// Starts a world in which all operations and values are allowed.
async fn free() -> Result<(World, Bound)> {
    let (world, caller, echo) = world(&["*"], &["*"]).await?;
    world.rebind(&echo, &json!({"scope_constraints": {}})).await?;
    Ok((world, caller))
}

/// Calls `tool` from within a call and returns the result of the inner call.
async fn through(world: &World, tool: &str, params: &Value) -> Result<Value> {
    let answer = world.call("test_caller_call", &json!({"tool": tool, "params": params})).await?;
    ensure!(answer["status"] == "success", "{answer}");
    Ok(answer["data"].clone())
}

/// Returns the rows of all calls, newest first.
async fn rows(world: &World) -> Result<Vec<Value>> {
    let (status, body) = world.api.get("/api/audit?limit=1000").await?;
    ensure!(status == 200, "{body}");
    Ok(body["items"].as_array().cloned().unwrap_or_default())
}

/// Formats each row as its tool, its status, the rule that ended it, and the tool of its parent call.
fn told(rows: &[Value]) -> String {
    let by_id: BTreeMap<&str, &str> = rows.iter().map(|row| (text(&row["request_id"]), text(&row["tool"]))).collect();
    let line = |row: &Value| {
        let parent = by_id.get(text(&row["parent_request_id"])).copied().unwrap_or("nobody");
        let [tool, status, code, rule] = ["tool", "status", "code", "rule"].map(|field| text(&row[field]));
        format!("{tool}: {status} {code} {rule} <- {parent}")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_call_takes_every_grant_and_runs_as_the_same_bot() -> Result<()> {
    let (world, _, _) = world(&["echo.read"], &["test_echo_*"]).await?;
    let path = format!("/api/bots/{}/tools/test_caller_call/call", world.bot);
    let body = json!({
        "params": {"tool": "test_echo_again", "params": {"repo": "acme/site"}},
        "task_id": "task 7", "chat": {"app_id": "a", "user_id": "u", "chat_id": "c"},
    });
    let (_, answer) = world.api.post(&path, &body).await?;
    let seen = &answer["data"]["last"];
    assert_eq!(seen["bot_id"], json!(world.bot), "{answer}");
    assert_eq!((&seen["task_id"], &seen["tool_name"]), (&json!("task 7"), &json!("test_echo_again")));
    assert_eq!(seen["context"]["chat"]["chat_id"], "c");
    assert_eq!(seen["scope"], json!([{"repos": ["acme/*"]}]));
    let left = seen["deadline_ms"].as_u64().unwrap_or_default();
    assert!((1..30_000).contains(&left), "{left} ms of the parent's 30 s");

    let (parent, child) = (text(&answer["request_id"]), text(&seen["request_id"]));
    assert_ne!(parent, child);
    let record = world.api.audit(child).await?;
    assert_eq!((&record["parent_request_id"], &record["task_id"]), (&json!(parent), &json!("task 7")));
    assert_eq!((&record["tool"], &record["plugin"]), (&json!("test_echo_again"), &json!(ECHO)));
    // The row `started` of the parent is on disk before the child starts. The child itself sends no request.
    let kinds = |record: &Value| -> Vec<(i64, String)> {
        let events = record["events"].as_array().cloned().unwrap_or_default();
        events
            .iter()
            .map(|event| (event["sequence"].as_i64().unwrap_or_default(), text(&event["kind"]).to_owned()))
            .collect()
    };
    let (of_parent, of_child) = (kinds(&world.api.audit(parent).await?), kinds(&record));
    let order: Vec<(i64, &str, &str)> = {
        let mut order: Vec<_> = of_parent.iter().map(|(at, kind)| (*at, "parent", kind.as_str())).collect();
        order.extend(of_child.iter().map(|(at, kind)| (*at, "child", kind.as_str())));
        order.sort_unstable();
        order
    };
    let order: Vec<(&str, &str)> = order.into_iter().map(|(_, who, kind)| (who, kind)).collect();
    assert_eq!(order, [("parent", "started"), ("child", "finished"), ("parent", "finished")]);
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

#[tokio::test]
async fn every_refusal_looks_like_a_tool_that_is_not_there() -> Result<()> {
    let (world, caller, echo) = world(&["echo.read"], &["test_echo_*", "test_loop_*"]).await?;
    let mut lines = Vec::new();
    let mut ask = async |what: &str, tool: &str| -> Result<()> {
        let last = through(&world, tool, &json!({"repo": "acme/site"})).await?["last"].clone();
        let row = rows(&world).await?.into_iter().find(|row| row["tool"] == tool);
        let rule = row.map(|row| text(&row["rule"]).to_owned()).unwrap_or_default();
        lines.push(format!(
            "{what}: {} {} {} [{rule}]",
            text(&last["status"]),
            text(&last["code"]),
            text(&last["message"])
        ));
        Ok(())
    };
    ask("granted", "test_echo_again").await?;
    ask("no role", "test_echo_write").await?;
    ask("not in executor.calls", "test_loop_run").await?;
    ask("not in allow_calls", "github_list_issues").await?;
    ask("not there", "test_echo_nothing").await?;
    ask("no name", "Test Echo!").await?;
    world.rebind(&caller, &json!({"allow_calls": []})).await?;
    ask("no grants", "test_echo_again").await?;
    world.rebind(&caller, &json!({"allow_calls": ["*"]})).await?;
    ask("granted again", "test_echo_again").await?;
    world.rebind(&echo, &json!({"enabled": false})).await?;
    ask("no binding", "test_echo_again").await?;
    assert_snapshot!(lines.join("\n"), @r#"
    granted:    []
    no role: permission_denied denied Permission denied: tool 'test_echo_write' is not available to this bot [role.allowed_operations]
    not in executor.calls: permission_denied denied Permission denied: tool 'test_loop_run' is not available to this bot [executor.calls]
    not in allow_calls: permission_denied denied Permission denied: tool 'github_list_issues' is not available to this bot [binding.allow_calls]
    not there: permission_denied denied Permission denied: tool 'test_echo_nothing' is not available to this bot [unknown_tool]
    no name: permission_denied denied Permission denied: tool 'Test Echo!' is not available to this bot [executor.calls]
    no grants: permission_denied denied Permission denied: tool 'test_echo_again' is not available to this bot [binding.allow_calls]
    granted again:    []
    no binding: permission_denied denied Permission denied: tool 'test_echo_again' is not available to this bot [unknown_tool]
    "#);
    Ok(())
}

#[tokio::test]
async fn scopes_and_parameters_are_judged_as_ever() -> Result<()> {
    let (world, _, _) = world(&["echo.*"], &["*"]).await?;
    let mut lines = Vec::new();
    for params in [
        json!({"tool": "test_echo_again", "params": {"repo": "other/secret"}}),
        json!({"tool": "test_echo_again", "params": {"nothing": 1}}),
        json!({"tool": "test_echo_again", "text": "{\"repo\":"}),
        json!({"tool": "test_echo_again", "text": "[]"}),
        json!({"tool": "test_echo_again", "text": format!("{{\"repo\": {}1{}}}", "[".repeat(70), "]".repeat(70))}),
        json!({"tool": "test_echo_unhandled", "params": {}}),
    ] {
        let last = world.call("test_caller_call", &params).await?["data"]["last"].clone();
        lines.push(format!("{} {} {}", text(&last["status"]), text(&last["code"]), text(&last["message"])));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    scope_violation scope Scope violation: Repository other/secret is not authorized
    error invalid_params Invalid parameters: /nothing: undeclared parameter
    error invalid_params Invalid parameters: expected JSON
    error invalid_params Invalid parameters: expected an object
    error invalid_params Invalid parameters: nested more than 64 levels deep
    permission_denied denied Permission denied: tool 'test_echo_unhandled' is not available to this bot
    "#);
    Ok(())
}

#[tokio::test]
async fn depth_number_and_repetition_end_somewhere() -> Result<()> {
    let (world, _, _) = world(&["echo.*"], &["*"]).await?;
    let answer = world.call("test_caller_deep", &json!({"n": 0})).await?;
    assert_snapshot!(answer["data"], @r#"{"status":"error","code":"limit","message":"the call is nested more than 8 levels deep","params":{"n":9.0}}"#);
    let deep = rows(&world).await?;
    // The root call, eight nested calls, and the rejected call.
    assert_eq!(deep.len(), 10);
    assert_eq!((&deep[0]["tool"], deep[9]["parent_request_id"].is_null()), (&json!("test_caller_deep"), true));

    let again = world.call("test_caller_again", &json!({"n": 5})).await?;
    assert_snapshot!(again["data"], @r#"{"status":"error","code":"limit","message":"the call is identical to one of its ancestors","params":{"n":5}}"#);
    // A repeated call is also detected if its parameters are written differently and another tool is called in between.
    let round = world.call("test_caller_round", &json!({"n": 5.0})).await?;
    assert_snapshot!(round["data"], @r#"{"status":"error","code":"limit","message":"the call is identical to one of its ancestors","params":{"n":5.0}}"#);

    let wide = json!({"tool": "test_echo_open", "params": {"repo": "acme/a"}, "numbered": true, "times": 105});
    let before = rows(&world).await?.len();
    let answer = world.call("test_caller_call", &wide).await?;
    let data = &answer["data"];
    assert_eq!((&data["ok"], &data["failures"]), (&json!(100), &json!({"limit": 5})), "{answer}");
    assert_snapshot!(data["last"], @r#"{"status":"error","code":"limit","message":"the root call has reached its limit of 100 child calls"}"#);
    // The calls that exceeded the limit were never started, so they have no rows.
    assert_eq!(rows(&world).await?.len(), before + 101);

    // All calls under one root count towards the limit.
    let inner = json!({"tool": "test_echo_open", "params": {"repo": "acme/a"}, "numbered": true, "times": 60});
    let both = json!({"tool": "test_caller_call", "params": inner, "times": 2});
    let answer = world.call("test_caller_call", &both).await?;
    assert_eq!(answer["data"]["last"]["ok"], 38, "{answer}");
    Ok(())
}

#[tokio::test]
async fn the_time_of_a_call_is_that_of_all_below_it() -> Result<()> {
    let (world, caller) = free().await?;
    // The child begins within this time also on a busy machine.
    world.rebind(&caller, &json!({"limits": {"timeout_s": 3}})).await?;
    world.github.hold();
    let began = Instant::now();
    let slow = json!({"tool": "test_echo_fetch", "params": {"path": "/slow"}});
    let answer = world.call("test_caller_call", &slow).await?;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // Both have the same deadline. If that of the child passes first, the plugin can still answer with its failure.
    let is_late = answer["code"] == "timeout" && answer["message"] == "the call took longer than 3 s";
    assert!(is_late || answer["data"].to_string().contains("timeout"), "{answer}");
    let rows = rows(&world).await?;
    // The child has ended before its parent, because the deadline of the child or the deadline of the parent has
    // passed.
    let child = rows.iter().find(|row| row["tool"] == "test_echo_fetch").cloned().unwrap_or_default();
    assert!(child["code"] == "timeout" || child["code"] == "cancelled", "{child}");
    assert_eq!(child["parent_request_id"], answer["request_id"]);
    world.github.release();
    Ok(())
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_all_below() -> Result<()> {
    let (world, _) = free().await?;
    world.github.hold();
    let path = format!("/api/bots/{}/tools/test_caller_call/call", world.bot);
    let inner = json!({"tool": "test_echo_fetch", "params": {"path": "/slow"}});
    let body = json!({"params": {"tool": "test_caller_call", "params": inner}});
    let api = world.api.clone();
    let call = tokio::spawn(async move { api.post(&path, &body).await });
    world.reached(1).await?;
    call.abort();
    eventually("all three calls are recorded as cancelled", async || {
        let rows = rows(&world).await?;
        Ok((rows.len() == 3 && rows.iter().all(|row| row["code"] == "cancelled")).then_some(()))
    })
    .await?;
    let rows = rows(&world).await?;
    assert_snapshot!(told(&rows), @r#"
    test_echo_fetch: error cancelled  <- test_caller_call
    test_caller_call: error cancelled  <- test_caller_call
    test_caller_call: error cancelled  <- nobody
    "#);
    let messages: Vec<&str> = rows.iter().map(|row| text(&row["message"])).collect();
    assert_eq!(messages[0], "the parent call ended before this call was finished");
    assert_eq!(messages[2], "the caller disconnected before the call was finished");
    world.github.release();
    Ok(())
}

/// The parent call continues: only its permission to make child calls was revoked.
#[tokio::test]
async fn a_grant_that_is_withdrawn_ends_the_call_below() -> Result<()> {
    let (world, caller) = free().await?;
    // The machine may be busy in one round, but is unlikely to be busy in all rounds.
    const ROUNDS: usize = 12;
    let mut soonest = Duration::MAX;
    for _ in 0..ROUNDS {
        soonest = soonest.min(withdrawn(&world, &caller).await?);
        if soonest < Duration::from_secs(1) {
            break;
        }
    }
    assert!(soonest < Duration::from_secs(1), "{soonest:?}");
    Ok(())
}

/// Measures how long a child call continues after its permission is revoked.
async fn withdrawn(world: &World, caller: &Bound) -> Result<Duration> {
    world.rebind(caller, &json!({"allow_calls": ["*"]})).await?;
    drop(world.github.take_requests());
    world.github.hold();
    let path = format!("/api/bots/{}/tools/test_caller_call/call", world.bot);
    let body = json!({"params": {"tool": "test_echo_fetch", "params": {"path": "/slow"}, "times": 2}});
    let api = world.api.clone();
    let call = tokio::spawn(async move { api.post(&path, &body).await });
    world.reached(1).await?;
    world.rebind(caller, &json!({"allow_calls": ["test_echo_open"]})).await?;
    let began = Instant::now();
    let (_, answer) = call.await??;
    let took = began.elapsed();
    assert_eq!(
        (&answer["status"], &answer["data"]["failures"]),
        (&json!("success"), &json!({"denied": 2})),
        "{answer}"
    );
    // The first child call was ended and the second never ran, so the upstream has received one request.
    assert_eq!(world.github.requests().len(), 1);
    let rules: Vec<String> = rows(world).await?.iter().take(3).map(|row| text(&row["rule"]).to_owned()).collect();
    assert_eq!(rules, ["binding.allow_calls", "binding.allow_calls", ""]);
    world.github.release();
    Ok(took)
}

/// Parent calls occupy all slots, and each parent waits for a child call.
#[tokio::test]
async fn more_parents_than_lanes_do_not_wait_for_each_other() -> Result<()> {
    let server =
        Server::prepare(&[CALLER, ECHO])?.argument("--max-calls-per-bot=4").argument("--max-calls-per-plugin=4");
    let world = World::on(server).await?;
    let caller = world.grant_all(CALLER).await?;
    world.rebind(&caller, &json!({"allow_calls": ["*"], "limits": {"concurrent": 3}})).await?;
    world.grant_all(ECHO).await?;
    let leaf = json!({"tool": "test_echo_open", "params": {"repo": "a/b"}});
    let params = json!({"tool": "test_caller_call", "params": {"tool": "test_caller_call", "params": leaf}});
    let answers = try_join_all((0..24).map(|_| world.call("test_caller_call", &params))).await?;
    for answer in answers {
        assert_eq!(answer["data"]["last"]["last"]["last"]["params"]["repo"], "a/b", "{answer}");
    }
    Ok(())
}

/// A plugin that makes calls in a loop does not delay other calls. Its call ends when it reaches a limit.
#[tokio::test]
async fn a_storm_of_calls_ends_by_the_limits() -> Result<()> {
    let (world, caller) = free().await?;
    world.rebind(&caller, &json!({"limits": {"timeout_s": 20, "fuel": 20_000_000}})).await?;
    let answer = world.call("test_caller_storm", &json!({})).await?;
    assert_eq!(answer["status"], "error", "{answer}");
    assert_eq!(answer["code"], "fuel", "{answer}");
    assert_eq!(rows(&world).await?.len(), 101);
    assert_eq!(world.call("test_echo_open", &json!({})).await?["status"], "success");
    Ok(())
}

/// No single response contains the secret of the child's resource, but the combined responses do.
#[tokio::test]
async fn what_a_child_knows_does_not_come_out_of_its_parent() -> Result<()> {
    let world = World::with(&[CALLER, ECHO]).await?;
    let caller = world.grant_all(CALLER).await?;
    world.rebind(&caller, &json!({"allow_calls": ["*"]})).await?;
    let token = "tok_of_the_child_0123456789abcdef";
    let upstream = FakeGithub::start_with_token(token).await?;
    world.api.grant(&world.bot, ECHO, (&upstream.url(), token), &["*"], &json!({})).await?;
    let (head, tail) = token.split_at(17);
    upstream.answer("/head", Canned::new(200, head));
    upstream.answer("/tail", Canned::new(200, tail));
    let each = json!([{"path": "/head"}, {"path": "/tail"}]);
    let answer = world.call("test_caller_join", &json!({"tool": "test_echo_fetch", "each": each})).await?;
    assert_eq!(answer["data"], "[redacted]", "{answer}");
    // The parent's own secret does not reach the parent through a child either.
    upstream.answer("/parent", Canned::new(200, world.github.token()));
    let answer =
        world.call("test_caller_join", &json!({"tool": "test_echo_fetch", "each": [{"path": "/parent"}]})).await?;
    assert_eq!(answer["data"], "[redacted]", "{answer}");
    let child = rows(&world).await?.into_iter().find(|row| row["tool"] == "test_echo_fetch").unwrap_or_default();
    assert!(!child.to_string().contains(&world.github.token()));
    Ok(())
}
