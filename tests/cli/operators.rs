//! The commands with which an operator sets up a server: bots, resources, credentials, roles, bindings, budgets,
//! workspaces and calls.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::{FakeGithub, Server};
use tokio::io::AsyncWriteExt as _;

use crate::cli::{parsed, run, succeed, told};
use crate::world::{World, text};

/// Starts a server with the plugin `github`, and an upstream.
async fn prepared() -> Result<(Server, FakeGithub)> {
    let mut server = Server::prepare(&["github"])?;
    server.launch().await?;
    Ok((server, FakeGithub::start().await?))
}

/// Creates the resource `tracker` of the upstream.
async fn tracker(server: &Server, github: &FakeGithub) -> Result<String> {
    let api_base = format!("api_base={}", github.url());
    let network = ["--allow-http", "--allow-address", "127.0.0.0/8"];
    let create = ["resource", "create", "tracker", "--type", "github", "--config", &api_base];
    succeed(server, &[&create[..], &network].concat()).await
}

/// Runs `credential set tracker` with the token in a file.
async fn give_token(server: &Server, token: &str) -> Result<String> {
    let file = server.home().join("token.txt");
    fs::write(&file, format!("{token}\n"))?;
    let field = format!("access_token=@{}", file.display());
    succeed(server, &["credential", "set", "tracker", "--field", &field]).await
}

#[tokio::test]
async fn seven_commands_lead_to_an_allowed_and_a_denied_call() -> Result<()> {
    let (server, github) = prepared().await?;
    tracker(&server, &github).await?;
    give_token(&server, &github.token()).await?;
    succeed(&server, &["role", "create", "reader", "--allow-operation", "*.read"]).await?;
    succeed(&server, &["bot", "create", "helper"]).await?;
    succeed(&server, &["binding", "create", "helper", "tracker", "--role", "reader", "--scope", "repos=acme/*"])
        .await?;
    let call = |repo: &str| {
        let params = json!({ "repo": repo }).to_string();
        let server = &server;
        async move { run(server, &["call", "helper", "github_list_issues", &params]).await }
    };
    let allowed = call("acme/site").await?;
    ensure!(allowed.status.code() == Some(0), "{}", String::from_utf8_lossy(&allowed.stderr));
    let issues: Value = serde_json::from_slice(&allowed.stdout)?;
    assert_eq!(issues[0]["title"], "The home page is slow", "{issues}");
    let denied = call("other/secret").await?;
    assert_eq!((denied.status.code(), denied.stdout.len()), (Some(1), 0));
    let message = String::from_utf8(denied.stderr)?;
    ensure!(message.starts_with("error: Scope violation: Repository other/secret is not authorized"), "{message}");
    assert_eq!(github.requests().len(), 1, "the denied call reached the upstream");
    Ok(())
}

#[tokio::test]
async fn objects_are_created_listed_shown_changed_and_deleted() -> Result<()> {
    let (server, github) = prepared().await?;
    let id = tracker(&server, &github).await?;
    assert_eq!(parsed(&server, &["resource", "show", &id]).await?.1["name"], "tracker");
    give_token(&server, &github.token()).await?;
    for command in [
        &["role", "create", "reader", "--allow-operation", "*.read", "--scope", "repos=acme/*"][..],
        &["bot", "create", "helper", "--description", "Sorts issues", "--monthly-token-budget", "1000"],
        &["binding", "create", "helper", "tracker", "--role", "reader", "--calls-per-minute", "30"],
    ] {
        succeed(&server, command).await?;
    }
    // Prints what each list and each object shows.
    let mut shown = Vec::new();
    for command in [
        &["resource", "list"][..],
        &["role", "list"],
        &["role", "show", "reader"],
        &["bot", "list"],
        &["binding", "list", "helper"],
        &["binding", "show", "helper", "tracker"],
        &["budget", "list"],
        &["budget", "show", "helper"],
        &["workspace", "list"],
    ] {
        shown.push(format!("$ {}\n{}", command.join(" "), told(&server, command).await?));
    }
    assert_snapshot!(shown.join("\n"));

    let field = async |command: &[&str], name: &str| anyhow::Ok(parsed(&server, command).await?.1[name].take());
    for (command, check, name, value) in [
        (&["bot", "edit", "helper", "--model", "m-1"][..], &["bot", "show", "helper"][..], "model", json!("m-1")),
        (&["bot", "edit", "helper", "--clear", "model"], &["bot", "show", "helper"], "model", Value::Null),
        (&["budget", "set", "helper", "5"], &["bot", "show", "helper"], "monthly_token_budget", json!(5)),
        (&["budget", "delete", "helper"], &["bot", "show", "helper"], "monthly_token_budget", Value::Null),
        (
            &["role", "edit", "reader", "--scope", "repos=a/*", "--scope", "repos=b/*"],
            &["role", "show", "reader"],
            "scope_constraints",
            json!({ "repos": ["a/*", "b/*"] }),
        ),
        (
            &["binding", "edit", "helper", "tracker", "--limit", "timeout_s=5", "--clear", "calls_per_minute"],
            &["binding", "show", "helper", "tracker"],
            "limits",
            json!({ "timeout_s": 5 }),
        ),
        (
            &["resource", "edit", "tracker", "--label", "private"],
            &["resource", "show", "tracker"],
            "labels",
            json!(["private"]),
        ),
        (
            &["resource", "edit", "tracker", "--unset-config", "api_base"],
            &["resource", "show", "tracker"],
            "config",
            json!({}),
        ),
    ] {
        succeed(&server, command).await?;
        assert_eq!(field(check, name).await?, value, "{command:?}");
    }
    assert_eq!(
        field(&["resource", "show", "tracker"], "network").await?,
        json!({ "allow_addresses": ["127.0.0.0/8"], "allow_http": true }),
        "a change of the configuration changed the network"
    );
    succeed(&server, &["workspace", "create", "acme"]).await?;
    succeed(&server, &["workspace", "edit", "acme", "--name", "acme-europe"]).await?;
    succeed(&server, &["--workspace", "acme-europe", "bot", "create", "other"]).await?;
    let (code, _) = parsed(&server, &["bot", "show", "other"]).await?;
    assert_eq!(code, Some(1), "a bot of another workspace was found");
    succeed(&server, &["--workspace", "acme-europe", "bot", "delete", "other"]).await?;
    for command in [
        &["workspace", "delete", "acme-europe"][..],
        &["binding", "delete", "helper", "tracker"],
        &["bot", "delete", "helper"],
        &["role", "delete", "reader"],
        &["credential", "delete", "tracker"],
        &["resource", "delete", "tracker"],
    ] {
        succeed(&server, command).await?;
    }
    for noun in ["bot", "resource", "role"] {
        assert_eq!(parsed(&server, &[noun, "list"]).await?.1["items"], json!([]), "{noun}");
    }
    Ok(())
}

#[tokio::test]
async fn wrong_input_is_refused_with_a_remedy() -> Result<()> {
    let (server, github) = prepared().await?;
    tracker(&server, &github).await?;
    let mut answers = Vec::new();
    for command in [
        &["bot", "show", "absent"][..],
        &["bot", "edit", "absent"],
        &["role", "delete", "absent"],
        &["workspace", "show", "absent"],
        &["bot", "create", "helper", "--set", "gates=["],
        &["role", "create", "reader", "--scope", "repos"],
        &["resource", "create", "x", "--type", "github", "--config", "base=1"],
        &["credential", "set", "tracker", "--field", "access_token=hunter2-hunter2"],
        &["credential", "set", "tracker", "--field", "token=@x"],
        &["credential", "set", "tracker", "--method", "basic"],
        &["credential", "set", "tracker"],
        &["credential", "show", "tracker"],
        &["binding", "create", "absent", "tracker"],
    ] {
        answers.push(format!("$ {}\n{}", command.join(" "), told(&server, command).await?));
    }
    assert_snapshot!(answers.join("\n"));
    Ok(())
}

#[tokio::test]
async fn a_secret_comes_from_a_file_a_variable_or_standard_input() -> Result<()> {
    let (server, github) = prepared().await?;
    tracker(&server, &github).await?;
    give_token(&server, &github.token()).await?;
    let shown = succeed(&server, &["credential", "show", "tracker"]).await?;
    ensure!(shown.starts_with("status   ready") && !shown.contains(&github.token()), "{shown}");
    succeed(&server, &["bot", "create", "helper"]).await?;
    succeed(&server, &["binding", "create", "helper", "tracker", "--allow-operation", "*"]).await?;
    let call = ["call", "helper", "github_list_issues", r#"{"repo": "acme/site"}"#];
    succeed(&server, &call).await?;

    let mut command = server.prepared_command(&["credential", "set", "tracker", "--field", "access_token=@-"])?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    child.stdin.take().context("the command has no standard input")?.write_all(b"a-wrong-token\n").await?;
    ensure!(child.wait().await?.success(), "the token was not read from standard input");
    assert_eq!(run(&server, &call).await?.status.code(), Some(1), "the upstream accepted a wrong token");

    let mut command =
        server.prepared_command(&["credential", "set", "tracker", "--field", "access_token=env:TOKEN"])?;
    let status = command.env("TOKEN", github.token()).stdout(Stdio::null()).stderr(Stdio::null()).status().await?;
    ensure!(status.success(), "the token was not read from the variable");
    succeed(&server, &call).await?;
    Ok(())
}

/// No message repeats a secret, and a refused command leaves the credential as it is.
#[tokio::test]
async fn a_refused_secret_is_neither_saved_nor_repeated() -> Result<()> {
    const SECRET: &str = "hunter2-hunter2";
    let world = World::with(&["test-echo"]).await?;
    let server = &world.server;
    let id = world.api.resource("test-echo", "site", &world.github.url()).await?;
    fs::write(server.home().join("secret.txt"), SECRET)?;
    let credential = async || {
        let (_, resource) = world.api.get(&format!("/api/resources/{id}")).await?;
        anyhow::Ok(resource["credential"].clone())
    };
    let set = |fields: &[&str]| {
        let mut arguments: Vec<String> = ["credential", "set", "site", "--method"].map(str::to_owned).to_vec();
        arguments
            .push(if fields.iter().any(|field| field.contains("username")) { "basic" } else { "token" }.to_owned());
        arguments.extend(fields.iter().flat_map(|field| ["--field".to_owned(), (*field).to_owned()]));
        arguments
    };
    let bare = format!("access_token={SECRET}");
    let password = format!("password={SECRET}");
    for (fields, message, hint) in [
        (&[bare.as_str()][..], "must not be an argument", "--field access_token=@FILE"),
        (&["username=ann", &password], "must not be an argument", "--field password=env:VARIABLE"),
        (&[SECRET], "expected NAME=@FILE or NAME=env:VARIABLE", "monstrum credential set --help"),
        (&["access_token=@absent.txt"], "cannot read absent.txt", "check the path"),
        (&["access_token=env:MONSTRUM_TEST_ABSENT"], "cannot read the environment variable", "set the variable"),
        (&["access_token=@secret.txt", "access_token=@secret.txt"], "is set twice", "set each field"),
    ] {
        let output = server.command(&set(fields)).await?;
        let said = format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        let last = said.trim_end().lines().last().unwrap_or_default();
        ensure!(!output.status.success() && said.contains(message), "{said}");
        ensure!(last.starts_with("hint: ") && last.contains(hint) && !said.contains(SECRET), "{said}");
        assert_eq!(credential().await?, Value::Null, "{said}");
    }
    // A field that is not a secret may be an argument beside a secret of a file.
    let output = server.command(&set(&["username=ann", "password=@secret.txt"])).await?;
    let said = format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.success() && !said.contains(SECRET), "{said}");
    assert_eq!(credential().await?["method"], "basic", "{said}");
    Ok(())
}

#[tokio::test]
async fn a_call_that_needs_an_approval_names_the_command() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant("github", &["issue.*"], &json!({ "repos": ["acme/*"] })).await?;
    let gates = r#"gates=[{"operations": ["issue.read"], "action": "ask", "allow_starter": true}]"#;
    succeed(&world.server, &["bot", "edit", "tester", "--set", gates]).await?;
    let call = ["call", "tester", "github_list_issues", r#"{"repo": "acme/site"}"#];
    let (code, answer) = parsed(&world.server, &call).await?;
    assert_eq!((code, text(&answer["status"])), (Some(1), "approval_required"), "{answer}");
    let output = run(&world.server, &call).await?;
    let message = String::from_utf8(output.stderr)?;
    let id = text(&answer["approval"]["id"]);
    ensure!(message.contains(&format!("monstrum approval approve {id}")), "{message}");
    succeed(&world.server, &["approval", "approve", id, "--yes"]).await?;
    ensure!(succeed(&world.server, &call).await?.contains("The home page is slow"), "the approved call did not run");
    Ok(())
}
