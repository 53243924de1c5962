//! Whether the server lives, whether it is ready, and what it counts.
//!
//! The first two are open and say nothing else. Metrics speak of tenants' traffic, so they need a key unless a setting
//! makes them public.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::app::App;
use crate::gateway::extract::Reader;
use crate::gateway::problem::{Problem, ProblemBody};

/// The recorder of the process.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
/// Requests since samples were last sorted into their buckets.
static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// Samples wait in memory until they are sorted. After this many requests they are sorted without being asked for,
/// which takes well under a millisecond and bounds what waits where nobody reads the metrics.
const SORT_AFTER_REQUESTS: u32 = 4096;

/// Upper bounds in seconds: from an answer out of memory to the longest that a call may take.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Upper bounds of fuel: up to the operator's ceiling.
const FUEL: [f64; 7] = [1e4, 1e5, 1e6, 1e7, 1e8, 5e8, 1e9];

/// Installs the recorder of metrics, once a process.
pub fn install_metrics() {
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_fuel".to_owned()), &FUEL))
            .expect("the lists of buckets are not empty");
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another recorder of metrics is installed already; /metrics stays empty");
        }
        handle
    });
}

/// To be called once a request.
pub fn count_request() {
    if REQUESTS.fetch_add(1, Ordering::Relaxed) % SORT_AFTER_REQUESTS == SORT_AFTER_REQUESTS - 1
        && let Some(recorder) = RECORDER.get()
    {
        recorder.run_upkeep();
    }
}

/// Says that the server lives
#[utoipa::path(get, path = "/healthz", tag = "health", security(()),
    responses((status = 200, content_type = "text/plain", body = String)))]
pub async fn live() -> &'static str {
    "ok"
}

/// Says whether calls can be served
#[utoipa::path(get, path = "/readyz", tag = "health", security(()),
    responses((status = 200, content_type = "text/plain", body = String),
        (status = 503, content_type = "text/plain", body = String)))]
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.is_ready().await {
        "ok".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready").into_response()
    }
}

/// Shows counters and durations for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, content_type = "text/plain", body = String), (status = "4XX", body = ProblemBody)))]
pub async fn metrics(reader: Reader) -> Result<Response, Problem> {
    if let Reader::Key(caller) = reader {
        caller.operator()?;
    }
    let text = RECORDER.get().map(PrometheusHandle::render).unwrap_or_default();
    let mut response = text.into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
