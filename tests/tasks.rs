//! Tasks: a bot works on an instruction with a scripted model and the tools of the plugin `github`.

mod access;
mod bots;
mod command;
mod guards;
mod hosts;
mod labels;
mod narrow;
mod output;
mod own_tools;
mod resumption;
mod runs;
mod sessions;
mod waiting;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, Bound, Canned, FakeLlm, LlmReply, Server};

use crate::http::made;
use crate::models;
use crate::world::{World, eventually, text};

/// A server with a bot that has a model and all tools of the plugin `github`.
pub(crate) struct Tasks {
    pub(crate) world: World,
    pub(crate) llm: FakeLlm,
    /// The binding of the plugin.
    pub(crate) github: Bound,
}

impl Tasks {
    /// Lets GitHub answer new issues without their texts.
    pub(crate) fn answer_new_issues_briefly(&self) {
        self.world.github.answer("/repos/acme/site/issues", Canned::json(201, &json!({ "number": 1 })));
    }

    pub(crate) async fn start() -> Result<Tasks> {
        Tasks::on(Server::prepare(&["github"])?).await
    }

    /// Starts a prepared server, which has the plugin `github`.
    pub(crate) async fn on(server: Server) -> Result<Tasks> {
        let world = World::on(server).await?;
        let llm = FakeLlm::start().await?;
        give_model(&world.api, &world.bot, "models", &llm).await?;
        let github = world.grant_all("github").await?;
        Ok(Tasks { world, llm, github })
    }

    pub(crate) fn api(&self) -> &Api {
        &self.world.api
    }

    /// Starts a task of the bot and returns its id.
    pub(crate) async fn begin(&self, input: &Value) -> Result<String> {
        let (status, task) = self.api().post(&format!("/api/bots/{}/tasks", self.world.bot), input).await?;
        ensure!(status == 202, "{status} {task}");
        Ok(text(&task["id"]).to_owned())
    }

    /// Runs a task of the bot to its end.
    pub(crate) async fn run(&self, instruction: &str) -> Result<Value> {
        let id = self.begin(&json!({ "instruction": instruction })).await?;
        ended(self.api(), &id).await
    }

    pub(crate) async fn steps(&self, task: &Value) -> Result<Vec<Value>> {
        steps(self.api(), text(&task["id"])).await
    }

    /// Returns the messages of the request that the model has received at this position.
    pub(crate) fn messages(&self, request: usize) -> Result<Vec<Value>> {
        let requests = self.llm.requests();
        let body = requests.get(request).with_context(|| format!("the model has no request {request}"))?.json();
        Ok(body["messages"].as_array().context("the request has no messages")?.clone())
    }
}

/// Lets a bot use a model of a scripted server.
pub(crate) async fn give_model(api: &Api, bot: &str, name: &str, llm: &FakeLlm) -> Result<()> {
    let body = models::resource(name, &llm.url(), &json!({ "context_tokens": 100_000 }), &json!({}));
    let resource = made(api, "/api/resources", &body).await?;
    let key = json!({ "auth_method": "api_key", "fields": { "api_key": models::KEY } });
    let (status, body) = api.put(&format!("/api/resources/{resource}/credential"), &key).await?;
    ensure!(status == 200, "{status} {body}");
    models::bind(api, bot, &resource, &json!({})).await?;
    Ok(())
}

/// Waits until a task has ended.
pub(crate) async fn ended(api: &Api, id: &str) -> Result<Value> {
    eventually("the task has ended", async || {
        let (status, task) = api.get(&format!("/api/tasks/{id}")).await?;
        ensure!(status == 200, "{status} {task}");
        Ok((!task["ended_at"].is_null()).then_some(task))
    })
    .await
}

pub(crate) async fn steps(api: &Api, id: &str) -> Result<Vec<Value>> {
    let (status, steps) = api.get(&format!("/api/tasks/{id}/steps?limit=1000")).await?;
    ensure!(status == 200, "{status} {steps}");
    Ok(steps["items"].as_array().context("the steps have no items")?.clone())
}

/// Returns an answer of a model that asks for these calls.
pub(crate) fn calls(calls: &[(&str, Value)]) -> LlmReply {
    LlmReply::calls(calls)
}

/// The parameters of a call that lists issues.
pub(crate) fn list() -> Value {
    json!({ "repo": "acme/site" })
}

/// The parameters of a call that creates an issue.
pub(crate) fn create(title: &str) -> Value {
    json!({ "repo": "acme/site", "title": title })
}

/// Returns an answer of a model that asks for a call with parameters of 45 000 bytes. Six of them exceed 80 % of the context.
pub(crate) fn large(number: usize) -> LlmReply {
    let (title, body) = (format!("Issue {number}"), "x".repeat(45_000));
    calls(&[("github_create_issue", json!({ "repo": "acme/site", "title": title, "body": body }))])
}

/// Returns the kind, the tool and the status of each step.
pub(crate) fn outline(steps: &[Value]) -> Vec<String> {
    let outline = |step: &Value| {
        let parts = [&step["kind"], &step["tool"], &step["status"]].map(text);
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    };
    steps.iter().map(outline).collect()
}
