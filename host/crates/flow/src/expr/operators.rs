//! Operators on values that have been evaluated.

use std::cmp::Ordering;
use std::rc::Rc;

use cel::common::ast::operators as op;

use super::meter::{Meter, Stop};
use super::value::{Text, Val, checked, double};

/// Returns whether `name` is an operator with `arguments` operands.
pub(super) fn is_operator(name: &str, arguments: usize) -> bool {
    match name {
        op::CONDITIONAL => arguments == 3,
        op::LOGICAL_NOT | op::NEGATE | op::NOT_STRICTLY_FALSE => arguments == 1,
        op::LOGICAL_AND | op::LOGICAL_OR | op::SUBSTRACT | op::ADD | op::MULTIPLY | op::DIVIDE | op::MODULO => {
            arguments == 2
        }
        op::EQUALS | op::NOT_EQUALS | op::GREATER_EQUALS | op::LESS_EQUALS | op::GREATER | op::LESS => arguments == 2,
        op::INDEX | op::IN => arguments == 2,
        _ => false,
    }
}

/// Applies an operator with two operands that are both always evaluated.
pub(super) fn binary<'a>(name: &str, left: &Val<'a>, right: &Val<'a>, meter: &Meter) -> Result<Val<'a>, Stop> {
    let order = |is_wanted: fn(Ordering) -> bool| left.compare(right, meter).map(|order| Val::Bool(is_wanted(order)));
    match name {
        op::EQUALS => left.equals(right, meter).map(Val::Bool),
        op::NOT_EQUALS => left.equals(right, meter).map(|equal| Val::Bool(!equal)),
        op::LESS => order(Ordering::is_lt),
        op::LESS_EQUALS => order(Ordering::is_le),
        op::GREATER => order(Ordering::is_gt),
        op::GREATER_EQUALS => order(Ordering::is_ge),
        op::ADD => add(left, right, meter),
        op::SUBSTRACT => subtract(left, right),
        op::MULTIPLY | op::DIVIDE | op::MODULO => scale(name, left, right),
        op::INDEX => index(left, right, meter),
        op::IN => contains(right, left, meter).map(Val::Bool),
        _ => Err(mismatch(name, left, right)),
    }
}

fn mismatch(name: &str, left: &Val<'_>, right: &Val<'_>) -> Stop {
    let name = name.trim_matches(['_', '@']);
    Stop::failed(format!("`{name}` does not apply to values of the types {} and {}", left.kind(), right.kind()))
}

fn add<'a>(left: &Val<'a>, right: &Val<'a>, meter: &Meter) -> Result<Val<'a>, Stop> {
    match (left, right) {
        (Val::Int(one), Val::Int(other)) => checked(one.checked_add(*other)),
        (Val::Text(one), Val::Text(other)) => {
            meter.create((one.len() + other.len()) as u64)?;
            Ok(Val::text([&**one, &**other].concat()))
        }
        (Val::Time(time), Val::Span(span)) | (Val::Span(span), Val::Time(time)) => {
            time.checked_add_signed(*span).and_then(in_range).ok_or_else(|| Stop::failed("the time is out of range"))
        }
        (Val::Span(one), Val::Span(other)) => {
            one.checked_add(other).map(Val::Span).ok_or_else(|| Stop::failed("the duration is out of range"))
        }
        (one, other) if one.kind() == "list" && other.kind() == "list" => {
            let count = one.len(meter)? + other.len(meter)?;
            meter.elements(count)?;
            let mut items = Vec::with_capacity(count);
            items.extend((0..).map_while(|at| one.index(at)));
            items.extend((0..).map_while(|at| other.index(at)));
            Ok(Val::List(Rc::new(items)))
        }
        _ => match (double(left), double(right)) {
            (Some(one), Some(other)) => Ok(Val::Double(one + other)),
            _ => Err(mismatch(op::ADD, left, right)),
        },
    }
}

fn subtract<'a>(left: &Val<'a>, right: &Val<'a>) -> Result<Val<'a>, Stop> {
    match (left, right) {
        (Val::Int(one), Val::Int(other)) => checked(one.checked_sub(*other)),
        (Val::Time(time), Val::Span(span)) => {
            time.checked_sub_signed(*span).and_then(in_range).ok_or_else(|| Stop::failed("the time is out of range"))
        }
        (Val::Time(one), Val::Time(other)) => Ok(Val::Span(one.signed_duration_since(*other))),
        (Val::Span(one), Val::Span(other)) => {
            one.checked_sub(other).map(Val::Span).ok_or_else(|| Stop::failed("the duration is out of range"))
        }
        _ => match (double(left), double(right)) {
            (Some(one), Some(other)) => Ok(Val::Double(one - other)),
            _ => Err(mismatch(op::SUBSTRACT, left, right)),
        },
    }
}

fn scale<'a>(name: &str, left: &Val<'a>, right: &Val<'a>) -> Result<Val<'a>, Stop> {
    if let (Val::Int(one), Val::Int(other)) = (left, right) {
        if name == op::MULTIPLY {
            return checked(one.checked_mul(*other));
        }
        let result = if name == op::DIVIDE { one.checked_div(*other) } else { one.checked_rem(*other) };
        return result.map_or_else(|| Err(Stop::failed("division by zero")), |value| checked(Some(value)));
    }
    match (name, double(left), double(right)) {
        (op::MULTIPLY, Some(one), Some(other)) => Ok(Val::Double(one * other)),
        (op::DIVIDE, Some(one), Some(other)) => Ok(Val::Double(one / other)),
        _ => Err(mismatch(name, left, right)),
    }
}

fn index<'a>(value: &Val<'a>, key: &Val<'a>, meter: &Meter) -> Result<Val<'a>, Stop> {
    if let Val::Text(name) = key {
        let found = value.member(name, meter)?;
        return found.ok_or_else(|| Stop::failed(format!("there is no field `{}`", short(name))));
    }
    let (Val::Int(at), "list") = (key, value.kind()) else { return Err(mismatch("_[]_", value, key)) };
    let item = usize::try_from(*at).ok().and_then(|at| value.index(at));
    item.ok_or_else(|| Stop::failed(format!("the list has no item {at}")))
}

/// Returns whether a list has an item, or a map a key.
fn contains<'a>(whole: &Val<'a>, part: &Val<'a>, meter: &Meter) -> Result<bool, Stop> {
    match (whole, part) {
        (Val::Map(_) | Val::JsonMap(_) | Val::Step(_), Val::Text(name)) => Ok(whole.member(name, meter)?.is_some()),
        (Val::Map(_) | Val::JsonMap(_) | Val::Step(_), _) => Ok(false),
        (Val::List(_) | Val::JsonList(_), _) => {
            let mut at = 0;
            while let Some(item) = whole.index(at) {
                if item.equals(part, meter)? {
                    return Ok(true);
                }
                at += 1;
            }
            Ok(false)
        }
        _ => Err(mismatch(op::IN, part, whole)),
    }
}

pub(super) fn negate<'a>(value: &Val<'a>) -> Result<Val<'a>, Stop> {
    match value {
        Val::Int(value) => checked(value.checked_neg()),
        Val::Double(value) => Ok(Val::Double(-value)),
        Val::Span(span) => Ok(Val::Span(-*span)),
        other => Err(Stop::failed(format!("`-` does not apply to a value of type {}", other.kind()))),
    }
}

/// Checks that a time has a year of four digits, as the format of times requires.
pub(super) fn in_range<'a>(time: chrono::DateTime<chrono::Utc>) -> Option<Val<'a>> {
    use chrono::Datelike;
    (1..=9_999).contains(&time.year()).then_some(Val::Time(time))
}

pub(super) fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

/// A key of a map literal.
pub(super) fn key<'a>(value: Val<'a>) -> Result<Text<'a>, Stop> {
    match value {
        Val::Text(text) => Ok(text),
        other => Err(Stop::failed(format!("a key is a string, found a value of type {}", other.kind()))),
    }
}
