//! The names of the workflows that a saved definition runs.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::node::{self, Data, Node};

/// Returns the names of the workflows that a definition without faults runs. Nothing is compiled or checked, so this takes
/// much less time than [`check`](crate::check()). A text that is not a document runs none.
#[must_use]
pub fn called_by(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    if let Ok(root) = node::read(text) {
        for key in ["steps", "finally"] {
            member(&root, key).into_iter().for_each(|steps| list(steps, &mut names));
        }
    }
    names
}

fn list(steps: &Node, names: &mut BTreeSet<String>) {
    let Data::List(steps) = &steps.data else { return };
    for step in steps {
        if let Some(Data::Scalar(Value::String(name))) = member(step, "workflow").map(|node| &node.data) {
            names.insert(name.clone());
        }
        // The steps of `each`.
        member(step, "steps").into_iter().for_each(|steps| list(steps, names));
        if let Some(Data::List(branches)) = member(step, "choose").map(|node| &node.data) {
            branches.iter().filter_map(|branch| member(branch, "steps")).for_each(|steps| list(steps, names));
        }
        if let Some(Data::Map(branches)) = member(step, "parallel").map(|node| &node.data) {
            branches.iter().for_each(|branch| list(&branch.node, names));
        }
    }
}

fn member<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Data::Map(entries) = &node.data else { return None };
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_those_of_the_checked_definition() {
        let text = "\
workflow: w
bot: b
steps:
  - { id: a, workflow: in-list, input: { id: x, workflow: not-a-step, steps: [{ id: y, workflow: neither }] } }
  - { id: c, choose: [{ when: 'true', steps: [{ id: d, workflow: in-choose }] }, { steps: [{ id: e, workflow: in-else }] }] }
  - { id: f, parallel: { x: [{ id: g, workflow: in-parallel }], y: [{ id: h, tool: t, params: { workflow: no } }] } }
  - { id: i, each: [1], steps: [{ id: j, each: [1], steps: [{ id: k, workflow: in-each }] }] }
finally:
  - { id: l, workflow: in-finally }
";
        let checked = crate::check(text, None).unwrap_or_else(|faults| panic!("{faults:#?}"));
        let expected: BTreeSet<String> = checked.definition.called_workflows().into_iter().map(str::to_owned).collect();
        assert_eq!(called_by(text), expected);
        assert_eq!(expected.len(), 6);
        assert_eq!(called_by("a: ["), BTreeSet::new());
    }
}
