//! The tools of one bot for one caller, as the MCP server sees them. Lists and calls are the operations that the HTTP
//! API runs.

use std::sync::{Arc, Weak};

use futures::stream::BoxStream;
use monstrum_api::tools::{CallInput, Chat, Tool};
use monstrum_core::app::App;
use monstrum_core::beside::in_place;
use monstrum_core::call::CallAnswer;
use monstrum_core::call_types::incoming::TokenUser;
use monstrum_core::language::Language;
use monstrum_core::operations::approvals::{self, Standing};
use monstrum_core::operations::tools::{self, Range, ToolPage};
use monstrum_core::operations::{Caller, OperationError, oauth};
use monstrum_core::policy::Bot;
use monstrum_manifest::ResultForm;
use monstrum_mcp::{Offer, OfferedPage, OfferedTool, Outcome, Refusal, Retry, ToolCall};
use monstrum_types::{AppUser, BotId, CallOutcome, Code, Status};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::gateway::mcp::changes::{self, Watched};
use crate::gateway::mcp::request_state::{CallBinding, Lacking, RequestStates};
use crate::telemetry::TraceParent;

/// The time in seconds for which a repeated call waits for the decision of a person, unless its metadata has another
/// one. Clients repeat a call at once, and give up after some attempts or after a minute without an answer.
const RETRY_WAIT_S: u32 = 45;
/// The conversation of a call with an access token that names no conversation.
const TOKEN_CHAT: &str = "mcp";
/// The answer to a client whose user did not open the page. The user need not be an approver, so the approval stays.
const DECLINED: &str = "the request to open the page of the approval was declined, so the call was not made; call the tool again after a \
     person has approved the call";
/// The answer to a client whose user did not open the page of an authorization.
const NOT_AUTHORIZED: &str = "the request to open the page of the authorization was declined, so the call was not made; call the tool again after \
     the user has authorized the resource";

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
    pub request_states: Arc<RequestStates>,
    /// Whether the message of the request is large.
    pub is_large: bool,
    /// Ends the streams of changes when the server stops.
    pub stop: CancellationToken,
}

impl Offer for BotOffer {
    type Error = OperationError;

    fn title(&self) -> String {
        self.name.clone()
    }

    async fn list(&self, after: Option<String>, count: usize) -> Result<OfferedPage, OperationError> {
        let range = Range { after, count };
        let ToolPage { tools, has_more, .. } =
            tools::page(&self.app, &self.caller, self.bot, self.language.clone(), range).await?;
        Ok(OfferedPage { tools: tools.into_iter().map(offered).collect(), has_more })
    }

    async fn call(&self, call: ToolCall) -> Result<Outcome, Refusal<OperationError>> {
        let ToolCall { tool, arguments, task_id, chat, mut wait_for_approval_s, trace_parent, progress, .. } = call;
        let chat = chat_of(self.caller.token_user.as_deref(), chat).map_err(Refusal::Params)?;
        // Only calls that can be repeated pay for the digest.
        let is_bound = call.takes_request_state || call.retry.is_some();
        let binding = is_bound.then(|| {
            in_place(self.is_large, || CallBinding::of(&self.caller, self.bot, &tool, chat.as_ref(), &arguments))
        });
        if let (Some(retry), Some(binding)) = (call.retry, &binding) {
            let wait_s = wait_for_approval_s.take().unwrap_or(RETRY_WAIT_S);
            if let Some(outcome) = self.retry(&retry, binding, wait_s).await? {
                return Ok(outcome);
            }
        }
        let params = Value::Object(arguments);
        let input = CallInput { params, task_id, resource_id: None, chat, wait_for_approval_s };
        let language = self.language.clone();
        let answer = tools::answer(&self.app, &self.caller, self.bot, tool.clone(), language, input, progress);
        let answer = match trace_parent.as_deref().and_then(TraceParent::parse) {
            Some(parent) => answer.instrument(parent.span()).await,
            None => answer.await,
        };
        let form = tools::result_form(&self.app, &self.caller, self.bot, &tool);
        Ok(self.outcome(answer.map_err(refusal)?, form, binding.as_ref()))
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        changes::stream(Watched::new(self.clone()))
    }
}

impl BotOffer {
    /// Waits for the approval of a repeated call. Returns `None` if the call can be made now, and otherwise the outcome.
    async fn retry(
        &self,
        retry: &Retry,
        binding: &CallBinding,
        wait_s: u32,
    ) -> Result<Option<Outcome>, Refusal<OperationError>> {
        let (states, now) = (&self.request_states, self.app.clock.now());
        if let Some(lacking) = states.lacking(&retry.request_state, binding, now) {
            return self.retry_for_user(lacking, retry.is_declined, wait_s).await;
        }
        let approval = states.verified(&retry.request_state, binding, now);
        let approval = approval
            .ok_or_else(|| Refusal::Params("`requestState` was not issued for this call or has expired".to_owned()))?;
        let outcome = if retry.is_declined {
            CallOutcome::failure(Status::ApprovalRequired, Code::Approval, DECLINED)
        } else {
            let standing = approvals::standing(&self.app, &self.caller, self.bot, approval, wait_s).await;
            match standing.map_err(refusal)? {
                Standing::Ready => return Ok(None),
                Standing::Pending(outcome) | Standing::Ended(outcome) => outcome,
            }
        };
        let answer = CallAnswer { request_id: self.caller.request, outcome, duration_ms: 0 };
        Ok(Some(self.outcome(answer, ResultForm::default(), Some(binding))))
    }

    /// Waits for the authorization of a repeated call. Returns `None` if the call must be made now, and otherwise the
    /// outcome.
    async fn retry_for_user(
        &self,
        lacking: Lacking,
        is_declined: bool,
        wait_s: u32,
    ) -> Result<Option<Outcome>, Refusal<OperationError>> {
        if is_declined {
            let outcome = CallOutcome::error(Code::Unauthenticated, NOT_AUTHORIZED);
            let answer = CallAnswer { request_id: self.caller.request, outcome, duration_ms: 0 };
            return Ok(Some(self.outcome(answer, ResultForm::default(), None)));
        }
        if let Some(user) = &self.caller.token_user {
            let user = AppUser { app_id: user.issuer.to_string(), user_id: user.subject.to_string() };
            let (app, wait) = (&self.app, (lacking.known, wait_s));
            oauth::until_authorized(app, &self.caller, lacking.resource, &user, wait).await.map_err(refusal)?;
        }
        Ok(None)
    }

    fn outcome(&self, answer: CallAnswer, form: ResultForm, binding: Option<&CallBinding>) -> Outcome {
        let CallAnswer { request_id, outcome, .. } = answer;
        let CallOutcome { status, code, message, data, output_mismatch, approval, authorization, .. } = outcome;
        let link = authorization.as_deref().and_then(|needed| oauth::connect_url(&self.app, &self.caller, needed));
        let request_state = binding.and_then(|call| match (&approval, &authorization, &link) {
            (Some(approval), ..) => Some(self.request_states.issue(approval, call)),
            (None, Some(needed), Some((_, expires_at))) => {
                let snapshot = self.app.policy.load();
                let held = needed.user.as_ref().and_then(|user| snapshot.user_credential(needed.resource_id, user));
                let lacking = Lacking { resource: needed.resource_id, known: held.map(|held| held.held.row.id) };
                Some(self.request_states.issue_for_user(&lacking, *expires_at, call))
            }
            _ => None,
        });
        let connect_url = link.map(|(url, _)| url);
        Outcome { request_id, status, code, message, data, form, output_mismatch, approval, connect_url, request_state }
    }
}

fn offered(tool: Tool) -> OfferedTool {
    let Tool { name, title, description, input_schema, output_schema, operation, effect, asks, .. } = tool;
    OfferedTool { name: name.to_string(), title, description, input_schema, output_schema, operation, effect, asks }
}

/// Returns the conversation of a call. The user of an access token cannot name another user.
fn chat_of(user: Option<&TokenUser>, given: Option<Value>) -> Result<Option<Chat>, String> {
    let invalid = |error: &dyn std::fmt::Display| format!("`monstrum/chat` in `_meta`: {error}");
    let Some(user) = user else {
        return given.map(serde_json::from_value).transpose().map_err(|error| invalid(&error));
    };
    let mut members = match given {
        None => Map::new(),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(invalid(&"must be an object")),
    };
    for (name, own) in [("app_id", &user.issuer), ("user_id", &user.subject)] {
        let own = Value::from(&**own);
        if members.get(name).is_some_and(|given| *given != own) {
            return Err(invalid(&format!("`{name}` must be the one of the access token")));
        }
        members.insert(name.to_owned(), own);
    }
    members.entry("chat_id").or_insert_with(|| Value::from(TOKEN_CHAT));
    serde_json::from_value(Value::Object(members)).map_err(|error| invalid(&error))
}

fn refusal(error: OperationError) -> Refusal<OperationError> {
    match error {
        OperationError::Invalid(errors) => {
            let errors: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
            Refusal::Params(errors.join("; "))
        }
        error => Refusal::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use monstrum_types::UtcMillis;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_user_of_an_access_token_names_only_a_conversation() {
        let user = TokenUser {
            issuer: "https://id.example".into(),
            subject: "ann".into(),
            bot: BotId::new(),
            expires_at: UtcMillis(0),
        };
        let told = |given: Value| {
            let given = (!given.is_null()).then_some(given);
            chat_of(Some(&user), given).map(|chat| chat.map(|chat| (chat.app_id, chat.user_id, chat.chat_id)))
        };
        let chat = |id: &str| Ok(Some(("https://id.example".to_owned(), "ann".to_owned(), id.to_owned())));
        assert_eq!(told(Value::Null), chat("mcp"));
        assert_eq!(told(json!({"chat_id": "c"})), chat("c"));
        assert_eq!(told(json!({"app_id": "https://id.example", "user_id": "ann", "chat_id": "c"})), chat("c"));
        for other in [
            json!({"user_id": "eve"}),
            json!({"app_id": "other"}),
            json!({"app_id": null}),
            json!({"user_id": ["ann"]}),
            json!({"chat_id": 7}),
            json!({"more": 1}),
            json!("c"),
        ] {
            assert!(told(other.clone()).is_err(), "{other}");
        }
        assert_eq!(chat_of(None, None).map(|chat| chat.is_none()), Ok(true));
    }
}
