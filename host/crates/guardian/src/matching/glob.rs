//! Compiled globs with the semantics of Python's `fnmatch.fnmatchcase`.
//!
//! A pattern is split at its stars into runs. The first run must match the start of the value and the last run its end.
//! The runs between them are searched from left to right. Backtracking is not necessary, because the leftmost match of
//! a run is always sufficient.

use super::search::Search;
use super::weight::Matching;

const CODE_MAX: u32 = char::MAX as u32;

/// A compiled glob.
#[derive(Clone, Debug)]
pub struct Glob(Shape);

#[derive(Clone, Debug)]
enum Shape {
    Literal(Box<str>),
    Fixed(Box<[Element]>),
    Starred { head: Run, middle: Box<[Finder]>, tail: Run },
}

/// A part of a pattern: the text between two stars, before the first star or after the last star.
#[derive(Clone, Debug)]
enum Run {
    Text(Box<str>),
    Elements(Box<[Element]>),
}

#[derive(Clone, Debug)]
enum Finder {
    Text(Box<str>),
    Search(Search),
}

/// The part of a pattern that matches one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Char(char),
    /// Ranges of code points, sorted and not adjacent.
    OneOf(Box<[(u32, u32)]>),
}

impl Glob {
    /// Compiles a pattern. Every text is a valid glob.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        let mut runs = parse(pattern);
        let Some(tail) = runs.pop() else { return Glob(Shape::Literal("".into())) };
        if runs.is_empty() {
            return Glob(match Run::new(tail) {
                Run::Text(text) => Shape::Literal(text),
                Run::Elements(elements) => Shape::Fixed(elements),
            });
        }
        let middle = runs.split_off(1).into_iter().map(Finder::new).collect();
        let head = Run::new(runs.pop().unwrap_or_default());
        Glob(Shape::Starred { head, middle, tail: Run::new(tail) })
    }

    /// Returns whether the pattern matches the whole of `value`.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        match &self.0 {
            Shape::Literal(text) => **text == *value,
            Shape::Fixed(elements) => strip_elements(elements, value) == Some(""),
            Shape::Starred { head, middle, tail } => head
                .strip_start(value)
                .and_then(|rest| tail.strip_end(rest))
                .and_then(|rest| middle.iter().try_fold(rest, |rest, finder| finder.find(rest)))
                .is_some(),
        }
    }

    /// Returns the only matching text, if exactly one text matches.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        match &self.0 {
            Shape::Literal(text) => Some(text),
            Shape::Fixed(_) | Shape::Starred { .. } => None,
        }
    }

    /// Returns an upper bound of the cost to match a value. The runs between stars are searched one after another, so
    /// each character of a value is examined for only one run.
    pub(super) fn weight(&self) -> Matching {
        match &self.0 {
            Shape::Literal(_) => Matching { fixed: 16, per_byte: 1, ..Matching::default() },
            Shape::Fixed(elements) => Matching { fixed: 16 + 8 * elements.len() as u64, ..Matching::default() },
            Shape::Starred { head, middle, tail } => Matching {
                fixed: 32 + 8 * (head.length() + tail.length() + middle.len()) as u64,
                per_byte: middle.iter().map(Finder::steps_per_byte).max().unwrap_or_default(),
                per_component: 0,
            },
        }
    }

    pub(super) fn has_wildcard_characters(pattern: &str) -> bool {
        pattern.contains(['*', '?', '['])
    }
}

/// Returns a glob that matches exactly `text`.
#[must_use]
pub fn escape_glob(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '*' | '?' | '[' => pattern.extend(['[', character, ']']),
            _ => pattern.push(character),
        }
    }
    pattern
}

/// Returns the part of `text` that follows the elements, or `None` if the first characters do not match the elements.
pub(super) fn strip_elements<'t>(elements: &[Element], text: &'t str) -> Option<&'t str> {
    let mut characters = text.chars();
    elements
        .iter()
        .all(|element| characters.next().is_some_and(|next| element.accepts(next)))
        .then_some(characters.as_str())
}

impl Run {
    fn new(elements: Vec<Element>) -> Self {
        let text: Option<String> = elements.iter().map(Element::single).collect();
        match text {
            Some(text) => Run::Text(text.into_boxed_str()),
            None => Run::Elements(elements.into_boxed_slice()),
        }
    }

    /// Returns the number of elements, or the number of bytes of a text.
    fn length(&self) -> usize {
        match self {
            Run::Text(text) => text.len(),
            Run::Elements(elements) => elements.len(),
        }
    }

    fn strip_start<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Run::Text(start) => text.strip_prefix(&**start),
            Run::Elements(elements) => strip_elements(elements, text),
        }
    }

    fn strip_end<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Run::Text(end) => text.strip_suffix(&**end),
            Run::Elements(elements) => {
                let mut characters = text.chars();
                let all = |element: &Element| characters.next_back().is_some_and(|last| element.accepts(last));
                elements.iter().rev().all(all).then_some(characters.as_str())
            }
        }
    }
}

impl Finder {
    fn new(elements: Vec<Element>) -> Self {
        match Run::new(elements) {
            Run::Text(text) => Finder::Text(text),
            Run::Elements(elements) => Finder::Search(Search::new(&elements)),
        }
    }

    fn steps_per_byte(&self) -> u64 {
        match self {
            Finder::Text(_) => 2,
            Finder::Search(search) => search.steps_per_byte(),
        }
    }

    /// Returns the text after the first occurrence.
    fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Finder::Text(wanted) => text.find(&**wanted).map(|at| &text[at + wanted.len()..]),
            Finder::Search(search) => search.find(text),
        }
    }
}

impl Element {
    fn any() -> Self {
        Element::OneOf([(0, CODE_MAX)].into())
    }

    fn single(&self) -> Option<char> {
        match self {
            Element::Char(only) => Some(*only),
            Element::OneOf(_) => None,
        }
    }

    fn accepts(&self, character: char) -> bool {
        match self {
            Element::Char(only) => *only == character,
            Element::OneOf(ranges) => {
                let code = character as u32;
                let after = ranges.partition_point(|(low, _)| *low <= code);
                after > 0 && code <= ranges[after - 1].1
            }
        }
    }

    /// Returns the accepted ranges of code points in ascending order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (only, ranges): (Option<u32>, &[(u32, u32)]) = match self {
            Element::Char(only) => (Some(*only as u32), &[]),
            Element::OneOf(ranges) => (None, ranges),
        };
        only.map(|code| (code, code)).into_iter().chain(ranges.iter().copied())
    }

    fn from_ranges(mut ranges: Vec<(u32, u32)>, negated: bool) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match merged.last_mut() {
                Some(last) if low <= last.1 + 1 => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        let accepted = if negated { complement(&merged) } else { merged };
        let only = match accepted[..] {
            [(low, high)] if low == high => char::from_u32(low),
            _ => None,
        };
        only.map_or(Element::OneOf(accepted.into_boxed_slice()), Element::Char)
    }
}

fn complement(ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut gaps = Vec::with_capacity(ranges.len() + 1);
    let mut next = 0;
    for (low, high) in ranges {
        if next < *low {
            gaps.push((next, low - 1));
        }
        next = high + 1;
    }
    if next <= CODE_MAX {
        gaps.push((next, CODE_MAX));
    }
    gaps
}

/// Splits a pattern into the runs between its stars; consecutive stars count as one.
fn parse(pattern: &str) -> Vec<Vec<Element>> {
    let pattern: Vec<char> = pattern.chars().collect();
    let mut runs = Vec::new();
    let mut run = Vec::new();
    // If a `[` is not closed, no later `[` is closed. Searching for a `]` from each later `[` would take quadratic
    // time.
    let mut sets_end = false;
    let mut at = 0;
    while let Some(character) = pattern.get(at) {
        at += 1;
        match character {
            '*' if runs.is_empty() || !run.is_empty() => runs.push(std::mem::take(&mut run)),
            '*' => {}
            '?' => run.push(Element::any()),
            '[' if !sets_end => match set_end(&pattern, at) {
                Some(end) => {
                    run.push(parse_set(&pattern[at..end]));
                    at = end + 1;
                }
                None => {
                    sets_end = true;
                    run.push(Element::Char('['));
                }
            },
            other => run.push(Element::Char(*other)),
        }
    }
    runs.push(run);
    runs
}

/// Returns the index of the `]` that closes the set whose first character is at `start`. A `]` in first position is a
/// member of the set.
fn set_end(pattern: &[char], start: usize) -> Option<usize> {
    let mut at = start;
    if pattern.get(at) == Some(&'!') {
        at += 1;
    }
    if pattern.get(at) == Some(&']') {
        at += 1;
    }
    Some(at + pattern.get(at..)?.iter().position(|character| *character == ']')?)
}

/// An item of a set, as Python translates it into a regular expression.
#[derive(Clone, Copy)]
enum Item {
    One(char),
    Range(char, char),
}

/// Parses the text between `[` and `]`.
///
/// Python drops reversed ranges before it checks whether the set starts with `!`, so that `[z-a!b]` means `[!b]`. If
/// the dropped range leaves `!-b` at the front, the set means "neither `-` nor `b`". This parser does the same, because
/// patterns must have the same meaning as in Python.
fn parse_set(body: &[char]) -> Element {
    let items = set_items(body);
    let mut ranges = Vec::with_capacity(items.len() + 1);
    let (negated, items) = match items[..] {
        [Item::One('!'), ref others @ ..] => (true, others),
        [Item::Range('!', high), ref others @ ..] => {
            ranges.extend([('-' as u32, '-' as u32), (high as u32, high as u32)]);
            (true, others)
        }
        _ => (false, &items[..]),
    };
    ranges.extend(items.iter().map(|item| match *item {
        Item::One(only) => (only as u32, only as u32),
        Item::Range(low, high) => (low as u32, high as u32),
    }));
    Element::from_ranges(ranges, negated)
}

/// Splits a set into characters and ranges. A hyphen in first or last position, or immediately after a range, is a
/// character.
fn set_items(body: &[char]) -> Vec<Item> {
    let mut items = Vec::with_capacity(body.len());
    let mut literals_from = 0;
    let mut search_from = if body.first() == Some(&'!') { 2 } else { 1 };
    while let Some(offset) = body.get(search_from..).and_then(|rest| rest.iter().position(|next| *next == '-')) {
        let hyphen = search_from + offset;
        let Some(high) = body.get(hyphen + 1) else { break };
        let low = body[hyphen - 1];
        items.extend(body[literals_from..hyphen - 1].iter().copied().map(Item::One));
        if low <= *high {
            items.push(Item::Range(low, *high));
        }
        literals_from = hyphen + 2;
        search_from = hyphen + 3;
    }
    items.extend(body[literals_from..].iter().copied().map(Item::One));
    items
}
