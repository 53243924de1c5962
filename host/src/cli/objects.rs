//! What the commands about objects share: bots, resources, roles, bindings and workspaces are created, shown, changed and
//! deleted in the same way.

use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Extra, NamedChanges};
use super::names::{self, Noun};
use super::output;

/// Creates an object with a name and prints its id.
pub(super) async fn create(
    client: &Client,
    noun: Noun,
    name: String,
    (mut body, extra): (Body, Extra),
    json: bool,
) -> Result<(), Failure> {
    body.set("name", Some(name));
    body.add(extra)?;
    let created = client.post(&["api", noun.segment()], Some(&body.whole())).await?;
    tell_created(&created, noun.word(), &output::cell(&created["name"]), json)
}

/// Prints a new object: its id to standard output, for scripts, and a note to standard error.
pub(super) fn tell_created(created: &Value, word: &str, name: &str, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(created);
    }
    output::note(&format!("created {word} {}", output::plain(name)));
    warnings(created);
    output::line(output::plain(&output::cell(&created["id"])))
}

/// Changes an object with a name.
pub(super) async fn edit(
    client: &Client,
    noun: Noun,
    object: &str,
    (mut body, changes): (Body, NamedChanges),
    json: bool,
) -> Result<(), Failure> {
    body.set("name", changes.name);
    body.apply(changes.others)?;
    let body = body.change()?;
    let id = names::id(client, noun, object).await?;
    let changed = client.patch(&["api", noun.segment(), &id], &body).await?;
    tell_changed(&changed, noun.word(), &output::cell(&changed["name"]), json)
}

/// Prints a changed object.
pub(super) fn tell_changed(changed: &Value, word: &str, name: &str, json: bool) -> Result<(), Failure> {
    warnings(changed);
    output::done(json, changed, &format!("changed {word} {name}"))
}

/// Deletes an object.
pub(super) async fn delete(client: &Client, noun: Noun, object: &str, json: bool) -> Result<(), Failure> {
    let id = names::id(client, noun, object).await?;
    client.delete(&["api", noun.segment(), &id]).await?;
    tell_deleted(&id, noun.word(), object, json)
}

/// Prints that an object is deleted.
pub(super) fn tell_deleted(id: &str, word: &str, name: &str, json: bool) -> Result<(), Failure> {
    output::done(json, &json!({ "id": id, "deleted": true }), &format!("deleted {word} {name}"))
}

/// Writes the fields of an object that have a value, under these names.
pub(super) fn fields(object: &Value, names: &[(&str, &str)]) -> Result<(), Failure> {
    let given = names.iter().filter(|(_, field)| !is_empty(&object[*field]));
    output::fields(&given.map(|(name, field)| (*name, output::cell(&object[*field]))).collect::<Vec<_>>())
}

/// Formats the scopes of a role or a binding: `repos: acme/*, beta/*; labels: none`.
pub(super) fn scopes(constraints: &Value) -> String {
    let scopes = constraints.as_object().into_iter().flatten().map(|(dimension, entries)| {
        let entries = if is_empty(entries) { "none".to_owned() } else { output::cell(entries) };
        format!("{dimension}: {entries}")
    });
    scopes.collect::<Vec<_>>().join("; ")
}

/// Formats a list of globs that may be absent.
pub(super) fn globs(list: &Value) -> String {
    match list {
        Value::Null => "any".to_owned(),
        list if is_empty(list) => "none".to_owned(),
        list => output::cell(list),
    }
}

fn warnings(object: &Value) {
    for warning in object["warnings"].as_array().into_iter().flatten() {
        output::warning(&output::cell(warning));
    }
}

/// Returns whether a value says nothing: null, or an empty text, list or object.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_and_globs_read_like_text() {
        assert_eq!(scopes(&json!({ "repos": ["acme/*", "b/c"], "labels": [] })), "repos: acme/*, b/c; labels: none");
        assert_eq!(scopes(&json!({})), "");
        assert_eq!(globs(&Value::Null), "any");
        assert_eq!(globs(&json!([])), "none");
        assert_eq!(globs(&json!(["issue.*"])), "issue.*");
    }
}
