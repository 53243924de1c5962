//! The parameters of a call. They can be as large as 1 MiB, and most calls need them only as they came, so the stages of
//! a call share one tree and one text.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

/// The parameters of a call. Clones share the value and its text.
#[derive(Clone)]
pub struct Params(Arc<Shared>);

struct Shared {
    value: Value,
    text: OnceLock<String>,
}

impl Params {
    /// Wraps a value, which need not be an object.
    #[must_use]
    pub fn new(value: Value) -> Self {
        Params(Arc::new(Shared { value, text: OnceLock::new() }))
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0.value
    }

    /// Returns the value as JSON text. The text is written at the first use.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text.get_or_init(|| self.0.value.to_string())
    }

    /// Returns the parameters if they are an object.
    #[must_use]
    pub fn object(&self) -> Option<ObjectParams> {
        self.value().is_object().then(|| ObjectParams(self.clone()))
    }
}

/// Parameters that are an object.
#[derive(Clone)]
pub struct ObjectParams(Params);

impl ObjectParams {
    /// Returns the members of the object.
    #[must_use]
    pub fn members(&self) -> &Map<String, Value> {
        self.0.value().as_object().expect("only an object is wrapped")
    }

    /// Returns the object as a value.
    #[must_use]
    pub fn value(&self) -> &Value {
        self.0.value()
    }

    /// Returns the object as JSON text. The text is written at the first use.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text()
    }
}

impl From<Map<String, Value>> for ObjectParams {
    fn from(members: Map<String, Value>) -> Self {
        ObjectParams(Params::new(Value::Object(members)))
    }
}

/// Objects are equal if their members are equal.
impl PartialEq for ObjectParams {
    fn eq(&self, other: &Self) -> bool {
        self.members() == other.members()
    }
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

impl fmt::Debug for ObjectParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn clones_share_the_text() {
        let params = Params::new(json!({"b": 1, "a": "é\n"}));
        let object = params.object().unwrap();
        assert_eq!(object.text(), r#"{"b":1,"a":"é\n"}"#);
        assert!(std::ptr::eq(object.text(), params.text()));
        assert_eq!(object, ObjectParams::from(object.members().clone()));
        assert!(Params::new(json!([])).object().is_none());
    }
}
