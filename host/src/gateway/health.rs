//! Health checks and metrics.
//!
//! The health checks require no key and reveal only whether the server is healthy. Metrics reveal the traffic of
//! tenants, so they require a key unless a setting makes them public.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use crate::gateway::http::extract::Reader;
use crate::gateway::http::problem::Problem;
use crate::gateway::http::state::Host;
use crate::telemetry::recorder;

/// Reports that the server is running
#[utoipa::path(get, path = "/healthz", tag = "health", security(()),
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn live() -> &'static str {
    "ok"
}

/// Reports whether the server can serve calls
#[utoipa::path(get, path = "/readyz", tag = "health", security(()),
    responses((status = 200, content_type = "text/plain", body = String),
        (status = 503, content_type = "text/plain", body = String)))]
pub(super) async fn ready(app: Host) -> Response {
    if app.is_ready().await {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready").into_response()
    }
}

/// Shows the metrics in the Prometheus format
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn metrics(app: Host, reader: Reader) -> Result<Response, Problem> {
    if let Reader::Key(caller) = reader {
        caller.operator()?;
    }
    app.measure().await;
    let mut response = recorder::render().into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
