//! The checks of new and changed schedules.

use monstrum_api::schedules::{MadeBy, NewSchedule, ScheduleChange, SchedulePreview};
use monstrum_core::operations::{Caller, InputErrors, OperationError, narrow};
use monstrum_types::{BotId, UtcMillis};
use serde_json::{Map, Value};

use super::record::{Record, Work};
use super::timing::{Timing, When};
use crate::tasks::INSTRUCTION_BYTES_MAX;

/// The time zone of a schedule that names none.
const UTC: &str = "UTC";
/// The maximum length of a name, as for bots and resources.
const NAME_CHARS_MAX: usize = 128;
/// The maximum size of the input of a run in bytes of JSON. Every firing reads it.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// The maximum delay of a firing in seconds.
const JITTER_S_MAX: u32 = 3600;

/// Returns what a new schedule starts, and the bot that the input names for a task.
pub(super) fn work(new: &mut NewSchedule) -> Result<(Work, Option<BotId>), OperationError> {
    let (bot, instruction) = (new.bot_id, new.instruction.take());
    let missing = |path: &str| OperationError::invalid_at(path, "is required, or workflow_id instead");
    let Some(workflow_id) = new.workflow_id else {
        if new.input.is_some() {
            return Err(OperationError::invalid_at("/input", "only runs of workflows have an input"));
        }
        let bot = bot.ok_or_else(|| missing("/bot_id"))?;
        let instruction = instruction.ok_or_else(|| missing("/instruction"))?;
        return Ok((Work::Task { instruction }, Some(bot)));
    };
    for (path, is_given) in [("/bot_id", bot.is_some()), ("/instruction", instruction.is_some())] {
        if is_given {
            return Err(OperationError::invalid_at(path, "a schedule of a workflow has the bot of the workflow"));
        }
    }
    let input = new.input.take().unwrap_or_else(|| Value::Object(Map::new()));
    Ok((Work::Run { workflow_id, input }, None))
}

/// Returns the record of a new schedule, checked as far as the times are not.
pub(super) fn record(caller: &Caller, work: Work, new: NewSchedule, now: UtcMillis) -> Result<Record, OperationError> {
    let NewSchedule { name, cron, every_s, at, timezone, overlap, missed, jitter_s, .. } = new;
    let when = one_of((cron, every_s, at))?;
    let when = when.ok_or_else(|| OperationError::invalid_at("", "one of cron, every_s and at is required"))?;
    let record = Record {
        work,
        when,
        timezone: timezone.unwrap_or_else(|| UTC.to_owned()),
        overlap,
        missed,
        jitter_s,
        narrow: new.narrow,
        enabled: new.enabled,
        made_by: MadeBy { kind: "key".to_owned(), id: caller.key.to_string() },
        starters: vec![caller.key],
    };
    check(&name, &record)?;
    first(&record, now)?;
    Ok(record)
}

/// Changes the name and the record of a schedule, which may be paused. Returns whether the next time has to be computed anew:
/// the times are others, or the schedule is enabled again.
pub(super) fn change(
    (name, record): (&mut String, &mut Record),
    is_paused: bool,
    change: ScheduleChange,
    now: UtcMillis,
) -> Result<bool, OperationError> {
    let when = one_of((change.cron, change.every_s, change.at))?;
    let was_off = !record.enabled || is_paused;
    let before = (record.when.clone(), record.timezone.clone());
    set(name, change.name);
    match &mut record.work {
        Work::Task { instruction } => {
            if change.input.is_some() {
                return Err(OperationError::invalid_at("/input", "the schedule starts tasks, which have no input"));
            }
            set(instruction, change.instruction);
        }
        Work::Run { input, .. } => {
            if change.instruction.is_some() {
                return Err(OperationError::invalid_at("/instruction", "the schedule starts runs of a workflow"));
            }
            set(input, change.input);
        }
    }
    set(&mut record.when, when);
    set(&mut record.timezone, change.timezone.map(|zone| zone.unwrap_or_else(|| UTC.to_owned())));
    set(&mut record.overlap, change.overlap.map(Option::unwrap_or_default));
    set(&mut record.missed, change.missed.map(Option::unwrap_or_default));
    set(&mut record.jitter_s, change.jitter_s.map(Option::unwrap_or_default));
    set(&mut record.narrow, change.narrow);
    set(&mut record.enabled, change.enabled);
    check(name, record)?;
    let is_enabled_again = change.enabled == Some(true) && was_off;
    let is_new = is_enabled_again || before != (record.when.clone(), record.timezone.clone());
    if is_new {
        first(record, now)?;
    }
    Ok(is_new)
}

/// Returns the times of a preview.
pub(super) fn preview(input: SchedulePreview) -> Result<Timing, OperationError> {
    let SchedulePreview { cron, every_s, timezone } = input;
    let when = one_of((cron, every_s, None))?;
    let when = when.ok_or_else(|| OperationError::invalid_at("", "one of cron and every_s is required"))?;
    timing(&when, timezone.as_deref().unwrap_or(UTC))
}

/// Returns the first time of a schedule. A schedule that never fires is invalid.
pub(super) fn first(record: &Record, now: UtcMillis) -> Result<UtcMillis, OperationError> {
    let timing = timing(&record.when, &record.timezone)?;
    timing.first(now).ok_or_else(|| match &record.when {
        When::At(_) => OperationError::invalid_at("/at", "must be in the future"),
        When::Cron(_) | When::EveryS(_) => OperationError::invalid_at("/cron", "no time matches the pattern"),
    })
}

fn timing(when: &When, timezone: &str) -> Result<Timing, OperationError> {
    Timing::new(when, timezone).map_err(|error| OperationError::invalid_at(error.field, error.message))
}

fn one_of(
    (cron, every_s, at): (Option<String>, Option<u32>, Option<UtcMillis>),
) -> Result<Option<When>, OperationError> {
    let times = [cron.map(When::Cron), every_s.map(When::EveryS), at.map(When::At)];
    let mut given = times.into_iter().flatten();
    let first = given.next();
    match given.next() {
        None => Ok(first),
        Some(second) => {
            let path = if matches!(second, When::At(_)) { "/at" } else { "/every_s" };
            Err(OperationError::invalid_at(path, "a schedule has only one of cron, every_s and at"))
        }
    }
}

fn check(name: &str, record: &Record) -> Result<(), OperationError> {
    let mut errors = InputErrors::default();
    if name.trim().is_empty() {
        errors.add("/name", "must not be empty");
    } else if name.chars().count() > NAME_CHARS_MAX {
        errors.add("/name", format!("must have at most {NAME_CHARS_MAX} characters"));
    } else if name.chars().any(char::is_control) {
        errors.add("/name", "must not contain control characters");
    }
    match &record.work {
        Work::Task { instruction } if instruction.trim().is_empty() => errors.add("/instruction", "must not be empty"),
        Work::Task { instruction } if instruction.len() > INSTRUCTION_BYTES_MAX => {
            let bytes = instruction.len();
            errors.add("/instruction", format!("must have at most {INSTRUCTION_BYTES_MAX} bytes, but has {bytes}"));
        }
        Work::Run { input, .. } if input.to_string().len() > INPUT_BYTES_MAX => {
            errors.add("/input", format!("must have at most {INPUT_BYTES_MAX} bytes of JSON"));
        }
        Work::Task { .. } | Work::Run { .. } => {}
    }
    if record.jitter_s > JITTER_S_MAX {
        errors.add("/jitter_s", format!("must be at most {JITTER_S_MAX} seconds"));
    }
    match record.timing() {
        Ok(timing) if record.jitter_s > 0 && timing.gap_ms().is_some_and(|gap| ms(record.jitter_s) >= gap) => {
            errors.add("/jitter_s", "must be less than the time between two firings");
        }
        Ok(_) => {}
        Err(error) => errors.add(error.field, error.message),
    }
    errors.check()?;
    record.narrow.as_ref().map_or(Ok(()), |given| narrow::check("/narrow", given))
}

fn ms(seconds: u32) -> i64 {
    i64::from(seconds) * 1000
}

fn set<T>(field: &mut T, named: Option<T>) {
    if let Some(value) = named {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use monstrum_types::WorkflowId;
    use serde_json::json;

    use super::*;

    const NOW: UtcMillis = UtcMillis(1_767_225_600_000);

    fn kept() -> (String, Record) {
        let record = Record {
            work: Work::Task { instruction: "Look.".to_owned() },
            when: When::EveryS(3600),
            timezone: UTC.to_owned(),
            overlap: Default::default(),
            missed: Default::default(),
            jitter_s: 0,
            narrow: None,
            enabled: true,
            made_by: MadeBy { kind: "key".to_owned(), id: "k".to_owned() },
            starters: Vec::new(),
        };
        ("hourly".to_owned(), record)
    }

    fn paths(input: Value) -> Vec<String> {
        let (mut name, mut record) = kept();
        match change((&mut name, &mut record), false, serde_json::from_value(input).unwrap(), NOW) {
            Ok(_) => Vec::new(),
            Err(OperationError::Invalid(errors)) => errors.into_iter().map(|error| error.path).collect(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn invalid_fields_are_named() {
        for (input, path) in [
            (json!({ "name": " " }), "/name"),
            (json!({ "name": "x".repeat(NAME_CHARS_MAX + 1) }), "/name"),
            (json!({ "name": "a\nb" }), "/name"),
            (json!({ "instruction": "" }), "/instruction"),
            (json!({ "instruction": "x".repeat(INSTRUCTION_BYTES_MAX + 1) }), "/instruction"),
            (json!({ "input": {} }), "/input"),
            (json!({ "cron": "* * * * * *" }), "/cron"),
            (json!({ "cron": "0 0 31 2 *" }), "/cron"),
            (json!({ "cron": "0 0 * * *", "timezone": "Nowhere" }), "/timezone"),
            (json!({ "timezone": "Nowhere" }), "/timezone"),
            (json!({ "every_s": 59 }), "/every_s"),
            (json!({ "at": "2026-01-01T00:00:00Z" }), "/at"),
            (json!({ "cron": "0 0 * * *", "every_s": 60 }), "/every_s"),
            (json!({ "every_s": 60, "at": "2036-01-01T00:00:00Z" }), "/at"),
            (json!({ "jitter_s": 3601 }), "/jitter_s"),
            (json!({ "every_s": 60, "jitter_s": 60 }), "/jitter_s"),
            (json!({ "cron": "*/5 * * * *", "jitter_s": 300 }), "/jitter_s"),
            (json!({ "cron": "0,1 9 * * *", "jitter_s": 60 }), "/jitter_s"),
            (json!({ "narrow": { "allowed_tools": ["a", "x".repeat(4097)] } }), "/narrow/allowed_tools/1"),
        ] {
            assert_eq!(paths(input.clone())[0], path, "{input}");
        }
    }

    #[test]
    fn a_schedule_starts_tasks_or_runs() {
        let read = |input: Value| {
            let mut fields = json!({ "name": "nightly", "every_s": 3600 });
            fields.as_object_mut().unwrap().extend(input.as_object().unwrap().clone());
            work(&mut serde_json::from_value(fields).unwrap())
        };
        let (bot, workflow) = (BotId::new(), WorkflowId::new());
        let task = read(json!({ "bot_id": bot, "instruction": "Look." })).unwrap();
        assert_eq!(task, (Work::Task { instruction: "Look.".to_owned() }, Some(bot)));
        let run = read(json!({ "workflow_id": workflow })).unwrap();
        assert_eq!(run, (Work::Run { workflow_id: workflow, input: json!({}) }, None));
        for (input, expected) in [
            (json!({}), "/bot_id"),
            (json!({ "bot_id": bot }), "/instruction"),
            (json!({ "bot_id": bot, "instruction": "Look.", "input": {} }), "/input"),
            (json!({ "workflow_id": workflow, "bot_id": bot }), "/bot_id"),
            (json!({ "workflow_id": workflow, "instruction": "Look." }), "/instruction"),
        ] {
            match read(input.clone()) {
                Err(OperationError::Invalid(errors)) => assert_eq!(errors[0].path, expected, "{input}"),
                other => panic!("{input}: {other:?}"),
            }
        }
        let (mut name, mut record) = kept();
        record.work = Work::Run { workflow_id: workflow, input: json!({}) };
        let other = serde_json::from_value(json!({ "input": { "repo": "acme/web" } })).unwrap();
        change((&mut name, &mut record), false, other, NOW).unwrap();
        assert_eq!(record.work, Work::Run { workflow_id: workflow, input: json!({ "repo": "acme/web" }) });
        let instruction = serde_json::from_value(json!({ "instruction": "Look." })).unwrap();
        assert!(change((&mut name, &mut record), false, instruction, NOW).is_err());
    }

    #[test]
    fn a_change_of_the_times_replaces_them() {
        let (mut name, mut record) = kept();
        let at = json!({ "at": "2026-01-01T00:00:01Z", "name": "once" });
        assert!(change((&mut name, &mut record), false, serde_json::from_value(at).unwrap(), NOW).unwrap());
        assert_eq!((name.as_str(), &record.when), ("once", &When::At(NOW.plus_ms(1000))));
        let other = json!({ "instruction": "Listen.", "enabled": false });
        assert!(!change((&mut name, &mut record), false, serde_json::from_value(other).unwrap(), NOW).unwrap());
        assert!(!record.enabled);
        // A single time that has passed does not come again.
        let enabled = serde_json::from_value(json!({ "enabled": true })).unwrap();
        let refused = change((&mut name, &mut record), false, enabled, NOW.plus_ms(9000));
        assert!(matches!(refused, Err(OperationError::Invalid(_))));
    }

    #[test]
    fn the_next_time_is_computed_anew_only_for_other_times_or_after_a_pause() {
        for (input, is_paused, expected) in [
            (json!({ "name": "other", "jitter_s": 5 }), false, false),
            (json!({ "every_s": 3600, "timezone": null, "enabled": true }), false, false),
            (json!({ "every_s": 3600 }), true, false),
            (json!({ "enabled": true }), true, true),
            (json!({ "every_s": 7200 }), false, true),
            (json!({ "timezone": "Europe/Berlin" }), false, true),
        ] {
            let (mut name, mut record) = kept();
            let given = serde_json::from_value(input.clone()).unwrap();
            let is_new = change((&mut name, &mut record), is_paused, given, NOW).unwrap();
            assert_eq!(is_new, expected, "{input}");
        }
    }
}
