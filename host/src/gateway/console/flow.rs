//! The steps of a workflow as nested lists, and the lines of a definition that has faults. Both work without a script and
//! in a narrow window.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;
use monstrum_flow::{BranchLabel, Outline, OutlinedBranch, OutlinedStep, outline};
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::ErrorAt;
use crate::gateway::console::lines::{Line, difference};
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::words::Words;

/// The number of characters that the text of a step has in a list.
const WHAT_CHARS_MAX: usize = 160;
/// The number of characters of a line of a definition with faults.
const LINE_CHARS_MAX: usize = 300;
/// The number of lines that are shown before and after a fault.
const AROUND: u64 = 2;
/// The maximum number of lines that are shown around faults.
const LINES_MAX: usize = 300;
/// The maximum size of a definition on a page, and that of the lines that differ from another one. A definition has up to
/// 256 KiB, and its form has all of it.
const SHOWN_MAX: usize = 128 << 10;

/// The steps of a workflow.
pub(super) struct Graph {
    pub steps: Steps,
    pub finally: Steps,
}

/// A list of steps, with the lists inside them.
#[derive(Template)]
#[template(path = "console/flow_steps.html")]
pub(super) struct Steps {
    items: Vec<Item>,
}

impl askama::filters::HtmlSafe for Steps {}

struct Item {
    id: Text,
    /// The word for the kind.
    kind: &'static str,
    what: Text,
    notes: Vec<String>,
    branches: Vec<Branch>,
}

struct Branch {
    label: String,
    steps: Steps,
}

impl Graph {
    /// Returns the steps of a definition.
    pub(super) fn of(words: &'static Words, text: &str) -> Graph {
        let Outline { steps, finally } = outline(text);
        Graph { steps: Steps::of(words, steps), finally: Steps::of(words, finally) }
    }
}

impl Steps {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn of(words: &'static Words, steps: Vec<OutlinedStep>) -> Steps {
        Steps { items: steps.into_iter().map(|step| Item::of(words, step)).collect() }
    }
}

impl Item {
    fn of(words: &'static Words, step: OutlinedStep) -> Item {
        let mut notes = Vec::new();
        let shown = |text: &str| Text::from(text).start(WHAT_CHARS_MAX);
        if let Some(when) = &step.when {
            notes.push(words.filled("flow.when", &[&shown(when)]));
        }
        match &step.needs {
            Some(ids) if ids.is_empty() => notes.push(words.text("flow.at_once").to_owned()),
            Some(ids) => notes.push(words.filled("flow.after", &[&shown(&ids.join(", "))])),
            None => {}
        }
        if let Some(undo) = &step.undo {
            notes.push(words.filled("flow.undo", &[&shown(undo)]));
        }
        let branch = |OutlinedBranch { label, steps }: OutlinedBranch| {
            let label = match &label {
                BranchLabel::When(when) => words.filled("flow.branch_when", &[&shown(when)]),
                BranchLabel::Otherwise => words.text("flow.otherwise").to_owned(),
                BranchLabel::Named(name) => shown(name).to_string(),
                BranchLabel::Items => words.text("flow.each_item").to_owned(),
            };
            Branch { label, steps: Steps::of(words, steps) }
        };
        Item {
            id: Text::from(step.id.as_str()).start(WHAT_CHARS_MAX),
            kind: kind(words, step.kind),
            what: Text::from(step.what.trim()).start(WHAT_CHARS_MAX),
            notes,
            branches: step.branches.into_iter().map(branch).collect(),
        }
    }
}

/// Returns the word for a kind of step.
fn kind(words: &'static Words, kind: &str) -> &'static str {
    words.known(&format!("step_kind.{kind}")).unwrap_or_default()
}

/// Returns a definition as a text: an object is written with a line for each value, as the API counts its lines.
pub(super) fn text_of(definition: &Value) -> Text {
    match definition {
        Value::String(text) => text.as_str().into(),
        object => pretty(object),
    }
}

/// Returns the start of a definition that has room in a page, and whether the page shows it shortened.
pub(super) fn start_of(definition: &Text) -> (Text, bool) {
    let (start, is_whole) = within(definition.raw(), &mut { SHOWN_MAX });
    (start, !is_whole)
}

/// Returns the lines that differ between two definitions, as far as a page has room, and whether lines are left out.
pub(super) fn changed_lines(before: &Text, after: &Text) -> (Vec<Line>, bool) {
    let mut room = SHOWN_MAX;
    let mut lines = difference(before.raw(), after.raw());
    let all = lines.len();
    let fitting = lines.iter().take_while(|line| within(line.text.raw(), &mut room).1).count();
    lines.truncate(fitting);
    (lines, fitting < all)
}

/// A fault of a definition, or a warning about it.
#[derive(Clone, Deserialize)]
pub(super) struct DefinitionFault {
    pub path: Text,
    #[serde(default)]
    pub line: u64,
    #[serde(default)]
    pub column: u64,
    pub message: Text,
    #[serde(default)]
    pub hint: Option<Text>,
}

impl DefinitionFault {
    /// Returns an error of the API. One without a line is not one of the text.
    pub(super) fn of(error: &ErrorAt) -> DefinitionFault {
        DefinitionFault {
            path: error.path.as_str().into(),
            line: error.line.unwrap_or_default(),
            column: error.column.unwrap_or_default(),
            message: error.message.as_str().into(),
            hint: error.hint.as_deref().map(Text::from),
        }
    }

    /// Returns whether the fault has a place in the text.
    fn has_place(&self) -> bool {
        self.line > 0
    }
}

/// A line of a definition with faults.
pub(super) struct FaultyLine {
    /// The number, or 0 for lines that are left out.
    pub number: u64,
    pub text: Text,
    /// Whether a fault is on the line.
    pub is_faulty: bool,
}

/// Returns the lines of a definition with faults, and those around them.
pub(super) fn faulty_lines(text: &str, faults: &[DefinitionFault]) -> Vec<FaultyLine> {
    let faulty: BTreeSet<u64> = faults.iter().filter(|fault| fault.has_place()).map(|fault| fault.line).collect();
    let mut numbers = BTreeMap::new();
    for number in &faulty {
        for near in number.saturating_sub(AROUND).max(1)..=number.saturating_add(AROUND) {
            numbers.insert(near, faulty.contains(&near));
        }
    }
    let mut shown: Vec<FaultyLine> = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        let Some(is_faulty) = numbers.get(&number) else { continue };
        if shown.len() >= LINES_MAX {
            break;
        }
        if shown.last().is_some_and(|last| last.number + 1 != number) {
            shown.push(FaultyLine { number: 0, text: "…".into(), is_faulty: false });
        }
        shown.push(FaultyLine { number, text: Text::from(text).start(LINE_CHARS_MAX), is_faulty: *is_faulty });
    }
    shown
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;
    use serde_json::json;

    use super::*;

    fn fault(line: u64) -> DefinitionFault {
        serde_json::from_value(json!({ "path": "/a", "line": line, "column": 1, "message": "m" })).unwrap()
    }

    #[test]
    fn steps_are_nested_lists_and_texts_of_people_are_escaped() {
        let words = Words::of(UiLanguage::English);
        let text = "steps:\n  - { id: way, choose: [{ when: 'a < b', steps: [{ id: x, tool: '<b>\u{202e}' }] }] }\n";
        let html = Graph::of(words, text).steps.render().unwrap();
        assert_eq!(html.matches("<ol").count(), 2, "{html}");
        assert_eq!(html.matches("<li").count(), 2, "{html}");
        assert!(html.contains("a &#60; b") && html.contains("&#60;b&#62;\\u{202e}"), "{html}");
        assert!(!html.contains("<b>"), "{html}");
        assert!(Graph::of(words, "a: [").steps.is_empty());
    }

    #[test]
    fn each_kind_of_step_has_a_word() {
        for name in ["tool", "agent", "choose", "parallel", "each", "wait", "approve", "workflow", "emit", "stop"] {
            for language in [UiLanguage::English, UiLanguage::Chinese] {
                assert!(!kind(Words::of(language), name).is_empty(), "{name}");
            }
        }
    }

    #[test]
    fn large_definitions_have_room_in_a_page() {
        let large = Text::from("<\n".repeat(100_000));
        let (start, is_cut) = start_of(&large);
        assert!(is_cut && start.raw().len() < SHOWN_MAX, "{}", start.raw().len());
        assert_eq!(start_of(&"a: b".into()), ("a: b".into(), false));
        let (lines, is_cut) = changed_lines(&Text::default(), &large);
        assert!(is_cut && lines.len() * 5 <= SHOWN_MAX, "{}", lines.len());
        let (lines, is_cut) = changed_lines(&"a".into(), &"b".into());
        assert_eq!((lines.len(), is_cut), (2, false));
    }

    #[test]
    fn faults_are_shown_at_their_lines() {
        let text = (1..=20).map(|number| format!("line {number}\n")).collect::<String>();
        let lines = faulty_lines(&text, &[fault(1), fault(10), fault(10), fault(0), fault(99)]);
        let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [1, 2, 3, 0, 8, 9, 10, 11, 12]);
        let faulty: Vec<u64> = lines.iter().filter(|line| line.is_faulty).map(|line| line.number).collect();
        assert_eq!(faulty, [1, 10]);
        assert_eq!(lines[0].text.raw(), "line 1");
        assert!(faulty_lines("", &[fault(u64::MAX)]).is_empty());
        let all: Vec<DefinitionFault> = (1..=1_000).map(fault).collect();
        assert!(faulty_lines(&"x\n".repeat(1_000), &all).len() <= LINES_MAX + 1);
    }
}
