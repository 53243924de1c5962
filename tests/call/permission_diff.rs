//! A changed plugin or resource must not automatically gain access through existing grants and credentials. A version
//! that asks for more permissions waits for a root key, and a credential waits for an admin.

use std::fs;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use rstest::rstest;
use serde_json::{Value, json};
use support::{Bound, FakeGithub, Server, TOKEN};

use super::plugins::{edit, reloaded};
use crate::http::Answers;
use crate::stable::{lines, stable};
use crate::world::World;

/// Returns the response to a call, the status of the credential, and the requests that the upstream received.
async fn seen(world: &World, bound: &Bound) -> Result<Value> {
    let answer = world.call("github_get_repo", &json!({ "repo": "acme/site" })).await?;
    let (_, shown) = world.api.get(&format!("/api/resources/{}", bound.resource)).await?;
    let sent = lines(&world.github.take_requests(), TOKEN);
    Ok(json!([answer["status"], answer["code"], answer["message"], shown["credential"]["status"], sent]))
}

fn snapshot(told: &[Value]) -> String {
    told.iter().map(|line| stable(line).to_string()).collect::<Vec<_>>().join("\n")
}

async fn approve(world: &World, plugin: &str, body: &Value) -> Result<(u16, Value)> {
    world.api.post(&format!("/api/plugins/{plugin}/approve"), body).await
}

async fn confirm(world: &World, bound: &Bound) -> Result<(u16, Value)> {
    world.api.post(&format!("/api/resources/{}/credential/confirm", bound.resource), &Value::Null).await
}

/// Returns the plugin's entry in the list, with the version that waits for approval.
async fn pending(world: &World, plugin: &str) -> Result<Value> {
    let (_, entry) = world.api.get(&format!("/api/plugins/{plugin}")).await?;
    Ok(json!([entry["version"], entry["status"], entry["pending"]["version"], entry["pending"]["grows"]]))
}

#[tokio::test]
async fn a_credential_does_not_follow_its_resource_to_another_place() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let elsewhere = FakeGithub::start().await?;
    let bound = world.grant_all("github").await?;
    let path = format!("/api/resources/{}", bound.resource);
    let mut told = vec![seen(&world, &bound).await?];
    for url in [elsewhere.url(), format!("{}/v3", world.github.url()), elsewhere.url()] {
        let (status, body) = world.api.patch(&path, &json!({ "config": { "api_base": url } })).await?;
        ensure!(status == 200, "{body}");
        told.push(seen(&world, &bound).await?);
    }
    assert_eq!(lines(&elsewhere.requests(), TOKEN), [""; 0]);
    assert_snapshot!(snapshot(&told), @r#"
    ["success",null,null,"ready",["GET /repos/acme/site (Bearer TOKEN)"]]
    ["error","unauthenticated","GitHub request error: an admin must confirm or reauthorize the credential of this resource","needs-authorization",[]]
    ["error","plugin","GitHub API error: 404 - {\"message\":\"Not Found\",\"documentation_url\":\"https://docs.github.com/rest\"}","ready",["GET /v3/repos/acme/site (Bearer TOKEN)"]]
    ["error","unauthenticated","GitHub request error: an admin must confirm or reauthorize the credential of this resource","needs-authorization",[]]
    "#);

    // Only an admin key can confirm a credential.
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let route = format!("{path}/credential/confirm");
    let mut answers = Answers::default();
    answers.add(
        "an operator moves it",
        operator.patch(&path, &json!({ "config": { "api_base": "https://x.example" } })).await?,
    );
    answers.add("an operator confirms", operator.post(&route, &Value::Null).await?);
    answers.add("an admin confirms", confirm(&world, &bound).await?);
    answers.add("once more", confirm(&world, &bound).await?);
    assert_snapshot!(answers, @r#"
    an operator moves it: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"changing the configuration, network or labels of a resource requires an admin key","request_id":"[id 1]"}
    an operator confirms: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 2]"}
    an admin confirms: 200 {"status":"ready","method":"token","audience":["http://[upstream]"],"expires_at":null,"updated_at":"[time]"}
    once more: 200 {"status":"ready","method":"token","audience":["http://[upstream]"],"expires_at":null,"updated_at":"[time]"}
    "#);
    seen(&world, &bound).await?;
    assert_eq!(lines(&elsewhere.requests(), TOKEN), ["GET /repos/acme/site (Bearer TOKEN)"]);
    Ok(())
}

#[tokio::test]
async fn only_a_credential_that_is_there_is_confirmed() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    ensure!(world.api.delete(&format!("/api/resources/{}/credential", bound.resource)).await?.0 == 204);
    let mut answers = Answers::default();
    answers.add("none", confirm(&world, &bound).await?);
    answers.add(
        "no resource",
        world.api.post("/api/resources/0198c0de-0000-7000-8000-000000000000/credential/confirm", &Value::Null).await?,
    );
    assert_snapshot!(answers, @r#"
    none: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such credential","request_id":"[id 1]"}
    no resource: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such resource","request_id":"[id 2]"}
    "#);
    Ok(())
}

/// A version that would send the credential to more origins, or in another way, waits for approval. After the approval,
/// the credential still waits for an admin.
#[rstest]
#[case::one_more_origin("      audience: [\"http://127.0.0.1\", \"https://*.example.com\"]\n")]
#[case::another_header("      inject: [{ header: X-Token, value: \"{access_token}\" }]\n")]
#[case::the_query(
    "      inject: [{ header: Authorization, value: \"Bearer {access_token}\" }, { query: t, value: \"{access_token}\" }]\n"
)]
#[tokio::test]
async fn a_version_that_asks_for_the_credential_in_another_way(#[case] change: &str) -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let folder = world.server.plugins_dir().join("github");
    edit(&folder, |text| text.replace("    - method: token\n", &format!("    - method: token\n{change}")))?;
    assert_eq!(reloaded(&world, "github").await?[1], "needs_approval");
    let told = seen(&world, &bound).await?;
    assert_eq!(told, json!(["success", null, null, "ready", ["GET /repos/acme/site (Bearer TOKEN)"]]), "{told}");

    let (status, entry) = approve(&world, "github", &json!({})).await?;
    ensure!(status == 200 && entry["status"] == "loaded" && entry["pending"].is_null(), "{entry}");
    let told = seen(&world, &bound).await?;
    assert_eq!(told[1], "unauthenticated", "{told}");
    assert_eq!((&told[3], &told[4]), (&json!("needs-authorization"), &json!([])), "{told}");

    let (status, metadata) = confirm(&world, &bound).await?;
    assert_eq!((status, &metadata["status"]), (200, &json!("ready")), "{metadata}");
    Ok(())
}

/// Every version that widens existing grants waits for approval. Until the approval, the old version continues to
/// serve.
#[tokio::test]
async fn a_version_that_grew_waits() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let folder = world.server.plugins_dir().join("github");
    let original = fs::read_to_string(folder.join("monstrum.yaml"))?;
    let mut told = Vec::new();
    for (name, from, to) in [
        ("a capability", "capabilities: [http]", "capabilities: [http, tools]"),
        ("an origin", "capabilities: [http]", "capabilities: [http]\n  egress: [\"https://evil.example\"]"),
        ("a milder operation", "operation: issue.write", "operation: issue.read"),
        ("a dimension less", "- key: repos", "- key: repositories"),
        ("a parameter less", "param_paths: [repo, owner_repo]", "param_paths: [repo]"),
        ("another default place", "default: \"https://api.github.com\"", "default: \"https://evil.example\""),
    ] {
        fs::write(folder.join("monstrum.yaml"), &original)?;
        assert_eq!(
            reloaded(&world, "github").await?[1],
            "loaded",
            "{name}: the plugin is not loaded after the manifest was restored"
        );
        edit(&folder, |text| text.replace("version: 1.0.0", "version: 1.1.0").replace(from, to))?;
        reloaded(&world, "github").await?;
        told.push(json!([name, pending(&world, "github").await?]));
        assert_eq!(seen(&world, &bound).await?[0], "success", "{name}");
    }
    assert_snapshot!(snapshot(&told), @r#"
    ["a capability",["1.0.0","needs_approval","1.1.0",["capability `tools`"]]]
    ["an origin",["1.0.0","needs_approval","1.1.0",["egress to `https://evil.example`"]]]
    ["a milder operation",["1.0.0","needs_approval","1.1.0",["tool `github_create_issue` has operation `issue.read` instead of `issue.write`","tool `github_update_issue` has operation `issue.read` instead of `issue.write`"]]]
    ["a dimension less",["1.0.0","needs_approval","1.1.0",["scope dimension `repos` is removed"]]]
    ["a parameter less",["1.0.0","needs_approval","1.1.0",["scope dimension `repos` no longer checks `owner_repo`"]]]
    ["another default place",["1.0.0","needs_approval","1.1.0",["the default of `api_base` is https://evil.example"]]]
    "#);
    Ok(())
}

/// Lists of tools and clients rely on the effect, so a version that lowers an effect waits. A higher effect does not.
#[tokio::test]
async fn a_version_that_lowers_an_effect_waits() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    let folder = world.server.plugins_dir().join("github");
    let effect = async || -> Result<Value> {
        let (_, tools) = world.api.get(&format!("/api/bots/{}/tools", world.bot)).await?;
        let mut tools = tools["items"].as_array().into_iter().flatten();
        let tool = tools.find(|tool| tool["name"] == "github_create_issue").context("the tool is not listed")?;
        Ok(tool["effect"].clone())
    };
    let [write, idempotent] =
        ["write", "idempotent"].map(|effect| format!("operation: issue.write\n      effect: {effect}\n"));
    assert_eq!(effect().await?, "write");
    edit(&folder, |text| text.replacen(&write, &idempotent, 1))?;
    reloaded(&world, "github").await?;
    let expected = "tool `github_create_issue` has effect `idempotent` instead of `write`";
    assert_eq!(pending(&world, "github").await?, json!(["1.0.0", "needs_approval", "1.0.0", [expected]]));
    assert_eq!(effect().await?, "write");
    ensure!(approve(&world, "github", &json!({})).await?.0 == 200);
    assert_eq!(effect().await?, "idempotent");
    edit(&folder, |text| text.replacen(&idempotent, &write, 1))?;
    assert_eq!(reloaded(&world, "github").await?[1], "loaded");
    assert_eq!(effect().await?, "write");
    Ok(())
}

/// Root sees what a waiting version asks for, what else differs, and what an approval touches.
#[tokio::test]
async fn root_sees_how_the_waiting_version_differs() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let path = "/api/plugins/github/diff";
    let mut answers = Answers::default();
    answers.add("nothing waits", one_of(world.api.get(path).await?));
    answers.add("no such plugin", one_of(world.api.get("/api/plugins/gitlab/diff").await?));
    edit(&world.server.plugins_dir().join("github"), |text| {
        let text = text.replace("version: 1.0.0", "version: 1.1.0");
        let text = text.replace("param_paths: [repo, owner_repo]", "param_paths: [repo, owner_repo, target]");
        let text = text.replace("capabilities: [http]", "capabilities: [http, tools]");
        text.replace("    - method: token\n", "    - method: token\n      audience: [\"https://*.example.com\"]\n")
    })?;
    assert_eq!(reloaded(&world, "github").await?[1], "needs_approval");
    for kind in ["admin", "operator"] {
        let api = world.api.with_key(&world.api.new_key(kind, None).await?);
        answers.add(kind, one_of(api.get(path).await?));
    }
    assert_snapshot!(answers, @r#"
    nothing waits: 404 "no version of this plugin waits for approval"
    no such plugin: 404 "no such plugin"
    admin: 403 "a root key is required"
    operator: 403 "a root key is required"
    "#);

    let (status, diff) = world.api.get(path).await?;
    ensure!(status == 200, "{diff}");
    let (_, entry) = world.api.get("/api/plugins/github").await?;
    let pending = &entry["pending"];
    assert_eq!((&diff["from"]["version"], &diff["from"]["digest"]), (&entry["version"], &entry["digest"]));
    for field in ["version", "digest", "manifest_digest"] {
        assert_eq!(diff["to"][field], pending[field], "{field}");
    }
    let texts = |list: &Value| -> Vec<Value> {
        list.as_array().into_iter().flatten().map(|item| item["text"].clone()).collect()
    };
    assert_eq!(Value::Array(texts(&diff["grows"])), pending["grows"]);
    assert_eq!(
        diff["grows"][0],
        json!({ "kind": "capability", "text": "capability `tools`", "after": "tools" }),
        "{diff}"
    );
    assert_eq!(texts(&diff["narrows"]), ["scope dimension `repos` also checks `target`"], "{diff}");
    assert_eq!(diff["tools"], json!([]));
    let touched = &diff["touches"];
    assert_eq!(touched["bindings"].as_array().map(Vec::len), Some(1), "{touched}");
    assert_eq!(touched["credentials"][0]["resource_id"], json!(bound.resource), "{touched}");

    // The approval does what the diff has said: the credential waits.
    let both = json!({ "digest": diff["to"]["digest"], "manifest_digest": diff["to"]["manifest_digest"] });
    ensure!(approve(&world, "github", &both).await?.0 == 200);
    assert_eq!(seen(&world, &bound).await?[3], "needs-authorization");
    assert_eq!(world.api.get(path).await?.0, 404, "no version waits any more");
    Ok(())
}

/// The tools of a waiting version are shown with both declarations, and a credential that stays usable is not named.
#[tokio::test]
async fn root_sees_the_tools_that_differ() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    edit(&world.server.plugins_dir().join("github"), |text| {
        text.replace("operation: issue.write", "operation: issue.read")
    })?;
    assert_eq!(reloaded(&world, "github").await?[1], "needs_approval");
    let (_, diff) = world.api.get("/api/plugins/github/diff").await?;
    let tools = diff["tools"].as_array().into_iter().flatten();
    let tools: Vec<Value> = tools
        .map(|tool| json!([tool["name"], tool["change"], tool["before"]["operation"], tool["after"]["operation"]]))
        .collect();
    let expected = ["github_create_issue", "github_update_issue"]
        .map(|name| json!([name, "changed", "issue.write", "issue.read"]));
    assert_eq!(tools, expected, "{diff}");
    assert_eq!(diff["touches"]["credentials"], json!([]), "{diff}");
    Ok(())
}

#[tokio::test]
async fn root_approves_the_version_that_it_has_seen() -> Result<()> {
    let mut world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let folder = world.server.plugins_dir().join("github");
    let mut answers = Answers::default();
    answers.add("nothing waits", one_of(approve(&world, "github", &Value::Null).await?));
    answers.add("no such plugin", one_of(approve(&world, "gitlab", &Value::Null).await?));
    edit(&folder, |text| {
        let text = text.replace("version: 1.0.0", "version: 1.1.0");
        text.replace("operation: issue.write", "operation: issue.read")
    })?;
    answers.add("grew", (0, reloaded(&world, "github").await?));

    // A restart does not activate the waiting version either. The old version continues to serve from the database.
    world.server.restart().await?;
    world.api = world.server.api()?;
    answers.add("after a start", (0, pending(&world, "github").await?));
    assert_eq!(seen(&world, &bound).await?[0], "success");
    for kind in ["admin", "operator"] {
        let api = world.api.with_key(&world.api.new_key(kind, None).await?);
        answers.add(kind, one_of(api.post("/api/plugins/github/approve", &json!({})).await?));
    }
    let other = format!("sha256:{}", "0".repeat(64));
    answers.add("another digest", one_of(approve(&world, "github", &json!({ "digest": other })).await?));
    answers.add("no digest", one_of(approve(&world, "github", &json!({ "digest": "x" })).await?));
    let (_, entry) = world.api.get("/api/plugins/github").await?;
    let (digest, manifest) = (&entry["pending"]["digest"], &entry["pending"]["manifest_digest"]);
    let altered = json!({ "digest": digest, "manifest_digest": other });
    answers.add("another manifest", one_of(approve(&world, "github", &altered).await?));
    let both = json!({ "digest": digest, "manifest_digest": manifest });
    let (status, entry) = approve(&world, "github", &both).await?;
    answers.add("its digest", (status, json!([entry["version"], entry["status"], entry["pending"]])));
    answers.add("once more", one_of(approve(&world, "github", &json!({})).await?));
    world.server.restart().await?;
    world.api = world.server.api()?;
    answers.add("after a start", (0, pending(&world, "github").await?));
    assert_snapshot!(answers, @r#"
    nothing waits: 409 "no version of this plugin waits for approval"
    no such plugin: 404 "no such plugin"
    grew: 0 ["1.0.0","needs_approval",null]
    after a start: 0 ["1.0.0","needs_approval","1.1.0",["tool `github_create_issue` has operation `issue.read` instead of `issue.write`","tool `github_update_issue` has operation `issue.read` instead of `issue.write`"]]
    admin: 403 "a root key is required"
    operator: 403 "a root key is required"
    another digest: 409 "the version that waits for approval has a different digest: `[digest]`; review the version again"
    no digest: 422 "/digest: `x` is not a valid digest: expected sha256: followed by 64 lower-case hex digits"
    another manifest: 409 "the version that waits for approval has a different manifest_digest: `[digest]`; review the version again"
    its digest: 200 ["1.1.0","loaded",null]
    once more: 409 "no version of this plugin waits for approval"
    after a start: 0 ["1.1.0","loaded",null,null]
    "#);
    Ok(())
}

/// A version that lacks the tool, between two versions that have the tool, does not hide the change of the tool's
/// operation.
#[tokio::test]
async fn a_tool_that_comes_back_milder_waits_too() -> Result<()> {
    let world = World::with(&["test-result"]).await?;
    let folder = world.server.plugins_dir().join("test-result");
    edit(&folder, |text| text.replace("name: test_result_run", "name: test_result_go"))?;
    assert_eq!(reloaded(&world, "test-result").await?[1], "loaded");
    edit(&folder, |text| {
        let text = text.replace("name: test_result_go", "name: test_result_run");
        text.replace("operation: result.run", "operation: result.read")
    })?;
    reloaded(&world, "test-result").await?;
    assert_snapshot!(snapshot(&[pending(&world, "test-result").await?]), @r#"["1.0.0","needs_approval","1.0.0",["tool `test_result_run` has operation `result.read` instead of `result.run`"]]"#);
    Ok(())
}

/// Even after an approval, a tool that lacks the parameter of a constrained dimension is denied. Every call of a
/// binding whose dimension was removed is denied as well.
#[tokio::test]
async fn constraints_hold_whatever_the_next_version_declares() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let folder = world.server.plugins_dir().join("github");
    let call = async |tool: &str, params: Value| -> Result<Value> {
        let answer = world.call(tool, &params).await?;
        let audit = world.audit_of(&answer).await?;
        Ok(json!([answer["status"], answer["code"], answer["message"], audit["rule"]]))
    };
    let mut told = vec![call("github_get_repo", json!({ "repo": "acme/site" })).await?];
    // The new tool has the same operation but lacks the parameter that the scope constrains. The version loads with a
    // warning, and the tool never runs.
    edit(&folder, |text| {
        let (head, tools) = text.split_once("  tools:\n").unwrap_or_default();
        let tool = "    - name: github_list_all\n      description: Lists every issue.\n      operation: issue.read\n      \
                    input_schema: { type: object, properties: { all: { type: boolean } } }\n";
        format!("{head}  tools:\n{tool}{tools}")
    })?;
    told.push(reloaded(&world, "github").await?);
    told.push(call("github_list_all", json!({ "all": true })).await?);
    edit(&folder, |text| text.replace("- key: repos", "- key: repositories"))?;
    told.push(reloaded(&world, "github").await?);
    ensure!(approve(&world, "github", &json!({})).await?.0 == 200);
    told.push(call("github_get_repo", json!({ "repo": "acme/site" })).await?);
    told.push(json!(lines(&world.github.take_requests(), TOKEN)));
    assert_snapshot!(snapshot(&told), @r#"
    ["success",null,null,null]
    ["1.0.0","loaded",null]
    ["scope_violation","scope","Scope violation: Repository (missing) is not authorized","scope.repos"]
    ["1.0.0","needs_approval",null]
    ["scope_violation","scope","Scope violation: this tool has no scope repos","scope.unknown_key"]
    ["GET /repos/acme/site (Bearer TOKEN)"]
    "#);
    Ok(())
}

/// A plugin whose folder cannot be read at a restart continues to serve the recorded version.
#[tokio::test]
async fn the_version_on_record_serves_when_the_folder_is_broken_at_a_start() -> Result<()> {
    let mut world = World::on(Server::prepare(&["test-result"])?).await?;
    world.grant_all("test-result").await?;
    fs::write(world.server.plugins_dir().join("test-result/plugin.wasm"), "no component")?;
    world.server.restart().await?;
    world.api = world.server.api()?;
    let (_, entry) = world.api.get("/api/plugins/test-result").await?;
    assert_eq!((&entry["status"], &entry["version"]), (&json!("failed"), &json!("1.0.0")), "{entry}");
    assert_eq!(world.call("test_result_run", &json!({ "mode": "ok" })).await?["status"], "success");
    Ok(())
}

fn one_of((status, body): (u16, Value)) -> (u16, Value) {
    (status, if body["detail"].is_null() { body } else { body["detail"].clone() })
}

/// A version that declares the secret as a plain field cannot read it, even after the version is approved and the
/// credential confirmed.
#[tokio::test]
async fn a_secret_stays_one_when_the_next_version_calls_it_plain() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let folder = world.server.plugins_dir().join("test-echo");
    edit(&folder, |text| {
        text.replace("      type: secret\n      required: true\n\n", "      type: string\n      required: true\n\n")
    })?;
    let mut told = vec![reloaded(&world, "test-echo").await?, pending(&world, "test-echo").await?];
    ensure!(approve(&world, "test-echo", &json!({})).await?.0 == 200);
    let echoed = async || world.call("test_echo_fetch", &json!({ "path": "/echo" })).await;
    for _ in 0..2 {
        let answer = echoed().await?.to_string();
        assert!(answer.contains("[redacted]") && !answer.contains(TOKEN), "{answer}");
        ensure!(confirm(&world, &bound).await?.0 == 200);
    }
    told.push(json!(lines(&world.github.take_requests(), TOKEN)));
    assert_snapshot!(snapshot(&told), @r#"
    ["1.0.0","needs_approval",null]
    ["1.0.0","needs_approval","1.0.0",["auth method `token`: field `access_token` is not secret"]]
    ["GET /echo (Bearer TOKEN)","GET /echo (Bearer TOKEN)"]
    "#);
    Ok(())
}
