//! Bots: agents that act through tools only.

use std::ops::RangeInclusive;

use monstrum_api::bots::{Bot, BotChange, BotList, MonthlyUsage, NewBot, Prompt, TaskLimits, Usage};
use monstrum_store::{BotRow, Page, UsageRow};
use monstrum_types::{BotId, UtcMillis, WorkspaceId};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::change::{Change, changed_at, set};
use super::list;
use super::{Caller, Expected, InputErrors, OperationError, Operator, gates, rules};
use crate::app::App;
use crate::language::Language;
use crate::models::FALLBACKS_MAX;
use crate::policy::pattern_limits::{compiled_bytes, lists_of_bot};
use crate::sandboxes::prompt::{sandbox_paragraph, with_sandbox};

/// The maximum number of characters of a description. This limit and the limit of a system prompt exceed the input of
/// any model.
const DESCRIPTION_CHARS_MAX: usize = 10_000;
const PROMPT_CHARS_MAX: usize = 200_000;
const MODEL_CHARS_MAX: usize = 256;
/// The maximum number of patterns of subjects. Each call with an access token is compared with all of them; groups of
/// users need patterns with stars.
const SUBJECTS_MAX: usize = 64;
/// The maximum size of a pattern, which is the maximum size of a subject.
const SUBJECT_BYTES_MAX: usize = 256;
/// The largest number of steps of a task. Each step is a request to a model or a call.
const TASK_STEPS_MAX: u32 = 1000;
/// The longest time of a task, which is a week.
const TASK_WALL_S_MAX: u32 = 604_800;
/// The times in seconds after which a session can end: a minute to a year.
const SESSION_IDLE_S: RangeInclusive<i64> = 60..=31_536_000;

fn view(row: BotRow) -> Bot {
    let client_tools = row.admits_client_tools();
    Bot {
        id: row.id,
        name: row.name,
        description: row.description,
        system_prompt: row.system_prompt,
        model: row.model,
        use_agent_sandbox: row.use_agent_sandbox,
        monthly_token_budget: row.monthly_token_budget,
        gates: gates::shown(row.gates),
        mcp_subjects: gates::shown(row.mcp_subjects),
        model_fallbacks: gates::shown(row.model_fallbacks),
        task_limits: row.task_limits.unwrap_or_default(),
        session_idle_s: row.session_idle_s,
        client_tools,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

/// Creates a bot.
pub async fn create(app: &App, caller: &Operator, new: NewBot) -> Result<Bot, OperationError> {
    create_as(app, caller, BotId::new(), new).await
}

/// Creates a bot with this id.
pub(super) async fn create_as(app: &App, caller: &Operator, id: BotId, new: NewBot) -> Result<Bot, OperationError> {
    let has_rights = new.use_agent_sandbox || new.client_tools || new.task_limits.is_some();
    if has_rights || !new.gates.is_empty() || !new.mcp_subjects.is_empty() {
        caller.admin()?;
    }
    let row = BotRow { id, ..row(new, caller.workspace, app.clock.now()) };
    check(&row, None)?;
    let _room = rules::pattern_room(app, caller.workspace, 0, compiled_bytes(lists_of_bot(&row))).await?;
    Change::new("bot.create", &row.id)
        .of_bot(row.id)
        .to(&view(row.clone()))
        .create(app, caller, app.store.insert_bot(&row))
        .await?;
    Ok(view(row))
}

/// Creates a row from an input.
pub(super) fn row(new: NewBot, workspace: WorkspaceId, now: UtcMillis) -> BotRow {
    BotRow {
        id: BotId::new(),
        workspace_id: workspace,
        name: new.name,
        description: new.description,
        system_prompt: new.system_prompt,
        model: new.model,
        use_agent_sandbox: new.use_agent_sandbox,
        monthly_token_budget: new.monthly_token_budget,
        gates: gates::stored(&new.gates),
        mcp_subjects: list_of(new.mcp_subjects),
        model_fallbacks: list_of(new.model_fallbacks),
        task_limits: limits(new.task_limits),
        session_idle_s: new.session_idle_s,
        client_tools: new.client_tools.then_some(1),
        created_at: now,
        updated_at: now,
    }
}

/// Lists bots.
pub async fn list(app: &App, caller: &Operator, page: &Page<BotId>) -> Result<BotList, OperationError> {
    Ok(list::page(app.store.bots(caller.workspace, page).await?, view))
}

/// Shows a bot.
pub async fn show(app: &App, caller: &Operator, id: BotId) -> Result<Bot, OperationError> {
    let row = app.store.bot(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("bot"))?;
    Ok(view(row))
}

/// Returns the cost of a bot's calls in each month.
pub async fn usage(app: &App, caller: &Operator, id: BotId, task_id: Option<&str>) -> Result<Usage, OperationError> {
    app.store.bot(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("bot"))?;
    let rows = app.store.usage(caller.workspace, id, task_id).await?;
    let items = rows.into_iter().map(|row: UsageRow| MonthlyUsage {
        month: row.month,
        tokens: row.tokens,
        tokens_input: row.tokens_input,
        tokens_output: row.tokens_output,
        credits_millionths: row.credits_millionths,
        rounds: row.rounds,
        rounds_estimated: row.rounds_estimated,
        calls: row.calls,
    });
    Ok(Usage { items: items.collect() })
}

/// Returns the system prompt of a bot, with the paragraph that the platform appends.
pub async fn prompt(app: &App, caller: &Caller, language: &Language, id: BotId) -> Result<Prompt, OperationError> {
    caller.may_use(id)?;
    let row = app.store.bot(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("bot"))?;
    Ok(Prompt { prompt: prompt_of(app, &row, language).await? })
}

/// Returns the system prompt of the bot in `row`, with the paragraph that the platform appends.
pub async fn prompt_of(app: &App, row: &BotRow, language: &Language) -> Result<String, OperationError> {
    let paragraph = if row.use_agent_sandbox {
        let spec = app.sandboxes.spec(row.workspace_id).await?;
        Some(sandbox_paragraph(app.sandboxes.capabilities(), spec, language.ui_language()))
    } else {
        None
    };
    Ok(with_sandbox(&row.system_prompt, paragraph.as_deref()))
}

/// Changes a bot.
pub async fn update(
    app: &App,
    caller: &Operator,
    id: BotId,
    expected: Expected,
    change: BotChange,
) -> Result<Bot, OperationError> {
    let before = app.store.bot(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("bot"))?;
    expected.check(before.updated_at)?;
    let mut row = before.clone();
    if let Some(sandbox) = change.use_agent_sandbox {
        caller.admin()?;
        row.use_agent_sandbox = sandbox.unwrap_or_default();
    }
    set(&mut row.name, change.name);
    set(&mut row.description, change.description.map(Option::unwrap_or_default));
    set(&mut row.system_prompt, change.system_prompt.map(Option::unwrap_or_default));
    set(&mut row.model, change.model);
    if let Some(budget) = change.monthly_token_budget {
        if is_lifted(before.monthly_token_budget, budget) {
            caller.admin()?;
        }
        row.monthly_token_budget = budget;
    }
    if let Some(changed) = change.gates {
        caller.admin()?;
        row.gates = gates::stored(&changed.unwrap_or_default());
    }
    if let Some(changed) = change.mcp_subjects {
        caller.admin()?;
        row.mcp_subjects = list_of(changed.unwrap_or_default());
    }
    if let Some(changed) = change.model_fallbacks {
        row.model_fallbacks = list_of(changed.unwrap_or_default());
    }
    set(&mut row.session_idle_s, change.session_idle_s);
    if let Some(changed) = change.task_limits {
        caller.admin()?;
        row.task_limits = limits(changed);
    }
    if let Some(changed) = change.client_tools {
        caller.admin()?;
        row.client_tools = changed.unwrap_or_default().then_some(1);
    }
    check(&row, Some(&before))?;
    let (replaced, bytes) = (compiled_bytes(lists_of_bot(&before)), compiled_bytes(lists_of_bot(&row)));
    let _room = rules::pattern_room(app, caller.workspace, replaced, bytes).await?;
    row.updated_at = changed_at(app, before.updated_at);
    let change =
        Change::new("bot.update", &id).at(expected).of_bot(id).from(&view(before.clone())).to(&view(row.clone()));
    change.update(app, caller, app.store.update_bot(&row, before.updated_at)).await?;
    Ok(view(row))
}

/// Deletes a bot with its bindings, keys and sandboxes.
pub async fn delete(app: &App, caller: &Operator, id: BotId, expected: Expected) -> Result<(), OperationError> {
    let before = app.store.bot(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("bot"))?;
    expected.check(before.updated_at)?;
    Change::new("bot.delete", &id)
        .of_bot(id)
        .from(&view(before))
        .delete(app, caller, "bot", app.store.delete_bot(caller.workspace, id))
        .await?;
    app.sandboxes.deletions_are_due();
    Ok(())
}

/// Returns the list as it is stored.
fn list_of(texts: Vec<String>) -> Option<Value> {
    (!texts.is_empty()).then(|| Value::from(texts))
}

/// Returns the limits of tasks as they are stored. Limits without a field are none.
fn limits(limits: Option<TaskLimits>) -> Option<Value> {
    limits.filter(|limits| *limits != TaskLimits::default()).map(|limits| json!(limits))
}

/// Checks the names of the models that are tried after the first.
fn check_fallbacks(errors: &mut InputErrors, stored: Option<&Value>) {
    let names = stored.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if names.len() > FALLBACKS_MAX {
        errors.add("/model_fallbacks", format!("must have at most {FALLBACKS_MAX} entries"));
    }
    for (index, name) in names.iter().enumerate() {
        let name = name.as_str().unwrap_or_default();
        let path = format!("/model_fallbacks/{index}");
        if name.split_once('/').is_none_or(|(resource, model)| resource.is_empty() || model.is_empty()) {
            errors.add(path.clone(), "expected `resource/model`");
        }
        rules::length(errors, &path, name, MODEL_CHARS_MAX);
    }
}

/// Checks the limits of tasks.
fn check_limits(errors: &mut InputErrors, stored: Option<&Value>) {
    let limits = stored.map(TaskLimits::deserialize).and_then(Result::ok).unwrap_or_default();
    if limits.steps.is_some_and(|steps| !(1..=TASK_STEPS_MAX).contains(&steps)) {
        errors.add("/task_limits/steps", format!("must be 1 to {TASK_STEPS_MAX}"));
    }
    if limits.tokens == Some(0) {
        errors.add("/task_limits/tokens", "must be at least 1");
    }
    if limits.credits.is_some_and(|credits| !(credits.is_finite() && credits > 0.0)) {
        errors.add("/task_limits/credits", "must be more than 0");
    }
    if limits.wall_s.is_some_and(|seconds| !(1..=TASK_WALL_S_MAX).contains(&seconds)) {
        errors.add("/task_limits/wall_s", format!("must be 1 to {TASK_WALL_S_MAX}"));
    }
}

/// Checks the patterns of subjects.
fn check_subjects(errors: &mut InputErrors, stored: Option<&Value>) {
    let patterns = stored.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if patterns.len() > SUBJECTS_MAX {
        errors.add("/mcp_subjects", format!("must have at most {SUBJECTS_MAX} entries"));
    }
    for (index, pattern) in patterns.iter().enumerate() {
        let pattern = pattern.as_str().unwrap_or_default();
        if pattern.is_empty() || pattern.len() > SUBJECT_BYTES_MAX || pattern.chars().any(char::is_control) {
            let message =
                format!("must be 1 to {SUBJECT_BYTES_MAX} bytes long and must not contain control characters");
            errors.add(format!("/mcp_subjects/{index}"), message);
        }
    }
}

/// Returns whether the change raises or removes the bot's budget.
fn is_lifted(before: Option<i64>, after: Option<i64>) -> bool {
    before.is_some_and(|before| after.is_none_or(|after| after > before))
}

/// Checks a bot as it would be stored. Gates that are equal in `before` are not checked.
pub(super) fn check(row: &BotRow, before: Option<&BotRow>) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    gates::check(&mut errors, "/gates", row.gates.as_ref(), before.and_then(|before| before.gates.as_ref()))?;
    rules::patterns(&mut errors, lists_of_bot(row), before.map(lists_of_bot).unwrap_or_default());
    check_subjects(&mut errors, row.mcp_subjects.as_ref());
    check_fallbacks(&mut errors, row.model_fallbacks.as_ref());
    check_limits(&mut errors, row.task_limits.as_ref());
    if row.session_idle_s.is_some_and(|seconds| !SESSION_IDLE_S.contains(&seconds)) {
        let (least, most) = (SESSION_IDLE_S.start(), SESSION_IDLE_S.end());
        errors.add("/session_idle_s", format!("must be {least} to {most}"));
    }
    rules::name(&mut errors, "/name", &row.name);
    rules::length(&mut errors, "/description", &row.description, DESCRIPTION_CHARS_MAX);
    rules::length(&mut errors, "/system_prompt", &row.system_prompt, PROMPT_CHARS_MAX);
    if let Some(model) = &row.model {
        rules::length(&mut errors, "/model", model, MODEL_CHARS_MAX);
    }
    if row.monthly_token_budget.is_some_and(|budget| budget < 0) {
        errors.add("/monthly_token_budget", "must be at least 0");
    }
    errors.check()
}
