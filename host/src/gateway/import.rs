//! `/api/import`: the counterpart of `/api/export`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use http_body_util::BodyExt;
use monstrum_api::export::Line;
use monstrum_api::import::Import;
use monstrum_core::app::App;
use monstrum_core::operations::Admin;
use monstrum_core::operations::import::{self, Arriving, BODY_BYTES_MAX};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::extract::{Params, unread_body};
use crate::gateway::http::problem::{Problem, ProblemBody};

/// The time limit for receiving a body. An import counts as running while its body is being received, and few imports
/// can run at the same time.
const ARRIVAL_MAX: Duration = Duration::from_secs(600);

/// The query string of an import.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// Whether to check the lines and return the changes without making them. `?dry_run` means `?dry_run=true`.
    #[param(value_type = Option<bool>, default = false)]
    dry_run: Option<String>,
}

/// Creates and changes the objects that the lines of an export describe
///
/// Objects are matched by name, and nothing is deleted. Lines that name a workspace require a root key. All lines are
/// checked before anything is written. A repeated import changes nothing, so no `Idempotency-Key` is needed.
#[utoipa::path(post, path = "/api/import", tag = "configuration", params(ImportQuery),
    request_body(content = Line, content_type = "application/jsonl", description = "JSONL"),
    responses((status = 200, body = Import), (status = "4XX", body = ProblemBody)))]
pub(super) async fn import(
    State(app): State<Arc<App>>,
    caller: Admin,
    Params(query): Params<ImportQuery>,
    request: Request,
) -> Result<Json<Import>, Problem> {
    let dry_run = query.is_dry_run()?;
    let arriving = import::begin(&app, &caller)?;
    let arriving = in_time(read(arriving, request.into_body())).await?;
    Ok(Json(arriving.finish(&app, dry_run).await?))
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

/// Stops reading a body after [`ARRIVAL_MAX`].
async fn in_time<T>(reading: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    let too_slow = |_| Problem::timeout(format!("the body was not received within {} s", ARRIVAL_MAX.as_secs()));
    tokio::time::timeout(ARRIVAL_MAX, reading).await.map_err(too_slow)?
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

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_loses_its_place() {
        let ended = in_time(pending::<Result<(), Problem>>()).await;
        assert_eq!(ended.unwrap_err().status, http::StatusCode::REQUEST_TIMEOUT);
    }
}
