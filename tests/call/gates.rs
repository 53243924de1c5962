//! Gates of bots, roles, bindings and delegations: the outcome of calls, lists and checks.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Bound;

use crate::world::{World, eventually, text};

const ECHO: &str = "test-echo";
const TOOL: &str = "test_echo_run";

/// A bot that may use all tools of a resource, through a role.
struct Gated {
    world: World,
    bound: Bound,
    role: String,
}

impl Gated {
    async fn start() -> Result<Gated> {
        let world = World::with(&[ECHO]).await?;
        let bound = world.grant_all(ECHO).await?;
        let roles = world.api.get("/api/roles").await?.1;
        let role = text(&roles["items"][0]["id"]).to_owned();
        Ok(Gated { world, bound, role })
    }

    /// Returns the path of the holder in the API.
    fn path(&self, holder: &str) -> String {
        match holder {
            "bot" => format!("/api/bots/{}", self.world.bot),
            "role" => format!("/api/roles/{}", self.role),
            _ => format!("/api/bots/{}/resources/{}", self.world.bot, self.bound.binding),
        }
    }

    async fn set(&self, holder: &str, gates: &Value) -> Result<()> {
        let (status, answer) = self.world.api.patch(&self.path(holder), &json!({ "gates": gates })).await?;
        ensure!(status == 200 && answer["gates"] == *gates, "{holder} {gates}: {status} {answer}");
        Ok(())
    }

    /// Calls the tool, and checks that the prediction and the audit agree with the outcome.
    async fn outcome(&self, tool: &str, params: &Value) -> Result<String> {
        let call = self.world.call(tool, params).await?;
        let check = self.world.check(tool, params).await?;
        let decision = match text(&call["status"]) {
            "success" => "allow",
            "approval_required" => "ask",
            _ => "deny",
        };
        ensure!(check["decision"] == decision && check["message"] == call["message"], "{call} {check}");
        let audit = self.world.audit_of(&call).await?;
        ensure!(audit["rule"] == check["rule"] && audit["status"] == call["status"], "{audit} {check}");
        Ok(match text(&call["status"]) {
            "success" => "success".to_owned(),
            status => format!("{status} {} [{}] {}", text(&call["code"]), text(&audit["rule"]), text(&call["message"])),
        })
    }

    /// Returns the tools that may ask.
    async fn asking(&self) -> Result<Vec<String>> {
        let (_, tools) = self.world.api.get(&format!("/api/bots/{}/tools", self.world.bot)).await?;
        let items = tools["items"].as_array().into_iter().flatten();
        Ok(items.filter(|tool| tool["asks"] == true).map(|tool| text(&tool["name"]).to_owned()).collect())
    }
}

#[tokio::test]
async fn the_gates_of_each_holder_ask_and_deny() -> Result<()> {
    let gated = Gated::start().await?;
    let site = json!({ "repo": "acme/site" });
    let mut lines = vec![format!("none: {}", gated.outcome(TOOL, &site).await?)];
    for holder in ["bot", "role", "binding"] {
        for action in ["ask", "deny"] {
            let gates =
                json!([{ "tools": [TOOL], "when": { "repos": ["acme/*"] }, "action": action, "reason": "audited" }]);
            gated.set(holder, &gates).await?;
            lines.push(format!("{holder} {action}: {}", gated.outcome(TOOL, &site).await?));
            ensure!(gated.outcome(TOOL, &json!({ "repo": "other/x" })).await? == "success");
            ensure!(gated.outcome("test_echo_again", &site).await? == "success");
        }
        gated.set(holder, &json!([])).await?;
        ensure!(gated.outcome(TOOL, &site).await? == "success");
    }
    assert_snapshot!(lines.join("\n"), @r#"
    none: success
    bot ask: approval_required approval [bot.gates] a person must approve this call
    bot deny: permission_denied denied [bot.gates] Permission denied: a gate denies this call of tool 'test_echo_run': audited
    role ask: approval_required approval [role.gates] a person must approve this call
    role deny: permission_denied denied [role.gates] Permission denied: a gate denies this call of tool 'test_echo_run': audited
    binding ask: approval_required approval [binding.gates] a person must approve this call
    binding deny: permission_denied denied [binding.gates] Permission denied: a gate denies this call of tool 'test_echo_run': audited
    "#);
    Ok(())
}

#[tokio::test]
async fn a_check_shows_administrators_the_gates_that_ask() -> Result<()> {
    let gated = Gated::start().await?;
    gated.set("bot", &json!([{ "action": "ask", "reason": "a new bot" }])).await?;
    gated.set("role", &json!([{ "action": "ask", "tools": [TOOL] }, { "action": "ask", "tools": ["other"] }])).await?;
    let check = gated.world.check(TOOL, &json!({})).await?;
    assert_snapshot!(check, @r#"{"decision":"ask","message":"a person must approve this call","rule":"bot.gates","reason":null,"smallest_change":null,"gates":[{"holder":"bot","reason":"a new bot"},{"holder":"role","reason":null}]}"#);
    let key = gated.world.api.new_key("bot", Some(&gated.world.bot)).await?;
    let of_bot = gated.world.api.with_key(&key).check(&gated.world.bot, TOOL, &json!({})).await?;
    assert_snapshot!(of_bot, @r#"{"decision":"ask","message":"a person must approve this call"}"#);
    Ok(())
}

#[tokio::test]
async fn a_list_says_which_tools_may_ask_and_hides_what_is_always_denied() -> Result<()> {
    let gated = Gated::start().await?;
    assert_eq!(gated.asking().await?, Vec::<String>::new());
    gated.set("role", &json!([{ "action": "ask", "operations": ["echo.write"], "when": { "repos": ["x"] } }])).await?;
    gated.set("binding", &json!([{ "action": "deny", "tools": ["test_echo_again"] }])).await?;
    assert_eq!(gated.asking().await?, ["test_echo_write"]);
    let tools = gated.world.tools().await?;
    assert!(tools.contains(&"test_echo_run".to_owned()) && !tools.contains(&"test_echo_again".to_owned()), "{tools:?}");
    gated.set("bot", &json!([{ "action": "ask" }])).await?;
    assert_eq!(gated.asking().await?, gated.world.tools().await?);
    Ok(())
}

/// The gates of a delegation apply to the calls of the other bot that are made through it, in addition to the gates of
/// the other bot itself.
#[tokio::test]
async fn the_gates_of_a_delegation_apply_to_calls_through_it() -> Result<()> {
    let gated = Gated::start().await?;
    let (world, caller) = (&gated.world, gated.world.api.bot("caller").await?);
    let resource = json!({ "resource_type": "bot", "name": "colleague", "config": { "bot": world.bot } });
    let resource = crate::http::made(&world.api, "/api/resources", &resource).await?;
    let gate = |action: &str| json!({ "scope_constraints": {}, "gates": [{ "tools": [TOOL], "action": action }] });
    let binding = json!({
        "resource_id": resource, "permissions": { "allowed_tools": ["*"] }, "delegate": gate("deny"),
    });
    let path = format!("/api/bots/{caller}/resources");
    let binding = crate::http::made(&world.api, &path, &binding).await?;
    let through = async |tool: &str| {
        let params = json!({ "tool": tool, "params": { "repo": "acme/site" } });
        let answer = world.api.call(&caller, "bot_call_tool", &params).await?;
        anyhow::Ok(format!("{} {}", text(&answer["status"]), text(&answer["message"])))
    };
    let mut lines = vec![through(TOOL).await?, through("test_echo_again").await?];
    ensure!(gated.outcome(TOOL, &json!({})).await? == "success", "the bot itself is not gated");
    let (status, answer) = world.api.patch(&format!("{path}/{binding}"), &json!({ "delegate": gate("ask") })).await?;
    ensure!(status == 200 && answer["delegate"] == gate("ask"), "{answer}");
    lines.push(through(TOOL).await?);
    world.api.patch(&format!("{path}/{binding}"), &json!({ "delegate": null })).await?;
    lines.push(through(TOOL).await?);
    gated.set("bot", &json!([{ "action": "deny", "tools": [TOOL] }])).await?;
    lines.push(through(TOOL).await?);
    assert_snapshot!(lines.join("\n"), @r#"
    permission_denied Permission denied: a gate denies this call of tool 'test_echo_run'
    success 
    approval_required a person must approve this call
    success 
    permission_denied Permission denied: a gate denies this call of tool 'test_echo_run'
    "#);
    Ok(())
}

/// Sets a gate while a call waits for its upstream. A gate that applies to the call ends the call within a second.
#[tokio::test]
async fn a_new_gate_ends_a_running_call() -> Result<()> {
    let gated = Gated::start().await?;
    let world = &gated.world;
    let mut lines = Vec::new();
    for (holder, gate) in [
        ("bot", json!({ "action": "deny", "tools": ["test_echo_fetch"] })),
        ("bot", json!({ "action": "ask" })),
        ("role", json!({ "action": "deny" })),
        ("binding", json!({ "action": "ask", "operations": ["fetch.*"] })),
        ("bot", json!({ "action": "deny", "tools": [TOOL] })),
    ] {
        world.github.hold();
        let before = world.github.requests().len();
        let (api, bot) = (world.api.clone(), world.bot.clone());
        let call = tokio::spawn(async move { api.call(&bot, "test_echo_fetch", &json!({ "path": "/slow" })).await });
        eventually("the upstream has received the request", async || {
            Ok((world.github.requests().len() > before).then_some(()))
        })
        .await?;
        gated.set(holder, &json!([gate])).await?;
        let began = Instant::now();
        if gate["tools"] == json!([TOOL]) {
            world.github.release();
        }
        let answer = call.await??;
        ensure!(began.elapsed() < Duration::from_secs(1), "{holder} {gate}: took {:?}", began.elapsed());
        world.github.release();
        gated.set(holder, &json!([])).await?;
        let audit = world.audit_of(&answer).await?;
        lines.push(format!("{holder} {gate}: {} [{}]", text(&answer["status"]), text(&audit["rule"])));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    bot {"action":"deny","tools":["test_echo_fetch"]}: permission_denied [bot.gates]
    bot {"action":"ask"}: permission_denied [revoked.gate]
    role {"action":"deny"}: permission_denied [role.gates]
    binding {"action":"ask","operations":["fetch.*"]}: permission_denied [revoked.gate]
    bot {"action":"deny","tools":["test_echo_run"]}: success []
    "#);
    Ok(())
}

/// A restart and another snapshot keep the gates in force.
#[tokio::test]
async fn gates_stay_in_force_after_unrelated_changes_and_a_restart() -> Result<()> {
    let mut gated = Gated::start().await?;
    for holder in ["bot", "role", "binding"] {
        gated.set(holder, &json!([{ "action": "deny", "when": { "repos": [format!("{holder}/*")] } }])).await?;
    }
    let denied = async |gated: &Gated| {
        for holder in ["bot", "role", "binding"] {
            let outcome = gated.outcome(TOOL, &json!({ "repo": format!("{holder}/x") })).await?;
            ensure!(outcome.contains(&format!("[{holder}.gates]")), "{outcome}");
        }
        ensure!(gated.outcome(TOOL, &json!({ "repo": "acme/x" })).await? == "success");
        anyhow::Ok(())
    };
    denied(&gated).await?;
    let bot = format!("/api/bots/{}", gated.world.bot);
    ensure!(gated.world.api.patch(&bot, &json!({ "description": "changed" })).await?.0 == 200);
    let binding = gated.path("binding");
    ensure!(gated.world.api.patch(&binding, &json!({ "calls_per_minute": 600 })).await?.0 == 200);
    denied(&gated).await?;
    gated.world.server.restart().await?;
    gated.world.api = gated.world.server.api()?;
    denied(&gated).await
}
