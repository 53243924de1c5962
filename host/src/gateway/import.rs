//! `/api/import`: the counterpart of `/api/export`.

use std::pin::pin;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use http_body_util::BodyExt;
use monstrum_api::export::Line;
use monstrum_api::import::Import;
use monstrum_core::operations::Admin;
use monstrum_core::operations::import::{self, Arriving, BODY_BYTES_MAX};
use serde::Deserialize;
use tokio::time::Instant;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Params, unread_body};
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

/// The time limit for receiving a body.
const ARRIVAL_MAX: Duration = Duration::from_secs(600);
/// The time limit for receiving a body while another import waits. Few imports can run at the same time, and an import
/// counts as running while its body is being received.
const ARRIVAL_MAX_IF_AWAITED: Duration = Duration::from_secs(60);
/// The interval at which an arriving import looks for waiting imports.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The query string of an import.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// Whether to check the lines and return the changes without making them. `?dry_run` means `?dry_run=true`.
    #[param(value_type = Option<bool>, default = false)]
    dry_run: Option<String>,
    /// The `plan` of a dry run with the same lines. If the import would make other changes, the answer is 409, and nothing
    /// is written.
    plan: Option<String>,
}

/// Creates and changes the objects that the lines of an export describe
///
/// Objects are matched by name, and nothing is deleted. Lines that name a workspace require a root key. All lines are
/// checked before anything is written. A repeated import changes nothing, so no `Idempotency-Key` is needed.
#[utoipa::path(post, path = "/api/import", tag = "configuration", params(ImportQuery),
    request_body(content = Line, content_type = "application/jsonl", description = "JSONL"),
    responses((status = 200, body = Import)))]
pub(super) async fn import(
    app: Host,
    caller: Admin,
    Params(query): Params<ImportQuery>,
    request: Request,
) -> Answer<Import> {
    let dry_run = query.is_dry_run()?;
    let arriving = import::begin(&app, &caller).await?;
    let arriving = in_time(read(arriving, request.into_body()), import::is_awaited).await?;
    Ok(Json(arriving.finish(&app, dry_run, query.plan.as_deref()).await?))
}

impl ImportQuery {
    fn is_dry_run(&self) -> Result<bool, Problem> {
        match self.dry_run.as_deref() {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(_) => Err(Problem::invalid_at("dry_run", "expected `true` or `false`")),
        }
    }
}

/// Stops reading a body after [`ARRIVAL_MAX`], or after [`ARRIVAL_MAX_IF_AWAITED`] if another import waits.
async fn in_time<T>(
    reading: impl Future<Output = Result<T, Problem>>,
    is_awaited: impl Fn() -> bool,
) -> Result<T, Problem> {
    let began = Instant::now();
    let mut reading = pin!(reading);
    loop {
        if let Ok(read) = tokio::time::timeout(LOOK_EVERY, &mut reading).await {
            return read;
        }
        let elapsed = began.elapsed();
        if elapsed >= ARRIVAL_MAX {
            return Err(Problem::timeout(format!("the body was not received within {} s", ARRIVAL_MAX.as_secs())));
        }
        if elapsed >= ARRIVAL_MAX_IF_AWAITED && is_awaited() {
            let limit = ARRIVAL_MAX_IF_AWAITED.as_secs();
            return Err(Problem::timeout(format!(
                "the body was not received within {limit} s, and another import waits; try again later"
            )));
        }
    }
}

/// Parses the body while it is being received.
async fn read(mut arriving: Arriving, mut body: Body) -> Result<Arriving, Problem> {
    let mut bytes = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unread_body(&error))?;
        let Ok(part) = frame.into_data() else { continue };
        bytes = bytes.saturating_add(part.len());
        if bytes > BODY_BYTES_MAX {
            return Err(Problem::too_large(BODY_BYTES_MAX));
        }
        arriving = arriving.read(part).await?;
    }
    Ok(arriving)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    async fn elapsed_s(is_awaited: bool) -> u64 {
        let began = Instant::now();
        let ended = in_time(pending::<Result<(), Problem>>(), || is_awaited).await;
        assert_eq!(ended.unwrap_err().status, http::StatusCode::REQUEST_TIMEOUT);
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_loses_its_place() {
        assert_eq!(elapsed_s(false).await, 600);
        assert_eq!(elapsed_s(true).await, 60, "another import waits");
    }
}
