//! Tests of the command `monstrum key`.

use anyhow::Result;
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, run, told};
use crate::http::{made, workspace};

#[tokio::test]
async fn a_key_is_made_and_only_it_goes_to_standard_output() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let bot = api.bot("triage").await?;
    assert_snapshot!(told(&server, &["key", "create", "--name", "ci", "--kind", "operator"]).await?, @r#"
    [key]
    [stderr]
    created operator key [id 1]; it will not be shown again:
    [exit 0]
    "#);
    let output = run(&server, &["key", "create", "--name", "t", "--kind", "bot", "--bot-id", &bot]).await?;
    let key = String::from_utf8(output.stdout)?;
    assert_eq!(api.with_key(key.trim()).get(&format!("/api/bots/{bot}/tools")).await?, (200, json!({ "items": [] })));
    let (code, mut made) = parsed(&server, &["key", "create", "--name", "backup", "--kind", "admin"]).await?;
    assert_eq!(code, Some(0));
    let key = made["key"].take();
    assert_eq!(api.with_key(key.as_str().unwrap_or_default()).get("/api/keys").await?.0, 200);
    made["prefix"].take();
    assert_json_snapshot!(crate::stable::stable(&made), @r#"
    {
      "id": "[id 1]",
      "key": null,
      "name": "backup",
      "kind": "admin",
      "bot_id": null,
      "resource_id": null,
      "prefix": null,
      "created_at": "[time]"
    }
    "#);

    workspace(&api, "acme").await?;
    let arguments = ["key", "create", "--name", "there", "--kind", "admin", "--workspace", "acme", "--json"];
    let made: Value = serde_json::from_slice(&run(&server, &arguments).await?.stdout)?;
    let there = api.with_key(made["key"].as_str().unwrap_or_default());
    assert_eq!(
        there.get("/api/keys").await?.1["items"].as_array().map(Vec::len),
        Some(2),
        "the key does not list exactly the two keys of the workspace"
    );
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_a_key_is_explained() -> Result<()> {
    let server = Server::start(&[]).await?;
    let operator = server.api()?.new_key("operator", None).await?;
    let mut answers = Vec::new();
    for arguments in [
        &["--name", "x"][..],
        &["--name", "x", "--kind", "god"],
        &["--name", "x", "--kind", "bot"],
        &["--name", "", "--kind", "admin"],
        &["--name", "x", "--kind", "bot", "--bot-id", "triage"],
        &["--name", "x", "--kind", "admin", "--bot-id", "019a0000-0000-7000-8000-000000000001"],
        &["--name", "x", "--kind", "admin", "--key", &operator],
    ] {
        answers.push(told(&server, &[&["key", "create"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @r#"
    [stderr]
    error: the following required arguments were not provided:
      --kind <KIND>

    Usage: monstrum key create --name <NAME> --kind <KIND> --url <URL> --data-dir <DIR>
    hint: `monstrum key create --help` shows usage and examples
    [exit 2]
    [stderr]
    error: invalid value 'god' for '--kind <KIND>'
      [possible values: root, admin, operator, approver, bot, agent]
    hint: `monstrum key create --help` shows usage and examples
    [exit 2]
    [stderr]
    error: the following required arguments were not provided:
      --bot-id <BOT>

    Usage: monstrum key create --name <NAME> --kind <KIND> --url <URL> --data-dir <DIR> --bot-id <BOT>
    hint: `monstrum key create --help` shows usage and examples
    [exit 2]
    [stderr]
    error: The input is invalid (422)
      /name: must not be empty
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    [stderr]
    error: the workspace has no bot `triage`
    hint: `monstrum bot list` lists the bots; --workspace sets another workspace
    [exit 1]
    [stderr]
    error: The input is invalid (422)
      /bot_id: allowed only when `kind` is `bot`
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    [stderr]
    error: This key has no permission for this action (403)
      an admin key is required
      request [id 1]
    hint: use a key of a kind that permits this action; run `monstrum key create --help` to see the kinds
    [exit 1]
    "#);
    Ok(())
}

#[tokio::test]
async fn keys_are_listed_rotated_and_deleted() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let bot = api.bot("triage").await?;
    let body = json!({ "name": "t", "kind": "bot", "bot_id": bot });
    let (_, key) = api.post("/api/keys", &body).await?;
    let (id, old) = (key["id"].as_str().unwrap_or_default(), key["key"].as_str().unwrap_or_default());
    assert_snapshot!(told(&server, &["key", "list"]).await?, @"
     ID                                    NAME   KIND  BOT                                   RESOURCE  BEGINS WITH  CREATED                   LAST USED
     [id 1]  admin  root                                                  [key]     [time]  [time]
     [id 2]  t      bot   [id 3]            [key]     [time]
    [exit 0]
    ");
    let (code, list) = parsed(&server, &["key", "list"]).await?;
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (Some(0), Some(2)));
    assert_eq!(list["items"][1]["last_used_at"], Value::Null);

    let output = run(&server, &["key", "rotate", id]).await?;
    let new = String::from_utf8(output.stdout)?;
    let tools = format!("/api/bots/{bot}/tools");
    assert_eq!(api.with_key(new.trim()).get(&tools).await?, (200, json!({ "items": [] })));
    assert_eq!(api.with_key(old).get(&tools).await?.0, 401);
    let (code, rotated) = parsed(&server, &["key", "rotate", id]).await?;
    assert_eq!((code, &rotated["id"], &rotated["kind"]), (Some(0), &json!(id), &json!("bot")));
    let root = made(&api, "/api/keys", &json!({ "name": "second root", "kind": "root" })).await?;
    let mut answers = Vec::new();
    for arguments in [
        &["rotate", id][..],
        &["rotate", &root],
        &["delete", id],
        &["delete", id],
        &["rotate", id],
        &["delete", "triage"],
        &["rotate"],
        &["list", "--key", new.trim()],
    ] {
        answers.push(told(&server, &[&["key"], arguments].concat()).await?);
    }
    assert_snapshot!(answers.join("\n"), @r#"
    [key]
    [stderr]
    rotated bot key [id 1]; the old key no longer works, and the new key will not be shown again:
    [exit 0]
    [key]
    [stderr]
    rotated root key [id 1]; the old key no longer works, and the new key will not be shown again:
    warning: DATA/admin.key was not rewritten; if it contains this key, write the new key to it
    [exit 0]
    [stderr]
    deleted key [id 1]; it no longer works
    [exit 0]
    [stderr]
    error: Not found (404)
      no such key
      request [id 1]
    hint: run `monstrum key list` to see the keys; also check --workspace
    [exit 1]
    [stderr]
    error: Not found (404)
      no such key
      request [id 1]
    hint: run `monstrum key list` to see the keys; also check --workspace
    [exit 1]
    [stderr]
    error: Not found (404)
      no such object with this id
      request [id 1]
    hint: run `monstrum key list` to see the keys; also check --workspace
    [exit 1]
    [stderr]
    error: the following required arguments were not provided:
      <ID>

    Usage: monstrum key rotate --url <URL> --data-dir <DIR> <ID>
    hint: `monstrum key rotate --help` shows usage and examples
    [exit 2]
    [stderr]
    error: A valid API key is required (401)
      unknown API key
      request [id 1]
    hint: check that the key in --key, MONSTRUM_KEY or DATA/admin.key belongs to this server
    [exit 1]
    "#);
    let output = run(&server, &["key", "rotate", &root, "--json"]).await?;
    let rotated: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(rotated["kind"], "root");
    assert!(
        String::from_utf8(output.stderr)?.contains("admin.key was not rewritten"),
        "the command does not say that admin.key is not rewritten"
    );
    assert_eq!(parsed(&server, &["key", "delete", &root]).await?, (Some(0), json!({ "id": root, "deleted": true })));
    Ok(())
}

/// After the loss of the last root key, the data folder and the master key suffice to create a new root key. The audit
/// records the creation.
#[tokio::test]
async fn a_lost_root_key_is_recovered_offline_and_recorded() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let refused = told(&server, &["key", "recover"]).await?;
    assert!(refused.contains("stop the server first") && refused.ends_with("[exit 1]"), "{refused}");
    server.stop().await?;
    std::fs::remove_file(server.key_file())?;
    let master = server.data_dir().join("master.key");
    let kept = std::fs::read(&master)?;
    std::fs::remove_file(&master)?;
    let refused = told(&server, &["key", "recover"]).await?;
    assert!(refused.contains("master.key is missing") && refused.ends_with("[exit 1]"), "{refused}");
    std::fs::write(&master, kept)?;
    std::fs::set_permissions(&master, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let output = run(&server, &["key", "recover"]).await?;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let key = String::from_utf8(output.stdout)?;
    server.launch().await?;
    let api = support::Api::new(server.url().expect("it runs"), key.trim())?;
    let (status, keys) = api.get("/api/keys").await?;
    assert_eq!(status, 200, "{keys}");
    let kinds: Vec<&str> =
        keys["items"].as_array().into_iter().flatten().filter_map(|key| key["kind"].as_str()).collect();
    assert_eq!(kinds, ["root", "root"], "the lost key was deleted");
    let (_, changes) = api.get("/api/audit/changes").await?;
    let made = &changes["items"][0];
    assert_eq!((&made["change"], &made["status"]), (&json!("key.recover"), &json!("success")), "{changes}");
    assert_eq!((&made["after"]["kind"], &made["key_kind"]), (&json!("root"), &json!("offline")), "{made}");
    assert!(!changes.to_string().contains(key.trim()), "the recorded changes contain the key");
    let (_, verified) = api.get("/api/audit/verify").await?;
    assert_eq!(verified["valid"], true, "{verified}");
    Ok(())
}
