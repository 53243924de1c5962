//! The regular expressions of a schema: their compiled size, and the keyword `pattern`, which spends steps for each
//! match.

use std::collections::HashMap;
use std::sync::Arc;

use jsonschema::{Keyword, PatternOptions, ValidationError, Validator};
use monstrum_types::Overrun;
use serde_json::{Map, Value, json};

use crate::error::cut;

use super::limits::{PATTERN_BYTES_MAX, PATTERN_BYTES_STORED_MAX, STATED_CHARS_MAX, TEXT_CHARS_MAX};
use super::paying;

/// The first size limit, in bytes, with which an expression is compiled. An expression of a few characters fits into
/// this limit.
const PATTERN_BYTES_MIN: usize = 512;
/// The fixed cost of a match, in steps, for allocating working memory and starting the engine.
const MATCH_STEPS: u64 = 256;
/// The hint in the error for a pattern that is too large.
const HINT: &str = "use minLength and maxLength instead of a count such as `{1,200}`, and small classes such as \
                    `[0-9A-Za-z_]` instead of `.`, `[^/]` or `\\p{L}`";

/// A regular expression, compiled by the validator, which translates it from ECMA-262.
#[derive(Debug)]
pub(super) struct Pattern {
    matcher: Validator,
    /// An upper bound of the size of the compiled expression; `None` for an expression that the validator compares as
    /// plain text.
    compiled_bytes: Option<usize>,
    text_bytes: usize,
}

impl Pattern {
    /// Compiles an expression. Returns `None` if `text` is not a regular expression, or is too large even for a stored
    /// version.
    fn compile(text: &str) -> Option<Pattern> {
        let pattern = |matcher, compiled_bytes| Pattern { matcher, compiled_bytes, text_bytes: text.len() };
        // An expression that the validator compares as plain text compiles even with a size limit of 0.
        if let Some(matcher) = matcher(text, 0) {
            return Some(pattern(matcher, None));
        }
        let mut size = PATTERN_BYTES_MIN;
        loop {
            if let Some(matcher) = matcher(text, size) {
                return Some(pattern(matcher, Some(size)));
            }
            size = match size {
                PATTERN_BYTES_STORED_MAX.. => return None,
                // `PATTERN_BYTES_MAX` must be one of the tried sizes, so that the size shows whether the limit is
                // exceeded.
                _ if size < PATTERN_BYTES_MAX => PATTERN_BYTES_MAX.min(size * 2),
                _ => PATTERN_BYTES_STORED_MAX.min(size * 2),
            };
        }
    }

    /// Returns the exceeded limit, if any.
    pub(super) fn exceeds(&self) -> Option<String> {
        let is_too_large = self.compiled_bytes.is_some_and(|size| size > PATTERN_BYTES_MAX);
        is_too_large.then(|| format!("the pattern has more than {PATTERN_BYTES_MAX} bytes after compilation; {HINT}"))
    }

    /// Returns an upper bound of the cost of a match for each byte of text, in quarter steps. In the worst case, the
    /// engine cannot convert the expression to an automaton (for example `[ab]*a[ab]{100}$`). Matching a byte of text
    /// then takes 0.22 nanoseconds, about a quarter of a step, for each byte of the compiled expression.
    pub(super) fn quarter_steps(&self) -> u64 {
        self.compiled_bytes.map_or(4, |size| size as u64)
    }

    /// Returns whether the expression matches in `text`. The steps of the match are spent before the match.
    pub(super) fn is_match(&self, text: &Value) -> Result<bool, Overrun> {
        self.spend(text)?;
        Ok(self.matcher.is_valid(text))
    }

    fn spend(&self, text: &Value) -> Result<(), Overrun> {
        let bytes = text.as_str().map_or(0, str::len) as u64;
        let own = self.compiled_bytes.map_or(self.text_bytes as u64, |_| MATCH_STEPS);
        paying::spend(own.saturating_add(self.quarter_steps().saturating_mul(bytes) / 4))
    }
}

/// Returns the validator for the `pattern` `text`, or `None` if the compiled pattern exceeds `size` bytes.
fn matcher(text: &str, size: usize) -> Option<Validator> {
    jsonschema::options()
        .offline()
        .with_pattern_options(PatternOptions::regex().size_limit(size).dfa_size_limit(PATTERN_BYTES_STORED_MAX))
        .should_validate_formats(false)
        .build(&json!({"pattern": text}))
        .ok()
}

/// The regular expressions of one schema, by their text.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Arc<Pattern>>);

impl Patterns {
    /// Compiles a pattern, or returns the compiled pattern if it already exists. `at` is the location of the pattern,
    /// for errors.
    pub(super) fn add(&mut self, at: &str, text: &str) -> Result<Arc<Pattern>, String> {
        if let Some(pattern) = self.0.get(text) {
            return Ok(pattern.clone());
        }
        let pattern = Pattern::compile(text).map(Arc::new).ok_or_else(|| invalid(at, text))?;
        self.0.insert(text.to_owned(), pattern.clone());
        Ok(pattern)
    }

    pub(super) fn get(&self, text: &str) -> Option<&Arc<Pattern>> {
        self.0.get(text)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Creates the keyword `pattern` with the value `text`, in the schema `parent`.
    pub(super) fn keyword<'a>(
        &self,
        parent: &'a Map<String, Value>,
        text: &'a Value,
    ) -> Result<PatternKeyword, ValidationError<'a>> {
        let pattern = text.as_str().and_then(|text| self.get(text));
        // The shape check has already compiled all patterns of the schema.
        let pattern = pattern.ok_or_else(|| ValidationError::custom("the pattern has not been compiled"))?;
        Ok(PatternKeyword {
            pattern: pattern.clone(),
            chars_max: stated_chars(parent).unwrap_or(0).max(TEXT_CHARS_MAX),
        })
    }
}

/// Returns the error of a pattern that does not compile.
fn invalid(at: &str, text: &str) -> String {
    format!(
        "not a JSON Schema: at `{}`: `{}` is not a regular expression, is too large, or has look-around or \
         back-references",
        cut(at, 128),
        cut(text, 64)
    )
}

/// Returns the `maxLength` of the schema.
pub(super) fn stated_chars(schema: &Map<String, Value>) -> Option<u64> {
    let stated = schema.get("maxLength")?;
    // A float such as 10.0, or a number beyond the range of u64, is also a valid limit.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let rounded = |stated: f64| stated as u64;
    stated.as_u64().or_else(|| stated.as_f64().map(rounded))
}

/// Returns the error for a `maxLength` next to a `pattern` that exceeds the current limit.
pub(super) fn stated_exceeds(schema: &Map<String, Value>) -> Option<String> {
    stated_chars(schema).filter(|stated| *stated > STATED_CHARS_MAX)?;
    Some(format!(
        "next to a `pattern`, maxLength must be at most {STATED_CHARS_MAX}, because the work of a match grows \
         with the text"
    ))
}

/// The keyword `pattern`, which spends steps for each match and rejects texts that are too long.
pub(super) struct PatternKeyword {
    pattern: Arc<Pattern>,
    chars_max: u64,
}

impl PatternKeyword {
    fn is_too_long(&self, text: &Value) -> bool {
        let Value::String(text) = text else { return false };
        text.len() as u64 > self.chars_max && text.chars().count() as u64 > self.chars_max
    }

    fn too_long<'i>(&self) -> ValidationError<'i> {
        let max = self.chars_max;
        ValidationError::custom(if max == TEXT_CHARS_MAX {
            format!(
                "must not be longer than {max} characters, the limit for texts with a `pattern`; the schema may set a \
                 maxLength of up to {STATED_CHARS_MAX}"
            )
        } else {
            format!("must not be longer than {max} characters")
        })
    }
}

impl<'i> Keyword<'i> for PatternKeyword {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if !instance.is_string() {
            return Ok(());
        }
        if self.is_too_long(instance) {
            return Err(self.too_long());
        }
        // After an overrun the whole check fails, so this message is not shown.
        self.pattern.spend(instance).map_err(|overrun| ValidationError::custom(overrun.to_string()))?;
        self.pattern.matcher.validate(instance)
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        !instance.is_string() || !self.is_too_long(instance) && self.pattern.is_match(instance) == Ok(true)
    }
}
