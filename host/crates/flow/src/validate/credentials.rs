//! Literals that look like credentials. A definition is stored and shown as it is, so a credential in it is public.

use serde_json::Value;

use super::Found;
use crate::expr::{Piece, Template};
use crate::fault::{Spot, escape};
use crate::model::{Definition, StepKind};

/// What well-known credentials begin with.
const PREFIXES: [&str; 16] = [
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "sk-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "-----BEGIN",
    "eyJhbGciOi",
    "npm_",
];
/// Parts of the names of parameters that hold credentials.
const NAMES: [&str; 8] =
    ["password", "passwd", "secret", "api_key", "apikey", "access_token", "authorization", "private_key"];
/// No credential is shorter.
const BYTES_MIN: usize = 8;

pub(super) fn check(definition: &Definition, found: &mut Found) {
    definition.walk(&mut |step| {
        let mut look = |pointer: &str, template: &Template| {
            let spot = step.spot.below(pointer);
            look_in(template, "", &spot, found);
        };
        match &step.kind {
            StepKind::Tool(tool) => look("/params", &tool.params),
            StepKind::Agent(agent) => {
                look("/agent/params", &agent.params);
                for piece in &agent.instruction {
                    if let Piece::Literal(text) = piece {
                        look("/agent/instruction", &Template::Literal(Value::String(text.clone())));
                    }
                }
            }
            StepKind::Workflow { input, .. } => look("/input", input),
            StepKind::Emit { data, .. } => look("/data", data),
            _ => {}
        }
        if let Some(undo) = &step.undo {
            look("/undo/params", &undo.params);
        }
    });
}

fn look_in(template: &Template, key: &str, spot: &Spot, found: &mut Found) {
    match template {
        Template::Literal(value) => look_at(value, key, spot, found),
        Template::Expression(_) => {}
        Template::Text(pieces) => {
            for piece in pieces {
                if let Piece::Literal(text) = piece {
                    look_at(&Value::String(text.clone()), "", spot, found);
                }
            }
        }
        Template::List(items) => {
            items.iter().enumerate().for_each(|(at, item)| look_in(item, key, &spot.below(&format!("/{at}")), found));
        }
        Template::Map(entries) => entries
            .iter()
            .for_each(|(key, value)| look_in(value, key, &spot.below(&format!("/{}", escape(key))), found)),
    }
}

fn look_at(value: &Value, key: &str, spot: &Spot, found: &mut Found) {
    match value {
        Value::String(text) => {
            let key = key.to_lowercase();
            let is_named = NAMES.iter().any(|name| key.contains(name)) && text.len() >= BYTES_MIN;
            let mut words = text.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '=' | ':' | ','));
            let is_known = words.any(|word| word.len() >= 16 && PREFIXES.iter().any(|prefix| word.starts_with(prefix)));
            if is_named || is_known || text.contains("-----BEGIN") {
                let warning = spot.fault("this looks like a credential, and a definition is not secret");
                found.warn(warning.hint("store the credential with the resource of the tool, and remove it here"));
            }
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| look_at(item, key, &spot.below(&format!("/{at}")), found));
        }
        Value::Object(members) => members
            .iter()
            .for_each(|(key, value)| look_at(value, key, &spot.below(&format!("/{}", escape(key))), found)),
        _ => {}
    }
}
