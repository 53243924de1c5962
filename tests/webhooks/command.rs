//! `monstrum webhook`.

use anyhow::{Context, Result};
use serde_json::json;

use super::{Hook, refused};
use crate::cli::{parsed, run, succeed, told};
use crate::world::{World, text};

const BODY: &str = "{}";

#[tokio::test]
async fn webhooks_are_managed_by_name() -> Result<()> {
    let world = World::with(&[]).await?;
    let server = &world.server;
    let none = told(server, &["webhook", "list"]).await?;
    assert_eq!(none, "[stderr]\nno webhooks; `monstrum webhook create` creates one\n[exit 0]");
    let arguments = [
        "webhook",
        "create",
        "pushes",
        "--event",
        "github.push",
        "--bot",
        "tester",
        "--header",
        "X-GitHub-Event",
        "--header",
        "X-Other",
        "--dedupe-header",
        "X-GitHub-Delivery",
    ];
    let created = run(server, &arguments).await?;
    assert!(created.status.success(), "{created:?}");
    let notes = String::from_utf8(created.stderr)?;
    assert!(notes.contains("warning: systems outside may not reach this URL") && notes.contains("/hooks/"), "{notes}");
    let (code, shown) = parsed(server, &["webhook", "show", "pushes"]).await?;
    let secret = String::from_utf8(created.stdout)?.trim().to_owned();
    let hook = Hook { id: text(&shown["id"]).to_owned(), secret };
    assert_eq!(code, Some(0));
    assert_eq!((&shown["bot_id"], &shown["headers"]), (&json!(world.bot), &json!(["X-GitHub-Event", "X-Other"])));
    assert_eq!((&shown["dedupe_header"], &shown["event"]), (&json!("X-GitHub-Delivery"), &json!("github.push")));
    let verify = json!({ "kind": "hmac_sha256", "header": "X-Hub-Signature-256", "prefix": "sha256=" });
    assert_eq!(shown["verify"], verify);
    hook.event(&world.api, hook.signed(BODY)).await?;

    let listed = succeed(server, &["webhook", "list"]).await?;
    assert!(listed.contains("pushes") && listed.contains("hmac_sha256") && listed.contains(&hook.id), "{listed}");
    let fields = succeed(server, &["webhook", "show", &hook.id]).await?;
    assert!(fields.contains("signature header  X-Hub-Signature-256") && !fields.contains("wh_"), "{fields}");

    let edit =
        ["webhook", "edit", "pushes", "--event", "git", "--header", "X-One", "--clear", "bot_id", "--name", "git"];
    succeed(server, &edit).await?;
    let (_, edited) = parsed(server, &["webhook", "show", "git"]).await?;
    assert_eq!((&edited["event"], &edited["headers"], edited.get("bot_id")), (&json!("git"), &json!(["X-One"]), None));
    hook.event(&world.api, hook.signed(BODY)).await?;
    assert!(told(server, &["webhook", "edit", "git"]).await?.contains("the command changes nothing"));

    let rotated = succeed(server, &["webhook", "rotate", "git"]).await?;
    assert_eq!(hook.send(&world.api, hook.signed(BODY)).await?, refused());
    let hook = Hook { secret: rotated, ..hook };
    hook.event(&world.api, hook.signed(BODY)).await?;
    succeed(server, &["webhook", "delete", "git"]).await?;
    assert_eq!(hook.send(&world.api, hook.signed(BODY)).await?, refused());
    let missing = told(server, &["webhook", "show", "git"]).await?;
    assert!(missing.contains("the workspace has no webhook `git`") && missing.contains("`monstrum webhook list`"));
    Ok(())
}

#[tokio::test]
async fn flags_say_how_requests_are_authenticated() -> Result<()> {
    let world = World::with(&[]).await?;
    let create = async |name: &str, flags: &[&str]| {
        let (code, made) =
            parsed(&world.server, &[&["webhook", "create", name, "--event", "e"], flags].concat()).await?;
        anyhow::ensure!(code == Some(0), "{made}");
        Ok(made)
    };
    let token = create("token", &["--token"]).await?;
    assert_eq!(token["verify"], json!({ "kind": "token" }));
    let hook = Hook { id: text(&token["id"]).to_owned(), secret: text(&token["secret"]).to_owned() };
    hook.event(&world.api, hook.with_token(BODY)).await?;
    let signed = create("signed", &["--signature-header", "X-Signature", "--signature-prefix", ""]).await?;
    assert_eq!(signed["verify"], json!({ "kind": "hmac_sha256", "header": "X-Signature", "prefix": "" }));
    succeed(&world.server, &["webhook", "edit", "signed", "--token"]).await?;
    let (_, edited) = parsed(&world.server, &["webhook", "show", "signed"]).await?;
    assert_eq!(edited["verify"], json!({ "kind": "token" }));
    let both =
        run(&world.server, &["webhook", "create", "x", "--event", "e", "--token", "--signature-header", "y"]).await?;
    assert_eq!(both.status.code(), Some(2));
    let invalid = told(&world.server, &["webhook", "create", "x", "--event", "custom.e"]).await?;
    assert!(invalid.contains("/event: ") && invalid.contains("[exit 1]"), "{invalid}");
    Ok(())
}

#[tokio::test]
async fn names_of_webhooks_are_completed() -> Result<()> {
    let world = World::with(&[]).await?;
    Hook::create(&world.api, "pushes", &json!({})).await?;
    let completed = run(&world.server, &["names", "--", "webhook", "rotate", "pu"]).await?;
    assert_eq!(String::from_utf8(completed.stdout).context("it is text")?, "pushes\n");
    Ok(())
}
