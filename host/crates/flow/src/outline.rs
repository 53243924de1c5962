//! The outline of a saved definition: its steps and blocks as a person reads them.

use serde_json::Value;

use crate::model::{BLOCK_DEPTH_MAX, STEPS_IN_DEFINITION_MAX};
use crate::node::{self, Data, Node};

/// The keys that name the kind of a step.
const KINDS: [&str; 10] =
    ["tool", "agent", "choose", "parallel", "each", "wait", "approve", "workflow", "emit", "stop"];

/// The steps of a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// The steps.
    pub steps: Vec<OutlinedStep>,
    /// The steps that run at the end in any case.
    pub finally: Vec<OutlinedStep>,
}

/// A step of an outline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutlinedStep {
    /// The id.
    pub id: String,
    /// The key that names the kind, such as `tool`. Empty for a step that is not valid.
    pub kind: &'static str,
    /// What the step does in one text: the tool, the instruction, the list, the event, and so on.
    pub what: String,
    /// The condition, as it is written.
    pub when: Option<String>,
    /// The steps that must have ended before, if the step names them.
    pub needs: Option<Vec<String>>,
    /// The tool that undoes the step.
    pub undo: Option<String>,
    /// The steps inside.
    pub branches: Vec<OutlinedBranch>,
}

/// A list of steps inside a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlinedBranch {
    /// When the steps run.
    pub label: BranchLabel,
    /// The steps.
    pub steps: Vec<OutlinedStep>,
}

/// When a list of steps inside a step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BranchLabel {
    /// If this condition holds.
    When(String),
    /// If no condition holds.
    Otherwise,
    /// At once with the other branches; this is its name.
    Named(String),
    /// For each item.
    Items,
}

/// Returns the outline of a definition. Nothing is compiled or checked, so this takes much less time than
/// [`check`](crate::check()). A text that is not a document has no steps.
#[must_use]
pub fn outline(text: &str) -> Outline {
    let Ok(root) = node::read(text) else { return Outline::default() };
    let mut left = STEPS_IN_DEFINITION_MAX;
    let mut steps = |key: &str| member(&root, key).map(|node| list(node, 0, &mut left)).unwrap_or_default();
    Outline { steps: steps("steps"), finally: steps("finally") }
}

/// Returns the steps of a list. `left` is the number of steps that the outline may still have.
fn list(node: &Node, depth: usize, left: &mut usize) -> Vec<OutlinedStep> {
    let Data::List(nodes) = &node.data else { return Vec::new() };
    let mut steps = Vec::new();
    for node in nodes {
        let Some(rest) = left.checked_sub(1) else { break };
        *left = rest;
        steps.push(step(node, depth, left));
    }
    steps
}

fn step(node: &Node, depth: usize, left: &mut usize) -> OutlinedStep {
    let found = KINDS.into_iter().find_map(|kind| Some((kind, member(node, kind)?)));
    let (kind, what) = found.map_or(("", String::new()), |(kind, value)| (kind, what(kind, value)));
    let branches = match found {
        Some((kind, value)) if depth < BLOCK_DEPTH_MAX => branches(node, kind, value, depth + 1, left),
        _ => Vec::new(),
    };
    OutlinedStep {
        id: member(node, "id").map(text).unwrap_or_default(),
        kind,
        what,
        when: member(node, "when").map(text),
        needs: member(node, "needs").and_then(|node| match &node.data {
            Data::List(ids) => Some(ids.iter().map(text).collect()),
            Data::Scalar(_) | Data::Map(_) => None,
        }),
        undo: member(node, "undo").and_then(|undo| member(undo, "tool")).map(text),
        branches,
    }
}

/// Returns what a step of a kind does, in one text.
fn what(kind: &str, value: &Node) -> String {
    let of = |key: &str| member(value, key).map(text);
    match kind {
        "agent" => of("instruction").unwrap_or_default(),
        "approve" => of("text").unwrap_or_default(),
        "wait" => ["for", "until", "event"].into_iter().find_map(of).unwrap_or_default(),
        "choose" | "parallel" => String::new(),
        _ => text(value),
    }
}

fn branches(node: &Node, kind: &str, value: &Node, depth: usize, left: &mut usize) -> Vec<OutlinedBranch> {
    match (kind, &value.data) {
        ("choose", Data::List(nodes)) => {
            let branch = |node: &Node| OutlinedBranch {
                label: member(node, "when").map_or(BranchLabel::Otherwise, |when| BranchLabel::When(text(when))),
                steps: member(node, "steps").map(|steps| list(steps, depth, left)).unwrap_or_default(),
            };
            nodes.iter().map(branch).collect()
        }
        ("parallel", Data::Map(entries)) => {
            let branch = |entry: &node::Entry| OutlinedBranch {
                label: BranchLabel::Named(entry.key.clone()),
                steps: list(&entry.node, depth, left),
            };
            entries.iter().map(branch).collect()
        }
        ("each", _) => {
            let steps = member(node, "steps").map(|steps| list(steps, depth, left)).unwrap_or_default();
            vec![OutlinedBranch { label: BranchLabel::Items, steps }]
        }
        _ => Vec::new(),
    }
}

/// Returns a text as it is, and another value as JSON.
fn text(node: &Node) -> String {
    match node.to_json() {
        Value::String(text) => text,
        value => value.to_string(),
    }
}

fn member<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Data::Map(entries) = &node.data else { return None };
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
workflow: release
bot: b
steps:
  - { id: issues, tool: list_issues, when: 'input.all', undo: { tool: close_issues } }
  - { id: ask, approve: { text: 'Release?', for: [announce] }, needs: [] }
  - { id: all, needs: [issues, ask], each: '${{ steps.issues.data }}', steps: [{ id: triage, agent: { instruction: Triage it. } }] }
  - id: way
    choose:
      - { when: 'true', steps: [{ id: pause, wait: { for: 5m } }] }
      - { steps: [{ id: end, stop: failed }] }
  - { id: both, parallel: { x: [{ id: a, emit: told }], y: [{ id: b, workflow: other }] } }
  - { id: announce, tool: create_issue }
finally:
  - { id: tell, emit: released }
";

    /// Writes a step and those inside it, one a line.
    fn lines(steps: &[OutlinedStep], indent: usize, out: &mut Vec<String>) {
        for step in steps {
            out.push(format!("{}{} {} {}", " ".repeat(indent), step.id, step.kind, step.what).trim_end().to_owned());
            for branch in &step.branches {
                out.push(format!("{} {:?}", " ".repeat(indent), branch.label));
                lines(&branch.steps, indent + 2, out);
            }
        }
    }

    #[test]
    fn the_outline_has_the_steps_of_the_checked_definition_in_their_blocks() {
        let checked = crate::check(TEXT, None).unwrap_or_else(|faults| panic!("{faults:#?}"));
        let outline = outline(TEXT);
        let mut shown = Vec::new();
        lines(&outline.steps, 0, &mut shown);
        lines(&outline.finally, 0, &mut shown);
        let expected = [
            "issues tool list_issues",
            "ask approve Release?",
            "all each ${{ steps.issues.data }}",
            " Items",
            "  triage agent Triage it.",
            "way choose",
            " When(\"true\")",
            "  pause wait 5m",
            " Otherwise",
            "  end stop failed",
            "both parallel",
            " Named(\"x\")",
            "  a emit told",
            " Named(\"y\")",
            "  b workflow other",
            "announce tool create_issue",
            "tell emit released",
        ];
        assert_eq!(shown, expected);
        let (mut ids, mut outlined) = (Vec::new(), Vec::new());
        checked.definition.walk(&mut |step| ids.push((step.id.clone(), step.kind.name())));
        walk(&outline.steps, &mut outlined);
        walk(&outline.finally, &mut outlined);
        assert_eq!(outlined, ids);
        let first = &outline.steps[0];
        assert_eq!((first.when.as_deref(), first.undo.as_deref()), (Some("input.all"), Some("close_issues")));
        assert_eq!((&first.needs, &outline.steps[1].needs), (&None, &Some(Vec::new())));
    }

    fn walk(steps: &[OutlinedStep], out: &mut Vec<(String, &'static str)>) {
        for step in steps {
            out.push((step.id.clone(), step.kind));
            step.branches.iter().for_each(|branch| walk(&branch.steps, out));
        }
    }

    #[test]
    fn a_text_that_is_not_a_definition_has_a_bounded_outline() {
        assert_eq!(outline("a: ["), Outline::default());
        assert_eq!(outline("steps: 1"), Outline::default());
        let many = format!("steps: [{}]", "{ id: a, emit: b }, ".repeat(1_000));
        assert_eq!(outline(&many).steps.len(), STEPS_IN_DEFINITION_MAX);
        let block = |inner: String| format!("[{{ id: a, each: [1], steps: {inner} }}]");
        let deep = (0..12).fold("[]".to_owned(), |inner, _| block(inner));
        let (mut steps, mut depth) = (&outline(&format!("steps: {deep}")).steps, 0);
        while let Some(branch) = steps.first().and_then(|step| step.branches.first()) {
            (steps, depth) = (&branch.steps, depth + 1);
        }
        assert_eq!(depth, BLOCK_DEPTH_MAX);
    }
}
