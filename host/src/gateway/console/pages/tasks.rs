//! The tasks of bots: the lists, starting a task, and cancelling one.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::form::Fields;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::bot::{self, Bot};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The statuses among which the filter chooses.
const STATUSES: [&str; 6] = ["queued", "running", "waiting", "completed", "failed", "cancelled"];
/// The number of characters of an instruction in a list.
const TITLE_CHARS_MAX: usize = 80;

/// A task as the API tells it.
#[derive(Deserialize)]
pub(super) struct Task {
    pub id: String,
    pub bot_id: String,
    #[serde(default)]
    pub session_id: Option<String>,
    #[serde(default)]
    pub parent_task_id: Option<String>,
    pub status: String,
    #[serde(default)]
    pub code: Option<Text>,
    #[serde(default)]
    pub message: Option<String>,
    pub instruction: String,
    #[serde(default)]
    pub result: Option<String>,
    pub steps: u64,
    pub usage: TokenUsage,
    #[serde(default)]
    pub started_by: Option<String>,
    pub created_at: UtcMillis,
    #[serde(default)]
    pub started_at: Option<UtcMillis>,
    #[serde(default)]
    pub ended_at: Option<UtcMillis>,
}

/// The tokens of rounds with models.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct TokenUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl TokenUsage {
    pub(super) fn total(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

impl Task {
    /// Returns the first line of the instruction, or the id of a task whose instruction cannot be read.
    pub(super) fn title(&self) -> Text {
        title(&self.instruction, &self.id)
    }

    /// Returns the class of the status in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        class_of(&self.status)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Returns what changes while the task runs, as one word for the script of its page.
    pub(super) fn state(&self) -> String {
        format!("{} {}", self.status, self.steps)
    }

    /// Returns the path of the page of the task.
    pub(super) fn base(&self, visit: &Visit) -> String {
        visit.to(&format!("tasks/{}", segment(&self.id)))
    }
}

/// Returns the first line of an instruction, or `id` if it has none.
pub(super) fn title(instruction: &str, id: &str) -> Text {
    let first = instruction.lines().map(str::trim).find(|line| !line.is_empty());
    Text::from(first.unwrap_or(id)).start(TITLE_CHARS_MAX)
}

/// Returns the class of a task's status in the style sheet.
pub(super) fn class_of(status: &str) -> &'static str {
    match status {
        "completed" => "success",
        "failed" => "error",
        "waiting" => "waiting",
        "running" => "running",
        _ => "stopped",
    }
}

/// Reads a task.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Task, Failure> {
    visit.client.get::<Task>(&format!("/api/tasks/{}", segment(id))).await
}

/// Returns the path of the page of a task that exists. The id of a call's task can be one that its caller made up.
pub(super) async fn page_of(visit: &Visit, id: Option<&str>) -> Option<String> {
    let id = id.filter(|_| visit.may("tasks_show"))?;
    Some(read(visit, id).await.ok()?.base(visit))
}

/// What a list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    session_id: String,
    #[serde(default)]
    schedule_id: String,
    #[serde(default)]
    cursor: String,
}

impl Filter {
    /// Returns the filter for the tasks that a schedule has started.
    fn of_schedule(id: &str) -> Filter {
        Filter { schedule_id: id.to_owned(), ..Filter::default() }
    }

    fn parameters(&self) -> [(&'static str, &str); 4] {
        [
            ("bot_id", &self.bot_id),
            ("status", &self.status),
            ("session_id", &self.session_id),
            ("schedule_id", &self.schedule_id),
        ]
    }

    pub(super) fn is_set(&self) -> bool {
        self.parameters().iter().any(|(_, value)| !value.is_empty())
    }
}

/// A page of tasks.
pub(super) struct Tasks {
    pub items: Vec<Task>,
    bots: Vec<Named>,
    pub filter: Filter,
    statuses: [&'static str; 6],
    /// The path of the list.
    page: String,
    /// The path of the form that starts a task, for keys that may start one.
    start: Option<String>,
}

impl Tasks {
    pub(super) fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }
}

/// Returns the name of a bot. A bot that is not among those read is shown by its id.
pub(super) fn name_of(bots: &[Named], id: &str) -> Text {
    bots.iter().find(|bot| bot.id == id).map_or_else(|| id.into(), |bot| bot.name.clone())
}

/// Returns the names of the bots.
pub(super) async fn bots(visit: &Visit) -> Vec<Named> {
    #[derive(Deserialize)]
    struct Bots {
        items: Vec<Named>,
    }
    visit.client.get::<Bots>("/api/bots?limit=200").await.map(|bots| bots.items).unwrap_or_default()
}

/// Reads the tasks of a schedule. Returns them with the path of the next page.
pub(super) async fn of_schedule(visit: &Visit, id: &str) -> Result<(Tasks, Option<String>), Failure> {
    let (mut list, next) = tasks(visit, Filter::of_schedule(id), visit.to("tasks")).await?;
    // A schedule without tasks is not a filter that matches none.
    list.filter.schedule_id.clear();
    Ok((list, next))
}

/// Reads the tasks that a filter selects, for the list with this path. Returns them with the path of the next page.
async fn tasks(visit: &Visit, filter: Filter, page: String) -> Result<(Tasks, Option<String>), Failure> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Task>,
        next_cursor: Option<String>,
    }
    let mut parameters = filter.parameters().to_vec();
    parameters.extend([("limit", "50"), ("cursor", filter.cursor.as_str())]);
    let path = with_query("/api/tasks", &parameters);
    let (list, bots) = tokio::join!(visit.client.get::<List>(&path), bots(visit));
    let List { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| {
        let mut parameters = filter.parameters().to_vec();
        parameters.push(("cursor", &cursor));
        with_query(&page, &parameters)
    });
    let start = visit.may("tasks_start").then(|| with_query(&visit.to("tasks/new"), &[("bot_id", &filter.bot_id)]));
    Ok((Tasks { items, bots, filter, statuses: STATUSES, page, start }, next))
}

#[derive(Template)]
#[template(path = "console/tasks.html")]
struct ListPage {
    frame: Frame,
    list: Tasks,
    next: Option<String>,
}

#[derive(Template)]
#[template(path = "console/bot_tasks.html")]
struct TabPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    list: Tasks,
    next: Option<String>,
}

/// Shows the tasks of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    let (frame, list) = tokio::join!(
        visit.frame("tasks", visit.words().text("tasks.title")),
        tasks(&visit, filter, visit.to("tasks")),
    );
    let (list, next) = list?;
    Ok(page::render(&ListPage { frame, list, next }))
}

/// Shows the tasks of a bot.
pub(in crate::gateway::console) async fn of_bot(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(filter): Query<Filter>,
) -> Page {
    let bot = bot::read_head(&visit, &id).await?;
    let filter = Filter { bot_id: bot.id.clone(), session_id: String::new(), schedule_id: String::new(), ..filter };
    let title = bot.name.to_string();
    let page = format!("{}/tasks", bot.base);
    let (frame, list) = tokio::join!(visit.frame("bots", &title), tasks(&visit, filter, page));
    let (mut list, next) = list?;
    // A bot without tasks is not a filter that matches none.
    list.filter.bot_id.clear();
    Ok(page::render(&TabPage { frame, bot, tab: "tasks", list, next }))
}

/// The limits of a task: the name of the field of the API, and whether it is a whole number.
const LIMITS: [(&str, bool); 4] = [("steps", true), ("wall_s", true), ("tokens", true), ("credits", false)];

/// A limit in the form, as it was typed.
struct Limit {
    name: &'static str,
    typed: Text,
}

#[derive(Template)]
#[template(path = "console/task_new.html")]
struct NewPage {
    frame: Frame,
    bots: Vec<Named>,
    bot_id: String,
    instruction: Text,
    limits: Vec<Limit>,
    errors: Vec<(Text, Text)>,
    action: String,
    back: String,
}

/// The bot of a new task.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Start {
    #[serde(default)]
    bot_id: String,
}

/// Shows the form of a new task.
pub(in crate::gateway::console) async fn new(visit: Visit, Query(start): Query<Start>) -> Page {
    if !visit.may("tasks_start") {
        return Err(Failure::forbidden());
    }
    show_form(&visit, start.bot_id, Vec::new(), StatusCode::OK).await
}

async fn show_form(visit: &Visit, bot_id: String, errors: Vec<(Text, Text)>, status: StatusCode) -> Page {
    let (frame, mut bots) = tokio::join!(visit.frame("tasks", visit.words().text("tasks.start")), bots(visit));
    if !bot_id.is_empty() && !bots.iter().any(|bot| bot.id == bot_id) {
        bots.push(visit.client.get::<Named>(&format!("/api/bots/{}", segment(&bot_id))).await?);
    }
    let fields = visit.fields();
    let limit = |(name, _): (&'static str, bool)| Limit { name, typed: fields.value(&format!("limit.{name}")).into() };
    let page = NewPage {
        frame,
        bots,
        bot_id,
        instruction: fields.value("instruction").into(),
        limits: LIMITS.into_iter().map(limit).collect(),
        errors,
        action: visit.to("tasks/new"),
        back: visit.to("tasks"),
    };
    Ok(page::render_as(status, &page))
}

/// Reads the limits of a task from a form, or returns the place of each limit that is not a number with the key of the
/// words that say so.
fn limits(fields: &Fields) -> Result<Map<String, Value>, Vec<(String, &'static str)>> {
    let (mut limits, mut faults) = (Map::new(), Vec::new());
    for (name, is_whole) in LIMITS {
        let place = format!("limit.{name}");
        let typed = fields.value(&place).trim();
        if typed.is_empty() {
            continue;
        }
        let number =
            if is_whole { typed.parse::<u64>().ok().map(Value::from) } else { decimal(typed).map(Value::from) };
        match number {
            Some(number) => {
                limits.insert(name.to_owned(), number);
            }
            None => faults.push((place, if is_whole { "form.not_integer" } else { "form.not_number" })),
        }
    }
    if faults.is_empty() { Ok(limits) } else { Err(faults) }
}

/// Reads a number with decimals. JSON has no number that is infinite.
pub(super) fn decimal(typed: &str) -> Option<f64> {
    typed.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// Starts a task.
pub(in crate::gateway::console) async fn start(visit: Visit) -> Page {
    #[derive(Deserialize)]
    struct Started {
        id: String,
    }
    let (fields, words) = (visit.fields(), visit.words());
    let bot = fields.value("bot_id").to_owned();
    let mut errors: Vec<(Text, Text)> = Vec::new();
    if bot.is_empty() {
        errors.push(("bot_id".into(), words.text("tasks.choose_bot").into()));
    }
    let limits = limits(fields).unwrap_or_else(|faults| {
        errors.extend(faults.into_iter().map(|(place, key)| (place.into(), words.text(key).into())));
        Map::new()
    });
    if !errors.is_empty() {
        return show_form(&visit, bot, errors, StatusCode::UNPROCESSABLE_ENTITY).await;
    }
    let body = json!({ "instruction": fields.value("instruction").replace("\r\n", "\n"), "limits": limits });
    let path = format!("/api/bots/{}/tasks", segment(&bot));
    match visit.client.send::<Started>(Method::POST, &path, &body, visit.conditions()).await {
        Ok(Started { id }) => {
            let page = visit.to(&format!("tasks/{}", segment(&id)));
            Ok(visit.done(words.text("tasks.started").to_owned(), &page).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 429) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            show_form(&visit, bot, refusal.told(), status).await
        }
        Err(failure) => Err(failure),
    }
}

#[derive(Template)]
#[template(path = "console/task_cancel.html")]
struct CancelPage {
    frame: Frame,
    task: Task,
    base: String,
    action: String,
}

/// Asks before a task is cancelled.
pub(in crate::gateway::console) async fn confirm_cancellation(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
) -> Page {
    let task = read(&visit, &id).await?;
    let base = task.base(&visit);
    if task.has_ended() {
        return Ok(visit.refused(visit.words().text("task.has_ended").to_owned(), &base).await);
    }
    let frame = visit.frame("tasks", visit.words().text("task.cancel")).await;
    let action = format!("{base}/cancel");
    Ok(page::render(&CancelPage { frame, task, base, action }))
}

/// Cancels a task.
pub(in crate::gateway::console) async fn cancel(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let path = format!("/api/tasks/{}", segment(&id));
    visit.client.act(Method::DELETE, &path, None, Conditions::default()).await?;
    let page = visit.to(&format!("tasks/{}", segment(&id)));
    Ok(visit.done(visit.words().text("task.is_cancelled").to_owned(), &page).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| (format!("limit.{name}"), (*value).to_owned())).collect()
    }

    #[test]
    fn a_list_names_a_task_by_the_first_line_of_its_instruction() {
        assert_eq!(title("\n  Look at it. \nThen stop.", "id").raw(), "Look at it.");
        assert_eq!(title(" \n", "id").raw(), "id");
        assert_eq!(title(&"ä".repeat(81), "id").raw(), format!("{}…", "ä".repeat(80)));
    }

    #[test]
    fn limits_are_numbers_and_empty_ones_are_left_out() {
        let read = limits(&typed(&[("steps", " 5 "), ("credits", "0.5"), ("tokens", "")])).unwrap();
        assert_eq!(Value::Object(read), json!({ "steps": 5, "credits": 0.5 }));
        for (name, value) in
            [("steps", "1.5"), ("wall_s", "-1"), ("tokens", "many"), ("credits", "NaN"), ("credits", "inf")]
        {
            let faults = limits(&typed(&[(name, value)])).unwrap_err();
            assert_eq!(faults[0].0, format!("limit.{name}"), "{value}");
        }
    }

    #[test]
    fn each_status_has_words() {
        use crate::gateway::console::words::Words;
        use monstrum_core::language::UiLanguage;
        for status in STATUSES {
            assert!(Words::of(UiLanguage::Chinese).known(&format!("task_status.{status}")).is_some(), "{status}");
        }
    }
}
