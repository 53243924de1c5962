//! Values with expressions in their texts.

use serde_json::{Map, Value};

use super::ExpressionError;
use super::compile::Expression;
use super::eval::inserted;
use super::meter::{Meter, VALUE_BYTES_MAX};
use super::scope::Scope;
use crate::fault::{Fault, Spot};

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

/// A value of a definition. Texts may contain expressions; a text that is one expression has the value of the expression
/// with its type. What was put in is never read again.
#[derive(Clone, Debug, PartialEq)]
pub enum Template {
    /// A value without expressions.
    Literal(Value),
    /// A text that is one expression.
    Expression(Expression),
    /// A text with expressions in it.
    Text(Vec<Piece>),
    /// A list with expressions below.
    List(Vec<Template>),
    /// A map with expressions below. Keys are literal.
    Map(Vec<(String, Template)>),
}

/// A piece of a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Literal text.
    Literal(String),
    /// The place of a value.
    Expression(Expression),
}

impl Template {
    /// Parses a text. An error is only about this text, so that the caller can go on with others.
    pub(crate) fn parse(text: &str, spot: &Spot) -> Result<Template, Vec<Fault>> {
        let pieces = pieces(text, spot)?;
        Ok(match <[Piece; 1]>::try_from(pieces) {
            Ok([Piece::Literal(text)]) => Template::Literal(Value::String(text)),
            Ok([Piece::Expression(expression)]) => Template::Expression(expression),
            Err(pieces) if pieces.is_empty() => Template::Literal(Value::String(String::new())),
            Err(pieces) => Template::Text(pieces),
        })
    }

    /// Evaluates all expressions.
    ///
    /// # Errors
    /// Fails if an expression fails, or if the whole value is larger than the largest result of a step.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Value, ExpressionError> {
        self.metered(scope, &Meter::default())
    }

    /// Evaluates all expressions with what is left of a budget.
    pub(crate) fn metered(&self, scope: &Scope<'_>, meter: &Meter) -> Result<Value, ExpressionError> {
        let mut left = VALUE_BYTES_MAX;
        self.within(scope, meter, &mut left)
    }

    fn within(&self, scope: &Scope<'_>, meter: &Meter, left: &mut u64) -> Result<Value, ExpressionError> {
        match self {
            Template::Literal(value) => Ok(value.clone()),
            Template::Expression(expression) => {
                let value = expression.metered(scope, meter)?;
                spend(left, json_bytes(&value), expression)?;
                Ok(value)
            }
            Template::Text(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    match piece {
                        Piece::Literal(literal) => text.push_str(literal),
                        Piece::Expression(expression) => {
                            let value = inserted(&expression.metered(scope, meter)?);
                            spend(left, value.len() as u64, expression)?;
                            text.push_str(&value);
                        }
                    }
                }
                Ok(Value::String(text))
            }
            Template::List(items) => items.iter().map(|item| item.within(scope, meter, left)).collect(),
            Template::Map(entries) => {
                let mut map = Map::new();
                for (key, value) in entries {
                    map.insert(key.clone(), value.within(scope, meter, left)?);
                }
                Ok(Value::Object(map))
            }
        }
    }

    /// Calls `visit` for each expression.
    pub fn each_expression<'t>(&'t self, visit: &mut dyn FnMut(&'t Expression)) {
        match self {
            Template::Literal(_) => {}
            Template::Expression(expression) => visit(expression),
            Template::Text(pieces) => pieces.iter().for_each(|piece| {
                if let Piece::Expression(expression) = piece {
                    visit(expression);
                }
            }),
            Template::List(items) => items.iter().for_each(|item| item.each_expression(visit)),
            Template::Map(entries) => entries.iter().for_each(|(_, value)| value.each_expression(visit)),
        }
    }

    /// Returns the value with null in the place of each expression.
    pub(crate) fn skeleton(&self) -> Value {
        match self {
            Template::Literal(value) => value.clone(),
            Template::Expression(_) | Template::Text(_) => Value::Null,
            Template::List(items) => items.iter().map(Template::skeleton).collect(),
            Template::Map(entries) => {
                Value::Object(entries.iter().map(|(key, value)| (key.clone(), value.skeleton())).collect())
            }
        }
    }

    /// Returns how much of the value at a JSON pointer is known before expressions are evaluated.
    pub(crate) fn known_at(&self, pointer: &str) -> Known {
        let mut template = self;
        for step in pointer.split('/').skip(1) {
            let next = match template {
                Template::Literal(_) => return Known::All,
                Template::Expression(_) | Template::Text(_) => return Known::Nothing,
                Template::List(items) => step.parse::<usize>().ok().and_then(|index| items.get(index)),
                Template::Map(entries) => {
                    let key = step.replace("~1", "/").replace("~0", "~");
                    entries.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
                }
            };
            let Some(next) = next else { return Known::All };
            template = next;
        }
        match template {
            Template::Literal(_) => Known::All,
            Template::Expression(_) | Template::Text(_) => Known::Nothing,
            // Without expressions below, it would be a literal.
            Template::List(_) | Template::Map(_) => Known::Around,
        }
    }
}

/// How much of a value is known before expressions are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The whole value.
    All,
    /// Its type, and the keys or the length. An expression stands below.
    Around,
    /// Nothing: an expression makes it.
    Nothing,
}

fn spend(left: &mut u64, bytes: u64, expression: &Expression) -> Result<(), ExpressionError> {
    let error = || expression.error(&format!("the whole value has more than {VALUE_BYTES_MAX} bytes"));
    *left = left.checked_sub(bytes).ok_or_else(error)?;
    Ok(())
}

/// Returns the length of a value as JSON.
pub(crate) fn json_bytes(value: &Value) -> u64 {
    struct Count(u64);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Neither the counter nor a value of JSON can fail.
    serde_json::to_writer(&mut count, value).map_or(u64::MAX, |()| count.0)
}

/// Splits a text into literal pieces and expressions. `$${{` is a literal `${{`.
pub(crate) fn pieces(text: &str, spot: &Spot) -> Result<Vec<Piece>, Vec<Fault>> {
    let (mut pieces, mut faults) = (Vec::new(), Vec::new());
    let (mut literal, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(OPEN) {
        let (before, after) = (&rest[..at], &rest[at + OPEN.len()..]);
        if let Some(before) = before.strip_suffix('$') {
            literal.push_str(before);
            literal.push_str(OPEN);
            rest = after;
            continue;
        }
        literal.push_str(before);
        let Some(end) = end_of_expression(after) else {
            faults.push(spot.fault("`${{` without `}}`").hint("write `$${{` for a literal `${{`"));
            return Err(faults);
        };
        if !literal.is_empty() {
            pieces.push(Piece::Literal(std::mem::take(&mut literal)));
        }
        match Expression::parse(&after[..end], spot) {
            Ok(expression) => pieces.push(Piece::Expression(expression)),
            Err(fault) => faults.push(fault),
        }
        rest = &after[end + CLOSE.len()..];
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    if faults.is_empty() { Ok(pieces) } else { Err(faults) }
}

/// Returns where the `}}` of an expression is. Marks in its strings do not count, and braces of maps are matched.
fn end_of_expression(text: &str) -> Option<usize> {
    let (mut quote, mut escaped, mut braces) = (None, false, 0_usize);
    for (at, c) in text.char_indices() {
        match quote {
            Some(mark) => {
                if !escaped && c == mark {
                    quote = None;
                }
                escaped = c == '\\' && !escaped;
            }
            None => match c {
                '\'' | '"' => quote = Some(c),
                '{' => braces += 1,
                '}' if braces > 0 => braces -= 1,
                '}' if text[at..].starts_with(CLOSE) => return Some(at),
                _ => {}
            },
        }
    }
    None
}
