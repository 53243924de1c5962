//! `/api/resources/{id}/tools`: the tools that come from the server or the agent behind a resource.

use axum::Json;
use axum::extract::FromRequestParts;
use http::request::Parts;
use monstrum_api::pins::{DiscoveryResult, PinDecisions, PinnedTools};
use monstrum_core::operations::pins::{self, Undecided};
use monstrum_core::operations::{Admin, Operator};
use monstrum_core::pins::Verdict;
use monstrum_store::ResourceRow;
use monstrum_types::ResourceId;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Id, Input};
use crate::gateway::http::problem::{Problem, ProblemBody};
use crate::gateway::http::state::{Host, HttpState};

/// Lists the tools that the server or the agent behind a resource declares
///
/// Bots can use the tools with the status `approved`. The status is 409 if the tools of the resource's type do not come
/// from outside.
#[utoipa::path(get, path = "/api/resources/{id}/tools", tag = "resources", operation_id = "list_tools",
    params(("id" = ResourceId, Path)), responses((status = 200, body = PinnedTools)))]
pub(super) async fn list(app: Host, caller: Operator, Id(id): Id<ResourceId>) -> Answer<PinnedTools> {
    Ok(Json(pins::list(&app, &caller, id).await?))
}

/// Discovers the tools that the MCP server behind a resource declares
///
/// The answer contains the result, even if the server could not be reached. A failed discovery changes no tool. The
/// status is 409 if the resource has another type, or if another host is discovering its tools.
#[utoipa::path(post, path = "/api/resources/{id}/tools/discover", tag = "resources", params(("id" = ResourceId, Path)),
    responses((status = 200, body = DiscoveryResult),
        (status = 429, body = ProblemBody, description = "Too many requests of the workspace discover tools")))]
pub(super) async fn discover(app: Host, caller: Operator, Id(id): Id<ResourceId>) -> Answer<DiscoveryResult> {
    Ok(Json(pins::discover(&app, &caller, id).await?))
}

/// Approves declared tools
///
/// All tools are approved, or none. The status is 409 if a tool is declared with another digest; the body then has the
/// current tools as `items`.
#[utoipa::path(post, path = "/api/resources/{id}/tools/approve", tag = "resources", params(("id" = ResourceId, Path)),
    request_body = PinDecisions, responses((status = 200, body = PinnedTools)))]
pub(super) async fn approve(
    app: Host,
    Decidable { caller, row }: Decidable,
    Input(input): Input<PinDecisions>,
) -> Answer<PinnedTools> {
    pins::decide(&app, &caller, row, Verdict::Approve, input).await.map(Json).map_err(undecided)
}

/// Rejects declared tools, and takes back earlier approvals
///
/// All tools are rejected, or none. The status is 409 if a tool is declared with another digest; the body then has the
/// current tools as `items`.
#[utoipa::path(post, path = "/api/resources/{id}/tools/reject", tag = "resources", params(("id" = ResourceId, Path)),
    request_body = PinDecisions, responses((status = 200, body = PinnedTools)))]
pub(super) async fn reject(
    app: Host,
    Decidable { caller, row }: Decidable,
    Input(input): Input<PinDecisions>,
) -> Answer<PinnedTools> {
    pins::decide(&app, &caller, row, Verdict::Reject, input).await.map(Json).map_err(undecided)
}

fn undecided(undecided: Undecided) -> Problem {
    match undecided {
        Undecided::Conflict(message, tools) => Problem::conflict(message).with_tools(tools),
        Undecided::Operation(error) => error.into(),
    }
}

/// The resource in the path, if the caller may decide about its tools. This is checked before the body is read.
pub(super) struct Decidable {
    caller: Admin,
    row: ResourceRow,
}

impl FromRequestParts<HttpState> for Decidable {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Self, Problem> {
        let caller = Admin::from_request_parts(parts, state).await?;
        let Id(id) = Id::from_request_parts(parts, state).await?;
        let row = pins::decidable(&state.app, &caller, id).await?;
        Ok(Decidable { caller, row })
    }
}
