//! The tools of a bot: list, call and check.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use monstrum_api::tools::{
    AskingGate, CallInput, CallResult, ChangedHolder, Chat, CheckDecision, CheckInput, CheckResult, NamedBot,
    NamedResource, RuleChange, Tool,
};
use monstrum_guardian::{ChangeAction, ChangeHolder};
use monstrum_manifest::{Locales, ResultForm, is_own_tool};
use monstrum_store::KeyKind;
use monstrum_types::{BotId, Code, Effort, JsonText, Overrun, RequestId, ToolName, WorkspaceId};
use serde_json::{Value, json};

use super::sandbox_files::check_part;
use super::{Caller, InputErrors, OperationError, calls, rules};
use crate::app::App;
use crate::call::CallAnswer;
use crate::call::check::{self, Prediction, Suggestion};
use crate::call::consent::WAIT_MAX;
use crate::call::resolve::{self, ResolvedCall, Visible};
use crate::call::session::Session;
use crate::call_types::incoming::{Attachments, IncomingCall};
use crate::call_types::progress::ProgressListener;
use crate::checks::{Unchecked, in_place, pay_for_object};
use crate::language::Language;
use crate::plugins::Plugin;
use crate::policy::Bot;

/// The maximum number of characters of a task id. Callers choose task ids.
const FOREIGN_ID_CHARS_MAX: usize = 256;

/// A part of the list of tools, which is sorted by name.
#[derive(Clone, Debug)]
pub struct Range {
    /// The name before the first tool. A tool of this name need not exist.
    pub after: Option<String>,
    /// The maximum number of tools.
    pub count: usize,
}

/// The tools of a [`Range`].
pub struct ToolPage {
    pub tools: Vec<Tool>,
    /// The names of the tools whose plugins make calls of their own.
    pub callers: BTreeSet<ToolName>,
    /// Whether the bot may see tools after these.
    pub has_more: bool,
}

/// Lists the tools that a bot may see, sorted by name.
pub async fn list(app: &App, caller: &Caller, bot: BotId, language: Language) -> Result<Vec<Tool>, OperationError> {
    let all = Range { after: None, count: usize::MAX };
    Ok(page(app, caller, bot, language, all).await?.tools)
}

/// Lists a part of the tools that a bot may see. The permissions for tools outside of this part are not judged.
pub async fn page(
    app: &App,
    caller: &Caller,
    bot: BotId,
    language: Language,
    range: Range,
) -> Result<ToolPage, OperationError> {
    may_use(app, caller, bot)?;
    let call = incoming(caller, bot, RequestId::new(), String::new(), json!({}));
    visible(app, &call, bot, language, range).await
}

/// Lists a part of the tools that a bot may see. `call` is a call of the bot under whose permissions the tools are judged.
pub async fn visible(
    app: &App,
    call: &IncomingCall,
    bot: BotId,
    language: Language,
    range: Range,
) -> Result<ToolPage, OperationError> {
    let session = session(app, call)?;
    let listed = app.calls.ask(call.workspace(), bot, move |effort| {
        let Visible { calls, has_more } = resolve::page(&session, range.after.as_deref(), range.count, effort)?;
        let items = calls.chunk_by(|a, b| a.tool().manifest.name == b.tool().manifest.name);
        let tools: Result<Vec<Tool>, Overrun> = items.map(|same| tool(same, &language, effort)).collect();
        Ok(ToolPage { tools: tools?, callers: callers(&calls), has_more })
    });
    listed.await.map_err(unchecked)
}

/// Returns the names of the tools that run in a plugin that makes calls of its own.
fn callers(calls: &[ResolvedCall]) -> BTreeSet<ToolName> {
    let calls = calls.iter().filter(|resolved| resolved.plugin.makes_calls());
    calls.map(|resolved| resolved.tool().manifest.name.clone()).collect()
}

/// Calls a tool.
pub async fn call(
    app: &App,
    caller: &Caller,
    bot: BotId,
    tool: String,
    language: Language,
    input: CallInput,
) -> Result<CallResult, OperationError> {
    calls::run(app, call_of(app, caller, bot, tool, language, input).await?).await
}

/// Calls a tool and returns everything that is known about the outcome. Interfaces use this function if their answers
/// have another form than [`CallResult`], or if their clients listen to the progress of the call.
pub async fn answer(
    app: &App,
    caller: &Caller,
    bot: BotId,
    tool: String,
    language: Language,
    input: CallInput,
    progress: Option<ProgressListener>,
) -> Result<CallAnswer, OperationError> {
    let call = call_of(app, caller, bot, tool, language, input).await?;
    calls::answer(app, call.with_attachments(Attachments { progress, ..Attachments::default() })).await
}

/// Returns whether a call of this tool by this bot may run longer than `limit`. A tool that does not exist may not.
pub fn may_exceed(app: &App, caller: &Caller, bot: BotId, tool: &str, limit: Duration) -> bool {
    let snapshot = app.policy.load();
    let (Ok(tool), Some(bot)) = (tool.parse::<ToolName>(), snapshot.bot(caller.workspace, bot)) else { return false };
    let exceeds = |plugin: &Plugin| app.calls.executor.time_limit(plugin) > limit;
    if let Some((plugin, _)) = snapshot.tool(&tool) {
        return exceeds(plugin);
    }
    let mut resources = bot.bindings.iter().map(|binding| &binding.resource);
    resources.any(|resource| is_own_tool(&resource.row.name, &tool) && exceeds(&resource.plugin))
}

/// Returns the form of the results of this tool, which the bot has just called.
pub fn result_form(app: &App, caller: &Caller, bot: BotId, tool: &str) -> ResultForm {
    let snapshot = app.policy.load();
    let (Ok(tool), Some(bot)) = (tool.parse::<ToolName>(), snapshot.bot(caller.workspace, bot)) else {
        return ResultForm::default();
    };
    if let Some((_, tool)) = snapshot.tool(&tool) {
        return tool.manifest.result;
    }
    // The call has compiled the tools of its resource, so the lookup takes few steps.
    let effort = in_place();
    let mut tools = bot.bindings.iter().filter_map(|binding| binding.resource.tool(&tool, &effort).ok().flatten());
    tools.next().map(|tool| tool.manifest.result).unwrap_or_default()
}

/// Predicts the outcome of a call without running it.
pub async fn check(
    app: &App,
    caller: &Caller,
    bot: BotId,
    tool: String,
    language: Language,
    input: CheckInput,
) -> Result<CheckResult, OperationError> {
    may_use(app, caller, bot)?;
    let call = incoming(caller, bot, caller.request, tool, input.params)
        .with_resource(input.resource_id)
        .with_language(language);
    let session = session(app, &call)?;
    let workspace = call.workspace();
    let prediction = app.calls.predict(workspace, bot, move |effort| check::predict(&session, &call, effort));
    let prediction = prediction.await.map_err(unchecked)?;
    let changes = prediction.changes.iter().map(|suggestion| rule_change(app, workspace, bot, suggestion)).collect();
    Ok(check_result(prediction, changes, caller.kind))
}

/// Returns the error for a check that could not be completed.
pub(super) fn unchecked(unchecked: Unchecked) -> OperationError {
    match unchecked {
        Unchecked::Busy => OperationError::Busy(
            "the server is busy checking other calls of this bot or workspace; try again".to_owned(),
        ),
        Unchecked::Overrun(Overrun::Steps) => {
            let message = "the check exceeds the work limit of one request; send smaller parameters";
            OperationError::OverLimit(message.to_owned())
        }
        Unchecked::Overrun(Overrun::Deadline | Overrun::Cancelled) => {
            OperationError::Timeout("the check timed out; try again".to_owned())
        }
    }
}

/// Returns an error if the bot does not exist or the caller may not use it. An interface calls this function before it
/// reads an input. The operations check the bot again.
pub fn may_use(app: &App, caller: &Caller, bot: BotId) -> Result<(), OperationError> {
    caller.may_use(bot)?;
    match app.policy.load().bot(caller.workspace, bot) {
        Some(_) => Ok(()),
        None => Err(OperationError::not_found("bot")),
    }
}

/// Returns the bot with this id or name in the caller's workspace, if the caller may use it.
pub fn bot_called(app: &App, caller: &Caller, id_or_name: &str) -> Result<Arc<Bot>, OperationError> {
    let snapshot = app.policy.load();
    let bot = snapshot.bot_called(caller.workspace, id_or_name).ok_or_else(|| OperationError::not_found("bot"))?;
    caller.may_use(bot.row.id)?;
    Ok(Arc::clone(bot))
}

/// Validates the input of a call and builds the call.
async fn call_of(
    app: &App,
    caller: &Caller,
    bot: BotId,
    tool: String,
    language: Language,
    input: CallInput,
) -> Result<IncomingCall, OperationError> {
    may_use(app, caller, bot)?;
    check_foreign_ids(input.task_id.as_deref(), input.chat.as_ref())?;
    check_task(app, input.task_id.as_deref()).await?;
    let wait = input.wait_for_approval_s.map(approval_wait).transpose()?;
    let call = incoming(caller, bot, caller.request, tool, input.params)
        .with_task_id(input.task_id)
        .with_resource(input.resource_id)
        .with_language(language)
        .with_wait_for_approval(wait);
    Ok(match input.chat {
        Some(chat) => call.with_context(json!({ "chat": chat })),
        None => call,
    })
}

/// Returns the time for which a call waits for a person, if the time is not too long.
pub(super) fn approval_wait(seconds: u32) -> Result<Duration, OperationError> {
    let wait = Duration::from_secs(u64::from(seconds));
    if wait > WAIT_MAX {
        let message = format!("must be from 0 to {}", WAIT_MAX.as_secs());
        return Err(OperationError::invalid_at("/wait_for_approval_s", message));
    }
    Ok(wait)
}

/// Builds a call by `caller`.
pub(super) fn incoming(
    caller: &Caller,
    bot: BotId,
    request_id: RequestId,
    tool: String,
    params: Value,
) -> IncomingCall {
    let call = IncomingCall::bot_tool(request_id, caller.workspace, bot, tool, params);
    match &caller.token_user {
        Some(user) => call.with_token_user(Some(Arc::clone(user))),
        None => call.with_key(caller.caller_key()),
    }
}

/// Opens the session of the bot. This fails only if the policy cannot be read or the bot has just been deleted.
pub(super) fn session(app: &App, call: &IncomingCall) -> Result<Session, OperationError> {
    Session::open(&app.policy, app.clock.now(), call).map_err(|refusal| match refusal.code {
        Some(Code::Unavailable) => OperationError::unavailable("the permissions could not be loaded; try again"),
        _ => OperationError::not_found("bot"),
    })
}

/// Refuses the id of a task or a run of this server: only the host makes the calls of such a task or run.
async fn check_task(app: &App, task_id: Option<&str>) -> Result<(), OperationError> {
    let Some(id) = task_id else { return Ok(()) };
    let is_task = match id.parse() {
        Ok(id) => app.store.is_task(id).await?,
        Err(_) => false,
    };
    let is_run = match id.parse() {
        Ok(id) if !is_task => app.store.is_run(id).await?,
        _ => false,
    };
    if is_task || is_run {
        let message = "is the id of a task or a run of this server, whose calls only the server makes; use another id";
        return Err(OperationError::invalid_at("/task_id", message));
    }
    Ok(())
}

/// Checks the ids of a conversation, which the caller chooses.
pub fn check_chat(chat: &Chat) -> Result<(), OperationError> {
    check_foreign_ids(None, Some(chat))
}

fn check_foreign_ids(task: Option<&str>, chat: Option<&Chat>) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    if let Some(id) = task {
        if id.is_empty() {
            errors.add("/task_id", "must not be empty");
        }
        rules::length(&mut errors, "/task_id", id, FOREIGN_ID_CHARS_MAX);
    }
    if let Some(Chat { app_id, user_id, chat_id }) = chat {
        for (path, id) in [("/chat/app_id", app_id), ("/chat/user_id", user_id), ("/chat/chat_id", chat_id)] {
            check_part(&mut errors, path, id);
        }
    }
    errors.check()
}

/// Returns a suggested change with the bots that it reaches.
fn rule_change(app: &App, workspace: WorkspaceId, bot: BotId, suggestion: &Suggestion) -> RuleChange {
    let Suggestion { change, binding, role } = suggestion;
    let snapshot = app.policy.load();
    let named = |bot: &Arc<Bot>| NamedBot { id: bot.row.id, name: bot.row.name.clone() };
    let (kind, id, mut bots) = match (change.holder, role) {
        (ChangeHolder::Role, Some(role)) => {
            let reached = snapshot.bots(workspace).filter(|bot| bot.has_role(*role)).map(named).collect::<Vec<_>>();
            ("role", role.to_string(), reached)
        }
        (ChangeHolder::Permissions, _) => {
            ("permissions", binding.to_string(), snapshot.bot(workspace, bot).map(named).into_iter().collect())
        }
        (ChangeHolder::Role | ChangeHolder::Binding, _) => {
            ("binding", binding.to_string(), snapshot.bot(workspace, bot).map(named).into_iter().collect())
        }
    };
    bots.sort_by(|a, b| a.name.cmp(&b.name));
    let action = match change.action {
        ChangeAction::Add => "add",
        ChangeAction::Remove => "remove",
    };
    RuleChange {
        action: action.to_owned(),
        holder: ChangedHolder { kind: kind.to_owned(), id, bots },
        field: change.field.clone(),
        entry: json!(change.entry),
    }
}

/// Returns the decision of a prediction.
pub(super) fn check_decision(prediction: &Prediction) -> CheckDecision {
    match prediction.allowed {
        true => CheckDecision::Allow,
        false if prediction.gates.is_empty() => CheckDecision::Deny,
        false => CheckDecision::Ask,
    }
}

fn check_result(prediction: Prediction, changes: Vec<RuleChange>, kind: KeyKind) -> CheckResult {
    let decision = check_decision(&prediction);
    let Prediction { gates, message, rule, reason, smallest_change, .. } = prediction;
    let gates = gates.into_iter().map(|gate| AskingGate { holder: gate.holder, reason: gate.reason }).collect();
    match kind {
        KeyKind::Bot | KeyKind::Approver | KeyKind::Agent => CheckResult::Bot { decision, message },
        KeyKind::Root | KeyKind::Admin | KeyKind::Operator => {
            CheckResult::Full { decision, message, rule, reason, smallest_change, changes, gates }
        }
    }
}

/// Returns one tool with all the resources through which the bot has it.
fn tool(same: &[ResolvedCall], language: &Language, effort: &Effort) -> Result<Tool, Overrun> {
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
    let texts = first.tool().schema_texts(effort)?;
    let input_schema = if names.len() < 2 {
        texts.input.clone()
    } else {
        pay_for_object(&manifest.input_schema, effort)?;
        JsonText::from(&resolve::with_resource(manifest.input_schema.clone(), &names))
    };
    let mut asks = false;
    for resolved in same {
        asks = asks || resolved.may_ask(effort)?;
    }
    let title = first.tool().remote.as_ref().and_then(|remote| remote.title.as_deref());
    Ok(Tool {
        name: manifest.name.clone(),
        title: title.map(str::to_owned),
        description: locales.text(language.best(locales), &key, &manifest.description).to_owned(),
        input_schema,
        output_schema: texts.output.clone(),
        effect: manifest.effect,
        result: manifest.result,
        operation: manifest.operation.clone(),
        asks,
        resource_type: first.plugin.manifest.resource_type.id.clone(),
        cost: manifest.cost,
        resources,
    })
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
            ..Prediction::default()
        };
        assert_eq!(
            serde_json::to_string(&check_result(verdict(), Vec::new(), KeyKind::Bot)).unwrap(),
            r#"{"decision":"deny","message":"Permission denied: x"}"#
        );
        assert_eq!(
            serde_json::to_string(&check_result(verdict(), Vec::new(), KeyKind::Operator)).unwrap(),
            r#"{"decision":"deny","message":"Permission denied: x","rule":"role.allowed_tools","reason":"why","smallest_change":"what"}"#
        );
        let allowed = Prediction { allowed: true, ..Prediction::default() };
        assert_eq!(
            serde_json::to_string(&check_result(allowed, Vec::new(), KeyKind::Admin)).unwrap(),
            r#"{"decision":"allow","message":null,"rule":null,"reason":null,"smallest_change":null}"#
        );
        let asking = || monstrum_guardian::AskingGate { holder: "role".to_owned(), reason: Some("why".to_owned()) };
        let asks = || Prediction { message: Some("ask".to_owned()), gates: vec![asking()], ..Prediction::default() };
        assert_eq!(
            serde_json::to_string(&check_result(asks(), Vec::new(), KeyKind::Bot)).unwrap(),
            r#"{"decision":"ask","message":"ask"}"#
        );
        assert_eq!(
            serde_json::to_string(&check_result(asks(), Vec::new(), KeyKind::Operator)).unwrap(),
            r#"{"decision":"ask","message":"ask","rule":null,"reason":null,"smallest_change":null,"gates":[{"holder":"role","reason":"why"}]}"#
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
