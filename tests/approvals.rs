//! Approvals: calls for which gates ask, steps of workflows, and the people who decide about them.

mod calls;
mod command;
mod deciding;
mod nested;
mod step_calls;
mod steps;
mod stream;
mod tampering;
mod waiting;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::{Api, Bound, Server};

use crate::world::{World, text};

const ECHO: &str = "test-echo";
const TOOL: &str = "test_echo_run";
/// A tool whose calls reach the upstream, so that a test can count them.
const FETCH: &str = "test_echo_fetch";

/// A bot whose calls a person must approve. The root key makes the calls, and an admin key decides.
struct Gated {
    world: World,
    bound: Bound,
    admin: Api,
}

impl Gated {
    async fn start() -> Result<Gated> {
        Gated::on(Server::prepare(&[ECHO])?, &json!({ "action": "ask" })).await
    }

    /// Starts a prepared server, with one gate of the bot.
    async fn on(server: Server, gate: &Value) -> Result<Gated> {
        let world = World::on(server).await?;
        let bound = world.grant_all(ECHO).await?;
        let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
        let gated = Gated { world, bound, admin };
        gated.set_gates(&json!([gate])).await?;
        Ok(gated)
    }

    async fn set_gates(&self, gates: &Value) -> Result<()> {
        let path = format!("/api/bots/{}", self.world.bot);
        let (status, answer) = self.world.api.patch(&path, &json!({ "gates": gates })).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(())
    }

    /// Calls a tool with a whole body.
    async fn call_with(&self, api: &Api, tool: &str, body: &Value) -> Result<Value> {
        let (status, answer) = api.post(&format!("/api/bots/{}/tools/{tool}/call", self.world.bot), body).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(answer)
    }

    async fn call(&self, params: &Value) -> Result<Value> {
        self.world.call(TOOL, params).await
    }

    /// Makes a call that must ask, and returns the id of its approval.
    async fn ask(&self, params: &Value) -> Result<String> {
        asked(&self.call(params).await?)
    }

    /// Returns the approval as an admin reads it.
    async fn approval(&self, id: &str) -> Result<Value> {
        let (status, approval) = self.admin.get(&format!("/api/approvals/{id}")).await?;
        ensure!(status == 200, "{status} {approval}");
        Ok(approval)
    }

    /// Decides with a key. Returns the status and the answer.
    async fn decide_as(&self, api: &Api, id: &str, decision: &str) -> Result<(u16, Value)> {
        let digest = self.approval(id).await?["digest"].clone();
        api.post(&format!("/api/approvals/{id}"), &json!({ "decision": decision, "digest": digest })).await
    }

    async fn approve(&self, id: &str) -> Result<()> {
        let (status, answer) = self.decide_as(&self.admin, id, "approve").await?;
        ensure!(status == 200 && answer["status"] == "approved", "{status} {answer}");
        Ok(())
    }

    /// Makes a call that must ask, and approves it.
    async fn approved(&self, params: &Value) -> Result<String> {
        let id = self.ask(params).await?;
        self.approve(&id).await?;
        Ok(id)
    }

    /// Returns the recorded changes of approvals, oldest first.
    async fn changes(&self) -> Result<Vec<String>> {
        let (status, body) = self.world.api.get("/api/audit/changes?limit=1000").await?;
        ensure!(status == 200, "{body}");
        let items = body["items"].as_array().context("the list has no items")?;
        let told = items.iter().rev().map(|item| format!("{} {}", text(&item["change"]), text(&item["status"])));
        Ok(told.filter(|change| change.starts_with("approval.")).collect())
    }
}

/// Returns the id of the approval that a call waits for.
fn asked(answer: &Value) -> Result<String> {
    ensure!(answer["status"] == "approval_required" && answer["code"] == "approval", "the call did not ask: {answer}");
    let id = text(&answer["approval"]["id"]);
    ensure!(!id.is_empty() && !text(&answer["approval"]["expires_at"]).is_empty(), "{answer}");
    Ok(id.to_owned())
}

fn succeeded(answer: &Value) -> bool {
    answer["status"] == "success"
}
