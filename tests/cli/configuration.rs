//! The commands `monstrum export` and `monstrum apply`: the configuration of a workspace as YAML.

use std::fs;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{FakeGithub, Server};

use crate::cli::{parsed, succeed, told};
use crate::world::{World, text};

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
    ensure!(refused.contains(": oauth_providers[0].client_secret: expected env:"), "{refused}");
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
