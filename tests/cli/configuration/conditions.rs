//! Budgets and schedules in configuration files, and changes that follow an import: each is made only if the server still
//! has the state that was planned with.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, Server};
use tokio::io::AsyncReadExt as _;

use crate::cli::{succeed, told};
use crate::http::made;
use crate::world::{World, text};

const UNCHANGED: &str = "[stderr]\nthe workspace already has this configuration\n[exit 0]";

async fn items(api: &Api, path: &str) -> Result<Vec<Value>> {
    let (status, list) = api.get(path).await?;
    ensure!(status == 200, "{path}: {status} {list}");
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Gives a workspace budgets and schedules of each kind.
async fn filled(api: &Api) -> Result<()> {
    let bot = api.bot("helper").await?;
    for budget in [
        json!({ "subject": "workspace", "monthly_tokens": 9000 }),
        json!({ "subject": "bot", "id": bot, "monthly_tokens": 500, "monthly_credits": 2.5 }),
        json!({ "subject": "user", "id": { "app_id": "chat", "user_id": "ada" }, "monthly_credits": 1 }),
        json!({ "subject": "user", "id": "*", "monthly_tokens": 70 }),
    ] {
        let (status, answer) = api.put("/api/budgets", &budget).await?;
        ensure!(status == 200, "{status} {answer}");
    }
    for (name, times) in [
        ("nightly", json!({ "cron": "30 2 * * *", "timezone": "Europe/Berlin", "jitter_s": 60 })),
        ("hourly", json!({ "every_s": 3600, "overlap": "queue", "missed": "skip", "enabled": false })),
        ("once", json!({ "at": "2036-01-01T00:00:00Z" })),
    ] {
        let mut schedule = times;
        schedule["name"] = json!(name);
        schedule["bot_id"] = json!(bot);
        schedule["instruction"] = json!("Sort the issues.\nThen stop.");
        schedule["narrow"] = json!({ "allowed_tools": ["github_*"], "scope_constraints": { "repos": ["acme/*"] } });
        made(api, "/api/schedules", &schedule).await?;
    }
    Ok(())
}

#[tokio::test]
async fn budgets_and_schedules_are_exported_and_applied() -> Result<()> {
    let world = World::with(&[]).await?;
    filled(&world.api).await?;
    let exported = succeed(&world.server, &["export"]).await?;
    for part in ["budgets:\n", "schedules:\n", "subject: each_user", "timezone: Europe/Berlin", "enabled: false"] {
        ensure!(exported.contains(part), "{part}: {exported}");
    }
    let mut server = Server::prepare(&[])?;
    server.launch().await?;
    let api = server.api()?;
    for home in [world.server.home(), server.home()] {
        fs::write(home.join("all.yaml"), &exported)?;
    }
    assert_eq!(told(&world.server, &["apply", "all.yaml", "--yes"]).await?, UNCHANGED);
    let plan = succeed(&server, &["apply", "all.yaml", "--dry-run"]).await?;
    for part in ["create schedule hourly of bot helper", "set the budget of user ada of chat"] {
        ensure!(plan.contains(part), "{part}: {plan}");
    }
    ensure!(items(&api, "/api/schedules").await?.is_empty() && items(&api, "/api/budgets").await?.is_empty());
    succeed(&server, &["apply", "all.yaml", "--yes"]).await?;
    assert_eq!(succeed(&server, &["export"]).await?, exported);
    let before = (items(&api, "/api/schedules").await?, items(&api, "/api/budgets").await?);
    for flags in [&["--yes"][..], &["--prune", "--yes"]] {
        assert_eq!(told(&server, &[&["apply", "all.yaml"], flags].concat()).await?, UNCHANGED);
    }
    assert_eq!((items(&api, "/api/schedules").await?, items(&api, "/api/budgets").await?), before);

    // A changed field is changed, and the next time of another schedule stays.
    let changed =
        exported.replace("overlap: queue", "overlap: allow").replace("monthly_tokens: 9000", "monthly_tokens: 8000");
    fs::write(server.home().join("all.yaml"), &changed)?;
    let plan = succeed(&server, &["apply", "all.yaml", "--yes"]).await?;
    ensure!(
        plan.contains("change schedule hourly (overlap)") && plan.contains("set the budget of the workspace"),
        "{plan}"
    );
    assert_eq!(succeed(&server, &["export"]).await?, changed);

    // Only --prune deletes schedules that the file does not contain. Budgets stay.
    let bots = "bots:\n  - name: helper\n    monthly_token_budget: 500\n  - name: tester\n";
    fs::write(server.home().join("less.yaml"), bots)?;
    assert_eq!(told(&server, &["apply", "less.yaml", "--yes"]).await?, UNCHANGED);
    let pruned = succeed(&server, &["apply", "less.yaml", "--prune", "--yes"]).await?;
    ensure!(pruned.matches("delete schedule ").count() == 3, "{pruned}");
    ensure!(items(&api, "/api/schedules").await?.is_empty());
    assert_eq!(items(&api, "/api/budgets").await?.len(), 4);
    Ok(())
}

#[tokio::test]
async fn faults_of_budgets_and_schedules_are_told_before_anything_changes() -> Result<()> {
    let world = World::with(&[]).await?;
    let other = world.api.bot("other").await?;
    let taken = json!({ "name": "taken", "bot_id": other, "instruction": "x", "every_s": 3600 });
    made(&world.api, "/api/schedules", &taken).await?;
    let schedule = |rest: &str| format!("schedules:\n  - {{ name: s, bot: new, instruction: x, {rest} }}\n");
    let new = "bots:\n  - name: new\n";
    for (text, fault) in [
        (format!("{new}{}", schedule("cron: '0 0 31 2 *'")), "schedules[0]: schedule s"),
        (format!("{new}{}", schedule("every_s: 5")), "schedules[0]: schedule s"),
        (schedule("every_s: 60"), "schedules[0]: there is no bot new"),
        (format!("{new}{}", schedule("colour: red")), "schedules[0].colour"),
        (
            format!("{new}schedules:\n  - {{ name: taken, bot: new, instruction: x, every_s: 60 }}\n"),
            "belongs to another bot",
        ),
        (format!("{new}budgets:\n  - {{ subject: bot, bot: new, monthly_tokens: 5 }}\n"), "monthly_token_budget"),
        (
            format!("{new}budgets:\n  - {{ subject: workspace }}\n  - {{ subject: workspace }}\n"),
            "has the same subject",
        ),
    ] {
        fs::write(world.server.home().join("file.yaml"), &text)?;
        let answer = told(&world.server, &["apply", "file.yaml", "--yes"]).await?;
        ensure!(answer.contains(fault) && answer.ends_with("[exit 1]"), "{text}{answer}");
        ensure!(items(&world.api, "/api/bots").await?.iter().all(|bot| bot["name"] != "new"), "{text}{answer}");
    }
    Ok(())
}

/// Starts an apply, and runs `meanwhile` when its plan is made. Returns what the apply told.
async fn interrupted(world: &World, meanwhile: impl Future<Output = Result<()>>) -> Result<String> {
    let mut command = world.server.prepared_command(&["apply", "file.yaml", "--yes", "--replace-credentials"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut plan = child.stdout.take().context("the command has no standard output")?;
    // The plan is made when its first byte arrives. It is larger than a pipe, so the command waits for its reader.
    let mut rest = vec![plan.read_u8().await?];
    meanwhile.await?;
    plan.read_to_end(&mut rest).await?;
    ensure!(rest.len() > 100_000, "the plan is too small to make the command wait");
    let output = child.wait_with_output().await?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

/// Returns a file whose plan is large: it changes the gates of eight bots. `reason` makes each file another one.
fn large(reason: char, rest: &str) -> String {
    let reason = reason.to_string().repeat(1000);
    let gates = vec![format!("{{ action: deny, tools: [a], reason: {reason} }}"); 20].join(", ");
    let bots: String = (0..8).map(|number| format!("  - name: bot {number}\n    gates: [{gates}]\n")).collect();
    format!("bots:\n{bots}{rest}")
}

#[tokio::test]
async fn what_another_command_has_set_since_the_plan_is_not_overwritten() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let api = &world.api;
    let mut bot = String::new();
    for number in 0..8 {
        bot = api.bot(&format!("bot {number}")).await?;
    }
    let site = json!({ "resource_type": "test-echo", "name": "site", "config": { "api_base": "https://a.example" } });
    let site = made(api, "/api/resources", &site).await?;
    let provider =
        json!({ "resource_type": "test-echo", "client_id": "first", "token_url": "https://id.example/token" });
    let provider = made(api, "/api/oauth/providers", &provider).await?;
    let schedule = json!({ "name": "hourly", "bot_id": bot, "instruction": "first", "every_s": 3600 });
    let schedule = made(api, "/api/schedules", &schedule).await?;
    fs::write(world.server.home().join("token.txt"), "a-long-enough-token\n")?;
    let credential = format!("/api/resources/{site}/credential");
    let theirs = json!({ "auth_method": "token", "fields": { "access_token": "the-token-of-others" } });
    let resource = "resources:\n  - name: site\n    type: test-echo\n    config: { api_base: https://a.example }\n    \
                    credential: { method: token, fields: { access_token: 'file:token.txt' } }\n";
    let (provider, hourly) = (format!("/api/oauth/providers/{provider}"), format!("/api/schedules/{schedule}"));
    let cases = [
        (resource.to_owned(), Method::Put, credential.as_str(), theirs.clone(), "resources[0].credential"),
        // The same again: this time the resource had a credential when the plan was made.
        (resource.to_owned(), Method::Put, credential.as_str(), theirs, "resources[0].credential"),
        (
            "oauth_providers:\n  - { type: test-echo, client_id: mine }\n".to_owned(),
            Method::Patch,
            provider.as_str(),
            json!({ "client_id": "theirs" }),
            "the OAuth provider of test-echo",
        ),
        (
            "budgets:\n  - { subject: each_user, monthly_tokens: 5 }\n".to_owned(),
            Method::Put,
            "/api/budgets",
            json!({ "subject": "user", "id": "*", "monthly_tokens": 7 }),
            "budgets[0]: the budget of each user without a budget",
        ),
        (
            "schedules:\n  - { name: hourly, bot: bot 7, instruction: mine, every_s: 3600 }\n".to_owned(),
            Method::Patch,
            hourly.as_str(),
            json!({ "instruction": "theirs" }),
            "schedules[0]: schedule hourly",
        ),
    ];
    for ((rest, method, path, body, place), reason) in cases.into_iter().zip('a'..) {
        fs::write(world.server.home().join("file.yaml"), large(reason, &rest))?;
        let set = async {
            let (status, answer) = match method {
                Method::Put => api.put(path, &body).await?,
                Method::Patch => api.patch(path, &body).await?,
            };
            ensure!(status == 200, "{path}: {status} {answer}");
            Ok(())
        };
        let answer = interrupted(&world, set).await?;
        ensure!(answer.contains(place) && (answer.contains("(412)") || answer.contains("(409)")), "{place}: {answer}");
        ensure!(answer.contains("the objects in the files were applied; run the command again"), "{answer}");
    }
    // What the others have set is still there.
    assert_eq!(items(api, "/api/oauth/providers").await?[0]["client_id"], "theirs");
    let budgets = items(api, "/api/budgets").await?;
    assert_eq!(
        budgets.iter().find(|budget| budget["id"] == "*").map(|budget| &budget["monthly_tokens"]),
        Some(&json!(7))
    );
    assert_eq!(text(&api.get(&hourly).await?.1["instruction"]), "theirs");
    // The repeated command sees the new state, and sets its own.
    succeed(&world.server, &["apply", "file.yaml", "--yes"]).await?;
    assert_eq!(text(&api.get(&hourly).await?.1["instruction"]), "mine");
    Ok(())
}

/// How another command changes an object.
enum Method {
    Put,
    Patch,
}

#[tokio::test]
async fn an_object_that_has_changed_since_the_plan_is_not_pruned() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    for number in 0..8 {
        api.bot(&format!("bot {number}")).await?;
    }
    let spare = api.bot("spare").await?;
    let path = format!("/api/bots/{spare}");
    let file = large('p', "  - name: tester\n");
    fs::write(world.server.home().join("file.yaml"), &file)?;
    let mut command = world.server.prepared_command(&["apply", "file.yaml", "--yes", "--prune"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut plan = child.stdout.take().context("the command has no standard output")?;
    let mut rest = vec![plan.read_u8().await?];
    assert_eq!(api.patch(&path, &json!({ "description": "needed" })).await?.0, 200);
    plan.read_to_end(&mut rest).await?;
    let output = child.wait_with_output().await?;
    let message = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1) && message.contains("bot spare"), "{message}");
    assert_eq!(api.get(&path).await?.1["description"], "needed");
    Ok(())
}
