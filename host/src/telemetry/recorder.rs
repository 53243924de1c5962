//! The recorder behind `/metrics`, and the metric of HTTP requests.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use metrics::histogram;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// The recorder of the process.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
/// The number of requests so far.
static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// The number of requests after which samples are sorted into buckets. Samples stay in memory until then, so this
/// number limits the memory use of a server whose metrics are never read. Sorting takes well under a millisecond.
const SORT_AFTER_REQUESTS: u32 = 4096;

/// Upper bounds of buckets in seconds: from the duration of one stage of a call to the maximum duration of a call.
const SECONDS: [f64; 15] = [1e-6, 1e-5, 1e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Upper bounds of buckets of fuel, up to the default limit of a call.
const FUEL: [f64; 7] = [1e4, 1e5, 1e6, 1e7, 1e8, 5e8, 1e9];
/// Upper bounds of buckets of rows in one transaction.
const ROWS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 512.0];

/// Installs the recorder. Later calls in the same process have no effect.
pub fn install() {
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_fuel".to_owned()), &FUEL))
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_rows".to_owned()), &ROWS))
            .expect("the lists of buckets are not empty");
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is already installed; /metrics stays empty");
        }
        handle
    });
}

/// Returns all metrics in the text format of Prometheus.
pub fn render() -> String {
    RECORDER.get().map(PrometheusHandle::render).unwrap_or_default()
}

/// Records a request of the API.
pub fn request(route: String, method: String, status: u16, took: Duration) {
    let labels = [("route", route), ("method", method), ("status", status.to_string())];
    histogram!("monstrum_http_request_seconds", &labels).record(took);
    if REQUESTS.fetch_add(1, Ordering::Relaxed) % SORT_AFTER_REQUESTS == SORT_AFTER_REQUESTS - 1
        && let Some(recorder) = RECORDER.get()
    {
        recorder.run_upkeep();
    }
}
