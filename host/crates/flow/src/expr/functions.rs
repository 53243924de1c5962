//! The functions of the language: those of CEL's standard library that read no clock, and a few for texts.

use std::cell::RefCell;
use std::collections::HashMap;

use chrono::{DateTime, Datelike, SecondsFormat, TimeDelta, Timelike, Utc};
use regex::{Regex, RegexBuilder};

use super::meter::{Meter, Stop};
use super::operators::in_range;
use super::value::{Val, double, show_span, whole};

/// Maximum length of a regular expression in bytes.
const PATTERN_BYTES_MAX: usize = 256;
/// Maximum size of a compiled regular expression in bytes. The work of a match grows with it.
const COMPILED_BYTES_MAX: usize = 16 * 1024;
/// The steps that compiling a regular expression is charged.
const COMPILE_STEPS: u64 = 20_000;
/// The steps that matching one byte of text is charged. A compiled expression of the largest size has a few hundred
/// states, and in the worst case each byte visits all of them.
const MATCH_STEPS: u64 = 64;

/// Name, number of arguments with the target, and whether a call has a target: `Some(true)` always, `None` either way.
type Signature = (&'static str, usize, usize, Option<bool>);

const FUNCTIONS: &[Signature] = &[
    ("size", 1, 1, None),
    ("contains", 2, 2, Some(true)),
    ("startsWith", 2, 2, Some(true)),
    ("endsWith", 2, 2, Some(true)),
    ("matches", 2, 2, None),
    ("lowerAscii", 1, 1, Some(true)),
    ("upperAscii", 1, 1, Some(true)),
    ("trim", 1, 1, Some(true)),
    ("replace", 3, 3, Some(true)),
    ("split", 2, 2, Some(true)),
    ("join", 1, 2, Some(true)),
    ("string", 1, 1, Some(false)),
    ("int", 1, 1, Some(false)),
    ("double", 1, 1, Some(false)),
    ("bool", 1, 1, Some(false)),
    ("type", 1, 1, Some(false)),
    ("dyn", 1, 1, Some(false)),
    ("timestamp", 1, 1, Some(false)),
    ("duration", 1, 1, Some(false)),
    ("getFullYear", 1, 1, Some(true)),
    ("getMonth", 1, 1, Some(true)),
    ("getDate", 1, 1, Some(true)),
    ("getDayOfMonth", 1, 1, Some(true)),
    ("getDayOfWeek", 1, 1, Some(true)),
    ("getDayOfYear", 1, 1, Some(true)),
    ("getHours", 1, 1, Some(true)),
    ("getMinutes", 1, 1, Some(true)),
    ("getSeconds", 1, 1, Some(true)),
    ("getMilliseconds", 1, 1, Some(true)),
];

/// The macros, which the parser expands, so that a call with a wrong number of arguments is all that arrives here.
const MACROS: [&str; 6] = ["has", "all", "exists", "exists_one", "map", "filter"];

/// The names of all functions and macros.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|(name, ..)| *name).chain(MACROS)
}

/// Checks that a function exists and takes this many arguments.
pub(super) fn check(name: &str, has_target: bool, arguments: usize) -> Result<(), String> {
    let Some((_, least, most, target)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
        let name: String = name.chars().take(64).collect();
        if MACROS.contains(&name.as_str()) {
            return Err(format!("wrong arguments of `{name}`"));
        }
        return Err(format!("unknown function `{name}`"));
    };
    let all = arguments + usize::from(has_target);
    if !(*least..=*most).contains(&all) || target.is_some_and(|target| target != has_target) {
        let form = match target {
            Some(true) => format!("VALUE.{name}"),
            _ => name.to_owned(),
        };
        return Err(format!("wrong arguments of `{form}(…)`"));
    }
    Ok(())
}

/// Returns the type that `name` names.
pub(super) fn type_name(name: &str) -> Option<&'static str> {
    const TYPES: [&str; 8] = ["bool", "int", "double", "string", "list", "map", "null_type", "timestamp"];
    TYPES.into_iter().find(|known| *known == name)
}

/// The regular expressions that an evaluation has compiled.
#[derive(Default)]
pub(super) struct Patterns(RefCell<HashMap<String, Regex>>);

/// Calls a function. The target, if there is one, is the first argument.
pub(super) fn call<'a>(name: &str, arguments: &[Val<'a>], meter: &Meter, patterns: &Patterns) -> Result<Val<'a>, Stop> {
    // Each function reads each text at most a few times.
    for argument in arguments {
        meter.scan(if let Val::Text(text) = argument { text.len() } else { 0 })?;
    }
    match (name, arguments) {
        ("size", [value]) => value.len(meter).map(|size| Val::Int(size as i128)),
        ("contains", [Val::Text(whole), Val::Text(part)]) => {
            meter.scan(whole.len() + part.len())?;
            Ok(Val::Bool(whole.contains(&**part)))
        }
        ("startsWith", [Val::Text(whole), Val::Text(part)]) => Ok(Val::Bool(whole.starts_with(&**part))),
        ("endsWith", [Val::Text(whole), Val::Text(part)]) => Ok(Val::Bool(whole.ends_with(&**part))),
        ("matches", [Val::Text(text), Val::Text(pattern)]) => patterns.matches(text, pattern, meter).map(Val::Bool),
        ("lowerAscii", [Val::Text(text)]) => made(text.len(), meter, || text.to_ascii_lowercase()),
        ("upperAscii", [Val::Text(text)]) => made(text.len(), meter, || text.to_ascii_uppercase()),
        ("trim", [Val::Text(text)]) => made(text.len(), meter, || text.trim().to_owned()),
        ("replace", [Val::Text(text), Val::Text(from), Val::Text(to)]) => replace(text, from, to, meter),
        ("split", [Val::Text(text), Val::Text(mark)]) => split(text, mark, meter),
        ("join", [list]) => join(list, "", meter),
        ("join", [list, Val::Text(mark)]) => join(list, mark, meter),
        ("string", [value]) => string(value, meter),
        ("int", [value]) => int(value),
        ("double", [Val::Text(text)]) => {
            text.parse().map(Val::Double).map_err(|_| Stop::failed("the text is not a number"))
        }
        ("double", [value]) => double(value).map(Val::Double).ok_or_else(|| mismatch(name, arguments)),
        ("bool", [Val::Bool(value)]) => Ok(Val::Bool(*value)),
        ("bool", [Val::Text(text)]) => match &**text {
            "true" => Ok(Val::Bool(true)),
            "false" => Ok(Val::Bool(false)),
            _ => Err(Stop::failed("the text is not `true` or `false`")),
        },
        ("type", [value]) => Ok(Val::Type(if matches!(value, Val::Null) { "null_type" } else { value.kind() })),
        ("dyn", [value]) => Ok(value.clone()),
        ("timestamp", [Val::Time(time)]) => Ok(Val::Time(*time)),
        ("timestamp", [Val::Text(text)]) => timestamp(text),
        ("duration", [Val::Span(span)]) => Ok(Val::Span(*span)),
        ("duration", [Val::Text(text)]) => duration(text),
        (_, [Val::Time(time)]) => part_of_time(name, *time).ok_or_else(|| mismatch(name, arguments)),
        (_, [Val::Span(span)]) => part_of_span(name, *span).ok_or_else(|| mismatch(name, arguments)),
        _ => Err(mismatch(name, arguments)),
    }
}

fn mismatch(name: &str, arguments: &[Val<'_>]) -> Stop {
    let kinds: Vec<&str> = arguments.iter().map(Val::kind).collect();
    Stop::failed(format!("`{name}` does not apply to values of these types: {}", kinds.join(", ")))
}

/// Makes a text of at most `bytes` bytes.
fn made<'a>(bytes: usize, meter: &Meter, make: impl FnOnce() -> String) -> Result<Val<'a>, Stop> {
    meter.create(bytes as u64)?;
    Ok(Val::text(make()))
}

fn replace<'a>(text: &str, from: &str, to: &str, meter: &Meter) -> Result<Val<'a>, Stop> {
    meter.scan(text.len())?;
    let places = text.matches(from).count();
    let bytes = places.saturating_mul(to.len()).saturating_add(text.len());
    made(bytes, meter, || text.replace(from, to))
}

fn split<'a>(text: &str, mark: &str, meter: &Meter) -> Result<Val<'a>, Stop> {
    meter.scan(text.len())?;
    let parts = text.split(mark).count();
    meter.items(parts)?;
    meter.elements(parts)?;
    meter.create(text.len() as u64)?;
    Ok(Val::List(std::rc::Rc::new(text.split(mark).map(Val::text).collect())))
}

fn join<'a>(list: &Val<'a>, mark: &str, meter: &Meter) -> Result<Val<'a>, Stop> {
    if list.kind() != "list" {
        return Err(Stop::failed(format!("`join` does not apply to a value of type {}", list.kind())));
    }
    let mut joined = String::new();
    for (at, item) in list.items(meter)?.iter().enumerate() {
        let Val::Text(text) = item else {
            return Err(Stop::failed(format!("`join` takes texts, found a value of type {}", item.kind())));
        };
        meter.create((text.len() + mark.len()) as u64)?;
        if at > 0 {
            joined.push_str(mark);
        }
        joined.push_str(text);
    }
    Ok(Val::text(joined))
}

fn string<'a>(value: &Val<'a>, meter: &Meter) -> Result<Val<'a>, Stop> {
    let text = match value {
        Val::Text(_) => return Ok(value.clone()),
        Val::Bool(value) => value.to_string(),
        Val::Int(value) => value.to_string(),
        Val::Double(value) => value.to_string(),
        Val::Time(time) => time.to_rfc3339_opts(SecondsFormat::AutoSi, true),
        Val::Span(span) => show_span(*span),
        other => return Err(Stop::failed(format!("`string` does not apply to a value of type {}", other.kind()))),
    };
    made(text.len(), meter, || text)
}

fn int<'a>(value: &Val<'a>) -> Result<Val<'a>, Stop> {
    let found = match value {
        Val::Int(value) => Some(*value),
        Val::Double(value) => whole(*value),
        Val::Text(text) => text.parse::<i64>().ok().map(i128::from),
        Val::Time(time) => Some(time.timestamp().into()),
        other => return Err(Stop::failed(format!("`int` does not apply to a value of type {}", other.kind()))),
    };
    found.map(Val::Int).ok_or_else(|| Stop::failed("the value is not an integer"))
}

/// Reads a time in the format of RFC 3339.
pub(super) fn timestamp<'a>(text: &str) -> Result<Val<'a>, Stop> {
    let time = DateTime::parse_from_rfc3339(text).ok().and_then(|time| in_range(time.to_utc()));
    time.ok_or_else(|| Stop::failed("the text is not a time such as 2026-01-31T12:00:00Z"))
}

/// Reads a duration such as `1h30m`.
fn duration<'a>(text: &str) -> Result<Val<'a>, Stop> {
    let wrong = || Stop::failed("the text is not a duration such as 1h30m");
    let (sign, mut rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let mut millis = 0_i64;
    if rest.is_empty() || rest.len() > 64 {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let count: i64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let units = [("ms", 1_i64), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
        let (unit, scale) = units.into_iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(wrong)?;
        rest = &rest[unit.len()..];
        let part = count.checked_mul(scale).ok_or_else(wrong)?;
        millis = millis.checked_add(part).ok_or_else(wrong)?;
    }
    TimeDelta::try_milliseconds(sign * millis).map(Val::Span).ok_or_else(wrong)
}

fn part_of_time<'a>(name: &str, time: DateTime<Utc>) -> Option<Val<'a>> {
    let part: i64 = match name {
        "getFullYear" => time.year().into(),
        "getMonth" => time.month0().into(),
        "getDate" => time.day().into(),
        "getDayOfMonth" => time.day0().into(),
        "getDayOfWeek" => time.weekday().num_days_from_sunday().into(),
        "getDayOfYear" => time.ordinal0().into(),
        "getHours" => time.hour().into(),
        "getMinutes" => time.minute().into(),
        "getSeconds" => time.second().into(),
        "getMilliseconds" => time.timestamp_subsec_millis().into(),
        _ => return None,
    };
    Some(Val::Int(part.into()))
}

fn part_of_span<'a>(name: &str, span: TimeDelta) -> Option<Val<'a>> {
    let part = match name {
        "getHours" => span.num_hours(),
        "getMinutes" => span.num_minutes(),
        "getSeconds" => span.num_seconds(),
        "getMilliseconds" => span.num_milliseconds(),
        _ => return None,
    };
    Some(Val::Int(part.into()))
}

impl Patterns {
    fn matches(&self, text: &str, pattern: &str, meter: &Meter) -> Result<bool, Stop> {
        if pattern.len() > PATTERN_BYTES_MAX {
            let message = format!("the regular expression has more than {PATTERN_BYTES_MAX} bytes");
            return Err(Stop::Budget(message));
        }
        meter.step((text.len() as u64).saturating_add(1).saturating_mul(MATCH_STEPS))?;
        if let Some(regex) = self.0.borrow().get(pattern) {
            return Ok(regex.is_match(text));
        }
        meter.step(COMPILE_STEPS)?;
        let regex = RegexBuilder::new(pattern)
            .size_limit(COMPILED_BYTES_MAX)
            .dfa_size_limit(COMPILED_BYTES_MAX * 4)
            .nest_limit(16)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => Stop::Budget("the regular expression is too large".to_owned()),
                _ => Stop::failed("the text is not a regular expression"),
            })?;
        let matches = regex.is_match(text);
        self.0.borrow_mut().insert(pattern.to_owned(), regex);
        Ok(matches)
    }
}
