//! Reads single values of a document and collects their faults.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::expr::{Expression, Piece, Template};
use crate::fault::{At, FAULTS_MAX, Fault, Spot, nearest};
use crate::model::EXPRESSIONS_BYTES_MAX;
use crate::node::{Data, Entry, Node};

/// What a parser has found so far.
#[derive(Default)]
pub(super) struct Parsing {
    pub(super) faults: Vec<Fault>,
    pub(super) more_faults: usize,
    pub(super) steps: usize,
    /// The ids of steps that could not be read. References to them are no further faults.
    pub(super) broken: BTreeSet<String>,
    expression_bytes: usize,
}

impl Parsing {
    pub(super) fn fault(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        } else {
            self.more_faults += 1;
        }
    }

    fn expected<T>(&mut self, node: &Node, at: At<'_>, what: &str) -> Option<T> {
        self.fault(node.spot(at).fault(format!("expected {what}, found {}", node.kind())));
        None
    }

    pub(super) fn list<'n>(&mut self, node: &'n Node, at: At<'_>, what: &str) -> Option<&'n [Node]> {
        match &node.data {
            Data::List(items) => Some(items),
            _ => self.expected(node, at, what),
        }
    }

    pub(super) fn entries<'n>(&mut self, node: &'n Node, at: At<'_>, what: &str) -> Option<&'n [Entry]> {
        match &node.data {
            Data::Map(entries) => Some(entries),
            _ => self.expected(node, at, what),
        }
    }

    /// A text without expressions.
    pub(super) fn text(&mut self, node: &Node, at: At<'_>) -> Option<String> {
        match &node.data {
            Data::Scalar(Value::String(text)) if text.contains("${{") => {
                self.fault(node.spot(at).fault("expressions are not supported here"));
                None
            }
            Data::Scalar(Value::String(text)) => Some(text.clone()),
            _ => self.expected(node, at, "a string"),
        }
    }

    /// A text that `is_valid` accepts.
    pub(super) fn name(&mut self, node: &Node, at: At<'_>, is_valid: fn(&str) -> bool, form: &str) -> Option<String> {
        let text = self.text(node, at)?;
        if is_valid(&text) {
            return Some(text);
        }
        self.fault(node.spot(at).fault(format!("`{text}` is not a valid name")).hint(form));
        None
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, node: &Node, at: At<'_>, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(node, at)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let fault = node.spot(at).fault(format!("unknown value `{text}`"));
            self.fault(fault.hint(format!("the values are {}", known.join(", "))));
        }
        found
    }

    pub(super) fn boolean(&mut self, node: &Node, at: At<'_>) -> Option<bool> {
        match &node.data {
            Data::Scalar(Value::Bool(value)) => Some(*value),
            _ => self.expected(node, at, "true or false"),
        }
    }

    pub(super) fn integer(&mut self, node: &Node, at: At<'_>, most: u32) -> Option<u32> {
        let number = match &node.data {
            Data::Scalar(Value::Number(number)) => number.as_u64(),
            _ => return self.expected(node, at, "a number"),
        };
        let number = number.and_then(|number| u32::try_from(number).ok()).filter(|number| (1..=most).contains(number));
        if number.is_none() {
            self.fault(node.spot(at).fault(format!("expected a number from 1 to {most}")));
        }
        number
    }

    /// A duration such as `10m`, in milliseconds.
    pub(super) fn duration(&mut self, node: &Node, at: At<'_>, most_days: i64) -> Option<i64> {
        let text = match &node.data {
            Data::Scalar(Value::String(text)) => text,
            _ => {
                let fault = node.spot(at).fault(format!("expected a duration, found {}", node.kind()));
                self.fault(fault.hint("write a number with a unit: 10s, 5m, 2h or 3d"));
                return None;
            }
        };
        let Some(duration) = duration_ms(text) else {
            let fault = node.spot(at).fault(format!("`{text}` is not a duration"));
            self.fault(fault.hint("write a number with a unit: 10s, 5m, 2h or 3d"));
            return None;
        };
        if duration == 0 || duration > most_days * DAY_MS {
            self.fault(node.spot(at).fault(format!("a duration here is from 1s to {most_days}d")));
            return None;
        }
        Some(duration)
    }

    pub(super) fn texts(&mut self, node: &Node, at: At<'_>) -> Option<Vec<String>> {
        let items = self.list(node, at, "a list of strings")?;
        let texts = items.iter().enumerate().filter_map(|(index, item)| self.text(item, At::Index(&at, index)));
        Some(texts.collect())
    }

    /// Counts the bytes of an expression, and returns whether there is room for it.
    fn admit(&mut self, bytes: usize, spot: &Spot) -> bool {
        let was_full = self.expression_bytes > EXPRESSIONS_BYTES_MAX;
        self.expression_bytes = self.expression_bytes.saturating_add(bytes);
        let is_full = self.expression_bytes > EXPRESSIONS_BYTES_MAX;
        if is_full && !was_full {
            let kib = EXPRESSIONS_BYTES_MAX / 1024;
            self.fault(spot.fault(format!("the expressions of the definition have more than {kib} KiB")));
        }
        !is_full
    }

    /// A value whose texts may contain expressions.
    pub(super) fn template(&mut self, node: &Node, at: At<'_>) -> Option<Template> {
        Some(match &node.data {
            Data::Scalar(Value::String(text)) if text.contains("${{") => {
                let spot = node.spot(at);
                if !self.admit(text.len(), &spot) {
                    return None;
                }
                match Template::parse(text, &spot) {
                    Ok(template) => template,
                    Err(faults) => {
                        faults.into_iter().for_each(|fault| self.fault(fault));
                        return None;
                    }
                }
            }
            Data::Scalar(value) => Template::Literal(value.clone()),
            Data::List(items) => {
                let parsed: Vec<Option<Template>> =
                    items.iter().enumerate().map(|(index, item)| self.template(item, At::Index(&at, index))).collect();
                folded_list(parsed.into_iter().collect::<Option<_>>()?)
            }
            Data::Map(entries) => {
                let parsed: Vec<Option<(String, Template)>> = entries
                    .iter()
                    .map(|entry| Some((entry.key.clone(), self.template(&entry.node, At::Key(&at, &entry.key))?)))
                    .collect();
                folded_map(parsed.into_iter().collect::<Option<_>>()?)
            }
        })
    }

    /// A map whose values may contain expressions.
    pub(super) fn template_map(&mut self, node: &Node, at: At<'_>) -> Option<Template> {
        match &node.data {
            Data::Map(_) => self.template(node, at),
            _ => self.expected(node, at, "a map"),
        }
    }

    /// A text that may contain expressions.
    pub(super) fn template_text(&mut self, node: &Node, at: At<'_>) -> Option<Template> {
        match &node.data {
            Data::Scalar(Value::String(_)) => self.template(node, at),
            _ => self.expected(node, at, "a string"),
        }
    }

    pub(super) fn pieces(&mut self, node: &Node, at: At<'_>) -> Option<Vec<Piece>> {
        Some(match self.template_text(node, at)? {
            Template::Literal(Value::String(text)) => vec![Piece::Literal(text)],
            Template::Expression(expression) => vec![Piece::Expression(expression)],
            Template::Text(pieces) => pieces,
            Template::Literal(_) | Template::List(_) | Template::Map(_) => return None,
        })
    }

    /// An expression, which may leave out the marks.
    pub(super) fn expression(&mut self, node: &Node, at: At<'_>) -> Option<Expression> {
        let spot = node.spot(at);
        let text = match &node.data {
            Data::Scalar(Value::String(text)) => text.clone(),
            Data::Scalar(Value::Bool(value)) => value.to_string(),
            _ => return self.expected(node, at, "an expression"),
        };
        if text.contains("${{") {
            return match self.template(node, at)? {
                Template::Expression(expression) => Some(expression),
                _ => {
                    self.fault(spot.fault("expected one expression without text around it"));
                    None
                }
            };
        }
        if !self.admit(text.len(), &spot) {
            return None;
        }
        Expression::parse(&text, &spot).map_err(|fault| self.fault(fault)).ok()
    }
}

const DAY_MS: i64 = 86_400_000;

/// Reads a duration such as `10s`, `5m`, `2h` or `3d`.
fn duration_ms(text: &str) -> Option<i64> {
    let unit = match text.chars().last()? {
        's' => 1_000,
        'm' => 60_000,
        'h' => 3_600_000,
        'd' => DAY_MS,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || digits.len() > 9 || !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    digits.parse::<i64>().ok()?.checked_mul(unit)
}

fn folded_list(items: Vec<Template>) -> Template {
    let literals: Option<Vec<Value>> = items.iter().map(literal).collect();
    literals.map_or(Template::List(items), |values| Template::Literal(Value::Array(values)))
}

fn folded_map(entries: Vec<(String, Template)>) -> Template {
    let literals: Option<Map<String, Value>> =
        entries.iter().map(|(key, value)| Some((key.clone(), literal(value)?))).collect();
    literals.map_or(Template::Map(entries), |values| Template::Literal(Value::Object(values)))
}

fn literal(template: &Template) -> Option<Value> {
    match template {
        Template::Literal(value) => Some(value.clone()),
        _ => None,
    }
}

/// The keys of one map. Whatever key is not asked for is unknown.
pub(super) struct Fields<'n> {
    entries: &'n [Entry],
    spot: Spot,
    known: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    pub(super) fn of(parsing: &mut Parsing, node: &'n Node, at: At<'_>, what: &str) -> Option<Fields<'n>> {
        let entries = parsing.entries(node, at, what)?;
        Some(Fields { entries, spot: node.spot(at), known: Vec::new() })
    }

    pub(super) fn optional(&mut self, key: &'static str) -> Option<&'n Node> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    pub(super) fn required(&mut self, key: &'static str, parsing: &mut Parsing) -> Option<&'n Node> {
        let found = self.optional(key);
        if found.is_none() {
            parsing.fault(self.spot.fault(format!("the key `{key}` is missing")));
        }
        found
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'n str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Reports the keys that were not read.
    pub(super) fn end(self, parsing: &mut Parsing, what: &str) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&entry.key.as_str())) {
            if parsing.faults.len() >= FAULTS_MAX {
                parsing.more_faults += 1;
                continue;
            }
            let spot = Spot { line: entry.line, column: entry.column, ..self.key_path(&entry.key) };
            let fault = spot.fault(format!("{what} has no key `{}`", entry.key));
            parsing.fault(match nearest(&entry.key, self.known.iter().copied()) {
                Some(known) => fault.hint(format!("did you mean `{known}`?")),
                None => fault.hint(format!("the keys are {}", self.known.join(", "))),
            });
        }
    }

    /// The place of a key that is there.
    pub(super) fn key_spot(&self, key: &str) -> Spot {
        let found = self.entries.iter().find(|entry| entry.key == key);
        let (line, column) = found.map_or((self.spot.line, self.spot.column), |entry| (entry.line, entry.column));
        Spot { line, column, ..self.key_path(key) }
    }

    fn key_path(&self, key: &str) -> Spot {
        self.spot.below(&format!("/{}", crate::fault::escape(key)))
    }

    pub(super) fn spot(&self) -> &Spot {
        &self.spot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        for (text, expected) in [
            ("10s", Some(10_000)),
            ("5m", Some(300_000)),
            ("2h", Some(7_200_000)),
            ("3d", Some(259_200_000)),
            ("0s", Some(0)),
            ("", None),
            ("s", None),
            ("10", None),
            ("10ms", None),
            ("-1s", None),
            ("1h30m", None),
            ("9999999999d", None),
            ("1ä", None),
        ] {
            assert_eq!(duration_ms(text), expected, "{text}");
        }
    }
}
