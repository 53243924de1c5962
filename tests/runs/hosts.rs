//! Runs of hosts that share a database.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::{Postgres, Server};

use super::flows::{Flows, PLUGIN, READ, WRITE, call, told};
use crate::postgres::hosts::{api_of, beside};
use crate::world::{eventually, text};

fn server_on(url: &str) -> Result<Server> {
    Ok(Server::prepare(&[PLUGIN])?.variable("MONSTRUM_DATABASE_URL", url))
}

#[tokio::test]
async fn a_run_is_started_seen_and_steered_at_every_host() -> Result<()> {
    const RUNS: usize = 8;
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let flows = Flows::on(server_on(&url)?).await?;
    let second = beside(&flows.world.server, server_on(&url)?).await?;
    let there = api_of(&second, flows.api().key())?;
    let steps = json!([call("a", WRITE), { "id": "go", "wait": { "event": "custom.go" } }, call("b", WRITE)]);
    let workflow = flows.save("flow", &json!({ "steps": steps })).await?;
    let path = format!("/api/workflows/{workflow}/runs");
    let mut ids = Vec::new();
    for number in 0..RUNS {
        let api = if number % 2 == 0 { flows.api() } else { &there };
        // The other host may not have read the workflow yet.
        let started = async || {
            let (status, run) = api.post(&path, &json!({})).await?;
            Ok((status == 202).then(|| text(&run["id"]).to_owned()))
        };
        ids.push(eventually("the run is started", started).await?);
    }
    for id in &ids {
        flows.waits(id, "event").await?;
    }
    let (status, answer) = there.post(&format!("/api/runs/{}/cancel", ids[0]), &json!({})).await?;
    ensure!(matches!(status, 200 | 202), "{status} {answer}");
    assert_eq!(told(&flows.ended(&ids[0]).await?)[0], "cancelled");
    let (status, answer) = there.post("/api/events", &json!({ "name": "go" })).await?;
    ensure!(status == 201, "{status} {answer}");
    for id in &ids[1..] {
        assert_eq!(told(&there.run_ended(id).await?)[0], "completed");
    }
    // Each step has run once.
    let count = |seen: &str| flows.seen().iter().filter(|other| *other == seen).count();
    assert_eq!((count("POST a"), count("POST b")), (RUNS, RUNS - 1));
    for api in [flows.api(), &there] {
        assert_eq!(api.verify_audit().await?["valid"], true);
    }
    Ok(())
}

/// The host that runs all turns is stopped in the middle of two calls, and continues when the other host has ended the run.
#[tokio::test]
async fn a_host_that_was_stopped_past_its_lease_writes_nothing() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let flows = Flows::on(server_on(&url)?).await?;
    let second = beside(&flows.world.server, server_on(&url)?).await?;
    let there = api_of(&second, flows.api().key())?;
    let first = i32::try_from(flows.world.server.pid().context("the server is not running")?)?;
    let first = Pid::from_raw(first).context("the server has no id")?;
    flows.world.github.hold();
    let steps = json!([
        { "id": "r", "needs": [], "tool": READ, "params": { "marker": "r" } },
        { "id": "w", "needs": [], "tool": WRITE, "params": { "marker": "w" }, "on_error": "continue" },
    ]);
    let id = flows.begin(&json!({ "steps": steps }), &json!({})).await?;
    flows.reached(2).await?;
    kill_process(first, Signal::STOP)?;
    flows.world.github.release();
    let ended = there.run_ended(&id).await;
    kill_process(first, Signal::CONT)?;
    let run = ended?;
    assert_eq!((told(&run)[0], &run["uncertain"]), ("completed", &json!([{ "step": "w" }])), "{run}");
    let steps = there.run_steps(&id).await?;
    // The host that was stopped has noticed what it has missed when it serves another run.
    let last = flows.run(&json!({ "steps": [call("last", READ)] })).await?;
    assert_eq!(told(&last)[0], "completed", "{last}");
    assert_eq!((flows.api().run(&id).await?, flows.api().run_steps(&id).await?), (run, steps));
    let (reads, writes) = (flows.keys("r"), flows.keys("w"));
    assert!(reads.len() == 2 && reads[0] == reads[1], "the repetition is one call for the upstream: {reads:?}");
    assert_eq!(writes.len(), 1);
    assert_eq!(there.verify_audit().await?["valid"], true);
    Ok(())
}
