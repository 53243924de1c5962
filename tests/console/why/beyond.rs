//! Denials that a bot's own rules do not decide alone, and changes that reach other bots.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Browser, RUN, prose};
use crate::console::base;
use crate::console::connect::grown;
use crate::http::made;
use crate::world::{World, text};

/// What the page of such a call says instead of a change.
const BEYOND: &str = "More than the rules of this bot denied this call";

/// Checks the pages of the calls that an answer begins: no page says that the call is allowed. Returns the rules of the
/// calls.
async fn told(world: &World, answer: &Value) -> Result<Vec<String>> {
    let browser = Browser::log_in(world, world.api.key()).await?;
    let base = base(world).await?;
    let (_, tree) = world.api.get(&format!("/api/audit?tree={}", text(&answer["request_id"]))).await?;
    let mut rules = Vec::new();
    for call in tree["items"].as_array().context("the calls are a list")? {
        let status = text(&call["status"]);
        if status != "scope_violation" && status != "permission_denied" {
            continue;
        }
        let page = browser.page(&format!("{base}/activity/{}", text(&call["request_id"]))).await?;
        ensure!(page.contains(BEYOND) && !page.contains("card why"), "{call}: {page}");
        let message = prose(text(&call["message"]));
        ensure!(page.contains(&message), "the page says what the bot was told: {message} {page}");
        let rule = text(&call["rule"]);
        ensure!(rule.is_empty() || page.contains(&format!("<code>{rule}</code>")), "{rule}: {page}");
        rules.push(rule.to_owned());
    }
    rules.sort();
    Ok(rules)
}

#[tokio::test]
async fn a_denial_by_a_delegation_is_told_by_its_recorded_rule() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let helper = world.api.bot("helper").await?;
    let echo = world.api.resource("test-echo", "echo", "https://echo.example").await?;
    let role = world.api.role("all", &["*"]).await?;
    world.api.bind(&helper, &echo, &role, &json!({})).await?;
    let link = json!({ "resource_type": "bot", "name": "helper", "config": { "bot": helper } });
    let link = made(&world.api, "/api/resources", &link).await?;
    let bindings = format!("/api/bots/{}/resources", world.bot);
    let binding = json!({ "resource_id": link, "permissions": { "allowed_operations": ["bot.*"] } });
    let binding = format!("{bindings}/{}", made(&world.api, &bindings, &binding).await?);
    for (rule, delegate) in [
        ("delegation.allowed_tools", json!({ "allowed_tools": ["test_echo_a*"] })),
        ("scope.repos", json!({ "scope_constraints": { "repos": ["acme/*"] } })),
        ("scope.unknown_key", json!({ "scope_constraints": { "orgs": ["*"] } })),
        ("delegation.gates", json!({ "gates": [{ "action": "deny", "reason": "not\u{202e} now" }] })),
    ] {
        let (status, body) = world.api.patch(&binding, &json!({ "delegate": delegate })).await?;
        ensure!(status == 200, "{body}");
        let inner = json!({ "tool": RUN, "params": { "repo": "other/x" } });
        let answer = world.call("bot_call_tool", &inner).await?;
        // The outer call has no rule of its own.
        assert_eq!(told(&world, &answer).await?, ["", rule], "{delegate}: {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn a_denial_by_the_calling_plugin_is_told_by_its_recorded_rule() -> Result<()> {
    let world = World::with(&["test-caller", "test-echo"]).await?;
    world.grant_all("test-caller").await?;
    world.grant_all("test-echo").await?;
    let inner = json!({ "tool": RUN, "params": { "repo": "acme/site" } });
    let answer = world.call("test_caller_call", &inner).await?;
    assert_eq!(told(&world, &answer).await?, ["binding.allow_calls"], "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_call_of_which_the_audit_holds_a_digest_is_told_by_its_recorded_rule() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let params = json!({ "repo": "other/x", "any": "x".repeat(20_000) });
    let denied = world.call(RUN, &params).await?;
    ensure!(world.audit_of(&denied).await?["params"]["digest"].is_string(), "{denied}");
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = browser.page(&format!("{}/activity/{}", base(&world).await?, text(&denied["request_id"]))).await?;
    assert!(page.contains("The audit holds only a digest of these parameters"), "{page}");
    assert!(page.contains("<code>scope.repos</code>"), "{page}");
    for missing in ["card why", "/change?", "?tool="] {
        assert!(!page.contains(missing), "{missing}: {page}");
    }
    Ok(())
}

#[tokio::test]
async fn a_change_of_a_role_names_the_bots_that_it_reaches_and_an_operator_cannot_make_it() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let echo = world.api.resource("test-echo", "echo", "https://echo.example").await?;
    let role = world.api.role("shared", &["fetch.*"]).await?;
    let other = world.api.bot("another <b>bot").await?;
    let third = world.api.bot("third").await?;
    for bot in [&world.bot, &other] {
        world.api.bind(bot, &echo, &role, &json!({})).await?;
    }
    world.api.bind(&third, &echo, &world.api.role("own", &["fetch.*"]).await?, &json!({})).await?;
    let bot = format!("{}/bots/{}", base(&world).await?, world.bot);
    let (change, action) = (format!("{bot}/change?tool={RUN}&params=%7B%7D"), format!("{bot}/change"));
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let shown = operator.page(&change).await?;
    assert!(shown.contains("An admin can make this change") && !shown.contains("<button class=\"primary\""), "{shown}");
    let admin = Browser::log_in(&world, world.api.key()).await?;
    let page = admin.page(&change).await?;
    assert!(page.contains("2 bots: another &#60;b&#62;bot, tester"), "{page}");
    assert_eq!(admin.submit(&change, &action, &[]).await?.status, 303);
    for (bot, status) in [(&world.bot, "success"), (&other, "success"), (&third, "permission_denied")] {
        assert_eq!(world.api.call(bot, RUN, &json!({})).await?["status"], status);
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_a_plugin_does_not_declare_any_more_is_removed() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant("github", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    grown(&world, |manifest| manifest.replace("- key: repos", "- key: repositories")).await?;
    ensure!(world.api.post("/api/plugins/github/approve", &json!({})).await?.0 == 200);
    let params = json!({ "repo": "acme/site" });
    let denied = world.call("github_get_repo", &params).await?;
    ensure!(world.audit_of(&denied).await?["rule"] == "scope.unknown_key", "{denied}");
    let path = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    let (_, before) = world.api.get(&path).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let bot = format!("{}/bots/{}", base(&world).await?, world.bot);
    let change = format!("{bot}/change?tool=github_get_repo&params=%7B%22repo%22%3A%22acme%2Fsite%22%7D");
    assert_eq!(browser.submit(&change, &format!("{bot}/change"), &[]).await?.status, 303);
    assert_eq!(world.call("github_get_repo", &params).await?["status"], "success");
    let (_, mut after) = world.api.get(&path).await?;
    assert_eq!(after["scope_constraints"], json!({}));
    after["scope_constraints"] = before["scope_constraints"].clone();
    after["updated_at"] = before["updated_at"].clone();
    assert_eq!(after, before, "nothing else has changed");
    Ok(())
}
