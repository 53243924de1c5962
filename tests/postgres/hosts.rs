//! Two hosts on one database. Each host has its own chain in the audit, and applies the changes of the other host.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, Postgres, Server};

use super::server_on;
use crate::http::keys::listed;
use crate::world::{World, eventually, text};

/// Starts a second host on the same database. It has its own folder and a copy of the first host's master key.
pub(crate) async fn beside(first: &Server, mut second: Server) -> Result<Server> {
    std::fs::create_dir(second.data_dir())?;
    std::fs::copy(first.data_dir().join("master.key"), second.data_dir().join("master.key"))?;
    second.launch().await?;
    ensure!(!second.key_file().exists(), "a second root key was created");
    Ok(second)
}

pub(crate) fn api_of(server: &Server, key: &str) -> Result<Api> {
    Api::new(server.url().context("it runs")?, key)
}

#[tokio::test]
async fn a_change_at_one_is_followed_by_the_other() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let world = World::on(server_on(&url)?).await?;
    let second = beside(&world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api.key())?;

    let bound = world.grant_all("github").await?;
    let list = json!({ "repo": "acme/site" });
    eventually("the other host serves the call", async || {
        Ok((there.call(&world.bot, "github_list_issues", &list).await?["status"] == "success").then_some(()))
    })
    .await?;
    let (status, _) = there.delete(&format!("/api/bots/{}/resources/{}", world.bot, bound.binding)).await?;
    assert_eq!(status, 204);
    eventually("the first host rejects the call", async || {
        Ok((world.call("github_list_issues", &list).await?["status"] == "permission_denied").then_some(()))
    })
    .await?;
    for api in [&world.api, &there] {
        let report = api.verify_audit().await?;
        assert_eq!(report["valid"], true, "{report}");
    }
    assert_eq!(postgres.sql(url_database(&url)?, "select count(distinct writer) from audit_rows")?, "2");
    Ok(())
}

/// A key is rotated or deleted at one host.
#[tokio::test]
async fn a_key_ends_at_the_other_host_within_a_second_and_its_uses_are_known_to_both() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let mut first = server_on(&url)?;
    first.launch().await?;
    let mut second = beside(&first, server_on(&url)?).await?;
    let root = first.api()?;
    let there = api_of(&second, root.key())?;
    let (_, key) = root.post("/api/keys", &json!({ "name": "ci", "kind": "operator" })).await?;
    let path = format!("/api/keys/{}", text(&key["id"]));
    let mut text_now = text(&key["key"]).to_owned();
    let follows = async |key: &str, wanted: u16| {
        let began = Instant::now();
        eventually("the other host has applied the change", async || {
            Ok((there.with_key(key).get("/api/roles").await?.0 == wanted).then_some(()))
        })
        .await?;
        anyhow::Ok(began.elapsed())
    };
    follows(&text_now, 200).await?;
    // The machine may be busy in one round, but is unlikely to be busy in all rounds.
    const ROUNDS: usize = 12;
    let mut soonest = Duration::MAX;
    for _ in 0..ROUNDS {
        let (_, rotated) = root.post(&format!("{path}/rotate"), &Value::Null).await?;
        soonest = soonest.min(follows(&text_now, 401).await?);
        text_now = text(&rotated["key"]).to_owned();
        assert_eq!(there.with_key(&text_now).get("/api/roles").await?.0, 200);
        if soonest < Duration::from_secs(1) {
            break;
        }
    }
    assert!(soonest < Duration::from_secs(1), "{soonest:?}");

    // Only the other host has seen a use of the key. That host records the use at its shutdown at the latest.
    let used = listed(&there, text(&key["id"])).await?["last_used_at"].take();
    assert!(used.is_string());
    second.stop().await?;
    assert_eq!(listed(&root, text(&key["id"])).await?["last_used_at"], used);

    second.launch().await?;
    let there = api_of(&second, root.key())?;
    assert_eq!(root.delete(&path).await?.0, 204);
    eventually("the other host rejects the deleted key", async || {
        Ok((there.with_key(&text_now).get("/api/roles").await?.0 == 401).then_some(()))
    })
    .await?;
    Ok(())
}

fn url_database(url: &str) -> Result<&str> {
    url.split(['/', '?']).nth(3).context("the address names no database")
}

#[tokio::test]
async fn a_start_interrupts_its_own_calls_only() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let mut world = World::on(server_on(&url)?).await?;
    world.grant_all("github").await?;
    let second = beside(&world.server, server_on(&url)?).await?;
    let there = api_of(&second, world.api.key())?;
    world.github.hold();
    let call = |api: &Api| {
        let (api, bot) = (api.clone(), world.bot.clone());
        tokio::spawn(async move { api.call(&bot, "github_list_issues", &json!({ "repo": "acme/site" })).await })
    };
    let (here, other) = (call(&world.api), call(&there));
    world.reached(2).await?;
    world.server.kill().await?;
    ensure!(here.await?.is_err(), "a call outlived its server");
    world.server.launch().await?;
    world.api = world.server.api()?;
    let statuses = async |api: &Api| {
        let (_, list) = api.get("/api/audit").await?;
        let items = list["items"].as_array().context("the list has no items")?;
        let mut statuses: Vec<_> = items.iter().map(|call| text(&call["status"]).to_owned()).collect();
        statuses.sort();
        anyhow::Ok(statuses)
    };
    assert_eq!(statuses(&world.api).await?, ["interrupted", "running"]);
    world.github.release();
    assert_eq!(other.await??["status"], "success");
    assert_eq!(statuses(&world.api).await?, ["interrupted", "success"]);
    for api in [&world.api, &there] {
        let report = api.verify_audit().await?;
        assert_eq!(report["valid"], true, "{report}");
    }
    Ok(())
}

#[tokio::test]
async fn hosts_that_start_at_once_agree_on_the_keys() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    for _ in 0..3 {
        let url = postgres.database()?;
        let mut hosts = Vec::new();
        for _ in 0..2 {
            let host = server_on(&url)?;
            std::fs::create_dir(host.data_dir())?;
            let key = host.data_dir().join("master.key");
            std::fs::write(&key, format!("1 {}\n", "5".repeat(64)))?;
            std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
            hosts.push(host);
        }
        let [mut first, mut second] = <[Server; 2]>::try_from(hosts).ok().context("two hosts")?;
        let (a, b) = tokio::join!(first.launch(), second.launch());
        a?;
        b?;
        let with_key: Vec<_> = [&first, &second].into_iter().filter(|host| host.key_file().exists()).collect();
        ensure!(with_key.len() == 1, "{} root keys were created", with_key.len());
        let key = with_key[0].api()?.key().to_owned();
        for host in [&first, &second] {
            let api = api_of(host, &key)?;
            assert_eq!(api.verify_audit().await?["valid"], true);
            assert_eq!(api.get("/api/bots").await?.0, 200);
        }
    }
    Ok(())
}
