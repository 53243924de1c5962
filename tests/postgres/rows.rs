//! Authenticated rows in a database that several hosts share.

use anyhow::{Context, Result, ensure};
use futures::future::{FutureExt, try_join_all};
use serde_json::{Value, json};
use support::{Api, Postgres, Server};

use super::hosts::{api_of, beside};
use super::server_on;
use crate::world::{World, eventually};

/// Selects all data that a host that lacks the keys of the database must not change.
const UNTOUCHED: &str = "select (select string_agg(name || version || sealed, ',' order by name, version) from instance_keys), \
                         (select string_agg(scope || generation || sealed, ',' order by scope) from policy_seals), \
                         (select count(*) from api_keys), (select count(*) from workspaces), \
                         (select count(*) from audit_rows), (select generation from settings)";
/// The number of changes that each host makes in each workspace.
const CHANGES: usize = 12;

#[tokio::test]
async fn a_host_without_the_keys_of_the_database_does_not_join_it() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let database = url.split(['/', '?']).nth(3).context("the address names no database")?;
    let mut world = World::on(server_on(&url)?).await?;
    world.grant_all("github").await?;
    world.server.stop().await?;
    let before = postgres.sql(database, UNTOUCHED)?;

    let mut bare = server_on(&url)?;
    ensure!(bare.launch().await.is_err(), "a host without a master key joined");
    let output = bare.output();
    ensure!(
        output.contains("master.key is missing, but the database contains records encrypted with this key"),
        "{output}"
    );
    ensure!(
        !bare.key_file().exists() && !bare.data_dir().join("master.key").exists(),
        "the rejected host created keys"
    );

    let mut other = server_on(&url)?;
    write_master_key(&other)?;
    ensure!(other.launch().await.is_err(), "a host with another master key joined");
    let output = other.output();
    ensure!(output.contains("is not the key that encrypted the secrets of this database"), "{output}");
    let doctor = other.command(&["doctor"]).await?;
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    ensure!(!doctor.status.success() && found.contains("is not the key that encrypted"), "{found}");

    // Without the row key, the database resembles a database from before rows were authenticated. The server must not
    // seal it without confirmation.
    postgres.sql(database, "create table kept as select * from instance_keys")?;
    postgres.sql(database, "delete from instance_keys where name = 'rows'")?;
    for server in [&mut world.server, &mut other] {
        ensure!(server.launch().await.is_err(), "a host started without the row key");
    }
    let output = world.server.output();
    ensure!(output.contains("monstrum vault seal"), "{output}");
    postgres.sql(database, "delete from instance_keys")?;
    postgres.sql(database, "insert into instance_keys select * from kept")?;
    assert_eq!(postgres.sql(database, UNTOUCHED)?, before, "a rejected host has written to the database");
    world.server.launch().await
}

fn write_master_key(server: &Server) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    std::fs::DirBuilder::new().mode(0o700).create(server.data_dir())?;
    let path = server.data_dir().join("master.key");
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(std::io::Write::write_all(&mut file, format!("1 {}\n", "7".repeat(64)).as_bytes())?)
}

/// A change locks the seal of its scope, so that sums include every change, regardless of the host that makes it.
#[tokio::test]
async fn hosts_that_change_the_same_and_other_workspaces_at_once_go_on() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let world = World::on(server_on(&url)?).await?;
    let second = beside(&world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api.key())?;
    for name in ["a", "b"] {
        let (status, body) = world.api.post("/api/workspaces", &json!({ "name": name })).await?;
        ensure!(status == 201, "{status} {body}");
    }
    eventually("the other host has read the workspaces", async || {
        Ok((in_workspace(&there, "b", "probe").await?.0 == 201).then_some(()))
    })
    .await?;
    let mut changes = Vec::new();
    for number in 0..CHANGES {
        for (host, api) in [("one", &world.api), ("two", &there)] {
            // All hosts change the workspace `default`, and each host changes a workspace that no other host changes.
            for workspace in ["default", if host == "one" { "a" } else { "b" }] {
                let change = async move { in_workspace(api, workspace, &format!("{host}-{number}")).await };
                changes.push(change.boxed());
            }
            changes.push(async move { instance_change(api, &format!("w-{host}-{number}")).await }.boxed());
        }
    }
    for (status, body) in try_join_all(changes).await? {
        ensure!(status == 201, "{status} {body}");
    }
    for api in [&world.api, &there] {
        let report = api.verify_audit().await?;
        ensure!(report["valid"] == true, "{report}");
    }
    let database = url.split(['/', '?']).nth(3).context("the address names no database")?;
    let roles = "select count(*) from roles where name like 'one-%' or name like 'two-%'";
    assert_eq!(postgres.sql(database, roles)?, (4 * CHANGES).to_string());
    assert_eq!(postgres.sql(database, "select count(*) from workspaces")?, (3 + 2 * CHANGES).to_string());
    Ok(())
}

async fn in_workspace(api: &Api, workspace: &str, name: &str) -> Result<(u16, Value)> {
    let request = api.request(reqwest::Method::POST, "/api/roles").header("Monstrum-Workspace", workspace);
    let (status, _, body) = crate::http::send(request.json(&json!({ "name": name }))).await?;
    Ok((status, body))
}

async fn instance_change(api: &Api, name: &str) -> Result<(u16, Value)> {
    api.post("/api/workspaces", &json!({ "name": name })).await
}
