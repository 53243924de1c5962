//! The schedules: the list, one schedule with its next times and its tasks, firing it, switching it off and deleting it.

use askama::Template;
use axum::extract::{Path, Query};
use http::Method;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, Versioned, segment, with_query};
use crate::gateway::console::narrow::Narrow;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::pages::tasks::{self, Tasks, bots, name_of};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The number of times that the page of a schedule shows.
const TIMES: usize = 5;

/// A schedule as the API tells it.
#[derive(Clone, Deserialize)]
pub(super) struct Schedule {
    pub id: String,
    pub name: Text,
    pub bot_id: String,
    #[serde(default)]
    pub instruction: Text,
    #[serde(default)]
    pub workflow_id: Option<String>,
    /// The input of the runs.
    #[serde(default)]
    pub input: Option<Value>,
    #[serde(default)]
    pub cron: Option<Text>,
    #[serde(default)]
    pub every_s: Option<u32>,
    #[serde(default)]
    pub at: Option<UtcMillis>,
    pub timezone: Text,
    pub overlap: String,
    pub missed: String,
    pub jitter_s: u32,
    #[serde(default)]
    pub narrow: Option<Narrow>,
    enabled: bool,
    next_at: Option<UtcMillis>,
    #[serde(default)]
    last: Option<Firing>,
    failures: u32,
    made_by: MadeBy,
}

#[derive(Clone, Deserialize)]
struct Firing {
    planned_at: UtcMillis,
    #[serde(default)]
    task_id: Option<String>,
    #[serde(default)]
    run_id: Option<String>,
    status: String,
}

impl Firing {
    /// Returns the class of the status in the style sheet.
    fn class(&self) -> &'static str {
        match self.status.as_str() {
            "completed" => "success",
            "failed" => "error",
            "running" => "running",
            "queued" => "waiting",
            _ => "stopped",
        }
    }
}

#[derive(Clone, Deserialize)]
struct MadeBy {
    id: String,
}

impl Schedule {
    /// Returns the path of the page of the schedule.
    pub(super) fn base(&self, visit: &Visit) -> String {
        visit.to(&format!("schedules/{}", segment(&self.id)))
    }

    /// Returns whether failures have paused the schedule. A person who switches a schedule off sets no failures.
    fn is_paused(&self) -> bool {
        !self.enabled && self.failures >= 5
    }

    /// Returns the input of the runs as a person reads it.
    pub(super) fn input(&self) -> Text {
        let input = self.input.as_ref().map(|input| serde_json::to_string_pretty(input).unwrap_or_default());
        input.unwrap_or_default().into()
    }

    /// Returns whether the schedule fires, as a word of the group `schedule_state`.
    fn state(&self) -> &'static str {
        match (self.enabled, self.next_at) {
            (true, Some(_)) => "on",
            (true, None) => "over",
            (false, _) if self.is_paused() => "paused",
            (false, _) => "off",
        }
    }

    /// Returns the class of the state in the style sheet.
    fn class(&self) -> &'static str {
        match self.state() {
            "on" => "success",
            "paused" => "error",
            _ => "stopped",
        }
    }

    /// Returns the next times of an interval or of a single time. The times of a pattern are a question for the API.
    fn times(&self) -> Vec<UtcMillis> {
        let Some(next) = self.next_at else { return Vec::new() };
        match self.every_s {
            Some(seconds) => {
                let after = |last: &UtcMillis| Some(last.plus_ms(i64::from(seconds) * 1000));
                std::iter::successors(Some(next), after).take(TIMES).collect()
            }
            None => vec![next],
        }
    }
}

/// Returns an interval as the largest unit that it is a multiple of, and their number.
pub(super) fn interval(seconds: u32) -> (&'static str, u32) {
    let units = [("days", 86_400), ("hours", 3600), ("minutes", 60)];
    let unit = units.into_iter().find(|(_, unit)| seconds.is_multiple_of(*unit));
    unit.map_or(("seconds", seconds), |(name, unit)| (name, seconds / unit))
}

/// Returns the key of the words for an interval, and its number.
fn interval_words(seconds: u32) -> (String, u32) {
    let (unit, number) = interval(seconds);
    (format!("every.{unit}"), number)
}

/// Returns the path of a schedule in the API.
pub(super) fn path_of(id: &str) -> String {
    format!("/api/schedules/{}", segment(id))
}

/// Reads a schedule with its version.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Versioned<Schedule>, Failure> {
    visit.client.get_versioned::<Schedule>(&path_of(id)).await
}

/// The next times of a schedule as the API tells them.
#[derive(Deserialize)]
struct Times {
    next: Vec<UtcMillis>,
}

/// Asks for the next times of a pattern or an interval that need not be saved.
pub(super) async fn preview(visit: &Visit, body: &Value) -> Result<Vec<UtcMillis>, Failure> {
    let times = visit.client.send::<Times>(Method::POST, "/api/schedules/preview", body, Conditions::default()).await?;
    Ok(times.next)
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/schedules.html")]
struct ListPage {
    frame: Frame,
    schedules: Vec<Schedule>,
    bots: Vec<Named>,
    filter: Filter,
    list: String,
    next: Option<String>,
    /// The path of the form of a new schedule, for keys that may create one.
    new: Option<String>,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }

    fn when(&self, schedule: &Schedule) -> String {
        when(&self.frame, schedule)
    }
}

/// Returns when a schedule fires, in words.
fn when(frame: &Frame, schedule: &Schedule) -> String {
    match (&schedule.every_s, &schedule.at) {
        (Some(seconds), _) => {
            let (key, number) = interval_words(*seconds);
            frame.t1(&key, number)
        }
        (None, Some(at)) => frame.t1("schedule.once_at", at),
        (None, None) => schedule.cron.as_ref().map(Text::to_string).unwrap_or_default(),
    }
}

/// Shows the schedules of the workspace, or of a bot.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Schedule>,
        next_cursor: Option<String>,
    }
    let parameters = [("bot_id", filter.bot_id.as_str()), ("limit", "50"), ("cursor", &filter.cursor)];
    let path = with_query("/api/schedules", &parameters);
    let (frame, list, bots) = tokio::join!(
        visit.frame("schedules", visit.words().text("schedules.title")),
        visit.client.get::<List>(&path),
        bots(&visit),
    );
    let List { items, next_cursor } = list?;
    let list = visit.to("schedules");
    let next = next_cursor.map(|cursor| with_query(&list, &[("bot_id", &filter.bot_id), ("cursor", &cursor)]));
    let new = with_query(&visit.to("schedules/new"), &[("bot_id", &filter.bot_id)]);
    let new = visit.may("schedules_create").then_some(new);
    Ok(page::render(&ListPage { frame, schedules: items, bots, filter, list, next, new }))
}

#[derive(Template)]
#[template(path = "console/schedule.html")]
struct SchedulePage {
    frame: Frame,
    schedule: Schedule,
    version: String,
    base: String,
    bot: Option<Named>,
    /// The next times. Absent if the API did not tell them.
    times: Option<Vec<UtcMillis>>,
    /// The tasks that the schedule has started. Absent if the API did not tell them.
    tasks: Option<Tasks>,
    next: Option<String>,
    may_change: bool,
    may_fire: bool,
    may_delete: bool,
}

impl SchedulePage {
    fn when(&self) -> String {
        when(&self.frame, &self.schedule)
    }
}

/// Returns the next times of a schedule, which are none if it does not fire.
async fn times(visit: &Visit, schedule: &Schedule) -> Option<Vec<UtcMillis>> {
    match &schedule.cron {
        Some(cron) if schedule.next_at.is_some() && visit.may("schedules_preview") => {
            let body = json!({ "cron": cron.raw(), "timezone": schedule.timezone.raw() });
            preview(visit, &body).await.ok()
        }
        _ => Some(schedule.times()),
    }
}

/// Shows a schedule.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let Versioned { value: schedule, version } = read(&visit, &id).await?;
    let base = schedule.base(&visit);
    let (title, bot) = (schedule.name.to_string(), format!("/api/bots/{}", segment(&schedule.bot_id)));
    let (frame, bot, times, tasks) = tokio::join!(
        visit.frame("schedules", &title),
        visit.client.get::<Named>(&bot),
        times(&visit, &schedule),
        tasks::of_schedule(&visit, &schedule.id),
    );
    let (tasks, next) = tasks.map_or((None, None), |(tasks, next)| (Some(tasks), next));
    let page = SchedulePage {
        may_change: visit.may("schedules_update"),
        may_fire: visit.may("schedules_fire"),
        may_delete: visit.may("schedules_delete"),
        bot: bot.ok(),
        frame,
        schedule,
        version,
        base,
        times,
        tasks,
        next,
    };
    Ok(page::render(&page))
}

/// Starts the task or the run of a schedule now, and shows it.
pub(in crate::gateway::console) async fn fire(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Fired {
        id: String,
        #[serde(default)]
        workflow_id: Option<String>,
    }
    let path = format!("{}/fire", path_of(&id));
    match visit.client.send::<Fired>(Method::POST, &path, &json!({}), visit.conditions()).await {
        Ok(Fired { id, workflow_id }) => {
            let kind = if workflow_id.is_some() { "runs" } else { "tasks" };
            let page = visit.to(&format!("{kind}/{}", segment(&id)));
            Ok(visit.done(visit.words().text("schedule.fired").to_owned(), &page).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 429) => {
            Ok(visit.refused(refusal.detail, &visit.to(&format!("schedules/{}", segment(&id)))).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Switches a schedule on or off. Switching a paused schedule on forgets its failures.
pub(in crate::gateway::console) async fn switch(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let is_on = visit.fields().value("enabled") == "true";
    let back = visit.to(&format!("schedules/{}", segment(&id)));
    let change = json!({ "enabled": is_on });
    match visit.client.act(Method::PATCH, &path_of(&id), Some(&change), visit.conditions()).await {
        Ok(()) => {
            let key = if is_on { "schedule.is_on" } else { "schedule.is_off" };
            Ok(visit.done(visit.words().text(key).to_owned(), &back).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            // A single time that has passed does not come again.
            let told = refusal.errors.first().map_or(refusal.detail.clone(), |error| error.message.clone());
            Ok(visit.refused(told, &back).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Asks before a schedule is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    if !visit.may("schedules_delete") {
        return Err(Failure::forbidden());
    }
    let Versioned { value: schedule, version } = read(&visit, &id).await?;
    let (words, back) = (visit.words(), schedule.base(&visit));
    let frame = visit.frame("schedules", words.text("schedule.delete")).await;
    let text = words.filled("schedule.delete_text", &[&schedule.name]);
    // Nothing depends on a schedule, so that its name need not be typed.
    let (name, action) = (Text::default(), format!("{back}/delete"));
    Ok(page::render(&ConfirmPage { frame, name, text, action, version, back }))
}

/// Deletes a schedule.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    visit.client.act(Method::DELETE, &path_of(&id), None, visit.conditions()).await?;
    Ok(visit.done(visit.words().text("schedule.deleted").to_owned(), &visit.to("schedules")).await)
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;

    use super::*;
    use crate::gateway::console::words::Words;

    fn schedule(fields: &Value) -> Schedule {
        let mut schedule = json!({
            "id": "s", "name": "n", "bot_id": "b", "instruction": "i", "timezone": "UTC", "overlap": "skip",
            "missed": "once", "jitter_s": 0, "enabled": true, "next_at": null, "failures": 0,
            "made_by": { "kind": "key", "id": "k" },
        });
        for (name, value) in fields.as_object().unwrap() {
            schedule[name] = value.clone();
        }
        serde_json::from_value(schedule).unwrap()
    }

    #[test]
    fn the_state_of_a_schedule_has_a_word() {
        let next = "2026-01-02T03:04:05.000Z";
        for (fields, state) in [
            (json!({ "next_at": next }), "on"),
            (json!({ "at": next }), "over"),
            (json!({ "enabled": false }), "off"),
            (json!({ "enabled": false, "failures": 4 }), "off"),
            (json!({ "enabled": false, "failures": 5 }), "paused"),
        ] {
            assert_eq!(schedule(&fields).state(), state, "{fields}");
            for language in [UiLanguage::English, UiLanguage::Chinese] {
                assert!(Words::of(language).known(&format!("schedule_state.{state}")).is_some(), "{state}");
            }
        }
    }

    #[test]
    fn the_times_of_an_interval_follow_its_next_time() {
        let next = "2026-01-02T03:04:05.000Z";
        let shown = |fields: &Value| schedule(fields).times().iter().map(UtcMillis::to_string).collect::<Vec<_>>();
        let every = shown(&json!({ "every_s": 3600, "next_at": next }));
        assert_eq!((every.len(), every[0].as_str(), every[4].as_str()), (5, next, "2026-01-02T07:04:05.000Z"));
        assert_eq!(shown(&json!({ "at": next, "next_at": next })), [next]);
        assert_eq!(shown(&json!({ "every_s": 3600, "enabled": false })), Vec::<String>::new());
    }

    #[test]
    fn an_interval_is_told_in_its_largest_unit() {
        for (seconds, told) in [
            (60, ("minutes", 1)),
            (90, ("seconds", 90)),
            (5400, ("minutes", 90)),
            (7200, ("hours", 2)),
            (86_400, ("days", 1)),
        ] {
            assert_eq!(interval(seconds), told);
            let (key, _) = interval_words(seconds);
            assert!(Words::of(UiLanguage::Chinese).known(&key).is_some(), "{key}");
        }
    }
}
