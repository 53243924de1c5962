//! JSON that the host forwards without parsing it into values. A result can be as large as 1 MiB, and the code between
//! the plugin and the caller only needs to know that the result is valid JSON.

use std::fmt;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// JSON text that all parsers accept: well formed, with strings of valid Unicode and numbers in the range of a double.
/// Clones share the text.
#[derive(Clone, Debug)]
pub struct JsonText(Arc<str>);

/// The name by which `serde_json` recognises text that it writes unchanged. Its type `RawValue` has the same name, but
/// can only be created by parsing the text again.
const RAW: &str = "$serde_json::private::RawValue";
/// The whitespace of JSON.
const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

impl JsonText {
    /// Validates `text`, which may be at most 128 levels deep.
    ///
    /// # Errors
    /// Returns the position and cause of the first syntax error.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        // A syntax check alone would accept text that many parsers reject, such as an unpaired surrogate.
        serde_json::from_str::<Checked>(text)?;
        Ok(JsonText(text.trim_matches(WHITESPACE).into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the parsed value.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::from_str(self.as_str()).expect("the text has been checked")
    }
}

impl From<&Value> for JsonText {
    fn from(value: &Value) -> Self {
        JsonText(value.to_string().into())
    }
}

impl From<&Map<String, Value>> for JsonText {
    fn from(object: &Map<String, Value>) -> Self {
        JsonText(serde_json::to_string(object).expect("an object serializes to JSON").into())
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
        let mut raw = serializer.serialize_struct(RAW, 1)?;
        raw.serialize_field(RAW, self.as_str())?;
        raw.end()
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
        while members.next_entry::<Name, Checked>()?.is_some() {}
        Ok(Checked)
    }
}

/// Accepts any name of a member except [`RAW`]. `serde_json` would replace an object with this name by the JSON in its
/// value, so the parsed value would not be the one that other parsers read.
struct Name;

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Name)
    }
}

impl Visitor<'_> for Name {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
        if name == RAW { Err(E::custom("a member has a reserved name")) } else { Ok(Name) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_passed_on_unchanged() {
        let written = r#"{"b": 1, "a": [null, true, -2.50, 18446744073709551616, "\u00e9"]}"#;
        let text = JsonText::parse(written).unwrap();
        assert_eq!(text.as_str(), written);
        assert_eq!(serde_json::to_string(&[&text]).unwrap(), format!("[{written}]"));
        assert_eq!(serde_json::to_value(&text).unwrap(), text.value());
        assert_eq!(JsonText::parse(&format!(" \n{written}\t\r ")).unwrap().as_str(), written);
        assert_eq!(text, JsonText::from(&text.value()));
        assert_ne!(text, JsonText::from(&json!({})));
    }

    #[test]
    fn text_that_some_parsers_reject_is_refused() {
        for bad in
            ["", "{", "{}{}", "nul", "NaN", "1e999", r#""\ud83d""#, r#"{"\udc00":1}"#, "{\"a\":1,}", "\u{feff}{}"]
        {
            assert!(JsonText::parse(bad).is_err(), "{bad}");
        }
        for reserved in [
            r#"[{"$serde_json::private::RawValue":"[1]"}]"#,
            r#"{"a":{"\u0024serde_json::private::RawValue":"not JSON"}}"#,
        ] {
            assert!(JsonText::parse(reserved).is_err(), "{reserved}");
        }
        let deep = |levels: usize| JsonText::parse(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
        assert!(deep(100).is_ok());
        assert!(deep(200_000).is_err());
    }
}
