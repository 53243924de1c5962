//! The associated data of a sealed record.

use monstrum_types::{CredentialId, ResourceId, WorkspaceId};
use serde_json::Value;

/// Associated data, built field by field. Each name and value is preceded by its length, so that different lists of
/// fields have different bytes: `("a", "bc")` is not `("ab", "c")`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssociatedData(Vec<u8>);

impl AssociatedData {
    /// Creates associated data for a kind of record, such as `credential`. A record of one kind cannot be unsealed as
    /// another kind.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        let mut data = AssociatedData(Vec::with_capacity(256));
        data.push(kind.as_bytes());
        data
    }

    /// Returns the associated data of a field of a credential. The associated data contains the identifiers of the row
    /// and its `given_for` JSON (audience, inject rules, type, method).
    #[must_use]
    pub fn credential(
        workspace: WorkspaceId,
        credential: CredentialId,
        resource: ResourceId,
        field: &str,
        given_for: &Value,
    ) -> Self {
        AssociatedData::new("credential")
            .with("workspace", &workspace)
            .with("credential", &credential)
            .with("resource", &resource)
            .with("field", field)
            .with_json("given_for", given_for)
    }

    /// Appends a field.
    #[must_use]
    pub fn with(mut self, name: &str, value: &(impl ToString + ?Sized)) -> Self {
        self.push(name.as_bytes());
        self.push(value.to_string().as_bytes());
        self
    }

    /// Appends a field whose value is JSON. The order of object keys does not affect the result, because a database
    /// may reorder them.
    #[must_use]
    pub fn with_json(mut self, name: &str, value: &Value) -> Self {
        self.push(name.as_bytes());
        let mut text = String::new();
        write_sorted(value, &mut text);
        self.push(text.as_bytes());
        self
    }

    /// Appends associated data that is given as bytes.
    pub(crate) fn with_bytes(mut self, bytes: &[u8]) -> Self {
        self.push(bytes);
        self
    }

    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        self.0.extend_from_slice(bytes);
    }
}

impl AsRef<[u8]> for AssociatedData {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Writes JSON with the keys of every object sorted.
fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            out.push('{');
            for (key, member) in members {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_sorted(member, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for item in items {
                write_sorted(item, out);
                out.push(',');
            }
            out.push(']');
        }
        leaf => out.push_str(&leaf.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn only_the_order_of_json_keys_is_ignored() {
        let of = |value: Value| AssociatedData::new("t").with_json("given_for", &value);
        let one: Value = serde_json::from_str(r#"{"a": {"x": 1, "y": [1, 2]}, "b": "t"}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b": "t", "a": {"y": [1, 2], "x": 1}}"#).unwrap();
        assert_eq!(of(one), of(other));
        assert_ne!(of(json!([1, 2])), of(json!([2, 1])));
        assert_ne!(of(json!("1")), of(json!(1)));
        assert_ne!(of(json!({"a": null})), of(json!({})));
        assert_ne!(of(json!(["a,", "b"])), of(json!(["a", ",b"])));
    }

    proptest! {
        #[test]
        fn different_fields_give_different_bytes(
            one in proptest::collection::vec(("[ab]{0,3}", "[ab]{0,3}"), 0..4),
            other in proptest::collection::vec(("[ab]{0,3}", "[ab]{0,3}"), 0..4),
        ) {
            let build = |fields: &[(String, String)]| {
                fields.iter().fold(AssociatedData::new("t"), |data, (name, value)| data.with(name, value))
            };
            prop_assert_eq!(one == other, build(&one) == build(&other));
        }
    }
}
