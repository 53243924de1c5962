//! The database fails under load, in every possible way.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use support::{Disk, Postgres, Proxy, Way};

use super::load::{EVENTS_OF_A_CALL, Load, check};
use super::server_on;
use crate::world::{World, eventually};

/// The maximum time until the server answers a readiness check, even if the database hangs.
const READY_MAX: Duration = Duration::from_secs(20);
const DATABASE: &str = "monstrum";

async fn world_on(url: &str) -> Result<World> {
    let world = World::on(server_on(url)?).await?;
    world.grant_all("github").await?;
    Ok(world)
}

/// Waits until the server reports that it is ready or not ready.
async fn says(world: &World, is_ready: bool) -> Result<()> {
    let wanted = if is_ready { 200 } else { 503 };
    eventually("the readiness of the server has changed", async || {
        let began = Instant::now();
        let (status, _) = world.api.get("/readyz").await?;
        ensure!(began.elapsed() < READY_MAX, "readiness took {:?}", began.elapsed());
        Ok((status == wanted).then_some(()))
    })
    .await
}

/// Breaks the database under load, repairs it, and checks the result of every call.
async fn survives(
    world: &World,
    rounds: usize,
    mut fail: impl AsyncFnMut() -> Result<()>,
    mut mend: impl AsyncFnMut() -> Result<()>,
) -> Result<()> {
    let pid = world.server.pid();
    let load = Load::start(world);
    for _ in 0..rounds {
        load.served(60).await?;
        fail().await?;
        says(world, false).await?;
        load.refused(20).await?;
        mend().await?;
        says(world, true).await?;
    }
    load.served(60).await?;
    let calls = load.end().await?;
    check(world, &calls).await?;
    ensure!(world.server.pid() == pid, "the server was restarted");
    Ok(())
}

#[tokio::test]
async fn a_killed_database_loses_no_call_that_was_answered() -> Result<()> {
    let mut postgres = Postgres::start(&[])?;
    let world = world_on(&postgres.database()?).await?;
    let postgres = std::cell::RefCell::new(&mut postgres);
    survives(&world, 3, async || postgres.borrow().kill(), async || postgres.borrow_mut().launch()).await
}

#[tokio::test]
async fn a_restarted_database_loses_no_call_that_was_answered() -> Result<()> {
    let mut postgres = Postgres::start(&[])?;
    let world = world_on(&postgres.database()?).await?;
    let postgres = std::cell::RefCell::new(&mut postgres);
    survives(&world, 3, async || postgres.borrow_mut().stop(), async || postgres.borrow_mut().launch()).await
}

#[tokio::test]
async fn a_full_disk_of_the_database_loses_no_call_that_was_answered() -> Result<()> {
    let disk = Disk::new()?;
    let postgres = Postgres::start(&["autovacuum=off"])?;
    let world = world_on(&disk.database(&postgres, DATABASE)?).await?;
    let fill = async || disk.fill(&postgres, DATABASE);
    survives(&world, 1, fill, async || disk.free(&postgres, DATABASE)).await
}

/// Starts a proxy to the database that can interrupt the connection.
async fn behind_a_proxy(postgres: &Postgres) -> Result<(Proxy, String)> {
    postgres.sql("postgres", &format!("create database {DATABASE}"))?;
    let proxy = Proxy::to(postgres.socket()).await?;
    let url = format!("postgres://postgres@127.0.0.1:{}/{DATABASE}", proxy.port());
    Ok((proxy, url))
}

/// The database has stored the rows, but its answer was lost. The rows must be found and not be written again.
#[tokio::test]
async fn commits_whose_answers_are_lost_are_recorded_once() -> Result<()> {
    let postgres = Postgres::start(&[])?;
    let (proxy, url) = behind_a_proxy(&postgres).await?;
    let world = world_on(&url).await?;
    let lose = async || {
        proxy.set(Way::LosesAnswers);
        Ok(())
    };
    let mend = async || {
        proxy.set(Way::Open);
        Ok(())
    };
    survives(&world, 5, lose, mend).await?;
    ensure!(proxy.has_lost_answers());
    assert_eq!(postgres.sql(DATABASE, EVENTS_OF_A_CALL)?, "1", "an event was written twice");
    Ok(())
}

/// The database does not respond at all, and its connections do not close.
#[tokio::test]
async fn a_silent_database_keeps_no_call_waiting_for_ever() -> Result<()> {
    let postgres = Postgres::start(&[])?;
    let (proxy, url) = behind_a_proxy(&postgres).await?;
    let world = world_on(&url).await?;
    let silence = async || {
        proxy.set(Way::Swallows);
        Ok(())
    };
    let mend = async || {
        proxy.set(Way::Open);
        Ok(())
    };
    survives(&world, 1, silence, mend).await?;
    assert_eq!(postgres.sql(DATABASE, EVENTS_OF_A_CALL)?, "1", "an event was written twice");
    Ok(())
}

/// Each attempt to write again takes seconds here. A call that ends during an attempt is answered when the call ends,
/// not when the attempt ends.
#[tokio::test]
async fn a_call_does_not_wait_while_the_audit_is_tried_again() -> Result<()> {
    let postgres = Postgres::start(&[])?;
    let (proxy, url) = behind_a_proxy(&postgres).await?;
    let world = world_on(&url).await?;
    let attempts = || world.server.output().matches("the audit still cannot be written").count();
    // The call has written its row `started` and waits for its upstream.
    world.github.hold();
    let call = tokio::spawn({
        let (api, bot) = (world.api.clone(), world.bot.clone());
        let body = json!({ "params": { "repo": "acme/site", "title": "held" } });
        async move { api.post(&format!("/api/bots/{bot}/tools/github_create_issue/call"), &body).await }
    });
    world.reached(1).await?;
    proxy.set(Way::Swallows);
    // This request is the first to detect the failure. From here on, nothing is written.
    let path = format!("/api/bots/{}/tools/nothing/call", world.bot);
    let (status, refused) = world.api.post(&path, &json!({ "params": {} })).await?;
    ensure!(status == 503, "{status} {refused}");
    eventually("an attempt to write has failed", async || Ok((attempts() > 0).then_some(()))).await?;

    let before = attempts();
    world.github.release();
    let (status, answer) = call.await??;
    assert_eq!((status, attempts()), (503, before), "the call was answered only after the attempt: {answer}");

    proxy.set(Way::Open);
    says(&world, true).await?;
    let (status, export) = world.api.get("/api/audit/export").await?;
    ensure!(status == 200, "{export}");
    let recorded = |tool: &str| {
        export
            .as_str()
            .is_some_and(|lines| lines.lines().any(|line| line.contains(tool) && !line.contains("\"running\"")))
    };
    assert!(recorded("github_create_issue"), "the end of the call was not written after the recovery: {export}");
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}
