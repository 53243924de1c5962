//! A sealed record opens only in its original place. An attacker with write access to the database can destroy a
//! record, but cannot use it in another place.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::json;
use support::TOKEN;

use super::{Secrets, code};
use crate::cli::{parsed, told};
use crate::http::send;
use crate::stable::lines;
use crate::tamper::sqlite;

/// Creates two resources of a stopped server and runs an intruder's statements. `$A` and `$B` stand for the ids.
async fn after(statements: &[&str]) -> Result<Secrets> {
    let mut secrets = Secrets::make(2).await?;
    // All copied records belong to the same account, so they differ only in their place in the database.
    secrets.world.server.stop().await?;
    let [a, b] = secrets.resources.as_slice() else { anyhow::bail!("two resources") };
    let of_ids = |text: &&str| text.replace("$A", &format!("'{a}'")).replace("$B", &format!("'{b}'"));
    let statements: Vec<String> = statements.iter().map(of_ids).collect();
    let mut texts: Vec<&str> = statements.iter().map(String::as_str).collect();
    texts.push("select changes()");
    let changed = sqlite(&secrets.world.server.data_dir(), &texts).await?;
    ensure!(changed != json!([[0]]), "the statements of the intruder changed no row");
    secrets.world.server.launch().await?;
    secrets.world.api = secrets.world.server.api()?;
    ensure!(secrets.world.github.take_requests().is_empty(), "a call was made too early");
    Ok(secrets)
}

#[tokio::test]
async fn a_record_in_another_place_does_not_open() -> Result<()> {
    let crimes: [(&str, &[&str]); 7] = [
        (
            "another row",
            &[
                "update credentials set sealed = (select sealed from credentials where resource_id = $A) where resource_id = $B",
            ],
        ),
        (
            "another row and its id",
            &[
                "create temp table kept as select * from credentials where resource_id = $A",
                "delete from credentials where resource_id = $A",
                "update credentials set (id, sealed) = (select id, sealed from kept) where resource_id = $B",
            ],
        ),
        (
            "another resource",
            &[
                "delete from credentials where resource_id = $B",
                "update credentials set resource_id = $B where resource_id = $A",
            ],
        ),
        (
            "another workspace",
            &[
                "pragma foreign_keys = off",
                "insert into workspaces (id, name, created_at, updated_at) \
                 values ('019a0000-0000-7000-8000-000000000001', 'w', 0, 0)",
                "update bots set workspace_id = '019a0000-0000-7000-8000-000000000001'",
                "update bot_resources set workspace_id = '019a0000-0000-7000-8000-000000000001'",
                "update roles set workspace_id = '019a0000-0000-7000-8000-000000000001'",
                "update resources set workspace_id = '019a0000-0000-7000-8000-000000000001'",
                "update credentials set workspace_id = '019a0000-0000-7000-8000-000000000001'",
            ],
        ),
        ("another audience", &["update credentials set given_for = replace(given_for, '127.0.0.1', '127.0.0.2')"]),
        ("another rule of injection", &["update credentials set given_for = replace(given_for, 'Bearer ', 'Token ')"]),
        ("another key version", &["update credentials set sealed = 'AQAAAAI' || substr(sealed, 8)"]),
    ];
    for (crime, statements) in crimes {
        let secrets = after(statements).await?;
        let resource = &secrets.resources[1];
        let path = format!("/api/bots/{}/tools/github_get_repo/call", secrets.world.bot);
        let body = json!({ "params": { "repo": "acme/site" }, "resource_id": resource });
        let request = secrets.world.api.request(Method::POST, &path).json(&body);
        let in_place = if crime == "another workspace" { "w" } else { "default" };
        let (status, _, answer) = send(request.header("Monstrum-Workspace", in_place)).await?;
        // If the MAC of a row covers the changed columns, the workspace is unverified (503) or unknown (404). Otherwise, the
        // call runs, but the sealed record does not open.
        let is_unverified = status == 503 && answer["type"] == "urn:monstrum:error:unverified";
        let does_not_open = status == 200 && (code(&answer) == "unauthenticated" || code(&answer) == "plugin");
        ensure!(is_unverified || does_not_open || status == 404, "{crime}: {status} {answer}");
        let sent = lines(&secrets.world.github.take_requests(), TOKEN);
        ensure!(sent.is_empty(), "{crime}: {sent:?}");
        ensure!(!secrets.world.server.output().contains(TOKEN), "{crime}: the log contains the token");
    }
    Ok(())
}

#[tokio::test]
async fn a_kept_answer_of_another_request_does_not_open() -> Result<()> {
    let mut secrets = Secrets::make(1).await?;
    let ask = async |secrets: &Secrets, key: &str| {
        let request = secrets.world.api.request(Method::POST, "/api/roles").header("Idempotency-Key", key);
        send(request.json(&json!({ "name": key }))).await
    };
    ensure!(ask(&secrets, "a").await?.0 == 201 && ask(&secrets, "b").await?.0 == 201);
    secrets.world.server.stop().await?;
    let theft =
        "update idempotency_keys set answer = (select answer from idempotency_keys where key = 'a') where key = 'b'";
    sqlite(&secrets.world.server.data_dir(), &[theft]).await?;
    secrets.world.server.launch().await?;
    secrets.world.api = secrets.world.server.api()?;
    let (status, _, body) = ask(&secrets, "b").await?;
    ensure!(status == 500 && !body.to_string().contains("\"name\":\"a\""), "{status} {body}");
    assert_eq!(ask(&secrets, "a").await?.0, 201);
    Ok(())
}

/// A rotation names the records that do not open, gives all other records the new key, and keeps the old key.
#[tokio::test]
async fn a_rotation_names_what_does_not_open_and_removes_no_key() -> Result<()> {
    let mut secrets = after(&["update credentials set sealed = (select sealed from credentials where resource_id = $A) where resource_id = $B"]).await?;
    secrets.world.server.stop().await?;
    let mut told_of = Vec::new();
    for arguments in [&["vault", "rotate"][..], &["vault", "rotate", "--prune"]] {
        told_of.push(told(&secrets.world.server, arguments).await?);
        assert_eq!(secrets.key_versions()?, [1, 2]);
    }
    assert_snapshot!(told_of.join("\n"), @r#"
    added key version 2 to [home]/data/master.key
    re-encrypted 4 of 5 records with key version 2
    [stderr]
    back up [home]/data/master.key now; later, run this command with --prune to remove the older keys
    warning: a record of credentials ([id 1]) cannot be decrypted: decryption with master key version 1 failed: the record was altered, moved to another row, or sealed with another key
    hint: save those credentials again, wait a day until stored responses have expired, and run this command with --prune
    [exit 1]
    [stderr]
    error: no key was removed, because some sealed records cannot be decrypted: 1
    hint: the first record is in credentials ([id 1]): decryption with master key version 1 failed: the record was altered, moved to another row, or sealed with another key; save that credential again or delete it, and run this command again
    [exit 1]
    "#);
    let versions =
        sqlite(&secrets.world.server.data_dir(), &["select key_version from credentials order by 1"]).await?;
    assert_eq!(versions, json!([[1], [2]]));

    // After the record is saved again, the rotation covers it, and the older key can be removed.
    secrets.world.server.launch().await?;
    secrets.world.api = secrets.world.server.api()?;
    secrets.world.api.token(&secrets.resources[1], TOKEN).await?;
    secrets.world.server.stop().await?;
    let (code, report) = parsed(&secrets.world.server, &["vault", "rotate", "--prune"]).await?;
    assert_eq!((code, &report["removed"]), (Some(0), &json!([1])), "{report}");
    secrets.open_all().await.context("after that")
}
