//! `/api/budgets` and `/api/usage`: who may set which budget, what is refused, and what is reported.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use regex::Regex;
use serde_json::{Value, json};
use support::Server;

use crate::call::budget::with_costs;
use crate::http::roles::faults;
use crate::http::{Answers, workspace};
use crate::world::{World, text};

/// A world with a bot that may use all tools of `test-echo`. A call of `test_echo_run` costs 7 tokens and 0.1 credits.
async fn world() -> Result<World> {
    let world = World::on(with_costs(Server::prepare(&["test-echo"])?)?).await?;
    world.grant_all("test-echo").await?;
    Ok(world)
}

fn ann() -> Value {
    json!({ "app_id": "slack", "user_id": "ann" })
}

/// Calls a tool on behalf of a user.
async fn call_for(world: &World, user: &str) -> Result<Value> {
    let chat = json!({ "app_id": "slack", "user_id": user, "chat_id": user });
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let body = json!({ "params": { "repo": "acme/site" }, "task_id": "task", "chat": chat });
    let (status, answer) = world.api.post(&path, &body).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(answer)
}

/// Formats answers, without the month, which depends on the clock.
fn told(answers: &Answers) -> Result<String> {
    Ok(Regex::new("20[0-9]{2}-[0-9]{2}")?.replace_all(&answers.to_string(), "[month]").into_owned())
}

#[tokio::test]
async fn budgets_are_set_listed_and_removed() -> Result<()> {
    let world = world().await?;
    let (api, path) = (&world.api, "/api/budgets");
    let bot = json!(world.bot);
    let mut answers = Answers::default();
    answers.add("none", api.get(path).await?);
    for (label, body) in [
        ("bot", json!({ "subject": "bot", "id": bot, "monthly_tokens": 21, "monthly_credits": 0.5 })),
        ("workspace", json!({ "subject": "workspace", "monthly_tokens": 100 })),
        ("user", json!({ "subject": "user", "id": ann(), "monthly_credits": 0.15 })),
        ("each user", json!({ "subject": "user", "id": "*", "monthly_tokens": 7 })),
    ] {
        answers.add(label, api.put(path, &body).await?);
    }
    assert_eq!(call_for(&world, "ann").await?["status"], "success");
    assert_eq!(call_for(&world, "bob").await?["status"], "success");
    answers.add("list", api.get(path).await?);
    let (_, first) = api.get("/api/budgets?limit=3").await?;
    let rest = format!("/api/budgets?cursor={}", text(&first["next_cursor"]));
    answers.add("the last page", api.get(&rest).await?);
    for (label, body) in [
        ("nothing changes", json!({ "subject": "bot", "id": bot })),
        ("fewer tokens", json!({ "subject": "bot", "id": bot, "monthly_tokens": 0 })),
        ("no credits", json!({ "subject": "bot", "id": bot, "monthly_credits": null })),
        ("no workspace", json!({ "subject": "workspace", "monthly_tokens": null })),
        ("no user", json!({ "subject": "user", "id": ann(), "monthly_credits": null })),
        ("no user again", json!({ "subject": "user", "id": ann(), "monthly_credits": null })),
    ] {
        answers.add(label, api.put(path, &body).await?);
    }
    answers.add("list of two", api.get(path).await?);
    assert_snapshot!(told(&answers)?, @r#"
    none: 200 {"items":[],"next_cursor":null}
    bot: 200 {"subject":"bot","id":"[id 1]","monthly_tokens":21,"monthly_credits":0.5,"spent":{"month":"[month]","tokens":0,"credits":0,"tokens_reserved":0,"credits_reserved":0}}
    workspace: 200 {"subject":"workspace","id":null,"monthly_tokens":100,"monthly_credits":null,"spent":{"month":"[month]","tokens":0,"credits":0,"tokens_reserved":0,"credits_reserved":0}}
    user: 200 {"subject":"user","id":{"app_id":"slack","user_id":"ann"},"monthly_tokens":null,"monthly_credits":0.15,"spent":{"month":"[month]","tokens":0,"credits":0,"tokens_reserved":0,"credits_reserved":0}}
    each user: 200 {"subject":"user","id":"*","monthly_tokens":7,"monthly_credits":null,"spent":null}
    list: 200 {"items":[{"subject":"bot","id":"[id 1]","monthly_tokens":21,"monthly_credits":0.5,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}},{"subject":"user","id":"*","monthly_tokens":7,"monthly_credits":null,"spent":null},{"subject":"user","id":{"app_id":"slack","user_id":"ann"},"monthly_tokens":null,"monthly_credits":0.15,"spent":{"month":"[month]","tokens":7,"credits":0.1,"tokens_reserved":0,"credits_reserved":0}},{"subject":"workspace","id":null,"monthly_tokens":100,"monthly_credits":null,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}}],"next_cursor":null}
    the last page: 200 {"items":[{"subject":"workspace","id":null,"monthly_tokens":100,"monthly_credits":null,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}}],"next_cursor":null}
    nothing changes: 200 {"subject":"bot","id":"[id 1]","monthly_tokens":21,"monthly_credits":0.5,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}}
    fewer tokens: 200 {"subject":"bot","id":"[id 1]","monthly_tokens":0,"monthly_credits":0.5,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}}
    no credits: 200 {"subject":"bot","id":"[id 1]","monthly_tokens":0,"monthly_credits":null,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}}
    no workspace: 200 {"subject":"workspace","id":null,"monthly_tokens":null,"monthly_credits":null,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}}
    no user: 200 {"subject":"user","id":{"app_id":"slack","user_id":"ann"},"monthly_tokens":null,"monthly_credits":null,"spent":{"month":"[month]","tokens":7,"credits":0.1,"tokens_reserved":0,"credits_reserved":0}}
    no user again: 200 {"subject":"user","id":{"app_id":"slack","user_id":"ann"},"monthly_tokens":null,"monthly_credits":null,"spent":{"month":"[month]","tokens":7,"credits":0.1,"tokens_reserved":0,"credits_reserved":0}}
    list of two: 200 {"items":[{"subject":"bot","id":"[id 1]","monthly_tokens":0,"monthly_credits":null,"spent":{"month":"[month]","tokens":14,"credits":0.2,"tokens_reserved":0,"credits_reserved":0}},{"subject":"user","id":"*","monthly_tokens":7,"monthly_credits":null,"spent":null}],"next_cursor":null}
    "#);
    Ok(())
}

/// The tokens of a bot are one value, which both routes change. Each change is in the audit.
#[tokio::test]
async fn the_tokens_of_a_bot_are_a_field_of_the_bot() -> Result<()> {
    let world = world().await?;
    let api = &world.api;
    let path = format!("/api/bots/{}", world.bot);
    let set = json!({ "subject": "bot", "id": world.bot, "monthly_tokens": 5, "monthly_credits": 9e-6 });
    assert_eq!(api.put("/api/budgets", &set).await?.0, 200);
    assert_eq!(api.get(&path).await?.1["monthly_token_budget"], 5);
    assert_eq!(api.patch(&path, &json!({ "monthly_token_budget": 6 })).await?.0, 200);
    let (_, list) = api.get("/api/budgets").await?;
    assert_eq!([&list["items"][0]["monthly_tokens"], &list["items"][0]["monthly_credits"]], [&json!(6), &json!(9e-6)]);
    let (_, changes) = api.get("/api/audit/changes").await?;
    let change = changes["items"].as_array().context("a list")?.iter().find(|item| item["change"] == "budget.update");
    let change = change.with_context(|| format!("the change of the budget is not in the audit: {changes}"))?;
    let budget = |tokens: Value, credits: Value| {
        json!({
            "subject": "bot", "id": world.bot, "monthly_tokens": tokens, "monthly_credits": credits,
        })
    };
    assert_eq!(change["before"], budget(Value::Null, Value::Null));
    assert_eq!(change["after"], budget(json!(5), json!(9e-6)));
    assert_eq!(change["bot_id"], world.bot);

    // The budget is deleted with its bot.
    assert_eq!(api.delete(&path).await?.0, 204);
    assert_eq!(api.get("/api/budgets").await?.1["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn each_subject_refuses_what_exceeds_its_budget() -> Result<()> {
    let world = world().await?;
    let refused = async |user: &str| {
        let answer = call_for(&world, user).await?;
        if answer["status"] == "success" {
            return anyhow::Ok("runs".to_owned());
        }
        assert_eq!(answer["code"], "budget", "{answer}");
        assert_eq!(world.audit_of(&answer).await?["rule"], "budget");
        Ok(Regex::new("20[0-9]{2}-[0-9]{2}")?.replace_all(text(&answer["message"]), "[month]").into_owned())
    };
    let set = async |body: Value| {
        let (status, answer) = world.api.put("/api/budgets", &body).await?;
        ensure!(status == 200, "{answer}");
        Ok(())
    };
    assert_eq!(refused("ann").await?, "runs");
    set(json!({ "subject": "user", "id": ann(), "monthly_tokens": 13 })).await?;
    set(json!({ "subject": "user", "id": "*", "monthly_credits": 0.15 })).await?;
    let mut told = vec![refused("ann").await?];
    // The budget of each user is not shared.
    assert_eq!(refused("bob").await?, "runs");
    assert_eq!(refused("cid").await?, "runs");
    told.push(refused("bob").await?);
    set(json!({ "subject": "workspace", "monthly_tokens": 27 })).await?;
    told.push(refused("dan").await?);
    set(json!({ "subject": "workspace", "monthly_tokens": null, "monthly_credits": 0.399999 })).await?;
    told.push(refused("dan").await?);
    set(json!({ "subject": "workspace", "monthly_credits": null })).await?;
    set(json!({ "subject": "bot", "id": world.bot, "monthly_credits": 0.399999 })).await?;
    told.push(refused("dan").await?);
    set(json!({ "subject": "bot", "id": world.bot, "monthly_credits": 0.4 })).await?;
    assert_eq!(refused("dan").await?, "runs");
    assert_snapshot!(told.join("\n"), @"
    this call costs 7 tokens and exceeds the user's budget for [month] (7 of 13 tokens are spent)
    this call costs 0.1 credits and exceeds the user's budget for [month] (0.1 of 0.15 credits are spent)
    this call costs 7 tokens and exceeds the workspace's budget for [month] (21 of 27 tokens are spent)
    this call costs 0.1 credits and exceeds the workspace's budget for [month] (0.3 of 0.399999 credits are spent)
    this call costs 0.1 credits and exceeds the bot's budget for [month] (0.3 of 0.399999 credits are spent)
    ");
    Ok(())
}

#[tokio::test]
async fn usage_is_reported_by_bot_user_task_and_model() -> Result<()> {
    let world = world().await?;
    for user in ["ann", "ann", "bob"] {
        assert_eq!(call_for(&world, user).await?["status"], "success");
    }
    let params = json!({ "repo": "acme/site" });
    assert_eq!(world.call("test_echo_run", &params).await?["status"], "success");
    let mut answers = Answers::default();
    for query in ["", "?by=user", "?by=task", "?by=bot,user,task,model", "?month=2020-01"] {
        answers.add(query, world.api.get(&format!("/api/usage{query}")).await?);
    }
    for query in ["?by=", "?by=bots", "?by=bot,bot", "?month=2026-13", "?by=x&month=now", "?group=bot"] {
        answers.add(query, faults(world.api.get(&format!("/api/usage{query}")).await?));
    }
    assert_snapshot!(told(&answers)?, @r#"
    200 {"month":"[month]","items":[{"bot_id":"[id 1]","tokens":28,"tokens_input":0,"tokens_output":0,"credits":0.4,"rounds":0,"rounds_estimated":0,"calls":4}],"has_more":false}
    ?by=user: 200 {"month":"[month]","items":[{"user":{"app_id":"slack","user_id":"ann"},"tokens":14,"tokens_input":0,"tokens_output":0,"credits":0.2,"rounds":0,"rounds_estimated":0,"calls":2},{"user":null,"tokens":7,"tokens_input":0,"tokens_output":0,"credits":0.1,"rounds":0,"rounds_estimated":0,"calls":1},{"user":{"app_id":"slack","user_id":"bob"},"tokens":7,"tokens_input":0,"tokens_output":0,"credits":0.1,"rounds":0,"rounds_estimated":0,"calls":1}],"has_more":false}
    ?by=task: 200 {"month":"[month]","items":[{"task_id":"task","tokens":21,"tokens_input":0,"tokens_output":0,"credits":0.3,"rounds":0,"rounds_estimated":0,"calls":3},{"task_id":null,"tokens":7,"tokens_input":0,"tokens_output":0,"credits":0.1,"rounds":0,"rounds_estimated":0,"calls":1}],"has_more":false}
    ?by=bot,user,task,model: 200 {"month":"[month]","items":[{"bot_id":"[id 1]","user":{"app_id":"slack","user_id":"ann"},"task_id":"task","model":null,"tokens":14,"tokens_input":0,"tokens_output":0,"credits":0.2,"rounds":0,"rounds_estimated":0,"calls":2},{"bot_id":"[id 1]","user":null,"task_id":null,"model":null,"tokens":7,"tokens_input":0,"tokens_output":0,"credits":0.1,"rounds":0,"rounds_estimated":0,"calls":1},{"bot_id":"[id 1]","user":{"app_id":"slack","user_id":"bob"},"task_id":"task","model":null,"tokens":7,"tokens_input":0,"tokens_output":0,"credits":0.1,"rounds":0,"rounds_estimated":0,"calls":1}],"has_more":false}
    ?month=[month]: 200 {"month":"[month]","items":[],"has_more":false}
    ?by=: 422 [{"path":"by","message":"expected different names of `bot`, `user`, `task` and `model`, separated by commas"}]
    ?by=bots: 422 [{"path":"by","message":"expected different names of `bot`, `user`, `task` and `model`, separated by commas"}]
    ?by=bot,bot: 422 [{"path":"by","message":"expected different names of `bot`, `user`, `task` and `model`, separated by commas"}]
    ?month=[month]: 422 [{"path":"month","message":"expected a month such as `[month]`"}]
    ?by=x&month=now: 422 [{"path":"by","message":"expected different names of `bot`, `user`, `task` and `model`, separated by commas"},{"path":"month","message":"expected a month such as `[month]`"}]
    ?group=bot: 422 [{"path":"group","message":"unknown query parameter (supported: by, month)"}]
    "#);
    // The usage of a bot is kept when the bot is deleted.
    assert_eq!(world.api.delete(&format!("/api/bots/{}", world.bot)).await?.0, 204);
    assert_eq!(world.api.get("/api/usage").await?.1["items"][0]["tokens"], 28);
    Ok(())
}

#[tokio::test]
async fn faults_of_a_budget_are_named_and_rights_are_required() -> Result<()> {
    let world = world().await?;
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "subject": "team", "id": "x" }),
        json!({ "subject": "workspace", "id": "x" }),
        json!({ "subject": "bot" }),
        json!({ "subject": "bot", "id": "tester", "monthly_tokens": -1 }),
        json!({ "subject": "bot", "id": "019a0000-0000-7000-8000-00000000000a", "monthly_tokens": 1 }),
        json!({ "subject": "user", "id": "ann" }),
        json!({ "subject": "user", "id": { "app_id": "", "user_id": "ann" } }),
        json!({ "subject": "user", "id": "*", "monthly_tokens": 1.5 }),
        json!({ "subject": "user", "id": "*", "tokens": 1 }),
    ] {
        answers.add(&body.to_string(), faults(world.api.put("/api/budgets", &body).await?));
    }
    let key = async |kind: &str| anyhow::Ok(world.api.with_key(&world.api.new_key(kind, None).await?));
    let (admin, operator) = (key("admin").await?, key("operator").await?);
    let of_workspace = json!({ "subject": "workspace", "monthly_tokens": 1 });
    answers.add("the workspace by its admin", faults(admin.put("/api/budgets", &of_workspace).await?));
    let of_bot = json!({ "subject": "bot", "id": world.bot, "monthly_tokens": 1 });
    answers.add("a bot by an operator", faults(operator.put("/api/budgets", &of_bot).await?));
    let foreign = workspace(&world.api, "foreign").await?;
    answers.add("a bot of another workspace", faults(foreign.put("/api/budgets", &of_bot).await?));
    answers.add("nothing was set", operator.get("/api/budgets").await?);
    assert_eq!(admin.put("/api/budgets", &of_bot).await?.0, 200);
    // An admin of another workspace sets and reads its own users only.
    let each = json!({ "subject": "user", "id": "*", "monthly_tokens": 3 });
    assert_eq!(foreign.put("/api/budgets", &each).await?.0, 200);
    let count = async |api: &support::Api| {
        let (_, list) = api.get("/api/budgets").await?;
        anyhow::Ok(list["items"].as_array().context("a list")?.len())
    };
    assert_eq!((count(&foreign).await?, count(&operator).await?), (1, 1));
    assert_snapshot!(answers, @r#"
    {}: 422 [{"path":"/subject","message":"required field is missing"}]
    {"subject":"team","id":"x"}: 422 [{"path":"/subject","message":"unknown variant `team`, expected one of `workspace`, `bot`, `user`"}]
    {"subject":"workspace","id":"x"}: 422 [{"path":"/id","message":"must be absent for the workspace"}]
    {"subject":"bot"}: 422 [{"path":"/id","message":"expected the id of a bot"}]
    {"subject":"bot","id":"tester","monthly_tokens":-1}: 422 [{"path":"/monthly_tokens","message":"must be at least 0"},{"path":"/id","message":"`tester` is not a valid bot id: expected a UUID in lower case with hyphens"}]
    {"subject":"bot","id":"019a0000-0000-7000-8000-00000000000a","monthly_tokens":1}: 404 "no such bot"
    {"subject":"user","id":"ann"}: 422 [{"path":"/id","message":"expected a user `{\"app_id\": …, \"user_id\": …}`, or `*` for each user"}]
    {"subject":"user","id":{"app_id":"","user_id":"ann"}}: 422 [{"path":"/id/app_id","message":"must be 1 to 256 bytes long and must not contain control characters"}]
    {"subject":"user","id":"*","monthly_tokens":1.5}: 422 [{"path":"/monthly_tokens","message":"invalid type: floating point `1.5`, expected i64"}]
    {"subject":"user","id":"*","tokens":1}: 422 [{"path":"/tokens","message":"unknown field `tokens`, expected one of `subject`, `id`, `monthly_tokens`, `monthly_credits`, `was`"}]
    the workspace by its admin: 403 "a root key is required"
    a bot by an operator: 403 "an admin key is required"
    a bot of another workspace: 404 "no such bot"
    nothing was set: 200 {"items":[],"next_cursor":null}
    "#);
    Ok(())
}
