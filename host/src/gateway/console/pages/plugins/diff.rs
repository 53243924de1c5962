//! The comparison of a plugin version that waits for approval with the version before it.

use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::{Failure, segment};
use crate::gateway::console::lines::{Line, difference};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum size of the declarations on one page. The API shows all of them.
const DECLARATIONS_BYTES_MAX: usize = 160 * 1024;
/// The number of bindings, and of credentials, that the API names at most.
const NAMED_MAX: usize = 200;

/// A compared version.
#[derive(Deserialize)]
pub(super) struct Compared {
    pub plugin: Text,
    pub version: Text,
    pub digest: Text,
    pub manifest_digest: Text,
    #[serde(default)]
    pub signed_by: Option<Text>,
}

#[derive(Deserialize)]
struct Difference {
    kind: String,
    text: Text,
    #[serde(default)]
    before: Option<Value>,
    #[serde(default)]
    after: Option<Value>,
}

#[derive(Deserialize)]
struct ToolDifference {
    name: Text,
    change: String,
    #[serde(default)]
    before: Option<Value>,
    #[serde(default)]
    after: Option<Value>,
}

/// What an approval touches.
#[derive(Deserialize)]
pub(super) struct Touches {
    pub bindings: Vec<TouchedBinding>,
    pub credentials: Vec<TouchedCredential>,
}

#[derive(Deserialize)]
pub(super) struct TouchedBinding {
    pub workspace: Text,
    pub resource: Text,
    pub bot: Text,
}

#[derive(Deserialize)]
pub(super) struct TouchedCredential {
    workspace_id: String,
    resource_id: String,
    pub resource: Text,
}

impl Touches {
    /// Returns whether there may be more bindings or credentials than the API names.
    pub(super) fn is_cut(&self) -> bool {
        self.bindings.len() >= NAMED_MAX || self.credentials.len() >= NAMED_MAX
    }
}

impl TouchedCredential {
    /// Returns the path of the page of the resource.
    pub(super) fn page(&self) -> String {
        format!("/console/w/{}/resources/{}", segment(&self.workspace_id), segment(&self.resource_id))
    }
}

/// One sentence about a difference, with the values that the sentence does not contain.
pub(super) struct Sentence {
    pub kind: String,
    pub text: Text,
    pub lines: Vec<Line>,
    /// Whether the page has no room for the lines.
    pub is_cut: bool,
}

/// A tool that differs.
pub(super) struct Tool {
    pub name: Text,
    pub change: String,
    /// `None` if the page has no room for the declarations.
    pub lines: Option<Vec<Line>>,
}

impl Tool {
    /// Returns the class of the change in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        match self.change.as_str() {
            "added" => "success",
            "removed" => "error",
            _ => "running",
        }
    }
}

/// What the page shows of the comparison.
pub(super) struct Diff {
    pub from: Option<Compared>,
    pub to: Compared,
    pub grows: Vec<Sentence>,
    pub narrows: Vec<Sentence>,
    pub tools: Vec<Tool>,
    pub touches: Touches,
}

/// Reads the comparison for the version that waits.
pub(super) async fn read(visit: &Visit, name: &str) -> Result<Diff, Failure> {
    #[derive(Deserialize)]
    struct Answer {
        from: Option<Compared>,
        to: Compared,
        grows: Vec<Difference>,
        narrows: Vec<Difference>,
        tools: Vec<ToolDifference>,
        touches: Touches,
    }
    let Answer { from, to, grows, narrows, tools, touches } =
        visit.client.get::<Answer>(&format!("/api/plugins/{}/diff", segment(name))).await?;
    let mut room = DECLARATIONS_BYTES_MAX;
    let grows = grows.into_iter().map(|difference| sentence(difference, &mut room)).collect();
    let narrows = narrows.into_iter().map(|difference| sentence(difference, &mut room)).collect();
    let tools = tools.into_iter().map(|tool| {
        let ToolDifference { name, change, before, after } = tool;
        Tool { name, change, lines: lines(before.as_ref(), after.as_ref(), &mut room) }
    });
    Ok(Diff { from, to, grows, narrows, tools: tools.collect(), touches })
}

fn sentence(difference: Difference, room: &mut usize) -> Sentence {
    let Difference { kind, text, before, after } = difference;
    // Sentences contain their values, except lists and objects.
    let is_long = |value: &Option<Value>| matches!(value, Some(Value::Array(_) | Value::Object(_)));
    let shown = (is_long(&before) || is_long(&after)).then(|| lines(before.as_ref(), after.as_ref(), room));
    let is_cut = matches!(shown, Some(None));
    Sentence { kind, text, lines: shown.flatten().unwrap_or_default(), is_cut }
}

/// Compares two JSON values. Returns `None` if the difference needs more than `room`, and otherwise takes its size from
/// `room`.
fn lines(before: Option<&Value>, after: Option<&Value>, room: &mut usize) -> Option<Vec<Line>> {
    let text = |value: Option<&Value>| value.map(|value| pretty(value).raw().to_owned()).unwrap_or_default();
    let lines = difference(&text(before), &text(after));
    let size: usize = lines.iter().map(|line| line.text.to_string().len() + 32).sum();
    *room = room.checked_sub(size)?;
    Some(lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn declarations_are_shown_while_there_is_room() {
        let value = json!({"a": "b"});
        let mut room = 200;
        assert_eq!(lines(None, Some(&value), &mut room).map(|lines| lines.len()), Some(3));
        let left = room;
        assert!(lines(None, Some(&json!("c".repeat(300))), &mut room).is_none());
        assert_eq!(room, left, "what is not shown takes no room");
    }

    #[test]
    fn only_values_that_a_sentence_does_not_contain_are_shown() {
        let difference =
            |before: Option<Value>, after| Difference { kind: "tool".to_owned(), text: "text".into(), before, after };
        let mut room = 1000;
        assert!(sentence(difference(None, Some(json!("tools"))), &mut room).lines.is_empty());
        assert_eq!(room, 1000);
        let shown = sentence(difference(Some(json!(["a"])), Some(json!(["a", "b"]))), &mut room);
        assert!(!shown.lines.is_empty() && !shown.is_cut);
        let without_room = sentence(difference(None, Some(json!(["aaaaaaaaaaaa"]))), &mut 10);
        assert!(without_room.lines.is_empty() && without_room.is_cut, "the page says that values are missing");
    }
}
