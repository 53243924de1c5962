//! The set-up of the tests of runs: a server, an upstream that records its requests, and a bot that may use all tools of the
//! plugin `test-effects`.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, Bound, FakeLlm, Server, status_of};

use crate::tasks::give_model;
use crate::world::{World, eventually, text};

pub(super) const PLUGIN: &str = "test-effects";
pub(super) const READ: &str = "test_effects_read";
pub(super) const PUT: &str = "test_effects_put";
pub(super) const WRITE: &str = "test_effects_write";
/// A tool whose calls fail without a request.
pub(super) const FAIL: &str = "test_effects_fail";

pub(super) struct Flows {
    pub(super) world: World,
    /// The binding of the plugin.
    pub(super) bound: Bound,
}

impl Flows {
    pub(super) async fn start() -> Result<Flows> {
        Flows::on(Server::prepare(&[PLUGIN])?).await
    }

    /// Starts a prepared server, which has the plugin.
    pub(super) async fn on(server: Server) -> Result<Flows> {
        let world = World::on(server).await?;
        let bound = world.grant_all(PLUGIN).await?;
        Ok(Flows { world, bound })
    }

    pub(super) fn api(&self) -> &Api {
        &self.world.api
    }

    /// Lets the bot use a scripted model.
    pub(super) async fn with_model(&self) -> Result<FakeLlm> {
        let llm = FakeLlm::start().await?;
        give_model(self.api(), &self.world.bot, "models", &llm).await?;
        Ok(llm)
    }

    /// Saves a workflow of the bot and returns its id.
    pub(super) async fn save(&self, name: &str, definition: &Value) -> Result<String> {
        self.api().workflow(&self.world.bot, name, definition).await
    }

    /// Saves a workflow and starts a run of it. Returns the id of the run.
    pub(super) async fn begin(&self, definition: &Value, input: &Value) -> Result<String> {
        let workflow = self.save("flow", definition).await?;
        self.api().start_run(&workflow, input).await
    }

    /// Runs steps to the end of their run.
    pub(super) async fn run(&self, definition: &Value) -> Result<Value> {
        let id = self.begin(definition, &json!({})).await?;
        self.ended(&id).await
    }

    pub(super) async fn ended(&self, id: &str) -> Result<Value> {
        self.api().run_ended(id).await
    }

    /// Waits until a run has this status.
    pub(super) async fn is(&self, id: &str, status: &str) -> Result<Value> {
        self.api().run_that(&format!("is not {status}"), id, |run| run["status"] == status).await
    }

    /// Waits until a step of a run waits for something of this kind. Returns the wait.
    pub(super) async fn waits(&self, id: &str, kind: &str) -> Result<Value> {
        let of_kind = |run: &Value| {
            let waits = run["waiting_for"].as_array().into_iter().flatten();
            waits.into_iter().find(|wait| wait["kind"] == kind).cloned()
        };
        let what = format!("does not wait for a {kind}");
        let run = self.api().run_that(&what, id, |run| of_kind(run).is_some()).await?;
        of_kind(&run).context("the wait is gone")
    }

    pub(super) async fn steps(&self, run: &Value) -> Result<Vec<Value>> {
        self.api().run_steps(text(&run["id"])).await
    }

    /// Returns the last attempt of a step, which stands outside of `each`.
    pub(super) async fn step(&self, run: &Value, id: &str) -> Result<Value> {
        let steps = self.steps(run).await?;
        let found = steps.iter().rev().find(|step| step["step"] == id && step["undo"] != true);
        found.cloned().with_context(|| format!("the run has no step {id}: {:?}", status_of(&steps)))
    }

    /// Sends a request about a run, such as `cancel`, which must be accepted.
    pub(super) async fn ask(&self, id: &str, what: &str, body: &Value) -> Result<Value> {
        let (status, answer) = self.api().post(&format!("/api/runs/{id}/{what}"), body).await?;
        ensure!(matches!(status, 200 | 202), "{what}: {status} {answer}");
        Ok(answer)
    }

    /// Returns the method and the marker of each request of the upstream, in their order.
    pub(super) fn seen(&self) -> Vec<String> {
        let requests = self.world.github.requests();
        let seen = |path: &str| path.strip_prefix("/effects/").map(str::to_owned);
        requests.iter().filter_map(|request| Some(format!("{} {}", request.method, seen(&request.path)?))).collect()
    }

    /// Returns the idempotency keys of the requests for a marker, in their order.
    pub(super) fn keys(&self, marker: &str) -> Vec<String> {
        let path = format!("/effects/{marker}");
        let requests = self.world.github.requests().into_iter().filter(|request| request.path == path);
        requests.map(|request| request.header("idempotency-key").unwrap_or_default().to_owned()).collect()
    }

    /// Waits until this number of requests has arrived.
    pub(super) async fn reached(&self, count: usize) -> Result<()> {
        self.world.reached(count).await
    }

    /// Kills the server and starts it again.
    pub(super) async fn killed(&mut self) -> Result<()> {
        self.world.server.kill().await?;
        self.launched().await
    }

    /// Starts the server again.
    pub(super) async fn launched(&mut self) -> Result<()> {
        self.world.server.launch().await?;
        self.world.api = self.world.server.api()?;
        Ok(())
    }

    /// Returns the events of a type, newest first.
    pub(super) async fn events(&self, event_type: &str) -> Result<Vec<Value>> {
        let (status, listed) = self.api().get(&format!("/api/events?event_type={event_type}&limit=1000")).await?;
        ensure!(status == 200, "{status} {listed}");
        Ok(listed["items"].as_array().cloned().unwrap_or_default())
    }

    /// Emits an event with these fields, and returns its id.
    pub(super) async fn emit(&self, name: &str, fields: &Value) -> Result<String> {
        let mut body = json!({ "name": name });
        if let (Value::Object(body), Value::Object(fields)) = (&mut body, fields.clone()) {
            body.extend(fields);
        }
        let (status, emitted) = self.api().post("/api/events", &body).await?;
        ensure!(status == 201, "{status} {emitted}");
        Ok(text(&emitted["event_id"]).to_owned())
    }

    /// Waits until an event is dispatched and none of its deliveries is pending. Returns the event.
    pub(super) async fn delivered(&self, id: &str) -> Result<Value> {
        eventually("the event is delivered", async || {
            let (status, event) = self.api().get(&format!("/api/events/{id}")).await?;
            ensure!(status == 200, "{status} {event}");
            let deliveries = event["deliveries"].as_array().cloned().unwrap_or_default();
            let is_over = deliveries.iter().all(|delivery| delivery["status"] != "pending");
            Ok((!event["sequence"].is_null() && is_over).then_some(event))
        })
        .await
    }

    /// Sets the gates of the bot.
    pub(super) async fn set_gates(&self, gates: &Value) -> Result<()> {
        let path = format!("/api/bots/{}", self.world.bot);
        let (status, answer) = self.api().patch(&path, &json!({ "gates": gates })).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(())
    }

    /// Creates a key of a kind and returns its id and its API.
    pub(super) async fn key(&self, kind: &str, bot: Option<&str>) -> Result<(String, Api)> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("{kind} {}", COUNT.fetch_add(1, Ordering::Relaxed));
        let mut body = json!({ "name": name, "kind": kind });
        if let Some(bot) = bot {
            body["bot_id"] = json!(bot);
        }
        let (status, key) = self.api().post("/api/keys", &body).await?;
        ensure!(status == 201, "{status} {key}");
        Ok((text(&key["id"]).to_owned(), self.api().with_key(text(&key["key"]))))
    }

    /// Returns all runs of the workspace, newest first.
    pub(super) async fn runs(&self) -> Result<Vec<Value>> {
        let (status, runs) = self.api().get("/api/runs?limit=1000").await?;
        ensure!(status == 200, "{status} {runs}");
        Ok(runs["items"].as_array().cloned().unwrap_or_default())
    }
}

/// Returns a step that calls a tool with its own id as the marker.
pub(super) fn call(id: &str, tool: &str) -> Value {
    json!({ "id": id, "tool": tool, "params": { "marker": id } })
}

/// Adds fields to a step.
pub(super) fn with(mut step: Value, fields: &Value) -> Value {
    if let (Value::Object(step), Value::Object(fields)) = (&mut step, fields.clone()) {
        step.extend(fields);
    }
    step
}

/// Returns the status of a run, the code of its error and the step that failed.
pub(super) fn told(run: &Value) -> [&str; 3] {
    [text(&run["status"]), text(&run["error"]["code"]), text(&run["error"]["step"])]
}

/// Decides about an approval with a key.
pub(super) async fn decide(api: &Api, approval: &str, decision: &str, note: &str) -> Result<(u16, Value)> {
    let path = format!("/api/approvals/{approval}");
    let (status, shown) = api.get(&path).await?;
    ensure!(status == 200, "{status} {shown}");
    let mut body = json!({ "decision": decision, "digest": shown["digest"] });
    if !note.is_empty() {
        body["note"] = json!(note);
    }
    api.post(&path, &body).await
}
