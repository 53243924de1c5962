//! The schedules of the files, by their names and the names of their bots or workflows.

use monstrum_types::UtcMillis;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::names::{self, Noun};
use super::super::output;
use super::document::Lines;

/// The number of failures in a row that pause a schedule. A pause is no part of the configuration.
const FAILURES_MAX: u64 = 5;

/// A schedule in a file. A field that is left out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Schedule {
    pub(super) name: String,
    /// The bot and what it is to do, or a workflow that the server has, with the input of its runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instruction: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workflow: Option<String>,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    input: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every_s: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    #[serde(default = "utc", skip_serializing_if = "is_utc")]
    timezone: String,
    #[serde(default = "skip", skip_serializing_if = "is_skip")]
    overlap: String,
    #[serde(default = "once", skip_serializing_if = "is_once")]
    missed: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    jitter_s: u32,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    narrow: Value,
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    enabled: bool,
}

fn utc() -> String {
    "UTC".to_owned()
}

fn is_utc(zone: &str) -> bool {
    zone == "UTC"
}

fn skip() -> String {
    "skip".to_owned()
}

fn is_skip(overlap: &str) -> bool {
    overlap == "skip"
}

fn once() -> String {
    "once".to_owned()
}

fn is_once(missed: &str) -> bool {
    missed == "once"
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
fn is_true(value: &bool) -> bool {
    *value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde needs")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Returns what a schedule may do less than its bot, without fields that say nothing.
fn restrictions(narrow: &Value) -> Value {
    let mut restrictions = narrow.as_object().cloned().unwrap_or_default();
    restrictions.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|scopes| !scopes.is_empty()));
    if restrictions.is_empty() { Value::Null } else { Value::Object(restrictions) }
}

/// Returns an input, without one that says nothing.
fn given(input: &Value) -> Value {
    if input.as_object().is_some_and(Map::is_empty) { Value::Null } else { input.clone() }
}

/// Returns a time as the server writes it. The server refuses other texts.
fn time(text: &str) -> String {
    text.parse::<UtcMillis>().map_or_else(|_| text.to_owned(), |time| time.to_string())
}

/// Returns whether a schedule with a single time has fired. Such a schedule cannot be created again.
fn is_over(item: &Value) -> bool {
    item["at"].is_string() && item["enabled"] == true && item["next_at"].is_null()
}

/// Returns the schedules of a workspace that still fire or are switched off.
pub(super) async fn exported(client: &Client) -> Result<Vec<Schedule>, Failure> {
    let items = client.items(&["api", "schedules"], &[]).await?;
    let owners = Owners::of(client).await?;
    let mut schedules: Vec<Schedule> =
        items.iter().filter(|item| !is_over(item)).filter_map(|item| Some(shown(item, owners.name(item)?))).collect();
    schedules.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(schedules)
}

/// The bots and the workflows of the workspace.
struct Owners {
    bots: Vec<Value>,
    workflows: Vec<Value>,
}

impl Owners {
    async fn of(client: &Client) -> Result<Owners, Failure> {
        let bots = client.items(&["api", "bots"], &[]).await?;
        Ok(Owners { bots, workflows: client.items(&["api", "workflows"], &[]).await? })
    }

    /// Returns the name of the bot or the workflow of a schedule of the server.
    fn name(&self, item: &Value) -> Option<String> {
        let (all, id) = match &item["workflow_id"] {
            Value::Null => (&self.bots, &item["bot_id"]),
            workflow => (&self.workflows, workflow),
        };
        all.iter().find(|one| one["id"] == *id).map(|one| output::cell(&one["name"]))
    }
}

/// Returns a schedule of the server as a file has it. `owner` is the name of its bot or its workflow.
fn shown(item: &Value, owner: String) -> Schedule {
    let text = |field: &str| item[field].as_str().map(str::to_owned);
    let number = |field: &str| item[field].as_u64().and_then(|number| u32::try_from(number).ok());
    Schedule {
        name: output::cell(&item["name"]),
        bot: item["workflow_id"].is_null().then(|| owner.clone()),
        instruction: text("instruction"),
        workflow: (!item["workflow_id"].is_null()).then_some(owner),
        input: given(&item["input"]),
        cron: text("cron"),
        every_s: number("every_s"),
        at: text("at"),
        timezone: text("timezone").unwrap_or_else(utc),
        overlap: text("overlap").unwrap_or_else(skip),
        missed: text("missed").unwrap_or_else(once),
        jitter_s: number("jitter_s").unwrap_or_default(),
        narrow: restrictions(&item["narrow"]),
        enabled: item["enabled"] == true || item["failures"].as_u64().is_some_and(|count| count >= FAILURES_MAX),
    }
}

impl Schedule {
    /// Returns the fields as the API reads them, without the name, the bot and the workflow.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = json!({
            "timezone": self.timezone, "overlap": self.overlap,
            "missed": self.missed, "jitter_s": self.jitter_s, "narrow": restrictions(&self.narrow),
            "enabled": self.enabled,
        });
        match &self.workflow {
            Some(_) => fields["input"] = if self.input.is_null() { json!({}) } else { self.input.clone() },
            None => fields["instruction"] = json!(self.instruction),
        }
        let at = self.at.as_deref().map(time);
        for (field, time) in [("cron", json!(self.cron)), ("every_s", json!(self.every_s)), ("at", json!(at))] {
            if !time.is_null() {
                fields[field] = time;
            }
        }
        fields.as_object().cloned().unwrap_or_default()
    }

    /// Returns the fields that differ from another schedule.
    fn changes(&self, other: &Schedule) -> Map<String, Value> {
        let others = other.fields();
        self.fields().into_iter().filter(|(field, value)| others.get(field) != Some(value)).collect()
    }
}

/// The schedules of the files that the server does not have or that differ, and those to delete.
#[derive(Default)]
pub(super) struct Schedules(Vec<Planned>);

struct Planned {
    name: String,
    owner: Owner,
    /// The place of the schedule in the files.
    place: String,
    /// The fields to save.
    fields: Map<String, Value>,
    /// The existing schedule, which is changed.
    present: Option<Value>,
}

/// The name of the bot or the workflow of a schedule in a file.
#[derive(Clone)]
enum Owner {
    Bot(String),
    Workflow(String),
}

impl Owner {
    /// Returns the bot or the workflow that a file names. A schedule has one of them, with an instruction or an input.
    fn of(schedule: &Schedule, place: &str) -> Result<Owner, Failure> {
        let Schedule { bot, instruction, workflow, input, .. } = schedule;
        match (bot, workflow) {
            (Some(bot), None) if instruction.is_some() && input.is_null() => Ok(Owner::Bot(bot.clone())),
            (None, Some(workflow)) if instruction.is_none() => Ok(Owner::Workflow(workflow.clone())),
            _ => Err(Failure::new(
                format!("{place}: a schedule has a bot and an instruction, or a workflow"),
                "write `bot` and `instruction`, or `workflow` and `input`",
            )),
        }
    }

    /// Returns the kind and the name, for messages.
    fn words(&self) -> String {
        match self {
            Owner::Bot(bot) => format!("bot {}", output::plain(bot)),
            Owner::Workflow(workflow) => format!("workflow {}", output::plain(workflow)),
        }
    }
}

/// A schedule that the files do not contain.
pub(super) struct Extra {
    pub(super) name: String,
    pub(super) present: Value,
}

impl Schedules {
    /// Keeps the schedules of the files that the server does not have, or that differ from those of the server.
    pub(super) async fn plan(lines: &Lines, client: &Client) -> Result<Schedules, Failure> {
        let given: Vec<_> = lines.schedules().map(|(at, schedule)| (at.whole(), schedule)).collect();
        if given.is_empty() {
            return Ok(Schedules::default());
        }
        let present = client.items(&["api", "schedules"], &[]).await?;
        let owners = Owners::of(client).await?;
        let mut planned = Vec::new();
        for (index, (place, schedule)) in given.iter().enumerate() {
            if let Some((first, _)) = given[..index].iter().find(|(_, other)| other.name == schedule.name) {
                let message = format!("{place}: {first} has the same name");
                return Err(Failure::new(message, "the names of schedules are unique in a workspace"));
            }
            let found = present.iter().find(|item| item["name"] == *schedule.name);
            if let Some(one) = planned_one(lines, place, schedule, found, &owners)? {
                previewed(client, &one).await?;
                planned.push(one);
            }
        }
        Ok(Schedules(planned))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what happens to each schedule, in words.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |planned: &Planned| match &planned.present {
            None => format!("create schedule {} of {}", planned.name, planned.owner.words()),
            Some(_) => {
                let fields: Vec<&str> = planned.fields.keys().map(String::as_str).collect();
                format!("change schedule {} ({})", planned.name, fields.join(", "))
            }
        };
        self.0.iter().map(name).collect()
    }

    /// Creates and changes the schedules. A schedule that another command has changed since the plan stays, and the
    /// command fails.
    pub(super) async fn set(&self, client: &Client) -> Result<(), Failure> {
        for planned in &self.0 {
            let saved = match &planned.present {
                Some(present) => {
                    let id = output::cell(&present["id"]);
                    client.patch_present(&["api", "schedules", &id], present, &json!(planned.fields)).await
                }
                None => created(client, planned).await,
            };
            saved.map_err(|failure| {
                failure.about(&format!("{}: schedule {}", planned.place, output::plain(&planned.name)))
            })?;
        }
        Ok(())
    }
}

async fn created(client: &Client, planned: &Planned) -> Result<Value, Failure> {
    let (field, id) = match &planned.owner {
        Owner::Bot(bot) => ("bot_id", names::id_of_name(client, Noun::Bot, bot).await?),
        Owner::Workflow(workflow) => ("workflow_id", names::id_of_name(client, Noun::Workflow, workflow).await?),
    };
    let mut body = planned.fields.clone();
    body.insert("name".to_owned(), json!(planned.name));
    body.insert(field.to_owned(), json!(id));
    client.post(&["api", "schedules"], Some(&Value::Object(body))).await
}

/// Returns what has to be saved of a schedule of a file, or `None` if the server has it already.
fn planned_one(
    lines: &Lines,
    place: &str,
    schedule: &Schedule,
    found: Option<&Value>,
    owners: &Owners,
) -> Result<Option<Planned>, Failure> {
    let owner = Owner::of(schedule, place)?;
    let (name, all, field, hint) = match &owner {
        Owner::Bot(name) => (name, &owners.bots, "bot_id", "add the bot to the files, or correct its name"),
        Owner::Workflow(name) => {
            (name, &owners.workflows, "workflow_id", "save the workflow first: `monstrum workflow apply FILE`")
        }
    };
    let on_server = all.iter().find(|one| one["name"] == *name.as_str());
    let in_files = || {
        matches!(owner, Owner::Bot(_))
            && lines.configurations().flat_map(|file| &file.bots).any(|bot| bot.name == *name)
    };
    if on_server.is_none() && !in_files() {
        return Err(Failure::new(format!("{place}: there is no {}", owner.words()), hint));
    }
    let other = |found: &Value| {
        let is_of_task = matches!(owner, Owner::Bot(_)) && !found["workflow_id"].is_null();
        is_of_task || on_server.is_none_or(|one| one["id"] != found[field])
    };
    if found.is_some_and(other) {
        let message =
            format!("{place}: the schedule {} belongs to another bot or workflow", output::plain(&schedule.name));
        return Err(Failure::new(message, "delete the schedule first: `monstrum schedule delete NAME`"));
    }
    let fields = match found {
        None => schedule.fields(),
        Some(found) => schedule.changes(&shown(found, name.clone())),
    };
    if found.is_some() && fields.is_empty() {
        return Ok(None);
    }
    let (name, place) = (schedule.name.clone(), place.to_owned());
    Ok(Some(Planned { name, owner, place, fields, present: found.cloned() }))
}

/// Asks the server whether the times of a schedule are valid, before anything is changed.
async fn previewed(client: &Client, planned: &Planned) -> Result<(), Failure> {
    let mut times = planned.fields.clone();
    times.retain(|field, _| ["cron", "every_s", "timezone"].contains(&field.as_str()));
    if !times.contains_key("cron") && !times.contains_key("every_s") {
        return Ok(());
    }
    let answer = client.post(&["api", "schedules", "preview"], Some(&Value::Object(times))).await;
    answer
        .map(drop)
        .map_err(|failure| failure.about(&format!("{}: schedule {}", planned.place, output::plain(&planned.name))))
}

/// Returns the schedules of the server that the files do not contain. Schedules that have fired their single time stay.
pub(super) async fn extra(lines: &Lines, client: &Client) -> Result<Vec<Extra>, Failure> {
    let items = client.items(&["api", "schedules"], &[]).await?;
    let is_named = |item: &Value| lines.schedules().any(|(_, schedule)| item["name"] == *schedule.name);
    let extra = items.into_iter().filter(|item| !is_over(item) && !is_named(item));
    Ok(extra.map(|present| Extra { name: output::cell(&present["name"]), present }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Value {
        json!({ "id": "1", "name": "nightly", "bot_id": "b", "instruction": "Look.\nStop.", "cron": "30 2 * * *",
            "timezone": "Europe/Berlin", "overlap": "skip", "missed": "skip", "jitter_s": 60,
            "narrow": { "allowed_tools": ["a"], "scope_constraints": {} }, "enabled": true,
            "next_at": "2027-01-01T00:00:00.000Z", "failures": 0, "updated_at": "2026-01-01T00:00:00.000Z" })
    }

    #[test]
    fn a_schedule_of_the_server_is_a_schedule_of_a_file_without_its_defaults() {
        let schedule = shown(&item(), "helper".to_owned());
        let expected = json!({ "name": "nightly", "bot": "helper", "instruction": "Look.\nStop.", "cron": "30 2 * * *",
            "timezone": "Europe/Berlin", "missed": "skip", "jitter_s": 60, "narrow": { "allowed_tools": ["a"] } });
        assert_eq!(json!(schedule), expected);
        let read: Schedule = serde_json::from_value(expected).unwrap();
        assert_eq!(read.changes(&schedule), Map::new());
    }

    #[test]
    fn a_schedule_of_a_workflow_has_its_name_and_its_input() {
        let mut of_workflow = item();
        let fields = of_workflow.as_object_mut().unwrap();
        fields.remove("instruction");
        fields.insert("workflow_id".to_owned(), json!("w"));
        fields.insert("input".to_owned(), json!({ "repo": "acme/web" }));
        let owners = Owners { bots: Vec::new(), workflows: vec![json!({ "id": "w", "name": "report" })] };
        let schedule = shown(&of_workflow, owners.name(&of_workflow).unwrap());
        assert_eq!(
            (schedule.workflow.as_deref(), &schedule.bot, &schedule.instruction),
            (Some("report"), &None, &None)
        );
        assert_eq!(schedule.fields()["input"], json!({ "repo": "acme/web" }));
        assert!(!schedule.fields().contains_key("instruction"));
        assert!(matches!(Owner::of(&schedule, "a.yaml"), Ok(Owner::Workflow(name)) if name == "report"));
        let both = Schedule { bot: Some("helper".to_owned()), ..schedule.clone() };
        assert!(Owner::of(&both, "a.yaml").is_err());
        assert!(Owner::of(&Schedule { workflow: None, ..schedule }, "a.yaml").is_err());
    }

    #[test]
    fn only_differences_are_saved_and_a_pause_by_failures_is_none() {
        let paused = json!({ "enabled": false, "failures": 5 });
        let mut failing = item();
        for (field, value) in paused.as_object().unwrap() {
            failing[field] = value.clone();
        }
        let schedule = shown(&item(), "helper".to_owned());
        assert_eq!(schedule.changes(&shown(&failing, "helper".to_owned())), Map::new());
        failing["failures"] = json!(4);
        let changes = schedule.changes(&shown(&failing, "helper".to_owned()));
        assert_eq!(Value::Object(changes), json!({ "enabled": true }));
        let hourly = Schedule { cron: None, every_s: Some(3600), ..schedule.clone() };
        assert_eq!(Value::Object(hourly.changes(&schedule)), json!({ "every_s": 3600 }));
        let at = |text: &str| Schedule { cron: None, at: Some(text.to_owned()), ..schedule.clone() };
        assert_eq!(at("2030-01-01T00:00:00Z").changes(&at("2030-01-01T01:00:00.000+01:00")), Map::new());
    }

    #[test]
    fn a_single_time_that_has_come_is_over() {
        let at = json!({ "at": "2026-01-01T00:00:00.000Z", "enabled": true, "next_at": null });
        assert!(is_over(&at) && !is_over(&item()));
        assert!(!is_over(&json!({ "at": "2027-01-01T00:00:00.000Z", "enabled": false, "next_at": null })));
    }
}
