//! Changes of plugins at run time: the server detects changes in their folders, and no call sees a partial change.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use serde_json::{Value, json};
use support::Server;

use super::plugins::{edit, reloaded};
use crate::hostile::guests;
use crate::locked::Locked;
use crate::world::{World, eventually, text};

const PLUGIN: &str = "shifting";

/// Returns a component whose calls always return this digit.
pub(super) fn component(digit: u8) -> Result<Vec<u8>> {
    let functions = format!(
        r#"(func (export "execute") (param i32) (result i32)
            (i32.store8 (i32.const 72) (i32.const {}))
            (call $answer (i32.const 0) (i32.const 72) (i32.const 1)))"#,
        b'0' + digit
    );
    guests::component(guests::ALLOCATOR, &functions, "")
}

fn install(server: &Server, digit: u8) -> Result<()> {
    guests::install(server, PLUGIN, &component(digit)?)
}

/// Returns the plugin's entry in the API.
async fn entry(world: &World) -> Result<Value> {
    Ok(world.api.get(&format!("/api/plugins/{PLUGIN}")).await?.1)
}

/// Waits until the plugin's entry satisfies `is`.
async fn becomes(world: &World, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(what, async || Ok(Some(entry(world).await?).filter(|entry| is(entry)))).await
}

/// Waits until resources of the plugin's type can be created, which becomes possible after the plugin is loaded.
async fn serves(world: &World) -> Result<()> {
    let path = format!("/api/resource-types/{PLUGIN}");
    eventually("the plugin serves calls", async || Ok((world.api.get(&path).await?.0 == 200).then_some(()))).await
}

/// Waits until the version with this digit serves calls.
async fn answers(world: &World, digit: u8) -> Result<()> {
    eventually("the version answers calls", async || {
        let answer = world.call(&guests::tool(PLUGIN), &json!({})).await?;
        Ok((answer["data"] == json!(digit)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_folder_is_live_without_a_restart() -> Result<()> {
    let world = World::with(&[]).await?;
    assert_eq!(entry(&world).await?["status"], 404);

    install(&world.server, 1)?;
    becomes(&world, "the new plugin is loaded", |entry| entry["status"] == "loaded").await?;
    serves(&world).await?;
    world.grant_all(PLUGIN).await?;
    answers(&world, 1).await?;

    let before = entry(&world).await?["digest"].clone();
    install(&world.server, 2)?;
    becomes(&world, "the next version serves", |entry| entry["digest"] != before).await?;
    answers(&world, 2).await?;

    let folder = world.server.plugins_dir().join(PLUGIN);
    fs::remove_dir_all(&folder)?;
    becomes(&world, "the plugin is removed", |entry| entry["status"] == 404).await?;
    eventually("calls are rejected", async || {
        let answer = world.call(&guests::tool(PLUGIN), &json!({})).await?;
        Ok((answer["status"] == "permission_denied").then_some(()))
    })
    .await
}

#[tokio::test]
async fn what_goes_wrong_or_grows_leaves_the_old_version_serving() -> Result<()> {
    let server = Server::prepare(&[])?;
    install(&server, 1)?;
    let world = World::on(server).await?;
    world.grant_all(PLUGIN).await?;
    let folder = world.server.plugins_dir().join(PLUGIN);

    // The component is truncated, as happens while a file is copied slowly.
    let whole = component(2)?;
    fs::write(folder.join("plugin.wasm"), &whole[..whole.len() / 2])?;
    let failed = becomes(&world, "the truncated component is rejected", |entry| entry["status"] == "failed").await?;
    assert!(text(&failed["error"]).contains("plugin.wasm") || text(&failed["error"]).contains("component"), "{failed}");
    answers(&world, 1).await?;
    fs::write(folder.join("plugin.wasm"), &whole)?;
    becomes(&world, "the complete component serves", |entry| entry["status"] == "loaded").await?;
    answers(&world, 2).await?;

    edit(&folder, |text| {
        text.replace("version: 1.0.0", "version: 1.1.0\nexecutor: { egress: [\"https://a.example\"] }")
    })?;
    let waits =
        becomes(&world, "the next version waits for approval", |entry| entry["status"] == "needs_approval").await?;
    assert_eq!((&waits["version"], &waits["pending"]["version"]), (&json!("1.0.0"), &json!("1.1.0")), "{waits}");
    Ok(())
}

/// If the database is locked for longer than a write waits, the plugin is loaded once the lock is released.
#[tokio::test]
async fn what_the_database_stood_in_the_way_of_is_loaded_when_it_no_longer_does() -> Result<()> {
    let world = World::with(&[]).await?;
    let lock = Locked::hold(&world.server.data_dir().join("monstrum.db")).await?;
    install(&world.server, 1)?;
    becomes(&world, "the version cannot be stored", |entry| entry["status"] == "failed").await?;
    lock.release().await?;
    becomes(&world, "the version is loaded after the lock is released", |entry| entry["status"] == "loaded").await?;
    Ok(())
}

#[tokio::test]
async fn a_folder_is_left_alone_where_that_is_set() -> Result<()> {
    let world = World::on(Server::prepare(&[])?.argument("--watch-plugins=false")).await?;
    let watching = World::with(&[]).await?;
    install(&world.server, 1)?;
    install(&watching.server, 1)?;
    becomes(&watching, "the plugin is loaded by the watcher", |entry| entry["status"] == "loaded").await?;
    assert_eq!(entry(&world).await?["status"], 404);
    assert_eq!(reloaded(&world, PLUGIN).await?[1], "loaded");
    Ok(())
}

/// Versions change 200 times while 32 callers send calls. Each response comes from the version that the audit names.
#[tokio::test]
async fn no_call_fails_while_versions_change() -> Result<()> {
    const RELOADS: usize = 200;
    const CALLERS: usize = 32;
    let server = Server::prepare(&[])?.argument("--watch-plugins=false");
    install(&server, 0)?;
    let world = World::on(server).await?;
    world.grant_all(PLUGIN).await?;
    let mut digests = Vec::new();
    for digit in [0, 1] {
        install(&world.server, digit)?;
        ensure!(reloaded(&world, PLUGIN).await?[1] == "loaded");
        digests.push(entry(&world).await?["digest"].clone());
    }
    let (done, tool) = (Arc::new(AtomicBool::new(false)), guests::tool(PLUGIN));

    let caller = |_: usize| {
        let (api, bot, tool, done) = (&world.api, &world.bot, &tool, Arc::clone(&done));
        async move {
            let mut answered = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let answer = api.call(bot, tool, &json!({})).await?;
                ensure!(answer["status"] == "success", "a call failed: {answer}");
                answered.push((text(&answer["request_id"]).to_owned(), answer["data"].as_u64()));
            }
            anyhow::Ok(answered)
        }
    };
    let reloads = async {
        let mut halfway = 0;
        for number in 0..RELOADS {
            install(&world.server, (number % 2) as u8)?;
            let entry = reloaded(&world, PLUGIN).await?;
            ensure!(entry[1] == "loaded", "{entry}");
            if number == RELOADS / 2 {
                halfway = world.resident_kib()?;
            }
        }
        done.store(true, Ordering::Relaxed);
        anyhow::Ok(halfway)
    };
    let (halfway, answered) = tokio::try_join!(reloads, try_join_all((0..CALLERS).map(caller)))?;
    let after = world.resident_kib()?;
    assert!(after < halfway + 64 * 1024, "memory grows from {halfway} KiB to {after} KiB");

    let answered: Vec<_> = answered.into_iter().flatten().collect();
    assert!(answered.len() > RELOADS, "only {} calls in {RELOADS} reloads", answered.len());
    let mut seen = [0, 0];
    // Only every tenth call is checked, because reading its audit row takes longer than the call itself.
    for (request, digit) in answered.iter().step_by(10) {
        let digit = usize::try_from(digit.context("the answer is not a number")?)?;
        let record = world.api.audit(request).await?;
        assert_eq!(record["plugin_digest"], digests[digit], "{record}");
        seen[digit] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "only one version has served: {seen:?}");
    Ok(())
}
