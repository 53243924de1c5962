//! The forms of a new and of an existing schedule. *Preview* shows the next times and saves nothing.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Failure, Versioned, segment};
use crate::gateway::console::fields::of_one_field;
use crate::gateway::console::form::Fields;
use crate::gateway::console::narrow::{Fault, NarrowFields};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::schedules::{self, Schedule, interval};
use crate::gateway::console::pages::tasks::bots;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The units of an interval, each with its seconds.
const UNITS: [(&str, u32); 4] = [("minutes", 60), ("hours", 3600), ("days", 86_400), ("seconds", 1)];
/// The time zone of a form without one.
const UTC: &str = "UTC";
const OVERLAPS: [&str; 3] = ["skip", "queue", "allow"];
const MISSED: [&str; 2] = ["once", "skip"];

/// The fields of the form, as they were typed.
#[derive(Default)]
struct Typed {
    name: Text,
    bot_id: String,
    instruction: Text,
    /// The workflow whose runs the schedule starts instead of tasks; empty for none.
    workflow_id: String,
    input: Text,
    /// `cron`, `every` or `at`.
    when: String,
    cron: Text,
    every: Text,
    unit: String,
    at: Text,
    timezone: Text,
    overlap: String,
    missed: String,
    jitter_s: Text,
    narrow: NarrowFields,
}

impl Typed {
    /// Returns the fields of an empty form.
    fn blank(Start { bot_id, workflow_id }: Start) -> Typed {
        let input = if workflow_id.is_empty() { Text::default() } else { "{}".into() };
        Typed {
            bot_id,
            workflow_id,
            input,
            when: "cron".to_owned(),
            unit: "hours".to_owned(),
            timezone: UTC.into(),
            ..Typed::default()
        }
    }

    /// Returns the fields of a form that was sent.
    fn of(fields: &Fields) -> Typed {
        let text = |name: &str| Text::from(fields.value(name).trim());
        Typed {
            name: text("name"),
            bot_id: fields.value("bot_id").to_owned(),
            instruction: fields.value("instruction").replace("\r\n", "\n").into(),
            workflow_id: fields.value("workflow_id").to_owned(),
            input: text("input"),
            when: fields.value("when").to_owned(),
            cron: text("cron"),
            every: text("every"),
            unit: fields.value("unit").to_owned(),
            at: text("at"),
            timezone: text("timezone"),
            overlap: fields.value("overlap").to_owned(),
            missed: fields.value("missed").to_owned(),
            jitter_s: text("jitter_s"),
            narrow: NarrowFields::of(fields),
        }
    }

    /// Returns the fields of a saved schedule.
    fn saved(schedule: &Schedule) -> Typed {
        let (unit, every) = schedule.every_s.map_or(("hours", None), |seconds| {
            let (unit, number) = interval(seconds);
            (unit, Some(number))
        });
        let when = match (&schedule.every_s, &schedule.at) {
            (Some(_), _) => "every",
            (None, Some(_)) => "at",
            (None, None) => "cron",
        };
        Typed {
            name: schedule.name.clone(),
            bot_id: schedule.bot_id.clone(),
            instruction: schedule.instruction.clone(),
            workflow_id: schedule.workflow_id.clone().unwrap_or_default(),
            input: schedule.input(),
            when: when.to_owned(),
            cron: schedule.cron.clone().unwrap_or_default(),
            every: every.map(|number| number.to_string().into()).unwrap_or_default(),
            unit: unit.to_owned(),
            at: schedule.at.map(|at| at.to_string().into()).unwrap_or_default(),
            timezone: schedule.timezone.clone(),
            overlap: schedule.overlap.clone(),
            missed: schedule.missed.clone(),
            jitter_s: schedule.jitter_s.to_string().into(),
            narrow: NarrowFields::saved(schedule.narrow.as_ref()),
        }
    }

    /// Returns when the schedule fires, as the API names it. The fields of the other choices are left out.
    fn times(&self, faults: &mut Vec<Fault>) -> Map<String, Value> {
        let mut times = Map::new();
        match self.when.as_str() {
            "every" => {
                let unit = UNITS.iter().find(|(name, _)| *name == self.unit).map_or(60, |(_, seconds)| *seconds);
                match self.every.raw().parse::<u32>().ok().and_then(|number| number.checked_mul(unit)) {
                    Some(seconds) => {
                        times.insert("every_s".to_owned(), seconds.into());
                    }
                    None => faults.push(("/every_s", "form.not_integer")),
                }
            }
            "at" => match self.at.raw().parse::<UtcMillis>() {
                Ok(at) => {
                    times.insert("at".to_owned(), json!(at));
                }
                Err(_) => faults.push(("/at", "schedule.not_time")),
            },
            _ => {
                times.insert("cron".to_owned(), self.cron.raw().into());
            }
        }
        let timezone = if self.timezone.is_empty() { UTC } else { self.timezone.raw() };
        times.insert("timezone".to_owned(), timezone.into());
        times
    }

    /// Returns the schedule as the API reads it, without its bot.
    fn body(&self, faults: &mut Vec<Fault>) -> Map<String, Value> {
        let mut body = self.times(faults);
        let jitter_s = match self.jitter_s.raw() {
            "" => Some(0),
            typed => typed.parse::<u32>().ok(),
        };
        if jitter_s.is_none() {
            faults.push(("/jitter_s", "form.not_integer"));
        }
        body.insert("name".to_owned(), self.name.raw().into());
        if self.workflow_id.is_empty() {
            body.insert("instruction".to_owned(), self.instruction.raw().into());
        } else {
            match serde_json::from_str::<Value>(self.input.raw()) {
                Ok(input) => drop(body.insert("input".to_owned(), input)),
                Err(_) => faults.push(("/input", "form.not_json")),
            }
        }
        body.insert("overlap".to_owned(), self.overlap.as_str().into());
        body.insert("missed".to_owned(), self.missed.as_str().into());
        body.insert("jitter_s".to_owned(), jitter_s.into());
        body.insert("narrow".to_owned(), self.narrow.value(faults));
        body
    }
}

/// Returns the members of `after` that differ from those of `before`. Times that are saved again would be counted anew.
fn changes(before: &Map<String, Value>, after: Map<String, Value>) -> Map<String, Value> {
    after.into_iter().filter(|(name, value)| before.get(name) != Some(value)).collect()
}

#[derive(Template)]
#[template(path = "console/schedule_form.html")]
struct FormPage {
    frame: Frame,
    bots: Vec<Named>,
    typed: Typed,
    units: [(&'static str, u32); 4],
    overlaps: [&'static str; 3],
    missed: [&'static str; 2],
    errors: Vec<(Text, Text)>,
    /// The next times of what was typed, if a person asked for them.
    times: Option<Vec<UtcMillis>>,
    action: String,
    version: String,
    is_new: bool,
    back: String,
}

async fn blank(visit: &Visit, typed: Typed) -> Result<FormPage, Failure> {
    if !visit.may("schedules_create") {
        return Err(Failure::forbidden());
    }
    let (frame, mut bots) = tokio::join!(visit.frame("schedules", visit.words().text("schedules.new")), bots(visit));
    if !typed.bot_id.is_empty() && !bots.iter().any(|bot| bot.id == typed.bot_id) {
        bots.push(visit.client.get::<Named>(&format!("/api/bots/{}", segment(&typed.bot_id))).await?);
    }
    Ok(FormPage {
        frame,
        bots,
        typed,
        units: UNITS,
        overlaps: OVERLAPS,
        missed: MISSED,
        errors: Vec::new(),
        times: None,
        action: visit.to("schedules/new"),
        version: String::new(),
        is_new: true,
        back: visit.to("schedules"),
    })
}

/// Reads a schedule, and returns it with its form.
async fn existing(visit: &Visit, id: &str) -> Result<(Schedule, FormPage), Failure> {
    if !visit.may("schedules_update") {
        return Err(Failure::forbidden());
    }
    let Versioned { value: schedule, version } = schedules::read(visit, id).await?;
    let back = schedule.base(visit);
    let page = FormPage {
        frame: visit.frame("schedules", &schedule.name.to_string()).await,
        bots: Vec::new(),
        typed: Typed::saved(&schedule),
        units: UNITS,
        overlaps: OVERLAPS,
        missed: MISSED,
        errors: Vec::new(),
        times: None,
        action: format!("{back}/edit"),
        version,
        is_new: false,
        back,
    };
    Ok((schedule, page))
}

/// The bot or the workflow of a new schedule.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Start {
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    workflow_id: String,
}

/// Shows the form of a new schedule.
pub(in crate::gateway::console) async fn new(visit: Visit, Query(start): Query<Start>) -> Page {
    Ok(page::render(&blank(&visit, Typed::blank(start)).await?))
}

/// Shows the form of a schedule.
pub(in crate::gateway::console) async fn edit(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?.1))
}

/// Creates a schedule.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    #[derive(Deserialize)]
    struct Created {
        id: String,
    }
    let page = blank(&visit, Typed::of(visit.fields())).await?;
    let (mut page, mut body) = match asked(&visit, page).await {
        Ok(asked) => asked,
        Err(answer) => return Ok(answer),
    };
    let workflow = page.typed.workflow_id.clone();
    if workflow.is_empty() && page.typed.bot_id.is_empty() {
        page.errors.push(("bot_id".into(), visit.words().text("tasks.choose_bot").into()));
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    match workflow.as_str() {
        "" => body.insert("bot_id".to_owned(), page.typed.bot_id.as_str().into()),
        workflow => body.insert("workflow_id".to_owned(), workflow.into()),
    };
    match visit.client.send::<Created>(Method::POST, "/api/schedules", &body.into(), visit.conditions()).await {
        Ok(Created { id }) => {
            let created = visit.to(&format!("schedules/{}", segment(&id)));
            Ok(visit.done(visit.words().text("schedule.created").to_owned(), &created).await)
        }
        Err(failure) => refused(page, failure),
    }
}

/// Saves what differs of a schedule.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let (schedule, mut page) = existing(&visit, &id).await?;
    // A form that is shown again still changes only the version that its person saw.
    let current = std::mem::replace(&mut page.version, visit.shown_version());
    let was = Typed::saved(&schedule).body(&mut Vec::new());
    let workflow_id = schedule.workflow_id.unwrap_or_default();
    page.typed = Typed { bot_id: schedule.bot_id, workflow_id, ..Typed::of(visit.fields()) };
    let (mut page, body) = match asked(&visit, page).await {
        Ok(asked) => asked,
        Err(answer) => return Ok(answer),
    };
    let change = changes(&was, body).into();
    match visit.client.act(Method::PATCH, &schedules::path_of(&id), Some(&change), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.back).await),
        Err(Failure::Refused(refusal)) if refusal.status == 412 => {
            page.version = current;
            page.errors = vec![(Text::default(), visit.words().text("form.version_changed").into())];
            Ok(page::render_as(StatusCode::PRECONDITION_FAILED, &page))
        }
        Err(failure) => refused(page, failure),
    }
}

/// Returns what a form asks the API to save. The error is the page to show instead: the form with its errors, or with the
/// next times.
async fn asked(visit: &Visit, mut page: FormPage) -> Result<(FormPage, Map<String, Value>), axum::response::Response> {
    let (mut faults, words) = (Vec::new(), visit.words());
    let body = page.typed.body(&mut faults);
    page.errors = faults.into_iter().map(|(place, key)| (place.into(), words.text(key).into())).collect();
    if !page.errors.is_empty() {
        return Err(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    if !visit.fields().has("preview") {
        return Ok((page, body));
    }
    if let Some(at) = body.get("at").and_then(|at| serde_json::from_value(at.clone()).ok()) {
        page.times = Some(vec![at]);
        return Err(page::render(&page));
    }
    let times: Map<String, Value> =
        body.into_iter().filter(|(name, _)| ["cron", "every_s", "timezone"].contains(&name.as_str())).collect();
    match schedules::preview(visit, &times.into()).await {
        Ok(times) => {
            page.times = Some(times);
            Err(page::render(&page))
        }
        Err(Failure::Refused(refusal)) if refusal.status == 422 => {
            page.errors = refusal.told();
            Err(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page))
        }
        Err(failure) => Err(axum::response::IntoResponse::into_response(failure)),
    }
}

/// Shows a form that the API has refused.
fn refused(mut page: FormPage, failure: Failure) -> Page {
    match failure {
        Failure::Refused(refusal) if matches!(refusal.status, 409 | 422) => {
            page.errors = of_one_field(refusal.told(), "/narrow/scope_constraints");
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            Ok(page::render_as(status, &page))
        }
        failure => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pairs: &[(&str, &str)]) -> Typed {
        Typed::of(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn body(pairs: &[(&str, &str)]) -> Result<Value, Vec<Fault>> {
        let mut faults = Vec::new();
        let body = typed(pairs).body(&mut faults);
        if faults.is_empty() { Ok(body.into()) } else { Err(faults) }
    }

    #[test]
    fn only_the_chosen_time_is_saved() {
        let all = [("cron", "0 1 * * *"), ("every", "2"), ("unit", "hours"), ("at", "2030-01-01T00:00:00Z")];
        for (when, member, value) in [
            ("cron", "cron", json!("0 1 * * *")),
            ("every", "every_s", json!(7200)),
            ("at", "at", json!("2030-01-01T00:00:00.000Z")),
        ] {
            let body = body(&[&[("when", when)], &all[..]].concat()).unwrap();
            for time in ["cron", "every_s", "at"] {
                assert_eq!(body.get(time), (time == member).then_some(&value), "{when} {time}");
            }
        }
    }

    #[test]
    fn a_schedule_of_a_workflow_has_an_input() {
        let of_workflow = body(&[("workflow_id", "w"), ("input", "{\"repo\": 1}"), ("instruction", "i")]).unwrap();
        assert_eq!((&of_workflow["input"], of_workflow.get("instruction")), (&json!({ "repo": 1 }), None));
        assert_eq!(body(&[("workflow_id", "w"), ("input", "{")]), Err(vec![("/input", "form.not_json")]));
        let blank = Typed::blank(Start { workflow_id: "w".to_owned(), ..Start::default() });
        assert_eq!((blank.workflow_id.as_str(), blank.input.raw()), ("w", "{}"));
    }

    #[test]
    fn values_that_cannot_be_read_are_named() {
        for (fields, fault) in [
            (&[("when", "every"), ("every", "some")][..], ("/every_s", "form.not_integer")),
            (&[("when", "every"), ("every", "4294967295"), ("unit", "days")], ("/every_s", "form.not_integer")),
            (&[("when", "at"), ("at", "tomorrow")], ("/at", "schedule.not_time")),
            (&[("jitter_s", "1.5")], ("/jitter_s", "form.not_integer")),
            (&[("scopes", "[1]")], ("scopes", "form.not_json")),
            (&[("scopes", "{")], ("scopes", "form.not_json")),
        ] {
            assert_eq!(body(fields), Err(vec![fault]), "{fields:?}");
        }
    }

    #[test]
    fn a_saved_schedule_fills_its_form_and_is_no_change() {
        let schedule: Schedule = serde_json::from_value(json!({
            "id": "s", "name": "n", "bot_id": "b", "instruction": "one\ntwo", "timezone": "Europe/Berlin",
            "every_s": 5400, "overlap": "queue", "missed": "skip", "jitter_s": 7, "enabled": true, "next_at": null,
            "failures": 0, "made_by": { "kind": "key", "id": "k" },
            "narrow": { "allowed_tools": [], "scope_constraints": { "repos": [], "a": ["b"] } },
        }))
        .unwrap();
        let saved = Typed::saved(&schedule);
        assert_eq!((saved.every.raw(), saved.unit.as_str()), ("90", "minutes"));
        let body = saved.body(&mut Vec::new());
        assert_eq!(body["narrow"], json!({ "allowed_tools": [], "scope_constraints": { "a": ["b"], "repos": [] } }));
        assert_eq!(changes(&body, body.clone()), Map::new());
        let renamed = Typed { name: "m".into(), ..Typed::saved(&schedule) };
        assert_eq!(Value::from(changes(&body, renamed.body(&mut Vec::new()))), json!({ "name": "m" }));
    }
}
