//! `/api/bots/{id}/tools`: lists the tools of a bot, calls them, and checks whether a call would be permitted.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use monstrum_api::tools::{CallInput, CallResult, CheckInput, CheckResult, OpenAiTool, ToolList};
use monstrum_core::beside::in_place;
use monstrum_core::operations::{Caller, tools};
use monstrum_types::BotId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, Ids, Input, Params};
use crate::gateway::http::language::InLanguage;
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ToolsQuery {
    /// The format of the list. With `openai`, each tool is a function definition for models.
    format: Option<String>,
}

/// The maximum number of tools whose schemas are written at once. For a longer list, the other tasks of this thread
/// move to another thread.
const TOOLS_IN_PLACE_MAX: usize = 32;

/// Lists the tools that a bot may see
#[utoipa::path(get, path = "/api/bots/{id}/tools", tag = "tools", params(("id" = BotId, Path), ToolsQuery),
    responses((status = 200, body = ToolList)))]
pub(super) async fn list(
    app: Host,
    caller: Caller,
    InLanguage(language): InLanguage,
    Id(bot): Id<BotId>,
    Params(query): Params<ToolsQuery>,
) -> Result<Response, Problem> {
    let items = tools::list(&app, &caller, bot, language).await?;
    // Writing and freeing the schemas of many tools takes a long time.
    in_place(items.len() > TOOLS_IN_PLACE_MAX, || {
        let list = match query.format.as_deref() {
            None => ToolList::Plain { items },
            Some("openai") => ToolList::OpenAi { items: items.into_iter().map(OpenAiTool::from).collect() },
            Some(_) => return Err(Problem::invalid_at("format", "expected `openai`, or omit the parameter")),
        };
        Ok(Json(list).into_response())
    })
}

/// Calls a tool; the HTTP status is 200 for every status of the call
#[utoipa::path(post, path = "/api/bots/{id}/tools/{tool}/call", tag = "tools",
    params(("id" = BotId, Path), ("tool" = String, Path)), request_body = CallInput,
    responses((status = 200, body = CallResult),
        (status = 503, body = ProblemBody, description = "The audit cannot be written, so calls are rejected")))]
pub(super) async fn call(
    app: Host,
    ToolOfBot { caller, bot, tool }: ToolOfBot,
    InLanguage(language): InLanguage,
    Input(input): Input<CallInput>,
) -> Answer<CallResult> {
    Ok(Json(tools::call(&app, &caller, bot, tool, language, input).await?))
}

/// Checks whether a call would be permitted, without running the call
#[utoipa::path(post, path = "/api/bots/{id}/tools/{tool}/check", tag = "tools",
    params(("id" = BotId, Path), ("tool" = String, Path)), request_body = CheckInput,
    responses((status = 200, body = CheckResult)))]
pub(super) async fn check(
    app: Host,
    ToolOfBot { caller, bot, tool }: ToolOfBot,
    InLanguage(language): InLanguage,
    Input(input): Input<CheckInput>,
) -> Answer<CheckResult> {
    Ok(Json(tools::check(&app, &caller, bot, tool, language, input).await?))
}

/// The tool in the path, of a bot that the caller may use. This is checked before the body is read.
pub(super) struct ToolOfBot {
    caller: Caller,
    bot: BotId,
    tool: String,
}

impl FromRequestParts<HttpState> for ToolOfBot {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let Ids(bot, tool) = Ids::from_request_parts(parts, state).await?;
        tools::may_use(&state.app, &caller, bot)?;
        Ok(ToolOfBot { caller, bot, tool })
    }
}
