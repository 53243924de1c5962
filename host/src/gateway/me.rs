//! `/api/me`: the key of the request; `/api/console/tickets`: links that log a browser in to the console.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::me::{Me, NewTicket, Ticket};
use monstrum_core::operations::{KeyHolder, Person, me as own_key};

use crate::gateway::http::access;
use crate::gateway::http::answer::{Answer, Created};
use crate::gateway::http::extract::OptionalInput;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{ConsoleUrl, Host, Options};

/// Shows the key of the request, and the operations that it may use
#[utoipa::path(get, path = "/api/me", tag = "keys", responses((status = 200, body = Me)))]
pub(super) async fn me(app: Host, State(options): State<Options>, caller: KeyHolder) -> Answer<Me> {
    let may = access::may(caller.kind, options.public_docs);
    Ok(Json(own_key::show(&app, &caller, may).await?))
}

/// Makes a link that logs a browser in to the console, once, with the key of the request
#[utoipa::path(post, path = "/api/console/tickets", tag = "keys", request_body = NewTicket,
    responses((status = 201, body = Ticket)))]
pub(super) async fn ticket(
    app: Host,
    caller: Person,
    State(ConsoleUrl(url)): State<ConsoleUrl>,
    OptionalInput(input): OptionalInput<NewTicket>,
) -> Created<Ticket> {
    let url = url.ok_or_else(|| Problem::not_found("console, because the server runs with --console off"))?;
    Ok((StatusCode::CREATED, Json(own_key::ticket(&app, &caller, &input, &url).await?)))
}
