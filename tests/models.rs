//! Rounds with models, in a host of this process: only tasks make rounds, and no route does.

mod config;
mod failures;
mod governed;
mod rounds;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use monstrum_core::call::CallAnswer;
use monstrum_core::call_types::incoming::{Attachments, IncomingCall};
use monstrum_core::call_types::round::{LLM_COMPLETE, RoundDelta, RoundExchange, RoundRequest, RoundTool};
use monstrum_llm::Message;
use monstrum_types::{BotId, RequestId, ResourceId};
use serde_json::{Value, json};
use support::{Api, FakeLlm, InProcess};
use tokio::sync::mpsc;

use crate::http::made;

/// The API key of the models.
pub(crate) const KEY: &str = "sk-canary-7f3a9c1e5b";
/// What the user says. It must be in no row and no log.
pub(crate) const SAID: &str = "the user's words are private";

/// A host with one resource of type `llm`, whose model `small` one bot may ask.
pub(crate) struct Models {
    pub(crate) host: InProcess,
    pub(crate) api: Api,
    pub(crate) llm: FakeLlm,
    pub(crate) bot: String,
    pub(crate) resource: String,
    pub(crate) binding: String,
}

impl Models {
    pub(crate) async fn start() -> Result<Models> {
        Models::with(&json!({}), &json!({})).await
    }

    /// Starts a host. `model` and `config` are added to the model and to the configuration of the resource.
    pub(crate) async fn with(model: &Value, config: &Value) -> Result<Models> {
        let (host, llm) = (InProcess::start_without_sandboxes(&[]).await?, FakeLlm::start().await?);
        let api = host.api()?;
        let resource = made(&api, "/api/resources", &resource("models", &llm.url(), model, config)).await?;
        let key = json!({ "auth_method": "api_key", "fields": { "api_key": KEY } });
        let (status, body) = api.put(&format!("/api/resources/{resource}/credential"), &key).await?;
        ensure!(status == 200, "{status} {body}");
        let bot = api.bot("thinker").await?;
        let binding = bind(&api, &bot, &resource, &json!({})).await?;
        Ok(Models { host, api, llm, bot, resource, binding })
    }

    /// Runs a round with the model `small` through the only resource.
    pub(crate) async fn run(&self, exchange: &Arc<RoundExchange>) -> Result<CallAnswer> {
        self.host.running.app.calls.run(self.call(exchange)?).await.context("the audit could not be written")
    }

    pub(crate) fn call(&self, exchange: &Arc<RoundExchange>) -> Result<IncomingCall> {
        let workspace = self.host.running.app.policy.load().default_workspace();
        let bot: BotId = self.bot.parse().context("the id of the bot")?;
        let resource: ResourceId = self.resource.parse().context("the id of the resource")?;
        let params = Value::Object(exchange.params().clone());
        let call = IncomingCall::bot_tool(RequestId::new(), workspace, bot, LLM_COMPLETE.to_owned(), params);
        let attachments = Attachments { round: Some(Arc::clone(exchange)), ..Attachments::default() };
        Ok(call.with_resource(Some(resource)).with_task_id(Some("task-1".to_owned())).with_attachments(attachments))
    }

    /// Returns what the rounds of the bot have used: input and output tokens, rounds, and rounds with an estimate.
    pub(crate) async fn used(&self) -> Result<[i64; 4]> {
        let app = &self.host.running.app;
        let (workspace, bot) = (app.policy.load().default_workspace(), self.bot.parse()?);
        let rows = app.store.usage(workspace, bot, None).await?;
        let Some(row) = rows.first() else { return Ok([0; 4]) };
        Ok([row.tokens_input, row.tokens_output, row.rounds, row.rounds_estimated])
    }
}

/// Returns the body that creates a resource with the model `small`.
pub(crate) fn resource(name: &str, api_base: &str, model: &Value, config: &Value) -> Value {
    let mut small = json!({ "id": "small", "context_tokens": 8000, "output_tokens": 1000 });
    merge(&mut small, model);
    let mut all = json!({ "api_base": api_base, "models": [small] });
    merge(&mut all, config);
    json!({
        "resource_type": "llm", "name": name, "config": all,
        "network": { "allow_addresses": ["127.0.0.0/8"], "allow_http": true },
    })
}

/// Binds a bot to a resource of type `llm`, with these other fields.
pub(crate) async fn bind(api: &Api, bot: &str, resource: &str, other: &Value) -> Result<String> {
    let mut body = json!({ "resource_id": resource, "permissions": { "allowed_operations": ["llm.complete"] } });
    merge(&mut body, other);
    made(api, &format!("/api/bots/{bot}/resources"), &body).await
}

fn merge(into: &mut Value, other: &Value) {
    for (name, value) in other.as_object().into_iter().flatten() {
        into[name] = value.clone();
    }
}

/// Returns a request with one message and one tool.
pub(crate) fn request() -> RoundRequest {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tool = RoundTool { name: "weather".to_owned(), description: "The weather".to_owned(), parameters };
    RoundRequest { messages: vec![Message::user(SAID)], tools: vec![tool], ..RoundRequest::default() }
}

/// Returns the exchange of a round with the model `small`, without listeners.
pub(crate) fn exchange() -> Arc<RoundExchange> {
    Arc::new(RoundExchange::new(request(), ("small", 1000), None))
}

/// Returns the exchange of a round with the model `small`, and its listener.
pub(crate) fn heard() -> (Arc<RoundExchange>, mpsc::Receiver<RoundDelta>) {
    let (sender, deltas) = mpsc::channel(1000);
    (Arc::new(RoundExchange::new(request(), ("small", 1000), Some(sender))), deltas)
}

/// Returns all texts that a listener has heard, by channel: text and reasoning.
pub(crate) fn texts(deltas: &mut mpsc::Receiver<RoundDelta>) -> (String, String) {
    use monstrum_core::call_types::round::RoundChannel;
    let (mut text, mut reasoning) = (String::new(), String::new());
    while let Ok(delta) = deltas.try_recv() {
        match delta.channel {
            RoundChannel::Text => text += &delta.text,
            RoundChannel::Reasoning => reasoning += &delta.text,
        }
    }
    (text, reasoning)
}
