//! The values of expressions. Data of the run is borrowed.

use std::cmp::Ordering;
use std::ops::Deref;
use std::rc::Rc;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Map, Number, Value};

use super::meter::{Meter, RESULT_BYTES_MAX, Stop};
use super::operators::short;
use super::scope::StepView;

/// Maximum nesting depth of a result. Readers of JSON stop at 128 levels.
const RESULT_DEPTH_MAX: usize = 100;
/// 2^63 and 2^64 as numbers of the type double.
const TWO_63: f64 = 9_223_372_036_854_775_808.0;

#[derive(Clone, Debug)]
pub(super) enum Val<'a> {
    Null,
    Bool(bool),
    /// From the smallest `i64` to the largest `u64`, as in JSON.
    Int(i128),
    Double(f64),
    Text(Text<'a>),
    List(Rc<Vec<Val<'a>>>),
    Map(Rc<Vec<(Text<'a>, Val<'a>)>>),
    JsonList(&'a [Value]),
    JsonMap(&'a Map<String, Value>),
    Step(&'a StepView<'a>),
    Time(DateTime<Utc>),
    Span(TimeDelta),
    Type(&'static str),
}

/// A text that is borrowed or shared.
#[derive(Clone, Debug)]
pub(super) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl<'a> Val<'a> {
    pub(super) fn of(value: &'a Value) -> Val<'a> {
        match value {
            Value::Null => Val::Null,
            Value::Bool(value) => Val::Bool(*value),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Val::Int(value.into()),
                (None, Some(value)) => Val::Int(value.into()),
                (None, None) => Val::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Val::Text(Text::Borrowed(text)),
            Value::Array(items) => Val::JsonList(items),
            Value::Object(members) => Val::JsonMap(members),
        }
    }

    pub(super) fn text(text: impl Into<Rc<str>>) -> Val<'a> {
        Val::Text(Text::Shared(text.into()))
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Val::Null => "null",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Double(_) => "double",
            Val::Text(_) => "string",
            Val::List(_) | Val::JsonList(_) => "list",
            Val::Map(_) | Val::JsonMap(_) | Val::Step(_) => "map",
            Val::Time(_) => "timestamp",
            Val::Span(_) => "duration",
            Val::Type(_) => "type",
        }
    }

    pub(super) fn as_bool(&self) -> Result<bool, Stop> {
        match self {
            Val::Bool(value) => Ok(*value),
            other => Err(Stop::failed(format!("expected true or false, found a value of type {}", other.kind()))),
        }
    }

    /// Returns the member `name` of a map, or `None` if the map does not have it.
    pub(super) fn member(&self, name: &str, meter: &Meter) -> Result<Option<Val<'a>>, Stop> {
        meter.scan(name.len())?;
        match self {
            Val::JsonMap(members) => Ok(members.get(name).map(Val::of)),
            Val::Map(entries) => {
                meter.step(entries.len() as u64)?;
                Ok(entries.iter().find(|(key, _)| **key == *name).map(|(_, value)| value.clone()))
            }
            Val::Step(view) => Ok(match name {
                "status" => Some(Val::Text(Text::Borrowed(view.status))),
                "data" => Some(view.data.as_ref().map_or(Val::Null, |data| Val::of(data))),
                "error" => Some(view.error.as_ref().map_or(Val::Null, Val::of)),
                "ended_at" => Some(view.ended_at.as_ref().map_or(Val::Null, |time| Val::Text(Text::Borrowed(time)))),
                _ => None,
            }),
            other => Err(Stop::failed(format!("a value of type {} has no field `{}`", other.kind(), short(name)))),
        }
    }

    /// Returns the items of a list, or the keys of a map.
    pub(super) fn items(&self, meter: &Meter) -> Result<Vec<Val<'a>>, Stop> {
        match self {
            Val::List(items) => {
                meter.items(items.len())?;
                Ok(items.as_ref().clone())
            }
            Val::JsonList(items) => {
                meter.items(items.len())?;
                Ok(items.iter().map(Val::of).collect())
            }
            Val::Map(entries) => {
                meter.items(entries.len())?;
                Ok(entries.iter().map(|(key, _)| Val::Text(key.clone())).collect())
            }
            Val::JsonMap(members) => {
                meter.items(members.len())?;
                Ok(members.keys().map(|key| Val::Text(Text::Borrowed(key))).collect())
            }
            other => Err(Stop::failed(format!("expected a list or a map, found a value of type {}", other.kind()))),
        }
    }

    pub(super) fn len(&self, meter: &Meter) -> Result<usize, Stop> {
        match self {
            Val::Text(text) => {
                meter.scan(text.len())?;
                Ok(text.chars().count())
            }
            Val::List(items) => Ok(items.len()),
            Val::JsonList(items) => Ok(items.len()),
            Val::Map(entries) => Ok(entries.len()),
            Val::JsonMap(members) => Ok(members.len()),
            other => Err(Stop::failed(format!("a value of type {} has no size", other.kind()))),
        }
    }

    pub(super) fn equals(&self, other: &Val<'a>, meter: &Meter) -> Result<bool, Stop> {
        meter.step(1)?;
        match (self, other) {
            (Val::Null, Val::Null) => Ok(true),
            (Val::Bool(left), Val::Bool(right)) => Ok(left == right),
            (Val::Int(_) | Val::Double(_), Val::Int(_) | Val::Double(_)) => {
                Ok(compare_numbers(self, other) == Some(Ordering::Equal))
            }
            (Val::Text(left), Val::Text(right)) => {
                meter.scan(left.len().min(right.len()))?;
                Ok(**left == **right)
            }
            (Val::Time(left), Val::Time(right)) => Ok(left == right),
            (Val::Span(left), Val::Span(right)) => Ok(left == right),
            (Val::Type(left), Val::Type(right)) => Ok(left == right),
            (left, right) if left.kind() == "list" && right.kind() == "list" => {
                let count = left.len(meter)?;
                if count != right.len(meter)? {
                    return Ok(false);
                }
                for at in 0..count {
                    if !left.at(at).equals(&right.at(at), meter)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            (left, right) if left.kind() == "map" && right.kind() == "map" => equal_maps(left, right, meter),
            _ => Ok(false),
        }
    }

    /// Returns an item of a list that has it.
    fn at(&self, index: usize) -> Val<'a> {
        self.index(index).unwrap_or(Val::Null)
    }

    pub(super) fn index(&self, index: usize) -> Option<Val<'a>> {
        match self {
            Val::List(items) => items.get(index).cloned(),
            Val::JsonList(items) => items.get(index).map(Val::of),
            _ => None,
        }
    }

    pub(super) fn compare(&self, other: &Val<'a>, meter: &Meter) -> Result<Ordering, Stop> {
        let order = match (self, other) {
            (Val::Int(_) | Val::Double(_), Val::Int(_) | Val::Double(_)) => compare_numbers(self, other),
            (Val::Text(left), Val::Text(right)) => {
                meter.scan(left.len().min(right.len()))?;
                Some((**left).cmp(&**right))
            }
            (Val::Bool(left), Val::Bool(right)) => Some(left.cmp(right)),
            (Val::Time(left), Val::Time(right)) => Some(left.cmp(right)),
            (Val::Span(left), Val::Span(right)) => Some(left.cmp(right)),
            _ => None,
        };
        order.ok_or_else(|| {
            Stop::failed(format!("a value of type {} and one of type {} have no order", self.kind(), other.kind()))
        })
    }

    /// Returns the value as JSON. Times and spans become texts.
    pub(super) fn to_json(&self, meter: &Meter) -> Result<Value, Stop> {
        let mut left = RESULT_BYTES_MAX;
        self.json(meter, &mut left, 0)
    }

    fn json(&self, meter: &Meter, left: &mut u64, depth: usize) -> Result<Value, Stop> {
        meter.step(1)?;
        if depth > RESULT_DEPTH_MAX {
            return Err(Stop::Budget(format!("the result is nested deeper than {RESULT_DEPTH_MAX} levels")));
        }
        Ok(match self {
            Val::Null => Value::Null,
            Val::Bool(value) => Value::Bool(*value),
            Val::Int(value) => {
                take(left, 8)?;
                integer(*value).map(Value::Number)?
            }
            Val::Double(value) => {
                take(left, 8)?;
                Value::Number(
                    Number::from_f64(*value).ok_or_else(|| Stop::failed("the result is not a finite number"))?,
                )
            }
            Val::Text(text) => {
                take(left, text.len() as u64)?;
                Value::String((**text).to_owned())
            }
            Val::Time(time) => Value::String(time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
            Val::Span(span) => Value::String(show_span(*span)),
            Val::Type(name) => Value::String((*name).to_owned()),
            Val::List(items) => {
                let mut list = Vec::new();
                for item in items.iter() {
                    take(left, 4)?;
                    list.push(item.json(meter, left, depth + 1)?);
                }
                Value::Array(list)
            }
            Val::JsonList(items) => {
                let mut list = Vec::new();
                for item in *items {
                    take(left, 4)?;
                    list.push(Val::of(item).json(meter, left, depth + 1)?);
                }
                Value::Array(list)
            }
            Val::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries.iter() {
                    take(left, 4 + key.len() as u64)?;
                    map.insert((**key).to_owned(), value.json(meter, left, depth + 1)?);
                }
                Value::Object(map)
            }
            Val::JsonMap(members) => {
                let mut map = Map::new();
                for (key, value) in *members {
                    take(left, 4 + key.len() as u64)?;
                    map.insert(key.clone(), Val::of(value).json(meter, left, depth + 1)?);
                }
                Value::Object(map)
            }
            Val::Step(_) => {
                let mut map = Map::new();
                for name in ["status", "data", "error", "ended_at"] {
                    let value = self.member(name, meter)?.unwrap_or(Val::Null);
                    map.insert(name.to_owned(), value.json(meter, left, depth + 1)?);
                }
                Value::Object(map)
            }
        })
    }
}

/// Takes the room of `bytes` bytes of the result.
fn take(left: &mut u64, bytes: u64) -> Result<(), Stop> {
    *left = left
        .checked_sub(bytes)
        .ok_or_else(|| Stop::Budget(format!("the result has more than {} KiB", RESULT_BYTES_MAX / 1024)))?;
    Ok(())
}

fn equal_maps<'a>(left: &Val<'a>, right: &Val<'a>, meter: &Meter) -> Result<bool, Stop> {
    const FIELDS: [&str; 4] = ["status", "data", "error", "ended_at"];
    let count = |map: &Val<'a>| match map {
        Val::Map(entries) => entries.len(),
        Val::JsonMap(members) => members.len(),
        _ => FIELDS.len(),
    };
    if count(left) != count(right) {
        return Ok(false);
    }
    // Each pair is charged before it is read, so that large maps that differ early cost little.
    let is_equal = |name: &str| -> Result<bool, Stop> {
        match (left.member(name, meter)?, right.member(name, meter)?) {
            (Some(one), Some(other)) => one.equals(&other, meter),
            _ => Ok(false),
        }
    };
    let every = |names: &mut dyn Iterator<Item = &str>| -> Result<bool, Stop> {
        for name in names {
            if !is_equal(name)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match left {
        Val::Map(entries) => every(&mut entries.iter().map(|(key, _)| &**key)),
        Val::JsonMap(members) => every(&mut members.keys().map(String::as_str)),
        _ => every(&mut FIELDS.into_iter()),
    }
}

/// Returns an integer as a number of JSON.
pub(super) fn integer(value: i128) -> Result<Number, Stop> {
    i64::try_from(value)
        .map(Number::from)
        .or_else(|_| u64::try_from(value).map(Number::from))
        .map_err(|_| Stop::failed("the number is too large"))
}

/// Checks that a number stays in the range of integers.
pub(super) fn checked<'a>(value: Option<i128>) -> Result<Val<'a>, Stop> {
    match value.filter(|value| (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(value)) {
        Some(value) => Ok(Val::Int(value)),
        None => Err(Stop::failed("the number is too large")),
    }
}

/// Returns a number as a double.
pub(super) fn double(value: &Val<'_>) -> Option<f64> {
    match value {
        Val::Double(value) => Some(*value),
        Val::Int(value) => integer(*value).ok()?.as_f64(),
        _ => None,
    }
}

fn compare_numbers(left: &Val<'_>, right: &Val<'_>) -> Option<Ordering> {
    match (left, right) {
        (Val::Int(left), Val::Int(right)) => Some(left.cmp(right)),
        (Val::Double(left), Val::Double(right)) => left.partial_cmp(right),
        (Val::Int(left), Val::Double(right)) => compare_mixed(*left, *right),
        (Val::Double(left), Val::Int(right)) => compare_mixed(*right, *left).map(Ordering::reverse),
        _ => None,
    }
}

/// Compares an integer with a double without losing digits of the integer.
fn compare_mixed(left: i128, right: f64) -> Option<Ordering> {
    if right.is_nan() {
        return None;
    }
    if right >= 2.0 * TWO_63 {
        return Some(Ordering::Less);
    }
    if right < -TWO_63 {
        return Some(Ordering::Greater);
    }
    let whole = whole(right)?;
    let rest = right - right.trunc();
    Some(left.cmp(&whole).then(0.0_f64.partial_cmp(&rest)?))
}

/// Returns the integral part of a double in the range of integers.
pub(super) fn whole(value: f64) -> Option<i128> {
    if !(-TWO_63..2.0 * TWO_63).contains(&value) {
        return None;
    }
    format!("{:.0}", value.trunc()).parse().ok()
}

/// Writes a duration in seconds, as CEL does.
pub(super) fn show_span(span: TimeDelta) -> String {
    let millis = span.num_milliseconds();
    let (sign, millis) = if millis < 0 { ("-", millis.unsigned_abs()) } else { ("", millis.unsigned_abs()) };
    match millis % 1_000 {
        0 => format!("{sign}{}s", millis / 1_000),
        rest => format!("{sign}{}.{rest:03}s", millis / 1_000),
    }
}
