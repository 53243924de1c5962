//! What the links of a task restrict, and how the task ends with them.

use std::time::{Duration, Instant};

use monstrum_types::{Clock as _, SystemClock};
use support::Server;

use super::*;

/// The longest time that a task goes on after it has lost what it stands on.
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_link_restricts_what_the_other_bot_does() -> Result<()> {
    let delegate = json!({ "allowed_tools": ["github_list_*"], "scope_constraints": { "repos": ["acme/*"] } });
    let pair = Pair::with(&json!({ "delegate": delegate })).await?;
    let foreign = json!({ "repo": "other/secret" });
    pair.of_helper.prepare([
        calls(&[
            ("github_create_issue", create("Not mine")),
            ("github_list_issues", foreign.clone()),
            ("github_list_issues", list()),
        ]),
        LlmReply::says(&["I may only look."]),
    ]);
    let task = ended(pair.api(), &pair.execute("Work.").await?).await?;
    assert_eq!(text(&task["result"]), "I may only look.", "{task}");
    let steps = steps(pair.api(), text(&task["id"])).await?;
    let expected = [
        "round success",
        "call github_create_issue permission_denied",
        "call github_list_issues scope_violation",
        "call github_list_issues success",
        "round success",
    ];
    assert_eq!(outline(&steps), expected);
    let refused = pair.api().audit(text(&steps[1]["request_id"])).await?;
    assert_eq!(
        (text(&refused["status"]), &refused["delegation"][0]["delegate"]),
        ("permission_denied", &delegate),
        "{refused}"
    );
    assert_eq!(pair.tasks.world.github.requests().len(), 1);
    // The model reads only the tools that the link permits.
    let names = offered(&pair.of_helper, 0);
    assert!(names.iter().all(|name| name.starts_with("github_list_")) && !names.is_empty(), "{names:?}");
    Ok(())
}

/// Returns the names of the tools in a request to a model.
fn offered(llm: &FakeLlm, request: usize) -> Vec<String> {
    let body = llm.requests()[request].json();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools.iter().map(|tool| text(&tool["function"]["name"]).to_owned()).collect()
}

/// The binding limits which tools can be called through it. A task could call any tool, so the bot may set none.
#[tokio::test]
async fn a_binding_that_names_tools_starts_no_tasks() -> Result<()> {
    let pair = Pair::with(&json!({ "scope_constraints": { "tools": ["github_list_issues"] } })).await?;
    let tools = pair.tasks.world.tools().await?;
    let of_bot: Vec<&str> = tools.iter().map(String::as_str).filter(|name| name.starts_with("bot_")).collect();
    assert_eq!(of_bot, ["bot_call_tool", "bot_list_tools", "bot_task_status"]);
    let through = json!({ "tool": "github_list_issues", "params": list() });
    assert_eq!(text(&pair.tasks.world.call("bot_call_tool", &through).await?["status"]), "success");
    for (tool, params) in
        [("bot_execute_task", json!({ "instruction": "x" })), ("bot_query", json!({ "question": "x" }))]
    {
        let answer = pair.tasks.world.call(tool, &params).await?;
        assert_eq!(text(&answer["status"]), "scope_violation", "{answer}");
    }
    assert!(pair.of_helper.requests().is_empty());
    Ok(())
}

/// The plugin may call every tool of the type, but the link restricts the task that it starts.
#[tokio::test]
async fn a_plugin_starts_tasks_only_under_the_links_of_its_bot() -> Result<()> {
    let tasks = Tasks::on(Server::prepare(&["github", "test-caller"])?).await?;
    let caller = tasks.world.grant_all("test-caller").await?;
    let set = json!({ "tool": "bot_execute_task", "params": { "instruction": "Create an issue." } });
    let refused = tasks.world.call("test_caller_call", &set).await?;
    assert_eq!(refused["data"]["last"]["status"], "permission_denied", "{refused}");
    let pair = Pair::on(tasks, &json!({ "delegate": { "allowed_tools": ["github_list_*"] } })).await?;
    let refused = pair.tasks.world.call("test_caller_call", &set).await?;
    assert_eq!(refused["data"]["last"]["status"], "permission_denied", "the binding names no tool: {refused}");
    pair.tasks.world.rebind(&caller, &json!({ "allow_calls": ["*"] })).await?;
    pair.of_helper.prepare([calls(&[("github_create_issue", create("Not mine"))]), LlmReply::says(&["I may not."])]);
    let answer = pair.tasks.world.call("test_caller_call", &set).await?;
    let id = answer["data"]["last"]["task_id"].as_str().with_context(|| answer.to_string())?;
    let task = ended(pair.api(), id).await?;
    assert_eq!(text(&task["result"]), "I may not.", "{task}");
    let steps = steps(pair.api(), id).await?;
    assert_eq!(outline(&steps)[1], "call github_create_issue permission_denied");
    assert!(pair.tasks.world.github.requests().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_gate_of_a_link_asks_a_person_in_the_task() -> Result<()> {
    let gates = json!([{ "tools": ["github_create_issue"], "action": "ask" }]);
    let pair = Pair::with(&json!({ "delegate": { "gates": gates } })).await?;
    pair.of_helper.prepare([calls(&[("github_create_issue", create("Asked"))]), LlmReply::says(&["Created."])]);
    let id = pair.execute("Create an issue.").await?;
    let approval = eventually("a person is asked", async || {
        let (_, list) = pair.api().get("/api/approvals?status=pending").await?;
        Ok(list["items"].as_array().and_then(|items| items.first().cloned()))
    })
    .await?;
    assert_eq!((&approval["bot_id"], text(&approval["tool"])), (&json!(pair.helper), "github_create_issue"));
    assert_eq!(approval["links"][0]["binding_id"], json!(pair.link), "{approval}");
    let admin = pair.api().with_key(&pair.api().new_key("admin", None).await?);
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, body) = admin.post(&format!("/api/approvals/{}", text(&approval["id"])), &decision).await?;
    ensure!(status == 200, "{status} {body}");
    assert_eq!(text(&ended(pair.api(), &id).await?["result"]), "Created.");
    assert_eq!(pair.tasks.world.github.requests().len(), 1);
    Ok(())
}

/// Takes back what a running task of the helper stands on. Returns the task, and the time until it has ended.
async fn taken_back(pair: &mut Pair, what: &str) -> Result<(Value, Duration)> {
    pair.of_helper.prepare([silent()]);
    let before = pair.of_helper.requests().len();
    let name = format!("key {before}");
    let body = json!({ "name": name, "kind": "bot", "bot_id": pair.tasks.world.bot });
    let (_, key) = pair.api().post("/api/keys", &body).await?;
    let api = pair.api().with_key(text(&key["key"]));
    let set = api.call(&pair.tasks.world.bot, "bot_execute_task", &json!({ "instruction": "Go on." })).await?;
    let id = set["data"]["task_id"].as_str().with_context(|| set.to_string())?.to_owned();
    eventually("the helper works", async || Ok((pair.of_helper.requests().len() > before).then_some(()))).await?;
    let (path, of_key) = (pair.path_of_link(), format!("/api/keys/{}", text(&key["id"])));
    let (_, link_row) = pair.api().get(&path).await?;
    let of_resource = format!("/api/resources/{}", text(&link_row["resource_id"]));
    let mut began = Instant::now();
    let (status, answer) = match what {
        "link gone" => pair.api().delete(&path).await?,
        "link disabled" => pair.api().patch(&path, &json!({ "enabled": false })).await?,
        "link expired" => {
            let end = SystemClock.now().plus_ms(300);
            began += Duration::from_millis(300);
            pair.api().patch(&path, &json!({ "expires_at": end })).await?
        }
        "another bot" => {
            let other = pair.api().bot(&format!("other {before}")).await?;
            pair.api().patch(&of_resource, &json!({ "config": { "bot": other } })).await?
        }
        "key gone" => pair.api().delete(&of_key).await?,
        "key rotated" => pair.api().post(&format!("{of_key}/rotate"), &json!({})).await?,
        other => anyhow::bail!("{other}"),
    };
    ensure!(status < 300, "{what}: {status} {answer}");
    let task = ended(pair.api(), &id).await?;
    let took = began.elapsed();
    pair.api().delete(&path).await?;
    pair.api().delete(&of_resource).await?;
    pair.link = link(pair.api(), (&pair.tasks.world.bot, &pair.helper), &json!({})).await?;
    Ok((task, took))
}

#[tokio::test]
async fn a_task_ends_within_a_second_of_what_it_stands_on() -> Result<()> {
    const ROUNDS: usize = 12;
    let mut pair = Pair::start().await?;
    for what in ["link gone", "link disabled", "link expired", "another bot", "key gone", "key rotated"] {
        let (mut task, mut took) = taken_back(&mut pair, what).await?;
        // The machine may be busy in one round, but is unlikely to be busy in all rounds.
        for _ in 1..ROUNDS {
            if took >= SECOND {
                (task, took) = taken_back(&mut pair, what).await?;
            }
        }
        ensure!(took < SECOND, "{what}: {took:?}");
        assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "revoked"), "{what}: {task}");
    }
    // A bot that is deleted takes its link with it.
    pair.of_helper.prepare([silent()]);
    let before = pair.of_helper.requests().len();
    let id = pair.execute("Go on.").await?;
    eventually("the helper works", async || Ok((pair.of_helper.requests().len() > before).then_some(()))).await?;
    let (status, answer) = pair.api().delete(&format!("/api/bots/{}", pair.tasks.world.bot)).await?;
    ensure!(status == 204, "{status} {answer}");
    let task = ended(pair.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "revoked"), "{task}");
    Ok(())
}

/// The constraints of a link are those of the moment, also in a task that has begun.
#[tokio::test]
async fn a_link_that_is_narrowed_restricts_the_next_call() -> Result<()> {
    let pair = Pair::start().await?;
    pair.tasks.world.github.hold();
    pair.of_helper.prepare([
        calls(&[("github_list_issues", list()), ("github_create_issue", create("Too late"))]),
        LlmReply::says(&["I may no longer."]),
    ]);
    let id = pair.execute("Look, and create.").await?;
    pair.tasks.world.reached(1).await?;
    let delegate = json!({ "delegate": { "allowed_tools": ["github_list_*"] } });
    let (status, answer) = pair.api().patch(&pair.path_of_link(), &delegate).await?;
    ensure!(status == 200, "{answer}");
    pair.tasks.world.github.release();
    ended(pair.api(), &id).await?;
    let steps = steps(pair.api(), &id).await?;
    assert_eq!(outline(&steps)[2], "call github_create_issue permission_denied", "{steps:?}");
    assert_eq!(pair.tasks.world.github.requests().len(), 1);
    Ok(())
}
