//! Why a call is denied, and the change that would allow it. The API decides both; this module shows the change and
//! carries it out.

use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::gateway::console::client::{Client, Conditions, Failure, Versioned, segment};
use crate::gateway::console::lines::{Line, whole_difference};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::words::Words;

/// The answer of a check.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Check {
    pub decision: String,
    #[serde(default)]
    pub message: Option<Text>,
    #[serde(default)]
    pub rule: Option<Text>,
    #[serde(default)]
    pub reason: Option<Text>,
    #[serde(default)]
    pub smallest_change: Option<Text>,
    #[serde(default)]
    pub changes: Vec<Change>,
    #[serde(default)]
    pub gates: Vec<Gate>,
}

/// A gate that asks a person.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Gate {
    pub holder: Text,
    #[serde(default)]
    pub reason: Option<Text>,
}

/// A change of one field of an object.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Change {
    pub action: String,
    pub holder: Holder,
    pub field: Text,
    #[serde(default)]
    pub entry: Value,
}

/// The object that a change is made to.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Holder {
    pub kind: String,
    pub id: String,
    #[serde(default)]
    pub bots: Vec<Named>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Named {
    pub id: Text,
    pub name: Text,
}

impl Check {
    pub(super) fn allows(&self) -> bool {
        self.decision == "allow"
    }

    pub(super) fn asks(&self) -> bool {
        self.decision == "ask"
    }

    /// Returns the class of the decision in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        match self.decision.as_str() {
            "allow" => "success",
            "ask" => "waiting",
            _ => "denied",
        }
    }

    /// Returns the bots that the changes reach.
    pub(super) fn reached(&self) -> Vec<&Named> {
        let mut reached: Vec<&Named> = self.changes.iter().flat_map(|change| &change.holder.bots).collect();
        reached.sort_by(|a, b| a.name.cmp(&b.name));
        reached.dedup_by(|a, b| a.id == b.id);
        reached
    }

    /// Returns the names of the bots that the changes reach.
    pub(super) fn reached_names(&self) -> String {
        self.reached().iter().map(|bot| bot.name.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the changes as sentences.
    pub(super) fn sentences(&self, words: &Words) -> Vec<String> {
        self.changes.iter().map(|change| change.sentence(words)).collect()
    }
}

/// Returns the key of the words for a kind of object.
fn holder_words(kind: &str) -> &'static str {
    match kind {
        "role" => "why.holder_role",
        "permissions" => "why.holder_permissions",
        "delegation" => "why.holder_delegation",
        "bot" => "why.holder_bot",
        _ => "why.holder_binding",
    }
}

impl Change {
    fn sentence(&self, words: &Words) -> String {
        let entry = match &self.entry {
            Value::String(text) => Text::from(text.as_str()).to_string(),
            other => Text::from(other.to_string()).to_string(),
        };
        let holder = words.text(holder_words(&self.holder.kind));
        let key = match self.action.as_str() {
            "add" => "why.add",
            "remove" => "why.remove",
            _ => "why.set",
        };
        words.filled(key, &[&entry, &self.field, &holder])
    }
}

/// An object before and after the changes that are made to it.
pub(super) struct Edit {
    /// The path of the object in the API.
    path: String,
    version: String,
    /// The kind of the object. Permissions and delegations are parts of a binding.
    kind: &'static str,
    pub title: Text,
    /// The bots that the changes of the object reach.
    bots: Vec<Named>,
    /// The changed fields before and after, line by line.
    pub lines: Vec<Line>,
    body: Value,
}

impl Edit {
    /// Returns the object in words, with its name if it has one.
    pub(super) fn named(&self, words: &Words) -> String {
        let kind = words.text(holder_words(self.kind));
        if self.title.is_empty() { kind.to_owned() } else { format!("{kind} `{}`", self.title) }
    }

    /// Returns the names of the bots that the changes of the object reach.
    pub(super) fn reached_names(&self) -> String {
        self.bots.iter().map(|bot| bot.name.to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// An object with the fields that are changed, and the first of its changes.
struct Edited<'a> {
    object: Versioned<Value>,
    body: Map<String, Value>,
    change: &'a Change,
}

/// Reads the objects that the changes are made to, and returns what would be saved.
pub(super) async fn edits(client: &Client, bot: &str, changes: &[Change]) -> Result<Vec<Edit>, Failure> {
    let mut edits: Vec<Edit> = Vec::new();
    let mut objects: Vec<(String, Edited<'_>)> = Vec::new();
    for change in changes {
        let path = match change.holder.kind.as_str() {
            "role" => format!("/api/roles/{}", segment(&change.holder.id)),
            "bot" => format!("/api/bots/{}", segment(&change.holder.id)),
            _ => format!("/api/bots/{}/resources/{}", segment(bot), segment(&change.holder.id)),
        };
        let at = match objects.iter().position(|(known, ..)| *known == path) {
            Some(at) => at,
            None => {
                let object = client.get_versioned::<Value>(&path).await?;
                objects.push((path, Edited { object, body: Map::new(), change }));
                objects.len() - 1
            }
        };
        let (_, Edited { object, body, .. }) = &mut objects[at];
        apply(&object.value, body, change);
    }
    for (path, Edited { object, body, change }) in objects {
        let title = object.value.get("name").and_then(Value::as_str).unwrap_or_default().into();
        let before: Map<String, Value> =
            body.keys().map(|name| (name.clone(), object.value.get(name).cloned().unwrap_or(Value::Null))).collect();
        let body = Value::Object(body);
        let lines = whole_difference(pretty(&Value::Object(before)).raw(), pretty(&body).raw());
        let kind = match change.holder.kind.as_str() {
            "role" => "role",
            "bot" => "bot",
            _ => "binding",
        };
        let mut bots = change.holder.bots.clone();
        bots.sort_by(|a, b| a.name.cmp(&b.name));
        edits.push(Edit { path, version: object.version, kind, title, bots, lines, body });
    }
    Ok(edits)
}

/// Applies a change to a copy of the field that it belongs to. `body` holds the changed fields of the object.
fn apply(object: &Value, body: &mut Map<String, Value>, change: &Change) {
    let mut steps = change.field.raw().split('.');
    let top = steps.next().unwrap_or_default();
    let current = || object.get(top).cloned().unwrap_or(Value::Null);
    let mut place = body.entry(top.to_owned()).or_insert_with(current);
    // A key of a scope may contain dots.
    let rest: Vec<&str> = steps.collect();
    let steps: Vec<String> = match (top, rest.as_slice()) {
        ("scope_constraints", key) if !key.is_empty() => vec![key.join(".")],
        ("delegate", ["scope_constraints", key @ ..]) if !key.is_empty() => {
            vec!["scope_constraints".to_owned(), key.join(".")]
        }
        (_, rest) => rest.iter().map(|step| (*step).to_owned()).collect(),
    };
    for step in steps {
        if !place.is_object() {
            *place = json!({});
        }
        place = place.as_object_mut().expect("just made").entry(step).or_insert(Value::Null);
    }
    match change.action.as_str() {
        "add" => {
            if !place.is_array() {
                *place = json!([]);
            }
            let entries = place.as_array_mut().expect("just made");
            if !entries.contains(&change.entry) {
                entries.push(change.entry.clone());
            }
        }
        "remove" => match place {
            Value::Array(entries) => entries.retain(|entry| *entry != change.entry),
            Value::Object(entries) => {
                entries.remove(change.entry.as_str().unwrap_or_default());
            }
            other => *other = Value::Null,
        },
        _ => *place = change.entry.clone(),
    }
}

/// Returns a digest of what would be saved, so that a form saves exactly what its page showed.
pub(super) fn digest(edits: &[Edit]) -> String {
    let mut sum = Sha256::new();
    for edit in edits {
        for part in [&edit.path, &edit.version, &edit.body.to_string()] {
            sum.update(part.len().to_le_bytes());
            sum.update(part.as_bytes());
        }
    }
    hex::encode(sum.finalize())
}

/// Why the changes are not all saved.
pub(super) struct Unsaved<'a> {
    /// The objects that were saved before.
    pub saved: &'a [Edit],
    pub refused: &'a Edit,
    pub failure: Failure,
}

/// Saves the changes. Each object must still have the version that was read. The objects after one that is refused are
/// left as they are.
pub(super) async fn save<'a>(client: &Client, edits: &'a [Edit]) -> Result<(), Unsaved<'a>> {
    for (at, edit) in edits.iter().enumerate() {
        let conditions = Conditions { if_match: Some(&edit.version), idempotency_key: None };
        if let Err(failure) = client.act(Method::PATCH, &edit.path, Some(&edit.body), conditions).await {
            return Err(Unsaved { saved: &edits[..at], refused: edit, failure });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(object: &Value, changes: Value) -> Value {
        let changes: Vec<Change> = serde_json::from_value(changes).unwrap();
        let mut body = Map::new();
        for change in &changes {
            apply(object, &mut body, change);
        }
        Value::Object(body)
    }

    #[test]
    fn a_change_keeps_the_other_entries_of_its_field() {
        let object = json!({"name": "r", "scope_constraints": {"repos": ["a/b"], "x.y": ["z"]}, "allowed_tools": null});
        let holder = json!({"kind": "role", "id": "1"});
        let changes = json!([
            {"action": "add", "holder": holder, "field": "scope_constraints.repos", "entry": "c/d"},
            {"action": "add", "holder": holder, "field": "scope_constraints.x.y", "entry": "w"},
            {"action": "add", "holder": holder, "field": "allowed_tools", "entry": "t"},
        ]);
        let expected = json!({
            "scope_constraints": {"repos": ["a/b", "c/d"], "x.y": ["z", "w"]}, "allowed_tools": ["t"],
        });
        assert_eq!(changed(&object, changes), expected);
    }

    #[test]
    fn entries_are_removed_and_values_are_set() {
        let object = json!({"gates": [{"action": "deny"}, {"action": "ask"}], "enabled": false, "expires_at": "2020",
            "scope_constraints": {"old": ["a"], "repos": ["b"]}, "permissions": {"allowed_operations": ["x"]}});
        let holder = json!({"kind": "binding", "id": "1"});
        let changes = json!([
            {"action": "remove", "holder": holder, "field": "gates", "entry": {"action": "deny"}},
            {"action": "set", "holder": holder, "field": "enabled", "entry": true},
            {"action": "remove", "holder": holder, "field": "scope_constraints", "entry": "old"},
            {"action": "add", "holder": holder, "field": "permissions.allowed_tools", "entry": "t"},
            {"action": "set", "holder": holder, "field": "expires_at", "entry": null},
        ]);
        let expected = json!({"gates": [{"action": "ask"}], "enabled": true, "expires_at": null,
            "scope_constraints": {"repos": ["b"]}, "permissions": {"allowed_operations": ["x"], "allowed_tools": ["t"]}});
        assert_eq!(changed(&object, changes), expected);
    }
}
