//! The metrics of the host. This file contains all metric names except the name of the metric for HTTP requests, which
//! is in telemetry/recorder.rs. Label values come from short fixed lists, so that a tenant cannot create time series.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use metrics::{Histogram, counter, gauge, histogram};
use monstrum_types::{FailureCode, words};
use parking_lot::Mutex;

/// The stages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Opening the session and resolving the call.
    Resolve,
    /// Checking the parameters against the tool's schema.
    Params,
    /// The Guardian's decision.
    Guardian,
    /// Waiting for admission.
    Queue,
    /// Running the component. This stage includes the time for which the component waits.
    Execute,
    /// Redacting the answer.
    Redact,
    /// Waiting until the audit row is on disk.
    Audit,
}

const STAGES: [&str; 7] = ["resolve", "params", "guardian", "queue", "execute", "redact", "audit"];

static STAGE_SECONDS: LazyLock<[Histogram; STAGES.len()]> =
    LazyLock::new(|| STAGES.map(|stage| histogram!("monstrum_call_stage_seconds", "stage" => stage)));

/// The maximum number of models that metrics name. Each has two time series.
const MODELS_MAX: usize = 64;
/// The maximum length of a name of a model in metrics.
const MODEL_BYTES_MAX: usize = 64;

/// Measures consecutive stages.
pub struct StageTimer(Instant);

impl StageTimer {
    /// Starts the measurement of the first stage.
    pub fn start() -> StageTimer {
        StageTimer(Instant::now())
    }

    /// Records the duration of `stage` and starts the measurement of the next stage.
    pub fn end(&mut self, stage: Stage) {
        let now = Instant::now();
        STAGE_SECONDS[stage as usize].record(now - self.0);
        self.0 = now;
    }
}

/// Records a call that has ended, with the status and code of its answer.
pub fn call(status: &'static str, code: &'static str) {
    counter!("monstrum_calls_total", "status" => status, "code" => code).increment(1);
}

/// Records the fuel that a component has used.
pub fn fuel(used: u64) {
    static FUEL_USED: LazyLock<Histogram> = LazyLock::new(|| histogram!("monstrum_call_fuel"));
    FUEL_USED.record(used as f64);
}

/// Records the number of running calls and its maximum.
pub fn pool(running: u32, room: u32) {
    gauge!("monstrum_pool_calls").set(running);
    gauge!("monstrum_pool_calls_max").set(room);
}

words! {
    /// The limit that caused the refusal of a connection.
    pub enum RefusedBy {
        /// The limit for all connections of the host.
        Host = "host",
        /// The limit for the connections of one client address.
        Address = "address",
    }
}

/// Records the number of open connections.
pub fn connections(open: u32) {
    gauge!("monstrum_http_connections").set(open);
}

/// Records the maximum number of open connections.
pub fn connections_max(max: u32) {
    gauge!("monstrum_http_connections_max").set(max);
}

/// Records a refused connection.
pub fn connection_refused(by: RefusedBy) {
    counter!("monstrum_http_connections_refused_total", "limit" => by.as_str()).increment(1);
}

/// Records the number of calls that wait for admission, and the number of rows that wait for the audit's writer.
pub fn queues(calls: u32, audit_rows: usize) {
    gauge!("monstrum_queue_calls").set(calls);
    gauge!("monstrum_queue_audit_rows").set(audit_rows as f64);
}

/// Records a request of a plugin, with the class of the answer's status or the code of the failure.
pub fn egress(outcome: &'static str, took: Duration) {
    histogram!("monstrum_egress_request_seconds", "outcome" => outcome).record(took);
}

/// Returns the class of a response's status, or the code of the failure.
pub fn outcome_of_request(status: Result<u16, FailureCode>) -> &'static str {
    match status {
        Ok(status) => match status / 100 {
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "other",
        },
        Err(code) => code.as_str(),
    }
}

/// Records a discovery of the tools of an MCP server.
pub fn discovery(is_ok: bool, took: Duration) {
    let outcome = if is_ok { "ok" } else { "failed" };
    histogram!("monstrum_mcp_discovery_seconds", "outcome" => outcome).record(took);
}

/// Records content blocks of MCP servers that were dropped because their types are unknown.
pub fn dropped_blocks(count: usize) {
    counter!("monstrum_mcp_dropped_blocks_total").increment(count as u64);
}

/// Records a round with a model that has ended, with `ok` or the cause of its failure.
pub fn round(outcome: &'static str) {
    counter!("monstrum_rounds_total", "outcome" => outcome).increment(1);
}

/// Records the time from the request of a round to the first piece of its answer.
pub fn first_token(took: Duration) {
    static FIRST_TOKEN: LazyLock<Histogram> = LazyLock::new(|| histogram!("monstrum_round_first_token_seconds"));
    FIRST_TOKEN.record(took);
}

/// Records the tokens of a round that has an answer.
pub fn tokens(model: &str, input: u64, output: u64) {
    static MODELS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let model = label_of_model(&mut MODELS.lock(), model);
    for (direction, tokens) in [("input", input), ("output", output)] {
        counter!("monstrum_model_tokens_total", "model" => model.clone(), "direction" => direction).increment(tokens);
    }
}

/// Returns the label of a model: its name, or `other`. Tenants choose the names of models, so only the first names of a
/// process become labels, and only those that names of models have.
fn label_of_model(known: &mut BTreeSet<String>, model: &str) -> String {
    const OTHER: &str = "other";
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@+".contains(c);
    if known.contains(model) {
        return model.to_owned();
    }
    if known.len() >= MODELS_MAX || model.len() > MODEL_BYTES_MAX || !model.chars().all(is_plain) {
        return OTHER.to_owned();
    }
    known.insert(model.to_owned());
    model.to_owned()
}

/// Records a task that has ended.
pub fn task_ended(status: &'static str, code: &'static str) {
    counter!("monstrum_tasks_total", "status" => status, "code" => code).increment(1);
}

/// Records the number of tasks with a status that have not ended.
pub fn tasks(status: &'static str, count: u64) {
    gauge!("monstrum_tasks", "status" => status).set(count as f64);
}

/// Records a run that has ended.
pub fn run_ended(status: &'static str) {
    counter!("monstrum_runs_total", "status" => status).increment(1);
}

/// Records the number of runs with a status that have not ended.
pub fn runs(status: &'static str, count: u64) {
    gauge!("monstrum_runs", "status" => status).set(count as f64);
}

/// Records the number of approvals of one range of ages that wait for a decision.
pub fn approvals(age: &'static str, count: u64) {
    gauge!("monstrum_approvals_pending", "age" => age).set(count as f64);
}

/// Records rows of the audit that were archived.
pub fn archived(rows: u64) {
    counter!("monstrum_audit_archived_rows_total").increment(rows);
}

/// Records an archive of the audit that failed.
pub fn archive_failed() {
    counter!("monstrum_audit_archive_failures_total").increment(1);
}

/// Records a turn that has ended, with the kind of its object.
pub fn turn(kind: &'static str, result: &'static str, took: Duration) {
    counter!("monstrum_turns_total", "kind" => kind, "result" => result).increment(1);
    histogram!("monstrum_turn_seconds", "kind" => kind).record(took);
}

/// Records an event that was dispatched, with the number of its deliveries and of those that were dead from the beginning.
pub fn event(deliveries: usize, dead: usize) {
    counter!("monstrum_events_total").increment(1);
    counter!("monstrum_deliveries_total", "result" => "pending").increment(deliveries as u64);
    counter!("monstrum_deliveries_total", "result" => "refused").increment(dead as u64);
}

/// Records a delivery that has ended: `done`, or why it is dead.
pub fn delivery(result: &'static str) {
    counter!("monstrum_deliveries_total", "result" => result).increment(1);
}

/// Records the time from the dispatch of an event to the start of its task or run.
pub fn event_to_start(took_ms: i64) {
    histogram!("monstrum_event_to_start_seconds").record(took_ms.max(0) as f64 / 1000.0);
}

/// Records an attempt of a step that calls a tool, with its status at the end and the time from its start.
pub fn step(status: &'static str, took_ms: i64) {
    counter!("monstrum_steps_total", "status" => status).increment(1);
    histogram!("monstrum_step_seconds").record(took_ms.max(0) as f64 / 1000.0);
}

/// Records the number of wakes that are due and unclaimed, and for how long the oldest of them has been due.
pub fn wakes(due: u64, oldest_ms: i64) {
    gauge!("monstrum_wakes_due").set(due as f64);
    gauge!("monstrum_wakes_oldest_seconds").set(oldest_ms as f64 / 1000.0);
}

/// Records a transaction of the audit's writer.
pub fn commit(rows: usize, took: Duration) {
    histogram!("monstrum_audit_commit_seconds").record(took);
    histogram!("monstrum_audit_commit_rows").record(rows as f64);
}

/// Records a frame of an agent that was dropped: a result or progress of a call that does not run, or progress that
/// arrived too soon.
pub fn agent_frame_dropped(kind: &'static str) {
    counter!("monstrum_agent_frames_dropped_total", "type" => kind).increment(1);
}

/// Records a command in a sandbox whose record is not complete.
pub fn sandbox_output_lost() {
    counter!("monstrum_sandbox_outputs_lost_total").increment(1);
}

/// Records whether the last poll of the database succeeded, and how long it took.
pub fn database(usable: bool, took: Duration) {
    gauge!("monstrum_database_usable").set(if usable { 1.0 } else { 0.0 });
    histogram!("monstrum_database_poll_seconds").record(took);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_models_with_plain_names_become_labels() {
        let mut known = BTreeSet::new();
        assert_eq!(label_of_model(&mut known, "openai/gpt-5.1:mini"), "openai/gpt-5.1:mini");
        for strange in ["a\"b", "a\nb", "é", &"x".repeat(MODEL_BYTES_MAX + 1)] {
            assert_eq!(label_of_model(&mut known, strange), "other");
        }
        for number in 0..2 * MODELS_MAX {
            label_of_model(&mut known, &format!("m{number}"));
        }
        assert_eq!(known.len(), MODELS_MAX);
        assert_eq!((&*label_of_model(&mut known, "m0"), &*label_of_model(&mut known, "m100")), ("m0", "other"));
    }
}
