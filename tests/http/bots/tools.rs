//! `/api/bots/{id}/tools`: the list of tools, the call and the access check.

use anyhow::Result;
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::TOKEN;

use crate::http::roles::faults;
use crate::http::{Answers, one, send};
use crate::world::World;

#[tokio::test]
async fn a_bot_sees_what_it_may_call() -> Result<()> {
    let world = World::with(&["github", "test-echo"]).await?;
    let tools = format!("/api/bots/{}/tools", world.bot);
    let mut answers = Answers::default();
    answers.add("nothing bound", world.api.get(&tools).await?);
    world.grant("github", &["repo.*", "issue.label.write"], &json!({ "repos": ["acme/*"] })).await?;
    answers.add("two operations", world.api.get(&tools).await?);
    answers.add("for a model", world.api.get(&format!("{tools}?format=openai")).await?);
    answers.add("for nobody", faults(world.api.get(&format!("{tools}?format=xml")).await?));
    let request = world.api.request(Method::GET, &tools).header("Accept-Language", "fr, zh-CN;q=0.8, en;q=0.1");
    let (status, _, body) = send(request).await?;
    answers.add("in Chinese", (status, descriptions(&body)));
    assert_snapshot!(answers, @r#"
    nothing bound: 200 {"items":[]}
    two operations: 200 {"items":[{"name":"github_add_labels","description":"Add labels to a GitHub issue.","input_schema":{"type":"object","properties":{"repo":{"type":"string"},"issue_number":{"type":"integer"},"labels":{"type":"array","items":{"type":"string"}}},"required":["repo","issue_number","labels"]},"output_schema":null,"effect":"idempotent","result":"json","operation":"issue.label.write","asks":false,"resource_type":"github","resources":[{"id":"[id 1]","name":"github-of-[id 2]"}],"cost":null},{"name":"github_get_repo","description":"Get information about a GitHub repository.","input_schema":{"type":"object","properties":{"repo":{"type":"string"}},"required":["repo"]},"output_schema":null,"effect":"read","result":"json","operation":"repo.read","asks":false,"resource_type":"github","resources":[{"id":"[id 1]","name":"github-of-[id 2]"}],"cost":null},{"name":"github_remove_labels","description":"Remove labels from a GitHub issue.","input_schema":{"type":"object","properties":{"repo":{"type":"string"},"issue_number":{"type":"integer"},"labels":{"type":"array","items":{"type":"string"}}},"required":["repo","issue_number","labels"]},"output_schema":null,"effect":"idempotent","result":"json","operation":"issue.label.write","asks":false,"resource_type":"github","resources":[{"id":"[id 1]","name":"github-of-[id 2]"}],"cost":null}]}
    for a model: 200 {"items":[{"type":"function","function":{"name":"github_add_labels","description":"Add labels to a GitHub issue.","parameters":{"type":"object","properties":{"repo":{"type":"string"},"issue_number":{"type":"integer"},"labels":{"type":"array","items":{"type":"string"}}},"required":["repo","issue_number","labels"]}}},{"type":"function","function":{"name":"github_get_repo","description":"Get information about a GitHub repository.","parameters":{"type":"object","properties":{"repo":{"type":"string"}},"required":["repo"]}}},{"type":"function","function":{"name":"github_remove_labels","description":"Remove labels from a GitHub issue.","parameters":{"type":"object","properties":{"repo":{"type":"string"},"issue_number":{"type":"integer"},"labels":{"type":"array","items":{"type":"string"}}},"required":["repo","issue_number","labels"]}}}]}
    for nobody: 422 [{"path":"format","message":"expected `openai`, or omit the parameter"}]
    in Chinese: 200 ["为 GitHub Issue 添加标签。","获取 GitHub 仓库的信息。","移除 GitHub Issue 的标签。"]
    "#);
    Ok(())
}

fn descriptions(list: &Value) -> Value {
    list["items"].as_array().into_iter().flatten().map(|tool| &tool["description"]).cloned().collect()
}

/// The bot has two resources of one type. An HTTP request selects one by id in a field, or by name in a parameter, as
/// the LLM does.
#[tokio::test]
async fn a_tool_of_two_resources_is_called_through_the_one_that_is_named() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let role = world.api.role("runner", &["echo.read"]).await?;
    let mut resources = Vec::new();
    for name in ["first", "second"] {
        let resource = world.api.resource("test-echo", name, &world.github.url()).await?;
        world.api.bind(&world.bot, &resource, &role, &json!({ "repos": [format!("{name}/*")] })).await?;
        resources.push(resource);
    }
    let tools = format!("/api/bots/{}/tools", world.bot);
    let mut answers = Answers::default();
    for query in ["", "?format=openai"] {
        let (status, mut list) = world.api.get(&format!("{tools}{query}")).await?;
        answers.add(&format!("the list{query}"), (status, list["items"][0].take()));
    }
    let call = format!("{tools}/test_echo_run/call");
    for (label, body) in [
        ("none", json!({ "params": { "repo": "second/x" } })),
        ("by name", json!({ "params": { "repo": "second/x", "_resource": "second" } })),
        ("by id", json!({ "params": { "repo": "second/x" }, "resource_id": resources[1] })),
        ("the one that does not permit it", json!({ "params": { "repo": "second/x" }, "resource_id": resources[0] })),
        ("both, at odds", json!({ "params": { "_resource": "first" }, "resource_id": resources[1] })),
        ("unknown name", json!({ "params": { "_resource": "third" } })),
        ("no name", json!({ "params": { "_resource": 2 } })),
        ("unknown id", json!({ "resource_id": world.bot })),
    ] {
        let (status, mut answer) = world.api.post(&call, &body).await?;
        answer["data"] = json!([answer["data"]["params"], answer["data"]["resource_id"]]);
        answers.add(label, (status, answer));
    }
    assert_snapshot!(answers, @r#"
    the list: 200 {"name":"test_echo_again","description":"Returns its parameters. This tool shares an operation with test_echo_run.","input_schema":{"type":"object","properties":{"repo":{"type":"string","description":"A parameter of the dimension repos"},"owner_repo":{"type":"string","description":"Another parameter of the dimension repos"},"file":{"type":"string","description":"A parameter of the dimension paths"},"options":{"type":"object","properties":{"dir":{"type":"string","description":"Another parameter of the dimension paths"}}},"labels":{"type":"array","items":{"type":"string"},"description":"A parameter of the dimension labels, which checks each item"},"kind":{"type":"string","description":"A parameter of the dimension kinds, which applies to test_echo_write"},"any":{"description":"Any value"},"_resource":{"type":"string","enum":["first","second"],"description":"The resource to use"}},"required":["_resource"]},"output_schema":null,"effect":"write","result":"json","operation":"echo.read","asks":false,"resource_type":"test-echo","resources":[{"id":"[id 1]","name":"first"},{"id":"[id 2]","name":"second"}],"cost":null}
    the list?format=openai: 200 {"type":"function","function":{"name":"test_echo_again","description":"Returns its parameters. This tool shares an operation with test_echo_run.","parameters":{"type":"object","properties":{"repo":{"type":"string","description":"A parameter of the dimension repos"},"owner_repo":{"type":"string","description":"Another parameter of the dimension repos"},"file":{"type":"string","description":"A parameter of the dimension paths"},"options":{"type":"object","properties":{"dir":{"type":"string","description":"Another parameter of the dimension paths"}}},"labels":{"type":"array","items":{"type":"string"},"description":"A parameter of the dimension labels, which checks each item"},"kind":{"type":"string","description":"A parameter of the dimension kinds, which applies to test_echo_write"},"any":{"description":"Any value"},"_resource":{"type":"string","enum":["first","second"],"description":"The resource to use"}},"required":["_resource"]}}}
    none: 200 {"request_id":"[id 3]","status":"error","code":"invalid_params","message":"Invalid parameters: /_resource: `test_echo_run` is available through 2 resources; set `_resource` to one of `first`, `second`, or send the resource's id as `resource_id`","duration_ms":"[ms]","data":[null,null]}
    by name: 200 {"request_id":"[id 4]","status":"success","data":[{"repo":"second/x"},"[id 2]"],"duration_ms":"[ms]"}
    by id: 200 {"request_id":"[id 5]","status":"success","data":[{"repo":"second/x"},"[id 2]"],"duration_ms":"[ms]"}
    the one that does not permit it: 200 {"request_id":"[id 6]","status":"scope_violation","code":"scope","message":"Scope violation: Repository second/x is not authorized","duration_ms":"[ms]","data":[null,null]}
    both, at odds: 200 {"request_id":"[id 7]","status":"error","code":"invalid_params","message":"Invalid parameters: /_resource: expected one of `second`","duration_ms":"[ms]","data":[null,null]}
    unknown name: 200 {"request_id":"[id 8]","status":"error","code":"invalid_params","message":"Invalid parameters: /_resource: expected one of `first`, `second`","duration_ms":"[ms]","data":[null,null]}
    no name: 200 {"request_id":"[id 9]","status":"error","code":"invalid_params","message":"Invalid parameters: /_resource: expected a string","duration_ms":"[ms]","data":[null,null]}
    unknown id: 200 {"request_id":"[id 10]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'test_echo_run' is not available to this bot","duration_ms":"[ms]","data":[null,null]}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_call_answers_200_whatever_its_status() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["echo.read"], &json!({ "repos": ["acme/*"] })).await?;
    let call = |tool: &str| format!("/api/bots/{}/tools/{tool}/call", world.bot);
    let mut answers = Answers::default();
    for (tool, body) in [
        ("test_echo_run", json!({ "params": { "repo": "acme/site" }, "task_id": "t1" })),
        ("test_echo_run", json!({ "params": { "repo": "other/site" } })),
        ("test_echo_run", json!({})),
        ("test_echo_run", json!({ "params": null })),
        ("test_echo_run", json!({ "params": ["repo"] })),
        ("test_echo_run", json!({ "params": { "repo": 5, "options": { "dir": [] }, "colour": 1 } })),
        ("test_echo_write", json!({ "params": {} })),
        ("no_such_tool", json!({ "params": {} })),
        ("..%2f..%2fx%00", json!({ "params": {} })),
    ] {
        let (status, mut answer) = world.api.post(&call(tool), &body).await?;
        if !answer["data"].is_null() {
            answer["data"] = answer["data"]["params"].take();
        }
        answers.add(&format!("{tool} {body}"), (status, answer));
    }
    for body in [
        json!({ "parameters": {} }),
        json!({ "task_id": "" }),
        json!({ "task_id": "t".repeat(257), "chat": { "app_id": "", "user_id": "u", "chat_id": "c" } }),
        json!({ "chat": { "app_id": "a", "user_id": "u" } }),
        json!({ "chat": { "app_id": "a", "user_id": "u", "chat_id": "c", "more": 1 } }),
        json!({ "resource_id": "first" }),
        json!([]),
    ] {
        let label = body.to_string().replace(&"t".repeat(257), "t…");
        answers.add(&label, faults(world.api.post(&call("test_echo_run"), &body).await?));
    }
    assert_snapshot!(answers, @r#"
    test_echo_run {"params":{"repo":"acme/site"},"task_id":"t1"}: 200 {"request_id":"[id 1]","status":"success","data":{"repo":"acme/site"},"duration_ms":"[ms]"}
    test_echo_run {"params":{"repo":"other/site"}}: 200 {"request_id":"[id 2]","status":"scope_violation","code":"scope","message":"Scope violation: Repository other/site is not authorized","duration_ms":"[ms]"}
    test_echo_run {}: 200 {"request_id":"[id 3]","status":"scope_violation","code":"scope","message":"Scope violation: Repository (missing) is not authorized","duration_ms":"[ms]"}
    test_echo_run {"params":null}: 200 {"request_id":"[id 4]","status":"error","code":"invalid_params","message":"Invalid parameters: expected an object","duration_ms":"[ms]"}
    test_echo_run {"params":["repo"]}: 200 {"request_id":"[id 5]","status":"error","code":"invalid_params","message":"Invalid parameters: expected an object","duration_ms":"[ms]"}
    test_echo_run {"params":{"repo":5,"options":{"dir":[]},"colour":1}}: 200 {"request_id":"[id 6]","status":"error","code":"invalid_params","message":"Invalid parameters: /colour: undeclared parameter; /repo: 5 is not of type \"string\"; /options/dir: the value is not of type \"string\"","duration_ms":"[ms]"}
    test_echo_write {"params":{}}: 200 {"request_id":"[id 7]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'test_echo_write' is not available to this bot","duration_ms":"[ms]"}
    no_such_tool {"params":{}}: 200 {"request_id":"[id 8]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'no_such_tool' is not available to this bot","duration_ms":"[ms]"}
    ..%2f..%2fx%00 {"params":{}}: 200 {"request_id":"[id 9]","status":"permission_denied","code":"denied","message":"Permission denied: tool '../../x\\0' is not available to this bot","duration_ms":"[ms]"}
    {"parameters":{}}: 422 [{"path":"/parameters","message":"unknown field `parameters`, expected one of `params`, `task_id`, `resource_id`, `chat`, `wait_for_approval_s`"}]
    {"task_id":""}: 422 [{"path":"/task_id","message":"must not be empty"}]
    {"task_id":"t…","chat":{"app_id":"","user_id":"u","chat_id":"c"}}: 422 [{"path":"/task_id","message":"must have at most 256 characters"},{"path":"/chat/app_id","message":"must be 1 to 256 bytes long and must not contain control characters"}]
    {"chat":{"app_id":"a","user_id":"u"}}: 422 [{"path":"/chat/chat_id","message":"required field is missing"}]
    {"chat":{"app_id":"a","user_id":"u","chat_id":"c","more":1}}: 422 [{"path":"/chat/more","message":"unknown field `more`, expected one of `app_id`, `user_id`, `chat_id`"}]
    {"resource_id":"first"}: 422 [{"path":"/resource_id","message":"`first` is not a valid resource id: expected a UUID in lower case with hyphens"}]
    []: 422 [{"path":"","message":"expected a JSON object"}]
    "#);
    Ok(())
}

/// A key that may change the rules receives the rule that rejected the call. A bot key receives only what the bot
/// itself would see.
#[tokio::test]
async fn a_check_tells_a_bot_less_than_an_operator_and_runs_nothing() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant("test-echo", &["echo.read", "fetch.run"], &json!({ "repos": ["acme/*"] })).await?;
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let check = |tool: &str| format!("/api/bots/{}/tools/{tool}/check", world.bot);
    let mut answers = Answers::default();
    for (tool, params) in [
        ("test_echo_run", json!({ "repo": "acme/site" })),
        ("test_echo_run", json!({ "repo": "other/site" })),
        ("test_echo_run", json!({ "repo": 5 })),
        ("test_echo_write", json!({ "repo": "acme/site" })),
        ("test_echo_fetch", json!({ "path": "/echo" })),
        ("no_such_tool", json!({})),
    ] {
        for (who, api) in [("operator", &operator), ("bot", &bot)] {
            let answer = api.post(&check(tool), &json!({ "params": params })).await?;
            answers.add(&format!("{tool} {params}, {who}"), answer);
        }
    }
    answers.add("unknown field", faults(bot.post(&check("test_echo_run"), &json!({ "task_id": "t" })).await?));
    assert_snapshot!(answers, @r#"
    test_echo_run {"repo":"acme/site"}, operator: 200 {"decision":"allow","message":null,"rule":null,"reason":null,"smallest_change":null}
    test_echo_run {"repo":"acme/site"}, bot: 200 {"decision":"allow","message":null}
    test_echo_run {"repo":"other/site"}, operator: 200 {"decision":"deny","message":"Scope violation: Repository other/site is not authorized","rule":"scope.repos","reason":"value `other/site` does not match any entry in scope_constraints.repos of the binding","smallest_change":"add `other/site` to scope_constraints.repos of the binding","changes":[{"action":"add","holder":{"kind":"binding","id":"[id 1]","bots":[{"id":"[id 2]","name":"tester"}]},"field":"scope_constraints.repos","entry":"other/site"}]}
    test_echo_run {"repo":"other/site"}, bot: 200 {"decision":"deny","message":"Scope violation: Repository other/site is not authorized"}
    test_echo_run {"repo":5}, operator: 200 {"decision":"deny","message":"Invalid parameters: /repo: 5 is not of type \"string\"","rule":"input","reason":"the parameters do not satisfy the tool's `input_schema`","smallest_change":null}
    test_echo_run {"repo":5}, bot: 200 {"decision":"deny","message":"Invalid parameters: /repo: 5 is not of type \"string\""}
    test_echo_write {"repo":"acme/site"}, operator: 200 {"decision":"deny","message":"Permission denied: tool 'test_echo_write' is not available to this bot","rule":"role.allowed_operations","reason":"operation `echo.write` does not match any entry in allowed_operations of the role","smallest_change":"add `echo.write` to allowed_operations of the role","changes":[{"action":"add","holder":{"kind":"role","id":"[id 3]","bots":[{"id":"[id 2]","name":"tester"}]},"field":"allowed_operations","entry":"echo.write"}]}
    test_echo_write {"repo":"acme/site"}, bot: 200 {"decision":"deny","message":"Permission denied: tool 'test_echo_write' is not available to this bot"}
    test_echo_fetch {"path":"/echo"}, operator: 200 {"decision":"deny","message":"Scope violation: Repository (missing) is not authorized","rule":"scope.repos","reason":"scope_constraints.repos of the binding constrains operation `fetch.run`, but tool `test_echo_fetch` does not declare any of `repo`, `owner_repo`","smallest_change":"remove `repos` from scope_constraints of the binding","changes":[{"action":"remove","holder":{"kind":"binding","id":"[id 1]","bots":[{"id":"[id 2]","name":"tester"}]},"field":"scope_constraints","entry":"repos"}]}
    test_echo_fetch {"path":"/echo"}, bot: 200 {"decision":"deny","message":"Scope violation: Repository (missing) is not authorized"}
    no_such_tool {}, operator: 200 {"decision":"deny","message":"Permission denied: tool 'no_such_tool' is not available to this bot","rule":"unknown_tool","reason":"no resource bound to the bot has a tool `no_such_tool`","smallest_change":"bind a resource whose plugin provides this tool to the bot"}
    no_such_tool {}, bot: 200 {"decision":"deny","message":"Permission denied: tool 'no_such_tool' is not available to this bot"}
    unknown field: 422 [{"path":"/task_id","message":"unknown field `task_id`, expected `params` or `resource_id`"}]
    "#);
    assert_eq!(world.github.requests().len(), 0, "a check sends nothing");
    let (_, audit) = world.api.get("/api/audit").await?;
    assert_eq!(audit["items"], json!([]), "a check is no call");
    Ok(())
}

/// With a bot key, other bots appear not to exist, and only the tools of the key's bot are available.
#[tokio::test]
async fn the_key_of_a_bot_reaches_no_other() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let other = world.api.bot("other").await?;
    let key = world.api.with_key(&world.api.new_key("bot", Some(&other)).await?);
    let bot = format!("/api/bots/{}", world.bot);
    let mut answers = Answers::default();
    answers.add("own tools", key.get(&format!("/api/bots/{other}/tools")).await?);
    for path in [format!("{bot}/tools"), format!("{bot}/tools?format=xml"), "/api/bots/x/tools".to_owned()] {
        answers.add("tools of others", key.get(&path).await?);
    }
    for route in ["call", "check"] {
        let answer = key.post(&format!("{bot}/tools/test_echo_run/{route}"), &json!({ "params": {} })).await?;
        answers.add(&format!("{route} of others"), answer);
    }
    let borrowed = key.post(&format!("/api/bots/{other}/tools/test_echo_run/call"), &json!({})).await?;
    answers.add("a tool that another bot has", borrowed);
    assert_snapshot!(answers, @r#"
    own tools: 200 {"items":[]}
    tools of others: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 1]"}
    tools of others: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 2]"}
    tools of others: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such object with this id","request_id":"[id 3]"}
    call of others: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 4]"}
    check of others: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such bot","request_id":"[id 5]"}
    a tool that another bot has: 200 {"request_id":"[id 6]","status":"permission_denied","code":"denied","message":"Permission denied: tool 'test_echo_run' is not available to this bot","duration_ms":"[ms]"}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_call_that_fails_upstream_says_so_without_the_token() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    let call = format!("/api/bots/{}/tools/github_get_repo/call", world.bot);
    let answer = world.api.post(&call, &json!({ "params": { "repo": "nobody/nothing" } })).await?;
    assert!(!answer.1.to_string().contains(&TOKEN[..10]));
    assert_snapshot!(one(answer), @r#"200 {"request_id":"[id 1]","status":"error","code":"plugin","message":"GitHub API error: 404 - {\"message\":\"Not Found\",\"documentation_url\":\"https://docs.github.com/rest\"}","duration_ms":"[ms]"}"#);
    Ok(())
}
