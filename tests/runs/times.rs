//! Runs of days: a server in this process whose clock the tests advance.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, ensure};
use monstrum_host::boot::{self, Outside, Running};
use monstrum_host::config::{ServeFlags, Settings};
use monstrum_types::{Clock, SystemClock, UtcMillis};
use serde_json::{Value, json};
use support::{Api, FakeGithub, Server, status_of};

use super::flows::{PLUGIN, READ, WRITE, call, decide, told};
use crate::world::text;

const DAY_S: i64 = 86_400;

/// The clock of the machine, and an advance.
#[derive(Default)]
struct Advanced(AtomicI64);

impl Clock for Advanced {
    fn now(&self) -> UtcMillis {
        SystemClock.now().plus_ms(self.0.load(Ordering::SeqCst))
    }
}

struct Timed {
    api: Api,
    bot: String,
    github: FakeGithub,
    clock: Arc<Advanced>,
    running: Running,
    /// The folders of the server.
    _home: Server,
}

impl Timed {
    async fn start() -> Result<Timed> {
        let home = Server::prepare(&[PLUGIN])?;
        let flags = ServeFlags {
            listen: Some(([127, 0, 0, 1], 0).into()),
            data_dir: Some(home.data_dir()),
            plugins_dir: Some(home.plugins_dir()),
            watch_plugins: Some(false),
            ..ServeFlags::default()
        };
        let clock = Arc::new(Advanced::default());
        let outside = Outside { clock: Some(Arc::clone(&clock) as _), ..Outside::default() };
        let running = boot::start_with(Settings::resolve(flags, home.home())?, outside).await?;
        let key = running.admin_key.as_ref().context("the first start created no key")?;
        let api = Api::new(&running.base_url, key.expose())?;
        let github = FakeGithub::start().await?;
        let bot = api.bot("tester").await?;
        api.grant(&bot, PLUGIN, (&github.url(), &github.token()), &["*"], &json!({})).await?;
        Ok(Timed { api, bot, github, clock, running, _home: home })
    }

    async fn begin(&self, definition: &Value) -> Result<String> {
        let workflow = self.api.workflow(&self.bot, "flow", definition).await?;
        self.api.start_run(&workflow, &json!({})).await
    }

    /// Waits until the run waits for something of this kind. Returns the wait.
    async fn waits(&self, id: &str, kind: &str) -> Result<Value> {
        let waits = |run: &Value| run["status"] == "waiting" && run["waiting_for"][0]["kind"] == kind;
        let run = self.api.run_that(&format!("does not wait for a {kind}"), id, waits).await?;
        Ok(run["waiting_for"][0].clone())
    }

    fn advance(&self, seconds: i64) {
        self.clock.0.fetch_add(seconds * 1000, Ordering::SeqCst);
    }

    async fn stop(self) {
        self.running.stop_handle().cancel();
        self.running.stopped().await;
    }
}

#[tokio::test]
async fn a_run_waits_for_days() -> Result<()> {
    let timed = Timed::start().await?;
    let definition = json!({
        "timeout": "30d", "steps": [{ "id": "later", "wait": { "for": "20d" } }, call("r", READ)],
    });
    let id = timed.begin(&definition).await?;
    let wait = timed.waits(&id, "timer").await?;
    timed.advance(20 * DAY_S + 1);
    let run = timed.api.run_ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert!(text(&run["ended_at"]) >= text(&wait["until"]), "{wait} {run}");
    assert_eq!(timed.github.requests().len(), 1);
    timed.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_run_has_a_day_if_it_does_not_say_more() -> Result<()> {
    let timed = Timed::start().await?;
    let steps = json!([{ "id": "go", "wait": { "event": "custom.go" } }, call("w", WRITE)]);
    let id = timed.begin(&json!({ "steps": steps })).await?;
    timed.waits(&id, "event").await?;
    timed.advance(DAY_S + 1);
    let run = timed.api.run_ended(&id).await?;
    assert_eq!(told(&run)[..2], ["failed", "timeout"], "{run}");
    assert_eq!(status_of(&timed.api.run_steps(&id).await?), ["go cancelled"]);
    assert!(timed.github.requests().is_empty());
    timed.stop().await;
    Ok(())
}

/// The call of a step for which a gate asks is not approved.
#[tokio::test]
async fn a_gate_that_nobody_opens_fails_its_step() -> Result<()> {
    let timed = Timed::start().await?;
    let gates = json!([{ "tools": [WRITE], "action": "ask", "expires_s": 3600 }]);
    let (status, body) = timed.api.patch(&format!("/api/bots/{}", timed.bot), &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    let mut step = call("w", WRITE);
    step["retry"] = json!({ "attempts": 3 });
    let id = timed.begin(&json!({ "steps": [step] })).await?;
    let wait = timed.waits(&id, "gate").await?;
    timed.advance(3601);
    let run = timed.api.run_ended(&id).await?;
    assert_eq!(told(&run), ["failed", "timeout", "w"], "{run}");
    let steps = timed.api.run_steps(&id).await?;
    assert_eq!(status_of(&steps), ["w failed"], "the call does not ask a second time");
    assert!(timed.github.requests().is_empty());
    let (_, shown) = timed.api.get(&format!("/api/approvals/{}", text(&wait["id"]))).await?;
    assert_eq!(text(&shown["status"]), "expired", "{shown}");
    timed.stop().await;
    Ok(())
}

/// The time that a call waits for a person is not that of its step.
#[tokio::test]
async fn a_call_that_waits_for_a_person_has_its_whole_time_afterwards() -> Result<()> {
    let timed = Timed::start().await?;
    let gates = json!([{ "tools": [WRITE], "action": "ask", "expires_s": 7200 }]);
    let (status, body) = timed.api.patch(&format!("/api/bots/{}", timed.bot), &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    let mut step = call("w", WRITE);
    step["timeout"] = json!("1m");
    let id = timed.begin(&json!({ "steps": [step] })).await?;
    let wait = timed.waits(&id, "gate").await?;
    timed.advance(3600);
    let (status, key) = timed.api.post("/api/keys", &json!({ "name": "decider", "kind": "admin" })).await?;
    ensure!(status == 201, "{status} {key}");
    let admin = timed.api.with_key(text(&key["key"]));
    assert_eq!(decide(&admin, text(&wait["id"]), "approve", "").await?.0, 200);
    let run = timed.api.run_ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    assert_eq!(timed.github.requests().len(), 1);
    timed.stop().await;
    Ok(())
}

/// The clock of the host is set back: no timer is lost, and nothing happens twice.
#[tokio::test]
async fn a_clock_that_is_set_back_starts_nothing_twice() -> Result<()> {
    let timed = Timed::start().await?;
    timed.advance(DAY_S);
    let definition = json!({
        "timeout": "30d",
        "steps": [call("first", WRITE), { "id": "later", "wait": { "for": "2h" } }, call("last", WRITE)],
    });
    let id = timed.begin(&definition).await?;
    timed.waits(&id, "timer").await?;
    timed.advance(-3600);
    timed.advance(3 * 3600 + 1);
    let run = timed.api.run_ended(&id).await?;
    assert_eq!(told(&run)[0], "completed", "{run}");
    let paths: Vec<String> = timed.github.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/effects/first", "/effects/last"]);
    timed.stop().await;
    Ok(())
}
