//! The form of gates, and the picker of a binding.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Browser, base};
use crate::world::World;

/// A page with gates: its path, the path of its object in the API, and the other fields of its form.
type Form = (String, String, &'static [(&'static str, &'static str)]);

/// The pages of a bot, a role and a binding.
async fn forms(world: &World) -> Result<[Form; 3]> {
    let bound = world.grant_all("test-echo").await?;
    let role = world.api.role("asks", &["*"]).await?;
    let base = base(world).await?;
    let of_bot = format!("/api/bots/{}", world.bot);
    Ok([
        (format!("{base}/bots/{}/settings", world.bot), of_bot.clone(), &[("name", "tester")]),
        (
            format!("{base}/roles/{role}"),
            format!("/api/roles/{role}"),
            &[("name", "asks"), ("operations.mode", "only"), ("operations", "*")],
        ),
        (
            format!("{base}/bots/{}/bindings/{}", world.bot, bound.binding),
            format!("{of_bot}/resources/{}", bound.binding),
            &[("tools.mode", "only"), ("tools.others", "*"), ("enabled", "on"), ("save", "1")],
        ),
    ])
}

async fn gates(world: &World, object: &str) -> Result<Value> {
    Ok(world.api.get(object).await?.1["gates"].clone())
}

#[tokio::test]
async fn gates_are_added_changed_and_removed_without_a_script() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    for (page, object, others) in forms(&world).await? {
        let submit = async |fields: &[(&str, &str)]| browser.submit(&page, &page, &[others, fields].concat()).await;
        let added = submit(&[
            ("gate.0.action", "ask"),
            ("gate.0.tools", "test_echo_*\r\nother_*"),
            ("gate.0.operations", "echo.write"),
            ("gate.0.when", "repos: acme/*"),
            ("gate.0.unless", "repos: acme/site\r\nrepos: acme/docs"),
            ("gate.0.after", "untrusted"),
            ("gate.0.approvers", "admin"),
            ("gate.0.approvers", "operator"),
            ("gate.0.allow_starter", "on"),
            ("gate.0.expires_s", "120"),
            ("gate.0.reason", "<b>Look</b>"),
        ])
        .await?;
        assert_eq!(added.status, 303, "{page}: {}", added.text);
        let expected = json!([{
            "tools": ["test_echo_*", "other_*"], "operations": ["echo.write"], "when": { "repos": ["acme/*"] },
            "unless": { "repos": ["acme/site", "acme/docs"] }, "after": ["untrusted"], "action": "ask",
            "approvers": ["admin", "operator"], "allow_starter": true, "expires_s": 120, "reason": "<b>Look</b>",
        }]);
        assert_eq!(gates(&world, &object).await?, expected, "{page}");
        let shown = browser.page(&page).await?;
        assert!(shown.contains("Gate 1: asks a person") && shown.contains("repos: acme/*"), "{shown}");
        assert!(!shown.contains("<b>Look"), "a reason is text: {shown}");

        let changed =
            submit(&[("gate.0.action", "deny"), ("gate.0.tools", "no_such"), ("gate.1.action", "ask")]).await?;
        assert_eq!(changed.status, 303, "{page}: {}", changed.text);
        let expected = json!([{ "tools": ["no_such"], "action": "deny" }, { "action": "ask" }]);
        assert_eq!(gates(&world, &object).await?, expected, "{page}");

        // What the API refuses and what cannot be read changes nothing, and stays on the page.
        for (field, value) in [("expires_s", "5"), ("expires_s", "soon"), ("when", "repos"), ("action", "")] {
            let name = format!("gate.1.{field}");
            let fields = [("gate.0.action", "remove"), ("gate.1.action", "ask"), ("gate.1.reason", "kept")];
            let mut fields: Vec<(&str, &str)> = fields.into_iter().filter(|(known, _)| *known != name).collect();
            fields.push((name.as_str(), value));
            let refused = submit(&fields).await?;
            assert_eq!(refused.status, 422, "{page}, {name}={value}: {}", refused.text);
            assert!(refused.text.contains(&format!("/{field}</code>")), "{name}={value}: {}", refused.text);
            // The field is marked without a script. What the API refuses is shown as the list that was sent, without the
            // removed gate.
            let number = usize::from(value != "5");
            let gate = format!("gate.{number}");
            for part in
                [format!("<details id=\"{gate}\" open>"), format!("id=\"{gate}.{field}-fault\""), "kept".to_owned()]
            {
                assert!(refused.text.contains(&part), "{name}={value}, {part}: {}", refused.text);
            }
            assert_eq!(gates(&world, &object).await?, expected, "{page}, {name}={value}");
        }
        let removed = submit(&[("gate.0.action", "remove"), ("gate.1.action", "remove")]).await?;
        assert_eq!(removed.status, 303, "{page}: {}", removed.text);
        assert_eq!(gates(&world, &object).await?, json!([]), "{page}");
    }
    Ok(())
}

#[tokio::test]
async fn an_operator_sees_gates_and_cannot_change_them() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let forms = forms(&world).await?;
    let operator = Browser::log_in(&world, &world.api.new_key("operator", None).await?).await?;
    let asking = json!([{ "action": "ask", "tools": ["test_echo_\u{202e}*"] }]);
    for (_, object, _) in &forms {
        let (status, answer) = world.api.patch(object, &json!({ "gates": asking })).await?;
        assert_eq!(status, 200, "{answer}");
    }
    for (page, object, others) in &forms[..2] {
        let shown = operator.page(page).await?;
        assert!(shown.contains("asks a person") && shown.contains("test_echo_\\u{202e}*"), "{shown}");
        assert!(!shown.contains("gate.0.action"), "an operator has no form of gates: {shown}");
        let forged = [("gates", "1"), ("gate", "0"), ("gate.0.action", "remove")];
        let refused = operator.submit(page, page, &[*others, &forged].concat()).await?;
        assert_eq!(refused.status, 403, "{page}: {}", refused.text);
        assert_eq!(gates(&world, object).await?, asking, "{page}");
    }
    let (settings, object, others) = &forms[0];
    let saved = operator.submit(settings, settings, others).await?;
    assert_eq!(saved.status, 303, "{}", saved.text);
    assert_eq!(gates(&world, object).await?, asking, "a form without gates changes none");
    Ok(())
}

#[tokio::test]
async fn a_preview_shows_what_patterns_match_and_tests_values() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let page = format!("{}/bots/{}/bindings/{}", base(&world).await?, world.bot, bound.binding);
    let fields = [
        ("tools.mode", "only"),
        ("tools.others", "test_echo_ru*\r\nnothing_*"),
        ("scope.mode.repos", "only"),
        ("scope.entries.repos", "other/x\r\nacme/*"),
        ("scope.test.repos", "acme/<i>"),
        ("scope.mode.kinds", "only"),
        ("scope.entries.kinds", "a"),
        ("scope.test.kinds", "b"),
        ("enabled", "on"),
        ("preview", "1"),
    ];
    let object = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    let before = world.api.get(&object).await?.1;
    let preview = browser.submit(&page, &page, &fields).await?;
    assert_eq!(preview.status, 200, "{}", preview.text);
    for part in [
        "<code>test_echo_ru*</code> <span class=\"quiet\">matches now: test_echo_run</span>",
        "<code>nothing_*</code> <span class=\"quiet\">matches nothing now</span>",
        "<span class=\"status success\">acme/&#60;i&#62; is allowed by acme/*.</span>",
        "<span class=\"status denied\">b is not allowed.</span>",
    ] {
        assert!(preview.text.contains(part), "{part}: {}", preview.text);
    }
    assert_eq!(world.api.get(&object).await?.1, before, "a preview saves nothing");
    Ok(())
}

#[tokio::test]
async fn wrong_fields_of_bots_roles_and_bindings_are_marked_without_a_script() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let [bot, role, binding] = forms(&world).await?.map(|(page, ..)| page);
    let long = "x".repeat(129);
    let lists = [("operations.mode", "only"), ("operations", "*")];
    let granted = [("tools.mode", "only"), ("tools.others", "*"), ("enabled", "on"), ("save", "1")];
    let too_long = "x".repeat(5000);
    let scopes = format!("{{\"repos\": [\"{too_long}\"]}}");
    let new_bot = format!("{}/bots/new", base(&world).await?);
    for (page, fields, field) in [
        (&new_bot, vec![("name", long.as_str())], "name"),
        (&bot, vec![("name", long.as_str())], "name"),
        (&bot, vec![("name", "tester"), ("monthly_token_budget", "many")], "monthly_token_budget"),
        (&role, [&lists[..], &[("name", long.as_str())]].concat(), "name"),
        (&role, [&lists[..], &[("name", "asks"), ("scopes", "{")]].concat(), "scopes"),
        (&role, [&lists[..], &[("name", "asks"), ("scopes", scopes.as_str())]].concat(), "scopes"),
        (&binding, [&granted[..], &[("calls_per_minute", "many")]].concat(), "calls_per_minute"),
        (&binding, [&granted[..], &[("limit.fuel", "-1")]].concat(), "limit.fuel"),
        (&binding, [&granted[..], &[("delegate", "[")]].concat(), "delegate"),
        (&binding, [&granted[..1], &[("tools.others", too_long.as_str()), ("save", "1")]].concat(), "tools"),
        (
            &binding,
            [&granted[..], &[("scope.mode.repos", "only"), ("scope.entries.repos", too_long.as_str())]].concat(),
            "scope.entries.repos",
        ),
    ] {
        let refused = browser.submit(page, page, &fields).await?;
        assert_eq!(refused.status, 422, "{page} {field}: {}", refused.text);
        for part in [format!("id=\"{field}-fault\""), format!("href=\"#{field}\"")] {
            assert!(refused.text.contains(&part), "{page} {part}: {}", refused.text);
        }
        assert!(refused.text.contains("aria-invalid=\"true\""), "{page} {field}: {}", refused.text);
        // The field itself names the message.
        let described = refused.text.contains(&format!("-hint {field}-fault\""))
            || refused.text.contains(&format!("aria-describedby=\"{field}-fault\""));
        assert!(described, "{page} {field}: {}", refused.text);
    }
    Ok(())
}
