//! The commands `monstrum export` and `monstrum apply`: the configuration of a workspace as YAML.

mod conditions;

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{Api, FakeGithub, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cli::{parsed, succeed, told};
use crate::world::{World, eventually, text};

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

/// Returns everything that an apply could change, and the audited changes.
async fn state(api: &Api) -> Result<Vec<Value>> {
    let mut lists = Vec::new();
    for path in ["/api/bots", "/api/roles", "/api/resources", "/api/oauth/providers", "/api/audit/changes"] {
        let (status, list) = api.get(&format!("{path}?limit=1000")).await?;
        ensure!(status == 200, "{path}: {status} {list}");
        lists.push(list["items"].clone());
        if path == "/api/bots" {
            for bot in list["items"].as_array().into_iter().flatten() {
                lists.push(api.get(&format!("/api/bots/{}/resources", text(&bot["id"]))).await?.1);
            }
        }
    }
    Ok(lists)
}

#[tokio::test]
async fn a_repeated_apply_changes_nothing() -> Result<()> {
    let mut server = Server::prepare(&["test-echo"])?;
    server.launch().await?;
    let api = server.api()?;
    fs::write(server.home().join("secret.txt"), "a-secret\n")?;
    fs::write(
        server.home().join("all.yaml"),
        "roles:\n  - name: reader\n    allowed_operations: ['*.read']\n    gates: [{ action: ask, operations: ['*'] \
         }]\nresources:\n  - name: site\n    type: test-echo\n    labels: [private]\n    credential: { method: token, \
         fields: { access_token: 'file:secret.txt' } }\nbots:\n  - name: helper\n    monthly_token_budget: 5\n    \
         bindings:\n      - resource: site\n        role: reader\n        scope_constraints: { repos: [acme/*] }\n        \
         limits: { timeout_s: 5 }\noauth_providers:\n  - type: test-echo\n    client_id: abc\n    client_secret: \
         'file:secret.txt'\n    token_url: https://id.example/token\n",
    )?;
    succeed(&server, &["apply", "all.yaml", "--yes"]).await?;
    let applied = state(&api).await?;
    ensure!(applied.iter().any(|list| list.to_string().contains("import.apply")), "the apply was not audited");
    for flags in [&[][..], &["--yes"], &["--prune", "--yes"], &["--dry-run"]] {
        assert_eq!(
            told(&server, &[&["apply", "all.yaml"], flags].concat()).await?,
            "[stderr]\nthe workspace already has this configuration\n[exit 0]"
        );
        assert_eq!(state(&api).await?, applied, "{flags:?}");
    }
    Ok(())
}

/// An apply that has shown its plan does not overwrite what another apply changes before it goes on.
#[tokio::test]
async fn of_two_applies_the_one_with_an_outdated_plan_is_told_and_applies_nothing() -> Result<()> {
    let world = World::with(&[]).await?;
    let gates = vec![format!("{{ action: deny, tools: [a], reason: {} }}", "x".repeat(1000)); 20].join(", ");
    let mut first = "roles:\n  - name: reader\n    allowed_operations: ['*.read']\nbots:\n".to_owned();
    for number in 0..8 {
        world.api.bot(&format!("bot {number}")).await?;
        first.push_str(&format!("  - name: bot {number}\n    gates: [{gates}]\n"));
    }
    fs::write(world.server.home().join("first.yaml"), &first)?;
    fs::write(world.server.home().join("second.yaml"), "bots:\n  - name: bot 0\n    description: the second\n")?;

    let mut command = world.server.prepared_command(&["apply", "first.yaml", "--yes"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut plan = child.stdout.take().context("the command has no standard output")?;
    // The plan is made when its first byte arrives. It is larger than a pipe, so the command waits for its reader.
    let begun = plan.read_u8().await?;
    succeed(&world.server, &["apply", "second.yaml", "--yes"]).await?;
    let second = state(&world.api).await?;
    let mut rest = Vec::new();
    plan.read_to_end(&mut rest).await?;
    ensure!(begun == b'c' && rest.len() > 100_000, "the plan is too small to make the command wait");
    let output = child.wait_with_output().await?;
    let message = String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(1), "{message}");
    ensure!(message.contains("(409)") && message.contains("after the dry run of this plan"), "{message}");
    ensure!(message.trim_end().ends_with("hint: run the command again"), "{message}");
    assert_eq!(state(&world.api).await?, second, "the refused apply changed something");

    // The repeated command shows what has changed, and applies all of it.
    let again = succeed(&world.server, &["apply", "first.yaml", "--yes"]).await?;
    ensure!(again.starts_with("create 1 role\nchange 8 bots"), "{}", &again[..100]);
    Ok(())
}

#[tokio::test]
async fn an_apply_during_another_import_is_told_and_applies_nothing() -> Result<()> {
    let world = World::with(&[]).await?;
    fs::write(world.server.home().join("file.yaml"), "bots:\n  - name: new\n")?;
    let before = state(&world.api).await?;
    // An import whose body does not arrive. The server sends 100 when it begins to read the body.
    let address =
        world.server.url().and_then(|url| url.strip_prefix("http://")).context("the server has no address")?;
    let mut import = TcpStream::connect(address).await?;
    let head = format!(
        "POST /api/import HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\ncontent-type: \
         application/jsonl\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n",
        world.api.key()
    );
    import.write_all(head.as_bytes()).await?;
    let mut begun = [0; 12];
    import.read_exact(&mut begun).await?;
    assert_eq!(&begun, b"HTTP/1.1 100", "the import has not begun");
    for flag in ["--yes", "--dry-run"] {
        let answer = told(&world.server, &["apply", "file.yaml", flag]).await?;
        ensure!(answer.contains("another import into this workspace is running"), "{answer}");
        ensure!(answer.ends_with("hint: run the command again\n[exit 1]"), "{answer}");
    }
    assert_eq!(state(&world.api).await?, before);
    drop(import);
    eventually("the import has ended", async || {
        let output = world.server.command(&["apply", "file.yaml", "--yes"]).await?;
        Ok(output.status.success().then_some(()))
    })
    .await
}

#[tokio::test]
async fn faults_across_files_and_of_references_name_file_and_line() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let home = world.server.home();
    let role = "roles:\n  - name: reader\n    allowed_operations: ['*']\n";
    fs::write(home.join("a.yaml"), role)?;
    fs::write(home.join("b.yaml"), format!("# The role is in a.yaml too.\n{role}"))?;
    fs::write(home.join("secret.txt"), "a-secret")?;
    fs::write(
        home.join("provider.yaml"),
        "oauth_providers:\n  - type: test-echo\n    client_id: abc\n    client_secret: 'file:absent.txt'\n",
    )?;
    fs::write(
        home.join("credential.yaml"),
        "resources:\n  - name: site\n    type: test-echo\n    credential:\n      method: absent\n      fields: { \
         access_token: 'file:secret.txt' }\n",
    )?;
    for (files, parts) in [
        (&["a.yaml", "b.yaml"][..], &["b.yaml:3:", "a.yaml:2:", "roles[0] has the same role", "hint: correct"][..]),
        (
            &["provider.yaml"],
            &["provider.yaml:4:20: oauth_providers[0].client_secret: cannot read absent.txt", "hint: "],
        ),
        (&["credential.yaml"], &["credential.yaml:5:", "resources[0].credential: ", "hint: "]),
    ] {
        let answer = told(&world.server, &[&["apply"], files, &["--yes"]].concat()).await?;
        for part in parts {
            ensure!(answer.contains(part), "{files:?}: no {part:?} in {answer}");
        }
        ensure!(answer.ends_with("[exit 1]") && !answer.contains("a-secret"), "{answer}");
    }
    let (_, roles) = world.api.get("/api/roles").await?;
    assert_eq!(roles["items"], json!([]));
    Ok(())
}
