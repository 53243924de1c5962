//! `/api/bots/{id}/tools`: the list, the call, the check.

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
    assert_snapshot!(answers, @"");
    Ok(())
}

fn descriptions(list: &Value) -> Value {
    list["items"].as_array().into_iter().flatten().map(|tool| &tool["description"]).cloned().collect()
}

/// Two resources of one type: over HTTP a call names one by its id, everybody else by its name in a parameter.
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
    assert_snapshot!(answers, @"");
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
    assert_snapshot!(answers, @"");
    Ok(())
}

/// Whoever may change the rules is told which one it was; a bot is told what it would read, and no more.
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
    assert_snapshot!(answers, @"");
    assert_eq!(world.github.requests().len(), 0, "a check sends nothing");
    let (_, audit) = world.api.get("/api/audit").await?;
    assert_eq!(audit["items"], json!([]), "a check is no call");
    Ok(())
}

/// For a bot's key there is one bot; all others do not exist, and nothing but tools is its own.
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
    assert_snapshot!(answers, @"");
    Ok(())
}

#[tokio::test]
async fn a_call_that_fails_upstream_says_so_without_the_token() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    let call = format!("/api/bots/{}/tools/github_get_repo/call", world.bot);
    let answer = world.api.post(&call, &json!({ "params": { "repo": "nobody/nothing" } })).await?;
    assert!(!answer.1.to_string().contains(&TOKEN[..10]));
    assert_snapshot!(one(answer), @"");
    Ok(())
}
