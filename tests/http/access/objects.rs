//! Objects that take several requests to create.

use anyhow::Result;
use serde_json::{Value, json};
use support::LlmReply;

use super::Fresh;
use crate::http::made;
use crate::runs::{run_is, started};
use crate::tasks::{ended, give_model};
use crate::workflows::definition_with;
use crate::world::text;

impl Fresh {
    /// Creates a resource whose tools come from a server, which the network rules do not permit.
    pub(super) async fn mcp_server(&self) -> Result<String> {
        let config = json!({ "url": "http://127.0.0.1:9/mcp" });
        let body = json!({ "resource_type": "mcp", "name": self.name(), "config": config });
        made(&self.world.api, "/api/resources", &body).await
    }

    /// Creates a bot whose call waits for approval. Returns the approval and the bot.
    pub(super) async fn approval(&self) -> Result<(Value, String)> {
        let gates = json!([{ "action": "ask", "approvers": ["admin", "operator", "approver"] }]);
        let bot = made(&self.world.api, "/api/bots", &json!({ "name": self.name(), "gates": gates })).await?;
        let binding = json!({ "resource_id": self.resource().await?, "permissions": { "allowed_tools": ["*"] } });
        made(&self.world.api, &format!("/api/bots/{bot}/resources"), &binding).await?;
        let answer = self.starter.call(&bot, "test_echo_run", &json!({})).await?;
        let path = format!("/api/approvals/{}", text(&answer["approval"]["id"]));
        Ok((self.world.api.get(&path).await?.1, bot))
    }

    /// Creates a bot with a task that has ended. Returns the task and the bot.
    pub(super) async fn task(&self) -> Result<(Value, String)> {
        let (api, bot) = (&self.world.api, self.world.api.bot(&self.name()).await?);
        give_model(api, &bot, &self.name(), &self.llm).await?;
        // One answer is for the task, and one for a message to its session.
        self.llm.prepare((0..2).map(|_| LlmReply::json(400, &json!({ "error": { "message": "no" } }))));
        let task = made(api, &format!("/api/bots/{bot}/tasks"), &json!({ "instruction": "x" })).await?;
        Ok((ended(api, &task).await?, bot))
    }

    /// Creates a workflow with a run that has failed. Returns the run.
    pub(super) async fn run(&self) -> Result<Value> {
        let (api, name) = (&self.world.api, self.name());
        let definition = definition_with(&name, &self.world.bot, "{ id: halt, stop: failed }");
        let workflow = made(api, "/api/workflows", &json!({ "definition": definition })).await?;
        let run = started(api, &workflow, &json!({})).await?;
        run_is(api, text(&run["id"]), "failed").await
    }
}
