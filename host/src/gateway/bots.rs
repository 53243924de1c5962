//! `/api/bots`: agents that may touch the world through tools only.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_store::{BotRow, UsageRow};
use monstrum_types::{BotId, UtcMillis};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::gateway::changes::{Change, changed_at};
use crate::gateway::extract::{Caller, Faults, Id, Input, Operator, PageQuery, Params, given, named};
use crate::gateway::language::InLanguage;
use crate::gateway::problem::{Problem, ProblemBody};
use crate::gateway::rules;
use monstrum_core::app::App;
use monstrum_core::sandboxes::prompt::{sandbox_paragraph, with_sandbox};

/// Most characters of a description, and of a system prompt: more than any model reads at once.
const DESCRIPTION_CHARS_MAX: usize = 10_000;
const PROMPT_CHARS_MAX: usize = 200_000;
const MODEL_CHARS_MAX: usize = 256;

/// An agent.
#[derive(Serialize, ToSchema)]
pub struct Bot {
    pub id: BotId,
    pub name: String,
    pub description: String,
    pub system_prompt: String,
    pub model: Option<String>,
    /// Whether it has a sandbox of its own; this is a grant.
    pub use_agent_sandbox: bool,
    /// Tokens that its tools and models may cost in a month; no limit where it is null.
    pub monthly_token_budget: Option<i64>,
    pub created_at: UtcMillis,
    pub updated_at: UtcMillis,
}

/// What calls of a bot have cost, the newest month first.
#[derive(Serialize, ToSchema)]
pub struct Usage {
    pub items: Vec<MonthlyUsage>,
}

/// What the calls of one month have cost, by the manifests of their tools. Calls that cost nothing are not counted.
#[derive(Serialize, ToSchema)]
pub struct MonthlyUsage {
    /// In UTC.
    #[schema(example = "2026-11")]
    pub month: String,
    pub tokens: i64,
    pub credits_millionths: i64,
    pub calls: i64,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// Only calls of this task, as their callers have named it.
    task_id: Option<String>,
}

/// What a bot is told before anybody speaks to it.
#[derive(Serialize, ToSchema)]
pub struct Prompt {
    pub prompt: String,
}

/// A page of bots.
#[derive(Serialize, ToSchema)]
pub struct BotList {
    pub items: Vec<Bot>,
    pub next_cursor: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBot {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    system_prompt: String,
    model: Option<String>,
    #[serde(default)]
    use_agent_sandbox: bool,
    #[schema(minimum = 0)]
    monthly_token_budget: Option<i64>,
}

/// Each field that is named is replaced whole; null clears it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BotChange {
    #[serde(default, deserialize_with = "given")]
    name: Option<String>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    description: Option<Option<String>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    system_prompt: Option<Option<String>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<String>)]
    model: Option<Option<String>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<bool>)]
    use_agent_sandbox: Option<Option<bool>>,
    #[serde(default, deserialize_with = "named")]
    #[schema(value_type = Option<i64>, minimum = 0)]
    monthly_token_budget: Option<Option<i64>>,
}

impl From<BotRow> for Bot {
    fn from(row: BotRow) -> Self {
        Bot {
            id: row.id,
            name: row.name,
            description: row.description,
            system_prompt: row.system_prompt,
            model: row.model,
            use_agent_sandbox: row.use_agent_sandbox,
            monthly_token_budget: row.monthly_token_budget,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// Creates a bot
#[utoipa::path(post, path = "/api/bots", tag = "bots", request_body = NewBot,
    responses((status = 201, body = Bot), (status = "4XX", body = ProblemBody)))]
pub async fn create(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Input(new): Input<NewBot>,
) -> Result<(StatusCode, Json<Bot>), Problem> {
    if new.use_agent_sandbox {
        caller.admin()?;
    }
    let now = app.clock.now();
    let row = BotRow {
        id: BotId::new(),
        workspace_id: caller.workspace,
        name: new.name,
        description: new.description,
        system_prompt: new.system_prompt,
        model: new.model,
        use_agent_sandbox: new.use_agent_sandbox,
        monthly_token_budget: new.monthly_token_budget,
        created_at: now,
        updated_at: now,
    };
    check(&row)?;
    let made = async {
        app.store.insert_bot(&row).await?;
        Ok(app.changed().await?)
    };
    Change::new("bot.create", &row.id).of_bot(row.id).to(&Bot::from(row.clone())).made(&app, &caller, made).await?;
    Ok((StatusCode::CREATED, Json(row.into())))
}

/// Lists bots
#[utoipa::path(get, path = "/api/bots", tag = "bots", params(PageQuery),
    responses((status = 200, body = BotList), (status = "4XX", body = ProblemBody)))]
pub async fn list(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Params(query): Params<PageQuery>,
) -> Result<Json<BotList>, Problem> {
    let listed = app.store.bots(caller.workspace, &query.page()?).await?;
    let items = listed.items.into_iter().map(Bot::from).collect();
    Ok(Json(BotList { items, next_cursor: listed.next_cursor.map(String::from) }))
}

/// Shows a bot
#[utoipa::path(get, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 200, body = Bot), (status = "4XX", body = ProblemBody)))]
pub async fn show(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<BotId>,
) -> Result<Json<Bot>, Problem> {
    let row = app.store.bot(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    Ok(Json(row.into()))
}

/// Tells what the calls of a bot have cost, by month
#[utoipa::path(get, path = "/api/bots/{id}/usage", tag = "bots", params(("id" = BotId, Path), UsageQuery),
    responses((status = 200, body = Usage), (status = "4XX", body = ProblemBody)))]
pub async fn usage(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<BotId>,
    Params(query): Params<UsageQuery>,
) -> Result<Json<Usage>, Problem> {
    app.store.bot(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    let rows = app.store.usage(caller.workspace, id, query.task_id.as_deref()).await?;
    let items = rows.into_iter().map(|UsageRow { month, tokens, credits_millionths, calls }| MonthlyUsage {
        month,
        tokens,
        credits_millionths,
        calls,
    });
    Ok(Json(Usage { items: items.collect() }))
}

/// Gives the system prompt of a bot, with what the platform appends
#[utoipa::path(get, path = "/api/bots/{id}/prompt", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 200, body = Prompt), (status = "4XX", body = ProblemBody)))]
pub async fn prompt(
    State(app): State<Arc<App>>,
    caller: Caller,
    InLanguage(language): InLanguage,
    Id(id): Id<BotId>,
) -> Result<Json<Prompt>, Problem> {
    caller.may_use(id)?;
    let row = app.store.bot(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    let paragraph = if row.use_agent_sandbox {
        let spec = app.sandboxes.spec(caller.workspace).await?;
        Some(sandbox_paragraph(app.sandboxes.capabilities(), spec, language.ui_language()))
    } else {
        None
    };
    Ok(Json(Prompt { prompt: with_sandbox(&row.system_prompt, paragraph.as_deref()) }))
}

/// Changes a bot
#[utoipa::path(patch, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)), request_body = BotChange,
    responses((status = 200, body = Bot), (status = "4XX", body = ProblemBody)))]
pub async fn update(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<BotId>,
    Input(change): Input<BotChange>,
) -> Result<Json<Bot>, Problem> {
    let before = app.store.bot(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    let mut row = before.clone();
    if let Some(sandbox) = change.use_agent_sandbox {
        caller.admin()?;
        row.use_agent_sandbox = sandbox.unwrap_or_default();
    }
    if let Some(name) = change.name {
        row.name = name;
    }
    if let Some(description) = change.description {
        row.description = description.unwrap_or_default();
    }
    if let Some(prompt) = change.system_prompt {
        row.system_prompt = prompt.unwrap_or_default();
    }
    if let Some(model) = change.model {
        row.model = model;
    }
    if let Some(budget) = change.monthly_token_budget {
        if is_lifted(before.monthly_token_budget, budget) {
            caller.admin()?;
        }
        row.monthly_token_budget = budget;
    }
    check(&row)?;
    row.updated_at = changed_at(&app, before.updated_at);
    let made = async {
        if !app.store.update_bot(&row, before.updated_at).await? {
            return Err(Problem::changed_meanwhile());
        }
        Ok(app.changed().await?)
    };
    let change = Change::new("bot.update", &id).of_bot(id).from(&Bot::from(before.clone())).to(&Bot::from(row.clone()));
    change.made(&app, &caller, made).await?;
    Ok(Json(row.into()))
}

/// Deletes a bot with its bindings, keys and sandboxes
#[utoipa::path(delete, path = "/api/bots/{id}", tag = "bots", params(("id" = BotId, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody)))]
pub async fn delete(
    State(app): State<Arc<App>>,
    Operator(caller): Operator,
    Id(id): Id<BotId>,
) -> Result<StatusCode, Problem> {
    let before = app.store.bot(caller.workspace, id).await?.ok_or_else(|| Problem::not_found("bot"))?;
    let made = async {
        if !app.store.delete_bot(caller.workspace, id).await? {
            return Err(Problem::not_found("bot"));
        }
        Ok(app.changed().await?)
    };
    Change::new("bot.delete", &id).of_bot(id).from(&Bot::from(before)).made(&app, &caller, made).await?;
    app.sandboxes.deletions_are_due();
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a bot may spend more than before.
fn is_lifted(before: Option<i64>, after: Option<i64>) -> bool {
    before.is_some_and(|before| after.is_none_or(|after| after > before))
}

fn check(row: &BotRow) -> Result<(), Problem> {
    let mut faults = Faults::default();
    rules::name(&mut faults, "/name", &row.name);
    rules::length(&mut faults, "/description", &row.description, DESCRIPTION_CHARS_MAX);
    rules::length(&mut faults, "/system_prompt", &row.system_prompt, PROMPT_CHARS_MAX);
    if let Some(model) = &row.model {
        rules::length(&mut faults, "/model", model, MODEL_CHARS_MAX);
    }
    if row.monthly_token_budget.is_some_and(|budget| budget < 0) {
        faults.add("/monthly_token_budget", "must be 0 or more");
    }
    faults.check()
}
