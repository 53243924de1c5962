//! Forms from JSON Schemas and from the fields of resource types. A page knows no tool and no type: its form follows
//! from what the manifest declares.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::gateway::console::form::Fields;
use crate::gateway::console::text::{Text, pretty};

/// The start of the names of the fields, so that no field has the name of a hidden one.
pub(super) const PREFIX: &str = "p.";
/// The field with all values as JSON, which replaces the other fields.
pub(super) const WHOLE: &str = "json";
/// The maximum number of values that are shown as radio buttons. More values are a list to choose from.
const RADIOS_MAX: usize = 5;

/// A field of a form.
#[derive(Debug, Clone)]
pub(super) struct Input {
    /// The name in the form.
    pub name: String,
    /// The name in the schema.
    pub key: Text,
    pub label: Text,
    pub hint: Text,
    pub kind: Kind,
    pub required: bool,
    /// The value that the form shows.
    pub value: Text,
    /// What is wrong with the value.
    pub error: Text,
    pub options: Vec<Text>,
}

/// How a field is shown and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Long,
    Integer,
    Number,
    Boolean,
    Radios,
    Select,
    /// A text of which one line is one entry of a list.
    Lines,
    Json,
    Secret,
    LongSecret,
}

impl Input {
    pub(super) fn is_number(&self) -> bool {
        matches!(self.kind, Kind::Integer | Kind::Number)
    }

    pub(super) fn is_area(&self) -> bool {
        matches!(self.kind, Kind::Long | Kind::Lines | Kind::Json)
    }

    pub(super) fn is_lines(&self) -> bool {
        self.kind == Kind::Lines
    }

    pub(super) fn is_code(&self) -> bool {
        self.kind == Kind::Json
    }

    pub(super) fn is_boolean(&self) -> bool {
        self.kind == Kind::Boolean
    }

    pub(super) fn is_radios(&self) -> bool {
        self.kind == Kind::Radios
    }

    pub(super) fn is_select(&self) -> bool {
        self.kind == Kind::Select
    }

    pub(super) fn is_secret(&self) -> bool {
        self.kind == Kind::Secret
    }

    pub(super) fn is_long_secret(&self) -> bool {
        self.kind == Kind::LongSecret
    }

    /// Returns whether `option` is the value.
    pub(super) fn has(&self, option: &Text) -> bool {
        self.value == *option
    }

    /// Returns the value of the field as JSON, or `None` if the field is empty.
    fn read(&self, text: &str) -> Result<Option<Value>, &'static str> {
        if text.is_empty() {
            return Ok(None);
        }
        let value = match self.kind {
            Kind::Text | Kind::Long | Kind::Radios | Kind::Select | Kind::Secret => Value::from(text),
            // Browsers send the ends of lines as CR LF.
            Kind::LongSecret => Value::from(text.replace("\r\n", "\n")),
            Kind::Integer => Value::from(text.trim().parse::<i64>().map_err(|_| "form.not_integer")?),
            Kind::Number => {
                let number = text.trim().parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                Value::Number(number.ok_or("form.not_number")?)
            }
            Kind::Boolean => Value::from(text == "true"),
            Kind::Lines => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                Value::from(lines.map(str::to_owned).collect::<Vec<_>>())
            }
            Kind::Json => serde_json::from_str(text).map_err(|_| "form.not_json")?,
        };
        Ok(Some(value))
    }
}

/// A field that a resource type declares.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Declared {
    field: String,
    #[serde(default)]
    description: Text,
    required: bool,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    default: Option<Value>,
    #[serde(default)]
    enum_values: Option<Vec<Text>>,
    #[serde(default)]
    multiline: bool,
}

/// Returns the form of the fields that a type declares, filled with `values`. Secrets are never filled in.
pub(super) fn of_fields(fields: &[Declared], values: Option<&Map<String, Value>>) -> Vec<Input> {
    let input = |declared: &Declared| {
        let options = declared.enum_values.clone().unwrap_or_default();
        let kind = match declared.kind.as_str() {
            "secret" if declared.multiline => Kind::LongSecret,
            "secret" => Kind::Secret,
            "integer" => Kind::Integer,
            "boolean" => Kind::Boolean,
            "json" => Kind::Json,
            "enum" if options.len() <= RADIOS_MAX => Kind::Radios,
            "enum" => Kind::Select,
            _ if declared.multiline => Kind::Long,
            _ => Kind::Text,
        };
        let is_secret = matches!(kind, Kind::Secret | Kind::LongSecret);
        let value = values.and_then(|values| values.get(&declared.field)).or(declared.default.as_ref());
        let value = value.filter(|_| !is_secret).map(|value| shown(value, kind)).unwrap_or_default();
        Input {
            name: format!("{PREFIX}{}", declared.field),
            key: declared.field.as_str().into(),
            label: declared.field.replace('_', " ").into(),
            hint: declared.description.clone(),
            kind,
            required: declared.required,
            value,
            error: Text::default(),
            options,
        }
    };
    fields.iter().map(input).collect()
}

/// Returns the form of a JSON Schema, filled with `values`.
pub(super) fn of_schema(schema: &Value, values: Option<&Map<String, Value>>) -> Vec<Input> {
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut inputs: Vec<Input> = properties
        .iter()
        .map(|(name, property)| {
            let text = |key: &str| Text::from(property.get(key).and_then(Value::as_str).unwrap_or_default());
            let options = options(property);
            let kind = kind_of(property, &options);
            let value = values.and_then(|values| values.get(name)).or(property.get("default"));
            Input {
                name: format!("{PREFIX}{name}"),
                key: name.as_str().into(),
                label: name.as_str().into(),
                hint: text("description"),
                kind,
                required: required.contains(&name.as_str()),
                value: value.map(|value| shown(value, kind)).unwrap_or_default(),
                error: Text::default(),
                options,
            }
        })
        .collect();
    inputs.sort_by_key(|input| !input.required);
    inputs
}

fn options(property: &Value) -> Vec<Text> {
    let values = property.get("enum").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // Only texts are shown as options, because a form sends texts.
    let texts: Vec<Text> = values.iter().filter_map(Value::as_str).map(Text::from).collect();
    if texts.len() == values.len() { texts } else { Vec::new() }
}

fn kind_of(property: &Value, options: &[Text]) -> Kind {
    let kind = match property.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        // A value that may also be null is optional.
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or(""),
        _ => "",
    };
    match kind {
        _ if !options.is_empty() && options.len() <= RADIOS_MAX => Kind::Radios,
        _ if !options.is_empty() => Kind::Select,
        "string" => {
            let is_long = property.get("maxLength").and_then(Value::as_u64).is_some_and(|length| length > 500);
            if is_long { Kind::Long } else { Kind::Text }
        }
        "integer" => Kind::Integer,
        "number" => Kind::Number,
        "boolean" => Kind::Boolean,
        "array" if property.pointer("/items/type").and_then(Value::as_str) == Some("string") => Kind::Lines,
        _ => Kind::Json,
    }
}

fn shown(value: &Value, kind: Kind) -> Text {
    match (kind, value) {
        (_, Value::Null) => Text::default(),
        (Kind::Json, value) => pretty(value),
        (Kind::Lines, Value::Array(entries)) => {
            entries.iter().map(|entry| shown(entry, Kind::Text).raw().to_owned()).collect::<Vec<_>>().join("\n").into()
        }
        (_, Value::String(text)) => text.as_str().into(),
        (_, other) => other.to_string().into(),
    }
}

/// Reads the values of a form. If some cannot be read, the inputs tell which, with the keys of the words.
pub(super) fn read(inputs: &mut [Input], fields: &Fields) -> Result<Map<String, Value>, Vec<&'static str>> {
    let mut values = Map::new();
    let mut errors = Vec::new();
    for input in inputs {
        let text = fields.value(&input.name);
        match input.read(text) {
            Ok(Some(value)) => {
                values.insert(input.key.raw().to_owned(), value);
            }
            Ok(None) => {}
            Err(error) => {
                input.error = error.into();
                errors.push(error);
            }
        }
        if !matches!(input.kind, Kind::Secret | Kind::LongSecret) {
            input.value = text.into();
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(errors) }
}

/// Places the errors of an answer at the fields that they name. `prefix` precedes the names of the fields in the paths.
pub(super) fn place_errors(inputs: &mut [Input], errors: &[(Text, Text)], prefix: &str) {
    for (path, message) in errors {
        let Some(name) = path.raw().strip_prefix(prefix) else { continue };
        if let Some(input) = inputs.iter_mut().find(|input| input.key.raw() == name) {
            input.error = message.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form(schema: &Value, body: &str) -> Result<Value, Vec<&'static str>> {
        let mut inputs = of_schema(schema, None);
        read(&mut inputs, &Fields::parse(body.as_bytes())).map(Value::Object)
    }

    #[test]
    fn a_schema_makes_a_form_whose_values_have_the_types_of_the_schema() {
        let schema = json!({"required": ["b"], "properties": {
            "a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}, "d": {"type": "number"},
            "e": {"type": "array", "items": {"type": "string"}}, "f": {"type": "object"},
            "g": {"type": "string", "enum": ["x", "y"]}, "h": {"type": ["string", "null"]},
        }});
        let inputs = of_schema(&schema, None);
        assert_eq!((inputs[0].key.raw(), inputs[0].required, inputs.len()), ("b", true, 8));
        let body = "p.a=7&p.b=t&p.c=true&p.d=1.5&p.e=one%0D%0Atwo&p.f=%7B%22x%22%3A1%7D&p.g=y&p.h=";
        let expected = json!({"a": 7, "b": "t", "c": true, "d": 1.5, "e": ["one", "two"], "f": {"x": 1}, "g": "y"});
        assert_eq!(form(&schema, body), Ok(expected));
    }

    #[test]
    fn values_that_cannot_be_read_are_told() {
        let schema = json!({"properties": {"a": {"type": "integer"}, "f": {"type": "object"}}});
        assert_eq!(form(&schema, "p.a=x&p.f=%7B"), Err(vec!["form.not_integer", "form.not_json"]));
    }

    #[test]
    fn secrets_are_never_filled_in() {
        let fields: Vec<Declared> = serde_json::from_value(json!([
            {"field": "token", "type": "secret", "required": true, "description": "", "default": "x"},
            {"field": "api_base", "type": "url", "required": false, "default": "https://a", "description": "d"},
            {"field": "key", "type": "secret", "required": true, "multiline": true},
        ]))
        .unwrap();
        let values = json!({"token": "canary", "api_base": "https://b"});
        let inputs = of_fields(&fields, values.as_object());
        assert!(inputs[0].is_secret() && inputs[0].value.is_empty());
        assert!(inputs[2].is_long_secret());
        assert_eq!(inputs[1].value.raw(), "https://b");
    }
}
