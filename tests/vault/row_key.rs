//! `monstrum vault rotate --row-key`: every row that permits something gets a fresh key, even if the rotation is
//! interrupted.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use monstrum_store::{Store, StoreOptions};
use serde_json::{Value, json};
use support::Postgres;

use super::Secrets;
use crate::cli::{parsed, run, told};
use crate::postgres::hosts::{api_of, beside};
use crate::postgres::server_on;
use crate::tamper::sqlite;
use crate::world::{World, text};

const ROTATE: [&str; 3] = ["vault", "rotate", "--row-key"];
const SERVE: [&str; 3] = ["serve", "--listen", "127.0.0.1:0"];
/// The number of power cuts. Every third power cut happens at a fixed fraction of the usual run time. The other power
/// cuts happen while scopes are being rewritten. A test of the store interrupts a rotation after every scope.
const CUTS: u32 = 12;
/// The number of workspaces, large enough for power cuts to happen between two workspaces.
const WORKSPACES: usize = 24;
/// A time-out that is far longer than a rotation needs.
const ROTATION_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(1);

/// The tables from which the policy is compiled.
const POLICY_TABLES: [&str; 13] = [
    "policy_seals",
    "instance_keys",
    "bot_resources",
    "credentials",
    "api_keys",
    "bots",
    "resources",
    "roles",
    "plugins",
    "plugin_versions",
    "trust",
    "owners",
    "workspaces",
];

/// Returns the versions of the row key in the database.
async fn versions(data_dir: &Path) -> Result<Vec<i64>> {
    let store = Store::inspect(StoreOptions::sqlite(data_dir.join("monstrum.db"))).await?;
    let keys = store.instance_keys("rows").await;
    store.close().await;
    Ok(keys?.into_iter().map(|key| key.version).collect())
}

/// Returns the number of rows for each version of the row key.
async fn rows_by_version(data_dir: &Path, table: &str) -> Result<Value> {
    let statement = format!("select substr(hex(mac), 1, 8), count(*) from {table} group by 1 order by 1");
    sqlite(data_dir, &[&statement]).await
}

#[tokio::test]
async fn every_row_is_authenticated_by_a_fresh_key() -> Result<()> {
    let mut secrets = Secrets::make(3).await?;
    let before = tempfile::tempdir()?;
    assert_snapshot!(told(&secrets.world.server, &ROTATE).await?, @r"
    [stderr]
    error: another monstrum process uses the data folder [home]/data
    hint: stop every server that uses this database first
    [exit 1]
    ");
    secrets.world.server.stop().await?;
    let data_dir = secrets.world.server.data_dir();
    std::fs::copy(data_dir.join("monstrum.db"), before.path().join("monstrum.db"))?;
    assert_snapshot!(told(&secrets.world.server, &ROTATE).await?, @r"
    activated row key version 2 and deleted the older version
    25 rows in 2 scopes were verified and written again
    [stderr]
    start each server that uses this database once, so that its signed heads name the new version
    [exit 0]
    ");
    assert_eq!(versions(&data_dir).await?, [2]);
    for (table, rows) in [("workspaces", 1), ("roles", 1), ("resources", 3), ("bot_resources", 3), ("credentials", 3)] {
        assert_eq!(rows_by_version(&data_dir, table).await?, json!([["00000002", rows]]), "{table}");
    }
    secrets.open_all().await?;
    secrets.world.server.launch().await?;
    secrets.world.api = secrets.world.server.api()?;
    let (_, changes) = secrets.world.api.get("/api/audit/changes").await?;
    let change = &changes["items"][0];
    assert_eq!(
        (&change["change"], &change["key_kind"], &change["before"], &change["after"], &change["status"]),
        (
            &json!("vault.rotate_row_key"),
            &json!("offline"),
            &json!({ "version": 1 }),
            &json!({ "version": 2 }),
            &json!("success")
        )
    );
    secrets.world.server.stop().await?;

    // Both keys can be rotated, in any order and more than once.
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate"]).await?.0, Some(0));
    let (code, report) = parsed(&secrets.world.server, &ROTATE).await?;
    assert_eq!(
        (code, &report["key_version"], &report["resumed"], &report["refused"]),
        (Some(0), &json!(3), &json!(false), &json!([]))
    );
    assert_eq!(parsed(&secrets.world.server, &["vault", "rotate", "--prune"]).await?.0, Some(0));
    secrets.open_all().await?;

    // The database from before the rotation is older than its heads and uses a retired key.
    std::fs::copy(before.path().join("monstrum.db"), data_dir.join("monstrum.db"))?;
    let refused = run(&secrets.world.server, &SERVE).await?;
    ensure!(!refused.status.success(), "the server started");
    Ok(())
}

/// The leaked key opens every seal, so an attacker with the key can give an old state any generation.
#[tokio::test]
async fn a_database_under_a_retired_row_key_is_refused() -> Result<()> {
    let mut secrets = Secrets::make(1).await?;
    secrets.world.server.stop().await?;
    let data_dir = secrets.world.server.data_dir();
    let before = tempfile::tempdir()?;
    std::fs::copy(data_dir.join("monstrum.db"), before.path().join("monstrum.db"))?;
    assert_eq!(parsed(&secrets.world.server, &ROTATE).await?.0, Some(0));
    let after = std::fs::read(data_dir.join("monstrum.db"))?;

    let attach = format!("attach '{}' as old", before.path().join("monstrum.db").display());
    let mut statements = vec![attach, "pragma foreign_keys = off".to_owned()];
    for table in POLICY_TABLES {
        statements.push(format!("delete from main.{table}"));
        statements.push(format!("insert into main.{table} select * from old.{table}"));
    }
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    sqlite(&data_dir, &statements).await?;
    let refusal = String::from_utf8(run(&secrets.world.server, &SERVE).await?.stderr)?;
    let named = "the policy was signed under row key version 2, but the database uses version 1, which was retired";
    ensure!(refusal.contains(named), "{refusal}");
    let folder = data_dir.to_str().context("the name of the temporary folder is not UTF-8")?;
    let (code, report) = parsed(&secrets.world.server, &["audit", "verify", "--data-dir", folder]).await?;
    ensure!(code == Some(1) && report["problems"].to_string().contains(named), "{report}");
    let (_, report) = parsed(&secrets.world.server, &["doctor"]).await?;
    ensure!(report["findings"].to_string().contains(named), "{report}");
    let refusal = told(&secrets.world.server, &ROTATE).await?;
    ensure!(refusal.contains(named), "the rotation was not rejected: {refusal}");

    // The older key is no longer in force next to the newer key: the database is made to look like an unfinished
    // rotation, but no row under the older key is accepted.
    std::fs::write(data_dir.join("monstrum.db"), after)?;
    let back = [
        statements[0],
        "insert into instance_keys select * from old.instance_keys where name = 'rows'",
        "delete from roles where id in (select id from old.roles)",
        "pragma foreign_keys = off",
        "insert into roles select * from old.roles",
    ];
    sqlite(&data_dir, &[&back[..1], &["pragma foreign_keys = off"], &back[1..]].concat()).await?;
    assert_eq!(versions(&data_dir).await?, [1, 2]);
    let refused = told(&secrets.world.server, &ROTATE).await?;
    ensure!(refused.contains("failed verification") && refused.contains("[exit 1]"), "{refused}");
    assert_eq!(versions(&data_dir).await?, [1, 2], "the rejected rotation changed the row keys");
    secrets.world.server.launch().await?;
    let output = secrets.world.server.output();
    ensure!(output.contains("row roles/"), "the log does not name the row: {output}");

    // An operator may continue with the older database, and can then rotate its key again.
    secrets.world.server.stop().await?;
    std::fs::copy(before.path().join("monstrum.db"), data_dir.join("monstrum.db"))?;
    let accepted = told(&secrets.world.server, &["audit", "accept-loss", "--reason", "restored on purpose"]).await?;
    ensure!(accepted.contains("[exit 0]") && accepted.contains("row key version 2"), "{accepted}");
    secrets.open_all().await?;
    let (code, report) = parsed(&secrets.world.server, &ROTATE).await?;
    assert_eq!((code, &report["key_version"]), (Some(0), &json!(2)), "{report}");
    secrets.open_all().await
}

/// An attacker with the master key can seal a different row key, which looks like the remains of an interrupted
/// rotation.
#[tokio::test]
async fn a_row_key_that_somebody_put_there_does_not_stay_in_force() -> Result<()> {
    let mut secrets = Secrets::make(1).await?;
    secrets.world.server.stop().await?;
    let data_dir = secrets.world.server.data_dir();
    let copy = tempfile::tempdir()?;
    for entry in std::fs::read_dir(&data_dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name()))?;
        }
    }
    let folder = copy.path().to_str().context("the name of the temporary folder is not UTF-8")?;
    let forge = [&ROTATE[..], &["--data-dir", folder]].concat();
    assert_eq!(parsed(&secrets.world.server, &forge).await?.0, Some(0));
    let attach = format!("attach '{}' as forged", copy.path().join("monstrum.db").display());
    let insert = "insert into instance_keys select * from forged.instance_keys where name = 'rows'";
    sqlite(&data_dir, &[&attach, insert]).await?;
    assert_eq!(versions(&data_dir).await?, [1, 2]);

    for command in [&["vault", "rotate"][..], &ROTATE, &["vault", "rotate", "--prune"]] {
        let (code, report) = parsed(&secrets.world.server, command).await?;
        assert_eq!(code, Some(0), "{report}");
    }
    assert_eq!(versions(&data_dir).await?, [3], "the forged key is still in force");
    for table in ["workspaces", "roles", "resources", "bot_resources", "credentials"] {
        assert_eq!(rows_by_version(&data_dir, table).await?, json!([["00000003", 1]]), "{table}");
    }
    secrets.open_all().await?;
    let back = "update roles set mac = (select mac from forged.roles where forged.roles.id = main.roles.id)";
    sqlite(&data_dir, &[&attach, back]).await?;
    assert_eq!(rows_by_version(&data_dir, "roles").await?, json!([["00000002", 1]]));
    let refused = told(&secrets.world.server, &ROTATE).await?;
    ensure!(refused.contains("failed verification") && refused.contains("[exit 1]"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_workspace_that_is_not_verified_keeps_the_row_key() -> Result<()> {
    let mut secrets = Secrets::make(1).await?;
    secrets.world.server.stop().await?;
    let data_dir = secrets.world.server.data_dir();
    sqlite(&data_dir, &["update roles set allowed_operations = '[\"*\"]'"]).await?;
    assert_snapshot!(told(&secrets.world.server, &ROTATE).await?, @r"
    [stderr]
    error: the rows of scope `[id 1]` failed verification: the scope has 5 valid rows, but its seal counts 6
    hint: find the cause first; seal the rows with `monstrum vault seal --scope`; then run this command again
    [exit 1]
    ");
    assert_eq!(versions(&data_dir).await?, [1]);
    let folder = data_dir.to_str().context("the name of the temporary folder is not UTF-8")?;
    let seal = ["vault", "seal", "--scope", "default", "--yes", "--data-dir", folder];
    ensure!(run(&secrets.world.server, &seal).await?.status.success(), "the scope could not be sealed");
    // An additional, forged row is reported and not changed.
    let forged = "insert into roles (id, workspace_id, name, scope_constraints, created_at, updated_at, mac) \
                  select '019a0000-0000-7000-8000-000000000001', workspace_id, 'forged', '{}', 0, 0, mac from roles";
    sqlite(&data_dir, &[forged]).await?;
    let (code, report) = parsed(&secrets.world.server, &ROTATE).await?;
    let forged = json!(["roles/019a0000-0000-7000-8000-000000000001"]);
    assert_eq!((code, &report["refused"]), (Some(0), &forged), "{report}");
    Ok(())
}

#[tokio::test]
async fn a_rotation_of_the_row_key_that_is_killed_at_any_moment_is_finished_by_the_next() -> Result<()> {
    let mut secrets = Secrets::make(2).await?;
    for number in 0..WORKSPACES {
        let (status, body) =
            secrets.world.api.post("/api/workspaces", &json!({ "name": format!("w{number}") })).await?;
        ensure!(status == 201, "{status} {body}");
    }
    secrets.world.server.stop().await?;
    let data_dir = secrets.world.server.data_dir();
    let began = Instant::now();
    assert_eq!(parsed(&secrets.world.server, &ROTATE).await?.0, Some(0));
    let whole = began.elapsed();
    let mut unfinished = 0;
    for cut in 0..CUTS {
        let mut rotation = secrets.world.server.begin_command(&ROTATE)?;
        let began = Instant::now();
        if cut % 3 == 0 {
            tokio::time::sleep(whole * cut / CUTS).await;
        } else {
            while versions(&data_dir).await?.len() < 2 && rotation.try_wait()?.is_none() {
                ensure!(began.elapsed() < ROTATION_MAX, "timed out waiting for the rotation to end");
                tokio::time::sleep(POLL).await;
            }
            tokio::time::sleep(POLL * cut * 2).await;
        }
        rotation.kill().await?;
        if versions(&data_dir).await?.len() == 2 {
            unfinished += 1;
            if unfinished == 1 {
                refuses_to_start(&secrets).await?;
            }
            let (code, report) = parsed(&secrets.world.server, &ROTATE).await?;
            assert_eq!((code, &report["resumed"], &report["refused"]), (Some(0), &json!(true), &json!([])), "{report}");
        }
        assert_eq!(versions(&data_dir).await?.len(), 1);
        if cut % 4 == 3 {
            secrets.open_all().await?;
        }
    }
    ensure!(unfinished > 0, "no power cut interrupted a rotation");
    let newest = versions(&data_dir).await?;
    let expected = format!("{:08X}", newest[0]);
    let rows = rows_by_version(&data_dir, "workspaces").await?;
    assert_eq!(rows, json!([[expected, WORKSPACES + 1]]));
    secrets.open_all().await
}

/// Checks that commands refuse to start before the rotation is finished, and explain how to finish it. Both keys are in
/// force until then.
async fn refuses_to_start(secrets: &Secrets) -> Result<()> {
    let server = &secrets.world.server;
    for command in [&SERVE[..], &["doctor"]] {
        let said = told(server, command).await?;
        ensure!(said.contains("monstrum vault rotate --row-key") && said.contains("[exit 1]"), "{said}");
    }
    let folder = server.data_dir();
    let folder = folder.to_str().context("the name of the temporary folder is not UTF-8")?;
    let (_, report) = parsed(server, &["audit", "verify", "--data-dir", folder]).await?;
    // The start of the rotation has no matching end yet. Everything else verifies under either key.
    ensure!(report["valid"] == true, "{report}");
    Ok(())
}

#[tokio::test]
async fn on_postgresql_no_server_may_use_the_database() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let mut secrets = Secrets::in_world(World::on(server_on(&url)?).await?, 2).await?;
    let mut second = beside(&secrets.world.server, server_on(&url)?).await?;
    let key = secrets.world.api.key().to_owned();
    secrets.world.server.stop().await?;
    assert_snapshot!(told(&secrets.world.server, &ROTATE).await?, @r"
    [stderr]
    error: other servers use this database
    hint: stop every server that uses this database first
    [exit 1]
    ");
    second.stop().await?;
    // PostgreSQL releases the lock of a server when it notices that the connection was closed.
    let mut attempts = 0;
    let (code, report) = loop {
        let (code, report) = parsed(&secrets.world.server, &ROTATE).await?;
        attempts += 1;
        if report["error"]["message"] != "other servers use this database" || attempts == 100 {
            break (code, report);
        }
    };
    assert_eq!((code, &report["key_version"], &report["refused"]), (Some(0), &json!(2), &json!([])), "{report}");
    second.launch().await?;
    secrets.world.api = api_of(&second, &key)?;
    secrets.serve().await?;
    let (status, role) = secrets.world.api.post("/api/roles", &json!({ "name": "after" })).await?;
    ensure!(status == 201 && !text(&role["id"]).is_empty(), "{status} {role}");
    second.stop().await?;
    secrets.open_all().await
}
