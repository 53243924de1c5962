//! Scope constraints on parameter values. Each case states whether the tool is listed, how the call ends, and which
//! rule refused it. The result of the access check must match the call in every case.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use rstest::rstest;
use serde_json::{Value, json};
use support::{Server, TOKEN};

use crate::stable::lines;
use crate::world::{World, text};

const LISTED: &str = "listed";
const HIDDEN: &str = "hidden";

/// Calls `tool` of `test-echo` under constraints of the role and of the binding. Returns whether the tool is listed,
/// and the result of the call.
async fn judged(role: &Value, binding: &Value, tool: &str, params: &Value) -> Result<[String; 2]> {
    let world = World::with(&["test-echo"]).await?;
    let resource = world.api.resource("test-echo", "echo", &world.github.url()).await?;
    let role = json!({ "name": "all", "allowed_operations": ["*"], "scope_constraints": role });
    let (status, role) = world.api.post("/api/roles", &role).await?;
    ensure!(status == 201, "{role}");
    world.api.bind(&world.bot, &resource, text(&role["id"]), binding).await?;

    let is_listed = world.tools().await?.iter().any(|listed| listed == tool);
    let call = world.call(tool, params).await?;
    let check = world.check(tool, params).await?;
    let decision = if call["status"] == "success" { "allow" } else { "deny" };
    ensure!(check["decision"] == decision, "the call was {call}, the check {check}");
    ensure!(check["message"] == call["message"], "the call was {call}, the check {check}");
    let audit = world.audit_of(&call).await?;
    ensure!(audit["rule"] == check["rule"], "the audit has {audit}, the check {check}");
    let end = match text(&call["status"]) {
        "success" => "success".to_owned(),
        status => format!("{status} by {}: {}", text(&audit["rule"]), text(&call["message"])),
    };
    Ok([if is_listed { LISTED } else { HIDDEN }.to_owned(), end])
}

/// Like [`judged`], with constraints of the binding only, on a tool that accepts any parameters.
async fn judged_open(binding: Value, params: Value) -> Result<[String; 2]> {
    judged(&json!({}), &binding, "test_echo_open", &params).await
}

#[rstest]
#[case::one_that_matches(json!(["acme/*"]), json!({"repo": "acme/site"}), "success")]
#[case::a_star_crosses_slashes(json!(["acme/*"]), json!({"repo": "acme/a/b"}), "success")]
#[case::another(json!(["acme/*"]), json!({"repo": "other/x"}), "scope_violation by scope.repos: Scope violation: Repository other/x is not authorized")]
#[case::one_in_other_case(json!(["acme/*"]), json!({"repo": "ACME/site"}), "scope_violation by scope.repos: Scope violation: Repository ACME/site is not authorized")]
#[case::one_of_which_the_pattern_is_a_part(json!(["acme/*"]), json!({"repo": "x/acme/site"}), "scope_violation by scope.repos: Scope violation: Repository x/acme/site is not authorized")]
#[case::one_with_the_pattern_in_its_first_line(json!(["acme/?ite"]), json!({"repo": "acme/site\nother/x"}), "scope_violation by scope.repos: Scope violation: Repository acme/site\\nother/x is not authorized")]
#[case::one_of_several_entries(json!(["acme/a", "acme/[a-c]?"]), json!({"repo": "acme/b1"}), "success")]
#[case::an_empty_text(json!(["acme/*"]), json!({"repo": ""}), "scope_violation by scope.repos: Scope violation: Repository  is not authorized")]
#[case::an_empty_text_by_an_empty_pattern(json!([""]), json!({"repo": ""}), "success")]
#[case::a_text_by_an_empty_pattern(json!([""]), json!({"repo": "acme/site"}), "scope_violation by scope.repos: Scope violation: Repository acme/site is not authorized")]
#[case::dots_are_text_to_a_pattern(json!(["acme/*"]), json!({"repo": "acme/../../user"}), "success")]
#[case::escapes_are_text_to_a_pattern(json!(["acme/*"]), json!({"repo": "acme/..%2f.."}), "success")]
#[case::dots_do_not_lead_into_the_pattern(json!(["acme/*"]), json!({"repo": "other/../acme/site"}), "scope_violation by scope.repos: Scope violation: Repository other/../acme/site is not authorized")]
#[case::none_at_all(json!(["acme/*"]), json!({}), "scope_violation by scope.repos: Scope violation: Repository (missing) is not authorized")]
#[case::the_alias_alone(json!(["acme/*"]), json!({"owner_repo": "acme/site"}), "success")]
#[case::another_by_the_alias_alone(json!(["acme/*"]), json!({"owner_repo": "other/x"}), "scope_violation by scope.repos: Scope violation: Repository other/x is not authorized")]
#[case::another_smuggled_in_by_the_alias(json!(["acme/*"]), json!({"repo": "acme/site", "owner_repo": "other/x"}), "scope_violation by scope.repos: Scope violation: Repository other/x is not authorized")]
#[case::another_before_the_alias(json!(["acme/*"]), json!({"owner_repo": "acme/site", "repo": "other/x"}), "scope_violation by scope.repos: Scope violation: Repository other/x is not authorized")]
#[case::a_number(json!(["*"]), json!({"repo": 5}), "error by input: Invalid parameters: /repo: 5 is not of type \"string\"")]
#[case::a_boolean(json!(["*"]), json!({"repo": true}), "error by input: Invalid parameters: /repo: true is not of type \"string\"")]
#[case::null(json!(["*"]), json!({"repo": null}), "error by input: Invalid parameters: /repo: null is not of type \"string\"")]
#[case::a_list(json!(["*"]), json!({"repo": ["acme/site"]}), "error by input: Invalid parameters: /repo: the value is not of type \"string\"")]
#[case::an_object(json!(["*"]), json!({"repo": {"a": 1}}), "error by input: Invalid parameters: /repo: the value is not of type \"string\"")]
#[case::a_parameter_that_is_not_declared(json!(["*"]), json!({"repo": "a", "Repo": "b"}), "error by input: Invalid parameters: /Repo: undeclared parameter")]
#[tokio::test]
async fn a_repository_of_a_closed_schema(
    #[case] patterns: Value,
    #[case] params: Value,
    #[case] end: &str,
) -> Result<()> {
    assert_eq!(judged(&json!({}), &json!({ "repos": patterns }), "test_echo_run", &params).await?, [LISTED, end]);
    Ok(())
}

#[rstest]
#[case::another_by_an_alias_that_the_tool_does_not_declare(json!(["acme/*"]), json!({"repo": "acme/site", "owner_repo": "other/x"}), "scope_violation by scope.repos: Scope violation: Repository other/x is not authorized")]
#[case::a_number_is_its_text(json!(["42"]), json!({"owner_repo": 42}), "success")]
#[case::another_number(json!(["42"]), json!({"owner_repo": 43}), "scope_violation by scope.repos: Scope violation: Repository 43 is not authorized")]
#[case::a_fraction_is_its_json_text(json!(["1.5"]), json!({"owner_repo": 1.50}), "success")]
#[case::a_boolean_is_its_text(json!(["true"]), json!({"owner_repo": true}), "success")]
#[case::another_boolean(json!(["true"]), json!({"owner_repo": false}), "scope_violation by scope.repos: Scope violation: Repository false is not authorized")]
#[case::null_is_absent(json!(["*"]), json!({"owner_repo": null}), "scope_violation by scope.repos: Scope violation: Repository (missing) is not authorized")]
#[case::null_beside_one_that_matches(json!(["acme/*"]), json!({"repo": "acme/site", "owner_repo": null}), "success")]
#[case::an_object_never_matches(json!(["*"]), json!({"owner_repo": {"a": "b"}}), "scope_violation by scope.repos: Scope violation: Repository {\"a\":\"b\"} is not authorized")]
#[case::a_list_of_which_all_match(json!(["acme/*", "7"]), json!({"owner_repo": ["acme/a", "acme/b", 7]}), "success")]
#[case::a_list_of_which_one_does_not_match(json!(["acme/*"]), json!({"owner_repo": ["acme/a", "other/b"]}), "scope_violation by scope.repos: Scope violation: Repository other/b is not authorized")]
#[case::an_empty_list_is_no_value(json!(["*"]), json!({"owner_repo": []}), "scope_violation by scope.repos: Scope violation: Repository (missing) is not authorized")]
#[case::null_in_a_list(json!(["*"]), json!({"owner_repo": ["acme/a", null]}), "scope_violation by scope.repos: Scope violation: Repository null is not authorized")]
#[case::a_list_in_a_list(json!(["*"]), json!({"owner_repo": [["acme/a"]]}), "scope_violation by scope.repos: Scope violation: Repository [\"acme/a\"] is not authorized")]
#[case::an_object_in_a_list(json!(["*"]), json!({"owner_repo": [{}]}), "scope_violation by scope.repos: Scope violation: Repository {} is not authorized")]
#[tokio::test]
async fn a_repository_of_an_open_schema(
    #[case] patterns: Value,
    #[case] params: Value,
    #[case] end: &str,
) -> Result<()> {
    assert_eq!(judged_open(json!({ "repos": patterns }), params).await?, [LISTED, end]);
    Ok(())
}

#[rstest]
#[case::all_match(json!({"labels": ["team-a", "team-b"]}), "success")]
#[case::one_does_not(json!({"labels": ["team-a", "urgent", "team-b"]}), "scope_violation by scope.labels: Scope violation: Label urgent is not authorized")]
#[case::an_empty_list(json!({"labels": []}), "scope_violation by scope.labels: Scope violation: Label (missing) is not authorized")]
#[case::no_list(json!({"labels": "team-a"}), "error by input: Invalid parameters: /labels: \"team-a\" is not of type \"array\"")]
#[case::a_wrong_entry(json!({"labels": ["team-a", 7, null]}), "error by input: Invalid parameters: /labels/1: 7 is not of type \"string\"; /labels/2: null is not of type \"string\"")]
#[tokio::test]
async fn every_entry_of_a_list_must_match(#[case] params: Value, #[case] end: &str) -> Result<()> {
    assert_eq!(judged(&json!({}), &json!({ "labels": ["team-*"] }), "test_echo_run", &params).await?, [LISTED, end]);
    Ok(())
}

#[rstest]
#[case::below(json!(["/srv/data"]), json!({"file": "/srv/data/a/b"}), "success")]
#[case::itself(json!(["/srv/data"]), json!({"file": "/srv/data"}), "success")]
#[case::a_longer_name(json!(["/srv/data"]), json!({"file": "/srv/database"}), "scope_violation by scope.paths: Scope violation: Path /srv/database is not authorized")]
#[case::dots_within(json!(["/srv/data"]), json!({"file": "/srv/data/a/../b/./c//d"}), "success")]
#[case::dots_that_lead_out(json!(["/srv/data"]), json!({"file": "/srv/data/../etc/passwd"}), "scope_violation by scope.paths: Scope violation: Path /srv/data/../etc/passwd is not authorized")]
#[case::dots_that_lead_out_and_back(json!(["/srv/data"]), json!({"file": "/srv/data/../../srv/data/a"}), "success")]
#[case::dots_above_the_root(json!(["/srv/data"]), json!({"file": "/../../srv/data/a"}), "success")]
#[case::a_relative_path(json!(["/srv/data"]), json!({"file": "srv/data/a"}), "scope_violation by scope.paths: Scope violation: Path srv/data/a is not authorized")]
#[case::escaped_dots_are_a_name(json!(["/srv/data"]), json!({"file": "/srv/data/..%2fetc"}), "success")]
#[case::one_level(json!(["/srv/data/*"]), json!({"file": "/srv/data/a"}), "success")]
#[case::more_than_one_level(json!(["/srv/data/*"]), json!({"file": "/srv/data/a/b"}), "scope_violation by scope.paths: Scope violation: Path /srv/data/a/b is not authorized")]
#[case::all_levels(json!(["/srv/**"]), json!({"file": "/srv/a/b/c"}), "success")]
#[case::a_nested_parameter(json!(["/srv/data"]), json!({"options": {"dir": "/srv/data/a"}}), "success")]
#[case::another_smuggled_in_by_a_nested_parameter(json!(["/srv/data"]), json!({"file": "/srv/data/a", "options": {"dir": "/etc"}}), "scope_violation by scope.paths: Scope violation: Path /etc is not authorized")]
#[case::an_object_without_the_nested_parameter(json!(["/srv/data"]), json!({"options": {}}), "scope_violation by scope.paths: Scope violation: Path (missing) is not authorized")]
#[case::a_text_where_the_object_should_be(json!(["/srv/data"]), json!({"options": "/srv/data"}), "error by input: Invalid parameters: /options: \"/srv/data\" is not of type \"object\"")]
#[tokio::test]
async fn a_path(#[case] patterns: Value, #[case] params: Value, #[case] end: &str) -> Result<()> {
    assert_eq!(judged(&json!({}), &json!({ "paths": patterns }), "test_echo_run", &params).await?, [LISTED, end]);
    Ok(())
}

#[rstest]
#[case::not_concerned("test_echo_run", json!({"kind": "feature"}), "success")]
#[case::not_concerned_and_not_given("test_echo_again", json!({}), "success")]
#[case::concerned("test_echo_write", json!({"kind": "bug"}), "success")]
#[case::concerned_with_another_value("test_echo_write", json!({"kind": "feature"}), "scope_violation by scope.kinds: Scope violation: Kind feature is not authorized")]
#[case::concerned_and_not_given("test_echo_write", json!({}), "scope_violation by scope.kinds: Scope violation: Kind (missing) is not authorized")]
#[case::an_entry_is_no_pattern("test_echo_write", json!({"kind": "chore"}), "scope_violation by scope.kinds: Scope violation: Kind chore is not authorized")]
#[case::an_entry_with_a_star_is_just_that_text("test_echo_write", json!({"kind": "ch*"}), "success")]
#[case::case_counts("test_echo_write", json!({"kind": "Bug"}), "scope_violation by scope.kinds: Scope violation: Kind Bug is not authorized")]
#[tokio::test]
async fn a_dimension_for_some_operations(#[case] tool: &str, #[case] params: Value, #[case] end: &str) -> Result<()> {
    assert_eq!(judged(&json!({}), &json!({ "kinds": ["bug", "ch*"] }), tool, &params).await?, [LISTED, end]);
    Ok(())
}

#[rstest]
#[case::nothing_constrained(json!({}), json!({}), LISTED, "success")]
#[case::both_match(json!({"repos": ["acme/*"]}), json!({"repos": ["*/site"]}), LISTED, "success")]
#[case::only_the_role_matches(json!({"repos": ["acme/*"]}), json!({"repos": ["*/api"]}), LISTED, "scope_violation by scope.repos: Scope violation: Repository acme/site is not authorized")]
#[case::only_the_binding_matches(json!({"repos": ["other/*"]}), json!({"repos": ["*/site"]}), LISTED, "scope_violation by scope.repos: Scope violation: Repository acme/site is not authorized")]
#[case::an_empty_list_of_the_binding(json!({}), json!({"repos": []}), HIDDEN, "scope_violation by scope.repos: Scope violation: Repository acme/site is not authorized")]
#[case::an_empty_list_of_the_role(json!({"repos": []}), json!({"repos": ["*"]}), HIDDEN, "scope_violation by scope.repos: Scope violation: Repository acme/site is not authorized")]
#[case::an_empty_list_of_another_dimension(json!({"kinds": []}), json!({}), HIDDEN, "scope_violation by scope.kinds: Scope violation: Kind (missing) is not authorized")]
#[case::a_key_of_the_role_that_the_manifest_lacks(json!({"orgs": ["*"]}), json!({"repos": ["*"]}), HIDDEN, "scope_violation by scope.unknown_key: Scope violation: this tool has no scope orgs")]
#[tokio::test]
async fn sets_of_constraints(
    #[case] role: Value,
    #[case] binding: Value,
    #[case] listed: &str,
    #[case] end: &str,
) -> Result<()> {
    assert_eq!(judged(&role, &binding, "test_echo_run", &json!({ "repo": "acme/site" })).await?, [listed, end]);
    Ok(())
}

#[tokio::test]
async fn a_tool_that_declares_no_parameter_of_a_constrained_dimension_is_hidden_and_refused() -> Result<()> {
    let end = "scope_violation by scope.labels: Scope violation: Label (missing) is not authorized";
    assert_eq!(judged_open(json!({ "labels": ["*"] }), json!({ "labels": ["a"] })).await?, [HIDDEN, end]);
    Ok(())
}

#[tokio::test]
async fn a_key_that_the_manifest_lacks_is_refused_when_a_binding_is_saved() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let path = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    let (status, problem) = world.api.patch(&path, &json!({ "scope_constraints": { "orgs": ["*"] } })).await?;
    let fault = "unknown scope dimension (known dimensions: repos, paths, labels, kinds)";
    assert_eq!((status, &problem["errors"]), (422, &json!([{ "path": "/scope_constraints/orgs", "message": fault }])));
    Ok(())
}

/// Without the plugin, the dimensions of the type are unknown. The rest of a binding can still be changed.
#[tokio::test]
async fn scopes_that_a_change_repeats_are_kept_without_the_plugin() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let scopes = json!({ "repos": ["acme/*"] });
    let bound = world.grant("test-echo", &["*"], &scopes).await?;
    std::fs::remove_dir_all(world.server.plugins_dir().join("test-echo"))?;
    world.api.post("/api/plugins/test-echo/reload", &Value::Null).await?;
    let path = format!("/api/bots/{}/resources/{}", world.bot, bound.binding);
    let (status, binding) = world.api.patch(&path, &json!({ "scope_constraints": scopes, "enabled": false })).await?;
    assert_eq!((status, &binding["scope_constraints"], &binding["enabled"]), (200, &scopes, &json!(false)));
    let (status, problem) = world.api.patch(&path, &json!({ "scope_constraints": { "repos": ["*"] } })).await?;
    assert_eq!((status, &problem["errors"][0]["path"]), (422, &json!("/scope_constraints/repos")), "{problem}");
    Ok(())
}

/// The pattern permits these values, so the plugin itself must reject them.
#[rstest]
#[case::by_dots("acme/../../user")]
#[case::by_escaped_dots("acme/..%2f..")]
#[case::by_a_question_mark("acme/site?x=")]
#[case::by_a_longer_path("acme/site/issues")]
#[tokio::test]
async fn the_plugin_is_not_led_elsewhere(#[case] repo: &str) -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let answer = world.call("github_get_repo", &json!({ "repo": repo })).await?;
    let told = [&answer["status"], &answer["code"], &answer["message"]].map(text);
    assert_eq!(told, ["error", "plugin", "Invalid repo format, expected 'owner/repo'"]);
    assert_eq!(lines(&world.github.requests(), TOKEN), [""; 0]);
    Ok(())
}

/// Egress rejects the request even if the plugin does not reject the value.
#[rstest]
#[case::by_dots("/repos/acme/../../user")]
#[case::by_escaped_dots("/repos/acme/%2e%2E/user")]
#[case::by_half_escaped_dots("/repos/acme/.%2e/user")]
#[case::by_a_backslash("/repos/acme\\..\\user")]
#[case::by_a_line_break("/repos/acme\r\nX: y")]
#[case::by_a_fragment("/repos/acme#/site")]
#[case::by_another_host("@other.example/user")]
#[tokio::test]
async fn egress_is_not_led_elsewhere(#[case] path: &str) -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let answer = world.call("test_echo_fetch", &json!({ "path": path })).await?;
    assert_eq!(answer["data"]["failure"]["code"], "invalid", "{answer}");
    assert_eq!(lines(&world.github.requests(), TOKEN), [""; 0]);
    Ok(())
}

/// The message uses the template in the caller's language. Missing translations are replaced by the manifest's text,
/// key by key.
#[tokio::test]
async fn a_violation_is_told_in_the_callers_language() -> Result<()> {
    let server = Server::prepare(&["github"])?;
    std::fs::write(server.plugins_dir().join("github/locales/de.json"), r#"{"description": "GitHub"}"#)?;
    let world = World::on(server).await?;
    world.grant("github", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let mut told = Vec::new();
    for accept in ["", "zh", "en-GB, zh;q=0.9", "fr, zh-TW;q=0.5, en;q=0.4", "de, zh;q=0.5", "zh;q=0, en"] {
        let mut messages = vec![json!(accept)];
        for route in ["call", "check"] {
            let path = format!("/api/bots/{}/tools/github_get_repo/{route}", world.bot);
            let request = world.api.request(reqwest::Method::POST, &path).header("Accept-Language", accept);
            let (_, _, body) = crate::http::send(request.json(&json!({ "params": { "repo": "other/x" } }))).await?;
            messages.push(body["message"].clone());
        }
        told.push(json!(messages).to_string());
    }
    assert_snapshot!(told.join("\n"), @r#"
    ["","Scope violation: Repository other/x is not authorized","Scope violation: Repository other/x is not authorized"]
    ["zh","Scope violation: 仓库 other/x 不在授权范围内","Scope violation: 仓库 other/x 不在授权范围内"]
    ["en-GB, zh;q=0.9","Scope violation: Repository other/x is not authorized","Scope violation: Repository other/x is not authorized"]
    ["fr, zh-TW;q=0.5, en;q=0.4","Scope violation: 仓库 other/x 不在授权范围内","Scope violation: 仓库 other/x 不在授权范围内"]
    ["de, zh;q=0.5","Scope violation: Repository other/x is not authorized","Scope violation: Repository other/x is not authorized"]
    ["zh;q=0, en","Scope violation: Repository other/x is not authorized","Scope violation: Repository other/x is not authorized"]
    "#);
    Ok(())
}
