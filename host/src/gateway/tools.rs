//! `/api/bots/{id}/tools`: what a bot may see, what it calls, and what would become of a call.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use monstrum_manifest::{Cost, Locales};
use monstrum_store::KeyKind;
use monstrum_types::{
    BotId, CallOutcome, Code, JsonText, Overrun, RequestId, ResourceId, ResourceTypeId, Status, ToolName,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::{IntoParams, ToSchema};

use crate::gateway::extract::{Caller, Faults, Id, Ids, Input, Params, ThisRequest};
use crate::gateway::language::InLanguage;
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use crate::gateway::sandbox_files::check_part;
use monstrum_core::app::App;
use monstrum_core::audit::AuditUnavailable;
use monstrum_core::beside::in_place;
use monstrum_core::call::CallAnswer;
use monstrum_core::call::check::{self, Prediction};
use monstrum_core::call::resolve::{self, ResolvedCall};
use monstrum_core::call::session::Session;
use monstrum_core::call_types::incoming::IncomingCall;
use monstrum_core::checks::{Unchecked, pay_for_object};
use monstrum_core::language::Language;

/// Most characters of a caller's own id of a task or a conversation.
const FOREIGN_ID_CHARS_MAX: usize = 256;
/// The tools whose schemas are written on a thread that serves requests.
const TOOLS_IN_PLACE_MAX: usize = 32;

/// A tool as a bot sees it.
#[derive(Serialize, ToSchema)]
pub struct Tool {
    pub name: ToolName,
    pub description: String,
    /// JSON Schema of the parameters. Where the bot has the tool through several resources, it requires `_resource`.
    pub input_schema: Map<String, Value>,
    /// JSON Schema of the answer.
    pub output_schema: Option<Map<String, Value>>,
    pub operation: String,
    pub resource_type: ResourceTypeId,
    /// The resources through which the bot has the tool.
    pub resources: Vec<NamedResource>,
    #[schema(value_type = Option<Object>)]
    pub cost: Option<Cost>,
}

/// A resource by id and name.
#[derive(Serialize, ToSchema)]
pub struct NamedResource {
    pub id: ResourceId,
    pub name: String,
}

/// The tools of a bot; with `format=openai`, as function-calling JSON.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolList {
    Plain { items: Vec<Tool> },
    OpenAi { items: Vec<OpenAiTool> },
}

/// A tool as models of that interface take it.
#[derive(Serialize, ToSchema)]
pub struct OpenAiTool {
    #[serde(rename = "type")]
    #[schema(example = "function")]
    pub kind: &'static str,
    pub function: OpenAiFunction,
}

#[derive(Serialize, ToSchema)]
pub struct OpenAiFunction {
    pub name: ToolName,
    pub description: String,
    pub parameters: Map<String, Value>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ToolsQuery {
    /// `openai` for function-calling JSON.
    format: Option<String>,
}

/// A call of a tool.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallInput {
    /// By the tool's input_schema.
    #[serde(default = "no_params")]
    #[schema(value_type = Object)]
    params: Value,
    /// Groups calls in the audit.
    task_id: Option<String>,
    /// Which resource, where the bot has the tool through several.
    resource_id: Option<ResourceId>,
    /// The conversation in which the call happens.
    chat: Option<Chat>,
}

/// A conversation. Its ids are the caller's.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    pub app_id: String,
    pub user_id: String,
    pub chat_id: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckInput {
    #[serde(default = "no_params")]
    #[schema(value_type = Object)]
    params: Value,
    resource_id: Option<ResourceId>,
}

fn no_params() -> Value {
    Value::Object(Map::new())
}

/// The end of a call, whatever it is.
#[derive(Serialize, ToSchema)]
pub struct CallResult {
    pub request_id: RequestId,
    /// An open set: treat one that you do not know as not done.
    pub status: Status,
    /// On anything but success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Exactly what the LLM reads, on anything but success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the tool answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<JsonText>,
    pub duration_ms: i64,
}

/// What would become of a call. A bot key sees decision and message only.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum CheckResult {
    Full {
        decision: Decision,
        message: Option<String>,
        rule: Option<String>,
        reason: Option<String>,
        smallest_change: Option<String>,
    },
    Bot {
        decision: Decision,
        message: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Deny,
}

/// Lists the tools that a bot may see
#[utoipa::path(get, path = "/api/bots/{id}/tools", tag = "tools", params(("id" = BotId, Path), ToolsQuery),
    responses((status = 200, body = ToolList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    InLanguage(language): InLanguage,
    Id(bot): Id<BotId>,
    Params(query): Params<ToolsQuery>,
) -> Result<Response, Problem> {
    check_bot(&app, &caller, bot)?;
    let call = incoming(&caller, bot, RequestId::new(), String::new(), no_params());
    let session = session(&app, &call)?;
    let listed = app.calls.ask(call.workspace(), bot, move |effort| {
        let visible = resolve::list(&session, effort)?;
        let items = visible.chunk_by(|a, b| a.tool().manifest.name == b.tool().manifest.name);
        items
            .map(|same| pay_for_object(&same[0].tool().manifest.input_schema, effort).map(|()| tool(same, &language)))
            .collect()
    });
    let items: Vec<Tool> = listed.await.map_err(unchecked)?;
    // Schemas are written and freed.
    in_place(items.len() > TOOLS_IN_PLACE_MAX, || {
        let list = match query.format.as_deref() {
            None => ToolList::Plain { items },
            Some("openai") => ToolList::OpenAi { items: items.into_iter().map(OpenAiTool::from).collect() },
            Some(_) => return Err(Problem::invalid_at("format", "expected openai, or no format at all")),
        };
        Ok(Json(list).into_response())
    })
}

/// Calls a tool; the answer is 200 whatever the call's status
#[utoipa::path(post, path = "/api/bots/{id}/tools/{tool}/call", tag = "tools",
    params(("id" = BotId, Path), ("tool" = String, Path)), request_body = CallInput,
    responses((status = 200, body = CallResult), (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "the audit cannot be written, so no call runs")))]
pub async fn call(
    State(app): State<Arc<App>>,
    ToolOfBot { caller, bot, tool }: ToolOfBot,
    InLanguage(language): InLanguage,
    ThisRequest(request_id): ThisRequest,
    Input(input): Input<CallInput>,
) -> Result<Response, Problem> {
    check_foreign_ids(input.task_id.as_deref(), input.chat.as_ref())?;
    let call = incoming(&caller, bot, request_id, tool, input.params)
        .with_task_id(input.task_id)
        .with_resource(input.resource_id)
        .with_language(language);
    let call = match input.chat {
        Some(chat) => call.with_context(json!({ "chat": chat })),
        None => call,
    };
    run(&app, call).await
}

/// Runs a call, and says how it ended.
pub async fn run(app: &App, call: IncomingCall) -> Result<Response, Problem> {
    Ok(Json(ran(app, call).await?).into_response())
}

/// How a call has ended; what never ran is a problem.
pub async fn ran(app: &App, call: IncomingCall) -> Result<CallResult, Problem> {
    let answer = app.calls.run(call).await;
    let answer = answer.map_err(|AuditUnavailable| Problem::unavailable("the audit cannot be written at present"))?;
    let CallAnswer { request_id, outcome, duration_ms } = answer;
    if let Some(wait) = outcome.retry_after {
        let detail = outcome.message.unwrap_or_else(|| "too many calls".to_owned());
        return Err(Problem::rate_limited(detail, wait));
    }
    let CallOutcome { status, code, message, data, .. } = outcome;
    Ok(CallResult { request_id, status, code, message, data, duration_ms })
}

/// Says what would become of a call, without running it
#[utoipa::path(post, path = "/api/bots/{id}/tools/{tool}/check", tag = "tools",
    params(("id" = BotId, Path), ("tool" = String, Path)), request_body = CheckInput,
    responses((status = 200, body = CheckResult), (status = "4XX", body = ProblemBody)))]
pub async fn check(
    State(app): State<Arc<App>>,
    ToolOfBot { caller, bot, tool }: ToolOfBot,
    InLanguage(language): InLanguage,
    ThisRequest(request_id): ThisRequest,
    Input(input): Input<CheckInput>,
) -> Result<Json<CheckResult>, Problem> {
    let call =
        incoming(&caller, bot, request_id, tool, input.params).with_resource(input.resource_id).with_language(language);
    let session = session(&app, &call)?;
    let workspace = call.workspace();
    let prediction = app.calls.predict(workspace, bot, move |effort| check::predict(&session, &call, effort));
    Ok(Json(check_result(prediction.await.map_err(unchecked)?, caller.kind)))
}

/// Why a question about a bot has no answer.
fn unchecked(unchecked: Unchecked) -> Problem {
    match unchecked {
        Unchecked::Busy => Problem::full("the server is busy checking other calls of this bot or workspace"),
        Unchecked::Overrun(Overrun::Steps) => {
            Problem::over_limit("checking this takes more work than one request may; send smaller parameters")
        }
        Unchecked::Overrun(Overrun::Deadline | Overrun::Cancelled) => {
            Problem::timeout("the check did not end in time; try again")
        }
    }
}

/// The tool that a path names, of a bot that exists for the caller. The body is not read before this is known.
pub struct ToolOfBot {
    caller: Caller,
    bot: BotId,
    tool: String,
}

impl FromRequestParts<Arc<App>> for ToolOfBot {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Ids(bot, tool) = Ids::from_request_parts(parts, app).await?;
        check_bot(app, &caller, bot)?;
        Ok(ToolOfBot { caller, bot, tool })
    }
}

/// Whether there is such a bot for the caller.
fn check_bot(app: &App, caller: &Caller, bot: BotId) -> Result<(), Problem> {
    caller.may_use(bot)?;
    match app.policy.load().bot(caller.workspace, bot) {
        Some(_) => Ok(()),
        None => Err(Problem::not_found("bot")),
    }
}

/// A call by `caller`.
fn incoming(caller: &Caller, bot: BotId, request_id: RequestId, tool: String, params: Value) -> IncomingCall {
    IncomingCall::bot_tool(request_id, caller.workspace, bot, tool, params).with_key(caller.caller_key())
}

/// What is in force for the bot. It can only be missing where the policy cannot be read, or the bot has just gone.
fn session(app: &App, call: &IncomingCall) -> Result<Session, Problem> {
    Session::open(&app.policy, app.clock.now(), call).map_err(|refusal| match refusal.code {
        Some(Code::Unavailable) => Problem::unavailable("the permissions could not be read"),
        _ => Problem::not_found("bot"),
    })
}

fn check_foreign_ids(task: Option<&str>, chat: Option<&Chat>) -> Result<(), Problem> {
    let mut faults = Faults::default();
    if let Some(id) = task {
        if id.is_empty() {
            faults.add("/task_id", "must not be empty");
        }
        rules::length(&mut faults, "/task_id", id, FOREIGN_ID_CHARS_MAX);
    }
    if let Some(Chat { app_id, user_id, chat_id }) = chat {
        for (path, id) in [("/chat/app_id", app_id), ("/chat/user_id", user_id), ("/chat/chat_id", chat_id)] {
            check_part(&mut faults, path, id);
        }
    }
    faults.check()
}

fn check_result(prediction: Prediction, kind: KeyKind) -> CheckResult {
    let Prediction { allowed, message, rule, reason, smallest_change } = prediction;
    let decision = if allowed { Decision::Allow } else { Decision::Deny };
    match kind {
        KeyKind::Bot => CheckResult::Bot { decision, message },
        KeyKind::Root | KeyKind::Admin | KeyKind::Operator => {
            CheckResult::Full { decision, message, rule, reason, smallest_change }
        }
    }
}

/// One tool, through all the resources through which the bot has it.
fn tool(same: &[ResolvedCall], language: &Language) -> Tool {
    let first = same.first().expect("a chunk is never empty");
    let manifest = &first.tool().manifest;
    let resources = same.iter().filter_map(|resolved| {
        let resource = &resolved.binding.resource;
        resource.stored_id().map(|id| NamedResource { id, name: resource.row.name.clone() })
    });
    let resources: Vec<NamedResource> = resources.collect();
    let locales: &Locales = &first.plugin.locales;
    let key = format!("tools.{}.description", manifest.name);
    let names: Vec<&str> = resources.iter().map(|resource| resource.name.as_str()).collect();
    Tool {
        name: manifest.name.clone(),
        description: locales.text(language.best(locales), &key, &manifest.description).to_owned(),
        input_schema: resolve::with_resource(manifest.input_schema.clone(), &names),
        output_schema: manifest.output_schema.clone(),
        operation: manifest.operation.clone(),
        resource_type: first.plugin.manifest.resource_type.id.clone(),
        cost: manifest.cost,
        resources,
    }
}

impl From<Tool> for OpenAiTool {
    fn from(tool: Tool) -> Self {
        let Tool { name, description, input_schema, .. } = tool;
        OpenAiTool { kind: "function", function: OpenAiFunction { name, description, parameters: input_schema } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bot_key_learns_nothing_about_the_rules() {
        let verdict = || Prediction {
            allowed: false,
            message: Some("Permission denied: x".to_owned()),
            rule: Some("role.allowed_tools".to_owned()),
            reason: Some("why".to_owned()),
            smallest_change: Some("what".to_owned()),
        };
        assert_eq!(
            serde_json::to_string(&check_result(verdict(), KeyKind::Bot)).unwrap(),
            r#"{"decision":"deny","message":"Permission denied: x"}"#
        );
        assert_eq!(
            serde_json::to_string(&check_result(verdict(), KeyKind::Operator)).unwrap(),
            r#"{"decision":"deny","message":"Permission denied: x","rule":"role.allowed_tools","reason":"why","smallest_change":"what"}"#
        );
        let allowed = Prediction { allowed: true, ..Prediction::default() };
        assert_eq!(
            serde_json::to_string(&check_result(allowed, KeyKind::Admin)).unwrap(),
            r#"{"decision":"allow","message":null,"rule":null,"reason":null,"smallest_change":null}"#
        );
    }

    #[test]
    fn ids_of_tasks_and_conversations_are_bounded() {
        let chat = |id: &str| Chat { app_id: "a".to_owned(), user_id: "u".to_owned(), chat_id: id.to_owned() };
        assert!(check_foreign_ids(Some("t"), Some(&chat("c"))).is_ok());
        assert!(check_foreign_ids(None, None).is_ok());
        for bad in ["", &"x".repeat(257)] {
            assert!(check_foreign_ids(Some(bad), None).is_err());
            assert!(check_foreign_ids(None, Some(&chat(bad))).is_err());
        }
    }
}
