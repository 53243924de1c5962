//! `/api/console/tickets`: links with which a browser logs in to the console as the key of the request.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use monstrum_api::console::{ConsoleTicket, NewTicketInput};
use monstrum_core::operations::{Person, console};

use crate::gateway::http::answer::Created;
use crate::gateway::http::extract::OptionalInput;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::{ConsoleOptions, Host};

/// Creates a link with which a browser logs in to the console, as the key of this request; the link works once
#[utoipa::path(post, path = "/api/console/tickets", tag = "console", operation_id = "create_ticket",
    request_body = Option<NewTicketInput>, responses((status = 201, body = ConsoleTicket)))]
pub(super) async fn create(
    app: Host,
    State(options): State<Arc<ConsoleOptions>>,
    caller: Person,
    OptionalInput(new): OptionalInput<NewTicketInput>,
) -> Created<ConsoleTicket> {
    if !options.enabled {
        return Err(Problem::not_found("route: this server runs with `--console off`"));
    }
    let ticket = console::create_ticket(&app, &caller, new.ttl_s).await?;
    let url = format!("{}/console/enter/{}", options.base_url(), ticket.token.expose());
    Ok((StatusCode::CREATED, Json(ConsoleTicket { url, expires_at: ticket.expires_at })))
}
