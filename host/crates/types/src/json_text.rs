//! JSON that the host forwards without parsing it into values. A result can be as large as 1 MiB, and the code between
//! the plugin and the caller only needs to know that the result is valid JSON.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// JSON text that all parsers accept: well formed, with strings of valid Unicode and numbers in the range of a double.
#[derive(Clone, Debug)]
pub struct JsonText(Box<RawValue>);

impl JsonText {
    /// Validates `text`, which may be at most 128 levels deep.
    ///
    /// # Errors
    /// Returns the position and cause of the first syntax error.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        // A check of only the syntax would accept text that many parsers reject, such as an unpaired surrogate.
        serde_json::from_str::<Checked>(&text)?;
        RawValue::from_string(text).map(JsonText)
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the parsed value.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(self.as_str()).expect("the text has been checked")
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> Self {
        let text = RawValue::from_string(value.to_string());
        JsonText(text.expect("a value serializes to JSON"))
    }
}

impl From<&Map<String, Value>> for JsonText {
    fn from(object: &Map<String, Value>) -> Self {
        let text = serde_json::to_string(object).and_then(RawValue::from_string);
        JsonText(text.expect("an object serializes to JSON"))
    }
}

/// Two texts are equal if their parsed values are equal.
impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Accepts any value and stores nothing.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Checked)
    }
}

impl<'de> Visitor<'de> for Checked {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Checked, A::Error> {
        while items.next_element::<Checked>()?.is_some() {}
        Ok(Checked)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Checked, A::Error> {
        while members.next_entry::<Checked, Checked>()?.is_some() {}
        Ok(Checked)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_passed_on_unchanged() {
        let written = r#"{"b": 1, "a": [null, true, -2.50, 18446744073709551616, "\u00e9"]}"#;
        let text = JsonText::parse(written.to_owned()).unwrap();
        assert_eq!(text.as_str(), written);
        assert_eq!(serde_json::to_string(&[&text]).unwrap(), format!("[{written}]"));
        assert_eq!(text, JsonText::from(&text.value()));
        assert_ne!(text, JsonText::from(&json!({})));
    }

    #[test]
    fn text_that_some_parsers_reject_is_refused() {
        for bad in
            ["", "{", "{}{}", "nul", "NaN", "1e999", r#""\ud83d""#, r#"{"\udc00":1}"#, "{\"a\":1,}", "\u{feff}{}"]
        {
            assert!(JsonText::parse(bad.to_owned()).is_err(), "{bad}");
        }
        let deep = |levels: usize| JsonText::parse(format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
        assert!(deep(100).is_ok());
        assert!(deep(200_000).is_err());
    }
}
