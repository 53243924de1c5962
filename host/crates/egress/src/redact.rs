//! Redaction: no secret value leaves a call, in whichever of the usual encodings it is echoed.
//!
//! Percent and JSON escapes may be mixed at will, so they are not searched for as patterns: the text is searched as it
//! is and as its decoded views (`views`), and what is found there is traced back to the text. Base64, base64url, hex
//! and UTF-16 are patterns (`patterns`), found in one pass (`search`); what is encoded once more within base64 or hex
//! is found by reading their digits (`runs`). What an upstream transforms in any other way is beyond this.

mod escapes;
mod patterns;
mod runs;
mod search;
mod views;

use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use monstrum_types::{Failure, JsonText, Secret};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::searches::{SearchBudget, Stopped, Watch};
use runs::Digits;
use search::Search;
use views::{Nature, Reading, View};

/// What stands where a secret was. It has no character that a JSON string, a URL or a header would have to escape.
pub const REDACTED: &str = "[redacted]";

/// Shorter values are refused when a credential is saved; searching for them would hit ordinary text.
pub const SECRET_BYTES_MIN: usize = 8;

/// How many decodings may lie on top of each other: a JSON string within a JSON string, a URL within a URL.
const VIEW_DEPTH_MAX: usize = 2;

/// Finds and replaces the secret values of one resource.
#[derive(Default)]
pub struct Redactor {
    values: Vec<Secret>,
    /// None where there is nothing to search for.
    search: Option<Search>,
    /// What else is looked for in the names of headers; made when the first one is.
    names: OnceLock<Search>,
    /// The views in which these values show.
    views: Vec<Lens>,
    /// Whether these values are printable ASCII throughout.
    printable: bool,
    /// Whether one of these values reads as a number.
    numeric: bool,
}

/// A view, and the ways to read on from within one of its escapes: by how many views may lie on top of each other there,
/// less one.
struct Lens {
    view: View,
    readings: [Vec<Reading>; VIEW_DEPTH_MAX],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    AsWritten,
    /// For what arrives in lower case whatever was sent, such as header names.
    Ignored,
}

impl Redactor {
    /// A redactor for `values`: every secret field of a credential and every value derived from one.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = Secret>) -> Self {
        let mut redactor = Redactor::default();
        for value in values {
            redactor.keep(value);
        }
        redactor.build();
        redactor
    }

    /// Whether `bytes` hold a secret, in any encoding.
    #[must_use]
    pub fn contains(&self, bytes: &[u8]) -> bool {
        !self.find(bytes, Case::AsWritten).is_empty()
    }

    /// The same, as long as `watch` lets the search go on.
    pub(crate) fn contains_watched(&self, bytes: &[u8], watch: &Watch) -> Result<bool, Stopped> {
        Ok(!self.find_watched(bytes, watch)?.is_empty())
    }

    /// `bytes` without secrets, as long as `watch` lets the search go on.
    pub fn redact_watched(&self, bytes: Vec<u8>, watch: &Watch) -> Result<Vec<u8>, Stopped> {
        let found = self.find_watched(&bytes, watch)?;
        Ok(if found.is_empty() { bytes } else { replace(&bytes, &found) })
    }

    /// `bytes` without secrets.
    #[must_use]
    pub fn redact_bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        let found = self.find(&bytes, Case::AsWritten);
        if found.is_empty() { bytes } else { replace(&bytes, &found) }
    }

    /// `text` without secrets.
    #[must_use]
    pub fn redact_text(&self, text: String) -> String {
        self.redact_text_by(text, None)
    }

    /// `text` without secrets, as long as `watch` lets the search go on.
    pub fn redact_text_watched(&self, text: String, watch: &Watch) -> Result<String, Stopped> {
        let redacted = self.redact_text_by(text, Some(watch));
        watch.check().map(|()| redacted)
    }

    fn redact_text_by(&self, text: String, watch: Option<&Watch>) -> String {
        let found = self.find_by(text.as_bytes(), Case::AsWritten, watch);
        replace_in(text, &found)
    }

    /// The name of a header without secrets, whatever became of their case.
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

    /// `text` without secrets in its keys, strings and numbers.
    #[must_use]
    pub fn redact_json(&self, text: JsonText) -> JsonText {
        self.redact_json_by(text, None)
    }

    /// The same, as long as `watch` lets the search go on.
    pub fn redact_json_watched(&self, text: JsonText, watch: &Watch) -> Result<JsonText, Stopped> {
        let redacted = self.redact_json_by(text, Some(watch));
        // What a search has found that was not to its end says nothing.
        watch.check().map(|()| redacted)
    }

    fn redact_json_by(&self, text: JsonText, watch: Option<&Watch>) -> JsonText {
        let contains = |bytes: &[u8]| !self.find_by(bytes, Case::AsWritten, watch).is_empty();
        // Without escapes, every string stands there as it is, so that a search of the whole finds whatever a search of
        // each would. A number may be written in several ways, so secrets that could be one are looked for as numbers.
        let is_plain = !text.as_str().contains('\\') && !self.numeric;
        if self.search.is_none() || is_plain && !contains(text.as_str().as_bytes()) {
            return text;
        }
        let value = text.value();
        // One search over all texts is far quicker than one for each.
        let mut texts = Zeroizing::new(Vec::new());
        gather(&value, &mut texts);
        // Never the text itself: it may hold what the value does not, in a key that is there twice.
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

    /// `failure` without secrets in its message.
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
            // HTTP trims header values, so this is what comes back.
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

    /// Where secrets are: sorted, without overlaps.
    fn find(&self, text: &[u8], case: Case) -> Vec<Range<usize>> {
        self.find_by(text, case, None)
    }

    /// The same; incomplete where `watch` has ended the search.
    fn find_by(&self, text: &[u8], case: Case, watch: Option<&Watch>) -> Vec<Range<usize>> {
        let pass = |search| Pass { redactor: self, search, ignore_case: case == Case::Ignored, watch };
        self.search.as_ref().map_or_else(Vec::new, |search| pass(search).find(text, 0))
    }

    fn find_watched(&self, text: &[u8], watch: &Watch) -> Result<Vec<Range<usize>>, Stopped> {
        let found = self.find_by(text, Case::AsWritten, Some(watch));
        // What a search has found that was not to its end says nothing.
        watch.check().map(|()| found)
    }
}

/// One search of a text, in all views.
struct Pass<'a> {
    redactor: &'a Redactor,
    search: &'a Search,
    ignore_case: bool,
    watch: Option<&'a Watch>,
}

impl Pass<'_> {
    /// Where secrets are in `text`, which is a view under `depth` others: sorted, without overlaps. Incomplete where the
    /// watch has ended the search.
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
            // In another case base64 stands for something else.
            if !self.ignore_case || digits == Digits::Hex {
                found.extend(digits.find(text, self.redactor.printable, |bytes| self.find(bytes, depth + 1)));
            }
        }
    }
}

/// Every key, string and number of `value`. In between is a byte that no text holds and no encoding uses, so that nothing
/// is found that is in none of them, and whatever is in one of them is found.
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

/// Sorted, and where two ranges overlap, one.
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
    // A secret is whole characters, but a pattern in UTF-16 may end within one.
    String::from_utf8_lossy(&replace(text.as_bytes(), ranges)).into_owned()
}

/// The redactor of a call, and what searching has cost the call. It only ever learns: a token that was replaced during the
/// call is still looked for at its end, because it may be in what the plugin has read before.
#[derive(Default)]
pub struct RedactorCell {
    current: RwLock<Arc<Redactor>>,
    budget: Arc<SearchBudget>,
}

impl RedactorCell {
    /// A cell that starts with `redactor`.
    #[must_use]
    pub fn new(redactor: Arc<Redactor>) -> Self {
        RedactorCell { current: RwLock::new(redactor), budget: Arc::default() }
    }

    /// The same, for a call whose searches are counted to `budget`.
    #[must_use]
    pub fn with_budget(self, budget: SearchBudget) -> Self {
        RedactorCell { budget: Arc::new(budget), ..self }
    }

    /// What the call has had searched.
    #[must_use]
    pub fn budget(&self) -> &Arc<SearchBudget> {
        &self.budget
    }

    /// The redactor as of now.
    #[must_use]
    pub fn current(&self) -> Arc<Redactor> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds `values`; true where at least one of them was unknown.
    pub fn learn(&self, values: Vec<Secret>) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
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
