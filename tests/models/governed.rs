//! A round is a call: judged, gated, charged and revoked like any other. Its tool is hidden.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use monstrum_core::call_types::round::RoundExchange;
use monstrum_core::models::{NoModel, candidates};
use monstrum_types::{BotId, Clock as _, Code, Status, SystemClock};
use serde_json::{Value, json};
use support::{FakeLlm, LlmReply, Server};

use super::{KEY, Models, SAID, bind, exchange, heard, resource};
use crate::http::{made, send};
use crate::stable::stable;
use crate::world::{World, eventually, text};

/// The revision of MCP without sessions.
const MCP_REVISION: &str = "2026-07-28";

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_is_unknown_to_every_other_caller() -> Result<()> {
    let server = Server::prepare(&["test-caller"])?;
    let manifest = server.plugins_dir().join("test-caller/monstrum.yaml");
    let text_of_manifest = std::fs::read_to_string(&manifest)?;
    let calls = text_of_manifest.lines().find(|line| line.starts_with("  calls: ")).context("no list of calls")?;
    std::fs::write(&manifest, text_of_manifest.replace(calls, "  calls: [\"*\"]"))?;
    let world = World::on(server).await?;
    let llm = FakeLlm::start().await?;
    let resource = made(&world.api, "/api/resources", &resource("models", &llm.url(), &json!({}), &json!({}))).await?;
    bind(&world.api, &world.bot, &resource, &json!({ "permissions": { "allowed_operations": ["*"] } })).await?;
    let caller = world.grant_all("test-caller").await?;
    world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    let exchange = exchange();
    let params = Value::Object(exchange.params().clone());

    let called = world.call("llm_complete", &params).await?;
    assert_eq!((&called["status"], &called["code"]), (&json!("permission_denied"), &json!("denied")), "{called}");
    let unknown = world.call("llm_nothing", &params).await?;
    let told = |answer: &Value| text(&answer["message"]).replace("llm_nothing", "llm_complete");
    assert_eq!(told(&called), told(&unknown), "the answer is that of a tool that does not exist");
    let through = world.call("test_caller_call", &json!({ "tool": "llm_complete", "params": params })).await?;
    let last = &through["data"]["last"];
    assert_eq!((text(&last["status"]), text(&last["code"])), ("permission_denied", "denied"), "{through}");
    let checked = world.check("llm_complete", &params).await?;
    ensure!(checked["decision"] == "deny" || checked["allowed"] == false, "{checked}");
    assert!(!world.tools().await?.iter().any(|tool| tool.starts_with("llm_")));
    let own = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let over_mcp = async |tool: &str| -> Result<String> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": MCP_REVISION,
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let sent = json!({"name": tool, "arguments": params, "_meta": meta});
        let request = own.request(reqwest::Method::POST, &format!("/mcp/{}", world.bot));
        let request = request.header("accept", "application/json, text/event-stream").header("mcp-name", tool);
        let request = request.header("mcp-protocol-version", MCP_REVISION).header("mcp-method", "tools/call");
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": sent});
        let (status, _, answer) = send(request.json(&body)).await?;
        Ok(format!("{status} {}", stable(&answer)).replace("llm_nothing", "llm_complete"))
    };
    let told = over_mcp("llm_complete").await?;
    ensure!(told.contains("llm_complete"), "{told}");
    assert_eq!(told, over_mcp("llm_nothing").await?);
    assert!(llm.requests().is_empty(), "no request reached the model");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_outside_of_the_scope_is_denied() -> Result<()> {
    let models = Models::start().await?;
    let path = format!("/api/bots/{}/resources/{}", models.bot, models.binding);
    let scope = |model: &str| json!({ "scope_constraints": { "models": [model] } });
    ensure!(models.api.patch(&path, &scope("large")).await?.0 == 200);
    let denied = models.run(&exchange()).await?.outcome;
    assert_eq!((denied.status, denied.code), (Status::ScopeViolation, Some(Code::Scope)));
    assert_eq!(denied.message.as_deref(), Some("Scope violation: Model small is not authorized"));
    assert!(models.llm.requests().is_empty());
    ensure!(models.api.patch(&path, &scope("small")).await?.0 == 200);
    models.llm.prepare([LlmReply::says(&["Yes."])]);
    assert_eq!(models.run(&exchange()).await?.outcome.status, Status::Success);
    let other = Arc::new(RoundExchange::new(super::request(), ("nothing", 1000), None));
    ensure!(models.api.patch(&path, &json!({ "scope_constraints": {} })).await?.0 == 200);
    let unknown = models.run(&other).await?.outcome;
    let message = "Invalid parameters: /model: the resource has no model of this name";
    assert_eq!(unknown.message.as_deref(), Some(message));
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_is_removed_ends_the_round_and_its_connection() -> Result<()> {
    let models = Models::start().await?;
    models.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I will go on and on")]).silent()]);
    let (exchange, mut deltas) = heard();
    let binding = format!("/api/bots/{}/resources/{}", models.bot, models.binding);
    let removed = async {
        deltas.recv().await.context("the round ended before its first piece")?;
        ensure!(models.api.delete(&binding).await?.0 == 204);
        anyhow::Ok(Instant::now())
    };
    let ended = async { anyhow::Ok((models.run(&exchange).await?, Instant::now())) };
    let (removed, (answer, ended)) = tokio::try_join!(removed, ended)?;
    assert_eq!(answer.outcome.rule.as_deref(), Some("revoked.binding"), "{:?}", answer.outcome);
    let took = ended.saturating_duration_since(removed);
    assert!(took < Duration::from_secs(1), "{took:?}");
    models.llm.is_idle().await;
    charged(&models).await?;
    models.host.stop().await;
    Ok(())
}

/// Waits until one round is charged by its estimate. A round that was ended from outside is charged in the background.
async fn charged(models: &Models) -> Result<()> {
    eventually("the round is charged", async || Ok((models.used().await?[2..] == [1, 1]).then_some(()))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_round_closes_its_connection_and_is_charged() -> Result<()> {
    let models = Models::start().await?;
    models.llm.prepare([LlmReply::chunks(&[LlmReply::piece("I will go on and on")]).silent()]);
    let (exchange, mut deltas) = heard();
    tokio::select! {
        answer = models.run(&exchange) => anyhow::bail!("the round ended: {answer:?}"),
        heard = deltas.recv() => drop(heard.context("the round ended before its first piece")?),
    }
    models.llm.is_idle().await;
    charged(&models).await?;
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_stops_a_round_only_by_its_exact_name() -> Result<()> {
    let models = Models::start().await?;
    let bot = format!("/api/bots/{}", models.bot);
    for (gate, stops) in [
        (json!({ "action": "deny" }), false),
        (json!({ "action": "deny", "tools": ["llm_*"] }), false),
        (json!({ "action": "deny", "operations": ["*"] }), false),
        (json!({ "action": "deny", "tools": ["llm_complete"] }), true),
        (json!({ "action": "deny", "operations": ["llm.complete"] }), true),
    ] {
        ensure!(models.api.patch(&bot, &json!({ "gates": [gate] })).await?.0 == 200);
        models.llm.prepare((!stops).then(|| LlmReply::says(&["Yes."])));
        let outcome = models.run(&exchange()).await?.outcome;
        let expected = if stops { Status::PermissionDenied } else { Status::Success };
        assert_eq!(outcome.status, expected, "{gate}: {outcome:?}");
    }
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bot_without_budget_asks_no_model() -> Result<()> {
    let models = Models::start().await?;
    let bot = format!("/api/bots/{}", models.bot);
    ensure!(models.api.patch(&bot, &json!({ "monthly_token_budget": 100 })).await?.0 == 200);
    let outcome = models.run(&exchange()).await?.outcome;
    assert_eq!((outcome.code, outcome.rule.as_deref()), (Some(Code::Budget), Some("budget")), "{outcome:?}");
    assert!(models.llm.requests().is_empty());
    // With more room, the answer of the model is shortened.
    ensure!(models.api.patch(&bot, &json!({ "monthly_token_budget": 600 })).await?.0 == 200);
    models.llm.prepare([LlmReply::says(&["Yes."])]);
    assert_eq!(models.run(&exchange()).await?.outcome.status, Status::Success);
    let asked = models.llm.requests()[0].json()["max_tokens"].as_u64().context("the limit")?;
    assert!((256..600).contains(&asked), "{asked}");
    models.host.stop().await;
    Ok(())
}

/// The key and the words of the user are in no file of the host except for the sealed credential.
#[tokio::test(flavor = "multi_thread")]
async fn neither_the_key_nor_the_conversation_is_stored() -> Result<()> {
    let models = Models::start().await?;
    models.llm.prepare([
        LlmReply::says(&["The key is ", KEY]),
        LlmReply::json(401, &json!({"error": {"message": format!("{KEY} is not a key of ours")}})),
    ]);
    for _ in 0..2 {
        models.run(&exchange()).await?;
    }
    let (_, audit) = models.api.get("/api/audit?limit=1000").await?;
    let host = models.host;
    let data = host.folders.data_dir();
    host.running.stop_handle().cancel();
    host.running.stopped().await;
    for private in [KEY, SAID] {
        assert!(!audit.to_string().contains(private), "{private} is in the audit");
        for file in std::fs::read_dir(&data)? {
            let path = file?.path();
            if path.is_file() {
                let bytes = std::fs::read(&path)?;
                let is_in = bytes.windows(private.len()).any(|window| window == private.as_bytes());
                assert!(!is_in, "{private} is in {}", path.display());
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_candidates_of_a_bot_are_its_models_through_active_bindings() -> Result<()> {
    let models = Models::with(&json!({ "alias": "quick" }), &json!({})).await?;
    let bot = format!("/api/bots/{}", models.bot);
    let id: BotId = models.bot.parse()?;
    let found = || {
        let snapshot = models.host.running.app.policy.load();
        let found = candidates(&snapshot, snapshot.default_workspace(), id, SystemClock.now());
        found.map(|found| {
            found.into_iter().map(|one| format!("{}/{}", one.resource_name, one.model.id)).collect::<Vec<_>>()
        })
    };
    let names = |names: &[&str]| Ok::<Vec<String>, NoModel>(names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(found(), names(&["models/small"]), "the only model");

    let spare = resource("spare", &models.llm.url(), &json!({ "id": "org/large" }), &json!({}));
    let spare = made(&models.api, "/api/resources", &spare).await?;
    let binding = bind(&models.api, &models.bot, &spare, &json!({})).await?;
    assert_eq!(found(), Err(NoModel::NotChosen), "two resources");
    let change = json!({
        "model": "models/quick", "model_fallbacks": ["spare/org/large", "models/small", "nothing/at-all"],
    });
    let (status, changed) = models.api.patch(&bot, &change).await?;
    ensure!(status == 200, "{changed}");
    assert_eq!(changed["model_fallbacks"], change["model_fallbacks"]);
    assert_eq!(found(), names(&["models/small", "spare/org/large"]));
    let own = format!("/api/bots/{}/resources/{}", models.bot, models.binding);
    ensure!(models.api.patch(&own, &json!({ "enabled": false })).await?.0 == 200);
    assert_eq!(found(), names(&["spare/org/large"]));
    ensure!(models.api.delete(&format!("/api/bots/{}/resources/{binding}", models.bot)).await?.0 == 204);
    assert_eq!(found(), Err(NoModel::NotBound { model: "models/quick".to_owned() }));
    models.host.stop().await;
    Ok(())
}
