//! What is counted and timed, for Prometheus. Every name is here, so that a dashboard can be written against this file;
//! label values come from short fixed lists, so that no tenant can make series up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use metrics::{Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// The recorder of the process.
static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
/// Requests since samples were last sorted into their buckets.
static REQUESTS: AtomicU32 = AtomicU32::new(0);
/// Samples wait in memory until they are sorted. After this many requests they are sorted without being asked for,
/// which takes well under a millisecond and bounds what waits where nobody reads the metrics.
const SORT_AFTER_REQUESTS: u32 = 4096;

/// Upper bounds in seconds: from a stage of a call to the longest that a call may take.
const SECONDS: [f64; 15] = [1e-6, 1e-5, 1e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
/// Upper bounds of fuel: up to the operator's ceiling.
const FUEL: [f64; 7] = [1e4, 1e5, 1e6, 1e7, 1e8, 5e8, 1e9];
/// Upper bounds of rows in one transaction.
const ROWS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 512.0];

/// Installs the recorder, once a process.
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
            tracing::warn!("another recorder of metrics is installed already; /metrics stays empty");
        }
        handle
    });
}

/// Everything in the text format of Prometheus.
pub fn render() -> String {
    RECORDER.get().map(PrometheusHandle::render).unwrap_or_default()
}

/// A request of the API.
pub fn request(route: String, method: String, status: u16, took: Duration) {
    let labels = [("route", route), ("method", method), ("status", status.to_string())];
    histogram!("monstrum_http_request_seconds", &labels).record(took);
    if REQUESTS.fetch_add(1, Ordering::Relaxed) % SORT_AFTER_REQUESTS == SORT_AFTER_REQUESTS - 1
        && let Some(recorder) = RECORDER.get()
    {
        recorder.run_upkeep();
    }
}

/// The stages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Session and ToolResolver.
    Resolve,
    /// The parameters by the tool's schema.
    Params,
    /// The Guardian's decision.
    Guardian,
    /// Waiting for room.
    Queue,
    /// The component, with everything that it waits for.
    Execute,
    /// The redaction of the answer.
    Redact,
    /// Waiting until the row of the audit is on disk.
    Audit,
}

const STAGES: [&str; 7] = ["resolve", "params", "guardian", "queue", "execute", "redact", "audit"];

static STAGE_SECONDS: LazyLock<[Histogram; STAGES.len()]> =
    LazyLock::new(|| STAGES.map(|stage| histogram!("monstrum_call_stage_seconds", "stage" => stage)));

/// Times one stage after the other.
pub struct Laps(Instant);

impl Laps {
    /// The first stage begins now.
    pub fn start() -> Laps {
        Laps(Instant::now())
    }

    /// `stage` ends now, and the next begins.
    pub fn end(&mut self, stage: Stage) {
        let now = Instant::now();
        STAGE_SECONDS[stage as usize].record(now - self.0);
        self.0 = now;
    }
}

/// A call has ended, with status and code as the caller gets them.
pub fn call(status: &'static str, code: &'static str) {
    counter!("monstrum_calls_total", "status" => status, "code" => code).increment(1);
}

/// What a component has burnt.
pub fn fuel(used: u64) {
    static FUEL_USED: LazyLock<Histogram> = LazyLock::new(|| histogram!("monstrum_call_fuel"));
    FUEL_USED.record(used as f64);
}

/// How much of the pool is taken.
pub fn pool(running: u32, room: u32) {
    gauge!("monstrum_pool_calls").set(running);
    gauge!("monstrum_pool_calls_max").set(room);
}

/// Which limit refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// That of all connections.
    Host,
    /// That of one address.
    Address,
}

impl RefusedBy {
    /// The limit in metrics and log lines.
    pub fn label(self) -> &'static str {
        match self {
            RefusedBy::Host => "host",
            RefusedBy::Address => "address",
        }
    }
}

/// How many connections are open.
pub fn connections(open: u32) {
    gauge!("monstrum_http_connections").set(open);
}

/// How many connections may be open.
pub fn connections_max(max: u32) {
    gauge!("monstrum_http_connections_max").set(max);
}

/// A connection that was refused.
pub fn connection_refused(by: RefusedBy) {
    counter!("monstrum_http_connections_refused_total", "limit" => by.label()).increment(1);
}

/// How many calls wait for room on the host, and rows for the audit's writer.
pub fn queues(calls: u32, audit_rows: usize) {
    gauge!("monstrum_queue_calls").set(calls);
    gauge!("monstrum_queue_audit_rows").set(audit_rows as f64);
}

/// A request that a plugin sent, with the class of the answer's status or the code of the failure.
pub fn egress(outcome: &'static str, took: Duration) {
    histogram!("monstrum_egress_request_seconds", "outcome" => outcome).record(took);
}

/// A transaction of the audit's writer.
pub fn commit(rows: usize, took: Duration) {
    histogram!("monstrum_audit_commit_seconds").record(took);
    histogram!("monstrum_audit_commit_rows").record(rows as f64);
}

/// Whether the database could be read when it was last asked, and how long it took.
pub fn database(usable: bool, took: Duration) {
    gauge!("monstrum_database_usable").set(if usable { 1.0 } else { 0.0 });
    histogram!("monstrum_database_poll_seconds").record(took);
}
