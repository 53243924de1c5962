//! Replaces the values in answers that differ between runs, such as ids and times, so that tests can compare whole
//! answers.

use std::borrow::Cow;
use std::collections::HashMap;

use regex::{Captures, Regex};
use serde_json::Value;
use support::Recorded;

/// The patterns of changing values, and their replacements. Ids are numbered in the order of their first appearance, so
/// that equal ids get equal numbers.
const CHANGING: [(&str, &str); 6] = [
    (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "id"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z", "[time]"),
    (r"sha256:[0-9a-f]{64}", "[digest]"),
    (r"\b[0-9a-f]{64}\b", "[hash]"),
    (r"127\.0\.0\.1:[0-9]+", "[upstream]"),
    (r"(/[\w.-]+)*/monstrum-[A-Za-z0-9]{6}", "[home]"),
];

/// Returns `value` with the values that differ between runs replaced.
pub(crate) fn stable(value: &Value) -> Value {
    let patterns = CHANGING.map(|(pattern, name)| (Regex::new(pattern).expect("the patterns are valid"), name));
    Stable { patterns, ids: HashMap::new() }.value(value)
}

/// Formats requests as lines, with a placeholder for the token.
pub(crate) fn lines(requests: &[Recorded], token: &str) -> Vec<String> {
    requests
        .iter()
        .map(|request| {
            let query = if request.query.is_empty() { String::new() } else { format!("?{}", request.query) };
            let authorization = request.header("authorization").unwrap_or("no authorization").replace(token, "TOKEN");
            let body = if request.body.is_empty() { String::new() } else { format!(" {}", request.json()) };
            format!("{} {}{query} ({authorization}){body}", request.method, request.path)
        })
        .collect()
}

struct Stable {
    patterns: [(Regex, &'static str); CHANGING.len()],
    ids: HashMap<String, usize>,
}

impl Stable {
    fn value(&mut self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(name, member)| match (name.as_str(), member) {
                    ("duration_ms", Value::Number(_)) => (name.clone(), Value::String("[ms]".to_owned())),
                    _ => (name.clone(), self.value(member)),
                })
                .collect(),
            other => other.clone(),
        }
    }

    fn text(&mut self, text: &str) -> String {
        let Stable { patterns, ids } = self;
        patterns.iter().fold(text.to_owned(), |text, (pattern, name)| {
            let replaced: Cow<'_, str> = match *name {
                "id" => pattern.replace_all(&text, |found: &Captures<'_>| {
                    let next = ids.len() + 1;
                    format!("[id {}]", ids.entry(found[0].to_owned()).or_insert(next))
                }),
                name => pattern.replace_all(&text, name),
            };
            replaced.into_owned()
        })
    }
}
