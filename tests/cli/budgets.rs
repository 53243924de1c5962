//! `monstrum budget` and `monstrum usage`: budgets of the workspace, of bots and of users.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use regex::Regex;
use serde_json::{Value, json};
use support::Server;

use super::{parsed, run, succeed, told};
use crate::call::budget::with_costs;
use crate::world::World;

/// A world with budgets of all subjects, in which a call on behalf of a user has cost 7 tokens and 0.1 credits.
async fn world() -> Result<World> {
    let world = World::on(with_costs(Server::prepare(&["test-echo"])?)?).await?;
    world.grant_all("test-echo").await?;
    for command in [
        &["budget", "set", "tester", "1000", "--credits", "12.5"][..],
        &["budget", "set", "--whole-workspace", "--tokens", "50000"],
        &["budget", "set", "--user", "slack", "ann", "--credits", "0.25"],
        &["budget", "set", "--each-user", "--tokens", "100"],
    ] {
        succeed(&world.server, command).await?;
    }
    let chat = json!({ "app_id": "slack", "user_id": "ann", "chat_id": "c" });
    let body = json!({ "params": { "repo": "acme/site" }, "task_id": "task", "chat": chat });
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    let (status, answer) = world.api.post(&path, &body).await?;
    ensure!(status == 200 && answer["status"] == "success", "{status} {answer}");
    Ok(world)
}

#[tokio::test]
async fn budgets_of_all_subjects_are_listed_and_shown() -> Result<()> {
    let world = world().await?;
    let mut shown = Vec::new();
    for command in [
        &["budget", "list"][..],
        &["budget", "show", "tester"],
        &["budget", "show", "--user", "slack", "ann"],
        &["budget", "show", "--each-user"],
        &["budget", "show", "--user", "slack", "bob"],
        &["usage"],
        &["usage", "--by", "user,task"],
        &["usage", "--month", "2020-01"],
    ] {
        shown.push(format!("$ {}\n{}", command.join(" "), told(&world.server, command).await?));
    }
    let shown = shown.join("\n");
    let shown = Regex::new("20[0-9]{2}-[0-9]{2}")?.replace_all(&shown, "[month]");
    assert_snapshot!(shown, @"
    $ budget list
     SUBJECT            TOKENS  TOKENS SPENT  CREDITS  CREDITS SPENT
     bot tester         1000    7             12.5     0.1
     each user          100
     user ann of slack          7             0.25     0.1
     workspace          50000   7                      0.1
    [exit 0]
    $ budget show tester
    bot                    tester
    monthly token budget   1000
    monthly credit budget  12.5

     MONTH    TOKENS  CREDITS  ROUNDS  CALLS
     [month]  7       0.1      0       1
    [exit 0]
    $ budget show --user slack ann
    monthly credits  0.25
    month            [month]
    tokens spent     7
    credits spent    0.1
    [exit 0]
    $ budget show --each-user
    monthly tokens  100
    [exit 0]
    $ budget show --user slack bob
    [stderr]
    error: there is no budget of user bob of slack
    hint: `monstrum budget list` lists the budgets
    [exit 1]
    $ usage
     BOT     TOKENS  INPUT  OUTPUT  ROUNDS  CALLS  CREDITS
     tester  7       0      0       0       1      0.1
    [exit 0]
    $ usage --by user,task
     USER          TASK  TOKENS  INPUT  OUTPUT  ROUNDS  CALLS  CREDITS
     ann of slack  task  7       0      0       0       1      0.1
    [exit 0]
    $ usage --month [month]
    [stderr]
    nothing has cost anything in [month]
    [exit 0]
    ");
    Ok(())
}

#[tokio::test]
async fn budgets_are_changed_and_removed() -> Result<()> {
    let world = world().await?;
    let budgets = async || {
        let (_, list) = parsed(&world.server, &["budget", "list"]).await?;
        let items = list["items"].as_array().into_iter().flatten();
        let limits = items.map(|item| json!([item["name"], item["monthly_tokens"], item["monthly_credits"]]));
        anyhow::Ok(Value::from_iter(limits))
    };
    let (bot, each) = (json!(["bot tester", 1000, 12.5]), json!(["each user", 100, null]));
    let (ann, whole) = (json!(["user ann of slack", null, 0.25]), json!(["workspace", 50_000, null]));
    assert_eq!(budgets().await?, json!([bot, each, ann, whole]));
    succeed(&world.server, &["budget", "set", "tester", "--tokens", "none"]).await?;
    succeed(&world.server, &["budget", "delete", "--each-user"]).await?;
    succeed(&world.server, &["budget", "delete", "--user", "slack", "ann"]).await?;
    let credits_only = json!(["bot tester", null, 12.5]);
    assert_eq!(budgets().await?, json!([credits_only, whole]));
    // Without the number of credits, an operator key sets the tokens of a bot.
    let operator = world.api.new_key("operator", None).await?;
    succeed(&world.server, &["--key", &operator, "budget", "set", "tester", "5"]).await?;
    let refused = run(&world.server, &["--key", &operator, "budget", "delete", "tester"]).await?;
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(budgets().await?, json!([["bot tester", 5, 12.5], whole]));
    succeed(&world.server, &["budget", "delete", "tester"]).await?;
    succeed(&world.server, &["budget", "delete", "--whole-workspace"]).await?;
    assert_eq!(budgets().await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn a_budget_needs_one_subject_and_a_limit() -> Result<()> {
    let world = World::with(&[]).await?;
    for command in [
        &["budget", "set"][..],
        &["budget", "set", "tester"],
        &["budget", "set", "--whole-workspace"],
        &["budget", "set", "tester", "5", "--tokens", "6"],
        &["budget", "set", "tester", "5", "--each-user"],
        &["budget", "set", "--whole-workspace", "--each-user", "--tokens", "5"],
        &["budget", "set", "--user", "slack", "--tokens", "5"],
        &["budget", "set", "tester", "--tokens", "-5"],
        &["budget", "set", "tester", "--credits", "0.0000001"],
        &["budget", "show"],
        &["budget", "delete"],
    ] {
        let output = run(&world.server, command).await?;
        let stderr = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(2), "{command:?}: {stderr}");
        ensure!(stderr.trim_end().ends_with("--help` shows usage and examples"), "{command:?}: {stderr}");
    }
    let (_, list) = parsed(&world.server, &["budget", "list"]).await?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}
