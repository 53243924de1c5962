//! The runs of workflows: the list, starting one, and what people do with one.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::workflows;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The statuses among which the filter chooses.
const STATUSES: [&str; 8] = ["queued", "running", "waiting", "paused", "undoing", "completed", "failed", "cancelled"];
/// The maximum number of steps that a page names in one list.
pub(super) const NAMED_MAX: usize = 100;
/// What can have become of an uncertain step.
const OUTCOMES: [&str; 3] = ["succeeded", "failed", "retry"];

/// A run as the API tells it.
#[derive(Deserialize)]
pub(super) struct Run {
    pub id: String,
    pub workflow_id: String,
    pub workflow: Text,
    pub version: i64,
    pub bot_id: String,
    pub status: String,
    pub attempt: i64,
    #[serde(default)]
    pub input: Option<Value>,
    #[serde(default)]
    pub output: Option<Value>,
    #[serde(default)]
    pub error: Option<RunError>,
    pub labels: Vec<Text>,
    pub started_by: Starter,
    #[serde(default)]
    pub event_id: Option<String>,
    #[serde(default)]
    pub parent_run_id: Option<String>,
    #[serde(default)]
    pub waiting_for: Vec<Wait>,
    #[serde(default)]
    pub uncertain: Vec<StepOfRun>,
    #[serde(default)]
    pub undo_failed: Vec<StepOfRun>,
    pub created_at: UtcMillis,
    pub started_at: Option<UtcMillis>,
    pub ended_at: Option<UtcMillis>,
}

/// Why a run failed.
#[derive(Deserialize)]
pub(super) struct RunError {
    #[serde(default)]
    pub step: Option<Text>,
    #[serde(default)]
    pub item: Option<Text>,
    pub code: Text,
    pub message: Text,
}

/// What started a run.
#[derive(Deserialize)]
pub(super) struct Starter {
    pub kind: String,
    pub id: Text,
}

/// A step of a run, or one item of it.
#[derive(Deserialize)]
pub(super) struct StepOfRun {
    pub step: Text,
    #[serde(default)]
    pub item: Option<Text>,
}

impl StepOfRun {
    /// Returns the path of the form on which a person says what became of the step.
    pub(super) fn resolution(&self, base: &str) -> String {
        resolution_of(base, &self.step, self.item.as_ref())
    }
}

/// What a step of a run waits for.
#[derive(Deserialize)]
pub(super) struct Wait {
    pub step: Text,
    #[serde(default)]
    pub item: Option<Text>,
    pub kind: String,
    #[serde(default)]
    pub until: Option<UtcMillis>,
    #[serde(default)]
    pub id: Option<Text>,
}

impl Wait {
    /// Returns the page on which a person acts, or that shows what is awaited.
    pub(super) fn page(&self, frame: &Frame, base: &str) -> Option<String> {
        if self.kind == "resolve" {
            return Some(resolution_of(base, &self.step, self.item.as_ref()));
        }
        let id = segment(self.id.as_ref()?.raw());
        match self.kind.as_str() {
            "approval" | "gate" => Some(frame.to(&format!("approvals/{id}"))),
            "task" => Some(frame.to(&format!("tasks/{id}"))),
            "run" => Some(frame.to(&format!("runs/{id}"))),
            _ => None,
        }
    }

    /// Returns the type of the event that is awaited.
    pub(super) fn event(&self) -> Option<&Text> {
        self.id.as_ref().filter(|_| self.kind == "event")
    }
}

/// Returns the path of the form for an uncertain step.
pub(super) fn resolution_of(base: &str, step: &Text, item: Option<&Text>) -> String {
    let path = format!("{base}/steps/{}/resolve", segment(step.raw()));
    with_query(&path, &[("item", item.map(Text::raw).unwrap_or_default())])
}

impl Run {
    /// Returns the path of the page of the run.
    pub(super) fn base(&self, visit: &Visit) -> String {
        base_of(visit, &self.id)
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled")
    }

    /// Returns the class of the status in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        match self.status.as_str() {
            "completed" => "success",
            "failed" => "error",
            "waiting" => "waiting",
            "running" | "undoing" => "running",
            _ => "stopped",
        }
    }
}

/// Returns the path of the page of a run.
fn base_of(visit: &Visit, id: &str) -> String {
    visit.to(&format!("runs/{}", segment(id)))
}

/// Returns the path of a run in the API.
pub(super) fn path_of(id: &str) -> String {
    format!("/api/runs/{}", segment(id))
}

/// Reads a run.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Run, Failure> {
    visit.client.get::<Run>(&path_of(id)).await
}

/// What a list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    status: String,
    #[serde(default)]
    workflow_id: String,
    #[serde(default)]
    started_by: String,
    #[serde(default)]
    since: String,
    #[serde(default)]
    cursor: String,
}

impl Filter {
    fn parameters(&self) -> [(&'static str, &str); 4] {
        [
            ("status", &self.status),
            ("workflow_id", &self.workflow_id),
            ("started_by", self.started_by.trim()),
            ("since", self.since.trim()),
        ]
    }

    fn is_set(&self) -> bool {
        self.parameters().iter().any(|(_, value)| !value.is_empty())
    }
}

#[derive(Template)]
#[template(path = "console/runs.html")]
struct ListPage {
    frame: Frame,
    runs: Vec<Run>,
    workflows: Vec<Named>,
    statuses: [&'static str; 8],
    filter: Filter,
    list: String,
    next: Option<String>,
}

/// Reads the names of the workflows.
async fn names(visit: &Visit) -> Vec<Named> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Named>,
    }
    visit.client.get::<List>("/api/workflows?limit=200").await.map(|list| list.items).unwrap_or_default()
}

/// A page of runs as the API tells it.
#[derive(Deserialize)]
struct Runs {
    items: Vec<Run>,
    next_cursor: Option<String>,
}

/// Reads the newest runs of a workflow.
pub(super) async fn newest(visit: &Visit, workflow: &str) -> Result<Vec<Run>, Failure> {
    let path = with_query("/api/runs", &[("workflow_id", workflow), ("limit", "10")]);
    Ok(visit.client.get::<Runs>(&path).await?.items)
}

/// Shows the runs of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    let mut parameters = filter.parameters().to_vec();
    parameters.extend([("limit", "50"), ("cursor", filter.cursor.as_str())]);
    let path = with_query("/api/runs", &parameters);
    let (frame, read, workflows) = tokio::join!(
        visit.frame("workflows", visit.words().text("runs.title")),
        visit.client.get::<Runs>(&path),
        names(&visit),
    );
    let Runs { items, next_cursor } = read?;
    let list = visit.to("runs");
    let next = next_cursor.map(|cursor| {
        let mut parameters = filter.parameters().to_vec();
        parameters.push(("cursor", &cursor));
        with_query(&list, &parameters)
    });
    Ok(page::render(&ListPage { frame, runs: items, workflows, statuses: STATUSES, filter, list, next }))
}

#[derive(Template)]
#[template(path = "console/run_new.html")]
struct NewPage {
    frame: Frame,
    workflow: Text,
    input: Text,
    version: Text,
    errors: Vec<(Text, Text)>,
    action: String,
    back: String,
}

async fn blank(visit: &Visit, id: &str) -> Result<NewPage, Failure> {
    if !visit.may("runs_start") {
        return Err(Failure::forbidden());
    }
    let workflow = workflows::read(visit, id).await?.value;
    let title = visit.words().filled("run.start_title", &[&workflow.name]);
    let frame = visit.frame("workflows", &title).await;
    let back = workflow.base(visit);
    let action = format!("{back}/run");
    let (input, version) = ("{}".into(), Text::default());
    Ok(NewPage { frame, workflow: workflow.name, input, version, errors: Vec::new(), action, back })
}

/// Shows the form that starts a run.
pub(in crate::gateway::console) async fn new(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&blank(&visit, &id).await?))
}

/// Starts a run, and shows it.
pub(in crate::gateway::console) async fn start(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Started {
        id: String,
    }
    let (fields, words) = (visit.fields(), visit.words());
    let mut page = blank(&visit, &id).await?;
    page.input = fields.value("input").replace("\r\n", "\n").into();
    page.version = fields.value("version").trim().into();
    let mut body = Map::new();
    match page.input.raw().trim() {
        "" => {}
        typed => match serde_json::from_str::<Value>(typed) {
            Ok(input) => drop(body.insert("input".to_owned(), input)),
            Err(_) => page.errors.push(("/input".into(), words.text("form.not_json").into())),
        },
    }
    match page.version.raw() {
        "" => {}
        typed => match typed.parse::<i64>() {
            Ok(version) => drop(body.insert("version".to_owned(), version.into())),
            Err(_) => page.errors.push(("/version".into(), words.text("form.not_integer").into())),
        },
    }
    if !page.errors.is_empty() {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    let path = format!("{}/runs", workflows::path_of(&id));
    match visit.client.send::<Started>(Method::POST, &path, &body.into(), visit.conditions()).await {
        Ok(Started { id }) => Ok(visit.done(words.text("run.started").to_owned(), &base_of(&visit, &id)).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 429) => {
            page.errors = refusal.told();
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &page))
        }
        Err(failure) => Err(failure),
    }
}

/// Sends what a person does with a run, and returns to its page. A run that has gone on meanwhile refuses it there.
async fn act(visit: &Visit, id: &str, action: &str, body: &Value, done: &str) -> Page {
    let (base, path) = (base_of(visit, id), format!("{}/{action}", path_of(id)));
    match visit.client.act(Method::POST, &path, Some(body), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text(done).to_owned(), &base).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 429) => {
            Ok(visit.refused(refusal.detail, &base).await)
        }
        Err(failure) => Err(failure),
    }
}

#[derive(Template)]
#[template(path = "console/run_cancel.html")]
struct CancelPage {
    frame: Frame,
    run: Run,
    base: String,
    action: String,
}

/// Asks before a run is cancelled.
pub(in crate::gateway::console) async fn confirm_cancellation(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
) -> Page {
    if !visit.may("runs_cancel") {
        return Err(Failure::forbidden());
    }
    let run = read(&visit, &id).await?;
    let base = run.base(&visit);
    let frame = visit.frame("workflows", visit.words().text("run.cancel")).await;
    let action = format!("{base}/cancel");
    Ok(page::render(&CancelPage { frame, run, base, action }))
}

/// Cancels a run.
pub(in crate::gateway::console) async fn cancel(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let body = json!({ "undo": visit.fields().has("undo") });
    act(&visit, &id, "cancel", &body, "run.is_cancelled").await
}

/// Pauses a run.
pub(in crate::gateway::console) async fn pause(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    act(&visit, &id, "pause", &json!({}), "run.is_paused").await
}

/// Lets a paused run go on.
pub(in crate::gateway::console) async fn resume(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    act(&visit, &id, "resume", &json!({}), "run.is_resumed").await
}

/// Lets a run that has failed or was cancelled go on.
pub(in crate::gateway::console) async fn retry(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    act(&visit, &id, "retry", &json!({}), "run.is_retried").await
}

/// The item of a step.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Item {
    #[serde(default)]
    item: String,
}

#[derive(Template)]
#[template(path = "console/run_resolve.html")]
struct ResolvePage {
    frame: Frame,
    run: Run,
    item: Text,
    outcomes: [&'static str; 3],
    outcome: String,
    data: Text,
    errors: Vec<(Text, Text)>,
    base: String,
    action: String,
}

async fn unresolved(visit: &Visit, id: &str, step: &str, item: &str) -> Result<ResolvePage, Failure> {
    if !visit.may("runs_resolve") {
        return Err(Failure::forbidden());
    }
    let run = read(visit, id).await?;
    let (base, step) = (run.base(visit), Text::from(step));
    let title = visit.words().filled("run.resolve_title", &[&step]);
    let frame = visit.frame("workflows", &title).await;
    let action = resolution_of(&base, &step, None);
    let (outcomes, data, errors) = (OUTCOMES, Text::default(), Vec::new());
    Ok(ResolvePage { frame, run, item: item.into(), outcomes, outcome: String::new(), data, errors, base, action })
}

/// Shows the form on which a person says what became of a step.
pub(in crate::gateway::console) async fn resolution(
    visit: Visit,
    Path((_, id, step)): Path<(String, String, String)>,
    Query(Item { item }): Query<Item>,
) -> Page {
    Ok(page::render(&unresolved(&visit, &id, &step, &item).await?))
}

/// Saves what became of a step.
pub(in crate::gateway::console) async fn resolve(
    visit: Visit,
    Path((_, id, step)): Path<(String, String, String)>,
) -> Page {
    let (fields, words) = (visit.fields(), visit.words());
    let mut page = unresolved(&visit, &id, &step, fields.value("item")).await?;
    page.outcome = fields.value("as").to_owned();
    page.data = fields.value("data").replace("\r\n", "\n").into();
    let mut body = Map::new();
    body.insert("as".to_owned(), page.outcome.as_str().into());
    if !page.item.is_empty() {
        body.insert("item".to_owned(), page.item.raw().into());
    }
    if !OUTCOMES.contains(&page.outcome.as_str()) {
        page.errors.push(("/as".into(), words.text("run.choose_outcome").into()));
    }
    match page.data.raw().trim() {
        "" => {}
        typed => match serde_json::from_str::<Value>(typed) {
            Ok(data) => drop(body.insert("data".to_owned(), data)),
            Err(_) => page.errors.push(("/data".into(), words.text("form.not_json").into())),
        },
    }
    if !page.errors.is_empty() {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    let path = format!("{}/steps/{}/resolve", path_of(&id), segment(&step));
    match visit.client.act(Method::POST, &path, Some(&body.into()), visit.conditions()).await {
        Ok(()) => Ok(visit.done(words.text("run.resolved").to_owned(), &page.base).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => Ok(visit.refused(refusal.detail, &page.base).await),
        Err(Failure::Refused(refusal)) if refusal.status == 422 => {
            page.errors = refusal.told();
            Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page))
        }
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;

    use super::*;
    use crate::gateway::console::words::Words;

    #[test]
    fn each_status_starter_and_outcome_has_words() {
        for language in [UiLanguage::English, UiLanguage::Chinese] {
            let of = |group: &str, name: &str| Words::of(language).known(&format!("{group}.{name}")).is_some();
            assert!(STATUSES.iter().all(|status| of("run_status", status)));
            assert!(["key", "trigger", "schedule", "run"].iter().all(|kind| of("run_starter", kind)));
            assert!(OUTCOMES.iter().all(|outcome| of("resolve_as", outcome)));
        }
    }

    #[test]
    fn the_form_of_a_step_names_its_item() {
        let (step, item) = (Text::from("a/b"), Text::from("3.0"));
        assert_eq!(resolution_of("/r", &step, None), "/r/steps/a%2Fb/resolve");
        assert_eq!(resolution_of("/r", &step, Some(&item)), "/r/steps/a%2Fb/resolve?item=3.0");
    }
}
