//! Redaction of secret values, in all usual encodings, from everything that leaves a call.
//!
//! Percent and JSON escapes can be mixed in many ways, so they are not searched as patterns. Instead, redaction
//! searches the text and its decoded views (`views`), and traces matches back to the text. Base64, base64url, hex and
//! UTF-16 are patterns (`patterns`), which a single pass finds (`search`). To find secrets that are encoded again
//! inside base64 or hex, redaction decodes the digits (`runs`). Redaction does not detect other transformations by an
//! upstream.

mod escapes;
mod patterns;
mod pieces;
mod runs;
mod search;
mod views;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use monstrum_types::{Failure, JsonText, Secret};
use parking_lot::RwLock;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::searches::{SearchBudget, SearchError, Watch};
pub use pieces::PieceRedactor;
use runs::Digits;
use search::Search;
use views::{Nature, Reading, View};

/// The replacement for a secret. It needs no escaping in JSON strings, URLs and headers.
pub const REDACTED: &str = "[redacted]";

/// The minimum length of a secret. The host rejects shorter secrets when they are saved, because they would match
/// ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;

/// The maximum number of nested decodings, as in a JSON string in a JSON string, or a URL in a URL.
const VIEW_DEPTH_MAX: usize = 2;

/// Finds and replaces the secret values of one resource.
#[derive(Default)]
pub struct Redactor {
    values: Vec<Secret>,
    /// The compiled search for the secrets, or `None` if there are no secrets.
    search: Option<Search>,
    /// Additional patterns for header names. They are created on first use.
    names: OnceLock<Search>,
    /// The decoded views in which secrets are searched.
    views: Vec<Lens>,
    /// Whether all values are printable ASCII.
    printable: bool,
    /// Whether at least one of the values can be parsed as a number.
    numeric: bool,
}

/// A view, and the readings for a secret that starts inside one of the view's escapes. The index into `readings` is the
/// number of nested views minus one.
struct Lens {
    view: View,
    readings: [Vec<Reading>; VIEW_DEPTH_MAX],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    AsWritten,
    /// The case is ignored, for text whose case may change in transit, such as header names.
    Ignored,
}

impl Redactor {
    /// Creates a redactor for `values`: the secret fields of a credential and the values derived from them.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = Secret>) -> Self {
        let mut redactor = Redactor::default();
        for value in values {
            redactor.keep(value);
        }
        redactor.build();
        redactor
    }

    /// Returns whether `bytes` contain a secret, in any known encoding.
    #[must_use]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        !self.find(bytes, Case::AsWritten).is_empty()
    }

    /// Like [`Redactor::contains`], within the limits of `watch`.
    pub(crate) fn contains_watched(&self, bytes: &[u8], watch: &Watch) -> Result<bool, SearchError> {
        Ok(!self.find_watched(bytes, watch)?.is_empty())
    }

    /// Redacts `bytes`, within the limits of `watch`.
    pub fn redact_watched(&self, bytes: Vec<u8>, watch: &Watch) -> Result<Vec<u8>, SearchError> {
        let found = self.find_watched(&bytes, watch)?;
        Ok(if found.is_empty() { bytes } else { replace(&bytes, &found) })
    }

    /// Redacts `bytes`.
    #[must_use]
    pub fn redact_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        let found = self.find(&bytes, Case::AsWritten);
        if found.is_empty() { bytes } else { replace(&bytes, &found) }
    }

    /// Redacts `text`.
    #[must_use]
    pub fn redact_text(&self, text: String) -> String {
        self.redact_text_by(text, None)
    }

    /// Redacts `text`, within the limits of `watch`.
    pub fn redact_text_watched(&self, text: String, watch: &Watch) -> Result<String, SearchError> {
        let redacted = self.redact_text_by(text, Some(watch));
        watch.check().map(|()| redacted)
    }

    fn redact_text_by(&self, text: String, watch: Option<&Watch>) -> String {
        let found = self.find_by(text.as_bytes(), Case::AsWritten, watch);
        replace_in(text, &found)
    }

    /// Redacts a header name, ignoring case.
    #[must_use]
    pub fn redact_name(&self, name: String) -> String {
        if self.search.is_none() {
            return name;
        }
        let nested = || Search::new(self.values.iter().flat_map(|value| patterns::in_base64(value.expose())).collect());
        let mut found = self.find(name.as_bytes(), Case::Ignored);
        found.extend(self.names.get_or_init(nested).find(name.as_bytes(), true));
        replace_in(name, &merge(found))
    }

    /// Redacts the keys, strings and numbers of `text`.
    #[must_use]
    pub fn redact_json(&self, text: JsonText) -> JsonText {
        self.redact_json_by(text, None)
    }

    /// Like [`Redactor::redact_json`], within the limits of `watch`.
    pub fn redact_json_watched(&self, text: JsonText, watch: &Watch) -> Result<JsonText, SearchError> {
        let redacted = self.redact_json_by(text, Some(watch));
        // A search that ended early has no valid result.
        watch.check().map(|()| redacted)
    }

    fn redact_json_by(&self, text: JsonText, watch: Option<&Watch>) -> JsonText {
        let contains = |bytes: &[u8]| !self.find_by(bytes, Case::AsWritten, watch).is_empty();
        // Without escapes, the text contains the strings unchanged, so one search of the whole text suffices. A number
        // has several spellings, so numeric secrets need a search of the parsed numbers.
        let is_plain = !text.as_str().contains('\\') && !self.numeric;
        if self.search.is_none() || is_plain && !contains(text.as_str().as_bytes()) {
            return text;
        }
        let value = text.value();
        // One search over all texts is much faster than a separate search for each text.
        let mut texts = Zeroizing::new(Vec::new());
        gather(&value, &mut texts);
        // The original text is never returned, because it may contain duplicate keys, which the parsed value lacks.
        JsonText::from(&if contains(&texts) { self.redact_each(value, watch) } else { value })
    }

    fn redact_each(&self, value: Value, watch: Option<&Watch>) -> Value {
        match value {
            Value::String(text) => Value::String(self.redact_text_by(text, watch)),
            Value::Array(items) => items.into_iter().map(|item| self.redact_each(item, watch)).collect(),
            Value::Object(members) => Value::Object(self.redact_members(members, watch)),
            Value::Number(number) if self.contains(number.to_string().as_bytes()) => Value::from(REDACTED),
            other => other,
        }
    }

    /// Redacts the message of `failure`.
    #[must_use]
    pub fn redact_failure(&self, failure: Failure) -> Failure {
        Failure { message: self.redact_text(failure.message), ..failure }
    }

    fn redact_members(&self, members: Map<String, Value>, watch: Option<&Watch>) -> Map<String, Value> {
        let redacted = |(key, value)| (self.redact_text_by(key, watch), self.redact_each(value, watch));
        members.into_iter().map(redacted).collect()
    }

    fn keep(&mut self, value: Secret) {
        let trimmed = value.expose().trim();
        if trimmed.len() < value.expose().len() {
            // HTTP trims header values, so an upstream may echo the trimmed value.
            self.keep(Secret::new(trimmed.to_owned()));
        }
        if value.expose().len() >= SECRET_BYTES_MIN && !self.knows(&value) {
            self.values.push(value);
        }
    }

    fn knows(&self, value: &Secret) -> bool {
        self.values.iter().any(|known| known.expose() == value.expose())
    }

    fn build(&mut self) {
        let patterns: Vec<_> = self.values.iter().flat_map(|value| patterns::of(value.expose())).collect();
        self.printable = self.values.iter().all(|value| value.expose().bytes().all(|byte| matches!(byte, b' '..=b'~')));
        let is_held = |mark: u8| self.values.iter().any(|value| value.expose().as_bytes().contains(&mark));
        let views = View::of(Nature { printable: self.printable, marks: escapes::MARKS.map(is_held) });
        let readings = |view: View| std::array::from_fn(|levels| view.readings(&views, levels + 1));
        self.views = views.iter().map(|view| Lens { view: *view, readings: readings(*view) }).collect();
        self.numeric = self.values.iter().any(|value| value.expose().parse::<f64>().is_ok());
        self.search = (!patterns.is_empty()).then(|| Search::new(patterns));
    }

    /// Returns the ranges of secrets in `text`. The ranges are sorted and do not overlap.
    fn find(&self, text: &[u8], case: Case) -> Vec<Range<usize>> {
        self.find_by(text, case, None)
    }

    /// Like [`Redactor::find`], but the result is incomplete if `watch` ends the search.
    fn find_by(&self, text: &[u8], case: Case, watch: Option<&Watch>) -> Vec<Range<usize>> {
        let pass = |search| Pass { redactor: self, search, ignore_case: case == Case::Ignored, watch };
        self.search.as_ref().map_or_else(Vec::new, |search| pass(search).find(text, 0))
    }

    fn find_watched(&self, text: &[u8], watch: &Watch) -> Result<Vec<Range<usize>>, SearchError> {
        let found = self.find_by(text, Case::AsWritten, Some(watch));
        // A search that ended early has no valid result.
        watch.check().map(|()| found)
    }
}

/// One search of a text in all views.
struct Pass<'a> {
    redactor: &'a Redactor,
    search: &'a Search,
    ignore_case: bool,
    watch: Option<&'a Watch>,
}

impl Pass<'_> {
    /// Returns the ranges of secrets in `text`, which is the result of `depth` nested decodings. The ranges are sorted
    /// and do not overlap. The result is incomplete if the watch ends the search.
    fn find(&self, text: &[u8], depth: usize) -> Vec<Range<usize>> {
        if self.watch.is_some_and(|watch| !watch.may_look_at(text.len())) {
            return Vec::new();
        }
        let mut found = self.search.find(text, self.ignore_case);
        if depth < VIEW_DEPTH_MAX {
            self.find_in_views(text, depth, &mut found);
            self.find_in_digits(text, depth, &mut found);
        }
        merge(found)
    }

    fn find_in_views(&self, text: &[u8], depth: usize, found: &mut Vec<Range<usize>>) {
        let is_utf16 = views::looks_like_utf16(text);
        let views = self.redactor.views.iter().filter(|lens| is_utf16 || !lens.view.is_of_utf16());
        for Lens { view, readings } in views {
            let mut askew = Vec::new();
            let within = |place| {
                for reading in &readings[VIEW_DEPTH_MAX - depth - 1] {
                    self.search.find_at(text, place, *reading, self.ignore_case, &mut askew);
                }
            };
            if let Some(decoded) = view.decode(text, self.search.backslashes_max(), within) {
                let inner = self.find(&decoded, depth + 1);
                found.extend(view.trace_back(text, &inner));
                found.append(&mut askew);
            }
        }
    }

    fn find_in_digits(&self, text: &[u8], depth: usize, found: &mut Vec<Range<usize>>) {
        for digits in Digits::ALL {
            // Base64 is case-sensitive.
            if !self.ignore_case || digits == Digits::Hex {
                found.extend(digits.find(text, self.redactor.printable, |bytes| self.find(bytes, depth + 1)));
            }
        }
    }
}

/// Collects all keys, strings and numbers of `value`. The separator is a byte that does not occur in text or in
/// encodings, so a match never spans two texts.
fn gather(value: &Value, texts: &mut Vec<u8>) {
    const BETWEEN: u8 = 0xff;
    match value {
        Value::String(text) => texts.extend_from_slice(text.as_bytes()),
        Value::Number(number) => texts.extend_from_slice(number.to_string().as_bytes()),
        Value::Array(items) => items.iter().for_each(|item| gather(item, texts)),
        Value::Object(members) => {
            for (key, value) in members {
                texts.extend_from_slice(key.as_bytes());
                texts.push(BETWEEN);
                gather(value, texts);
            }
        }
        Value::Null | Value::Bool(_) => return,
    }
    texts.push(BETWEEN);
}

/// Sorts ranges and merges overlapping ranges.
fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn replace(bytes: &[u8], ranges: &[Range<usize>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + ranges.len() * REDACTED.len());
    let mut from = 0;
    for range in ranges {
        out.extend_from_slice(&bytes[from..range.start]);
        out.extend_from_slice(REDACTED.as_bytes());
        from = range.end;
    }
    out.extend_from_slice(&bytes[from..]);
    out
}

fn replace_in(text: String, ranges: &[Range<usize>]) -> String {
    if ranges.is_empty() {
        return text;
    }
    // A match of a UTF-16 pattern may end inside a character.
    String::from_utf8_lossy(&replace(text.as_bytes(), ranges)).into_owned()
}

/// The redactor and the search budget of a call. Values are only added, never removed: a token that is replaced during
/// the call is still redacted afterwards, because the plugin may have read the token earlier.
#[derive(Default)]
pub struct RedactorCell {
    current: RwLock<Arc<Redactor>>,
    budget: Arc<SearchBudget>,
}

impl RedactorCell {
    /// Creates a cell with `redactor`.
    #[must_use]
    pub fn new(redactor: Arc<Redactor>) -> Self {
        RedactorCell { current: RwLock::new(redactor), budget: Arc::default() }
    }

    /// Sets the budget that searches are charged to.
    #[must_use]
    pub fn with_budget(self, budget: SearchBudget) -> Self {
        RedactorCell { budget: Arc::new(budget), ..self }
    }

    /// Returns the budget of the call's searches.
    #[must_use]
    pub fn budget(&self) -> &Arc<SearchBudget> {
        &self.budget
    }

    /// Returns the current redactor.
    #[must_use]
    pub fn current(&self) -> Arc<Redactor> {
        Arc::clone(&self.current.read())
    }

    /// Adds `values`. Returns true if at least one of them is new.
    pub fn learn(&self, values: Vec<Secret>) -> bool {
        let mut current = self.current.write();
        let known = current.values.len();
        if values.iter().all(|value| current.knows(value) || value.expose().len() < SECRET_BYTES_MIN) {
            return false;
        }
        let grown = Redactor::new(current.values.iter().cloned().chain(values));
        let learned = grown.values.len() > known;
        *current = Arc::new(grown);
        learned
    }
}

#[cfg(test)]
mod tests;
