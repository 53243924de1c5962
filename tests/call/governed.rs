//! The effects of permitted calls, the responses to rejected calls, and the audit rows of both kinds of calls.

use anyhow::{Context, Result, ensure};
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::{Value, json};
use support::TOKEN;

use crate::stable::{lines, stable};
use crate::world::{World, text};

/// Starts a world with a bot that may read and write issues of acme.
async fn triage() -> Result<World> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["issue.read", "issue.write"], &json!({ "repos": ["acme/*"] })).await?;
    Ok(world)
}

/// Returns the response, the requests that the upstream received, and the audit row with the kinds of its events.
async fn told(world: &World, tool: &str, params: &Value) -> Result<String> {
    let answer = world.call(tool, params).await?;
    let seen = lines(&world.github.take_requests(), TOKEN);
    let mut audit = world.audit_of(&answer).await?;
    let events = audit["events"].as_array().context("the call has no events")?.iter();
    audit["events"] = events.map(|event| event["kind"].clone()).collect();
    let told = stable(&json!({ "answer": answer, "upstream": seen, "audit": audit }));
    ensure!(!told.to_string().contains("ghp_canary"), "the token was not redacted: {told}");
    Ok(format!("{}\n{}\n{}", told["answer"], told["upstream"], told["audit"]))
}

#[tokio::test]
async fn a_permitted_read_goes_out_with_the_token() -> Result<()> {
    let world = triage().await?;
    assert_snapshot!(told(&world, "github_list_issues", &json!({ "repo": "acme/site" })).await?, @r#"
    {"request_id":"[id 1]","status":"success","data":[{"number":1,"title":"The home page is slow","state":"open","labels":[{"name":"bug"}],"body":null,"assignees":[],"user":{"login":"octocat"},"comments":0},{"number":3,"title":"Dark mode","state":"open","labels":[{"name":"feature"},{"name":"good first issue"}],"body":null,"assignees":[],"user":{"login":"octocat"},"comments":0}],"duration_ms":"[ms]"}
    ["GET /repos/acme/site/issues?state=open&per_page=30 (Bearer TOKEN)"]
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_list_issues","operation":"issue.read","plugin":"github","plugin_digest":"[digest]","status":"success","code":null,"message":null,"rule":null,"params":{"repo":"acme/site"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["started","finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_permitted_write_goes_out_with_the_token() -> Result<()> {
    let world = triage().await?;
    let params = json!({ "repo": "acme/site", "title": "Ümlaute & more", "body": "", "labels": ["bot"] });
    assert_snapshot!(told(&world, "github_create_issue", &params).await?, @r#"
    {"request_id":"[id 1]","status":"success","data":{"number":4,"title":"Ümlaute & more","state":"open","labels":[{"name":"bot"}],"body":null,"assignees":[],"user":{"login":"octocat"},"comments":0},"duration_ms":"[ms]"}
    ["POST /repos/acme/site/issues (Bearer TOKEN) {\"title\":\"Ümlaute & more\",\"labels\":[\"bot\"]}"]
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_create_issue","operation":"issue.write","plugin":"github","plugin_digest":"[digest]","status":"success","code":null,"message":null,"rule":null,"params":{"repo":"acme/site","title":"Ümlaute & more","body":"","labels":["bot"]},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["started","finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_role_refuses_before_anything_is_sent() -> Result<()> {
    let world = triage().await?;
    assert_snapshot!(told(&world, "github_get_repo", &json!({ "repo": "acme/site" })).await?, @r#"
    {"request_id":"[id 1]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'github_get_repo' is not available to this bot","duration_ms":"[ms]"}
    []
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_get_repo","operation":"repo.read","plugin":"github","plugin_digest":"[digest]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'github_get_repo' is not available to this bot","rule":"role.allowed_operations","params":{"repo":"acme/site"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_scope_refuses_before_anything_is_sent() -> Result<()> {
    let world = triage().await?;
    assert_snapshot!(told(&world, "github_list_issues", &json!({ "repo": "other/secret" })).await?, @r#"
    {"request_id":"[id 1]","status":"scope_violation","code":"scope","message":"Scope violation: Repository other/secret is not authorized","duration_ms":"[ms]"}
    []
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_list_issues","operation":"issue.read","plugin":"github","plugin_digest":"[digest]","status":"scope_violation","code":"scope","message":"Scope violation: Repository other/secret is not authorized","rule":"scope.repos","params":{"repo":"other/secret"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn every_fault_of_bad_input_is_named_by_its_pointer() -> Result<()> {
    let world = triage().await?;
    let params = json!({ "repo": 5, "labels": ["a", 7], "colour": "red", "a/b~c": 1 });
    assert_snapshot!(told(&world, "github_create_issue", &params).await?, @r#"
    {"request_id":"[id 1]","status":"error","code":"invalid_params","message":"Invalid parameters: /colour: undeclared parameter; /a~1b~0c: undeclared parameter; /title: required parameter is missing; /repo: 5 is not of type \"string\"; /labels/1: 7 is not of type \"string\"","duration_ms":"[ms]"}
    []
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_create_issue","operation":"issue.write","plugin":"github","plugin_digest":"[digest]","status":"error","code":"invalid_params","message":"Invalid parameters: /colour: undeclared parameter; /a~1b~0c: undeclared parameter; /title: required parameter is missing; /repo: 5 is not of type \"string\"; /labels/1: 7 is not of type \"string\"","rule":"input","params":{"repo":5,"labels":["a",7],"colour":"red","a/b~c":1},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn parameters_that_are_no_object_or_too_large_are_bad_input() -> Result<()> {
    let world = triage().await?;
    let mut answers = Vec::new();
    for params in [json!([]), json!("acme/site"), json!(null), json!({ "repo": "x".repeat(1 << 20) })] {
        let answer = world.call("github_list_issues", &params).await?;
        answers.push(json!([answer["status"], answer["code"], answer["message"]]).to_string());
    }
    assert_snapshot!(answers.join("\n"), @r#"
    ["error","invalid_params","Invalid parameters: expected an object"]
    ["error","invalid_params","Invalid parameters: expected an object"]
    ["error","invalid_params","Invalid parameters: expected an object"]
    ["error","invalid_params","Invalid parameters: the parameters have 1048587 bytes; at most 1048576 are allowed"]
    "#);
    Ok(())
}

#[tokio::test]
async fn a_tool_that_is_hidden_and_one_that_is_not_there_get_the_same_answer() -> Result<()> {
    let world = World::with(&["github", "test-echo"]).await?;
    world.grant("github", &["issue.read"], &json!({})).await?;
    let own = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let params = json!({ "repo": "acme/site" });
    let mut told = Vec::new();
    // A tool hidden by the role, a tool of a type that is not bound, a tool that no plugin has, and an invalid tool
    // name.
    for tool in ["github_get_repo", "test_echo_run", "no_such_tool", "No-Such-Tool"] {
        let call = own.call(&world.bot, tool, &params).await?;
        let check = own.check(&world.bot, tool, &params).await?;
        told.push(format!("{}\n{check}", stable(&call)).replace(tool, "TOOL"));
    }
    told.dedup();
    assert_snapshot!(told.join("\n"), @r#"
    {"request_id":"[id 1]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'TOOL' is not available to this bot","duration_ms":"[ms]"}
    {"decision":"deny","message":"Permission denied: tool 'TOOL' is not available to this bot"}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_binding_that_does_not_count_grants_nothing() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let bound = world.grant_all("test-echo").await?;
    let mut told = Vec::new();
    for change in
        [json!({ "enabled": false }), json!({ "enabled": true }), json!({ "expires_at": "2020-01-01T00:00:00.000Z" })]
    {
        world.rebind(&bound, &change).await?;
        let answer = world.call("test_echo_run", &json!({})).await?;
        told.push(format!(
            "{change}: {} tools, {} {}",
            world.tools().await?.len(),
            answer["status"],
            answer["message"]
        ));
    }
    assert_snapshot!(told.join("\n"), @r#"
    {"enabled":false}: 0 tools, "permission_denied" "Permission denied: tool 'test_echo_run' is not available to this bot"
    {"enabled":true}: 8 tools, "success" null
    {"expires_at":"2020-01-01T00:00:00.000Z"}: 0 tools, "permission_denied" "Permission denied: tool 'test_echo_run' is not available to this bot"
    "#);
    Ok(())
}

#[tokio::test]
async fn the_list_of_tools_is_what_the_lists_of_a_role_permit() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant("github", &["*"], &json!({})).await?;
    let mut told = Vec::new();
    for permissions in [
        json!({ "allowed_operations": ["issue.*"] }),
        json!({ "allowed_operations": ["issue.read", "repo.read"] }),
        json!({ "allowed_tools": ["github_*_comment*"] }),
        json!({ "allowed_operations": ["issue.*"], "allowed_tools": ["github_list_*"] }),
        json!({ "allowed_operations": [] }),
        json!({ "allowed_tools": ["*"], "allowed_operations": [] }),
    ] {
        world.rebind(&bound, &json!({ "permissions": permissions })).await?;
        told.push(format!("{permissions}: {}", world.tools().await?.join(" ")));
    }
    // A binding that lists neither operations nor tools permits no tool.
    world.rebind(&bound, &json!({ "role_id": null, "permissions": {} })).await?;
    told.push(format!("neither list: {}", world.tools().await?.join(" ")));
    assert_snapshot!(told.join("\n"), @r#"
    {"allowed_operations":["issue.*"]}: github_add_comment github_add_labels github_create_issue github_list_comments github_list_issues github_remove_labels github_update_issue
    {"allowed_operations":["issue.read","repo.read"]}: github_get_repo github_list_issues
    {"allowed_tools":["github_*_comment*"]}: github_add_comment github_list_comments
    {"allowed_operations":["issue.*"],"allowed_tools":["github_list_*"]}: github_list_comments github_list_issues
    {"allowed_operations":[]}: 
    {"allowed_tools":["*"],"allowed_operations":[]}: 
    neither list:
    "#);
    Ok(())
}

/// The comments have a typical size, and all of them together exceed the limit of a result.
#[tokio::test]
async fn comments_come_in_pages_of_which_none_is_too_large() -> Result<()> {
    const COMMENT_BYTES: usize = 2_400;
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    world.github.add_comments("acme/site", 1, 1_000, COMMENT_BYTES);
    let mut told = Vec::new();
    for page in [json!({}), json!({ "page": 10 }), json!({ "page": 11 }), json!({ "page": 334, "per_page": 3 })] {
        let mut params = json!({ "repo": "acme/site", "issue_number": 1 });
        params.as_object_mut().context("an object")?.extend(page.as_object().context("an object")?.clone());
        let answer = world.call("github_list_comments", &params).await?;
        let comments = answer["data"].as_array().with_context(|| format!("comments are a list: {answer}"))?;
        let ends =
            [comments.first(), comments.last()].map(|end| end.map_or_else(|| json!(null), |end| end["id"].clone()));
        told.push(format!("{} comments, from {} to {}", comments.len(), ends[0], ends[1]));
        told.extend(lines(&world.github.take_requests(), TOKEN));
    }
    assert_snapshot!(told.join("\n"), @r"
    100 comments, from 1001 to 1100
    GET /repos/acme/site/issues/1/comments?per_page=100 (Bearer TOKEN)
    100 comments, from 1901 to 2000
    GET /repos/acme/site/issues/1/comments?per_page=100&page=10 (Bearer TOKEN)
    0 comments, from null to null
    GET /repos/acme/site/issues/1/comments?per_page=100&page=11 (Bearer TOKEN)
    1 comments, from 2000 to 2000
    GET /repos/acme/site/issues/1/comments?per_page=3&page=334 (Bearer TOKEN)
    ");

    // The comments have the maximum size that GitHub accepts.
    world.github.add_comments("acme/site", 3, 100, 65_536);
    let many = json!({ "repo": "acme/site", "issue_number": 3 });
    let answer = world.call("github_list_comments", &many).await?;
    assert_eq!(
        [text(&answer["code"]), text(&answer["message"])],
        ["plugin", "The page exceeds 1 MiB; request fewer items with `per_page`"]
    );
    let few = json!({ "repo": "acme/site", "issue_number": 3, "per_page": 10 });
    let answer = world.call("github_list_comments", &few).await?;
    assert_eq!(answer["data"].as_array().map(Vec::len), Some(10), "{}", text(&answer["message"]));
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_upstream_is_told_in_its_words() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    assert_snapshot!(told(&world, "github_get_repo", &json!({ "repo": "acme/none" })).await?, @r#"
    {"request_id":"[id 1]","status":"error","code":"plugin","message":"GitHub API error: 404 - {\"message\":\"Not Found\",\"documentation_url\":\"https://docs.github.com/rest\"}","duration_ms":"[ms]"}
    ["GET /repos/acme/none (Bearer TOKEN)"]
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_get_repo","operation":"repo.read","plugin":"github","plugin_digest":"[digest]","status":"error","code":"plugin","message":"GitHub API error: 404 - {\"message\":\"Not Found\",\"documentation_url\":\"https://docs.github.com/rest\"}","rule":null,"params":{"repo":"acme/none"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["started","finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn an_upstream_that_is_not_there_and_a_credential_that_is_not_there_have_codes_of_their_own() -> Result<()> {
    let world = World::with(&["github"]).await?;
    let bound = world.grant_all("github").await?;
    let resource = format!("/api/resources/{}", bound.resource);
    let params = json!({ "repo": "acme/site" });
    ensure!(world.api.delete(&format!("{resource}/credential")).await?.0 == 204);
    let without = told(&world, "github_get_repo", &params).await?;

    // The socket is held until the end of the test, so that no other process can listen on the port.
    let held = tokio::net::TcpSocket::new_v4()?;
    held.bind(([127, 0, 0, 1], 0).into())?;
    let api_base = format!("http://{}", held.local_addr()?);
    let (status, body) = world.api.patch(&resource, &json!({ "config": { "api_base": api_base } })).await?;
    ensure!(status == 200, "{body}");
    world.api.token(&bound.resource, TOKEN).await?;
    let nobody = told(&world, "github_get_repo", &params).await?;
    assert_snapshot!([without, nobody].join("\n\n"), @r#"
    {"request_id":"[id 1]","status":"error","code":"unauthenticated","message":"GitHub request error: no credential is stored for this resource","duration_ms":"[ms]"}
    []
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_get_repo","operation":"repo.read","plugin":"github","plugin_digest":"[digest]","status":"error","code":"unauthenticated","message":"GitHub request error: no credential is stored for this resource","rule":null,"params":{"repo":"acme/site"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["finished"]}

    {"request_id":"[id 1]","status":"error","code":"upstream","message":"GitHub request error: no connection to `127.0.0.1` could be established","duration_ms":"[ms]"}
    []
    {"request_id":"[id 1]","bot_id":"[id 2]","task_id":"[id 1]","resource_id":"[id 3]","tool":"github_get_repo","operation":"repo.read","plugin":"github","plugin_digest":"[digest]","status":"error","code":"upstream","message":"GitHub request error: no connection to `127.0.0.1` could be established","rule":null,"params":{"repo":"acme/site"},"duration_ms":"[ms]","started_at":"[time]","finished_at":"[time]","parent_request_id":null,"delegation":null,"events":["started","finished"]}
    "#);
    Ok(())
}

#[tokio::test]
async fn the_plugin_sees_the_whole_call_and_nothing_secret() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["*"], &json!({ "repos": ["acme/*"] })).await?;
    let answer = world.call("test_echo_run", &json!({ "repo": "acme/site", "any": [1.50, null] })).await?;
    assert_json_snapshot!(stable(&answer["data"]), @r#"
    {
      "request_id": "[id 1]",
      "bot_id": "[id 2]",
      "task_id": "[id 1]",
      "operation": "echo.read",
      "tool_name": "test_echo_run",
      "params": {
        "repo": "acme/site",
        "any": [
          1.5,
          null
        ]
      },
      "scope": [
        {
          "repos": [
            "acme/*"
          ]
        }
      ],
      "resource_id": "[id 3]",
      "resource_config": {
        "api_base": "http://[upstream]",
        "region": "eu"
      },
      "delegate": null,
      "locale": "en-US",
      "deadline_ms": 30000,
      "context": {}
    }
    "#);
    Ok(())
}

#[tokio::test]
async fn defaults_of_the_schema_are_filled_in() -> Result<()> {
    let world = triage().await?;
    for params in [json!({ "repo": "acme/site" }), json!({ "repo": "acme/site", "state": "all", "per_page": 1 })] {
        world.call("github_list_issues", &params).await?;
    }
    assert_snapshot!(lines(&world.github.take_requests(), TOKEN).join("\n"), @r"
    GET /repos/acme/site/issues?state=open&per_page=30 (Bearer TOKEN)
    GET /repos/acme/site/issues?state=all&per_page=1 (Bearer TOKEN)
    ");
    Ok(())
}

#[tokio::test]
async fn an_answer_that_breaks_its_promise_is_delivered_and_flagged() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let mut told = Vec::new();
    for tool in ["test_echo_run", "test_echo_mismatch"] {
        let answer = world.call(tool, &json!({ "repo": "acme/site" })).await?;
        let flags = &world.audit_of(&answer).await?["events"][0]["flags"];
        told.push(format!("{tool}: {} {} {flags}", answer["status"], answer["data"]["params"]));
    }
    assert_snapshot!(told.join("\n"), @r#"
    test_echo_run: "success" {"repo":"acme/site"} null
    test_echo_mismatch: "success" {"repo":"acme/site"} "output_mismatch"
    "#);
    Ok(())
}

#[tokio::test]
async fn an_operation_without_a_handler_is_an_error_of_the_plugin() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    assert_snapshot!(stable(&world.call("test_echo_unhandled", &json!({})).await?), @r#"{"request_id":"[id 1]","status":"error","code":"plugin","message":"Unknown operation: nothing.run","duration_ms":"[ms]"}"#);
    Ok(())
}

#[tokio::test]
async fn calls_of_one_task_carry_its_id() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let mut told = Vec::new();
    for body in [json!({ "params": {}, "task_id": "task-7" }), json!({ "params": {} })] {
        let (status, answer) = world.api.post(&path, &body).await?;
        ensure!(status == 200, "{answer}");
        let audit = world.audit_of(&answer).await?;
        let ids = json!([answer["request_id"], answer["data"]["task_id"], audit["task_id"]]);
        told.push(stable(&ids).to_string());
    }
    assert_snapshot!(told.join("\n"), @r#"
    ["[id 1]","task-7","task-7"]
    ["[id 1]","[id 1]","[id 1]"]
    "#);
    Ok(())
}

/// Starts a world with a bot that has two resources of one type. The resources `one` and `two` have different
/// configurations.
async fn two_resources() -> Result<(World, [String; 2])> {
    let world = World::with(&["test-echo"]).await?;
    let role = world.api.role("all", &["*"]).await?;
    let mut ids = [const { String::new() }; 2];
    for (id, name) in ids.iter_mut().zip(["one", "two"]) {
        let api_base = format!("{}/{name}", world.github.url());
        *id = world.api.resource("test-echo", name, &api_base).await?;
        world.api.bind(&world.bot, id, &role, &json!({})).await?;
    }
    Ok((world, ids))
}

#[tokio::test]
async fn a_call_says_which_of_two_resources_it_means() -> Result<()> {
    let (world, [one, two]) = two_resources().await?;
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let mut told = Vec::new();
    for body in [
        json!({ "resource_id": one }),
        json!({ "resource_id": two }),
        json!({ "params": { "_resource": "one" } }),
        json!({ "params": { "_resource": "two", "repo": "acme/site" } }),
        json!({ "params": { "_resource": "one" }, "resource_id": one }),
        json!({ "params": { "_resource": "one" }, "resource_id": two }),
        json!({}),
        json!({ "params": { "_resource": "three" } }),
        json!({ "params": { "_resource": 1 } }),
        json!({ "resource_id": "019a0000-0000-7000-8000-000000000000" }),
    ] {
        let (status, answer) = world.api.post(&path, &body).await?;
        ensure!(status == 200, "{answer}");
        let base =
            text(&answer["data"]["resource_config"]["api_base"]).rsplit('/').next().unwrap_or_default().to_owned();
        let audit = world.audit_of(&answer).await?;
        let at = [(one.as_str(), "one"), (two.as_str(), "two")].into_iter().find(|(id, _)| audit["resource_id"] == *id);
        let body = body.to_string().replace(&one, "ONE").replace(&two, "TWO");
        let line = [&answer["status"], &answer["code"], &answer["message"], &answer["data"]["params"]];
        let line: Vec<String> = line.into_iter().filter(|part| !part.is_null()).map(Value::to_string).collect();
        told.push(format!("{body}\n    {} {base} (audit: {})", line.join(" "), at.map_or("none", |(_, name)| name)));
    }
    assert_snapshot!(told.join("\n"), @r#"
    {"resource_id":"ONE"}
        "success" {} one (audit: one)
    {"resource_id":"TWO"}
        "success" {} two (audit: two)
    {"params":{"_resource":"one"}}
        "success" {} one (audit: one)
    {"params":{"_resource":"two","repo":"acme/site"}}
        "success" {"repo":"acme/site"} two (audit: two)
    {"params":{"_resource":"one"},"resource_id":"ONE"}
        "success" {} one (audit: one)
    {"params":{"_resource":"one"},"resource_id":"TWO"}
        "error" "invalid_params" "Invalid parameters: /_resource: expected one of `two`"  (audit: two)
    {}
        "error" "invalid_params" "Invalid parameters: /_resource: `test_echo_run` is available through 2 resources; set `_resource` to one of `one`, `two`, or send the resource's id as `resource_id`"  (audit: none)
    {"params":{"_resource":"three"}}
        "error" "invalid_params" "Invalid parameters: /_resource: expected one of `one`, `two`"  (audit: none)
    {"params":{"_resource":1}}
        "error" "invalid_params" "Invalid parameters: /_resource: expected a string"  (audit: none)
    {"resource_id":"019a0000-0000-7000-8000-000000000000"}
        "permission_denied" "denied" "Permission denied: tool 'test_echo_run' is not available to this bot"  (audit: none)
    "#);
    Ok(())
}

#[tokio::test]
async fn the_schema_of_a_tool_of_two_resources_asks_for_one_of_them() -> Result<()> {
    let (world, _) = two_resources().await?;
    let (_, list) = world.api.get(&format!("/api/bots/{}/tools", world.bot)).await?;
    let tools = list["items"].as_array().context("a list has items")?;
    let tool = tools.iter().find(|tool| tool["name"] == "test_echo_fetch").context("it is listed, once")?;
    let schema = &tool["input_schema"];
    let told = json!([tool["resources"], schema["properties"]["_resource"], schema["required"]]);
    assert_json_snapshot!(stable(&told), @r#"
    [
      [
        {
          "id": "[id 1]",
          "name": "one"
        },
        {
          "id": "[id 2]",
          "name": "two"
        }
      ],
      {
        "type": "string",
        "enum": [
          "one",
          "two"
        ],
        "description": "The resource to use"
      },
      [
        "path",
        "_resource"
      ]
    ]
    "#);
    Ok(())
}

/// Denials by a role, by a binding and by a link can be found in the audit by operation and plugin, and also by
/// resource if the call can refer to one resource only.
#[tokio::test]
async fn denials_are_recorded_with_operation_plugin_and_resource() -> Result<()> {
    let world = World::with(&["github", "test-echo"]).await?;
    let bound = world.grant("github", &["repo.read"], &json!({})).await?;
    let recorded = async |tool: &str| {
        let answer = world.call(tool, &json!({ "owner": "acme", "repo": "site" })).await?;
        assert_eq!(answer["status"], "permission_denied", "{answer}");
        let audit = world.audit_of(&answer).await?;
        anyhow::Ok((audit["operation"].clone(), audit["plugin"].clone(), audit["resource_id"].clone()))
    };
    // The role does not permit the operation of this tool.
    let denied = (json!("issue.write"), json!("github"), json!(bound.resource));
    assert_eq!(recorded("github_create_issue").await?, denied);
    // The bot has no binding to a resource of this type.
    assert_eq!(recorded("test_echo_run").await?, (json!("echo.read"), json!("test-echo"), Value::Null));
    // The tool does not exist.
    assert_eq!(recorded("no_such_tool").await?, (Value::Null, Value::Null, Value::Null));
    let (_, found) = world.api.get("/api/audit?status=permission_denied&tool=github_create_issue").await?;
    assert_eq!(found["items"][0]["operation"], "issue.write");
    Ok(())
}
