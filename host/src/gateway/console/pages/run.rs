//! One run of a workflow: what it waits for, and the attempts of its steps. Without a script, the page has a link that reads
//! it again.

use askama::Template;
use axum::body::Bytes;
use axum::extract::{Path, Query};
use axum::response::IntoResponse;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, header};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::pages::live::{self, OVER};
use crate::gateway::console::pages::runs::{self, NAMED_MAX, Run, resolution_of};
use crate::gateway::console::pages::task::TEXT_MAX;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum number of attempts on a page. A result has up to 1 MiB, and an answer of the API up to 8 MiB.
const STEPS: &str = "50";
/// The number of attempts on a page if more of them are too large for an answer.
const STEPS_OF_LARGE: &str = "5";
/// The maximum size of all texts of the attempts, as they are written in the page.
const TEXTS_MAX: usize = 224 << 10;

/// What the stream of a page has for each event of the API. The script of the page then asks for the state of the run, so
/// that neither parameters nor results are sent for nothing.
const CHANGED: &str = "event: changed\ndata: {}\n\n";

/// Returns whether a path is that of the state of a run, or of its stream. A request for it does not keep the session alive.
pub(in crate::gateway::console) fn is_quiet(path: &str) -> bool {
    path.contains("/runs/") && (path.ends_with("/state") || path.ends_with("/changes"))
}

/// An attempt of a step as the API tells it.
#[derive(Deserialize)]
struct Step {
    step: Text,
    #[serde(default)]
    item: Option<Text>,
    #[serde(default)]
    undo: bool,
    attempt: i64,
    run_attempt: i64,
    kind: String,
    status: String,
    #[serde(default)]
    request_id: Option<Text>,
    #[serde(default)]
    task_id: Option<Text>,
    #[serde(default)]
    run_id: Option<Text>,
    #[serde(default)]
    approval_id: Option<Text>,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    data: Option<Value>,
    #[serde(default)]
    error: Option<StepError>,
    started_at: UtcMillis,
    #[serde(default)]
    ended_at: Option<UtcMillis>,
}

#[derive(Deserialize)]
struct StepError {
    code: Text,
    message: Text,
}

#[derive(Deserialize)]
struct Steps {
    items: Vec<Step>,
    next_cursor: Option<String>,
}

/// An attempt of a page.
struct StepView {
    told: Step,
    params: Text,
    data: Text,
    message: Text,
    /// Whether the page shows the texts shortened.
    is_cut: bool,
    /// The path of the form on which a person says what became of an uncertain step.
    resolution: Option<String>,
}

impl StepView {
    /// Returns the class of the status in the style sheet.
    fn class(&self) -> &'static str {
        match self.told.status.as_str() {
            "succeeded" => "success",
            "failed" => "error",
            "uncertain" => "denied",
            "waiting" => "waiting",
            "running" => "running",
            _ => "stopped",
        }
    }

    fn duration_ms(&self) -> Option<i64> {
        self.told.ended_at.map(|at| at.since_ms(self.told.started_at).max(0))
    }
}

/// Returns the attempts of a page. Each text is shortened, and all of them have room in the page.
fn views(steps: Vec<Step>, base: &str, may_resolve: bool) -> Vec<StepView> {
    let mut left = TEXTS_MAX;
    let view = |told: Step| {
        let mut is_cut = false;
        let mut shown = |text: &str| {
            let max = TEXT_MAX.min(left);
            let mut room = max;
            let (start, is_whole) = within(text, &mut room);
            left -= max - room;
            is_cut |= !is_whole;
            start
        };
        let message = shown(told.error.as_ref().map(|error| error.message.raw()).unwrap_or_default());
        let params = if told.params.is_null() { Text::default() } else { shown(pretty(&told.params).raw()) };
        let data = told.data.as_ref().map(|data| shown(pretty(data).raw())).unwrap_or_default();
        let is_uncertain = may_resolve && told.status == "uncertain";
        let resolution = is_uncertain.then(|| resolution_of(base, &told.step, told.item.as_ref()));
        StepView { told, params, data, message, is_cut, resolution }
    };
    steps.into_iter().map(view).collect()
}

/// Reads a page of the attempts. Attempts that together are too large for an answer are read in smaller pages.
async fn steps(visit: &Visit, id: &str, cursor: &str) -> Result<Steps, Failure> {
    let path =
        |limit: &str| with_query(&format!("{}/steps", runs::path_of(id)), &[("limit", limit), ("cursor", cursor)]);
    match visit.client.get::<Steps>(&path(STEPS)).await {
        Err(Failure::NoAnswer) => visit.client.get::<Steps>(&path(STEPS_OF_LARGE)).await,
        read => read,
    }
}

/// Returns what changes while a run goes on, as one line for the script of its page.
fn state_of(run: &Run, steps: &[Step]) -> String {
    let mut digest = Sha256::new();
    for wait in &run.waiting_for {
        digest.update(format!("{}\0{}\0", wait.step, wait.kind));
    }
    for step in steps {
        let item = step.item.as_ref().map(Text::raw).unwrap_or_default();
        digest.update(format!("{}\0{item}\0{}\0{}\0{}\0", step.step, step.undo, step.attempt, step.status));
    }
    format!("{} {} {}", run.status, run.attempt, hex::encode(&digest.finalize()[..8]))
}

#[derive(Template)]
#[template(path = "console/run.html")]
struct RunPage {
    frame: Frame,
    run: Run,
    base: String,
    /// The path of the page of the workflow.
    workflow: String,
    bot: Option<Named>,
    /// The numbers of uncertain steps and of steps that could not be undone that the page does not name.
    more_uncertain: usize,
    more_undo_failed: usize,
    input: Text,
    output: Text,
    /// Whether the page shows the input or the output shortened.
    is_cut: bool,
    /// Absent if the API did not answer.
    steps: Option<Vec<StepView>>,
    /// What the page shows, for its script.
    state: String,
    /// The path that tells whether it has changed, and that of the stream that tells when to ask.
    watch: String,
    changes: String,
    /// The path of the attempts of this page as the API tells them.
    export: String,
    /// Whether the page shows attempts after the first ones.
    is_later: bool,
    next: Option<String>,
    may_cancel: bool,
    may_pause: bool,
    may_resume: bool,
    may_retry: bool,
    may_resolve: bool,
}

impl RunPage {
    fn is_any_cut(&self) -> bool {
        self.steps.as_ref().is_some_and(|steps| steps.iter().any(|step| step.is_cut))
    }
}

/// The attempts that a page shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Shown {
    #[serde(default)]
    cursor: String,
}

/// Shows a run.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(Shown { cursor }): Query<Shown>,
) -> Page {
    let mut run = runs::read(&visit, &id).await?;
    let more_uncertain = run.uncertain.len().saturating_sub(NAMED_MAX);
    let more_undo_failed = run.undo_failed.len().saturating_sub(NAMED_MAX);
    run.uncertain.truncate(NAMED_MAX);
    run.undo_failed.truncate(NAMED_MAX);
    let base = run.base(&visit);
    let title = visit.words().filled("run.title", &[&run.workflow]);
    let bot = format!("/api/bots/{}", segment(&run.bot_id));
    let (frame, bot, steps) = tokio::join!(
        visit.frame("workflows", &title),
        visit.client.get::<Named>(&bot),
        steps(&visit, &run.id, &cursor),
    );
    let (read, next_cursor) = match steps {
        Ok(Steps { items, next_cursor }) => (Some(items), next_cursor),
        // A position that is not one of an attempt.
        Err(Failure::Refused(refusal)) if refusal.status == 422 => return Ok(page::see_other(&base)),
        Err(_) => (None, None),
    };
    let mut is_cut = false;
    let mut shown = |value: Option<&Value>| {
        let whole = value.map(pretty).unwrap_or_default();
        let (start, is_whole) = within(whole.raw(), &mut { TEXT_MAX });
        is_cut |= !is_whole;
        start
    };
    let (input, output) = (shown(run.input.as_ref()), shown(run.output.as_ref()));
    let may_resolve = visit.may("runs_resolve");
    let is_open = !run.has_ended();
    let of_page = [("cursor", cursor.as_str())];
    let page = RunPage {
        state: state_of(&run, read.as_deref().unwrap_or_default()),
        steps: read.map(|steps| views(steps, &base, may_resolve)),
        changes: format!("{base}/changes"),
        watch: with_query(&format!("{base}/state"), &of_page),
        export: with_query(&format!("{base}/export"), &[("part", "steps"), of_page[0]]),
        workflow: visit.to(&format!("workflows/{}", segment(&run.workflow_id))),
        next: next_cursor.map(|cursor| with_query(&base, &[("cursor", &cursor)])),
        may_cancel: is_open && visit.may("runs_cancel"),
        may_pause: matches!(run.status.as_str(), "queued" | "running" | "waiting") && visit.may("runs_pause"),
        may_resume: run.status == "paused" && visit.may("runs_resume"),
        may_retry: matches!(run.status.as_str(), "failed" | "cancelled") && visit.may("runs_retry"),
        may_resolve,
        is_later: !cursor.is_empty(),
        bot: bot.ok(),
        frame,
        run,
        base,
        more_uncertain,
        more_undo_failed,
        input,
        output,
        is_cut,
    };
    Ok(page::render(&page))
}

/// Returns what changes while a run goes on, for the script of its page.
pub(in crate::gateway::console) async fn state(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(Shown { cursor }): Query<Shown>,
) -> Page {
    let (run, steps) = tokio::join!(runs::read(&visit, &id), steps(&visit, &id, &cursor));
    let state = state_of(&run?, &steps?.items);
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], state).into_response())
}

/// Streams that a run has gone on, as the API tells it, until the run or the session ends.
pub(in crate::gateway::console) async fn changes(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Page {
    live::check_site(&headers)?;
    let accept = [(header::ACCEPT, HeaderValue::from_static("text/event-stream"))];
    let told = visit.client.stream(&format!("{}/events", runs::path_of(&id)), &accept).await?;
    let told = told.into_body().into_data_stream().map(|chunk| chunk.map(|chunk| change(&chunk)));
    let over = stream::once(async { Ok(Bytes::from_static(OVER.as_bytes())) });
    live::passed_on(&visit, told.chain(over).boxed(), None)
}

/// Returns what the stream of a page has for a part of the stream of the API. A part without an event keeps the connection
/// open.
fn change(told: &Bytes) -> Bytes {
    if told.starts_with(b":") { told.clone() } else { Bytes::from_static(CHANGED.as_bytes()) }
}

/// What is exported of a run.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Exported {
    /// `steps` for the attempts of a page. Without it, the run is exported.
    #[serde(default)]
    part: String,
    #[serde(default)]
    cursor: String,
}

/// Exports a run, or the attempts of a page, as the API tells them.
pub(in crate::gateway::console) async fn export(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(Exported { part, cursor }): Query<Exported>,
) -> Page {
    let of_run = runs::path_of(&id);
    let path = match part.as_str() {
        "steps" => with_query(&format!("{of_run}/steps"), &[("limit", STEPS), ("cursor", &cursor)]),
        _ => of_run,
    };
    let body = visit.client.stream(&path, &[]).await?.into_body();
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"run.json\""),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    Ok((headers, body).into_response())
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;
    use serde_json::json;

    use super::*;
    use crate::gateway::console::words::Words;

    fn step(status: &str, fields: &Value) -> Step {
        let mut step = json!({
            "step": "a", "attempt": 1, "run_attempt": 1, "kind": "tool", "status": status, "params": null,
            "started_at": "2026-01-02T03:04:05.000Z", "ended_at": null,
        });
        for (name, value) in fields.as_object().unwrap() {
            step[name] = value.clone();
        }
        serde_json::from_value(step).unwrap()
    }

    fn run(status: &str) -> Run {
        serde_json::from_value(json!({
            "id": "r", "workflow_id": "w", "workflow": "n", "version": 1, "bot_id": "b", "status": status, "attempt": 1,
            "labels": [], "started_by": { "kind": "key", "id": "k" }, "created_at": "2026-01-02T03:04:05.000Z",
            "started_at": null, "ended_at": null,
        }))
        .unwrap()
    }

    #[test]
    fn the_texts_of_attempts_are_bounded_one_by_one_and_together() {
        let large = "<".repeat(100_000);
        let steps = (0..20).map(|_| step("succeeded", &json!({ "params": { "x": large }, "data": large }))).collect();
        let views = views(steps, "/r", true);
        let written = |text: &Text| text.raw().matches('<').count() * 5;
        let sizes: Vec<usize> = views.iter().flat_map(|view| [written(&view.params), written(&view.data)]).collect();
        assert!(sizes.iter().all(|size| *size <= TEXT_MAX), "{sizes:?}");
        assert!(sizes.iter().sum::<usize>() <= TEXTS_MAX, "{sizes:?}");
        assert!(sizes[0] > TEXT_MAX / 2 && views.iter().all(|view| view.is_cut), "{sizes:?}");
    }

    #[test]
    fn only_an_uncertain_step_is_resolved_and_only_by_keys_that_may() {
        let of = |status: &str, may: bool| views(vec![step(status, &json!({}))], "/r", may)[0].resolution.clone();
        assert_eq!(of("uncertain", true).as_deref(), Some("/r/steps/a/resolve"));
        assert_eq!((of("uncertain", false), of("failed", true)), (None, None));
    }

    #[test]
    fn the_state_changes_with_the_run_and_with_its_steps() {
        let running = [step("running", &json!({}))];
        let state = state_of(&run("running"), &running);
        assert_eq!(state, state_of(&run("running"), &running));
        assert_ne!(state, state_of(&run("waiting"), &running));
        assert_ne!(state, state_of(&run("running"), &[step("succeeded", &json!({}))]));
        assert_ne!(state, state_of(&run("running"), &[]));
        assert!(is_quiet("/console/w/a/runs/b/state") && is_quiet("/console/w/a/runs/b/changes"));
        assert!(!is_quiet("/console/w/a/runs/b") && !is_quiet("/console/w/a/plugins/changes"));
    }

    #[test]
    fn the_stream_of_a_page_tells_nothing_of_the_steps() {
        let told = Bytes::from_static(b"event: step\ndata: {\"data\":\"secret\"}\n\n");
        assert_eq!(change(&told), CHANGED.as_bytes());
        assert_eq!(change(&Bytes::from_static(b":\n\n")), &b":\n\n"[..]);
    }

    #[test]
    fn each_status_of_a_step_and_each_wait_has_words() {
        let statuses =
            ["running", "waiting", "succeeded", "failed", "skipped", "cancelled", "uncertain", "undone", "pending"];
        let waits = ["timer", "event", "approval", "gate", "resolve", "authorization", "task", "run"];
        for language in [UiLanguage::English, UiLanguage::Chinese] {
            let of = |group: &str, name: &str| Words::of(language).known(&format!("{group}.{name}")).is_some();
            assert!(statuses.iter().all(|status| of("run_step", status)));
            assert!(waits.iter().all(|kind| of("run_wait", kind)));
        }
    }
}
