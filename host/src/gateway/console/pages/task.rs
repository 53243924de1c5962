//! One task: its instruction, its answer, and its rounds and calls. Without a script, the page has a link that reads it again.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::IntoResponse;
use http::header;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::pages::tasks::{self, Task, TokenUsage};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum number of steps on a page.
const STEPS: &str = "20";
/// The maximum size of one text of a task or a step, and of all texts of the steps, as they are written in the page.
pub(super) const TEXT_MAX: usize = 16 << 10;
const TEXTS_MAX: usize = 256 << 10;

/// Returns whether a path is that of the state of a task. A request for it does not keep the session alive.
pub(in crate::gateway::console) fn is_state(path: &str) -> bool {
    path.contains("/tasks/") && path.ends_with("/state")
}

/// A step as the API tells it.
#[derive(Deserialize)]
struct Step {
    sequence: u64,
    kind: String,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    tool: Option<Text>,
    #[serde(default)]
    params: Option<Value>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    code: Option<Text>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    model: Option<Text>,
    #[serde(default)]
    usage: Option<TokenUsage>,
    started_at: UtcMillis,
    #[serde(default)]
    ended_at: Option<UtcMillis>,
}

#[derive(Deserialize)]
struct Steps {
    items: Vec<Step>,
    next_after: Option<u64>,
}

/// A step of a page.
struct StepView {
    told: Step,
    text: Text,
    params: Text,
    result: Text,
    message: Text,
    /// Whether the page shows the texts shortened.
    is_cut: bool,
    /// The path of the step as the API tells it.
    export: String,
}

impl StepView {
    fn is_call(&self) -> bool {
        self.told.kind == "call"
    }

    /// Returns the status. A step without one is running.
    fn state(&self) -> &str {
        self.told.status.as_deref().unwrap_or("running")
    }

    fn class(&self) -> &'static str {
        page::class_of(self.state())
    }

    fn waits(&self) -> bool {
        self.state() == "approval_required"
    }

    fn tool(&self) -> Text {
        self.told.tool.clone().unwrap_or_default().start(120)
    }

    /// Returns the beginning of the text of a round.
    fn first_line(&self) -> Text {
        let text = self.told.text.as_deref().unwrap_or_default();
        Text::from(text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default()).start(120)
    }

    fn duration_ms(&self) -> Option<i64> {
        self.told.ended_at.map(|at| at.since_ms(self.told.started_at).max(0))
    }
}

/// Returns the steps of a page. Each text is shortened, and all of them have room in the page.
fn views(steps: Vec<Step>, base: &str) -> Vec<StepView> {
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
        let json = |value: &Option<Value>| value.as_ref().map(pretty).unwrap_or_default();
        let message = shown(told.message.as_deref().unwrap_or_default());
        let text = shown(told.text.as_deref().unwrap_or_default());
        let params = shown(json(&told.params).raw());
        let result = shown(json(&told.result).raw());
        let export = with_query(&format!("{base}/export"), &[("step", &told.sequence.to_string())]);
        StepView { told, text, params, result, message, is_cut, export }
    };
    steps.into_iter().map(view).collect()
}

/// Reads a page of the steps. Steps that together are too large for an answer are read one at a time.
async fn steps(visit: &Visit, id: &str, after: &str) -> Result<Steps, Failure> {
    let path =
        |limit: &str| with_query(&format!("/api/tasks/{}/steps", segment(id)), &[("after", after), ("limit", limit)]);
    match visit.client.get::<Steps>(&path(STEPS)).await {
        Err(Failure::NoAnswer) => visit.client.get::<Steps>(&path("1")).await,
        read => read,
    }
}

/// The key that started a task.
struct Starter {
    id: String,
    /// The name, if the key of the session may read it.
    name: Option<Text>,
}

async fn starter(visit: &Visit, task: &Task) -> Option<Starter> {
    #[derive(Deserialize)]
    struct Keys {
        items: Vec<Named>,
    }
    let id = task.started_by.clone()?;
    if id == visit.me.key_id {
        return Some(Starter { id, name: Some(visit.me.name.clone()) });
    }
    let name = match visit.may("keys_list") {
        true => visit.client.get::<Keys>("/api/keys?limit=200").await.ok(),
        false => None,
    };
    let name = name.and_then(|keys| keys.items.into_iter().find(|key| key.id == id)).map(|key| key.name);
    Some(Starter { id, name })
}

#[derive(Template)]
#[template(path = "console/task.html")]
struct TaskPage {
    frame: Frame,
    task: Task,
    base: String,
    bot: Option<Named>,
    starter: Option<Starter>,
    /// The path of the page of the task that started this one, which can have been deleted.
    parent: Option<String>,
    instruction: Text,
    result: Text,
    message: Text,
    /// Whether the page shows the instruction or the result shortened.
    is_cut: bool,
    /// Absent if the API did not answer.
    steps: Option<Vec<StepView>>,
    /// Whether the page shows steps after the first ones.
    is_later: bool,
    next: Option<String>,
    may_cancel: bool,
    /// The path of the approvals, for keys that may read them.
    approvals: Option<String>,
}

/// The steps that a page shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Shown {
    #[serde(default)]
    after: String,
}

/// Shows a task.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(Shown { after }): Query<Shown>,
) -> Page {
    let task = tasks::read(&visit, &id).await?;
    let base = task.base(&visit);
    let (title, bot) = (task.title().to_string(), format!("/api/bots/{}", segment(&task.bot_id)));
    let (frame, bot, starter, parent, steps) = tokio::join!(
        visit.frame("tasks", &title),
        visit.client.get::<Named>(&bot),
        starter(&visit, &task),
        tasks::page_of(&visit, task.parent_task_id.as_deref()),
        steps(&visit, &task.id, &after),
    );
    let (steps, next) = match steps {
        Ok(Steps { items, next_after }) => {
            let next = next_after.map(|after| with_query(&base, &[("after", &after.to_string())]));
            (Some(views(items, &base)), next)
        }
        // A position that is not one of a step.
        Err(Failure::Refused(refusal)) if refusal.status == 422 => return Ok(page::see_other(&base)),
        Err(_) => (None, None),
    };
    let mut is_cut = false;
    let mut shown = |text: &str| {
        let (start, is_whole) = within(text, &mut { TEXT_MAX });
        is_cut |= !is_whole;
        start
    };
    let instruction = shown(&task.instruction);
    let result = shown(task.result.as_deref().unwrap_or_default());
    let message = shown(task.message.as_deref().unwrap_or_default());
    let page = TaskPage {
        may_cancel: visit.may("tasks_cancel") && !task.has_ended(),
        approvals: visit.may("approvals_list").then(|| visit.to("approvals")),
        is_later: !after.is_empty(),
        bot: bot.ok(),
        frame,
        task,
        base,
        starter,
        parent,
        instruction,
        result,
        message,
        is_cut,
        steps,
        next,
    };
    Ok(page::render(&page))
}

/// Returns what changes while a task runs, for the script of its page.
pub(in crate::gateway::console) async fn state(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let task = tasks::read(&visit, &id).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], task.state()).into_response())
}

/// What is exported of a task.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Exported {
    /// The position of a step. Without it, the task is exported.
    step: Option<u64>,
}

/// Exports a task, or one of its steps, as the API tells it.
pub(in crate::gateway::console) async fn export(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(Exported { step }): Query<Exported>,
) -> Page {
    let of_task = format!("/api/tasks/{}", segment(&id));
    let path = match step {
        None => of_task,
        Some(step) => {
            let after = step.saturating_sub(1).to_string();
            with_query(&format!("{of_task}/steps"), &[("after", &after), ("limit", "1")])
        }
    };
    let body = visit.client.stream(&path, &[]).await?.into_body();
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"task.json\""),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    Ok((headers, body).into_response())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(sequence: u64, fields: &Value) -> Step {
        let mut step = json!({ "sequence": sequence, "kind": "call", "started_at": "2026-01-02T03:04:05.000Z" });
        for (name, value) in fields.as_object().unwrap() {
            step[name] = value.clone();
        }
        serde_json::from_value(step).unwrap()
    }

    #[test]
    fn the_texts_of_steps_are_bounded_one_by_one_and_together() {
        let large = "<".repeat(100_000);
        let steps = (1..=20).map(|at| step(at, &json!({ "params": { "x": large }, "result": large }))).collect();
        let views = views(steps, "/t");
        let written = |text: &Text| text.raw().matches('<').count() * 5;
        let sizes: Vec<usize> = views.iter().flat_map(|view| [written(&view.params), written(&view.result)]).collect();
        assert!(sizes.iter().all(|size| *size <= TEXT_MAX), "{sizes:?}");
        assert!(sizes.iter().sum::<usize>() <= TEXTS_MAX, "{sizes:?}");
        assert!(sizes[0] > TEXT_MAX / 2 && views.iter().all(|view| view.is_cut), "{sizes:?}");
    }

    #[test]
    fn a_step_without_a_status_runs() {
        let views = views(
            vec![step(1, &json!({})), step(2, &json!({ "status": "scope_violation", "result": { "a": 1 } }))],
            "/t",
        );
        assert_eq!((views[0].state(), views[0].class(), views[0].is_cut), ("running", "running", false));
        assert_eq!((views[1].class(), views[1].result.raw()), ("denied", "{\n  \"a\": 1\n}"));
        assert_eq!(views[1].export, "/t/export?step=2");
        assert!(views[0].result.is_empty() && views[0].params.is_empty());
    }

    #[test]
    fn only_the_path_of_a_state_is_one() {
        assert!(is_state("/console/w/a/tasks/b/state"));
        assert!(!is_state("/console/w/a/tasks/b") && !is_state("/console/w/a/plugins/state"));
    }
}
