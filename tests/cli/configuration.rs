//! The commands `monstrum export` and `monstrum apply`: the configuration of a workspace as YAML.

use std::fs;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Api, FakeGithub, Server};

use crate::cli::{parsed, succeed, told};
use crate::world::{World, text};

const BOTS: usize = 20;

/// Creates bots whose bindings differ in roles, scopes and limits.
async fn populate(world: &World) -> Result<()> {
    let api = &world.api;
    let url = world.github.url();
    let resources = [api.resource("test-echo", "site", &url).await?, api.resource("test-echo", "shop", &url).await?];
    let roles = [
        api.role("reader", &["*.read"]).await?,
        api.role("writer", &["echo.*"]).await?,
        api.role("nothing", &[]).await?,
    ];
    for number in 0..BOTS {
        let bot = api.bot(&format!("bot {number}: \"quoted\"")).await?;
        let scopes = json!({ "repos": [format!("acme/{}*", number % 4)] });
        let (role, resource) = (&roles[number % 3], &resources[number % 2]);
        let binding = api.bind(&bot, resource, role, &scopes).await?;
        let change = json!({ "calls_per_minute": 1000 + number, "enabled": number % 7 != 6,
            "gates": if number % 5 == 0 { json!([{ "operations": ["echo.write"], "action": "deny" }]) } else { json!([]) } });
        let (status, body) = api.patch(&format!("/api/bots/{bot}/resources/{binding}"), &change).await?;
        ensure!(status == 200, "{status} {body}");
    }
    Ok(())
}

/// Returns the decisions about the same questions to all bots, by the name of the bot.
async fn decisions(api: &Api) -> Result<Vec<(String, Value)>> {
    let (_, bots) = api.get("/api/bots?limit=1000").await?;
    let mut decisions = Vec::new();
    for bot in bots["items"].as_array().into_iter().flatten() {
        for (tool, params) in [
            ("test_echo_run", json!({ "repo": "acme/0site" })),
            ("test_echo_run", json!({ "repo": "acme/1site" })),
            ("test_echo_run", json!({ "repo": "other/site" })),
            ("test_echo_write", json!({})),
            ("absent", json!({})),
        ] {
            let verdict = api.check(text(&bot["id"]), tool, &params).await?;
            let said = ["decision", "rule", "message", "reason", "smallest_change"].map(|field| verdict[field].clone());
            decisions.push((format!("{} {tool} {params}", text(&bot["name"])), json!(said)));
        }
    }
    decisions.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(decisions)
}

#[tokio::test]
async fn an_export_makes_an_empty_server_decide_alike() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    populate(&world).await?;
    let exported = succeed(&world.server, &["export"]).await?;
    let mut other = Server::prepare(&["test-echo"])?;
    other.launch().await?;
    let file = other.home().join("configuration.yaml");
    fs::write(&file, &exported)?;
    let path = file.to_str().unwrap_or_default();

    let plan = succeed(&other, &["apply", path, "--dry-run"]).await?;
    ensure!(plan.contains(&format!("create 3 roles, {} bots", BOTS + 1)), "{plan}");
    let (_, bots) = other.api()?.get("/api/bots").await?;
    assert_eq!(bots["items"], json!([]), "a dry run created bots");
    succeed(&other, &["apply", path, "--yes"]).await?;
    assert_eq!(succeed(&other, &["export"]).await?, exported);
    let (before, after) = (decisions(&world.api).await?, decisions(&other.api()?).await?);
    let of = |decision: &str| before.iter().filter(|(_, said)| said[0] == decision).count();
    ensure!(of("allow") > 5 && of("deny") > 5, "the questions do not tell policies apart");
    assert_eq!(before, after);

    // A repeated apply changes nothing and needs no confirmation.
    let (_, changes) = other.api()?.get("/api/audit/changes?limit=1000").await?;
    assert_eq!(
        told(&other, &["apply", path]).await?,
        "[stderr]\nthe workspace already has this configuration\n[exit 0]"
    );
    assert_eq!(other.api()?.get("/api/audit/changes?limit=1000").await?.1, changes);
    Ok(())
}

#[tokio::test]
async fn the_plan_shows_what_bots_gain_and_lose_and_pruning_deletes() -> Result<()> {
    let mut server = Server::prepare(&["github"])?;
    server.launch().await?;
    let github = FakeGithub::start().await?;
    let home = server.home().to_owned();
    let write = |name: &str, text: &str| fs::write(home.join(name), text);
    fs::write(home.join("token.txt"), format!("{}\n", github.token()))?;
    write(
        "resources.yaml",
        &format!(
            "resources:\n  - name: tracker\n    type: github\n    config: {{ api_base: '{}' }}\n    network: {{ \
             allow_http: true, allow_addresses: [127.0.0.0/8] }}\n    credential:\n      method: token\n      fields: \
             {{ access_token: 'file:token.txt' }}\n",
            github.url()
        ),
    )?;
    write(
        "bots.yaml",
        "roles:\n  - name: reader\n    allowed_operations: ['*.read']\nbots:\n  - name: helper\n    bindings:\n      - \
         resource: tracker\n        role: reader\n        scope_constraints: { repos: [acme/*] }\n  - name: spare\n",
    )?;
    let both = ["apply", "resources.yaml", "bots.yaml"];
    let mut answers = vec![told(&server, &[&both[..], &["--dry-run"]].concat()).await?];
    answers.push(told(&server, &both).await?);
    answers.push(told(&server, &[&both[..], &["--yes"]].concat()).await?);
    answers.push(told(&server, &both).await?);
    let issues = succeed(&server, &["call", "helper", "github_list_issues", r#"{"repo": "acme/site"}"#]).await?;
    ensure!(issues.contains("The home page is slow"), "{issues}");
    write(
        "bots.yaml",
        "roles:\n  - name: reader\n    allowed_operations: ['issue.read']\nbots:\n  - name: helper\n    \
         monthly_token_budget: 5\n",
    )?;
    answers.push(told(&server, &[&both[..], &["--prune", "--dry-run"]].concat()).await?);
    answers.push(told(&server, &[&both[..], &["--prune", "--yes"]].concat()).await?);
    answers.push(told(&server, &[&both[..], &["--prune"]].concat()).await?);
    assert_snapshot!(answers.join("\n"));
    let (_, bots) = parsed(&server, &["bot", "list"]).await?;
    let names: Vec<&str> = bots["items"].as_array().into_iter().flatten().map(|bot| text(&bot["name"])).collect();
    assert_eq!(names, ["helper"]);
    Ok(())
}

/// OAuth providers are exported without their secrets, and applied with a reference to the secret.
#[tokio::test]
async fn oauth_providers_are_exported_without_secrets_and_applied() -> Result<()> {
    const SECRET: &str = "client-secret-of-the-test";
    let world = World::with(&["test-echo"]).await?;
    let provider = json!({ "resource_type": "test-echo", "client_id": "abc", "client_secret": SECRET,
        "token_url": "https://id.example/token", "scopes": ["repo"] });
    assert_eq!(world.api.post("/api/oauth/providers", &provider).await?.0, 201);
    let exported = succeed(&world.server, &["export"]).await?;
    ensure!(exported.contains("oauth_providers:\n- type: test-echo\n  client_id: abc\n"), "{exported}");
    ensure!(!exported.contains(SECRET) && !exported.contains("client_secret"), "{exported}");

    let mut other = Server::prepare(&["test-echo"])?;
    other.launch().await?;
    let home = other.home().to_owned();
    let write = |client_secret: &str| {
        let text = exported.replace("client_id: abc\n", &format!("client_id: abc\n  client_secret: {client_secret}\n"));
        fs::write(home.join("file.yaml"), text)
    };
    fs::write(home.join("secret.txt"), format!("{SECRET}\n"))?;
    let provider = async || -> Result<Value> {
        let (_, list) = other.api()?.get("/api/oauth/providers").await?;
        Ok(list["items"][0].clone())
    };
    // A secret in the file is refused, and not repeated.
    write(SECRET)?;
    let refused = told(&other, &["apply", "file.yaml", "--yes"]).await?;
    ensure!(refused.contains("the client secret of the OAuth provider of test-echo: expected env:"), "{refused}");
    ensure!(!refused.contains(SECRET) && provider().await?.is_null(), "{refused}");

    write("file:secret.txt")?;
    let plan = succeed(&other, &["apply", "file.yaml", "--dry-run"]).await?;
    ensure!(plan.contains("set the OAuth provider of type test-echo") && provider().await?.is_null(), "{plan}");
    succeed(&other, &["apply", "file.yaml", "--yes"]).await?;
    let applied = provider().await?;
    assert_eq!(applied["has_client_secret"], true);
    assert_eq!(succeed(&other, &["export"]).await?, exported);

    // A repeated apply changes nothing, and a changed field is set.
    let again = told(&other, &["apply", "file.yaml"]).await?;
    ensure!(again.contains("the workspace already has this configuration"), "{again}");
    let text = fs::read_to_string(home.join("file.yaml"))?;
    let line = text.lines().find(|line| line.trim() == "- repo").context("the scopes of the provider")?;
    let added = format!("{line}\n{}", line.replace("repo", "user"));
    fs::write(home.join("file.yaml"), text.replace(line, &added))?;
    succeed(&other, &["apply", "file.yaml", "--yes"]).await?;
    let changed = provider().await?;
    assert_eq!((&changed["id"], &changed["scopes"]), (&applied["id"], &json!(["repo", "user"])));
    Ok(())
}

#[tokio::test]
async fn a_fault_is_told_with_its_place_and_nothing_is_changed() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let before = succeed(&world.server, &["export"]).await?;
    let mut answers = Vec::new();
    for content in [
        "bots:\n  - name: fine\n    bindings:\n      - resource: absent\n        role: none\n",
        "roles:\n  - name: reader\n    scopes: {}\n",
        "resources:\n  - name: site\n    type: test-echo\n    config: { region: mars }\n",
        "resources:\n  - name: site\n    type: test-echo\n    credential: { method: token, fields: { access_token: \
         a-secret-token } }\n",
        "resources:\n  - name: site\n    type: test-echo\n    credential: { method: token, fields: { access_token: \
         'env:MONSTRUM_TEST_ABSENT' } }\n",
        "roles: [\n",
    ] {
        fs::write(world.server.home().join("file.yaml"), content)?;
        answers.push(told(&world.server, &["apply", "file.yaml", "--yes"]).await?);
    }
    answers.push(told(&world.server, &["apply", "absent.yaml", "--yes"]).await?);
    let answers = answers.join("\n");
    ensure!(!answers.contains("a-secret-token"), "{answers}");
    assert_snapshot!(answers);
    assert_eq!(succeed(&world.server, &["export"]).await?, before);
    Ok(())
}
