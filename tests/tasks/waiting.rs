//! Tasks whose calls wait for a person.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use monstrum_host::boot::{self, Outside, Running};
use monstrum_host::config::{ServeFlags, Settings};
use monstrum_types::{Clock, SystemClock, UtcMillis};
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, FakeLlm, LlmReply, Server};

use super::{Tasks, calls, create, ended, give_model, outline, steps};
use crate::tamper::sqlite;
use crate::world::{eventually, text};

const CREATE: &str = "github_create_issue";

/// A bot whose new issues need an approval.
async fn asking() -> Result<Tasks> {
    let tasks = Tasks::start().await?;
    let gates = json!([{ "tools": [CREATE], "action": "ask" }]);
    let (status, body) =
        tasks.api().patch(&format!("/api/bots/{}", tasks.world.bot), &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(tasks)
}

async fn waiting(tasks: &Tasks, id: &str) -> Result<Value> {
    eventually("the task waits", async || {
        let (_, task) = tasks.api().get(&format!("/api/tasks/{id}")).await?;
        Ok((task["status"] == "waiting").then_some(task))
    })
    .await
}

async fn approve(tasks: &Tasks, approval: &str) -> Result<()> {
    decide(tasks.api(), approval, "approve").await
}

/// Decides about an approval with another key than that of the task.
async fn decide(api: &Api, approval: &str, decision: &str) -> Result<()> {
    let (status, key) = api.post("/api/keys", &json!({ "name": format!("for {approval}"), "kind": "admin" })).await?;
    ensure!(status == 201, "{status} {key}");
    let admin = api.with_key(text(&key["key"]));
    let path = format!("/api/approvals/{approval}");
    let digest = admin.get(&path).await?.1["digest"].clone();
    let (status, body) = admin.post(&path, &json!({ "decision": decision, "digest": digest })).await?;
    ensure!(status == 200, "{status} {body}");
    Ok(())
}

/// Waits until a task waits without a turn. Returns what it waits for.
async fn parked(api: &Api, folder: &Path, id: &str) -> Result<String> {
    let claims = format!("select count(*) from wakes where key = 'task/{id}' and claim_id is null");
    eventually("the task waits without a turn", async || {
        let (_, task) = api.get(&format!("/api/tasks/{id}")).await?;
        let is_parked = task["status"] == "waiting" && sqlite(folder, &[&claims]).await?[0][0] == 1;
        Ok(is_parked.then(|| text(&task["waiting_for"]["id"]).to_owned()))
    })
    .await
}

async fn restarted(tasks: &mut Tasks) -> Result<()> {
    tasks.world.server.kill().await?;
    tasks.world.server.launch().await?;
    tasks.world.api = tasks.world.server.api()?;
    Ok(())
}

#[tokio::test]
async fn a_waiting_task_names_the_approval_and_its_time_stands_still() -> Result<()> {
    let tasks = asking().await?;
    tasks.llm.prepare([calls(&[(CREATE, create("Asked"))]), LlmReply::says(&["Created."])]);
    let began = Instant::now();
    let id = tasks.begin(&json!({ "instruction": "Create an issue.", "limits": { "wall_s": 10 } })).await?;
    let task = waiting(&tasks, &id).await?;
    let (_, approvals) = tasks.api().get("/api/approvals?status=pending").await?;
    let approval = text(&approvals["items"][0]["id"]).to_owned();
    assert_eq!((&task["waiting_for"]["kind"], &task["waiting_for"]["id"]), (&json!("approval"), &json!(approval)));
    let (_, listed) = tasks.api().get("/api/tasks?status=waiting").await?;
    assert_eq!(listed["items"][0]["id"], json!(id));

    // A listener learns what the task waits for.
    let stream = tasks.api().request(Method::GET, &format!("/api/tasks/{id}/events")).send().await?;
    let mut body = stream.bytes_stream();
    let mut received = String::new();
    while !received.contains("event: approval") {
        received += &String::from_utf8_lossy(&body.next().await.context("the stream has ended")??);
    }
    assert!(received.contains(&approval), "{received}");

    // The wait is longer than the limit of the task.
    let over = Duration::from_millis(10_300);
    while began.elapsed() < over {
        let _listened = tokio::time::timeout(over.saturating_sub(began.elapsed()), body.next()).await;
    }
    approve(&tasks, &approval).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Created."), "{task}");
    assert_eq!(task["waiting_for"], Value::Null);
    Ok(())
}

#[tokio::test]
async fn a_waiting_task_can_be_cancelled() -> Result<()> {
    let tasks = asking().await?;
    tasks.llm.prepare([calls(&[(CREATE, create("Asked"))])]);
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    waiting(&tasks, &id).await?;
    let (status, body) = tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    ensure!(status == 202, "{status} {body}");
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), &task["waiting_for"]), ("cancelled", &Value::Null), "{task}");
    let steps = tasks.steps(&task).await?;
    assert_eq!(text(&steps[1]["code"]), "cancelled", "{steps:?}");
    assert!(tasks.world.github.requests().is_empty());
    Ok(())
}

/// The server is killed while the call waits in memory, and again while the task waits without a turn.
#[tokio::test]
async fn a_waiting_task_continues_after_crashes_when_it_is_approved() -> Result<()> {
    let mut tasks = asking().await?;
    tasks.llm.prepare([calls(&[(CREATE, create("Asked")), (CREATE, create("Next"))]), LlmReply::says(&["Created."])]);
    let id = tasks.begin(&json!({ "instruction": "Create two issues." })).await?;
    let first = text(&waiting(&tasks, &id).await?["waiting_for"]["id"]).to_owned();
    restarted(&mut tasks).await?;
    let folder = tasks.world.server.data_dir();
    assert_eq!(parked(tasks.api(), &folder, &id).await?, first);
    restarted(&mut tasks).await?;
    assert_eq!(parked(tasks.api(), &folder, &id).await?, first);
    assert!(tasks.world.github.requests().is_empty());
    approve(&tasks, &first).await?;
    // The second call has waited for the first one, and asks now.
    let second = eventually("the second call asks", async || {
        let (_, listed) = tasks.api().get("/api/approvals?status=pending").await?;
        Ok(listed["items"][0]["id"].as_str().map(str::to_owned))
    })
    .await?;
    assert_eq!(tasks.world.github.requests().len(), 1);
    approve(&tasks, &second).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), &task["waiting_for"]), ("completed", &Value::Null), "{task}");
    let call = format!("call {CREATE} success");
    assert_eq!(outline(&tasks.steps(&task).await?), ["round success", &call, &call, "round success"]);
    assert_eq!((tasks.world.github.requests().len(), tasks.llm.requests().len()), (2, 2));
    Ok(())
}

/// Two calls that change nothing run together, so both wait.
#[tokio::test]
async fn a_task_hears_of_each_decision_that_its_calls_wait_for() -> Result<()> {
    let tasks = Tasks::start().await?;
    let gates = json!([{ "tools": ["github_list_issues"], "action": "ask" }]);
    let path = format!("/api/bots/{}", tasks.world.bot);
    let (status, body) = tasks.api().patch(&path, &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    let read = |page: u32| ("github_list_issues", json!({ "repo": "acme/site", "page": page }));
    tasks.llm.prepare([calls(&[read(1), read(2)]), LlmReply::says(&["Read."])]);
    let id = tasks.begin(&json!({ "instruction": "Read two pages." })).await?;
    let folder = tasks.world.server.data_dir();
    let first = parked(tasks.api(), &folder, &id).await?;
    let (_, pending) = tasks.api().get("/api/approvals?status=pending").await?;
    let ids: Vec<&str> = pending["items"].as_array().into_iter().flatten().map(|item| text(&item["id"])).collect();
    let other = ids.iter().find(|id| **id != first).context("only one call asks")?;
    assert_eq!(ids.len(), 2, "{pending}");
    decide(tasks.api(), other, "approve").await?;
    eventually("the approved call has run", async || Ok((tasks.world.github.requests().len() == 1).then_some(())))
        .await?;
    assert_eq!(parked(tasks.api(), &folder, &id).await?, first, "the other call still waits");
    decide(tasks.api(), &first, "approve").await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Read."), "{task}");
    let (_, all) = tasks.api().get("/api/approvals").await?;
    assert_eq!((tasks.world.github.requests().len(), all["items"].as_array().map(Vec::len)), (2, Some(2)), "{all}");
    Ok(())
}

#[tokio::test]
async fn a_task_without_a_turn_hears_of_a_denial_a_cancellation_and_the_end_of_its_key() -> Result<()> {
    let tasks = asking().await?;
    let folder = tasks.world.server.data_dir();
    tasks.llm.prepare([calls(&[(CREATE, create("Denied"))]), LlmReply::says(&["I may not."])]);
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    decide(tasks.api(), &parked(tasks.api(), &folder, &id).await?, "deny").await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!(outline(&tasks.steps(&task).await?)[1], format!("call {CREATE} permission_denied"));

    tasks.llm.prepare([calls(&[(CREATE, create("Cancelled"))])]);
    let id = tasks.begin(&json!({ "instruction": "Create an issue." })).await?;
    parked(tasks.api(), &folder, &id).await?;
    let (status, body) = tasks.api().delete(&format!("/api/tasks/{id}")).await?;
    ensure!(status == 202, "{status} {body}");
    let task = ended(tasks.api(), &id).await?;
    assert_eq!(text(&task["status"]), "cancelled", "{task}");
    assert_eq!(text(&tasks.steps(&task).await?[1]["code"]), "cancelled");

    tasks.llm.prepare([calls(&[(CREATE, create("Revoked"))])]);
    let (_, key) = tasks.api().post("/api/keys", &json!({ "name": "ada", "kind": "operator" })).await?;
    let path = format!("/api/bots/{}/tasks", tasks.world.bot);
    let operator = tasks.api().with_key(text(&key["key"]));
    let (_, task) = operator.post(&path, &json!({ "instruction": "Create an issue." })).await?;
    let id = text(&task["id"]).to_owned();
    parked(tasks.api(), &folder, &id).await?;
    assert_eq!(tasks.api().delete(&format!("/api/keys/{}", text(&key["id"]))).await?.0, 204);
    // The task looks once a minute.
    sqlite(&folder, &[&format!("update wakes set due_at = 0 where key = 'task/{id}'")]).await?;
    let task = ended(tasks.api(), &id).await?;
    assert_eq!((text(&task["status"]), text(&task["code"])), ("failed", "revoked"), "{task}");
    assert!(tasks.world.github.requests().is_empty());
    Ok(())
}

/// The clock of the machine, and an advance.
#[derive(Default)]
struct Advanced(AtomicI64);

impl Clock for Advanced {
    fn now(&self) -> UtcMillis {
        SystemClock.now().plus_ms(self.0.load(Ordering::SeqCst))
    }
}

/// A server in this process whose clock can be advanced, with a bot whose new issues need an approval.
struct Timed {
    api: Api,
    bot: String,
    clock: Arc<Advanced>,
    running: Running,
    home: Server,
}

impl Timed {
    async fn start(llm: &FakeLlm, expires_s: u32) -> Result<Timed> {
        let home = Server::prepare(&["github"])?;
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
        let bot = api.bot("tester").await?;
        give_model(&api, &bot, "models", llm).await?;
        let resource = api.resource("github", "github", "http://127.0.0.1:9").await?;
        let role = api.role("github", &["*"]).await?;
        api.bind(&bot, &resource, &role, &json!({})).await?;
        let gates = json!([{ "tools": [CREATE], "action": "ask", "expires_s": expires_s }]);
        let (status, body) = api.patch(&format!("/api/bots/{bot}"), &json!({ "gates": gates })).await?;
        ensure!(status == 200, "{status} {body}");
        Ok(Timed { api, bot, clock, running, home })
    }

    fn folder(&self) -> PathBuf {
        self.home.data_dir()
    }

    /// Starts a task and waits until it waits without a turn. Returns its id and its approval.
    async fn parked(&self) -> Result<(String, String)> {
        let input = json!({ "instruction": "Create an issue.", "limits": { "wall_s": 60 } });
        let (status, task) = self.api.post(&format!("/api/bots/{}/tasks", self.bot), &input).await?;
        ensure!(status == 202, "{status} {task}");
        let id = text(&task["id"]).to_owned();
        let approval = parked(&self.api, &self.folder(), &id).await?;
        Ok((id, approval))
    }

    async fn stop(self) {
        self.running.stop_handle().cancel();
        self.running.stopped().await;
    }

    fn advance(&self, seconds: i64) {
        self.clock.0.fetch_add(seconds * 1000, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_task_that_waits_an_hour_for_an_approval_does_not_end_by_its_wall_clock() -> Result<()> {
    let llm = FakeLlm::start().await?;
    let timed = Timed::start(&llm, 86_400).await?;
    llm.prepare([calls(&[(CREATE, create("Asked"))]), LlmReply::says(&["Done."])]);
    let (id, approval) = timed.parked().await?;
    timed.advance(3600);
    decide(&timed.api, &approval, "approve").await?;
    let task = ended(&timed.api, &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "Done."), "{task}");
    let steps = steps(&timed.api, &id).await?;
    // The call has run, and failed: the upstream of the test does not answer.
    assert!(!["approval_required", "permission_denied", ""].contains(&text(&steps[1]["status"])), "{steps:?}");
    timed.stop().await;
    Ok(())
}

#[tokio::test]
async fn the_expiry_of_an_approval_ends_the_wait_after_hours() -> Result<()> {
    let llm = FakeLlm::start().await?;
    let timed = Timed::start(&llm, 7200).await?;
    llm.prepare([calls(&[(CREATE, create("Asked"))]), LlmReply::says(&["I may not."])]);
    let (id, _) = timed.parked().await?;
    timed.advance(7000);
    sqlite(&timed.folder(), &[&format!("update wakes set due_at = 0 where key = 'task/{id}'")]).await?;
    eventually("the task has looked again", async || {
        let due = format!("select count(*) from wakes where key = 'task/{id}' and due_at > 0 and claim_id is null");
        Ok((sqlite(&timed.folder(), &[&due]).await?[0][0] == 1).then_some(()))
    })
    .await?;
    let (_, task) = timed.api.get(&format!("/api/tasks/{id}")).await?;
    assert_eq!(task["status"], "waiting", "{task}");
    timed.advance(201);
    let task = ended(&timed.api, &id).await?;
    assert_eq!((text(&task["status"]), text(&task["result"])), ("completed", "I may not."), "{task}");
    let steps = steps(&timed.api, &id).await?;
    assert_eq!(outline(&steps)[1], format!("call {CREATE} approval_required"));
    let (_, pending) = timed.api.get("/api/approvals?status=pending").await?;
    assert_eq!(pending["items"], json!([]), "the call does not ask a second time");
    timed.stop().await;
    Ok(())
}
