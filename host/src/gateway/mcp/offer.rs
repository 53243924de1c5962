//! The tools of one bot for one caller, as the MCP server sees them. Lists and calls are the operations that the HTTP
//! API runs.

use std::sync::{Arc, Weak};

use futures::stream::BoxStream;
use monstrum_api::tools::{CallInput, Chat, Tool};
use monstrum_core::app::App;
use monstrum_core::call::CallAnswer;
use monstrum_core::language::Language;
use monstrum_core::operations::{Caller, OperationError, tools};
use monstrum_core::policy::Bot;
use monstrum_manifest::ResultForm;
use monstrum_mcp::{Offer, OfferedTool, Outcome, Refusal, ToolCall};
use monstrum_types::{BotId, CallOutcome};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::gateway::mcp::changes::{self, Watched};

/// The bot of a request, and the caller.
#[derive(Clone)]
pub(super) struct BotOffer {
    pub app: Arc<App>,
    pub caller: Caller,
    pub bot: BotId,
    pub name: String,
    /// The bot at the time of the request, which must not keep an old policy alive.
    pub seen: Weak<Bot>,
    pub language: Language,
    /// Ends the streams of changes when the server stops.
    pub stop: CancellationToken,
}

impl Offer for BotOffer {
    type Error = OperationError;

    fn title(&self) -> String {
        self.name.clone()
    }

    async fn list(&self) -> Result<Vec<OfferedTool>, OperationError> {
        let tools = tools::list(&self.app, &self.caller, self.bot, self.language.clone()).await?;
        Ok(tools.into_iter().map(offered).collect())
    }

    async fn call(&self, call: ToolCall) -> Result<Outcome, Refusal<OperationError>> {
        let ToolCall { tool, arguments, task_id, chat, wait_for_approval_s } = call;
        let chat = chat.map(serde_json::from_value::<Chat>).transpose();
        let chat = chat.map_err(|error| Refusal::Params(format!("`monstrum/chat` in `_meta`: {error}")))?;
        let params = Value::Object(arguments);
        let input = CallInput { params, task_id, resource_id: None, chat, wait_for_approval_s };
        let language = self.language.clone();
        let answer = tools::answer(&self.app, &self.caller, self.bot, tool.clone(), language, input).await;
        match answer {
            Ok(answer) => Ok(outcome(answer, tools::result_form(&self.app, &self.caller, self.bot, &tool))),
            Err(OperationError::Invalid(errors)) => {
                let errors: Vec<String> =
                    errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
                Err(Refusal::Params(errors.join("; ")))
            }
            Err(error) => Err(Refusal::Failed(error)),
        }
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        changes::stream(Watched::new(self.clone()))
    }
}

fn offered(tool: Tool) -> OfferedTool {
    let Tool { name, description, input_schema, output_schema, operation, effect, asks, .. } = tool;
    OfferedTool { name: name.to_string(), description, input_schema, output_schema, operation, effect, asks }
}

fn outcome(answer: CallAnswer, form: ResultForm) -> Outcome {
    let CallAnswer { request_id, outcome, .. } = answer;
    let CallOutcome { status, code, message, data, output_mismatch, approval, .. } = outcome;
    Outcome { request_id, status, code, message, data, form, output_mismatch, approval }
}
