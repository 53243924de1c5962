//! `/api/export`: the configuration of a workspace or of all workspaces.

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use monstrum_api::export::Line;
use monstrum_core::operations::Admin;
use monstrum_core::operations::export::{self, Extent};

use crate::gateway::http::extract::WORKSPACE;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;

/// The media type of JSON Lines.
const JSON_LINES: &str = "application/jsonl";

/// Streams the configuration of the workspace, with one JSON object per line
///
/// A root key exports all workspaces, or the workspace that the header `Monstrum-Workspace` names. The lines contain
/// no keys, credentials or secrets.
#[utoipa::path(get, path = "/api/export", tag = "configuration",
    responses((status = 200, content_type = JSON_LINES, body = Line, description = "JSONL")))]
pub(super) async fn export(app: Host, caller: Admin, headers: HeaderMap) -> Result<Response, Problem> {
    let lines = export::export(&app, &caller, extent(&caller, &headers)).await?;
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_LINES));
    let disposition = HeaderValue::from_static("attachment; filename=\"monstrum.jsonl\"");
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    Ok(response)
}

fn extent(caller: &Admin, headers: &HeaderMap) -> Extent {
    let is_of_all = !headers.contains_key(WORKSPACE) && caller.root().is_ok();
    if is_of_all { Extent::AllWorkspaces } else { Extent::OwnWorkspace }
}
